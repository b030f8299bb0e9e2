#!/bin/bash
r=0
[ "$(cat totals.csv 2>/dev/null)" = "$(printf 'ada,42\nbob,7\neve,12')" ] && r=1
echo $r >/logs/verifier/reward.txt
