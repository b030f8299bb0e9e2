#!/bin/bash
r=0
[ "$(cat bad.txt 2>/dev/null)" = "$(printf 'f2\nf5')" ] && [ -e box/SHA256SUMS ] && r=1
echo $r >/logs/verifier/reward.txt
