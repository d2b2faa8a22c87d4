#!/usr/bin/env bash
# Runs the commands of README.md as a reader would type them.
#
# Between `<!-- test:begin -->` and `<!-- test:end -->` every fenced block marked `sh` is run, in order, by one bash with
# `set -euo pipefail`, in a temporary copy of the repository, so that folders the commands make are thrown away. A block
# marked `sh server` is started in the background and waited for (/readyz); one marked `sh background` is only started.
# Both are stopped at the end. Port 7070 is replaced by a free one everywhere.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD

[ -f README.md ] || { echo "test-readme: there is no README.md" >&2; exit 1; }
for program in cargo curl jq; do
    command -v "$program" >/dev/null 2>&1 || { echo "test-readme: $program is missing, run scripts/setup-tests.sh" >&2; exit 1; }
done

target=${CARGO_TARGET_DIR:-$root/target}
mkdir -p "$target"
target=$(cd "$target" && pwd)

work=$(mktemp -d)
copy=$work/windlass
mkdir "$copy"

# Stops everything the blocks started: each background block leads a process group of its own.
stop_all() {
    status=$?
    if [ -f "$work/groups" ]; then
        while read -r group; do
            kill -TERM -- "-$group" 2>/dev/null || true
        done <"$work/groups"
        for _ in $(seq 1 50); do
            alive=0
            while read -r group; do
                if kill -0 -- "-$group" 2>/dev/null; then alive=1; fi
            done <"$work/groups"
            [ "$alive" -eq 1 ] || break
            sleep 0.1
        done
        while read -r group; do
            kill -KILL -- "-$group" 2>/dev/null || true
        done <"$work/groups"
    fi
    if [ "$status" -ne 0 ]; then
        for log in "$work"/background-*.log; do
            [ -f "$log" ] || continue
            echo "test-readme: the last lines of $(basename "$log"):" >&2
            tail -n 30 "$log" >&2
        done
    fi
    rm -rf "$work"
    exit "$status"
}
trap stop_all EXIT

port_is_free() { ! (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
port=0
for _ in $(seq 1 100); do
    candidate=$((20000 + RANDOM % 10000))
    if port_is_free "$candidate"; then
        port=$candidate
        break
    fi
done
[ "$port" -ne 0 ] || { echo "test-readme: no free port found" >&2; exit 1; }

echo "test-readme: copying the repository to $copy, port $port instead of 7070"
if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files -z --cached --others --exclude-standard
else
    find . -name target -prune -o -type f -print0
fi | while IFS= read -r -d '' file; do
    [ -f "$file" ] || continue
    mkdir -p "$copy/$(dirname "$file")"
    cp -p "$file" "$copy/$file"
done
# The commands name ./target, whatever folder the build really uses.
ln -s "$target" "$copy/target"

# One script from all blocks; background blocks go to files of their own.
awk -v work="$work" '
    function shut() { if (kind != "sh") { close(out); print "start_" kind " " number } }
    /^<!-- test:begin -->/ { tested = 1; next }
    /^<!-- test:end -->/ { tested = 0; next }
    !fenced && /^```/ {
        fenced = 1
        skipped = 1
        if (!tested) next
        info = substr($0, 4)
        sub(/[ \t]+$/, "", info)
        if (info == "sh") kind = "sh"
        else if (info == "sh server") kind = "server"
        else if (info == "sh background") kind = "background"
        else next
        skipped = 0
        number++
        out = work "/block-" number ".sh"
        printf "echo \"test-readme: block %d (%s, line %d)\"\n", number, kind, NR
        next
    }
    fenced && /^```/ { fenced = 0; if (!skipped) shut(); next }
    fenced && !skipped {
        if (kind == "sh") print
        else print > out
    }
    END { if (fenced) { print "test-readme: a block of README.md is not closed" > "/dev/stderr"; exit 1 } }
' README.md | sed "s/7070/$port/g" >"$work/blocks.sh"
for block in "$work"/block-*.sh; do
    [ -f "$block" ] || continue
    sed -i "s/7070/$port/g" "$block"
done
if ! grep -q '^echo "test-readme: block' "$work/blocks.sh"; then
    echo "test-readme: README.md has no sh block between <!-- test:begin --> and <!-- test:end -->" >&2
    exit 1
fi

cat >"$work/run.sh" <<'EOF'
set -euo pipefail
start_background() {
    set -m
    bash -euo pipefail "$readme_test_work/block-$1.sh" >"$readme_test_work/background-$1.log" 2>&1 </dev/null &
    started=$!
    set +m
    echo "$started" >>"$readme_test_work/groups"
}
start_server() {
    start_background "$1"
    # Generous, because the first command of a reader may be a build.
    for _ in $(seq 1 18000); do
        if curl -fsS -o /dev/null "$readme_test_url/readyz" 2>/dev/null; then return 0; fi
        kill -0 "$started" 2>/dev/null || { echo "test-readme: the server of block $1 ended before it was ready" >&2; return 1; }
        sleep 0.1
    done
    echo "test-readme: the server of block $1 did not become ready in 30 minutes" >&2
    return 1
}
EOF
echo 'echo "test-readme: every block passed"' | cat "$work/blocks.sh" - >>"$work/run.sh"

cd "$copy"
# Commands that rely on the defaults have to find the free port too.
export CARGO_TARGET_DIR="$target" WINDLASS_LISTEN="127.0.0.1:$port" WINDLASS_SERVER="http://127.0.0.1:$port"
export readme_test_work="$work" readme_test_url="http://127.0.0.1:$port"
bash "$work/run.sh"
