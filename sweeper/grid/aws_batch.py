"""`launch.aws_batch`: where at AWS Batch jobs run and what they ask for, and the same as defaults
in the user's configuration file, which are put on record with the plan: what finds a sweep's jobs
again is no matter of a file that changes.
"""

import re
import sys
from typing import Any, NamedTuple

from sweeper.grid.configuration import read_table
from sweeper.grid.nodes import Node, Problems, kind
from sweeper.grid.options import Section

__all__ = ["KEYS", "read_aws_batch"]

_TEXTS = {
    "queue": (re.compile(r"[A-Za-z0-9][A-Za-z0-9_:/-]{0,255}\Z"), "a job queue's name or ARN"),
    "job_definition": (
        re.compile(r"[A-Za-z0-9][A-Za-z0-9_:/-]{0,255}\Z"),
        "a job definition's name, `name:revision` or ARN",
    ),
    "image": (re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/@-]{0,1023}\Z"), "an image's address"),
    "role": (re.compile(r"[A-Za-z0-9+=,.@_:/-]{1,512}\Z"), "a role's name or ARN"),
    "execution_role": (re.compile(r"[A-Za-z0-9+=,.@_:/-]{1,512}\Z"), "a role's name or ARN"),
    "region": (re.compile(r"[a-z]{2,3}(-[a-z]+)+-[0-9]+\Z"), "a region such as eu-central-1"),
    "profile": (re.compile(r"[^\x00-\x1f\x7f]{1,200}\Z"), "a profile's name"),
    "python": (re.compile(r"[^\x00-\x1f\x7f]{1,1000}\Z"), "an interpreter in the image"),
}
_OTHERS = ("vcpus", "memory", "gpus", "timeout", "secrets", "tags")
_COUNTS = ("array", "retries_on_interruption")
KEYS = (*_TEXTS, *_OTHERS, *_COUNTS)

_OF_AN_IMAGE = ("role", "execution_role")
_MOST_TAGS = 40  # of 50, some of which are sweeper's


class _Strings(NamedTuple):
    """A mapping of strings, as problems with it are told: what it is, what its names name and its
    values are, and how many there may be."""

    what: str
    named: str
    names: re.Pattern[str]
    takes: str
    values: re.Pattern[str]
    most: int = sys.maxsize


_MAPPINGS = {
    "secrets": _Strings(
        "a mapping of variables to ARNs",
        "a variable",
        re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z"),
        "the ARN of a secret in Secrets Manager or of a parameter of Systems Manager, never the "
        "value",
        re.compile(r"arn:[a-z-]+:(secretsmanager|ssm):[A-Za-z0-9_.:/+=@!-]{1,2000}\Z"),
    ),
    "tags": _Strings(
        f"a mapping of names to strings, at most {_MOST_TAGS}",
        "a tag",
        re.compile(r"(?!(?i:aws|sweeper):)[A-Za-z0-9 +\-=._:/@]{1,128}\Z"),
        "a string of at most 256 letters, digits, blanks and + - = . _ : / @",
        re.compile(r"[A-Za-z0-9 +\-=._:/@]{0,256}\Z"),
        _MOST_TAGS,
    ),
}
_MOST_VCPUS = 1024
_MOST_RETRIES = 9  # Batch takes 10 attempts
_LEAST_MEMORY = 4
_LEAST_TIMEOUT = 60.0


def read_aws_batch(node: Node | None, problems: Problems, *, used: bool = False) -> dict[str, Any]:
    """The section: what was given, the timeout as seconds under `timeout_s`; where the backend is
    `used`, over what the configuration file has below `[aws_batch]`."""
    found = _defaults(problems) if used else {}
    if node is not None:
        given = _read(Section(node, "launch.aws_batch", KEYS, problems))
        if "job_definition" in given:  # instead of an image that is the default, and its roles
            found = {k: v for k, v in found.items() if k not in ("image", *_OF_AN_IMAGE)}
        elif given.keys() & {"image", *_OF_AN_IMAGE}:
            found.pop("job_definition", None)
        found |= given
    return found


def _defaults(problems: Problems) -> dict[str, Any]:
    table = read_table("aws_batch", problems)
    return {} if table is None else _read(Section(table, "aws_batch", KEYS, problems))


def _read(section: Section) -> dict[str, Any]:
    found: dict[str, Any] = {key: _text(section, key) for key in _TEXTS}
    found |= {
        "vcpus": _vcpus(section),
        "memory": section.integer("memory", _LEAST_MEMORY),
        "gpus": section.integer("gpus", 1),
        "timeout_s": section.duration("timeout", _LEAST_TIMEOUT),
        "secrets": _strings(section, "secrets"),
        "tags": _strings(section, "tags"),
        "array": section.integer("array", 0),
        "retries_on_interruption": section.integer("retries_on_interruption", 0),
    }
    if (found["retries_on_interruption"] or 0) > _MOST_RETRIES:
        place = section.entries["retries_on_interruption"][1].place
        section.problems.add(
            place, f"{section.name}.retries_on_interruption is 0 to {_MOST_RETRIES}"
        )
    if found["job_definition"] is not None:
        for key in ("image", *_OF_AN_IMAGE):
            if found[key] is not None:
                section.problems.add(
                    section.entries[key][0],
                    f"{section.name}: a named job definition has its own {key}: take one out",
                )
    return {key: value for key, value in found.items() if value is not None}


def _text(section: Section, key: str) -> str | None:
    text = section.string(key)
    if text is None:
        return None
    pattern, what = _TEXTS[key]
    if pattern.match(text):
        return text
    section.problems.add(
        section.entries[key][1].place, f"{section.name}.{key}: {text[:60]!r} is not {what}"
    )
    return None


def _vcpus(section: Section) -> float | None:
    node = section.node("vcpus")
    if node is None:
        return None
    value = node.value
    if type(value) not in (int, float) or not 0 < value <= _MOST_VCPUS:
        told = f"{value:g}" if type(value) in (int, float) else kind(node)
        section.problems.add(
            node.place,
            f"{section.name}.vcpus is {told}; it takes a number above 0, at most {_MOST_VCPUS}",
        )
        return None
    return float(value)


def _strings(section: Section, key: str) -> dict[str, str] | None:
    """One of `_MAPPINGS`. A value that it cannot have may be a secret, and is not repeated."""
    node = section.node(key)
    if node is None:
        return None
    given = _MAPPINGS[key]
    if node.entries is None or len(node.entries) > given.most:
        section.wrong(node, key, given.what)
        return None
    found: dict[str, str] = {}
    for name, (place, item) in node.entries.items():
        where, shown = f"{section.name}.{key}", name[:60]
        if not given.names.match(name):
            section.problems.add(place, f"{where}: {shown!r} cannot name {given.named}")
        elif not isinstance(item.value, str) or not given.values.match(item.value):
            section.problems.add(item.place, f"{where}.{shown} takes {given.takes}")
        else:
            found[name] = item.value
    return found
