"""Training programs, one file each: a chz `Config` and `main(config)`.

They do not depend on the rest of sweeper: each runs alone with `python -m sweeper.recipes.<name>
key=value`, and can be the starting point for another program.
"""
