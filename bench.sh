#!/usr/bin/env bash
# bench.sh BENCHSTAT: what the rig and its parts cost, each beside what it is
# compared to, in one run. benchstat prints medians with their spread. Run it
# on a machine that does nothing else; COUNT runs of each, 6 by default, are
# what benchstat wants for an interval.
set -euo pipefail
cd "$(dirname "$0")"

count=${COUNT:-6}
raw=$(mktemp)
trap 'rm -f "$raw"' EXIT

echo "machine: $(awk -F ': ' '/model name/ { print $2; exit }' /proc/cpuinfo), $(nproc) cores, Linux $(uname -r), $(go env GOVERSION), load $(cut -d ' ' -f 1 /proc/loadavg)"
bench() {
  echo
  echo "== $1"
  shift
  go test -run '^$' -count "$count" "$@" | tee -a "$raw" | grep --line-buffered -E '^(Benchmark|FAIL|panic|---)' || true
}
bench "a lane with a client that costs nothing, beside the least it could do" -bench 'Lane|Floor' -benchmem ./loadgen
bench "how late a lane sends, and what waiting costs it" -bench Pace -benchtime 3x ./loadgen
bench "the gateway's client, beside a bare socket and grpc-go's client, against one server" -bench 'Client/' -benchtime 200000x ./gateway
bench "braft's client, beside a bare socket" -bench 'Client/' -benchtime 200000x ./braft
# These go in rounds of their own, and take the medians themselves.
count=1
for product in hashiraft etcdraft dragonboat; do
  bench "$product: the library in one process, and behind the gateway, in turn" -bench 'Share|Latency' -benchtime 1x "./$product"
done
echo
echo "== medians"
if go install -n "$1" >/dev/null 2>&1; then go run "$1" "raftrig=$raw"; else echo "SKIP benchstat: its module cannot be fetched"; fi
