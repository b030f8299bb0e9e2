"""`sweeper init`: writes a commented grid for a recipe, to start from.

The grid can be planned unchanged, unless the recipe needs values, which are marked. The recipe's
own interpreter reports its fields with their types, defaults and docs. For a script that is no
recipe, the grid has a command with the options that its source declares.
"""

import argparse
import os
import sys
from collections.abc import Mapping

from sweeper.commands.init_fields import fields_of, guess_settings
from sweeper.commands.init_script import options_of, script_text
from sweeper.commands.init_text import grid_text
from sweeper.common.atomic import atomic_create
from sweeper.common.full_machine import crowding
from sweeper.errors import EnvironmentFailure, UsageError
from sweeper.recipe.reference import RunProcess, inspect
from sweeper.sweep.hint import hint
from sweeper.sweep.names import is_sweep_name


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """Declare the arguments of `sweeper init`."""
    verb.add_argument(
        "recipe",
        nargs="?",
        help="a short name, module, module:Class or file.py, or any script (default: sft)",
    )
    verb.add_argument("--out", help="the file to write (default: <recipe>.yaml; -: print it)")
    verb.add_argument("--python", help="the recipe's interpreter (default: sweeper's own)")
    verb.add_argument("--backend", help="write the options of this backend as comments")
    verb.add_argument("--list", action="store_true", help="list the short names of recipes")
    verb.add_argument(
        "--study",
        action="store_true",
        help="also write notes/plan.md: the question, the baseline, the criterion of success",
    )
    verb.add_argument("--schema", action="store_true", help="print the JSON Schema of grids")


def run(arguments: argparse.Namespace) -> int:
    """Write a starter grid, or print the names of recipes, or the JSON Schema of grids."""
    from sweeper.terminal import warn

    if arguments.schema:
        import json

        from sweeper.grid.json_schema import grid_schema

        print(json.dumps(grid_schema(), indent=2))
        return 0
    if arguments.list:
        from importlib import metadata

        for point in sorted(metadata.entry_points(group="sweeper.recipes")):
            print(f"{point.name}  {point.value}")
        return 0
    reference = arguments.recipe or "sft"
    name = _name(reference)
    if arguments.study:
        _write_study()
    out = arguments.out or f"{name}.yaml"
    if out != "-" and os.path.lexists(out):  # before the recipe's slow import
        raise UsageError(f"{out} is there already: choose another file with --out")
    given = {"backend": arguments.backend, "python": arguments.python}
    text, lacks = _text(name, reference, given, out)
    for sentence in lacks:
        warn(f"warning: the grid does not plan yet: {sentence}")
    if out == "-":
        sys.stdout.write(text)
        return 0
    try:
        _create(out, text)
    except FileExistsError:
        raise UsageError(f"{out} is there already: choose another file with --out") from None
    print(f"wrote {out}; look at it with `{hint('plan', out)}`")
    return 0


def _text(
    name: str, reference: str, given: Mapping[str, str | None], out: str
) -> tuple[str, list[str]]:
    """Return the text of a grid for a recipe, or for a script that is none, and what it still
    lacks."""
    options = options_of(reference) if os.path.isfile(reference) else None
    if options is not None:
        text, needed = script_text(name, reference, options, given, out)
    else:
        recipe = inspect(reference, [], RunProcess(given["python"]), deep=True).recipe
        fields = fields_of(recipe)
        guess = guess_settings(reference, fields, given["python"])
        text = grid_text(name, recipe, fields, guess, given=given, out=out)
        if guess.lacks:
            return text, guess.lacks
        needed = list(guess.needed)
    return text, [f"fill in {', '.join(needed)}"] if needed else []


def _write_study() -> None:
    """Write the plan of a study, unless there is one."""
    from sweeper.analysis.page.notebook import FOLDER, PLAN
    from sweeper.analysis.reading.criterion import TEMPLATE

    path = os.path.join(FOLDER, PLAN)
    try:
        os.makedirs(FOLDER, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {FOLDER}: {error.strerror}") from error
    try:
        _create(path, TEMPLATE)
    except FileExistsError:
        print(f"{path} is there, and stays as it is")
    else:
        print(f"wrote {path}; `sweeper analyze` judges the criterion that you write there")


def _create(path: str, text: str) -> None:
    """Write a new file, completely or not at all. Raises `FileExistsError`, `EnvironmentFailure`
    if the disk is full, and `UsageError` if the path is wrong."""
    try:
        atomic_create(path, text.encode())
    except FileExistsError:
        raise
    except OSError as error:
        kind = UsageError if crowding(error) is None else EnvironmentFailure
        raise kind(f"cannot write {path}: {error.strerror}") from error


def _name(reference: str) -> str:
    """Derive the sweep's name: `pkg.train:Config` -> train, `path/to/toy.py` -> toy; `sweep` if
    the result is no valid name."""
    head = reference.partition(":")[0]
    if head.endswith(".py") or "/" in head or os.path.isfile(head):
        name = os.path.splitext(os.path.basename(head))[0]
    else:
        name = head.rpartition(".")[2]
    return name if is_sweep_name(name) else "sweep"
