"""`launch.aws_batch`: where at AWS Batch jobs run and what they ask for, and the same as defaults
in the user's configuration file, which are put on record with the plan: what finds a sweep's jobs
again is no matter of a file that changes.
"""

import os
import re
from typing import Any

from sweeper.grid.data import from_python
from sweeper.grid.nodes import Node, Place, Problems, kind
from sweeper.grid.options import Section

__all__ = ["KEYS", "config_path", "read_aws_batch"]

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
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_ARN = re.compile(r"arn:[a-z-]+:(secretsmanager|ssm):[A-Za-z0-9_.:/+=@!-]{1,2000}\Z")
_TAG = re.compile(r"[A-Za-z0-9 +\-=._:/@]{0,256}\Z")
_MOST_TAGS = 40  # of 50, some of which are sweeper's
_MOST_VCPUS = 1024
_MOST_RETRIES = 9  # Batch takes 10 attempts
_LEAST_MEMORY = 4
_LEAST_TIMEOUT = 60.0


def config_path() -> str:
    """The user's configuration file."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(folder, "sweeper", "config.toml")


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
    path = config_path()
    try:
        with open(path, "rb") as file:
            import tomllib

            document = tomllib.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        problems.add(Place(path), f"cannot be read: {error}")
        return {}
    table = document.get("aws_batch")
    if table is None:
        return {}
    return _read(Section(from_python(table, path, problems), "aws_batch", KEYS, problems))


def _read(section: Section) -> dict[str, Any]:
    found: dict[str, Any] = {key: _text(section, key) for key in _TEXTS}
    found |= {
        "vcpus": _vcpus(section),
        "memory": section.integer("memory", _LEAST_MEMORY),
        "gpus": section.integer("gpus", 1),
        "timeout_s": section.duration("timeout", _LEAST_TIMEOUT),
        "secrets": _secrets(section),
        "tags": _tags(section),
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
        section.wrong(node, "vcpus", f"a number above 0, at most {_MOST_VCPUS}")
        return None
    return float(value)


def _secrets(section: Section) -> dict[str, str] | None:
    """Variables, and where their values lie. A value that is no ARN may be the secret itself, and
    is not repeated."""
    node = section.node("secrets")
    if node is None:
        return None
    if node.entries is None:
        section.wrong(node, "secrets", "a mapping of variables to ARNs")
        return None
    found: dict[str, str] = {}
    for name, (place, item) in node.entries.items():
        if not _VARIABLE.match(name):
            section.problems.add(
                place, f"{section.name}.secrets: {name[:60]!r} cannot name a variable"
            )
        elif not isinstance(item.value, str) or not _ARN.match(item.value):
            section.problems.add(
                item.place,
                f"{section.name}.secrets.{name[:60]} takes the ARN of a secret in Secrets Manager "
                "or of a parameter of Systems Manager, never the value",
            )
        else:
            found[name] = item.value
    return found


def _tags(section: Section) -> dict[str, str] | None:
    node = section.node("tags")
    if node is None:
        return None
    if node.entries is None or len(node.entries) > _MOST_TAGS:
        section.wrong(node, "tags", f"a mapping of names to strings, at most {_MOST_TAGS}")
        return None
    found: dict[str, str] = {}
    for name, (place, item) in node.entries.items():
        ours = name.lower().startswith(("aws:", "sweeper:"))
        if not name or len(name) > 128 or not _TAG.match(name) or ours:
            section.problems.add(place, f"{section.name}.tags: {name[:60]!r} cannot name a tag")
        elif not isinstance(item.value, str) or not _TAG.match(item.value):
            section.problems.add(
                item.place,
                f"{section.name}.tags.{name[:60]} is {kind(item)}; it takes a string of at most "
                "256 letters, digits, blanks and + - = . _ : / @",
            )
        else:
            found[name] = item.value
    return found
