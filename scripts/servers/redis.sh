# shellcheck shell=bash
# Redis and Valkey, each alone, and what all servers of this kind share.

valkey_program() {
    local installed=${CARGO_TARGET_DIR:-$root/target}/test-tools/valkey-server
    command -v valkey-server || { [ -x "$installed" ] && echo "$installed"; } ||
        fail "valkey-server is missing, run scripts/setup-tests.sh"
}

# With an end, because whoever else may have the port need not answer.
redis_cli() { timeout 3 redis-cli -h 127.0.0.1 -p "$(<"$folder/ports/$1")" "${@:2}"; }

# A server of somebody else may answer on a port that was taken since it was chosen, so this asks for the identity of
# ours. It answers PING only once it has read its data.
redis_ready() {
    redis_cli "$1" info server | grep "^process_id:$(pid_of "$1")\b" && [ "$(redis_cli "$1" ping)" = PONG ]
}

# Also those of a cluster, and the sentinels.
bring_up_redis() {
    local name=$1 configuration=$folder/data/$1/server.conf
    case $name in
        valkey) launch valkey "$(valkey_program)" "$configuration" ;;
        sentinel-*) launch "$name" "$(program redis-server)" "$configuration" --sentinel ;;
        *) launch "$name" "$(program redis-server)" "$configuration" ;;
    esac
    until_so "$name" redis_ready "$name"
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
