"""The registry over sweeps that the tests write."""

import math
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from support import written

from sweeper.errors import NotFound, UsageError
from sweeper.metrics import sources
from sweeper.results import annotations
from sweeper.results.registry import RUN_COLUMNS, Registry
from sweeper.store.documents import seconds_since, timestamp


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Write two sweeps: `alpha` with a run of each kind, `beta` with a run that alpha has too."""
    alpha = written.Written(tmp_path, "alpha", {"lr": [1e-4, 1e-3]})
    rows = [{"step": 0, "test/nll": 2.0}, {"step": 1, "test/nll": 1.0, "text": "x"}]
    alpha.run({"lr": 1e-4}, 0, rows, checkpoints=written.checkpoint("a"), log="one\ntwo\nthree\n")
    alpha.run({"lr": 1e-3}, 0, '{"step": 0, "test/nll": 3.0}\nbad\n{"step"', "failed", reason="oom")
    alpha.run({"lr": 1e-3}, 1, state="planned")
    alpha.run({"lr": 1e-2}, 0, state="running", config={"state": "TX", "run": 5})
    alpha.save()
    beta = written.Written(tmp_path, "beta", {"lr": [1e-4]}, metric=None)
    beta.run({"lr": 1e-4}, 0, [{"step": 0, "other": 1}])
    beta.save()
    return tmp_path


def test_runs_are_rows_in_the_order_of_the_plan(root: Path):
    frame = Registry(str(root)).runs("alpha")
    names = [("0.0001", 0), ("0.001", 0), ("0.001", 1), ("0.01", 0)]
    assert list(frame["name"]) == [f"lr={lr},seed={seed}" for lr, seed in names]
    assert list(frame["state"]) == ["succeeded", "failed", "planned", "running"]
    assert list(frame["attempts"]) == [1, 1, 0, 1]
    assert list(frame["reason"])[1] == "oom"
    assert frame["value"][0] == 1.0 and math.isnan(frame["value"][2])
    assert set(frame["metric"]) == {"test/nll"}
    assert frame["wall_s"][0] == 60.0
    assert str(frame["started"][0]) == "2026-11-21 01:01:05+00:00"


def test_configuration_keys_are_columns_qualified_on_a_collision(root: Path):
    frame = Registry(str(root)).runs("alpha")
    assert tuple(frame.columns[: len(RUN_COLUMNS)]) == RUN_COLUMNS
    assert list(frame["lr"]) == [1e-4, 1e-3, 1e-3, 1e-2]
    assert frame["config.state"][3] == "TX"
    assert frame["config.run"][3] == 5
    assert list(frame["config.seed"]) == [0, 0, 1, 0]


def test_runs_can_be_chosen_by_sweep_state_and_condition(root: Path):
    registry = Registry(str(root))
    assert len(registry.runs()) == 5
    assert set(registry.runs("b*")["sweep"]) == {"beta"}
    assert len(registry.runs(state="succeeded")) == 2
    assert len(registry.runs("alpha", state=["planned", "running"])) == 2
    assert list(registry.runs("alpha", where="lr = 1e-3 and seed = 1")["state"]) == ["planned"]
    with pytest.raises(UsageError, match="no state 'done'"):
        registry.runs(state="done")
    with pytest.raises(NotFound, match="alpha"):
        registry.runs("gamma")


def test_metrics_have_a_column_for_each_key(root: Path):
    registry = Registry(str(root))
    frame = registry.metrics(registry.runs())
    assert list(frame.columns) == ["run", "sweep", "root", "step", "test/nll", "text", "other"]
    assert len(frame) == 4
    assert frame["text"][1] == "x"
    with pytest.warns(UserWarning, match="no run has recorded .absent."):
        named = registry.metrics(registry.runs("alpha"), keys=["test/nll", "absent"])
    assert list(named.columns) == ["run", "sweep", "root", "step", "test/nll", "absent"]
    assert list(named["test/nll"]) == [2.0, 1.0, 3.0]
    assert list(registry.metrics("beta/lr=0.0001,seed=0")["other"]) == [1]


def test_checkpoints_are_rows(root: Path):
    frame = Registry(str(root)).checkpoints()
    assert list(frame.columns[:5]) == ["run", "sweep", "root", "attempt", "name"]
    assert list(frame["sampler_path"]) == ["tinker://a/sampler_weights/final"]


def test_a_run_is_found_by_name_prefix_or_id(root: Path):
    registry = Registry(str(root))
    run = registry.run("alpha/lr=0.001,seed=1")
    assert run.state == "planned"
    assert registry.run("alpha/lr=0.01").name == "lr=0.01,seed=0"
    assert registry.run(run.id).name == registry.run(run.id[:6]).name == run.name
    with pytest.raises(UsageError, match="matches 2 runs"):
        registry.run("alpha/lr=0.001")
    with pytest.raises(UsageError, match=r"alpha/.*beta/"):
        registry.run("lr=0.0001,seed=0")
    with pytest.raises(NotFound):
        registry.run("alpha/nothing")


def test_a_run_handle_gives_config_log_metrics_and_checkpoints(root: Path):
    run = Registry(str(root)).run("alpha/lr=0.0001,seed=0")
    assert run.config == {"lr": 1e-4, "seed": 0}
    assert run.log() == "one\ntwo\nthree\n"
    assert run.log_tail(2) == ["two", "three"]
    assert run.log_tail(5, limit=8) == ["three"]
    assert list(run.metrics().columns) == ["step", "test/nll", "text"]
    assert list(run.checkpoints()["attempt"]) == [1]
    assert Path(run.path, "metrics.jsonl").exists()
    waiting = Registry(str(root)).run("alpha/lr=0.001,seed=1")
    assert (waiting.log(), waiting.log_tail(), len(waiting.metrics())) == ("", [], 0)


def test_an_attempt_from_step_0_begins_a_new_history(tmp_path: Path):
    """Rows of the earlier attempt are in no value, curve or table."""
    sweep = written.Written(tmp_path, "again")
    first = [{"step": s, "test/nll": float(s)} for s in range(4)]
    second = [{"step": 0, "test/nll": 0.0}, {"step": 1, "test/nll": 10.0}]
    sweep.run({}, 0, first, "preempted", cell="", wall_s=100.0, log="first\n")
    sweep.run({}, 0, second, "succeeded", cell="", wall_s=20.0, attempt=2)
    sweep.save()
    run = Registry(str(tmp_path)).sweep("again").runs[0]
    assert (run.attempts, run.state) == (2, "succeeded")
    assert list(run.metrics()["test/nll"]) == [0.0, 10.0]
    assert run.value({"name": "test/nll"}) == (1, 10.0, 0)
    assert run.times["wall_s"] == 120.0
    assert run.times["started"] == "2026-11-21T01:01:05Z"
    assert run.log() == "first\n"
    assert run.path.endswith(".2")


def test_sweeps_count_their_runs(root: Path):
    frame = Registry(str(root)).sweeps().set_index("sweep")
    counts: Any = frame.loc["alpha"]
    assert (counts["runs"], counts["succeeded"], counts["lost"]) == (4, 1, 0)


def test_an_empty_root_gives_empty_frames(tmp_path: Path):
    (tmp_path / "nowhere").mkdir()
    registry = Registry(str(tmp_path / "nowhere"))
    assert tuple(registry.runs().columns) == RUN_COLUMNS
    assert len(registry.sweeps()) == len(registry.metrics()) == 0


def test_an_unreadable_outcome_is_read_again_later(tmp_path: Path, home: Path):
    sweep = written.Written(tmp_path / "root", "s")
    run = sweep.run({"lr": 1}, 0, [{"step": 0}], "failed", reason="oom")
    sweep.save()
    event = tmp_path / "root" / "s" / "state" / run / "1.failed.json"
    body = event.read_bytes()
    event.write_bytes(b"")
    registry = Registry(str(tmp_path / "root"))
    assert [record["reason"] for record in registry.records()] == [None]
    event.write_bytes(body)
    assert [record["reason"] for record in registry.records()] == ["oom"]
    event.write_bytes(b"")
    assert [record["reason"] for record in registry.records()] == [None]


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let caches rely on the times of files that were written just now."""
    monkeypatch.setattr(sources, "MOMENT", 0)


@pytest.mark.parametrize("aged", [True, False])
def test_a_sweep_made_anew_is_not_shown_from_the_cache(
    tmp_path: Path, home: Path, trusting: None, aged: bool
):
    root = tmp_path / "root"
    for reason, wall in (("timeout", 3.0), ("started", 1.0)):
        shutil.rmtree(root, ignore_errors=True)
        sweep = written.Written(root, "s")
        sweep.run({}, 0, [], "preempted", cell="", reason="spot", wall_s=wall)
        sweep.run({}, 0, [], "failed", cell="", reason=reason, wall_s=wall, attempt=2)
        sweep.save()
        if aged:  # as unpacked from an archive
            for path in root.rglob("*"):
                os.utime(path, (1_600_000_000, 1_600_000_000))
        [record] = Registry(str(root)).records()
        assert (record["reason"], record["wall_s"]) == (reason, 2 * wall)


def test_a_malformed_event_is_not_cached(tmp_path: Path, home: Path, trusting: None):
    sweep = written.Written(tmp_path / "root", "s")
    sweep.run({}, 0, [], "preempted", cell="")
    run = sweep.run({}, 0, [], "failed", cell="", reason="oom", attempt=2)
    sweep.save()
    state = tmp_path / "root" / "s" / "state" / run
    for event in ("1.preempted.json", "2.failed.json"):
        body = (state / event).read_text()
        for damaged in ('{"wall_s": "long", "reason": [1], "started": {}}', "{}", "[]", "\x00"):
            (state / event).write_text(damaged)
            [record] = Registry(str(tmp_path / "root")).records()
            assert record["wall_s"] == 60.0
        (state / event).write_text(body)
        [record] = Registry(str(tmp_path / "root")).records()
        assert (record["reason"], record["wall_s"]) == ("oom", 120.0)


@pytest.mark.parametrize("returned", [False, True])
def test_the_start_of_a_lost_attempt_is_read_from_its_claim(
    tmp_path: Path, home: Path, trusting: None, returned: bool
):
    sweep = written.Written(tmp_path / "root", "s")
    run = sweep.run({}, 0, [], "lost", cell="", started=None)
    sweep.save()
    state = tmp_path / "root" / "s" / "state" / run
    if returned:
        (state / "1.returned.json").write_text('{"schema": 1, "time": "2026-11-21T01:03:00Z"}')
    text = (state / "1.claimed.json").read_text()

    def started(claim: str) -> object:
        (state / "1.claimed.json").write_text(claim)
        [record] = Registry(str(tmp_path / "root")).records()
        return record["started"]

    assert started("[]") is None
    assert started(text) == "2026-11-21T01:01:05Z"
    assert started("[]") == "2026-11-21T01:01:05Z"  # from the cache


def test_runs_that_have_not_started_have_no_rollouts(tmp_path: Path):
    sweep = written.Written(tmp_path, "s")
    sweep.run({}, 0, state="planned")
    sweep.save()
    assert Registry(str(tmp_path)).rollouts().empty


def test_a_root_given_by_two_names_is_read_once(
    root: Path, tmp_path_factory: pytest.TempPathFactory
):
    link = tmp_path_factory.mktemp("links") / "sweeps"
    link.symlink_to(root)
    registry = Registry(str(root), str(link), f"{link}/alpha/..")
    assert registry.roots == (str(root),)
    assert len(registry.runs("alpha")) == 4


def test_an_empty_result_warns_and_suggests_a_key(root: Path):
    with pytest.warns(UserWarning, match="nowhere: no such folder"):
        assert Registry(str(root / "nowhere")).runs().empty
    with pytest.warns(UserWarning, match="no run has recorded 'test/nl'; did you mean 'test/nll'"):
        assert Registry(str(root)).metrics(keys=["test/nl"]).empty


def test_the_last_event_of_a_run_and_of_a_sweep(root: Path):
    """Events are ordered by their times: a request after the end counts too."""
    registry = Registry(str(root))
    done, _, planned, running = registry.sweep("alpha").runs
    assert (done.last_event, planned.last_event) == ("2026-11-21T01:02:04Z", None)
    retry = root / "alpha" / "state" / done.id / "1.retry.json"
    retry.write_text('{"schema": 1, "time": "2026-11-22T00:00:00Z", "by": "me"}')
    sweep = registry.sweep("alpha")
    assert sweep.runs[0].last_event == sweep.last_event == "2026-11-22T00:00:00Z"
    assert sweep.runs[3].last_event == running.last_event == "2026-11-21T01:02:04Z"
    assert written.Written(root, "gamma").save() and registry.sweep("gamma").last_event is None


def test_an_age_is_that_of_a_time_in_a_document():
    assert seconds_since(None) is None
    assert seconds_since(timestamp(time.time() - 3600)) == pytest.approx(3600, abs=60)


def test_sweeps_in_use_are_those_that_are_not_archived(root: Path):
    annotations.archive("alpha", root=str(root))
    assert [sweep.name for sweep in Registry(str(root)).sweeps_in_use()] == ["beta"]
