"""Finds the section in which a misplaced key of a grid, or an override, belongs."""

from sweeper.grid.budget import SECTION as BUDGET
from sweeper.grid.launch import SECTION as LAUNCH
from sweeper.grid.metric import METRIC
from sweeper.grid.sampling import SECTION as RANDOM

_SECTIONS = {"launch": LAUNCH, "metric": METRIC, "budget": BUDGET, "random": RANDOM}
_SHARED = ("name", "seed")
"""These fields of sections are ignored, because their names have another meaning elsewhere."""


def belongs(key: str) -> str:
    """Return the end of a message about a misplaced top-level key, such as `: it belongs in
    launch`. Return "" if no section has a key of this name."""
    for name, section in _SECTIONS.items():
        if key in section.fields and key not in _SHARED:
            return f": it belongs in {name}, as in {name}: {{{key}: ...}}"
    return ""


def as_override(key: str, value: str, sections: frozenset[str]) -> str | None:
    """Return a hint if the override `key=value` names a section or a key of `launch`, which are set
    in another way; else None. `sections` are the names of the grid's sections."""
    section, _, below = key.partition(".")
    if section == "budget":
        given = f"{below}={value}" if below else "usd=20"
        return f"budget is a section of the grid: edit it there, or use --budget {given}"
    if section == "name":
        return "the name of a sweep is not a value of its runs: write `name:` in the grid"
    if section in sections:
        return f"{section} is a section of the grid: edit it there"
    if not below and section in LAUNCH.fields:
        return f"write launch.{section}=..."
    return None
