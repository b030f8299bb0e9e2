"""Verbs of the command line, called in this process."""

import json
from typing import Any

import pytest

from sweeper.cli import main


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """Return the document that a verb prints with `--json`."""
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)
