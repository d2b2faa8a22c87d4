# shellcheck shell=bash
# PostgreSQL, and PgBouncer in front of it.

postgres_programs() {
    local newest
    newest=$(compgen -G '/usr/lib/postgresql/*/bin/initdb' | sort -V | tail -n 1 || true)
    [ -n "$newest" ] || newest=$(command -v initdb) || fail "PostgreSQL is missing, run scripts/setup-tests.sh"
    dirname "$newest"
}

# PostgreSQL and PgBouncer refuse to run as root.
unprivileged=()
if [ "$(id -u)" -eq 0 ]; then unprivileged=(setpriv --reuid=postgres --regid=postgres --init-groups --); fi

# As the superuser, to a server by name.
psql_to() {
    local name=$1
    shift
    "$(postgres_programs)/psql" -h 127.0.0.1 -p "$(<"$folder/ports/$name")" -U postgres -XqAt -v ON_ERROR_STOP=1 "$@"
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

bring_up_postgres() {
    local here=$folder/data/postgres
    # All its processes are gone by now. It would not start if the number of a killed one still exists: as one that
    # nobody has waited for, or as somebody else.
    rm -f "$here/db/postmaster.pid" "$folder"/sockets/.s.PGSQL.*
    launch postgres "${unprivileged[@]}" "$(postgres_programs)/postgres" -D "$here/db"
    until_so postgres postgres_ready
}
bring_up_pgbouncer() {
    launch pgbouncer "${unprivileged[@]}" "$(program pgbouncer)" "$folder/data/pgbouncer/pgbouncer.ini"
    until_so pgbouncer pgbouncer_ready
}

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
