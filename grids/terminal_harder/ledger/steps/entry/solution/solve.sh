#!/bin/bash
cat new.txt >>book; echo '-2 stamp' >>book; awk '{s += $1} END {print s}' book >sum
