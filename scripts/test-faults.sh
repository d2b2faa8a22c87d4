#!/usr/bin/env bash
# Bad days of the disk, with the real binary:
#   full    a file system of a few megabytes fills up: 503 with applied "no", nothing half-written, and work goes on
#           without a restart when there is room again
#   fsync   a failing fsync: the process stops and says why, instead of pretending; nothing acknowledged is lost
# Needs to mount a tmpfs (root, or user namespaces) and strace.
set -euo pipefail
cd "$(dirname "$0")/.."

binary=${1:?usage: scripts/test-faults.sh PATH-TO-WINDLASS}
binary=$(realpath "$binary")

# A mount of our own, gone with this process.
if [ -z "${WINDLASS_FAULTS_INSIDE:-}" ]; then
    export WINDLASS_FAULTS_INSIDE=1
    if [ "$(id -u)" -eq 0 ]; then exec unshare -m "$0" "$binary"; else exec unshare -Urm "$0" "$binary"; fi
fi

work=$(mktemp -d)
server=
cleanup() {
    [ -z "$server" ] || kill -KILL "$server" 2>/dev/null || true
    umount "$work/small" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
fail() { echo "test-faults: $*" >&2; [ ! -f "$work/log" ] || tail -n 20 "$work/log" >&2; exit 1; }

port=$((20000 + RANDOM % 10000))
url=http://127.0.0.1:$port
ready() {
    for _ in $(seq 1 100); do
        if curl -fsS -o /dev/null "$url/readyz" 2>/dev/null; then return; fi
        sleep 0.1
    done
    fail "the server does not become ready"
}
submit() { curl -s -o "$work/answer" -w '%{http_code}' "$url/api/v1/tasks" -d "$1" || true; }
stored() { curl -fsS "$url/metrics" | awk '/^windlass_tasks\{.*status="queued"/ {print int($2)}'; }

echo "test-faults: the disk fills up"
mkdir "$work/small"
mount -t tmpfs -o size=6m tmpfs "$work/small"
"$binary" server --listen "127.0.0.1:$port" --store "sqlite:$work/small/data" >"$work/log" 2>&1 &
server=$!
ready
head -c 2000000 /dev/zero >"$work/small/filler"
payload=$(head -c 30000 /dev/zero | tr '\0' x)
acknowledged=0 refused=0
for _ in $(seq 1 400); do
    code=$(submit "{\"task_type\": \"fill\", \"parameters\": \"$payload\"}")
    case $code in
        201) acknowledged=$((acknowledged + 1)) ;;
        503)
            refused=$((refused + 1))
            jq -e '.code == "store_unavailable" and .applied == "no" and .retry_after_seconds > 0' "$work/answer" >/dev/null ||
                fail "an unexpected refusal: $(cat "$work/answer")"
            [ "$refused" -lt 5 ] || break
            ;;
        *) fail "HTTP $code: $(cat "$work/answer")" ;;
    esac
done
[ "$refused" -ge 5 ] || fail "the disk did not fill up after $acknowledged tasks"
[ "$(stored)" -eq "$acknowledged" ] || fail "$acknowledged acknowledged, but $(stored) stored while the disk is full"
rm "$work/small/filler"
for _ in $(seq 1 50); do
    code=$(submit '{"task_type": "after"}')
    [ "$code" = 201 ] && break
    sleep 0.1
done
[ "$code" = 201 ] || fail "there is room again, but HTTP $code: $(cat "$work/answer")"
acknowledged=$((acknowledged + 1))
[ "$(stored)" -eq "$acknowledged" ] || fail "$acknowledged acknowledged, but $(stored) stored after there was room again"
kill -KILL "$server"
wait "$server" 2>/dev/null || true
"$binary" server --listen "127.0.0.1:$port" --store "sqlite:$work/small/data" >"$work/log" 2>&1 &
server=$!
ready
[ "$(stored)" -eq "$acknowledged" ] || fail "$acknowledged acknowledged, but $(stored) after a restart"
kill -TERM "$server"
wait "$server" || fail "SIGTERM ended with $?"
server=
echo "test-faults: full disk passed: $acknowledged acknowledged and kept, $refused refused"

echo "test-faults: fsync fails"
strace -f -qq -o /dev/null -e trace=fsync,fdatasync -e inject=fsync,fdatasync:error=EIO:when=40+ \
    "$binary" server --listen "127.0.0.1:$port" --store "sqlite:$work/data" >"$work/log" 2>&1 &
server=$!
ready
acknowledged=0
for _ in $(seq 1 200); do
    [ "$(submit '{"task_type": "sync"}')" = 201 ] || break
    acknowledged=$((acknowledged + 1))
done
[ "$acknowledged" -lt 200 ] || fail "fsync failed and the server went on"
if wait "$server"; then fail "the server ended as if all were well"; fi
server=
grep -q "can no longer be trusted" "$work/log" || fail "the server did not say why it stopped"
"$binary" server --listen "127.0.0.1:$port" --store "sqlite:$work/data" >"$work/log" 2>&1 &
server=$!
ready
kept=$(stored)
[ "$kept" -ge "$acknowledged" ] || fail "$acknowledged acknowledged, but only $kept kept"
echo "test-faults: failed fsync passed: stopped after $acknowledged acknowledged, $kept kept"
