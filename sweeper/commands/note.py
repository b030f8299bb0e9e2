"""`sweeper note`: adds and shows notes, tags and stars of a sweep or a run."""

import os
import shlex
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from typing import TextIO

from sweeper.commands import arguments as shared
from sweeper.common.sanitize import sanitize_lines
from sweeper.errors import EnvironmentFailure, UsageError
from sweeper.results.annotations import MOST_CHARACTERS, find_subject, note
from sweeper.sweep.marks import Marks
from sweeper.terminal import print_json, say

_HINT = "\n# A note about {}. Lines that begin with # are left out; an empty note is not saved.\n"


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper note`."""
    shared.group(verb, "which sweep or run").add_argument(
        "target", metavar="TARGET", help="a sweep, or a run (sweep/name)"
    )
    note = shared.group(verb, "the note")
    note.add_argument(
        "text",
        nargs="?",
        metavar="TEXT",
        help="the note (without a note or an option: list the notes)",
    )
    note.add_argument("--file", help="take the text from a file; -: from standard input")
    shared.flag(note, "--edit", "write the note in $VISUAL or $EDITOR")
    labels = shared.group(verb, "tags and stars")
    labels.add_argument("--tag", action="append", default=[], help="add a tag; repeatable")
    labels.add_argument("--untag", action="append", default=[], help="remove a tag; repeatable")
    star = labels.add_mutually_exclusive_group()
    star.add_argument("--star", action="store_true", default=None, help="add a star")
    star.add_argument("--unstar", dest="star", action="store_false", help="remove the star")
    shared.root(verb)
    shared.json(verb)


def run(arguments: Namespace) -> int:
    """Add the given note, tags or star, then print all notes, tags and stars."""
    subject = find_subject(arguments.target, arguments.root)
    text = _text(arguments, subject.name)
    marks = note(
        arguments.target,
        text,
        root=arguments.root,
        tag=arguments.tag,
        untag=arguments.untag,
        star=arguments.star,
    )
    if arguments.json:
        about = {"sweep": subject.sweep, "run": subject.run, "name": subject.name}
        return print_json({"schema": 1, **about, **marks.record()})
    if not (marks.notes or marks.tags or marks.starred):
        say(f"{subject.name}: no notes")
        return 0
    tell_marks(subject.name, marks)
    return 0


def tell_marks(name: str, marks: Marks) -> None:
    """Print the marks of a sweep or a run: a line with the star and the tags, then each note
    below its time and author."""
    star = " *" if marks.starred else ""
    say(f"{name}{star}" + (f"  [{', '.join(marks.tags)}]" if marks.tags else ""))
    for entry in marks.notes:
        say(f"{entry.time}  {entry.by}")
        for line in sanitize_lines(entry.text).splitlines():
            say(f"    {line}")


def _text(arguments: Namespace, name: str) -> str | None:
    """Return the text of the note from the argument, a file or an editor; None if there is no
    text."""
    if sum([arguments.text is not None, arguments.file is not None, arguments.edit]) > 1:
        raise UsageError("give only one of a text, --file and --edit")
    if arguments.edit:
        return _edited(name)
    if arguments.file is None:
        return arguments.text
    if arguments.file == "-":
        return _read(sys.stdin, "standard input")
    try:
        with open(arguments.file, encoding="utf-8", errors="replace") as file:
            return _read(file, arguments.file)
    except OSError as error:
        raise UsageError(f"cannot read {arguments.file}: {error.strerror}") from error


def _read(file: TextIO, name: str) -> str:
    """Read the text of a note from a file. Raises `UsageError` if the text is too long."""
    text = file.read(MOST_CHARACTERS + 1)
    if len(text) > MOST_CHARACTERS:
        raise UsageError(f"{name}: a note has at most {MOST_CHARACTERS:,} characters")
    return text


def _edited(name: str) -> str | None:
    """Return the text that the user writes in an editor; None if the text is empty."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not editor:
        raise EnvironmentFailure("--edit: set $VISUAL or $EDITOR to an editor")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "note.md")
        with open(path, "w", encoding="utf-8") as file:
            file.write(_HINT.format(name))
        try:
            code = subprocess.run([*shlex.split(editor), path], check=False).returncode
        except (OSError, ValueError) as error:
            raise EnvironmentFailure(f"--edit: {editor}: {error}") from error
        if code:
            raise EnvironmentFailure(
                f"--edit: {editor} ended with exit code {code}: no note was added"
            )
        with open(path, encoding="utf-8", errors="replace") as file:
            text = _read(file, "--edit")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return "\n".join(lines).strip() or None
