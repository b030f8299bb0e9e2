#!/bin/bash
# A fifth for any three commands that there are, the rest for right ones.
there=0 right=0
while [ $there -lt 3 ] && read -r found _; do
  there=$((there + 1))
  [ "$found" = right ] && right=$((right + 1))
done < <(cat /app/log 2>/dev/null)
earned=$(((200 * there + 800 * right) / 3))
printf '{"reward": %d.%03d}\n' $((earned / 1000)) $((earned % 1000)) >/logs/verifier/reward.json
