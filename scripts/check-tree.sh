#!/usr/bin/env bash
# Looks at the files themselves: references to folders that no user has, and unsound shell scripts.
set -euo pipefail
cd "$(dirname "$0")/.."

if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    mapfile -d '' files < <(git ls-files -z --cached --others --exclude-standard)
else
    mapfile -d '' files < <(find . -name target -prune -o -type f -print0)
fi

failures=0
echo "check-tree: ${#files[@]} files, paths outside the repository"
for file in "${files[@]}"; do
    [ -f "$file" ] || continue
    if grep -InE '[.][.]/shared' -- "$file" /dev/null; then
        echo "check-tree: $file refers to a folder outside the repository" >&2
        failures=$((failures + 1))
    fi
done

echo "check-tree: shell scripts parse"
for script in scripts/*.sh scripts/servers/*.sh .ci/run; do
    bash -n "$script" || failures=$((failures + 1))
done
for script in scripts/*.sh .ci/run; do
    if [ ! -x "$script" ]; then
        echo "check-tree: $script is not executable" >&2
        failures=$((failures + 1))
    fi
done
echo "check-tree: shellcheck"
# Sourced files are checked where they are sourced: alone, their variables come from nowhere.
shellcheck --external-sources --check-sourced scripts/*.sh .ci/run || failures=$((failures + 1))

if [ "$failures" -gt 0 ]; then
    echo "check-tree: $failures problem(s)" >&2
    exit 1
fi
echo "check-tree: fine"
