"""What a sweep has used and will use, computed from its ended runs."""

import json
from pathlib import Path
from typing import Any

import pytest
from support import written

from sweeper.backends import open_backend
from sweeper.cli import main
from sweeper.money.forecast import forecast_of
from sweeper.results.registry import Registry
from sweeper.scheduler.budgets import AttemptUsage, SweepUsageWatch
from sweeper.scheduler.context import Context
from sweeper.scheduler.progress import Publisher
from sweeper.store.documents import encode
from sweeper.store.local import LocalStore
from sweeper.store.opening import open_store
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.heartbeats import Heartbeats
from sweeper.sweep.launcher import Observations
from sweeper.sweep.run_table import RunTable
from sweeper.tui.poller import Poller


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write runs that succeeded, were retried, are running or planned; one of another size."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    row = {"tinker_id": "m", "prefill": 1, "sample": 1, "train": 1000}
    (tmp_path / "models.json").write_text(json.dumps([row]))
    assert main(["costs", "--prices", "--refresh", str(tmp_path / "models.json")]) == 0
    made = written.Written(tmp_path / "root", "study", {"lr": [0.1, 0.2, 0.3, 0.4], "size": [1, 2]})
    made.run({"lr": 0.1, "size": 1}, usage=_used(1000))
    made.run({"lr": 0.2, "size": 1}, state="failed", usage=_used(400))
    made.run({"lr": 0.2, "size": 1}, attempt=2, usage=_used(1000))
    at_work = made.run({"lr": 0.3, "size": 1}, state="running")
    folder = SweepFolder(LocalStore(str(made.root)), "study")
    folder.store.replace(folder.heartbeat(at_work, 1), encode({"schema": 1, "usage": _used(600)}))
    made.run({"lr": 0.4, "size": 1}, state="planned")
    made.run({"lr": 0.4, "size": 2}, state="planned")
    made.save()
    return made


def _used(tokens: int) -> dict[str, Any]:
    return {"models": {"m": {"train": tokens, "steps": 10}}}


@pytest.fixture
def root(sweep: Any, tmp_path: Path) -> str:
    """Publish the usage as its launcher does; return the root."""
    del sweep
    folder = SweepFolder(LocalStore(str(tmp_path / "root")), "study")
    context = Context(folder, open_backend("local", "study", folder.address, {}))
    run_table = RunTable(folder, context.plan)
    run_table.read()
    attempts = AttemptUsage(context, run_table, Heartbeats(folder, context.clock))
    usage = SweepUsageWatch(context, run_table, attempts).check(context.plan)
    Publisher(context, starting=True).publish(Observations(usage=usage))
    return folder.store.root


def test_status_shows_used_and_expected_tokens(root, capsys):
    main(["status", "study", "--root", root, "--json"])
    costs = json.loads(capsys.readouterr().out)["costs"]
    assert (costs["used"]["tokens"], costs["used"]["usd"]) == (3000, 3.0)
    # 400 of the running one, 1,000 of the next; runs with one attempt are the examples.
    assert (costs["to_come"]["tokens"], costs["untold"]) == (1400, 1)
    main(["status", "study", "--root", root])
    text = capsys.readouterr().out
    assert "used 3,000 tokens, 3.00 dollars at prices of 20" in text
    assert "; about 1,400 tokens, 1.40 dollars to come; no data yet on 1 run" in text


def test_watch_shows_used_and_expected_dollars(root):
    poller = Poller(SweepFolder(open_store(root), "study"))
    costs = poller.check().costs
    assert costs.startswith("3.00 dollars, 1.40 and more to come (prices of 20")


def test_the_forecast_from_runs_equals_the_published_one(root):
    """The report uses the forecast from runs."""
    usage = SweepFolder(open_store(root), "study").read_observations().usage
    for _ in range(2):  # the second time from the cache
        assert forecast_of(Registry(root).sweep("study")) == usage._replace(time=None)
