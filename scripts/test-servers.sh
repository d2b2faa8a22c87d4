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

# ---- Programs -------------------------------------------------------------------------------------------------------

postgres_programs() {
    local newest
    newest=$(compgen -G '/usr/lib/postgresql/*/bin/initdb' | sort -V | tail -n 1 || true)
    [ -n "$newest" ] || newest=$(command -v initdb) || fail "PostgreSQL is missing, run scripts/setup-tests.sh"
    dirname "$newest"
}

program() {
    command -v "$1" || fail "$1 is missing, run scripts/setup-tests.sh"
}

valkey_program() {
    local installed=${CARGO_TARGET_DIR:-$root/target}/test-tools/valkey-server
    command -v valkey-server || { [ -x "$installed" ] && echo "$installed"; } ||
        fail "valkey-server is missing, run scripts/setup-tests.sh"
}

# PostgreSQL and PgBouncer refuse to run as root.
unprivileged=()
if [ "$(id -u)" -eq 0 ]; then unprivileged=(setpriv --reuid=postgres --regid=postgres --init-groups --); fi

# With an end, because whoever else may have the port need not answer.
redis_cli() { timeout 3 redis-cli -h 127.0.0.1 -p "$(<"$folder/ports/$1")" "${@:2}"; }
# As the superuser, to a server by name.
psql_to() {
    local name=$1
    shift
    "$(postgres_programs)/psql" -h 127.0.0.1 -p "$(<"$folder/ports/$name")" -U postgres -XqAt -v ON_ERROR_STOP=1 "$@"
}

# ---- One server: launch, wait, find its processes -------------------------------------------------------------------

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

# A server of somebody else may answer on a port that was taken since it was chosen, so each of these asks for the
# identity of ours and not only for an answer.
postgres_ready() {
    local lines
    mapfile -t lines <"$folder/data/postgres/db/postmaster.pid" &&
        [ "${lines[0]}" = "$(pid_of postgres)" ] && [[ ${lines[7]:-} == ready* ]]
}
pgbouncer_ready() {
    grep -F "listening on 127.0.0.1:$(<"$folder/ports/pgbouncer")" "$folder/logs/pgbouncer.log" &&
        alive pgbouncer && psql_to pgbouncer -d pgbouncer -c 'show version'
}
# It answers PING only once it has read its data.
redis_ready() {
    redis_cli "$1" info server | grep "^process_id:$(pid_of "$1")\b" && [ "$(redis_cli "$1" ping)" = PONG ]
}

# Starts a server on what is in its folder, and waits until it answers.
bring_up() {
    local name=$1 here=$folder/data/$1
    rm -f "$folder/pids/$name.pid"
    case $name in
        postgres)
            # All its processes are gone by now. It would not start if the number of a killed one still exists: as one that
            # nobody has waited for, or as somebody else.
            rm -f "$here/db/postmaster.pid" "$folder"/sockets/.s.PGSQL.*
            launch postgres "${unprivileged[@]}" "$(postgres_programs)/postgres" -D "$here/db"
            until_so postgres postgres_ready
            ;;
        pgbouncer)
            launch pgbouncer "${unprivileged[@]}" "$(program pgbouncer)" "$here/pgbouncer.ini"
            until_so pgbouncer pgbouncer_ready
            ;;
        valkey)
            launch valkey "$(valkey_program)" "$here/server.conf"
            until_so valkey redis_ready valkey
            ;;
        sentinel-*)
            launch "$name" "$(program redis-server)" "$here/server.conf" --sentinel
            until_so "$name" redis_ready "$name"
            ;;
        *)
            launch "$name" "$(program redis-server)" "$here/server.conf"
            until_so "$name" redis_ready "$name"
            ;;
    esac
    printf '#!/bin/sh\nexec "%s" restart "%s" "%s"\n' "$self" "$folder" "$name" >"$folder/restart-$name"
    chmod 755 "$folder/restart-$name"
}

# ---- Free ports -----------------------------------------------------------------------------------------------------

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

# ---- The servers ----------------------------------------------------------------------------------------------------

start_postgres() {
    local here=$folder/data/postgres programs
    programs=$(postgres_programs)
    [ "${#unprivileged[@]}" -eq 0 ] || chown postgres:postgres "$here" "$folder/data/pgbouncer" "$folder/sockets"
    # The sync at the end of initdb guards against a power cut, and after one this folder is of no use anyway.
    (cd "$here" && "${unprivileged[@]}" "$programs/initdb" --no-sync --pgdata="$here/db" --username=postgres --auth=trust \
        --encoding=UTF8 --locale=C.UTF-8) >>"$folder/logs/postgres.log" 2>&1 || fail "initdb failed, see $folder/logs/postgres.log"
    # Shared memory in files goes with the folder, even after kill -9.
    cat >>"$here/db/postgresql.conf" <<CONFIGURATION
listen_addresses = '127.0.0.1'
port = $(<"$folder/ports/postgres")
unix_socket_directories = '$folder/sockets'
max_connections = 200
shared_buffers = 256MB
dynamic_shared_memory_type = mmap
fsync = on
timezone = 'UTC'
log_timezone = 'UTC'
log_line_prefix = '%m [%p] %u@%d '
CONFIGURATION
    bring_up postgres
    # Tests run as an ordinary role, as the product does in production.
    psql_to postgres -d postgres -c 'create role windlass login createdb createrole' -c 'create database windlass owner windlass' ||
        fail "the database was not created, see $folder/logs/postgres.log"
    start_pgbouncer
}

# The idle timeout is short because every database has a pool of its own, and together they must leave room in
# PostgreSQL; the retry is short because tests restart PostgreSQL.
start_pgbouncer() {
    local here=$folder/data/pgbouncer
    printf '"windlass" ""\n"postgres" ""\n' >"$here/users.txt"
    cat >"$here/pgbouncer.ini" <<CONFIGURATION
[databases]
* = host=127.0.0.1 port=$(<"$folder/ports/postgres")

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = $(<"$folder/ports/pgbouncer")
unix_socket_dir =
auth_type = trust
auth_file = $here/users.txt
admin_users = postgres
pool_mode = transaction
max_client_conn = 500
default_pool_size = 40
server_idle_timeout = 10
server_login_retry = 1
ignore_startup_parameters = extra_float_digits
CONFIGURATION
    bring_up pgbouncer
}

# configure_redis NAME LINES…: what all servers of this kind share; every acknowledged write is on disk.
configure_redis() {
    local here=$folder/data/$1
    {
        printf '%s\n' "bind 127.0.0.1" "port $(<"$folder/ports/$1")" "dir $here" 'save ""' "appendonly yes" \
            "appendfsync always" "maxmemory-policy noeviction" "repl-diskless-sync-delay 0"
        printf '%s\n' "${@:2}"
    } >"$here/server.conf"
}

start_redis() {
    configure_redis redis
    bring_up redis
}

start_valkey() {
    configure_redis valkey
    bring_up valkey
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

cluster_node() {
    configure_redis "$1" "cluster-enabled yes" "cluster-port $(<"$folder/ports/$1-bus")" "cluster-node-timeout 5000" \
        "cluster-config-file nodes.conf"
    bring_up "$1"
}
cluster_node_agrees() { redis_cli "$1" cluster info | grep '^cluster_state:ok'; }
start_cluster() {
    local name
    in_parallel cluster_node cluster-1 cluster-2 cluster-3 || exit 1
    redis-cli --cluster create "127.0.0.1:$(<"$folder/ports/cluster-1")" "127.0.0.1:$(<"$folder/ports/cluster-2")" \
        "127.0.0.1:$(<"$folder/ports/cluster-3")" --cluster-yes >>"$folder/logs/cluster-1.log" 2>&1 ||
        fail "the cluster was not created, see $folder/logs/cluster-1.log"
    for name in cluster-1 cluster-2 cluster-3; do until_so "$name" cluster_node_agrees "$name"; done
}

# A failover prefers the lowest priority: the primary is the primary again when it is asked for.
sentinel_data_node() {
    case $1 in
        redis-primary) configure_redis "$1" "replica-priority 10" ;;
        *) configure_redis "$1" "replicaof 127.0.0.1 $(<"$folder/ports/redis-primary")" ;;
    esac
    bring_up "$1"
}
sentinel_node() {
    local here=$folder/data/$1
    printf '%s\n' "bind 127.0.0.1" "port $(<"$folder/ports/$1")" "dir $here" \
        "sentinel monitor windlass 127.0.0.1 $(<"$folder/ports/redis-primary") 2" \
        "sentinel down-after-milliseconds windlass 1000" "sentinel failover-timeout windlass 3000" >"$here/server.conf"
    bring_up "$1"
}
replicas_attached() { [ "$(redis_cli redis-primary info replication | grep -c 'state=online')" -eq 2 ]; }
# A failover needs all of it: the replicas known, and the other sentinels known.
sentinel_knows_all() {
    local answer
    answer=$(redis_cli "$1" sentinel master windlass | paste -d= - -)
    [[ $answer == *num-slaves=2* && $answer == *num-other-sentinels=2* && $answer == *flags=master$'\n'* ]]
}
start_sentinel() {
    local name
    in_parallel sentinel_data_node redis-primary redis-replica-1 redis-replica-2 || exit 1
    until_so redis-primary replicas_attached
    in_parallel sentinel_node sentinel-1 sentinel-2 sentinel-3 || exit 1
    for name in sentinel-1 sentinel-2 sentinel-3; do until_so "$name" sentinel_knows_all "$name"; done
}

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

# Ends every process of the folder. The new name comes first: nothing can be started there any more. Nothing of it is needed again, so nothing is given time to write; PostgreSQL gets the
# signal for that which still lets it give back its shared memory.
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
