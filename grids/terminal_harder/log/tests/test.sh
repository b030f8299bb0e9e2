#!/bin/bash
r=0
cmp -s answer.txt <(seq 50000 | awk '$1 % 13 == 7 && $1 % 5 == 2 {n++; s += $1 % 1000} END {print n; print s}') && r=1
echo $r >/logs/verifier/reward.txt
