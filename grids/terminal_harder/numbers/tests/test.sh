#!/bin/bash
r=0
cmp -s out.txt <(seq 300000 | LC_ALL=C sort) && r=1
echo $r >/logs/verifier/reward.txt
