#!/usr/bin/env bash
# Enforces deny.toml with cargo and jq alone: banned crates, licences, sources. Where cargo-deny is installed it runs too,
# and it alone can check the advisories.
set -euo pipefail
cd "$(dirname "$0")/.."

failures=0
fail() {
    echo "check-deps: $1" >&2
    failures=$((failures + 1))
}

# The quoted items of the array `key` in `[section]` of deny.toml, one per line.
deny_list() {
    awk -v section="[$1]" -v key="$2" '
        /^\[/ { inside = ($0 == section) }
        inside && $0 ~ "^" key " = \\[" { list = 1; next }
        list && /^\]/ { list = 0 }
        list && match($0, /"[^"]+"/) { print substr($0, RSTART + 1, RLENGTH - 2) }
    ' deny.toml
}

mapfile -t banned < <(deny_list bans deny)
mapfile -t allowed < <(deny_list licenses allow)
if [ "${#banned[@]}" -eq 0 ] || [ "${#allowed[@]}" -eq 0 ]; then
    echo "check-deps: deny.toml has no bans or no licences; is it written one item per line?" >&2
    exit 1
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "check-deps: reading the dependency graph (all features, all platforms)"
cargo metadata --format-version 1 --all-features >"$work/metadata.json"

echo "check-deps: bans (${banned[*]})"
for crate in "${banned[@]}"; do
    if jq -e --arg crate "$crate" 'any(.packages[]; .name == $crate)' "$work/metadata.json" >/dev/null; then
        fail "the banned crate $crate is in the graph; 'cargo tree --all-features --target all -i $crate' says why"
    fi
done

echo "check-deps: sources (the default registry only)"
# A dependency on another registry names it; one by git has a source of its own kind.
while read -r line; do
    fail "$line does not come from the default registry"
done < <(jq -r '
    (.packages[] | select(.source != null and (.source | startswith("registry+") | not)) | "\(.name) \(.version) from \(.source)"),
    (.packages[] | .name as $by | .dependencies[] | select(.registry != null) | "\(.name), wanted by \($by),")
' "$work/metadata.json")
# Path dependencies have no source: they must be members of this workspace.
while read -r line; do
    fail "$line is a path dependency outside the workspace"
done < <(jq -r '.workspace_members as $members | .packages[] | select(.source == null) | select(.id as $id | $members | index($id) | not) | .name' "$work/metadata.json")

# Is a licence expression satisfied by the allowed licences? Each licence becomes 1 or 0 and the operators are folded,
# innermost parentheses first, AND before OR.
licence_allowed() {
    local expression token words=() value
    expression=${1//\// OR }
    expression=${expression//(/ ( }
    expression=${expression//)/ ) }
    expression=$(sed -E 's/ WITH +([^ ]+)/_WITH_\1/g; s/ +/ /g; s/^ //; s/ $//' <<<"$expression")
    for token in $expression; do
        case $token in
            AND | OR | "(" | ")") words+=("$token") ;;
            *)
                value=0
                for licence in "${allowed[@]}"; do
                    if [ "$token" = "${licence// WITH /_WITH_}" ]; then value=1; fi
                done
                words+=("$value")
                ;;
        esac
    done
    expression="${words[*]}"
    expression=$(sed -E '
        :again
        s/\( ([01]) \)/\1/g; t again
        s/1 AND 1/1/; t again
        s/[01] AND [01]/0/; t again
        s/(^|\( )0 OR 0/\10/; t again
        s/(^|\( )[01] OR [01]( |$)/\11\2/; t again
    ' <<<"$expression")
    [ "$expression" = "1" ]
}

# The check checks itself first: a wrong evaluator would wave everything through or stop everybody.
for expression in "MIT OR GPL-3.0" "(MIT OR Apache-2.0) AND Unicode-3.0" "Apache-2.0 WITH LLVM-exception OR GPL-2.0" \
    "GPL-3.0 OR (GPL-2.0 AND MIT) OR MIT" "MIT/GPL-2.0"; do
    licence_allowed "$expression" || fail "the licence evaluator refuses '$expression'"
done
for expression in "GPL-3.0" "MIT AND GPL-3.0" "(GPL-2.0 OR GPL-3.0) AND MIT" "none" ""; do
    if licence_allowed "$expression"; then fail "the licence evaluator accepts '$expression'"; fi
done

echo "check-deps: licences"
jq -r '.packages[] | "\(.license // "none")\t\(.name) \(.version)"' "$work/metadata.json" | sort >"$work/licences"
while read -r expression; do
    if ! licence_allowed "$expression"; then
        crates=$(awk -F '\t' -v wanted="$expression" '$1 == wanted { printf "%s%s", sep, $2; sep = ", " }' "$work/licences")
        fail "licence '$expression' is not allowed by deny.toml: $crates"
    fi
done < <(cut -f 1 "$work/licences" | sort -u)

duplicates=$(jq -r '[.packages[].name] | group_by(.) | map(select(length > 1) | "\(.[0]) x\(length)") | join(", ")' "$work/metadata.json")
if [ -n "$duplicates" ]; then
    echo "check-deps: note: several versions of: $duplicates"
fi

if command -v cargo-deny >/dev/null 2>&1; then
    echo "check-deps: cargo deny check"
    cargo deny check || fail "cargo-deny found something, see above"
else
    echo "check-deps: WARNING: cargo-deny is not installed, the advisory check was skipped"
fi

if [ "$failures" -gt 0 ]; then
    echo "check-deps: $failures problem(s)" >&2
    exit 1
fi
echo "check-deps: $(jq '.packages | length' "$work/metadata.json") packages, all fine"
