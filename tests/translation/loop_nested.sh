#!/bin/bash
# a grid by hand
MODEL=gpt2
for lr in 1e-4 3e-4 1e-3; do
  for seed in 0 1 2; do
    echo "starting $lr"
    CUDA_VISIBLE_DEVICES=0 python train.py --model $MODEL --lr "$lr" --seed ${seed} > log_$lr.txt 2>&1 &
  done
  wait
done
