"""The process that checks recipes, started before the grid has been read."""

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from sweeper.recipe.probe import ahead, probe


def _imported_early() -> list[str]:
    """Return the modules that the children of this process import early."""
    commands: list[list[str]] = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            if int(status.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                commands.append(_command(status.parent))
    return [word for words in commands if "check" in words for word in words[4:]]


def _command(process: Path) -> list[str]:
    """Return the command line of a process. It is empty for an instant after its start."""
    for _ in range(500):
        if words := (process / "cmdline").read_text().split("\0")[:-1]:
            return words
        time.sleep(0.01)
    return []


@pytest.mark.parametrize(
    ("text", "early"),
    [
        ("name: a\nrecipe: sft\n", ["sweeper.recipes.sft"]),
        ("recipe:   sft  \nservice: none\n", ["sweeper.recipes.sft"]),
        ("recipe: nosuch\n", []),
        ("recipe: ../../etc\n", []),
        ("base: {recipe: sft}\n", []),
        ("\0\xff", []),
    ],
)
def test_our_own_recipe_is_imported_ahead(tmp_path: Path, text: str, early: list[str]) -> None:
    grid = tmp_path / "grid.yaml"
    grid.write_bytes(text.encode("latin-1"))
    with ahead(["plan", str(grid), "max_steps=3", "--root", str(tmp_path)]):
        assert _imported_early() == early
        started = probe(sys.executable, os.getcwd(), os.environ)
        answer = started.ask(b"nonsense", 60.0)
        assert answer.code != 0 and "JSONDecodeError" in answer.printed
