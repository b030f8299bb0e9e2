"""Reads the requirements file that jobs use on other machines (`launch.requirements`). Finds lines
that do not work on these machines, and options that name package sources."""

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from sweeper.recipe import checkout

_SOURCES = (
    *("-i", "--index-url", "--extra-index-url", "-f", "--find-links"),
    *("--no-index", "--trusted-host"),
)
"""Options of a requirements file that name sources of packages. They also apply to the worker's own
packages."""
_FOLDERS = ("-f", "--find-links")
_INCLUDES = ("-r", "--requirement", "-c", "--constraint")
_EDITABLE = ("-e", "--editable")
_PASSWORD = re.compile(r"://[^/@\s]*:(?!\$\{|\d+/)\S+@|(?<!ssh)://(?!\$\{)[^/@:\s]+@")
"""A password in an address, up to the last `@`, since a password may contain `/`. Except with ssh,
a user name without a password also counts, since it is a token. Digits before a `/` are a port."""
_PATH = re.compile(r"\.{0,2}/|\.{1,2}(\[|$)|.*\.(whl|zip|tgz|tar\.(gz|bz2|xz))$|~")
_BELOW = re.compile(r"[^\s;@]*/")


class Requirements(NamedTuple):
    """A requirements file for jobs on other machines. `options` are the file's options that name
    sources of packages. `mistakes` has a message for each line that these jobs cannot use."""

    options: tuple[str, ...]
    mistakes: tuple[str, ...]


def read(path: str) -> Requirements:
    """Read a requirements file. Does not check whether the packages are available."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = list(_lines(file.read()))
    except FileNotFoundError:
        return Requirements((), (f"there is no file {path}",))
    except (OSError, ValueError) as error:
        return Requirements((), (f"{path} cannot be read: {error}",))
    options: list[str] = []
    mistakes: list[str] = []
    for number, line in lines:
        name, value = _split(line)
        wrong = _wrong(name, value)
        if wrong is not None:
            mistakes.append(f"{path}:{number}: {wrong}")
        elif name in _SOURCES:
            options.append(f"{name} {value}".strip())
    return Requirements(tuple(dict.fromkeys(options)), tuple(mistakes))


def _lines(text: str) -> Iterator[tuple[int, str]]:
    first, joined = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        first = first if joined else number
        plain = re.sub(r"(^|\s)#.*", "", line).strip()
        joined += plain.removesuffix("\\")
        if not plain.endswith("\\"):
            if joined.strip():
                yield first, joined.strip()
            joined = ""


def _split(line: str) -> tuple[str, str]:
    """Return an option as (name, value), and a requirement as ("", line)."""
    if not line.startswith("-"):
        return "", line
    if line[1] != "-" and len(line) > 2 and line[2] not in " =":
        return line[:2], line[2:].strip()  # an option without a space, such as -rother.txt
    name, *value = re.split(r"[\s=]", line, maxsplit=1)
    return name, "".join(value).strip()


def _wrong(name: str, value: str) -> str | None:
    shown = f"`{f'{name} {value}'.strip()[:80]}`"
    if _PASSWORD.search(value):
        return (
            "a password in an address would be stored in many places: write ${NAME} instead, "
            "and let the backend set that variable (as one of its secrets)"
        )
    if name in _INCLUDES:
        return f"{shown}: only one file is sent to jobs: copy the lines of the other file into it"
    if name in _EDITABLE:
        return f"{shown}: the checkout is sent to jobs anyway: remove the line"
    place = value.partition(" @ ")[2].strip() or value
    place = place.removeprefix("file:") if place.startswith("file:") else place
    named = place.partition(";")[0].strip()
    local = _PATH.match(named) or name in _FOLDERS or (not name and _BELOW.match(named))
    if local and "://" not in place and not place.startswith(("/", "//")):
        return f"{shown}: jobs on other machines do not see paths of this machine"
    return None


def outside(path: str, *folders: str | None) -> str | None:
    """Return the reason why jobs do not get a copy of a file; None if no reason was found. Jobs get
    a copy of the first checkout that contains one of `folders`."""
    root = checkout.checkout_of(*folders)
    if root is None:
        return (
            f"{path} must be in a git checkout, since jobs get a copy of the checkout: run `git "
            "init`"
        )
    below = os.path.relpath(os.path.realpath(path), root)
    if below.startswith(".."):
        return f"{path} is outside the checkout {root}, so it is not in the copy that jobs get"
    if checkout.git(root, "check-ignore", "-q", "--", below) is not None:
        return f"git ignores {path}, so it is not in the copy that jobs get"
    return None
