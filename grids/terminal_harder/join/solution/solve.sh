#!/bin/bash
set -e
awk -F, 'NR == FNR {name[$1] = $2; next} {sum[$1] += $2} END {for (id in sum) print name[id] "," sum[id]}' \
  people.csv orders.csv | sort >totals.csv
