#!/bin/bash
#SBATCH --job-name=sweep
#SBATCH --partition=gpu
#SBATCH --time=04:00:00
#SBATCH --gres=gpu:1
#SBATCH -c 8
#SBATCH --array=0-3%2
module load cuda
LRS=(1e-5 3e-5 1e-4 3e-4)
srun python train.py --lr ${LRS[$SLURM_ARRAY_TASK_ID]} --out $SCRATCH/out
