#!/usr/bin/env bash
# Runs every example as its documentation says, and looks at what comes out.
set -euo pipefail
cd "$(dirname "$0")/.."

windlass=$(realpath "${1:?usage: scripts/test-examples.sh PATH-TO-WINDLASS FOLDER-OF-EXAMPLE-PROGRAMS}")
programs=$(realpath "${2:?usage: scripts/test-examples.sh PATH-TO-WINDLASS FOLDER-OF-EXAMPLE-PROGRAMS}")
examples=$PWD/examples

work=$(mktemp -d)
cleanup() {
    local children
    children=$(jobs -p)
    # shellcheck disable=SC2086 # one word per process
    [ -z "$children" ] || kill -KILL $children 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
cd "$work"
fail() { echo "test-examples: $*" >&2; tail -n 20 ./*.out ./*.log 2>/dev/null >&2 || true; exit 1; }
says() { grep -qF -- "$2" "$1" || fail "$1 does not say: $2"; }
until_so() {
    local what=$1
    shift
    for _ in $(seq 1 300); do
        if "$@" >/dev/null 2>&1; then return; fi
        sleep 0.1
    done
    fail "not within 30 s: $what"
}

echo "test-examples: hello"
lines=$(grep -cvE '^\s*(//|$)' "$examples/hello.rs")
[ "$lines" -lt 15 ] || fail "hello.rs has $lines lines; define, enqueue, run must take fewer than 15"
"$programs/hello" >hello.out
says hello.out "Hello, Ada!"

echo "test-examples: welcome-email"
"$programs/welcome-email" >welcome.out
says welcome.out "attempt 3 at welcoming Ada"
says welcome.out "DeadLetter because \"bob\" is no e-mail address"
says welcome.out "attempt 2 at welcoming Bob <bob@example.com>"

echo "test-examples: long-report"
"$programs/long-report" >report.out
says report.out "writing chapter 4 (attempt 2)"
says report.out "long_report after 2 attempts: 2026-10.pdf"
[ "$(grep -c 'loading the figures' report.out)" -eq 1 ] || fail "the figures were loaded more than once"

echo "test-examples: axum-app"
port=$((20000 + RANDOM % 10000))
app=http://127.0.0.1:$port
LISTEN=127.0.0.1:$port "$programs/axum-app" >axum.out 2>axum.log &
pid=$!
until_so "the application listens" curl -s -o /dev/null "$app/thumbnails/none"
json='content-type: application/json'
ids=()
for n in $(seq 1 12); do
    ids+=("$(curl -fsS "$app/thumbnails" -H "$json" -d "{\"image\": \"cat-$n.png\"}" | jq -r .id)")
done
# Killed with work in its hands: what was accepted is done after the next start.
kill -KILL "$pid"
wait "$pid" 2>/dev/null || true
LISTEN=127.0.0.1:$port "$programs/axum-app" >axum.out 2>axum.log &
pid=$!
until_so "the application listens again" curl -s -o /dev/null "$app/thumbnails/none"
done_all() {
    local id
    for id in "${ids[@]}"; do
        [ "$(curl -fsS "$app/thumbnails/$id" | jq -r .status)" = completed ] || return 1
    done
}
until_so "what was accepted is done" done_all
[ "$(curl -fsS "$app/thumbnails/${ids[11]}" | jq -r .thumbnail)" = thumb-cat-12.png ] || fail "a wrong thumbnail"
kill -INT "$pid"
wait "$pid" || fail "the application ended with $?"

echo "test-examples: image-resize"
export WINDLASS_SERVER=http://127.0.0.1:$((port + 1))
"$windlass" server --listen "127.0.0.1:$((port + 1))" --store sqlite:resize-data >server.log 2>&1 &
until_so "the server is ready" curl -fsS "$WINDLASS_SERVER/readyz"
"$windlass" worker --exec "resize_image=$examples/image-resize/resize.sh" --concurrency 2 >worker.log 2>&1 &
worker=$!
{ echo "P3 64 32 255"; for _ in $(seq 1 2048); do echo "200 100 50"; done; } >photo.ppm
"$windlass" enqueue resize_image --parameters "{\"image\": \"$work/photo.ppm\", \"width\": 16}" --wait --json >resized.out
[ "$(head -n 2 photo-16.ppm | tail -n 1)" = "16 8" ] || fail "the picture has not become smaller"
code=0
"$windlass" enqueue resize_image --parameters '{"image": "/nowhere.ppm"}' --wait >missing.out 2>missing.log || code=$?
[ "$code" -eq 6 ] || fail "a missing picture ended with exit code $code"
"$windlass" dlq >dlq.out
says dlq.out "there is no file /nowhere.ppm"
kill -TERM "$worker"
wait "$worker" || fail "the worker ended with $?"
echo "test-examples: all fine"
