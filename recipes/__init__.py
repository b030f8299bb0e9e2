"""Training programs, one file each: a chz `Config` and `main(config)`. Each runs alone with `python
-m sweeper.recipes.<name> key=value`, without the rest of sweeper."""
