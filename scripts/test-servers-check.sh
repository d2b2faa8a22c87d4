#!/usr/bin/env bash
# The test servers themselves, so that a test of a store that fails means the store: each server answers as the tests expect
# it to, comes back with its data after kill -9, Sentinel fails over, and nothing is left behind by a run however it ends.
# Run it under scripts/test-servers.sh run.
set -euo pipefail

: "${WINDLASS_TEST_SERVERS:?run it by: scripts/test-servers.sh run -- scripts/test-servers-check.sh}"
folder=$WINDLASS_TEST_SERVERS
servers=$(dirname "$(realpath "$0")")/test-servers.sh
psql=$(compgen -G '/usr/lib/postgresql/*/bin/psql' | sort -V | tail -n 1 || command -v psql)

say() { echo "test-servers-check: $*"; }
fail() { say "$*" >&2; exit 1; }
within() {
    local seconds=$1 what=$2 end=$((SECONDS + $1))
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || fail "not within $seconds s: $what"
        sleep 0.1
    done
}
ours() { [ -e "$folder/restart-$1" ]; }
# What a test that breaks things does.
kill_hard() { kill -KILL "$(<"$folder/pids/$1.pid")"; }

query() { "$psql" "$1" -XqAt -v ON_ERROR_STOP=1 "${@:2}"; }
# redis URL WORDS…: to the first address of any of the URLs.
redis() {
    local address=${1#*://}
    address=${address%%[,/]*}
    redis-cli -h "${address%:*}" -p "${address##*:}" "${@:2}"
}

say "PostgreSQL, directly and through PgBouncer"
for url in "$WINDLASS_TEST_POSTGRES_URL" "$WINDLASS_TEST_PGBOUNCER_URL"; do
    answer=$(PGAPPNAME=check query "$url" -c 'begin; create temporary table numbers (n int) on commit drop;
        insert into numbers values (1), (2); select sum(n) from numbers; commit' | tail -n 1)
    [ "$answer" = 3 ] || fail "a transaction at $url answered '$answer'"
done

say "Redis, Valkey, Cluster, Sentinel"
for url in "$WINDLASS_TEST_REDIS_URL" "$WINDLASS_TEST_VALKEY_URL"; do
    [ "$(redis "$url" ping)" = PONG ] || fail "$url does not answer"
    redis "$url" config get appendfsync | grep -x always >/dev/null || fail "$url does not sync every write"
done
redis "$WINDLASS_TEST_VALKEY_URL" info server | grep '^valkey_version:' >/dev/null || fail "not a Valkey: $WINDLASS_TEST_VALKEY_URL"
redis "$WINDLASS_TEST_REDIS_CLUSTER_URL" cluster info | grep '^cluster_state:ok' >/dev/null || fail "the cluster is not ready"
for key in a b c d e f; do
    [ "$(redis "$WINDLASS_TEST_REDIS_CLUSTER_URL" -c set "check-$key" 1 | tail -n 1)" = OK ] || fail "the cluster refuses check-$key"
    redis "$WINDLASS_TEST_REDIS_CLUSTER_URL" -c del "check-$key" >/dev/null
done
master_port() { redis "$WINDLASS_TEST_REDIS_SENTINEL_URL" sentinel get-master-addr-by-name windlass | tail -n 1; }
[ -n "$(master_port)" ] || fail "Sentinel knows no primary named windlass"

if ours postgres; then
    say "PostgreSQL is killed and keeps its data, PgBouncer finds it again"
    query "$WINDLASS_TEST_POSTGRES_URL" -c 'create table check_kept as select 42 as n'
    kill_hard postgres
    "$folder/restart-postgres"
    found_again() { [ "$(query "$WINDLASS_TEST_PGBOUNCER_URL" -c 'select n from check_kept')" = 42 ]; }
    within 10 "the row is there" found_again
    query "$WINDLASS_TEST_POSTGRES_URL" -c 'drop table check_kept'
fi

for name in redis valkey; do
    ours "$name" || continue
    say "$name is killed and keeps its data"
    url=redis://127.0.0.1:$(<"$folder/ports/$name")
    redis "$url" set check-kept 42 >/dev/null
    kill_hard "$name"
    "$folder/restart-$name"
    [ "$(redis "$url" get check-kept)" = 42 ] || fail "$name lost an acknowledged write"
    redis "$url" del check-kept >/dev/null
done

if ours cluster-2; then
    say "a master of the cluster is killed and comes back"
    kill_hard cluster-2
    "$folder/restart-cluster-2"
    ready() { redis "redis://127.0.0.1:$(<"$folder/ports/$1")" cluster info | grep '^cluster_state:ok'; }
    for name in cluster-1 cluster-2 cluster-3; do within 15 "$name calls the cluster ready" ready "$name"; done
fi

if ours redis-primary; then
    primary=$(<"$folder/ports/redis-primary")
    [ "$(master_port)" = "$primary" ] || fail "redis-primary is not the primary"
    begun=${EPOCHREALTIME/./}
    kill_hard redis-primary
    failed_over() { [ "$(master_port)" != "$primary" ]; }
    within 15 "a replica is promoted" failed_over
    accepts_writes() { [ "$(redis "redis://127.0.0.1:$(master_port)" set check-failover 1)" = OK ]; }
    within 15 "the new primary takes writes" accepts_writes
    say "Sentinel failed over within $(((${EPOCHREALTIME/./} - begun) / 1000)) ms"
    # Everything as it was, for the tests that come next.
    "$folder/restart-redis-primary"
    # Sentinel would tell it too, but only after a while.
    redis "redis://127.0.0.1:$primary" replicaof 127.0.0.1 "$(master_port)" >/dev/null
    # Its priority is known to a Sentinel that has heard from it, and makes it the choice.
    is_known() {
        redis "$WINDLASS_TEST_REDIS_SENTINEL_URL" sentinel replicas windlass | paste -sd' ' |
            grep -oE "port $primary .*" | sed 's/ name .*//' | grep -E ' flags slave .* master-link-status ok .* slave-priority 10 '
    }
    within 30 "Sentinel takes the old primary for a replica" is_known
    # Sentinel refuses while the last failover is not over for it.
    failover_accepted() { [ "$(redis "$WINDLASS_TEST_REDIS_SENTINEL_URL" sentinel failover windlass)" = OK ]; }
    within 30 "a failover by request is accepted" failover_accepted
    is_primary_again() { [ "$(master_port)" = "$primary" ]; }
    within 30 "it is the primary again" is_primary_again
    has_replicas() { [ "$(redis "redis://127.0.0.1:$primary" info replication | grep -c state=online)" -eq 2 ]; }
    within 30 "it has both replicas" has_replicas
    redis "redis://127.0.0.1:$primary" del check-failover >/dev/null
    say "and back after $(((${EPOCHREALTIME/./} - begun) / 1000)) ms"
fi

# A run that needs one server only; the others are given.
unset WINDLASS_TEST_SERVERS WINDLASS_TEST_REDIS_URL
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
gone() {
    [ ! -e "$(<"$work/folder")" ] && ! pgrep -f "redis-server 127.0.0.1:$(<"$work/port")\$"
}
# shellcheck disable=SC2016 # expanded by the command of the run
remember='echo "$WINDLASS_TEST_SERVERS" >"$0/folder"; cat "$WINDLASS_TEST_SERVERS/ports/redis" >"$0/port"; : >"$0/started"'

say "a failing command: its status, and nothing left"
status=0
"$servers" run -- bash -c "$remember; exit 7" "$work" 2>/dev/null || status=$?
[ "$status" -eq 7 ] || fail "a command that ended with 7 was reported as $status"
gone || fail "a failing command left something in $(<"$work/folder")"

for signal in TERM HUP KILL; do
    say "SIG$signal: nothing left"
    rm -f "$work/started"
    "$servers" run -- bash -c "$remember; exec sleep 15" "$work" 2>/dev/null &
    running=$!
    within 15 "the command runs" test -e "$work/started"
    kill -"$signal" "$running"
    wait "$running" 2>/dev/null || true
    within 10 "everything is gone after SIG$signal" gone
done

say "a server that does not start is an error"
mkdir "$work/broken"
printf '#!/bin/sh\nexit 1\n' >"$work/broken/redis-server"
chmod 755 "$work/broken/redis-server"
if PATH=$work/broken:$PATH "$servers" run -- true >"$work/output" 2>&1; then fail "a server that does not start was not noticed"; fi
grep -q 'redis has ended' "$work/output" || fail "it is not said which server does not start: $(<"$work/output")"
say "all passed"
