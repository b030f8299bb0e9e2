"""The command line, Python, `sweeper watch` and the report give the same answers."""

import json
import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
from support import written

from sweeper.analysis.comparison.cells import rank
from sweeper.analysis.reading.frames import load
from sweeper.cli import main
from sweeper.errors import StoreError
from sweeper.results.registry import Registry
from sweeper.store.local import LocalStore
from sweeper.sweep import labels
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.launcher import read_observations
from sweeper.sweep.observation import Kind, Observation
from sweeper.tui.list_model import Group, arranged, matching
from sweeper.tui.model import SweepView
from sweeper.tui.poller import Poller

NAN = math.nan


@pytest.fixture
def root(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWEEPER_ROOT", str(tmp_path / "root"))
    return tmp_path / "root"


def view_of(root: Path, sweep: str) -> SweepView:
    """Return the view once it has read everything."""
    return _settled(Poller(SweepFolder(LocalStore(str(root)), sweep)))


def _settled(poller: Poller) -> SweepView:
    view = poller.check()
    while view.loading:
        view = poller.check()
    return view


def exported(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """Replace W&B by a fake; return the summaries of its runs, filled by an export."""
    made: dict[str, dict[str, Any]] = {}

    def init(name: str, **_: Any) -> Any:
        summary = made.setdefault(name, {})
        return SimpleNamespace(
            log=lambda values, step: None, summary=summary, finish=lambda exit_code: None
        )

    fake = SimpleNamespace(init=init, Settings=lambda **_: None)
    monkeypatch.setitem(sys.modules, "wandb", cast(ModuleType, fake))
    return made


def same(value: float | None, other: float | None) -> bool:
    return repr(value) == repr(other) or value == other


# The value of a run

AT = ("last", "best", "mean_of_last=2")
ROWS: dict[str, tuple[list[dict[str, Any]], *tuple[float | None, ...]]] = {
    "a row without a step beside one with": ([{"step": 0, "m": 5}, {"m": 1}], 5, 5, 5),
    "only rows without a step": ([{"m": 5}, {"m": 1}, {"m": 3}], 3, 1, 2),
    "steps that go back": ([{"step": 1, "m": 4}, {"step": 0, "m": 2}], 4, 2, 3),
    "a step that is written again": (
        [{"step": 0, "m": 5}, {"step": 1, "m": 1}, {"step": 1, "m": 9}],
        9,
        5,
        7,
    ),
    "an earlier step that is written again": (
        [{"step": 0, "m": 1}, {"step": 1, "m": 5}, {"step": 0, "m": 7}],
        5,
        5,
        6,
    ),
    "a number that is taken back": (
        [{"step": 0, "m": 5}, {"step": 1, "m": 1}, {"step": 1, "m": None}],
        5,
        5,
        5,
    ),
    "a last value that is none": ([{"step": 0, "m": 5}, {"step": 1, "m": NAN}], NAN, 5, NAN),
    "nothing finite": (
        [{"step": 0, "m": NAN}, {"step": 1, "m": math.inf}],
        math.inf,
        math.inf,
        math.inf,
    ),
    "a step that is no number": (
        [{"step": 0, "m": 5}, {"step": "1", "m": 1}, {"step": NAN, "m": 2}],
        5,
        5,
        5,
    ),
    "no number": ([{"step": 0, "m": "5"}, {"step": 1, "m": True}], None, None, None),
    "a number beyond any float": ([{"step": 0, "m": 10**400}, {"step": 1, "m": 3}], 3, 3, 3),
    "many values": ([{"step": n, "m": n % 5} for n in range(40)], 4, 0, 3.5),
}


@pytest.mark.parametrize("at", AT)
@pytest.mark.parametrize("long", [False, True], ids=["short", "long"])
def test_all_readers_give_the_same_value_of_a_run(
    at: str,
    long: bool,
    root: Path,
    ask: Any,
    monkeypatch: pytest.MonkeyPatch,
):
    """`long`: files so large that different code reads them."""
    more = {"x": "x" * 60_000} if long else {}
    metric = {"name": "m", "goal": "minimize", "at": at}
    sweep = written.Written(root, "s", {"case": list(ROWS)}, metric)
    for case, (rows, *_) in ROWS.items():
        sweep.run({"case": case}, None, [row | more for row in rows])
    sweep.save()
    expected = {f"case={case}": values[AT.index(at)] for case, (_, *values) in ROWS.items()}
    logged = exported(monkeypatch)
    assert main(["export", "s", "--format", "wandb"]) == 0
    everybody = {
        "W&B": {run: summary.get("m") for run, summary in logged.items()},
        "ls": {run["name"]: run["value"] for run in ask("ls", "s")["runs"]},
        "watch": {run.name: run.value for run in view_of(root, "s").runs},
        "report": {run.name: run.value for run in load(Registry(str(root)), "s", None, None).runs},
        "Registry": {
            run["name"]: run["value"] for run in Registry(str(root), cache=False).records("s")
        },
    }
    shown = ask("show", "s/case=a row without a step beside one with")
    assert shown["last_metrics"]["m"] == {"step": 0, "value": 5}
    names = {"nan": NAN, "inf": math.inf, "NaN": NAN, "Infinity": math.inf}
    for who, values in everybody.items():
        for name, value in expected.items():
            got = names[values[name]] if isinstance(values[name], str) else values[name]
            if who == "ls" and value is not None and not math.isfinite(value):
                continue  # JSON has no such number
            assert same(got, value), f"{who}: {name}: {got}, not {value}"


@pytest.mark.parametrize("at", AT)
@pytest.mark.parametrize("case", ROWS)
def test_a_watched_run_gets_the_same_value(case: str, at: str, root: Path):
    """The rows arrive one by one between polls."""
    rows, *judged = ROWS[case]
    metric = {"name": "m", "goal": "minimize", "at": at}
    sweep = written.Written(root, "s", metric=metric)
    run = sweep.run({"a": 1}, None, [{"step": 0, "other": 1}], "running")
    sweep.save()
    poller = Poller(SweepFolder(LocalStore(str(root)), "s"))
    _settled(poller)
    for row in rows:
        with (root / "s" / "runs" / f"{run}.1" / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        poller.check()
    shown, expected = _settled(poller).runs[0].value, judged[AT.index(at)]
    assert same(shown, expected), shown


def test_all_readers_give_the_same_progress(root: Path, capsys: pytest.CaptureFixture[str]):
    """Progress is the last row with a step of the newest attempt, even after a restart at 0."""
    sweep = written.Written(root, "s", {"case": [1, 2, 3]})
    sweep.run({"case": 1}, None, [{"step": step} for step in range(50)], "preempted")
    sweep.run({"case": 1}, None, [{"step": step} for step in range(4)], "running", attempt=2)
    sweep.run({"case": 2}, None, [{"step": 7}, *[{"m": "x" * 99}] * 200], "running")
    sweep.run({"case": 3}, None, [{"m": 1}], "running")
    sweep.save()
    assert {run.name: run.step for run in view_of(root, "s").runs} == {
        "case=1": 3,
        "case=2": 7,
        "case=3": None,
    }
    main(["status", "s"])
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "case=" in line]
    assert [row[3] for row in rows] == ["3", "7", "-"]


def test_all_readers_give_the_same_mean_of_a_cell(root: Path):
    """Values whose spread grows with them get geometric means, without failed and retired runs."""
    sweep = written.Written(root, "s", {"lr": [1, 2, 3]}, {"name": "m", "goal": "minimize"})
    for lr, ends in ((1, (0.05, 0.08, 0.13)), (2, (0.6, 1.0, 1.7)), (3, (5.0, 8.0, 14.0))):
        for seed, end in enumerate(ends):
            sweep.run({"lr": lr}, seed, [{"step": 1, "m": end}])
    sweep.run({"lr": 1}, 3, [{"step": 1, "m": 0.001}], "failed")
    sweep.run({"lr": 1}, 4, [{"step": 1, "m": 0.001}, {"step": 2, "m": NAN}])
    sweep.run({"lr": 1}, 5, [{"step": 1, "m": 0.001}], retired=True)
    sweep.save()
    ranking = rank(load(Registry(str(root)), "s", None, None))
    assert ranking.scale == "log"
    lines, _ = arranged(view_of(root, "s"), by="cell")
    groups = {line.title: line for line in lines if isinstance(line, Group)}
    for cell in ranking.cells:
        assert groups[cell.name].mean == cell.summary.mean, cell.name
        assert groups[cell.name].measured == cell.summary.n == 3
    placed = sorted(groups.values(), key=lambda group: group.rank or 0)
    assert [group.title for group in placed] == [cell.name for cell in ranking.cells]
    assert placed[-1].title == "lr=1"  # one of its runs has diverged: it is never the best
    # Only runs that count have a rank.
    assert {run.name: run.rank for run in view_of(root, "s").runs if "lr=1" in run.name} == {
        **{"lr=1,seed=0": 1, "lr=1,seed=1": 2, "lr=1,seed=2": 3},
        **{"lr=1,seed=3": None, "lr=1,seed=4": None},
    }


# Selectors and conditions


@pytest.fixture
def rates(root: Path) -> Path:
    sweep = written.Written(root, "g", {"lr": [3e-2, 3e-1], "rank": [8, 16]}, recipe={
        "reference": "sft", "kind": "module", "module": "recipes.sft"
    })  # fmt: skip
    for lr in (0.03, 0.3):
        for size in (8, 16):
            sweep.run({"lr": lr, "rank": size}, 0, [{"step": 0, "test/nll": 1.0}])
    sweep.run({"lr": 9, "rank": 9}, 0, [{"step": 0, "test/nll": 0.1}], retired=True)
    sweep.save()
    return root


@pytest.mark.parametrize(
    ("selector", "count"),
    [("lr=", 4), ("g/lr=0.03", 2), ("lr=3e-2*", 2), ("rank=16,lr=.3", 1), ("g", 4), ("g/*", 4)],
)
def test_a_selector_means_the_same_runs_everywhere(
    selector: str, count: int, rates: Path, ask: Any, capsys: pytest.CaptureFixture[str]
):
    listed = [run["id"] for run in ask("ls", selector)["runs"]]
    assert len(listed) == count
    assert [run.id for run in Registry(str(rates)).choose([selector])] == listed
    cancelled = [run["id"] for run in ask("cancel", "g", selector)["runs"]]
    assert sorted(cancelled) == sorted(listed)
    assert main(["alarms", "g", selector]) == 0
    query = "select run from runs order by run"
    queried = ask("sql", query, "--run", selector)["rows"]
    assert sorted(run for [run] in queried) == sorted(listed)
    capsys.readouterr()
    code = main(["show", selector])
    error = capsys.readouterr().err
    assert code == (0 if count == 1 else 2), error
    assert count == 1 or f"matches {count} runs" in error


@pytest.mark.usefixtures("rates")
def test_compare_finds_cells_in_any_spelling(capsys: pytest.CaptureFixture[str]):
    for first, second in (
        ("lr=0.03,rank=8", "lr=0.3,rank=8"),
        ("rank=8,lr=3e-2", "lr=3E-1,rank=8.0"),
    ):
        assert main(["compare", f"g/{first}", f"g/{second}"]) == 0
        printed = capsys.readouterr().out
        assert "lr=0.03" in printed and "lr=0.3," in printed
    assert main(["compare", "g/lr=3e-2", "g/lr=0.3,rank=8"]) == 2
    assert "matches 2 cells" in capsys.readouterr().err


@pytest.mark.usefixtures("rates")
@pytest.mark.parametrize(
    "verb",
    [["ls"], ["logs", "g"], ["status", "g"], ["alarms", "g"], ["cancel", "g"], ["retry", "g"]],
)
def test_all_verbs_accept_the_same_states(verb: list[str], capsys: pytest.CaptureFixture[str]):
    assert main([*verb, "--state", "unknown"]) == 0
    capsys.readouterr()
    with pytest.raises(SystemExit) as caught:
        raise SystemExit(main([*verb, "--state", "done"]))
    assert caught.value.code == 2
    assert "unknown" in capsys.readouterr().err  # the message lists the states


CONDITIONS = {
    "rank == 16": 2,
    "rank=16": 2,
    "rank = 16 and lr < 0.1": 1,
    "rank = 16 or lr < 0.1": 3,
    "not rank = 16": 2,
    "not (rank = 16 or lr < 0.1)": 1,
    "rank in (8, 16) and lr != 0.03": 2,
    "lr not in (0.03, 5)": 2,
    "reason is missing": 4,
    "rank is not missing and lr >= 3e-1": 2,
    "state in (failed)": 0,
    "lr in (3e-2)": 2,
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_condition_means_the_same_runs_everywhere(condition: str, rates: Path, ask: Any):
    count = CONDITIONS[condition]
    listed = ask("ls", "--where", condition)["runs"]
    assert len(listed) == count
    assert len(ask("status", "g", "--where", condition)["runs"]) == count
    assert len(Registry(str(rates)).records(where=condition)) == count
    matches, problem = matching(view_of(rates, "g").runs, condition)
    assert (len(matches), problem) == (count, "")


def test_the_filter_accepts_words_beside_conditions(rates: Path):
    runs = view_of(rates, "g").runs
    for words, count in (("rank=16", 2), ("succeeded", 4), ("lr=3e-2 succ", 2), ("nothing", 0)):
        assert (len(matching(runs, words)[0]), matching(runs, words)[1]) == (count, "")
    matches, problem = matching(runs, "rank = 16 and")
    assert len(matches) == 4 and "nothing follows" in problem


def test_dropped_runs_are_counted_nowhere(rates: Path, ask: Any):
    """Retired runs can still be found on request."""
    [every] = ask("status")["sweeps"]
    listed = ask("status", "g")["runs"]
    assert every["runs"] == len(listed) == len(ask("ls")["runs"]) == 4
    assert every["states"] == {"succeeded": 4}
    registry = Registry(str(rates))
    assert len(registry.records("g")) == len(registry.runs("g")) == len(registry.handles()) == 4
    assert len(registry.sql("select * from runs")) == len(view_of(rates, "g").runs) == 4
    assert len(load(registry, "g", None, None).runs) == 4
    dropped = ["lr=9,rank=9,seed=0"]
    for words in (("ls", "--where", "retired = true"), ("ls", "g/lr=9,rank=9,seed=0")):
        assert [run["name"] for run in ask(*words)["runs"]] == dropped
    assert [run["name"] for run in registry.records(where="retired = true")] == dropped
    assert registry.run("lr=9,rank=9,seed=0").retired
    assert ask("show", "lr=9")["run"]["name"] == dropped[0]


# What a launcher observes

OBSERVED = {
    "queued": Observation(Kind.QUEUED),
    "queued: Priority": Observation(Kind.QUEUED, "Priority"),
    "stale": Observation(Kind.STALE),
    "stopping": Observation(Kind.STOPPING),
    "stalled": Observation(Kind.STALLED),
    "paused: rate limit since 12:01:03Z": Observation(
        Kind.PAUSED, "rate_limit", "2026-11-21T12:01:03Z"
    ),
    "paused: quota": Observation(Kind.PAUSED, "quota"),
    "held back": Observation(Kind.HELD),
    "next attempt at 12:01:03Z": Observation(Kind.LATER, None, "2026-11-21T12:01:03Z"),
    "waits for the engine": Observation(Kind.ENGINE),
    "waits: the first runs failed with the same error and are retried": Observation(Kind.DOUBTED),
}


def test_observations_in_words_are_still_read():
    """A launcher of an earlier version may be running."""
    newer = {words: seen.document() for words, seen in OBSERVED.items()}
    older = {words: words for words in OBSERVED}
    for document in (newer, older):
        observed = read_observations({"observed": document}, "file").observed
        assert {words: seen.kind for words, seen in observed.items()} == {
            words: seen.kind for words, seen in OBSERVED.items()
        }
        for words, seen in observed.items():
            assert labels.observed(seen) == words
    later = read_observations({"observed": {"x": {"kind": "new", "reason": "y"}}}, "file")
    assert labels.observed(later.observed["x"]) == "new: y"
    for document in ({"x": 1}, {"x": {}}, {"x": {"kind": "paused", "time": 3}}):
        with pytest.raises(StoreError, match=r"file: observed\.x"):
            read_observations({"observed": document}, "file")
