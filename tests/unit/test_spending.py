"""What a sweep has used never becomes less, and is asked of whoever knows it."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sweeper.backends import open_backend
from sweeper.errors import UsageError
from sweeper.model.plan import Budget
from sweeper.scheduler.context import Context
from sweeper.scheduler.run_table import RunTable
from sweeper.scheduler.spending import Spending
from sweeper.storage.files import LocalStore
from sweeper.storage.heartbeats import Heartbeats


def used(tokens: int) -> dict[str, Any]:
    return {"models": {"m": {"train": tokens}}}


class Sweep:
    """A recorded sweep, and what its launcher knows of it."""

    def __init__(self, made: Any) -> None:
        self.made = made
        made.save()
        store = LocalStore(str(made.root))
        backend = open_backend("local", made.name, str(made.folder), {})
        self.context = Context(store, made.name, backend)
        self.run_table = RunTable(store, made.name, self.context.plan)
        self.heartbeats = Heartbeats(store, self.context.layout, self.context.clock)

    def spending(self, **limits: Any) -> Spending:
        budget = Budget(**limits)
        return Spending(self.context, budget, self.run_table, self.heartbeats)

    def reached(self, spending: Spending) -> str | None:
        self.run_table.read()
        spending.look()
        return spending.reached

    def beat(self, run: str, attempt: int, **body: Any) -> None:
        folder = self.made.folder / "heartbeats"
        folder.mkdir(exist_ok=True)
        (folder / f"{run}.{attempt}").write_text(json.dumps({"schema": 1, **body}))


@pytest.fixture
def written_sweep(tmp_path: Path, written: ModuleType) -> Any:
    return written.Written(tmp_path / "root", "s", {"lr": [1, 2]})


def test_all_attempts_of_all_runs_count(written_sweep: Any) -> None:
    written_sweep.run({"lr": 1}, 0, state="preempted", usage=used(100), wall_s=3600.0)
    written_sweep.run({"lr": 1}, 0, attempt=2, usage=used(200), wall_s=3600.0, paused_s=1800.0)
    written_sweep.run({"lr": 2}, 0, usage=used(50), wall_s=3600.0, retired=True)
    sweep = Sweep(written_sweep)
    assert sweep.reached(sweep.spending(tokens=351)) is None
    told = sweep.reached(sweep.spending(tokens=350))
    assert told is not None and "the budget is spent (350 of 350 tokens)" in told
    assert "and what runs is stopped" in told
    assert sweep.reached(sweep.spending(hours=2.6)) is None
    paused = sweep.spending(hours=2.5, on_reach="pause")
    assert "2.50 of 2.50 hours of runs" in (sweep.reached(paused) or "")
    assert not paused.is_over


def test_a_lost_attempt_counts_as_its_worker_said_last(written_sweep: Any) -> None:
    lost = written_sweep.run({"lr": 1}, 0, state="lost")
    sweep = Sweep(written_sweep)
    sweep.beat(lost, 1, usage=used(70), up_s=60, paused_s=-5)
    spending = sweep.spending(tokens=70)
    assert sweep.reached(spending) is not None
    (written_sweep.folder / "heartbeats" / f"{lost}.1").unlink()
    assert sweep.reached(spending) is not None


def test_what_was_seen_counts_though_it_cannot_be_read_for_a_moment(written_sweep: Any) -> None:
    run = written_sweep.run({"lr": 1}, 0, state="running")
    sweep = Sweep(written_sweep)
    sweep.beat(run, 1, usage=used(90), up_s=60)
    spending = sweep.spending(tokens=80)
    assert sweep.reached(spending) is not None
    event = written_sweep.folder / "state" / run / "1.failed.json"
    event.write_text("{")
    (written_sweep.folder / "heartbeats" / f"{run}.1").unlink()
    assert sweep.reached(spending) is not None
    event.write_text(json.dumps({"schema": 1, "time": "2026-11-22T12:00:00Z", "usage": used(95)}))
    assert "95 of 80" in (sweep.reached(spending) or "")


def test_what_the_recipe_counted_is_newer_than_a_heartbeat(written_sweep: Any) -> None:
    run = written_sweep.run({"lr": 1}, 0, state="failed")
    sweep = Sweep(written_sweep)
    sweep.beat(run, 1, usage=used(10))
    folder = written_sweep.folder / "attempts" / f"{run}.1" / "usage"
    folder.mkdir(parents=True)
    (folder / "7.json").write_text(json.dumps(used(30)))
    assert "30 of 30" in (sweep.reached(sweep.spending(tokens=30)) or "")


def test_dollars_need_prices(
    written_sweep: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    written_sweep.run({"lr": 1}, 0, usage=used(2_000_000))
    sweep = Sweep(written_sweep)
    assert "no price is known of m" in (sweep.reached(sweep.spending(usd=5000)) or "")
    (tmp_path / "sweeper").mkdir()
    table = tmp_path / "sweeper" / "prices.json"
    table.write_text(
        json.dumps({"date": "2026-11-01", "models": [{"tinker_id": "m", "train": 1000}]})
    )
    assert sweep.reached(sweep.spending(usd=2000.01)) is None
    told = sweep.reached(sweep.spending(usd=1999)) or ""
    assert "2,000.00 of 1,999.00 dollars, by prices of 2026-11-01" in told
    table.write_text("{")
    with pytest.raises(UsageError, match="no JSON"):
        sweep.spending(usd=1)
    assert sweep.reached(sweep.spending(tokens=1)) is not None
