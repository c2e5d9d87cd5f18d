#!/usr/bin/env bash
# table.sh PRODUCT...: every product on this host, one after the other: closed
# loop with 100 outstanding, open loop at RATE (1000/s), and verify. The rows go
# into README.md between the marks, the records into results/table.
set -euo pipefail
cd "$(dirname "$0")"

rate=${RATE:-1000}
out=results/table
records=()
current=
trap '[ -z "$current" ] || make --no-print-directory -C "$current" stop' EXIT

# run keeps an INVALID verdict, at which make fails too: it stands in its row.
run() {
  local text record
  text=$(make --no-print-directory -s -C "$current" client OUT="$out" WARMUP="${WARMUP:-20s}" MEASURE="${MEASURE:-20s}" "$@") || true
  record=$(sed -n 's/^record:  //p' <<<"$text")
  [ -n "$record" ] || exit 1
  records+=("$record")
}

for product in "$@"; do
  missing=$(make --no-print-directory -s -C "$product" missing)
  if [ -n "$missing" ]; then
    echo "SKIP $product: $missing"
    continue
  fi
  current=$product
  make --no-print-directory -C "$product" up
  run MODE=closed THREADS=100
  run MODE=open RATE="$rate"
  make --no-print-directory -C "$product" verify OUT="$out"
  current=
  make --no-print-directory -C "$product" stop
done
table=$(bin/record table "${records[@]}")
printf '%s\n' "$table"
awk -v table="$table" '
  /<!-- table end -->/ { inside = 0 }
  !inside { print }
  /<!-- table -->/ { print table; inside = 1 }
' README.md >README.md.new
mv README.md.new README.md
