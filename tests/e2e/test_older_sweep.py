"""A sweep of an earlier version, in sweep_before_typed_plans.json, can be read and continued."""

import json
from pathlib import Path

import pytest
from support.typed import Typed

import sweeper
from sweeper.results.registry import Registry
from sweeper.store.opening import open_store
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.launch_settings import Launch
from sweeper.sweep.plan import read

pytestmark = pytest.mark.e2e

FILES: dict[str, str] = json.loads(
    Path(__file__).with_name("sweep_before_typed_plans.json").read_text()
)
VALUES = {
    "lr=0.1,seed=0": 0.35,
    "lr=0.1,seed=1": 0.36,
    "lr=3e-1,seed=0": 0.55,
    "lr=3e-1,seed=1": 0.56,
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def run(root: Path, *arguments: str, code: int = 0) -> str:
    printed = Typed(root, SWEEPER_ROOT=str(root)).run(*arguments, code=code)
    assert "Traceback" not in printed
    return printed


def test_nothing_of_its_plan_is_lost() -> None:
    document = json.loads(FILES["before/sweep.json"])
    plan = read(document, "sweep.json")
    del document["seal"]
    document["launch"] = Launch().document() | document["launch"]  # settings of later versions
    assert {**plan.document(), "launches": list(plan.launches)} == {"launches": [], **document}


@pytest.mark.parametrize(
    "verb",
    [
        ("status",),
        ("status", "before"),
        ("status", "before", "--json"),
        ("ls",),
        ("ls", "before", "--json"),
        ("ls", "before", "lr=0.3", "--where", "value > 0.5 and not seed == 1"),
        ("show", "lr=3e-1,seed=0"),
        ("logs", "before"),
        ("compare", "lr=0.1,seed=0", "lr=0.3,seed=0"),
        ("sql", "select * from runs"),
        ("export", "before", "--format", "csv", "--out", "x.csv"),
        ("alarms", "before"),
        ("store", "gc"),
        ("compare", "before/lr=0.1", "before/lr=0.3"),
        ("analyze", "before"),
    ],
    ids=" ".join,
)
def test_every_verb_reads_it(root: Path, verb: tuple[str, ...]) -> None:
    assert run(root, *verb)


def test_its_values_are_what_they_were(root: Path) -> None:
    rows = Typed(root, SWEEPER_ROOT=str(root)).runs_of("before")
    assert {row["name"]: round(row["value"], 3) for row in rows} == VALUES
    assert {row["attempts"] for row in rows} == {1, 2}
    assert len(Registry(str(root)).runs("before")) == 4
    assert sweeper.status("before", root=str(root)).counts == {"succeeded": 4}


def test_it_is_retried_and_continued(root: Path) -> None:
    """With its own grid. Its interpreter and folder do not exist on this machine."""
    run(root, "retry", "before", "lr=0.1,seed=0", code=2)  # without --trust
    (root / "toy.py").write_text(
        "import os, sys\nopen(sys.argv[3] + '/metrics.jsonl', 'a').close()\n"
    )
    plan = SweepFolder(open_store(str(root)), "before").read_plan()
    (root / "grid.yaml").write_text(plan.grid_text)
    output = run(root, "launch", "grid.yaml", "--wait", "--trust")
    assert "4" in output and "succeeded" in output
    again = SweepFolder(open_store(str(root)), "before").read_plan()
    assert [r._replace(config={}) for r in again.runs] == [r._replace(config={}) for r in plan.runs]
    assert (again.created, len(again.launches)) == (plan.created, 1)
    assert {r["attempts"] for r in json.loads(run(root, "ls", "--json"))["runs"]} == {1, 2}
