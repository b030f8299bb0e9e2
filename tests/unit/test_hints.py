"""Commands in messages can be pasted into a shell, whatever their names contain."""

import shlex
from pathlib import Path

import pytest

from sweeper.sweep.hint import hint


@pytest.mark.parametrize("root", ["my $(touch x) runs", "it's", "a;b", "s3://bucket/a b"])
def test_a_shell_reads_back_the_words_of_a_hint(root):
    words = ["sweeper", "logs", "g/lr=1e-3,x=[a b]", "--state", "failed", "--root", root]
    assert shlex.split(hint("logs", *words[2:5], root=root)) == words


def test_a_root_that_is_found_anyway_is_left_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SWEEPER_ROOT", raising=False)
    for root in (None, "sweeps", "./sweeps/", str(tmp_path / "sweeps")):
        assert hint("ls", root=root) == "sweeper ls"
    assert hint("ls", root="/other") == "sweeper ls --root /other"
    monkeypatch.setenv("SWEEPER_ROOT", "s3://bucket/x")
    assert hint("ls", root="s3://bucket/x/") == "sweeper ls"
    assert hint("ls", root="sweeps") == "sweeper ls --root sweeps"


def test_messages_quote_the_commands_that_they_hold():
    """`hint` quotes them. A command with a name that cannot contain a blank needs no quotes."""
    package = Path(__file__).parents[2] / "sweeper"
    allowed = {
        "sweep/request.py",  # the name of a sweep, in a record that is read on other machines
        "alarms/notifier.py",  # the same
        "errors.py",  # quotes by itself
        "commands/__init__.py",  # the name of a verb
        "commands/status.py",
    }
    quoted = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        for line in path.read_text().splitlines()
        if "`sweeper " in line and "{" in line.partition("`sweeper ")[2].partition("`")[0]
    }
    assert quoted - allowed == set()
