"""Reads and checks a Dockerfile without Docker."""

import json
import os
import re
import shlex
from collections.abc import Iterator
from typing import cast

from sweeper.fields.nodes import Place, Problems
from sweeper.sandbox.tasks.documents import Dockerfile, Instruction

DONE = ("WORKDIR", "ENV", "ARG", "COPY", "ADD", "RUN")
"""The instructions that affect the image's contents."""
_LATER = (
    *("FROM", "CMD", "ENTRYPOINT", "EXPOSE", "LABEL", "VOLUME", "HEALTHCHECK", "MAINTAINER"),
    *("SHELL", "STOPSIGNAL", "ONBUILD", "USER"),
)
_LINE = re.compile(r"\s*([A-Za-z]+)(?:\s+(.*))?\Z", re.DOTALL)


def read_dockerfile(path: str, text: str, problems: Problems) -> Dockerfile:
    """Read the instructions of a Dockerfile. Record unknown instructions, missing arguments, a
    missing FROM, and missing files that a COPY or ADD instruction refers to."""
    instructions: list[Instruction] = []
    image = ""
    for number, line in _joined(text):
        match = _LINE.match(line)
        name = match[1].upper() if match else ""
        rest = (match[2] or "").strip() if match else ""
        place = Place(path, number, 1)
        if name not in (*DONE, *_LATER):
            problems.add(place, f"{line.split()[0][:40]!r} is not a Dockerfile instruction")
            continue
        if not rest:
            problems.add(place, f"{name} needs an argument")
            continue
        if name == "FROM":
            image = rest.split()[0]
            instructions.clear()  # Instructions of an earlier image do not apply.
            continue
        instruction = Instruction(name, rest, number)
        if name in ("COPY", "ADD"):
            _check_copy(instruction, path, problems)
        instructions.append(instruction)
    if not image:
        problems.add(Place(path, 1, 1), "a Dockerfile begins with FROM")
    return Dockerfile(path, image, tuple(instructions))


def _joined(text: str) -> Iterator[tuple[int, str]]:
    """Yield logical lines with their numbers. Continued lines are joined, comments left out."""
    first, whole = 0, ""
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("#") or (not line.strip() and not whole):
            continue
        first = first or number
        if line.rstrip().endswith("\\"):
            whole += line.rstrip()[:-1] + "\n"
            continue
        yield first, whole + line
        first, whole = 0, ""
    if whole:
        yield first, whole


def sources_of(instruction: Instruction) -> tuple[list[str], str, bool]:
    """Return the sources of a COPY or ADD, its target, and whether all sources are in the task's
    folder."""
    words = _words(instruction.text)
    flags = [word for word in words if word.startswith("--")]
    paths = [word for word in words if not word.startswith("--")]
    elsewhere = any(flag.startswith("--from=") for flag in flags)
    elsewhere |= any("://" in path or path.startswith("git@") for path in paths[:-1])
    return paths[:-1], paths[-1] if paths else "", not elsewhere


def _words(text: str) -> list[str]:
    if text.startswith("["):
        try:
            words: object = json.loads(text)
        except ValueError:
            words = None
        if isinstance(words, list):
            return [str(word) for word in cast("list[object]", words)]
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _check_copy(instruction: Instruction, path: str, problems: Problems) -> None:
    sources, _, local = sources_of(instruction)
    place = Place(path, instruction.line, 1)
    if not sources:
        problems.add(place, f"{instruction.name} needs a source and a target")
    for source in sources if local else ():
        folder = os.path.dirname(path)
        inside = os.path.normpath(os.path.join(folder, source.lstrip("/")))
        if not inside.startswith(os.path.normpath(folder)):
            problems.add(place, f"{instruction.name}: {source} is outside of environment/")
        elif not any(c in source for c in "*?[$") and not os.path.lexists(inside):
            problems.add(place, f"{instruction.name}: environment/ has no {source}")


def command_of(instruction: Instruction) -> str:
    """Return the command of a RUN as a shell command."""
    text = re.sub(r"\A(?:--\S+\s+)+", "", instruction.text)
    return shlex.join(_words(text)) if text.startswith("[") else text


def pairs_of(instruction: Instruction) -> dict[str, str]:
    """Return the variables of an ENV, or of an ARG with a default."""
    words = _words(instruction.text)
    if instruction.name == "ENV" and words and "=" not in words[0]:
        return {words[0]: instruction.text[len(words[0]) :].strip()}
    return {k: v for k, equals, v in (word.partition("=") for word in words) if equals}
