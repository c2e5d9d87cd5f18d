#!/usr/bin/env bash
# The demo: a three-node hashicorp/raft cluster on this host, a closed-loop
# run, an open-loop run well below what the closed one reached, a check that
# nothing acknowledged was lost, and the cluster stopped again.
set -euo pipefail
cd "$(dirname "$0")"

product=hashiraft
make="make --no-print-directory -C $product"
if bin/fleet status -product $product 2>/dev/null | grep -Eq ' (running|stopped) '; then
  echo "demo: a $product cluster runs on this host already: make $product.stop first" >&2
  exit 1
fi
out=$(mktemp)
trap '$make stop; rm -f "$out"' EXIT
# Ctrl-C ends the run that is under way, which prints what it has; then the demo.
interrupted=
trap 'interrupted=1' INT

# run prints a client's summary and keeps it; an INVALID run (3) is a result.
run() {
  local status=0
  bin/$product-client -hosts "$(bin/fleet hosts -private)" -out results/$product -warmup 3s -measure 15s "$@" | tee -i "$out" || status=${PIPESTATUS[0]}
  [ -z "$interrupted" ] || exit 130
  [ "$status" -eq 0 ] || [ "$status" -eq 3 ] || exit "$status"
  verdict=$(awk '/^verdict:/ { print $2 }' "$out")
}

echo "== three $product nodes on this host"
$make start
echo
echo "== closed loop: 100 requests outstanding; how fast does it answer?"
run -mode closed -threads 100
closed=$verdict
reached=$(awk '$1 == "answered" { print int($3) }' "$out")

# A twentieth of it, 1000/s at most: far from the knee, where open loop shows
# what one request costs, and where two cores have room for the rig beside
# three servers.
rate=$((reached / 20))
[ "$rate" -le 1000 ] || rate=1000
[ "$rate" -ge 1 ] || rate=1
echo
echo "== open loop: $rate/s whether or not replies come, $reached/s were reached"
# Rig and servers share this host's cores: what holds one up holds up the other.
# So lag may be half of the latency at p99, a third is the limit elsewhere.
run -mode open -rate "$rate" -max-lag-p99 0.5
open=$verdict
echo
echo "== is everything that was acknowledged there, on every node?"
$make verify
echo
echo "demo: closed loop $closed, open loop $open, verified; the records are in results/$product"
