"""The description of a recipe and of its code, in plans and jobs."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from sweeper.common.document_reader import Part


class Recipe(NamedTuple):
    """A recipe as found. Paths are absolute.

    `on_path` says whether `cwd` goes on the module path, as with `python -m`. `forms` has the
    fields whose values are written in an unusual form on chz's command line. `function` is the
    function that returns the config, if the reference names one.
    """

    reference: str
    kind: Literal["module", "file", "command"]
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
    takes: Mapping[str, dict[str, object]] = {}
    forms: Mapping[str, str] = {}
    function: str | None = None

    def document(self) -> dict[str, object]:
        """Return the form in `sweep.json`."""
        return self._asdict()


class Snapshot(NamedTuple):
    """A copy of the code: its `hash`, the path of its `archive` in the store, the checkout's top
    folder `root`, and `cwd` relative to it, or absolute if it is outside. `commit` is the last
    commit before the copy."""

    hash: str
    archive: str
    root: str
    cwd: str
    commit: str | None = None

    def document(self) -> dict[str, str]:
        """Return the form in `sweep.json` and in jobs."""
        return {key: value for key, value in self._asdict().items() if value is not None}


def read_recipe(part: Part) -> Recipe:
    """Read a recipe. Only running it needs all values: see `runs_anywhere`. Raises
    `StoreError`."""
    kind: Literal["module", "file", "command"] = "module"
    if part.document.get("kind") is not None:
        kind = part.one_of("kind", ("module", "file", "command"), "")
    takes = part.parts_by_key("takes")
    for about in takes.values():
        about.text_or("type", None)
    return Recipe(
        reference=part.text_or("reference", ""),
        kind=kind,
        module=part.text_or("module", None),
        file=part.text_or("file", None),
        config_class=part.text_or("config_class", None),
        command=part.texts_or("command", None),
        python=part.text_or("python", ""),
        cwd=part.text_or("cwd", ""),
        on_path=part.flag_or("on_path", False),
        log_path_field=part.text_or("log_path_field", None),
        # Before this key existed, every recipe had a seed field.
        seed_field=part.text_or("seed_field", None) if "seed_field" in part.document else "seed",
        behavior_field=part.flag_or("behavior_field", False),
        takes={name: about.document for name, about in takes.items()},
        forms=part.texts_by_key("forms"),
        function=part.text_or("function", None),
    )


def runs_anywhere(recipe: Part) -> None:
    """Check that a recipe's description is sufficient to run it. Raises `StoreError`."""
    recipe.text("cwd")
    if recipe.text("kind") == "command":
        if not recipe.texts_or("command", None):
            recipe.refuse("command", "a list of texts")
        return
    recipe.text("python")
    recipe.text_or("log_path_field", None)
    recipe.flag_or("behavior_field", False)


def read_snapshot(part: Part | None) -> Snapshot | None:
    """Read the description of a copy of the code. Raises `StoreError`."""
    if part is None:
        return None
    fields = {key: part.text(key) for key in ("hash", "archive", "root", "cwd")}
    return Snapshot(**fields, commit=part.text_or("commit", None))
