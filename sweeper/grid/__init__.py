"""A grid: the YAML file, read and checked by itself.

nodes       YAML text -> nodes that know their place in it; the limits
data        Python data -> the same nodes
options     the sections that say how to run and judge: launch, seeds, metric, secrets
blocks      the sections that make configurations: base, grid, zip, include, exclude
sampling    random: axes whose values are drawn
conditions  when: axes that exist only under a condition
references  ${key} in a value
excluding   what exclude takes out
extending   files, and what one takes over from another
overrides   what the command line says
applying    what that changes
naming      canonical values, and from them ids and names
reading     all of it together
"""

from sweeper.grid.options import Launch, Metric, Seeds
from sweeper.grid.reading import Grid, GridText, grid_from_mapping, load_grid, parse_grid, read_grid

__all__ = [
    "Grid",
    "GridText",
    "Launch",
    "Metric",
    "Seeds",
    "grid_from_mapping",
    "load_grid",
    "parse_grid",
    "read_grid",
]
