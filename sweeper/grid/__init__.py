"""Reads grids, the YAML files that describe sweeps, and checks all values that do not depend on
the recipe. `declaration` declares all sections together, and `reading` reads a whole grid."""

# dotted_keys      keys of configurations, and sets of them
# naming           canonical values, and the ids and names made from them
# references       ${key} in a value; arithmetic: ${a // b}
# blocks           the sections that make configurations: base, grid, zip, include, exclude
# sampling         random: axes with drawn values
# conditions       when: axes that exist only under a condition
# ranges           an axis as a range, such as {linspace: [0, 1, 5]}
# seeds            the replicates of every cell
# stages           a graph of grids; stage_inputs: what a stage takes from other stages
# launch           how runs are executed; backends: several backends in one sweep;
#                  run_overrides: options of a backend for some runs only
# metric, baseline, budget, alarms, notify, wandb    the sections of these names
# model            a grid as read
# extends          reads the files, and merges a grid into the one that it extends
# overrides        parses command-line overrides; apply_overrides: applies them to a grid
# json_schema      makes the JSON Schema of grids

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
