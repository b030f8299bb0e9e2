python train.py -m lr=1e-3,1e-4 model=small,large seed=range(0,3) +trainer.fast=true hydra.sweep.dir=out
