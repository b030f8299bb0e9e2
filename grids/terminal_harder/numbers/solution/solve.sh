#!/bin/bash
set -e
seq 300000 | LC_ALL=C sort >out.txt
