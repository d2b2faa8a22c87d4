#!/usr/bin/env bash
# Private servers for the tests: PostgreSQL, PgBouncer, Redis, Redis Cluster, Redis with Sentinel, Valkey. They listen on
# free ports of 127.0.0.1 only, keep everything in one folder, and are gone with it.
#
#   scripts/test-servers.sh run -- COMMAND…   start them, run the command with their addresses, always stop them
#   scripts/test-servers.sh start FOLDER      start them in a new folder; FOLDER/env has their addresses
#   scripts/test-servers.sh stop FOLDER       stop them and remove the folder
#   scripts/test-servers.sh restart FOLDER NAME   kill -9 one of them if it still runs, and start it again on its data
#
# The addresses are in WINDLASS_TEST_{POSTGRES,PGBOUNCER,REDIS,REDIS_CLUSTER,REDIS_SENTINEL,VALKEY}_URL. One that is set
# already is used as it is, and that server is not started. WINDLASS_TEST_SERVERS is the folder, for tests that break
# things: pids/NAME.pid, ports/NAME, logs/NAME.log and the script restart-NAME of every server that was started.
set -euo pipefail

self=$(realpath "$0")
root=$(dirname "$(dirname "$self")")
seconds_to_start=30
say() { echo "test-servers: $*"; }
fail() { echo "test-servers: $*" >&2; exit 1; }

# shellcheck source=scripts/servers/process.sh
. "$root/scripts/servers/process.sh"
# shellcheck source=scripts/servers/postgres.sh
. "$root/scripts/servers/postgres.sh"
# shellcheck source=scripts/servers/redis.sh
. "$root/scripts/servers/redis.sh"
# shellcheck source=scripts/servers/cluster.sh
. "$root/scripts/servers/cluster.sh"
# shellcheck source=scripts/servers/sentinel.sh
. "$root/scripts/servers/sentinel.sh"

# ---- All of them ----------------------------------------------------------------------------------------------------

# What is not set decides what is started: pairs of a start function and the names of its servers.
choose() {
    starters=() names=()
    case ${WINDLASS_TEST_POSTGRES_URL:+own}${WINDLASS_TEST_PGBOUNCER_URL:+own} in
        '') starters+=(start_postgres) names+=(postgres pgbouncer) ;;
        ownown) ;;
        *) fail "set both WINDLASS_TEST_POSTGRES_URL and WINDLASS_TEST_PGBOUNCER_URL, or none: they have to be the same server" ;;
    esac
    [ -n "${WINDLASS_TEST_REDIS_URL:-}" ] || { starters+=(start_redis) names+=(redis); }
    [ -n "${WINDLASS_TEST_REDIS_CLUSTER_URL:-}" ] ||
        { starters+=(start_cluster) names+=(cluster-1 cluster-2 cluster-3); }
    [ -n "${WINDLASS_TEST_REDIS_SENTINEL_URL:-}" ] ||
        { starters+=(start_sentinel) names+=(redis-primary redis-replica-1 redis-replica-2 sentinel-1 sentinel-2 sentinel-3); }
    [ -n "${WINDLASS_TEST_VALKEY_URL:-}" ] || { starters+=(start_valkey) names+=(valkey); }
    # Two folders would hide the servers of the first from the tests that break things.
    if [ "${#starters[@]}" -gt 0 ] && [ -n "${WINDLASS_TEST_SERVERS:-}" ]; then
        fail "WINDLASS_TEST_SERVERS is set, but not every address is: source its env file, or unset it"
    fi
}

claim_folder() {
    # It goes into configuration files, and sockets in it have a name of at most 107 bytes.
    [[ $folder =~ ^/[A-Za-z0-9/._-]{1,70}$ ]] || fail "$folder: choose a folder of at most 70 letters, digits and /._-"
    mkdir -p "$folder"
    [ -z "$(ls -A "$folder")" ] || fail "$folder is not empty"
    touch "$folder/.windlass-test-servers"
    chmod 755 "$folder"
    if [ "${#unprivileged[@]}" -gt 0 ] && ! "${unprivileged[@]}" test -x "$folder"; then
        fail "the user postgres cannot reach $folder; choose another folder (TMPDIR is honoured)"
    fi
}

prepare() {
    local name ports wanted=()
    rm -rf "${folder:?}"/{data,ended,pids,ports,logs,sockets}
    mkdir "$folder"/{data,pids,ports,logs,sockets}
    for name in "${names[@]}"; do
        mkdir "$folder/data/$name"
        wanted+=("$name")
        [[ $name != cluster-* ]] || wanted+=("$name-bus")
    done
    mapfile -t ports < <(free_ports "${#wanted[@]}")
    [ "${#ports[@]}" -eq "${#wanted[@]}" ] || exit 1
    for name in "${wanted[@]}"; do
        echo "${ports[0]}" >"$folder/ports/$name"
        ports=("${ports[@]:1}")
    done
}

# The addresses of what was started, and those that were given.
write_env() {
    local name
    address() { echo "127.0.0.1:$(<"$folder/ports/$1")"; }
    if [ -e "$folder/ports/postgres" ]; then
        export WINDLASS_TEST_POSTGRES_URL WINDLASS_TEST_PGBOUNCER_URL
        WINDLASS_TEST_POSTGRES_URL=postgres://windlass@$(address postgres)/windlass
        WINDLASS_TEST_PGBOUNCER_URL=postgres://windlass@$(address pgbouncer)/windlass
    fi
    if [ -e "$folder/ports/redis" ]; then
        export WINDLASS_TEST_REDIS_URL
        WINDLASS_TEST_REDIS_URL=redis://$(address redis)
    fi
    if [ -e "$folder/ports/cluster-1" ]; then
        export WINDLASS_TEST_REDIS_CLUSTER_URL
        WINDLASS_TEST_REDIS_CLUSTER_URL=redis+cluster://$(address cluster-1),$(address cluster-2),$(address cluster-3)
    fi
    if [ -e "$folder/ports/sentinel-1" ]; then
        export WINDLASS_TEST_REDIS_SENTINEL_URL
        WINDLASS_TEST_REDIS_SENTINEL_URL=redis+sentinel://$(address sentinel-1),$(address sentinel-2),$(address sentinel-3)/windlass
    fi
    if [ -e "$folder/ports/valkey" ]; then
        export WINDLASS_TEST_VALKEY_URL
        WINDLASS_TEST_VALKEY_URL=redis://$(address valkey)
    fi
    export WINDLASS_TEST_SERVERS=$folder
    for name in POSTGRES_URL PGBOUNCER_URL REDIS_URL REDIS_CLUSTER_URL REDIS_SENTINEL_URL VALKEY_URL SERVERS; do
        name=WINDLASS_TEST_$name
        printf "export %s='%s'\n" "$name" "${!name//\'/\'\\\'\'}"
    done >"$folder/env"
}

start_chosen() (
    # Settings of the caller are for other servers.
    for name in "${!PG@}" REDISCLI_AUTH; do unset "$name"; done
    in_parallel eval "${starters[@]}"
)

start_all() {
    umask 022
    local name attempt begun=${EPOCHREALTIME/./}
    for attempt in 1 2 3; do
        prepare
        if start_chosen; then
            write_env
            say "${#names[@]} servers in $folder after $(((${EPOCHREALTIME/./} - begun) / 1000)) ms"
            return
        fi
        # Between the choice of a port and its use somebody else can take it.
        grep -qsE 'Address already in use|bind: Address|nowhere to listen' "$folder"/logs/* || break
        say "a port was taken in the meantime, attempt $attempt" >&2
        end_all || break
    done
    for name in "${names[@]}"; do
        [ -e "$folder/restart-$name" ] || tail -v -n 15 "$folder/logs/$name.log" >&2 || true
    done
    fail "the servers did not start"
}

# Ends every process of the folder. The new name comes first: nothing can be started there any more. Nothing of it is
# needed again, so nothing is given time to write; PostgreSQL gets the signal for that which still lets it give back its
# shared memory.
end_all() {
    local end=$((SECONDS + 10)) patience=$((SECONDS + 3)) process command_name found id
    [ ! -d "$folder/data" ] || mv "$folder/data" "$folder/ended"
    while found=$(processes_of "$folder/ended") && [ -n "$found" ]; do
        while read -r process command_name; do
            if [ "$command_name" = postgres ] && [ "$SECONDS" -lt "$patience" ]; then
                kill -QUIT "$process" 2>/dev/null || true
            else
                kill -KILL "$process" 2>/dev/null || true
            fi
        done <<<"$found"
        [ "$SECONDS" -lt "$end" ] || { say "still running: $found" >&2; return 1; }
        sleep 0.05
    done
    # Left by a PostgreSQL that was killed and not started again.
    if [ -e "$folder/ended/postgres/db/postmaster.pid" ]; then
        id=$(awk 'NR == 7 { print $2 }' "$folder/ended/postgres/db/postmaster.pid")
        [ -z "$id" ] || ipcrm -m "$id" 2>/dev/null || true
    fi
}

stop_all() {
    [ -e "$folder/.windlass-test-servers" ] || fail "$folder has no test servers"
    end_all || return 1
    # Somebody whose start was interrupted may still have been writing there.
    rm -rf "$folder" 2>/dev/null || { sleep 0.5; rm -rf "$folder"; }
}

# ---- Commands -------------------------------------------------------------------------------------------------------

usage() {
    sed -n '/^#   /s/^# //p' "$self" >&2
    exit 2
}

command_start() {
    folder=$(realpath -m "$1")
    choose
    claim_folder
    trap 'stop_all' EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
    start_all
    trap - EXIT HUP INT TERM
    say "their addresses, for your shell:  . $folder/env"
    cat "$folder/env"
    say "to stop them:  $self stop $folder"
}

let_go() {
    local status=$1 life=$2 keeper=$3
    trap '' HUP INT TERM
    exec {life}>&-
    wait "$keeper" || { say "could not stop the servers in $folder" >&2; exit 1; }
    exit "$status"
}

# A second process holds the servers and ends them when this one has ended in whatever way, kill -9 included: it waits
# for the end of a pipe that only this shell keeps open.
command_run() {
    local status=0 child signal='' keeper life
    choose
    if [ "${#starters[@]}" -eq 0 ] && [ -n "${WINDLASS_TEST_SERVERS:-}" ]; then exec "$@"; fi
    folder=$(realpath "$(mktemp -d)")
    claim_folder
    # It must not be ended by the signal that ends this one.
    trap '' HUP INT TERM
    exec {life}> >(exec setsid "$self" keep "$folder" >/dev/null 2>"$folder/keeper.log")
    keeper=$!
    trap 'let_go $? "$life" "$keeper"' EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
    (exec {life}>&-; start_all >&2) || exit 1
    # shellcheck source=/dev/null
    . "$folder/env"

    # In the background, so that a signal to this shell is seen at once; with the terminal and with its signals, which
    # the shell takes away from what runs in the background.
    trap 'signal=HUP' HUP
    trap 'signal=INT' INT
    trap 'signal=TERM' TERM
    env --default-signal=INT,QUIT -- "$@" <&0 {life}>&- &
    child=$!
    [ -n "$signal" ] || wait "$child" || status=$?
    if [ -n "$signal" ]; then
        status=$((128 + $(kill -l "$signal")))
        # Ctrl-C reaches the command too, and should not reach it twice.
        [ "$signal" != INT ] || sleep 1
        # Not by another wait: after one that a signal has cut short, bash may never learn of the end of the command.
        while readlink "/proc/$child/cwd" >/dev/null; do
            [ -z "$signal" ] || kill -"$signal" "$child" 2>/dev/null || true
            signal=
            sleep 0.1
        done
    fi
    exit "$status"
}

case ${1:-} in
    start)
        [ $# -eq 2 ] || usage
        command_start "$2"
        ;;
    stop)
        [ $# -eq 2 ] || usage
        folder=$(realpath -m "$2")
        stop_all
        say "stopped, $folder removed"
        ;;
    run)
        [[ ${2:-} == -- && $# -ge 3 ]] || usage
        shift 2
        command_run "$@"
        ;;
    restart)
        [ $# -eq 3 ] || usage
        folder=$(realpath -m "$2")
        [ -e "$folder/data/$3" ] || fail "there is no server $3 in $folder"
        while found=$(processes_of "$folder/data/$3") && [ -n "$found" ]; do
            while read -r process _; do kill -KILL "$process" 2>/dev/null || true; done <<<"$found"
            sleep 0.02
        done
        bring_up "$3"
        ;;
    keep)
        folder=$2
        trap '' HUP INT TERM PIPE
        cat >/dev/null
        stop_all
        ;;
    *) usage ;;
esac
