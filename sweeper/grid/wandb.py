"""The section `wandb`, the Weights & Biases project that every run logs to, and `track`, the list
of all trackers that runs log to. `sweeper.sweep.tracking` makes the runs' variables from both."""

import re
from collections.abc import Mapping, Sequence

from sweeper.fields.kinds import Choice, Item, Shape, Text, Texts
from sweeper.fields.nodes import Node, Place, Problems
from sweeper.fields.sections import Field, Section
from sweeper.grid.command_words import one_of
from sweeper.sweep.launch_settings import Launch
from sweeper.sweep.plan import Wandb
from sweeper.sweep.tracking import NAMES, PACKAGES, SECTION

_TAG = r"(?=.*\S)[^,\x00-\x1f]{1,64}"


def _wrong_with_tag(tag: str) -> str | None:
    return None if re.fullmatch(_TAG, tag) else "1 to 64 characters each, no comma"


_SECTION = Section(
    Field(
        "project",
        Text(r"(?=.*\S)[^/\\#?%:\x00-\x1f]{1,128}", "1 to 128 characters, none of /\\#?%:"),
        "The project's name.",
    ),
    Field(
        "entity",
        Text(r"[^/\\#?%:\s]{1,128}", "the name of a W&B user or team"),
        "The user or team that owns the project (default: the owner of the API key).",
    ),
    Field(
        "group",
        Text(r"(?=.*\S)[^\x00-\x1f]{1,128}", "1 to 128 characters, in one line"),
        "The group of the runs (default: the sweep's name).",
    ),
    Field(
        "tags",
        Texts(Item({"pattern": f"^{_TAG}$"}, _wrong_with_tag), most=50, unique=True),
        "Tags that every run gets.",
    ),
    Field(
        "mode",
        Choice("online", "offline", "disabled"),
        "offline: the data are stored with each run, for a later `wandb sync`.",
    ),
    needs={"project": "a project"},
)


def _read(node: Node, where: str, problems: Problems) -> Wandb | None:
    values = _SECTION.read(node, where, problems).values
    tags = tuple(values.pop("tags", ()))
    return Wandb(**values, tags=tags) if "project" in values else None


WANDB = Field(
    "wandb", Shape(_SECTION.schema, _read), "The Weights & Biases project that every run logs to."
)
TRACK = Field(
    "track",
    Texts(
        one_of(PACKAGES),
        least=1,
        unique=True,
        example=f"a list of {', '.join(PACKAGES)}",
    ),
    "The trackers that every run logs to: wandb, trackio, tensorboard (default: wandb, if the grid "
    "has a section wandb).",
)
WHOLE = {"if": {"type": "object"}, "then": _SECTION.whole()}
"""JSON Schema of the section in a grid that extends no other grid."""


def check_track(
    wandb: Wandb | None, track: Sequence[str], places: Mapping[str, Place], problems: Problems
) -> None:
    """Report a list of trackers (`track`) that contradicts the section `wandb`."""
    if not track:
        return
    if wandb is None and "wandb" in track:
        message = "track: wandb needs its section too: add `wandb: {project: NAME}`"
        problems.add(places["track"], message)
    elif wandb is not None and "wandb" not in track:
        message = (
            "there is a section wandb, but track does not list wandb: add it, or remove the section"
        )
        problems.add(places["wandb"], message)


def check_env(wandb: Wandb | None, launch: Launch, place: Place, problems: Problems) -> None:
    """Report variables in `launch.env` (at `place`) that the section `wandb` sets too."""
    if wandb is None:
        return
    for name in launch.env:
        if name in SECTION:
            problems.add(place, f"launch.env: set wandb.{SECTION[name]} instead of {name}")
        elif name in NAMES:
            problems.add(
                place, f"launch.env: {name} is set by sweeper, since the grid has the section wandb"
            )
