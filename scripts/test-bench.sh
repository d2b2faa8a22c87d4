#!/usr/bin/env bash
# A benchmark of a few seconds with the real binary: every figure is there and above zero, and nothing is left behind.
# How fast it is says nothing here.
set -euo pipefail
cd "$(dirname "$0")/.."

binary=${1:?usage: scripts/test-bench.sh PATH-TO-WINDLASS}
binary=$(realpath "$binary")
command -v jq >/dev/null 2>&1 || { echo "test-bench: jq is missing, run scripts/setup-tests.sh" >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/stores"
(cd "$work/stores" && "$binary" bench --seconds 0.2 --tasks 500 --pickups 5 --json) >"$work/figures.json"

figures='submit_x1 submit_x32 bulk_100 bulk_100_x32 bulk_1000 drain pickup_p50 pickup_p99 submit_latency_p50
    submit_latency_p99 memory'
for way in http embedded; do
    for figure in $figures; do
        if ! jq -e --arg way "$way" --arg figure "$figure" '.[$way][$figure].median > 0' "$work/figures.json" >/dev/null; then
            echo "test-bench: $figure ($way) was not measured:" >&2
            cat "$work/figures.json" >&2
            exit 1
        fi
    done
done
# An idle server may well use nothing at all for a second.
rest='.http.memory_server.median > 0 and .http.memory_worker.median > 0 and .syncs_per_second.median > 0
    and .http.idle_cpu.median >= 0 and .embedded.idle_cpu.median >= 0'
jq -e "$rest" "$work/figures.json" >/dev/null || { echo "test-bench: memory, disk or idle cost was not measured" >&2; exit 1; }
[ -z "$(ls -A "$work/stores")" ] || { echo "test-bench: $(ls "$work/stores") was left behind" >&2; exit 1; }
echo "test-bench: every figure was measured, both ways"
