#!/usr/bin/env bash
# test.sh GOTESTSUM PRODUCT...: the own tests of the PRODUCTs' servers; every Go
# test with the race detector; then those that the detector would distort
# (allocations) without it. gotestsum lists what was skipped, and why; where its
# module cannot be fetched, go test runs alone and the skips are listed from its
# output. What was skipped besides stands at the end.
set -uo pipefail
cd "$(dirname "$0")"

gotestsum=$1
shift
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
skips=()
alloc=(./loadgen/... ./gateway/... ./hashiraft ./etcdraft ./dragonboat ./braft ./openraft ./aeron)

for product in "$@"; do
  missing=$(make --no-print-directory -s -C "$product" missing) || status=1
  if [ -n "$missing" ]; then
    skips+=("SKIP the tests of the $product server: $missing")
  else
    echo "== the $product server's own tests"
    make --no-print-directory -C "$product" check || status=1
  fi
done

if go install -n "$gotestsum" >/dev/null 2>&1; then
  go run "$gotestsum" --format pkgname -- -race -timeout 20m ./... || status=1
  go run "$gotestsum" --format pkgname -- -run Alloc -timeout 5m "${alloc[@]}" || status=1
else
  go test -race -timeout 20m -v ./... >"$log" 2>&1 || status=1
  go test -run Alloc -timeout 5m -v "${alloc[@]}" >>"$log" 2>&1 || status=1
  if [ "$status" -eq 0 ]; then grep -E '^(ok|FAIL)' "$log"; else cat "$log"; fi
  grep -A1 -E '^ *--- SKIP' "$log"
  skips+=("SKIP gotestsum: its module cannot be fetched")
fi
[ "${#skips[@]}" -eq 0 ] || printf '%s\n' "${skips[@]}"
exit "$status"
