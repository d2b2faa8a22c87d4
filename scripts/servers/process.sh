# shellcheck shell=bash
# One server as a process: launch it, wait for it, find it again. Sourced by scripts/test-servers.sh, like all files here;
# "folder" is where the servers are.

program() {
    command -v "$1" || fail "$1 is missing, run scripts/setup-tests.sh"
}

# launch NAME PROGRAM ARGUMENTS…: in its own session, so that Ctrl-C in a terminal reaches the tests and not the servers,
# in its own folder, by which processes_of finds it, and without the files this shell has open.
launch() {
    local name=$1
    shift
    (
        cd "$folder/data/$name"
        for open in /proc/self/fd/*; do
            open=${open##*/}
            [ "$open" -le 2 ] || eval "exec $open>&-"
        done
        # shellcheck disable=SC2016 # the inner shell expands, and becomes the server
        exec setsid bash -c 'echo $$ >"$1"; shift; exec "$@"' - "$folder/pids/$name.pid" "$@"
    ) </dev/null >>"$folder/logs/$name.log" 2>&1 &
    disown $!
}

# The processes that work in a folder or below, with their names. That finds the children of a killed PostgreSQL too. Only
# servers count, not the shell of somebody who looks around there.
processes_of() {
    local link process command_name
    find /proc -maxdepth 2 -path '/proc/[0-9]*/cwd' \( -lname "$1" -o -lname "$1/*" \) 2>/dev/null |
        while read -r link; do
            process=${link#/proc/}
            process=${process%/cwd}
            command_name=$(cat "/proc/$process/comm" 2>/dev/null) || continue
            case $command_name in
                initdb | postgres | pgbouncer | redis-server | valkey-server) echo "$process $command_name" ;;
            esac
        done || true
}

# Empty before the launched shell has written it. Not by $(<…), which ends the script where there is no file.
pid_of() { cat "$folder/pids/$1.pid" 2>/dev/null || true; }
# A process that has ended but that nobody has waited for works nowhere any more; kill -0 would call it alive.
alive() { readlink "/proc/$(pid_of "$1")/cwd" >/dev/null 2>&1; }

# until_so NAME CHECK…: waits for the check, but not for a server that has ended.
until_so() {
    local name=$1 end=$((SECONDS + seconds_to_start))
    shift
    until "$@" >/dev/null 2>&1; do
        if [ -n "$(pid_of "$name")" ] && ! alive "$name"; then fail "$name has ended, see $folder/logs/$name.log"; fi
        [ "$SECONDS" -lt "$end" ] || fail "$name: '$*' not within $seconds_to_start s, see $folder/logs/$name.log"
        sleep 0.05
    done
}

# Starts a server on what is in its folder, and waits until it answers.
bring_up() {
    local name=$1
    rm -f "$folder/pids/$name.pid"
    case $name in
        postgres) bring_up_postgres ;;
        pgbouncer) bring_up_pgbouncer ;;
        *) bring_up_redis "$name" ;;
    esac
    printf '#!/bin/sh\nexec "%s" restart "%s" "%s"\n' "$self" "$folder" "$name" >"$folder/restart-$name"
    chmod 755 "$folder/restart-$name"
}

# in_parallel FUNCTION NAMES…: the function for each of the names.
in_parallel() {
    local what=$1 name process processes=() failed=0
    shift
    for name in "$@"; do
        "$what" "$name" &
        processes+=($!)
    done
    for process in "${processes[@]}"; do wait "$process" || failed=1; done
    return "$failed"
}

# Below the ports that the kernel gives to outgoing connections: a client that keeps trying a dead port among those ends
# up connected to itself. 20000 to 29999 is where the other tests put their servers.
free_ports() {
    python3 - "$1" <<'PYTHON'
import random, socket, sys

held = []
for port in random.sample(range(10000, 20000), 2000):
    if len(held) == int(sys.argv[1]):
        break
    attempt = socket.socket()
    try:
        attempt.bind(("127.0.0.1", port))
        held.append(attempt)
    except OSError:
        attempt.close()
else:
    sys.exit("test-servers: no free ports between 10000 and 20000")
for each in held:
    print(each.getsockname()[1])
PYTHON
}
