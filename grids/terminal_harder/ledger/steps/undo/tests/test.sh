#!/bin/bash
r=0; [ "$(cat book 2>/dev/null)" = "$(printf '+10 rent\n-3 tea\n+5 gift')" ] && [ ! -e b ] && r=1
echo $r >/logs/verifier/reward.txt
