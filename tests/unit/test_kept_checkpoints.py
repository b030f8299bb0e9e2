"""Unneeded checkpoints: none that something refers to, or that a run continues from."""

from pathlib import Path
from typing import Any

import pytest
from support import written

from sweeper.results.kept_checkpoints import Kept, of_runs, referred, spared
from sweeper.results.registry import Registry


def _path(run: str, name: str) -> str:
    return f"tinker://{run}:train:0/weights/{name}"


@pytest.fixture
def written_sweep(tmp_path: Path) -> Any:
    """Write three runs with three checkpoints each: two have ended, one is running."""
    made = written.Written(tmp_path / "root", "s", {"lr": [1, 2, 3]})
    for lr, state in ((1, "succeeded"), (2, "succeeded"), (3, "running")):
        records = [
            {"name": f"{step}", "batch": step, "state_path": _path(f"lr{lr}", str(step))}
            for step in (1, 2, 3)
        ]
        rows = [{"step": step, "test/nll": loss} for step, loss in ((1, 0.5), (2, 0.1), (3, 0.4))]
        made.run({"lr": lr}, 0, state=state, checkpoints=records, rows=rows)
    made.save()
    return made


def _removable(made: Any) -> tuple[list[Any], list[Any]]:
    runs = Registry(str(made.root), cache=False).all_handles()
    sizes = {
        _path(f"lr{lr}", str(step)): Kept(_path(f"lr{lr}", str(step)), 10, None, None)
        for lr in (1, 2, 3)
        for step in (1, 2, 3)
    }
    gone = _path("lr1", "1")
    del sizes[gone]  # deleted earlier
    removable = of_runs(runs, sizes)
    assert gone not in {path.path for _, _, path in removable} and len(removable) == 8
    return runs, removable


def test_needed_checkpoints_are_not_removed(written_sweep):
    runs, removable = _removable(written_sweep)
    why = spared(removable, runs, ("best", "final"))
    # step 2 is the best, step 3 the final one
    assert why.pop(_path("lr1", "2")) == why.pop(_path("lr2", "2")) == "best or final of its run"
    assert why.pop(_path("lr1", "3")) == why.pop(_path("lr2", "3")) == "best or final of its run"
    assert set(why) == {_path("lr3", str(step)) for step in (1, 2, 3)}
    assert set(why.values()) == {"the run may not have ended"}
    assert len(spared(removable, runs, ())) == 3


def test_checkpoints_named_by_other_sweeps_are_not_removed(written_sweep):
    by_address = {"load_checkpoint_path": _path("lr1", "3")}
    folder = next(run for run in written_sweep.root.glob("s/runs/*"))
    other = written.Written(written_sweep.root, "other", {"x": [1, 2]})
    other.run({"x": 1, "nested": {"from": [by_address]}}, 0)
    other.run({"x": 2, "load_checkpoint_path": str(folder)}, 0)
    other.save()
    runs, removable = _removable(written_sweep)
    why = spared(removable, runs, ())
    assert why[_path("lr1", "3")] == "another run starts from it"
    addresses, ids = referred(runs)
    assert addresses == {_path("lr1", "3")}
    assert ids == {folder.name.partition(".")[0]}
