"""Types of the JSON requests to a recipe's interpreter, and of the interpreter's answers. Only type
checkers read this file. It is never imported, since sweeper may be missing in the recipe's
interpreter."""

from typing import Literal, NotRequired, TypedDict

Problem = tuple[int | None, str | None, str]
"""A problem: the index of a configuration (None: it affects all), the key that causes it (None: no
key), and the message."""


class Packed(TypedDict):
    """Configurations with each value written once. A row is a configuration. Its first number is
    the index in `shapes` of its list of keys. The others are the indices in `values` of its values,
    in the order of the keys."""

    shapes: list[list[str]]
    values: list[object]
    rows: list[list[int]]


class CheckRequest(TypedDict):
    """A request: the reference of a recipe, and the configurations to check."""

    reference: str
    cwd: str
    log_path_field: str | None
    metrics_dir: str | None
    configs: Packed
    validate: bool
    deep: bool
    examples: NotRequired[int]
    checkpoint: NotRequired[str]


class Takes(TypedDict):
    """A field of a config: its type in Python's notation, and its default if the default is plain
    data."""

    type: str
    doc: str
    required: NotRequired[bool]
    default: NotRequired[object]
    fields: "NotRequired[dict[str, Takes]]"


class LocatedRecipe(TypedDict):
    """A recipe in a file or module. The optional keys are present only after the recipe was
    imported."""

    config_class: str | None
    function: str | None
    on_path: bool
    cwd: str
    log_path_field: NotRequired[str | None]
    behavior_field: NotRequired[bool]
    takes: NotRequired[dict[str, Takes]]
    forms: NotRequired[dict[str, str]]


class InFile(LocatedRecipe):
    kind: Literal["file"]
    module: None
    file: str


class InModule(LocatedRecipe):
    kind: Literal["module"]
    module: str
    file: None


Located = InFile | InModule


class Estimates(TypedDict):
    """The distinct estimates of usage, and for each configuration the index of its estimate (None:
    no estimate)."""

    distinct: list[dict[str, dict[str, dict[str, int]]]]
    of: list[int | None]


class Sampled(TypedDict):
    """A sampled answer. `ended` is False if the answer was cut off."""

    text: str
    reward: float
    ended: bool


class Example(TypedDict):
    """An example that a run would train on. `parts` are pieces of its text; True marks a piece that
    is trained on. `tokens` and `trained` are numbers of tokens. `samples` are a model's answers."""

    title: str
    parts: list[tuple[str, bool]]
    tokens: int
    trained: int
    samples: NotRequired[list[Sampled]]


class Examples(TypedDict):
    """The first examples of a run. `about` are remarks for users. `lengths` has the number of
    tokens of every example."""

    about: list[str]
    held_out: int
    lengths: list[int]
    examples: list[Example]


class Answer(TypedDict, total=False):
    """The answer to a request: either `error` (the kind and the message), or some of the other
    fields."""

    error: tuple[str, str]
    recipe: Located
    problems: list[Problem]
    lacks: list[Problem]
    notes: list[str]
    estimates: Estimates
    examples: Examples | None


class Copied(TypedDict):
    """A checkout, and the copy of it that a run uses."""

    root: str
    copy: str


class Child(TypedDict):
    """The contents of a file that tells a recipe's process what to run."""

    recipe: Located
    config: dict[str, object]
    snapshot: NotRequired[Copied | None]
    modules: NotRequired[str | None]
    debug: NotRequired[bool]


class Begin(TypedDict):
    """A worker's request to start a recipe's process (see fork_protocol.py)."""

    argv: list[str]
    cwd: str
    environment: dict[str, str]
    umask: int
