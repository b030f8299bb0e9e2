"""The section `wandb`: which project of W&B's every run of the sweep logs to. What a run gets of it
is in `sweeper.tracking`."""

import re

from sweeper.grid.nodes import Node, Place, Problems, kind
from sweeper.grid.options import Launch, Section
from sweeper.model.plan import Wandb
from sweeper.tracking import NAMES, SECTION

__all__ = ["check_env", "read_wandb"]

PROJECT = re.compile(r"(?=.*\S)[^/\\#?%:\x00-\x1f]{1,128}\Z")
ENTITY = re.compile(r"[^/\\#?%:\s]{1,128}\Z")
GROUP = re.compile(r"(?=.*\S)[^\x00-\x1f]{1,128}\Z")
TAG = re.compile(r"(?=.*\S)[^,\x00-\x1f]{1,64}\Z")
MODES = ("online", "offline", "disabled")
MAX_TAGS = 50
KEYS = ("project", "entity", "group", "tags", "mode")


def read_wandb(node: Node, problems: Problems) -> Wandb | None:
    """The `wandb` section: a project is needed, the rest is not."""
    section = Section(node, "wandb", KEYS, problems)
    project = _fitting(section, "project", PROJECT, "1 to 128 characters, none of /\\#?%:")
    entity = _fitting(section, "entity", ENTITY, "the name of a W&B user or team")
    group = _fitting(section, "group", GROUP, "1 to 128 characters, in one line")
    tags, mode = _read_tags(section), section.string("mode", choices=MODES)
    if node.entries is not None and section.node("project") is None:
        problems.add(node.place, "wandb needs a project")
    return None if project is None else Wandb(project, entity, group, tags, mode)


def _fitting(section: Section, key: str, pattern: re.Pattern[str], rule: str) -> str | None:
    text = section.string(key)
    if text is not None and not pattern.match(text):
        section.problems.add(section.entries[key][1].place, f"wandb.{key}: {rule}")
        return None
    return text


def _read_tags(section: Section) -> tuple[str, ...]:
    node = section.node("tags")
    if node is None:
        return ()
    if node.items is None:
        section.wrong(node, "tags", "a list of strings")
        return ()
    if len(node.items) > MAX_TAGS:
        section.problems.add(node.place, f"wandb.tags: at most {MAX_TAGS}")
    tags: dict[str, None] = {}
    for item in node.items[:MAX_TAGS]:
        if not isinstance(item.value, str):
            section.problems.add(
                item.place, f"wandb.tags: {kind(item)} in the list; quote it to make it a string"
            )
        elif not TAG.match(item.value):
            section.problems.add(item.place, "wandb.tags: 1 to 64 characters each, no comma")
        else:
            tags[item.value] = None
    return tuple(tags)


def check_env(wandb: Wandb | None, launch: Launch, place: Place, problems: Problems) -> None:
    """Note variables in `launch.env`, which stands at `place`, that are this section's to set."""
    if wandb is None:
        return
    for name in launch.env:
        if name in SECTION:
            problems.add(place, f"launch.env: {name} is wandb.{SECTION[name]} here")
        elif name in NAMES:
            problems.add(place, f"launch.env: {name} is set by sweeper, because of wandb")
