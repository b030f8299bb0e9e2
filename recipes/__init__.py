"""Training programs, one file each: a chz `Config` and `main(config)`.

They know nothing of sweeper: each runs alone with `python -m sweeper.recipes.<name> key=value`,
and any of them is a starting point for your own.
"""
