"""Notes, tags and stars; archived, renamed and deleted sweeps; the plan of a study."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import written
from support.verbs import ask

from sweeper.analysis.page.notebook import merged
from sweeper.analysis.reading.criterion import TEMPLATE, judge, read_plan
from sweeper.cli import main
from sweeper.errors import AnotherLauncher, EnvironmentFailure, UsageError
from sweeper.results import annotations
from sweeper.results.registry import Registry
from sweeper.store.local import LocalStore
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.lock import holding_sweep
from sweeper.sweep.marks import Kind, put_mark, read_marks
from sweeper.testing import Fault, Faults, FaultyStore, Killed


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SWEEPER_ROOT", str(tmp_path / "root"))
    made = written.Written(tmp_path / "root", "s", {"lr": [1, 2]})
    for rate in (1, 2):
        for seed in (0, 1, 2):
            rows = [{"step": 0, "test/nll": 3.0}, {"step": 1, "test/nll": rate + seed / 10}]
            made.run({"lr": rate}, seed, rows)
    made.save()
    return made


@pytest.mark.usefixtures("sweep")
def test_a_note_a_tag_and_a_star_are_found_wherever_a_run_is_shown(capsys, tmp_path):
    run = "s/lr=1,seed=0"
    (tmp_path / "note.md").write_text("from a file\n")
    assert main(["note", run, "odd \x1b[31mcurve", "--tag", "look", "--star"]) == 0
    assert main(["note", "s", "--file", str(tmp_path / "note.md"), "--tag", "paper"]) == 0
    assert "\x1b" not in capsys.readouterr().out
    shown = ask(capsys, "show", run)
    assert (shown["marks"]["tags"], shown["marks"]["starred"]) == (["look"], True)
    assert [note["text"] for note in shown["sweep_marks"]["notes"]] == ["from a file"]
    assert shown["marks"]["notes"][0]["by"].count("@") == 1
    assert main(["show", run]) == 0
    assert "odd curve" in capsys.readouterr().out

    def names(*options: str) -> list[str]:
        return [run_record["name"] for run_record in ask(capsys, "ls", *options)["runs"]]

    assert names("--tag", "look") == names("--starred") == ["lr=1,seed=0"]
    assert len(names("--tag", "paper")) == 6  # a sweep's tag applies to its runs
    assert main(["note", run, "--untag", "look", "--unstar"]) == 0
    capsys.readouterr()
    assert names("--tag", "look") == names("--starred") == []
    assert len(ask(capsys, "note", run)["notes"]) == 1


def test_the_report_tells_notes_and_escapes_them(sweep):
    from sweeper import analysis

    annotations.note("s", "why <script>alert(1)</script>", tag=["paper"])
    annotations.note("s/lr=2,seed=0", "worse")
    report = analysis.analyze(Registry(str(sweep.root)), "s", pictures=False)
    assert [note["run"] for note in report.document["notes"]] == ["", "lr=2,seed=0"]
    page = Path(report.html_path).read_text()
    assert "why &lt;script&gt;" in page and "<script>alert" not in page


@pytest.mark.usefixtures("sweep")
@pytest.mark.parametrize(
    "words",
    [
        ["s", " "],
        ["s", "--tag", "two words"],
        ["s", "--tag", "../up"],
        ["s", "a", "--file", "b"],
        ["s", "--file", "/nowhere"],
        ["s", "--file", "/dev/full"],  # reads as zeros without end
    ],
)
def test_what_cannot_be_noted_is_refused_and_nothing_is_written(words):
    assert main(["note", *words]) == 2
    assert read_marks(SweepFolder(LocalStore(os.environ["SWEEPER_ROOT"]), "s")) == []


@pytest.mark.usefixtures("sweep")
def test_a_text_without_end_is_not_read_to_its_end(capsys, tmp_path):
    descriptor = os.open("/dev/zero", os.O_RDONLY)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "sweeper", "note", "s", "--file", "-"], stdin=descriptor,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    finally:
        os.close(descriptor)
    assert (done.returncode, "at most 100,000 characters" in done.stderr) == (2, True)
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "plan.md").symlink_to("/dev/zero")
    assert main(["analyze", "s", "--notes", str(folder), "--no-pictures"]) == 2
    assert "plan.md: has more than 1,000,000 characters" in capsys.readouterr().err


def test_an_editor_that_fails_leaves_no_note(sweep, tmp_path, monkeypatch):
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\necho "as I see it" >> "$1"\nexit $CODE\n')
    editor.chmod(editor.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("VISUAL", str(editor))
    for code in ("1", "0"):
        monkeypatch.setenv("CODE", code)
        main(["note", "s", "--edit"])
    assert [mark.text for mark in read_marks(SweepFolder(LocalStore(str(sweep.root)), "s"))] == [
        "as I see it"
    ]


def test_a_damaged_mark_hides_no_other(sweep, capsys):
    store = LocalStore(str(sweep.root))
    put_mark(SweepFolder(store, "s"), Kind.TAG, None, "good")
    store.replace("s/notes/0000000000000000001-00000000.tag.json", b"{")
    store.replace(
        "s/notes/0000000000000000002-00000000.tag.json", b'{"kind": "tag", "text": "a b"}'
    )
    store.replace("s/notes/0000000000000000003-00000000.dream.json", b"{}")
    # Unreadable marks are reported and set the exit status.
    assert main(["ls", "--json", "--tag", "good"]) == 6
    listing = json.loads(capsys.readouterr().out)
    assert len(listing["runs"]) == 6
    assert ["damaged (" in problem for problem in listing["problems"]] == [True, False]


@pytest.mark.usefixtures("sweep")
def test_an_archived_sweep_is_found_by_its_name_alone(capsys):
    def seen() -> tuple[int, int, int, int]:
        return (
            len(ask(capsys, "status")["sweeps"]),
            len(ask(capsys, "ls")["runs"]),
            len(ask(capsys, "ls", "s")["runs"]),
            len(Registry(os.environ["SWEEPER_ROOT"]).sql("select * from runs")),
        )

    assert seen() == (1, 6, 6, 6)
    assert main(["sweep", "archive", "s"]) == 0
    capsys.readouterr()
    assert seen() == (0, 0, 6, 0)
    assert ask(capsys, "status", "--archived")["sweeps"][0]["archived"]
    assert main(["sweep", "archive", "s", "--undo"]) == 0
    capsys.readouterr()
    assert seen() == (1, 6, 6, 6)


def test_a_sweep_is_renamed_while_nothing_is_at_work_on_it(sweep):
    store = LocalStore(str(sweep.root))
    other = written.Written(sweep.root, "other")
    other.run({"lr": 1}, 0, state="running")
    other.save()
    annotations.note("s/lr=1,seed=0", tag=["kept"])
    with pytest.raises(UsageError, match="already has a sweep"):
        annotations.rename("s", "other")
    with pytest.raises(UsageError, match="is not a valid name"):
        annotations.rename("s", "../s")
    with pytest.raises(EnvironmentFailure, match="1 run of 'other' may be running"):
        annotations.rename("other", "t")
    with holding_sweep(SweepFolder(store, "s")), pytest.raises(AnotherLauncher):
        annotations.rename("s", "t")
    annotations.rename("s", "t")
    registry = Registry(str(sweep.root))
    assert sorted(registry.sweep_names()) == ["other", "t"]
    assert len(registry.sweep("t").runs) == 6
    assert annotations.note("t/lr=1,seed=0").tags == ("kept",)


def test_a_deletion_asks_first_and_goes_on_where_one_was_killed(sweep, capsys):
    assert main(["sweep", "delete", "s"]) == 2
    assert "to delete all of this, add --yes" in capsys.readouterr().err
    before = {path for path in sweep.root.rglob("*") if path.is_file()}
    killed = Faults(lambda _, call: Fault.KILL_AFTER if call.startswith("store.remove") else None)
    with pytest.raises(Killed):
        annotations.clear(SweepFolder(FaultyStore(LocalStore(str(sweep.root)), killed), "s"))
    removed = [str(path) for path in before if not path.exists()]
    assert removed and not any("/state/" in path or "sweep.json" in path for path in removed)
    states = {run.state.value for run in Registry(str(sweep.root)).sweep("s").runs}
    assert states == {"succeeded"}  # the plan and the states are removed last
    assert main(["sweep", "delete", "s", "--yes"]) == 0
    assert os.listdir(sweep.root) == []
    assert main(["sweep", "delete", "s", "--yes"]) == 5


def plan(criterion: str) -> str:
    head = "## Question\nq\n## Hypothesis\nh\n## Baseline\nb\n## Success criterion\n"
    return f"{head}{criterion}\n"


def test_a_plan_says_what_it_lacks():
    assert read_plan(TEMPLATE).lacks == (
        "section Question is empty",
        "section Hypothesis is empty",
        "section Baseline is empty",
        "the line `criterion: ...` is missing",
    )
    assert read_plan(plan("`criterion: test/nll <= 0.3`")).lacks == ()
    (lack,) = read_plan(plan("criterion: it gets better")).lacks
    assert "write `METRIC <= NUMBER` or `beats baseline`" in lack


@pytest.mark.parametrize(
    ("criterion", "met", "message"),
    [
        ("test/nll < 5", True, "95 % interval"),
        ("test/nll <= 1.1", None, "the interval reaches beyond"),
        ("test/nll < 0.5", False, "lr=1 has 1.1"),
        ("train/loss < 5", None, "judged by test/nll"),
        ("beats baseline", None, "names no baseline"),
    ],
)
def test_a_criterion_is_met_by_the_whole_interval(sweep, criterion, met, message):
    from sweeper import analysis

    document = analysis.analyze(Registry(str(sweep.root)), "s", pictures=False).document
    parsed = read_plan(plan(f"criterion: {criterion}")).criterion
    assert parsed is not None
    judged = judge(parsed, document)
    assert judged.met is met and message in judged.text


def test_facts_replace_facts_and_nothing_else():
    first = merged(None, "s", "old")
    mine = first.replace("## What it means\n", "## What it means\n\nMine.\n")
    again = merged(mine, "s", "new")
    assert again is not None and again == mine.replace("old", "new")
    assert merged("only mine", "s", "new") is None


def test_a_study_from_its_plan_to_its_notes(sweep, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--study", "--out", "grid.yaml"]) == 0
    assert (tmp_path / "grid.yaml").is_file()
    written_plan = tmp_path / "notes" / "plan.md"
    assert written_plan.read_text() == TEMPLATE
    written_plan.write_text(plan("criterion: test/nll < 5"))
    assert main(["init", "--study", "--out", "other.yaml"]) == 0
    assert written_plan.read_text() != TEMPLATE  # a plan with text is not overwritten
    annotations.note("s", "as expected")
    assert main(["analyze", "s", "--no-pictures"]) == 0
    assert "criterion test/nll < 5: met: lr=1 has 1.1" in capsys.readouterr().out
    notes = (tmp_path / "notes" / "s.md").read_text()
    for fact in ("6 succeeded", "commit: 94849ff", "as expected", "criterion", "lr: 1, 2"):
        assert fact in notes
