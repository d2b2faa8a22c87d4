#!/usr/bin/env bash
# The two workers of docs/protocol.md, taken from the page as they stand there and run against the real binary, side by
# side: work done, failures retried and given up, leases kept by heartbeats, a server that is killed and comes back,
# cancellation, a worker that was forgotten, SIGTERM.
set -euo pipefail
cd "$(dirname "$0")/.."

binary=${1:?usage: scripts/test-protocol.sh PATH-TO-WINDLASS}
binary=$(realpath "$binary")
page=docs/protocol.md
python_lines=40 shell_lines=38

for program in curl jq python3 timeout; do
    command -v "$program" >/dev/null 2>&1 || { echo "test-protocol: $program is missing, run scripts/setup-tests.sh" >&2; exit 1; }
done

work=$(mktemp -d)
server='' python='' shell=''
touch "$work/programs"
cleanup() {
    status=$?
    # Jobs of the shell worker note their process ids, for the case that nobody is left to stop them.
    for process in $python $shell $server $(cat "$work/programs"); do kill -KILL "$process" 2>/dev/null || true; done
    # The helpers of a killed shell worker notice within a heartbeat.
    [ "$status" -eq 0 ] || sleep 1
    rm -rf "$work"
}
trap cleanup EXIT
fail() {
    echo "test-protocol: $*" >&2
    for log in server python shell; do
        [ ! -s "$work/$log.log" ] || { echo "test-protocol: the last lines of $log.log:" >&2; tail -n 20 "$work/$log.log" >&2; }
    done
    exit 1
}

port_is_free() { ! (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
port=0
for _ in $(seq 1 100); do
    candidate=$((20000 + RANDOM % 10000))
    if port_is_free "$candidate"; then port=$candidate && break; fi
done
[ "$port" -ne 0 ] || fail "no free port found"
url=http://127.0.0.1:$port

start_server() { # LEASE-SECONDS
    "$binary" server --listen "127.0.0.1:$port" --store "sqlite:$work/data" --lease-seconds "$1" --heartbeat-seconds 0.5 \
        >>"$work/server.log" 2>&1 &
    server=$!
    for _ in $(seq 1 100); do
        if curl -fsS -o /dev/null "$url/readyz" 2>/dev/null; then return; fi
        sleep 0.1
    done
    fail "the server does not become ready"
}
kill_server() {
    kill -KILL "$server"
    wait "$server" 2>/dev/null || true
    server=
}
start_python() {
    WINDLASS_SERVER=$url python3 "$work/worker.py" >>"$work/python.log" 2>&1 &
    python=$!
}
start_shell() {
    WINDLASS_SERVER=$url TMPDIR=$work bash "$work/worker.sh" job bash "$work/job.sh" >>"$work/shell.log" 2>&1 &
    shell=$!
}

submit() { curl -fsS "$url/api/v1/tasks" -d "$1" | jq -r .task_id; }
show() { curl -sS "$url/api/v1/tasks/$1?include=history" || true; }
# Waits until jq finds what the filter says in the answer of a path, for at most so many seconds.
until_holds() { # PATH SECONDS FILTER WHAT
    for _ in $(seq 1 $(($2 * 5))); do
        if curl -sS "$url$1" 2>/dev/null | jq -e "$3" >/dev/null 2>&1; then return; fi
        sleep 0.2
    done
    fail "$4: after $2 s not yet $3 in $1: $(curl -sS "$url$1")"
}
task_holds() { until_holds "/api/v1/tasks/$1?include=history" "$2" "$3" "$4"; } # ID SECONDS FILTER WHAT
workers_are() { until_holds /api/v1/workers 20 ".items | length == $1" "$2"; }
# At the first attempt, claimed once, with no lease lost on the way.
undisturbed='.attempt == 1 and .crash_count == 0 and ([.history[] | select(.kind == "claimed")] | length == 1)'
worker_of() { curl -fsS "$url/api/v1/workers" | jq -r --arg type "$1" '.items[] | select(.task_types | index($type)) | .worker_id'; }
ended() { # PROCESS WHAT: a worker has to end well before an idle poll would (10 s), with exit code 0
    for _ in $(seq 1 80); do
        if ! kill -0 "$1" 2>/dev/null; then
            code=0
            wait "$1" || code=$?
            [ "$code" -eq 0 ] || fail "$2 ended with $code"
            return
        fi
        sleep 0.1
    done
    fail "$2 did not end"
}

echo "test-protocol: taking the workers from $page"
extract() { # NAME: the fenced block after the comment that names it
    awk -v mark="<!-- file: $1 -->" '
        $0 == mark { marked = 1; next }
        marked && !fenced && /^```/ { fenced = 1; next }
        fenced && /^```/ { exit }
        fenced { print }
    ' "$page" >"$work/$1"
    [ -s "$work/$1" ] || fail "$page has no block $1"
}
extract worker.py
extract worker.sh
[ "$(wc -l <"$work/worker.py")" -le "$python_lines" ] || fail "worker.py has more than $python_lines lines"
[ "$(wc -l <"$work/worker.sh")" -le "$shell_lines" ] || fail "worker.sh has more than $shell_lines lines"
if command -v shellcheck >/dev/null 2>&1; then shellcheck "$work/worker.sh" || fail "worker.sh is unsound"; fi
cat >"$work/job.sh" <<EOF
echo \$\$ >>"$work/programs"
read -r -d '' given || true
case \$(jq -r .do <<<"\$given") in
    add) jq '{sum: (.a + .b)}' <<<"\$given" ;;
    nap) exec sleep "\$(jq .seconds <<<"\$given")" ;;
    exit) echo "as asked" >&2 && exit "\$(jq .code <<<"\$given")" ;;
    flood) head -c 70000 /dev/zero | tr '\0' x ;;
esac
EOF

start_server 10
start_python
start_shell
workers_are 2 "both workers register"

echo "test-protocol: a task completes with its result"
a=$(submit '{"task_type": "add", "parameters": {"a": 2, "b": 3}}')
b=$(submit '{"task_type": "job", "parameters": {"do": "add", "a": 2, "b": 3}}')
for task in "$a" "$b"; do task_holds "$task" 20 '.status == "completed" and .result == {"sum": 5}' "the sum"; done

echo "test-protocol: a failing task is tried again and ends as a dead letter"
retry='"max_retries": 1, "retry": {"strategy": "fixed", "base_delay": 0.1, "jitter": "none"}'
a=$(submit "{\"task_type\": \"add\", \"parameters\": {\"a\": 2}, $retry}")
b=$(submit "{\"task_type\": \"job\", \"parameters\": {\"do\": \"exit\", \"code\": 3}, $retry}")
c=$(submit "{\"task_type\": \"job\", \"parameters\": {\"do\": \"exit\", \"code\": 65}, $retry}")
d=$(submit "{\"task_type\": \"job\", \"parameters\": {\"do\": \"flood\"}, \"max_retries\": 0}")
# Written with escapes, the result is larger than the parameters were.
e=$(submit "{\"task_type\": \"add\", \"parameters\": {\"a\": \"$(printf 'é%.0s' {1..20000})\", \"b\": \"\"}, \"max_retries\": 0}")
dead='.status == "dead_letter" and .dead_reason'
task_holds "$a" 20 "$dead == \"max_retries\" and .attempt == 2 and .error.code == \"KeyError\"" "the exception"
task_holds "$b" 20 "$dead == \"max_retries\" and .attempt == 2 and .error.code == \"exit_3\" and (.error.message | test(\"as asked\"))" "exit code 3"
task_holds "$c" 20 "$dead == \"permanent_error\" and .attempt == 1 and .error.class == \"permanent\"" "exit code 65"
task_holds "$d" 20 "$dead == \"max_retries\" and (.error.message | test(\"refused\"))" "a result that is too large"
task_holds "$e" 20 "$dead == \"max_retries\" and .error.code == \"payload_too_large\"" "a result that is too large"
for task in "$a" "$b" "$c" "$d" "$e"; do
    curl -fsS "$url/api/v1/dlq" | jq -e --arg id "$task" '[.items[].task_id] | index($id)' >/dev/null || fail "$task is no dead letter"
done

echo "test-protocol: heartbeats keep the lease of a task that is longer than two leases"
# Only here is the lease short: on a busy machine the shell worker would lose it elsewhere for no fault of its own.
kill_server
start_server 2
a=$(submit '{"task_type": "nap", "parameters": {"seconds": 4.5}}')
b=$(submit '{"task_type": "job", "parameters": {"do": "nap", "seconds": 4.5}}')
for task in "$a" "$b"; do task_holds "$task" 20 ".status == \"completed\" and $undisturbed" "the long task"; done

echo "test-protocol: the server is killed while tasks run, and is away when they end"
before="$(worker_of nap) $(worker_of job)"
a=$(submit '{"task_type": "nap", "parameters": {"seconds": 1.5}}')
b=$(submit '{"task_type": "job", "parameters": {"do": "nap", "seconds": 1.5}}')
for task in "$a" "$b"; do task_holds "$task" 20 '.status == "executing"' "the start"; done
kill_server
sleep 2.5
start_server 10
for task in "$a" "$b"; do task_holds "$task" 20 ".status == \"completed\" and $undisturbed" "the result that was kept"; done
[ "$(worker_of nap) $(worker_of job)" = "$before" ] || fail "a worker registered again though the server knows it"
kill_server
start_server 10
a=$(submit '{"task_type": "add", "parameters": {"a": 2, "b": 3}}')
b=$(submit '{"task_type": "job", "parameters": {"do": "add", "a": 2, "b": 3}}')
for task in "$a" "$b"; do task_holds "$task" 20 '.status == "completed" and .result == {"sum": 5}' "idle during the restart"; done

echo "test-protocol: a cancelled task is stopped and makes room for the next"
a=$(submit '{"task_type": "nap", "parameters": {"seconds": 30}}')
b=$(submit '{"task_type": "job", "parameters": {"do": "nap", "seconds": 30}}')
for task in "$a" "$b"; do task_holds "$task" 20 '.status == "executing"' "the start"; done
for task in "$a" "$b"; do curl -fsS -o /dev/null -X DELETE "$url/api/v1/tasks/$task"; done
a=$(submit '{"task_type": "add", "parameters": {"a": 2, "b": 3}}')
b=$(submit '{"task_type": "job", "parameters": {"do": "add", "a": 2, "b": 3}}')
for task in "$a" "$b"; do task_holds "$task" 20 '.status == "completed"' "the next task"; done

echo "test-protocol: a worker that the server forgot registers again, and its task is done"
a=$(submit '{"task_type": "nap", "parameters": {"seconds": 3}}')
b=$(submit '{"task_type": "job", "parameters": {"do": "nap", "seconds": 3}}')
for task in "$a" "$b"; do task_holds "$task" 20 '.status == "executing"' "the start"; done
for worker in $before; do curl -fsS -o /dev/null -X DELETE "$url/internal/workers/$worker"; done
for task in "$a" "$b"; do
    task_holds "$task" 20 '.status == "completed" and ([.history[].kind] | index("released"))' "the task of the forgotten worker"
done
workers_are 2 "registered once each"

echo "test-protocol: SIGTERM in the middle of a task lets it finish"
a=$(submit '{"task_type": "nap", "parameters": {"seconds": 2.5}}')
b=$(submit '{"task_type": "job", "parameters": {"do": "nap", "seconds": 2.5}}')
c=$(submit '{"task_type": "job", "parameters": {"do": "nap", "seconds": 0}}')
for task in "$a" "$b"; do task_holds "$task" 20 '.status == "executing"' "the start"; done
kill -TERM "$python" "$shell"
ended "$python" "the Python worker" && python=
ended "$shell" "the shell worker" && shell=
for task in "$a" "$b"; do task_holds "$task" 2 ".status == \"completed\" and $undisturbed" "the task that SIGTERM met"; done
task_holds "$c" 2 '.status == "queued" and .attempt == 0' "the task after it"
workers_are 0 "deregistered"

echo "test-protocol: SIGTERM ends an idle worker at once"
curl -fsS -o /dev/null -X DELETE "$url/api/v1/tasks/$c"
start_python
start_shell
workers_are 2 "both workers register"
sleep 0.5
kill -TERM "$python" "$shell"
ended "$python" "the idle Python worker" && python=
ended "$shell" "the idle shell worker" && shell=
workers_are 0 "deregistered"

echo "test-protocol: a drained worker finishes its task and leaves"
start_python
start_shell
a=$(submit '{"task_type": "nap", "parameters": {"seconds": 2}}')
b=$(submit '{"task_type": "job", "parameters": {"do": "nap", "seconds": 2}}')
for task in "$a" "$b"; do task_holds "$task" 20 '.status == "executing"' "the start"; done
for type in nap job; do curl -fsS -o /dev/null -X POST "$url/api/v1/workers/$(worker_of "$type")/drain"; done
ended "$python" "the drained Python worker" && python=
ended "$shell" "the drained shell worker" && shell=
for task in "$a" "$b"; do task_holds "$task" 2 ".status == \"completed\" and $undisturbed" "the task that the drain met"; done
workers_are 0 "deregistered"

kill -TERM "$server"
wait "$server" || fail "SIGTERM ended the server with $?"
server=
echo "test-protocol: both workers passed"
