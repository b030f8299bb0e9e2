"""Finds the keys whose values have an effect in a grid with a command."""

from sweeper.errors import RecipeError
from sweeper.grid.dotted_keys import Reach
from sweeper.grid.model import Grid
from sweeper.grid.references import named
from sweeper.grid.run_overrides import conditions
from sweeper.recipe.command_template import placeholders


def used_keys(grid: Grid) -> set[str]:
    """Return the keys that the command, conditions or `launch.window` use, and all keys to which
    the values of these keys refer. Return an empty set if the command has a stray brace."""
    try:
        used = {*placeholders(grid.command or ()), *placeholders([grid.launch.window or ""])}
    except RecipeError:
        return set()  # Planning reports stray braces.
    used.update(key for when in grid.whens for key in when.conditions)
    for options in grid.launch.options.values():
        used.update(conditions(options))
    refers: dict[str, set[str]] = {}
    for setting in grid.every_setting():
        for key, value in setting.given.items() if setting.refers else ():
            refers.setdefault(key, set()).update(named(value))
    while refers:
        reach = Reach(used)
        keys = [key for key in refers if reach.touches(key)]
        if not keys:
            break
        for key in keys:
            used |= refers.pop(key)
    return used
