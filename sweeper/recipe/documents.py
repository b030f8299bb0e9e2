"""What sweeper asks a recipe's interpreter, and what that answers, with types: plain JSON.
Type checkers alone read this. Nothing loads it: a recipe's interpreter need not have sweeper.
"""

from typing import Literal, NotRequired, TypedDict

__all__ = [
    "Answer",
    "Asked",
    "Begin",
    "Child",
    "Found",
    "InFile",
    "InModule",
    "Located",
    "Packed",
    "Takes",
]

Told = tuple[int | None, str | None, str]
"""A problem: the number of a configuration, the key in it, and the message."""


class Packed(TypedDict):
    """Configurations with each value written once: `shapes` are lists of keys, `rows` the number of
    a shape and then those of its `values`."""

    shapes: list[list[str]]
    values: list[object]
    rows: list[list[int]]


class Asked(TypedDict):
    """What is asked: the recipe that a reference names, and what is wrong with configurations."""

    reference: str
    cwd: str
    log_path_field: str | None
    metrics_dir: str | None
    configs: Packed
    validate: bool
    deep: bool


class Takes(TypedDict):
    """A field of a config: its type as it is written, its default where that is plain data."""

    type: str
    doc: str
    required: NotRequired[bool]
    default: NotRequired[object]
    fields: "NotRequired[dict[str, Takes]]"


class Found(TypedDict):
    """A recipe, wherever it is. What is not required is there once it was imported."""

    config_class: str | None
    function: str | None
    on_path: bool
    cwd: str
    log_path_field: NotRequired[str | None]
    behavior_field: NotRequired[bool]
    takes: NotRequired[dict[str, Takes]]
    forms: NotRequired[dict[str, str]]


class InFile(Found):
    """A recipe that is a file."""

    kind: Literal["file"]
    module: None
    file: str


class InModule(Found):
    """A recipe that is a module."""

    kind: Literal["module"]
    module: str
    file: None


Located = InFile | InModule


class Estimates(TypedDict):
    """What runs will use, each once, and its number for each configuration."""

    said: list[dict[str, dict[str, dict[str, int]]]]
    of: list[int | None]


class Answer(TypedDict, total=False):
    """What is answered: `error` alone, its kind and its message; or the rest."""

    error: tuple[str, str]
    recipe: Located
    problems: list[Told]
    lacks: list[str]
    notes: list[str]
    estimates: Estimates


class Copied(TypedDict):
    """A checkout, and the copy of it that a run is to use."""

    root: str
    copy: str


class Child(TypedDict):
    """The file from which a recipe's process reads what it is to do."""

    recipe: Located
    config: dict[str, object]
    snapshot: NotRequired[Copied | None]
    modules: NotRequired[str | None]


class Begin(TypedDict):
    """What a fork server's keeper is to execute."""

    argv: list[str]
    cwd: str
    environment: dict[str, str]
    umask: int
