"""The description of a recipe and of its code, in plans and jobs."""

from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple

from sweeper.common.codec import Check, Default, Sparse, read, written
from sweeper.errors import Damaged


def _are_described(takes: Mapping[str, Mapping[str, object]]) -> bool:
    return all(isinstance(about.get("type"), str | None) for about in takes.values())


class Recipe(NamedTuple):
    """A recipe. Paths are absolute.

    With `on_path`, `cwd` is added to the module path, as `python -m` does. `takes` describes the
    fields of the configuration. `forms` has the fields whose values need an unusual form on chz's
    command line, each with that form (`literal` or `indexed`). If the recipe is a function,
    `function` is the function's name.
    """

    reference: Annotated[str, Default("")]
    kind: Annotated[Literal["module", "file", "command"], Default("module")]
    module: str | None = None
    file: str | None = None
    config_class: str | None = None
    command: list[str] | None = None
    python: str = ""
    cwd: str = ""
    on_path: bool = False
    log_path_field: str | None = None
    seed_field: str | None = None
    behavior_field: bool = False
    takes: Annotated[
        Mapping[str, dict[str, object]], Check(_are_described, "fields, each with its type")
    ] = {}
    forms: Mapping[str, str] = {}
    function: str | None = None

    def document(self) -> dict[str, object]:
        """Return the JSON object for `sweep.json`."""
        return written(self)


class Snapshot(NamedTuple):
    """A copy of the code. `archive` is the copy's path in the store, `hash` is the copy's hash, and
    `root` is the top folder of the checkout. `cwd` is relative to `root`, or absolute if it is
    outside of `root`. `commit` is the commit that was checked out, if any."""

    hash: str
    archive: str
    root: str
    cwd: str
    commit: Sparse[str | None] = None

    def document(self) -> dict[str, str]:
        """Return the JSON object for `sweep.json` and `job.json`."""
        return written(self)


class _Runnable(NamedTuple):
    """The parts of a recipe's description that are needed to run it."""

    cwd: str
    kind: str
    command: list[str] | None
    python: str | None
    log_path_field: str | None
    behavior_field: bool = False


def runs_anywhere(document: object, place: str, inside: str) -> None:
    """Raise `Damaged` if `document` lacks what is needed to run the recipe. `document` is the value
    of the key `inside` in the file `place`."""
    recipe = read(_Runnable, document, place, inside)
    if recipe.kind == "command":
        if not recipe.command:
            raise Damaged(f"{place}: {inside}.command: should be a non-empty list of strings")
    elif recipe.python is None:
        raise Damaged(f"{place}: {inside}.python: should be a string, but is missing")
