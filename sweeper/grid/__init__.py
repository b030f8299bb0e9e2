"""A grid: the YAML file, read and checked by itself.

keys        keys of configurations, and sets of them
naming      canonical values, and from them ids and names
references  ${key} in a value
blocks      the sections that make configurations: base, grid, zip, include, exclude
sampling    random: axes whose values are drawn
conditions  when: axes that exist only under a condition
excluding   what exclude takes out
seeds       the replicates of every cell
stages      a grid of grids; taking: what they take from each other
launch      how the runs are executed; by_run: what some of them ask their backend for
wandb, alarms
model       a grid, as read
extending   files, and what one takes over from another
overrides   what the command line says
applying    what that changes
declaration all of these sections together
reading     the reader of a whole grid
json_schema the same as a JSON Schema
"""

from sweeper.grid.extends import GridText
from sweeper.grid.model import Grid, StageGrid
from sweeper.grid.reading import grid_from_mapping, load_grid, parse_grid, read_grid
from sweeper.grid.seeds import Seeds

__all__ = [
    "Grid",
    "GridText",
    "Seeds",
    "StageGrid",
    "grid_from_mapping",
    "load_grid",
    "parse_grid",
    "read_grid",
]
