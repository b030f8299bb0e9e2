"""Translates sweep files of other programs into grids: `sweeper init --from FILE`."""
