#!/bin/bash
r=0; [ "$(cat sum 2>/dev/null)" = 11 ] && grep -qx -- '-2 stamp' book && r=1
echo $r >/logs/verifier/reward.txt
