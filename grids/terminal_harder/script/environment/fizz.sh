#!/bin/bash
for i in $(seq 0 $1); do
  if ((i % 3)); then echo fizz; elif ((i % 5)); then echo buzz; else echo $i; fi
