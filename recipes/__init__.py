"""Training programs, one file each, with a chz `Config` and `main(config)`. Each runs by `python -m
sweeper.recipes.<name> key=value`, without the rest of sweeper."""
