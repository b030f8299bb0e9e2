"""One answer to each question, by whatever way it is asked: the command line, Python, the view of
`sweeper watch`, the report."""

import json
import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from sweeper.analysis.cells import rank
from sweeper.analysis.frames import load
from sweeper.cli import main
from sweeper.registry import Registry
from sweeper.store.files import LocalStore
from sweeper.tui.list_model import Group, arranged
from sweeper.tui.model import SweepView
from sweeper.tui.poller import Poller

NAN = math.nan


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SWEEPER_ROOT", str(tmp_path / "root"))
    return tmp_path / "root"


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    main([*arguments, "--json"])
    return json.loads(capsys.readouterr().out)


def view_of(root: Path, sweep: str) -> SweepView:
    """As the view has it once it has read all that there was."""
    return _settled(Poller(LocalStore(str(root)), sweep))


def _settled(poller: Poller) -> SweepView:
    view = poller.look()
    while view.loading:
        view = poller.look()
    return view


def exported(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """W&B as far as `export` uses it; gives the summaries of runs, which fill as they are made."""
    made: dict[str, dict[str, Any]] = {}

    def init(name: str, **_: Any) -> Any:
        summary = made.setdefault(name, {})
        return SimpleNamespace(
            log=lambda values, step: None, summary=summary, finish=lambda exit_code: None
        )

    fake = SimpleNamespace(init=init, Settings=lambda **_: None)
    monkeypatch.setitem(sys.modules, "wandb", cast(ModuleType, fake))
    return made


def same(one: float | None, other: float | None) -> bool:
    return repr(one) == repr(other) or one == other


# What a run is judged by

ROWS: dict[str, tuple[list[dict[str, Any]], float | None, float | None]] = {
    "a row without a step beside one with": ([{"step": 0, "m": 5}, {"m": 1}], 5, 5),
    "only rows without a step": ([{"m": 5}, {"m": 1}, {"m": 3}], 3, 1),
    "steps that go back": ([{"step": 1, "m": 4}, {"step": 0, "m": 2}], 4, 2),
    "a step that is written again": (
        [{"step": 0, "m": 5}, {"step": 1, "m": 1}, {"step": 1, "m": 9}],
        9,
        5,
    ),
    "an earlier step that is written again": (
        [{"step": 0, "m": 1}, {"step": 1, "m": 5}, {"step": 0, "m": 7}],
        5,
        5,
    ),
    "a number that is taken back": (
        [{"step": 0, "m": 5}, {"step": 1, "m": 1}, {"step": 1, "m": None}],
        5,
        5,
    ),
    "a last value that is none": ([{"step": 0, "m": 5}, {"step": 1, "m": NAN}], NAN, 5),
    "nothing finite": ([{"step": 0, "m": NAN}, {"step": 1, "m": math.inf}], math.inf, math.inf),
    "a step that is no number": (
        [{"step": 0, "m": 5}, {"step": "1", "m": 1}, {"step": NAN, "m": 2}],
        5,
        5,
    ),
    "no number": ([{"step": 0, "m": "5"}, {"step": 1, "m": True}], None, None),
    "a number beyond any float": ([{"step": 0, "m": 10**400}, {"step": 1, "m": 3}], 3, 3),
}


@pytest.mark.parametrize("at", ["last", "best"])
@pytest.mark.parametrize("long", [False, True], ids=["short", "long"])
def test_what_a_run_is_judged_by(
    at: str,
    long: bool,
    root: Path,
    written: ModuleType,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    """`long`: files from which on other readers are used."""
    more = {"x": "x" * 60_000} if long else {}
    metric = {"name": "m", "goal": "minimize", "at": at}
    sweep = written.Written(root, "s", {"case": list(ROWS)}, metric)
    for case, (rows, *_) in ROWS.items():
        sweep.run({"case": case}, None, [row | more for row in rows])
    sweep.save()
    expected = {f"case={case}": found[at == "best"] for case, (_, *found) in ROWS.items()}
    logged = exported(monkeypatch)
    assert main(["export", "s", "--format", "wandb"]) == 0
    everybody = {
        "W&B": {run: summary.get("m") for run, summary in logged.items()},
        "ls": {run["name"]: run["value"] for run in ask(capsys, "ls", "s")["runs"]},
        "watch": {run.name: run.value for run in view_of(root, "s").runs},
        "report": {run.name: run.value for run in load(Registry(str(root)), "s", None, None).runs},
        "Registry": {
            run["name"]: run["value"] for run in Registry(str(root), cache=False).records("s")
        },
    }
    names = {"nan": NAN, "inf": math.inf, "NaN": NAN, "Infinity": math.inf}
    for who, found in everybody.items():
        for name, value in expected.items():
            got = names[found[name]] if isinstance(found[name], str) else found[name]
            if who == "ls" and value is not None and not math.isfinite(value):
                continue  # JSON has no such number
            assert same(got, value), f"{who}: {name}: {got}, not {value}"


@pytest.mark.parametrize("at", ["last", "best"])
@pytest.mark.parametrize("case", ROWS)
def test_a_run_that_is_watched_is_judged_as_one_that_is_read(
    case: str, at: str, root: Path, written: ModuleType
):
    """Each row comes while somebody looks."""
    rows, *judged = ROWS[case]
    metric = {"name": "m", "goal": "minimize", "at": at}
    sweep = written.Written(root, "s", metric=metric)
    run = sweep.run({"a": 1}, None, [{"step": 0, "other": 1}], "running")
    sweep.save()
    poller = Poller(LocalStore(str(root)), "s")
    _settled(poller)
    for row in rows:
        with (root / "s" / "runs" / f"{run}.1" / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        poller.look()
    found, expected = _settled(poller).runs[0].value, judged[at == "best"]
    assert same(found, expected), found


def test_the_mean_of_a_cell(root: Path, written: ModuleType):
    """Values that spread as they grow are compared by their logarithms, and by geometric means.
    What failed, diverged or was dropped from the grid takes no part."""
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
    assert [group.title for group in placed] == ["lr=1", "lr=2", "lr=3"]
    # Of the runs too those have a place that count.
    assert {run.name: run.rank for run in view_of(root, "s").runs if "lr=1" in run.name} == {
        **{"lr=1,seed=0": 1, "lr=1,seed=1": 2, "lr=1,seed=2": 3},
        **{"lr=1,seed=3": None, "lr=1,seed=4": None},
    }
