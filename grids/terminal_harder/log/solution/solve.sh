#!/bin/bash
set -e
awk '$1 == "10.0.0.7" && $3 == 500 {n++; s += $4} END {print n; print s}' access.log >answer.txt
