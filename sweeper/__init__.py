"""One grid in, a believable report out: experiment sweeps for post-training."""
