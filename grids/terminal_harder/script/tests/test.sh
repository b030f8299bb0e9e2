#!/bin/bash
# A quarter of the reward for each case.
right=0
for n in 1 5 15 100; do
  wanted=$(seq $n | awk '{w = ""; if ($1 % 3 == 0) w = "fizz"; if ($1 % 5 == 0) w = w "buzz"; print w == "" ? $1 : w}')
  [ "$(timeout 5 bash fizz.sh $n 2>/dev/null)" = "$wanted" ] && right=$((right + 1))
done
echo "$right / 4" | awk '{print $1 / $3}' >/logs/verifier/reward.txt
