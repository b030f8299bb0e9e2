#!/bin/bash
r=0
[ "$(cat settings 2>/dev/null)" = "$(printf 'SHOP_CITY=Bergen\nSHOP_NAME=Corner shop\nSHOP_OPEN=yes\nSHOP_TAX=%s' "$TAX")" ] && r=1
echo $r >/logs/verifier/reward.txt
