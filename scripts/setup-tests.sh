#!/usr/bin/env bash
# Makes sure that the programs the checks and tests call are there. Installs what is missing on Debian when run as root;
# otherwise says what to install and fails, because a test that cannot run must not look like one that passed.
set -euo pipefail

# command:Debian package
# pgrep stands for procps, whose kill the tests call; bash has a kill of its own and would hide that it is missing.
needed=(cc:gcc curl:curl jq:jq pgrep:procps python3:python3 shellcheck:shellcheck strace:strace unshare:util-linux)

missing_packages=()
for pair in "${needed[@]}"; do
    command_name=${pair%%:*}
    if ! command -v "$command_name" >/dev/null 2>&1; then
        echo "setup-tests: $command_name is missing"
        missing_packages+=("${pair##*:}")
    fi
done

if ! command -v cargo >/dev/null 2>&1; then
    echo "setup-tests: cargo is missing; install the Rust toolchain named in rust-toolchain.toml" >&2
    exit 1
fi

if [ "${#missing_packages[@]}" -eq 0 ]; then
    echo "setup-tests: everything the tests need is installed"
    exit 0
fi

if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "setup-tests: installing ${missing_packages[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing_packages[@]}"
else
    echo "setup-tests: please install these packages (Debian names) and run again: ${missing_packages[*]}" >&2
    echo "setup-tests: for example: sudo apt-get install ${missing_packages[*]}" >&2
    exit 1
fi

for pair in "${needed[@]}"; do
    command_name=${pair%%:*}
    command -v "$command_name" >/dev/null 2>&1 || {
        echo "setup-tests: $command_name is still missing after the installation" >&2
        exit 1
    }
done
echo "setup-tests: done"
