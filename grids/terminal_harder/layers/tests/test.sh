#!/bin/bash
r=0
[ "$(cat plain.txt 2>/dev/null)" = 'the key is under the mat' ] && r=1
echo $r >/logs/verifier/reward.txt
