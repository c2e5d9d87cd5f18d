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

# run keeps an INVALID verdict (3): it stands in its row.
run() {
  local status=0 text
  text=$(bin/$current-client -hosts "$(bin/fleet hosts -private)" -out "$out" -warmup "${WARMUP:-5s}" -measure "${MEASURE:-20s}" "$@") || status=$?
  [ "$status" -eq 0 ] || [ "$status" -eq 3 ] || exit "$status"
  records+=("$(sed -n 's/^record:  //p' <<<"$text")")
}

for product in "$@"; do
  current=$product
  make --no-print-directory -C "$product" start
  run -mode closed -threads 100
  run -mode open -rate "$rate"
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
