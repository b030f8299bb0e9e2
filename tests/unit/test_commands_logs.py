"""The output of one or many runs: how it is read and shown."""

import os
import shutil
from argparse import Namespace
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from sweeper.commands import logs
from sweeper.commands.log_printer import BASIC, MANY, assign, text_of
from sweeper.common.last_line import cause, last_line
from sweeper.common.sanitize import sanitize
from sweeper.errors import NotFound
from sweeper.metrics.sources import Files
from sweeper.results.logs import Tail, files_of
from sweeper.results.registry import Registry
from sweeper.results.sweeps import SweepRun
from sweeper.store.local import LocalStore
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.states import Event
from sweeper.terminal import in_colour, print_table


class Printing:
    """A run of a sweep that was written directly into a store, and its output."""

    def __init__(self, scene: Any) -> None:
        self.scene, self.folder = scene, scene.folder
        self.id = scene.ids[0]

    @property
    def run(self) -> SweepRun:
        handle = Registry(self.folder.store.root, cache=False).handles("s")[0]
        assert isinstance(handle, SweepRun)
        return handle

    def log(self, text: str | bytes, attempt: int = 1) -> None:
        data = text.encode() if isinstance(text, str) else text
        self.folder.store.append(self.folder.log(self.id, attempt), data)

    def files(self) -> Files:
        return Files(self.folder.store, files_of(self.run)[1])

    def tail(self) -> Tail:
        return Tail(self.run, self.files())

    def take(self, tail: Tail) -> list[str]:
        return [line.data.decode() for line in tail.read(self.files())]


@pytest.fixture
def printing(make_scene: Callable[..., Any]) -> Printing:
    fixture = Printing(make_scene(1))
    fixture.scene.worker(fixture.id, 1, Event.CLAIMED)
    return fixture


def test_only_complete_new_lines_are_shown(printing):
    tail = printing.tail()
    assert tail.is_empty and printing.take(tail) == []
    printing.log("a\nb\nhal")
    assert printing.take(tail) == ["a", "b"] and printing.take(tail) == []
    printing.log("f\n\nc\n")
    assert printing.take(tail) == ["half", "", "c"]
    printing.log("no end")
    assert printing.take(tail) == [] and [line.data for line in tail.finish()] == [b"no end"]
    assert list(tail.finish()) == []


def test_logs_of_attempts_follow_each_other(printing):
    printing.log("first\n")
    printing.scene.worker(printing.id, 2, Event.CLAIMED)
    tail = printing.tail()  # the second has printed nothing yet
    assert (tail.attempt, printing.take(tail)) == (1, ["first"])
    tail.next()
    printing.log("second\n", 2)
    assert printing.take(tail) == ["second"] and printing.tail().attempt == 2


@pytest.mark.parametrize("text", ["a\nb\nc\n", "a\nb\nc", "x" * 40_000 + "\na\nb\nc\n"])
def test_logs_can_begin_at_the_last_lines(printing, text):
    printing.log(text)
    for count, wanted in ((0, []), (1, ["c"]), (2, ["b", "c"])):
        tail = printing.tail()
        tail.back(printing.files(), count)
        assert [*printing.take(tail), *(line.data.decode() for line in tail.finish())] == wanted
    tail = printing.tail()
    tail.back(printing.files(), 100)
    assert tail.offset == 0


def test_a_line_without_an_end_takes_no_memory(printing):
    printing.log("x" * 100_000)
    assert [len(text) for text in printing.take(printing.tail())] == [100_000]


def test_a_log_that_was_cut_is_read_again(printing):
    printing.log("a long first line\n")
    tail = printing.tail()
    assert printing.take(tail) == ["a long first line"]
    os.truncate(printing.folder.store.local_path(printing.folder.log(printing.id, 1)) or "", 0)
    printing.log("new\n")
    assert printing.take(tail) == ["new"]


def test_a_remote_log_in_parts_is_read(printing):
    log = printing.folder.log(printing.id, 1)
    printing.folder.store.replace(f"{log}.parts/0", b"a\nb")
    tail = printing.tail()
    assert printing.take(tail) == ["a"]
    printing.folder.store.replace(f"{log}.parts/3", b"b\n")
    assert printing.take(tail) == ["bb"]
    printing.folder.store.replace(log, b"a\nbb\nc\n")
    assert printing.take(tail) == ["c"]


def test_the_log_of_a_tinker_cookbook_folder_is_read(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 0}\n')
    (tmp_path / "run" / "logs.log").write_text("said\n")
    (run,) = Registry(str(tmp_path), cache=False).handles()
    files = Files(LocalStore(str(tmp_path)), files_of(run)[1])
    assert [line.data for line in Tail(run, files).read(files)] == [b"said"]


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("plain \u00e9 \u672c\ttab", "plain \u00e9 \u672c\ttab"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07a\x1b]8;;http://x\x1b\\link", "alink"),
        ("\x1b[2J\x1b[H\x1b(B\x1bcgone", "gone"),
        ("\x1bPq payload\x1b\\after", "after"),
        ("bell\x07 back\x08 nul\x00", r"bell\x07 back\x08 nul\x00"),
        ("c1 \x9b31m", r"c1 \x9b31m"),
        ("turned \u202etxt", r"turned \u202etxt"),
        ("cut \x1b", r"cut \x1b"),
        ("cut \x1b]0;never ends", r"cut 0;never ends"),
    ],
)
def test_control_sequences_are_removed(printed, shown):
    assert sanitize(printed) == shown


def test_carriage_returns_show_the_final_line():
    assert text_of(b" 10%\r 50%\r100%\r") == "100%" and text_of(b"windows\r") == "windows"
    assert text_of(b"\xff\xfe") == "\ufffd\ufffd"


def test_a_run_s_colour_does_not_depend_on_the_others_shown():
    ids = [f"{n * 7919:012x}" for n in range(30)]
    all_of_them = assign(ids, MANY)
    assert len(set(all_of_them.values())) == 30
    assert assign(ids, MANY) == all_of_them
    assert {assign([*ids, "f" * 12], MANY)[run] == all_of_them[run] for run in ids} == {True}
    assert set(assign(ids, BASIC).values()) == set(BASIC)


def test_colours_only_where_they_are_welcome(monkeypatch):
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value, welcome in (
        ("TERM", "xterm", True), ("NO_COLOR", "1", False), ("NO_COLOR", "", True),
        ("TERM", "dumb", False),
    ):  # fmt: skip
        monkeypatch.setenv(name, value)
        with redirect_stdout(Terminal()):
            assert in_colour() == welcome


def arguments(printing: Printing, *runs: str, **more: Any) -> Namespace:
    given: dict[str, Any] = {"runs": runs, "state": None, "where": None, "grep": None}
    given |= {
        "lines": None, "json": False, "launcher": False, "stacks": False, "follow": False,
        "root": printing.folder.store.root,
    }  # fmt: skip
    return Namespace(**given | more)


@pytest.mark.parametrize("selectors", [("s",), ("s", "other")])
def test_a_sweep_that_is_removed_is_not_followed(printing, monkeypatch, capsys, selectors):
    """Nor is another sweep whose name has the same prefix."""
    root = Path(printing.folder.store.root)
    printing.log("mine\n")
    shutil.copytree(root / "s", root / "s2")
    if "other" in selectors:
        shutil.copytree(root / "s", root / "other")
    now, removed = [0.0], list[str]()

    def sleep(_: float) -> None:
        now[0] += 1.0
        name = ("s", "other")[len(removed)] if now[0] in (2.0, 6.0) else ""
        if name in selectors:
            removed.append(name)
            shutil.rmtree(root / name)
        if now[0] == 4.0 and "other" in selectors:
            other = SweepFolder(printing.folder.store, "other")
            other.store.append(other.log(printing.id, 1), b"more\n")
        assert now[0] < 20.0

    monkeypatch.setattr("sweeper.commands.logs.time.sleep", sleep)
    monkeypatch.setattr("sweeper.commands.logs.time.monotonic", lambda: now[0])
    with pytest.raises(NotFound, match="removed, so there is no log left to follow"):
        logs.run(arguments(printing, *selectors, follow=True))
    printed = capsys.readouterr().out
    assert printed.count("mine") == len(selectors) and ("more" in printed) == (len(selectors) == 2)


def test_zero_lines_prints_nothing_without_a_warning(printing, capsys):
    printing.log("a\nb\n")
    assert logs.run(arguments(printing, "s", lines=0)) == 0
    assert capsys.readouterr() == ("", "")
    assert logs.run(arguments(printing, "s", grep="nowhere")) == 0
    assert "no line matches" in capsys.readouterr().err


def test_the_cause_is_the_end_of_the_last_traceback():
    trace = b"Traceback (most recent call last):\n  File 'x', line 1, in <module>\n    f()\n"
    message = (
        trace + b"torch.OutOfMemoryError: CUDA out of memory\nwandb: syncing\nsaving what is left\n"
    )
    assert cause(message) == "torch.OutOfMemoryError: CUDA out of memory"
    both = trace + b"KeyError: 'a'\n\nDuring handling of this:\n\n" + trace + b"SystemError\n"
    assert cause(both) == "SystemError"
    assert cause(b"step 1\nError: no such file\n") == "Error: no such file"
    assert cause(trace) == "f()"  # cut off


def test_closing_lines_of_wandb_are_not_the_last_line():
    closing = b"wandb: Synced 5 files\nwandb: Find logs at: /x\n"
    assert last_line(b"ValueError: bad\n" + closing) == "ValueError: bad"
    assert last_line(closing) == "wandb: Find logs at: /x"
    assert last_line(b"a\nlast one \x1b[0m\n\n  \n") == "last one" and last_line(b"") == ""


def test_a_table_does_not_steer_the_terminal(capsys):
    print_table(["a\x1b[31m", "b"], [["\x1b[2Jcell", 0.5], ["x\x07", None]])
    printed = capsys.readouterr().out
    assert "\x1b" not in printed and "\x07" not in printed
    assert "cell" in printed and "0.5" in printed
