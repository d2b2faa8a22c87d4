# shellcheck shell=bash
# Redis with Sentinel: a primary, two replicas and three sentinels.

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
