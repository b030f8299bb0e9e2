"""The description of a recipe and of its code, in plans and jobs."""

from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple

from sweeper.common.codec import Check, Default, Sparse, read, written
from sweeper.errors import Damaged


def _are_described(takes: Mapping[str, Mapping[str, object]]) -> bool:
    return all(isinstance(about.get("type"), str | None) for about in takes.values())


class Recipe(NamedTuple):
    """A recipe. Paths are absolute.

    `on_path`: `cwd` goes on the module path, as with `python -m`. `forms` has the fields whose
    values are written in an unusual form on chz's command line. `function` is the function that
    returns the config, if the reference names one.
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
        """Return the object as written in `sweep.json`."""
        return written(self)


class Snapshot(NamedTuple):
    """A copy of the code: its `hash`, the path of its `archive` in the store, the checkout's top
    folder `root`, and `cwd` relative to it, or absolute if it is outside. `commit` is the last
    commit before the copy."""

    hash: str
    archive: str
    root: str
    cwd: str
    commit: Sparse[str | None] = None

    def document(self) -> dict[str, str]:
        """Return the form in `sweep.json` and in jobs."""
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
    """Check that a recipe's description is sufficient to run it. Raises `Damaged`."""
    recipe = read(_Runnable, document, place, inside)
    if recipe.kind == "command":
        if not recipe.command:
            raise Damaged(f"{place}: {inside}.command: should be a list of texts that is not empty")
    elif recipe.python is None:
        raise Damaged(f"{place}: {inside}.python: should be a text, but is missing")
