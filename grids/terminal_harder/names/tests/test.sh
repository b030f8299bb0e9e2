#!/bin/bash
r=1
cd files
[ "$(find . -name '*.md' -printf x)" = xxxxxx ] || r=0
[ -z "$(find . -name '*.txt')" ] || r=0
[ -e keep.log ] && [ -e ./-dash.md ] && [ -e './*.md' ] || r=0
echo $r >/logs/verifier/reward.txt
