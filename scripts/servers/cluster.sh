# shellcheck shell=bash
# Redis Cluster: three masters.

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
