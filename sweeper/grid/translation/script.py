"""Translates a Python script with argparse or click: a command with all its options."""

from collections.abc import Sequence
from typing import NamedTuple

from sweeper.grid.translation.draft import Draft, interpreter, sweep_name


class Argument(NamedTuple):
    """An option of a script: its flag ("" for a positional argument), its key, its default, values
    to compare, whether it is required, and whether its value is the run's folder."""

    flag: str
    key: str
    default: object
    values: Sequence[object]
    needed: bool
    folder: bool


def from_script(source: str, arguments: Sequence[Argument]) -> Draft:
    """Translate the options of a script. One of them becomes the axis (see `_axis`)."""
    draft = Draft(source, "a script")
    draft.name = sweep_name("", source)
    draft.command = [interpreter(), source]
    swept = _axis(arguments)
    for argument in arguments:
        name = argument.key
        if argument.folder:
            hole = "{log_path}"
        elif argument.key == "seed":
            draft.seeds, hole = 3, "{seed}"
        elif argument.default is None and argument is not swept:
            if argument.needed:
                draft.note(0, f"{name} is required and has no default: fill in base.{name}")
            else:
                continue  # The script has its own default, which its source does not show.
            hole = draft.hole(name)
        elif argument is swept:
            draft.axis(name, list(argument.values))
            hole = draft.hole(name)
        else:
            draft.fix(name, argument.default)
            hole = draft.hole(name)
        draft.command += [argument.flag, hole] if argument.flag else [hole]
    return draft


def _axis(arguments: Sequence[Argument]) -> Argument | None:
    """Return the option that becomes the axis: a learning rate, else the first option with values
    to compare. Return None if no option has several values."""
    able = [a for a in arguments if len(a.values) > 1 and not a.folder and a.key != "seed"]
    rates = [a for a in able if a.key in ("learning_rate", "lr") or a.key.endswith("_lr")]
    return next(iter([*rates, *able]), None)
