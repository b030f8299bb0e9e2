#!/bin/bash
awk '{s += $1} END {print s}' book >sum
