#!/bin/bash
HYDRA_FULL_ERROR=1 python -m pkg.main --multirun \
    'optimizer=choice(adam,sgd)' "dims=[1,2],[3,4]" 'wd=tag(log, interval(1e-5, 1e-2))' \
    hydra.sweeper.n_trials=8 hydra/launcher=submitit_slurm hydra.launcher.partition=gpu \
    hydra.launcher.timeout_min=120 hydra.launcher.array_parallelism=4 data='glob(*)'
