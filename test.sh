#!/usr/bin/env bash
# test.sh GOTESTSUM: every test with the race detector, then those that the
# detector would distort (allocations) without it. gotestsum lists what was
# skipped, and why, at the end; where its module cannot be fetched, go test
# runs alone and the skips are listed from its output.
set -uo pipefail
cd "$(dirname "$0")"

log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
if go install -n "$1" >/dev/null 2>&1; then
  go run "$1" --format pkgname -- -race -timeout 15m ./... || status=1
  go run "$1" --format pkgname -- -run Alloc -timeout 5m ./loadgen/... ./gateway/... ./hashiraft ./etcdraft ./dragonboat || status=1
else
  go test -race -timeout 15m -v ./... >"$log" 2>&1 || status=1
  go test -run Alloc -timeout 5m -v ./loadgen/... ./gateway/... ./hashiraft ./etcdraft ./dragonboat >>"$log" 2>&1 || status=1
  if [ "$status" -eq 0 ]; then grep -E '^(ok|FAIL)' "$log"; else cat "$log"; fi
  grep -A1 -E '^ *--- SKIP' "$log"
  echo "SKIP gotestsum: its module cannot be fetched"
fi
exit "$status"
