#!/bin/bash
r=0; [ "$(cat sum 2>/dev/null)" = 12 ] && r=1
echo $r >/logs/verifier/reward.txt
