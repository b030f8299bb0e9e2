#!/bin/bash
# A third of the reward for each word in its place.
right=0 place=0
for word in river stone cloud; do
  place=$((place + 1))
  [ "$(sed -n ${place}p top.txt 2>/dev/null)" = $word ] && right=$((right + 1))
done
[ $right = 3 ] && share=1 || share=0.$((right * 33))
printf '{"reward": %s, "lines": %d}\n' $share "$(cat top.txt 2>/dev/null | wc -l)" \
  >/logs/verifier/reward.json
