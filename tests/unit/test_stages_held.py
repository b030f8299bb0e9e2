"""Stages that are held back, cancelled, moved or get fewer runs: every sweep ends."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweeper.alarms.actions import AlarmActions, Watched
from sweeper.alarms.records import Alarm
from sweeper.errors import GridError
from sweeper.launcher.control import cancel_runs, request_retries
from sweeper.launcher.preview import gone_baselines
from sweeper.planner.plan import plan
from sweeper.results import kept_checkpoints
from sweeper.results.kept_checkpoints import Kept
from sweeper.results.registry import Registry
from sweeper.results.service_requests import Service
from sweeper.results.status import read_status
from sweeper.scheduler.context import Context
from sweeper.scheduler.loop import Scheduler
from sweeper.scheduler.progress import exit_code
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.lock import holding_sweep
from sweeper.sweep.plan import Plan
from sweeper.sweep.run_table import RunTable
from sweeper.sweep.states import Event, State
from sweeper.sweep.sweep_requests import ask_cancel, asked_cancel
from tests.unit.test_stages import Pipeline, stages

_METRIC = {"name": "loss", "goal": "minimize"}
Make = Callable[..., Pipeline]


@pytest.fixture
def make(tmp_path: Path, no_sync: None, fake_backend: None) -> Make:
    return lambda grid=None, **launch: Pipeline(tmp_path, grid or stages(), **launch)


def _after(stage: str, take: Any, **more: Any) -> dict[str, Any]:
    return {"command": ["t"], "from": {"stage": stage, "take": take}, **more}


def _by_stage(made: Pipeline) -> dict[str, int]:
    stages = [name.partition("/")[0] for name in made.submitted()]
    return {stage: stages.count(stage) for stage in stages}


@pytest.mark.parametrize(
    ("take", "failing", "children"),
    [
        ("best-cell", {"sft/lr=1,seed=1"}, 1),
        ({"top": 3}, {f"sft/lr={lr},seed={s}" for lr in (2, 3) for s in (0, 1)}, 2),
    ],
)
def test_a_choice_of_fewer_runs_than_requested_still_starts_the_next(
    make: Make, take: object, failing: set[str], children: int
) -> None:
    grid = stages()
    grid["sft"]["metric"] = {**_METRIC, "failed": "drop"}
    grid["dpo"]["from"]["take"] = take
    grid["eval"]["from"] = {"stage": "dpo", "take": "best"}
    made = make(grid)
    made.failing = failing
    made.losses = {"sft/lr=1,seed=0": -9.0}
    summary = made.drive()
    assert (_by_stage(made)["dpo"], _by_stage(made)["eval"]) == (2 * children, 1)
    assert exit_code(summary) == 3 and not made.plan.unknown


def test_a_run_in_two_takes_is_continued_once(make: Make) -> None:
    grid = stages()
    takes = ["best", {"top": 2}]
    grid["dpo"]["from"] = [{"stage": "sft", "take": take} for take in takes]
    grid["eval"]["from"] = {"stage": "dpo", "take": "best"}
    made = make(grid)
    assert exit_code(made.drive()) == 0
    assert _by_stage(made)["eval"] == 1


def test_two_equal_stages_have_their_own_runs(make: Make) -> None:
    grid = stages()
    named = "${sft.model_name}"
    grid["dpo"] = _after("sft", "best", base={"model": named}, metric=_METRIC)
    grid["other"] = _after("sft", "lr=1,seed=0", base={"model": named}, metric=_METRIC)
    grid["last"] = _after("other", "best", base={"model": named})
    del grid["eval"]
    made = make(grid)
    assert exit_code(made.drive()) == 0
    assert _by_stage(made) == {"sft": 6, "dpo": 1, "other": 1, "last": 1}


def _chain(grid: dict[str, Any]) -> dict[str, Any]:
    """Return the grid with a chain of three stages after `dpo`."""
    state = {"state": "${from.checkpoint.state}"}
    grid["eval"] = _after("dpo", "each", base=state)
    grid["third"] = _after("eval", "each", base=state)
    grid["fourth"] = _after("third", "each", base=state)
    return grid


def test_descendants_of_a_run_without_a_checkpoint_are_held_back(
    make: Make,
) -> None:
    made = make(_chain(stages()))
    made.bare = {"dpo/beta=1"}
    scheduler = made.scheduler()
    summary = made.drive(scheduler)
    assert summary.waits == (
        "held back: 1 run of eval, 1 run of third and 1 run of fourth wait for checkpoint.state of"
        " dpo/beta=1, which has recorded no state_path",
    )
    assert (summary.held_back, exit_code(summary)) == (3, 4)
    assert scheduler.step() == summary


def test_a_metric_without_values_holds_back_all_later_stages(make: Make) -> None:
    grid = _chain(stages())
    grid["sft"]["metric"] = {**_METRIC, "name": "reward"}
    made = make(grid)
    scheduler = made.scheduler()
    summary = made.drive(scheduler)
    assert summary.waits == (
        "held back: 2 runs of dpo, 2 runs of eval, 2 runs of third and 2 runs of fourth wait for "
        "the best of sft, but none has recorded reward",
    )
    assert scheduler.step() == summary


def test_a_renamed_sweep_keeps_its_children(make: Make) -> None:
    made = make()
    made.drive()
    before = made.plan.runs
    os.rename(f"{made.store.root}/p", f"{made.store.root}/moved")
    assert SweepFolder(made.store, "moved").read_plan().runs == before
    context = Context(SweepFolder(made.store, "moved"), made.backend, made.clock, made.clock.sleep)
    assert exit_code(Scheduler(context).step()) == 0


def test_a_sweep_renamed_before_its_choice_continues(make: Make) -> None:
    made = make()
    made.drive_until_submitted(7)
    os.rename(f"{made.store.root}/p", f"{made.store.root}/moved")
    context = Context(SweepFolder(made.store, "moved"), made.backend, made.clock, made.clock.sleep)
    Scheduler(context).step()
    assert len(SweepFolder(made.store, "moved").read_plan().runs) == 7 + 2 + 2


def test_a_cancelled_sweep_chooses_nothing_until_a_retry(make: Make) -> None:
    grid = stages()
    grid["sft"]["metric"] = {**_METRIC, "failed": "drop"}
    made = make(grid)
    made.failing = {"sft/lr=2,seed=1"}
    scheduler = made.scheduler()
    made.drive_until_submitted(7, scheduler)
    cancel_runs(made.folder, [run.id for run in made.plan.runs], whole=True)
    summary = made.drive(scheduler)
    [message] = summary.waits
    assert message.startswith(
        "held back: 2 runs of dpo and 2 runs of eval wait for the best of sft, but "
    )
    assert message.endswith(" cancelled the sweep: the next launch or retry continues it")
    sweep = Registry(made.store.root).sweep("p")
    assert read_status(sweep).waits == summary.waits
    assert len(made.submitted()) == 7 and made.drive().waits == summary.waits
    made.failing.clear()
    with holding_sweep(made.folder):
        assert request_retries(sweep, [made.id_of("sft/lr=2,seed=1")]).again == 1
    assert exit_code(made.drive()) == 0
    assert _by_stage(made) == {"sft": 7, "dpo": 2, "eval": 3}


def test_runs_created_during_a_cancel_are_cancelled(make: Make) -> None:
    made = make(max_parallel=1)
    scheduler = made.scheduler()
    made.drive_until_submitted(7, scheduler)
    scheduler.step()  # the choice is made; one of its two runs is submitted
    assert len(made.backend.submitted) == 8
    ask_cancel(made.folder, "somebody")
    scheduler.step()
    scheduler.step()
    children = [run.id for run in made.plan.runs if run.parents]
    events = made.store.names(made.folder.state)
    cancelled = {path.split("/")[-2] for path in events if Event.CANCEL.value in path}
    assert cancelled == set(children)
    assert len(made.backend.submitted) == 8


def test_an_alarm_that_stops_the_sweep_cancels_it(make: Make) -> None:
    made = make()
    context = Context(made.folder, made.backend, made.clock, made.clock.sleep)
    actions = AlarmActions(
        Watched(made.folder, context.plan, RunTable(made.folder, context.plan)), tell=print
    )
    run = context.plan.runs[0]
    since, rest = "2026-01-01T00:00:00Z", ("m", "a", ("stop sweep",))
    actions.add(Alarm(run.id, run.name, 1, "nan", since, "x", 3, 1.0, None, *rest))
    actions.check()
    request = asked_cancel(made.folder)
    assert request is not None and request.by == "the launcher, because of the alarm nan"


def test_children_of_a_cancelled_run_count_as_cancelled(make: Make) -> None:
    grid = stages()
    grid["dpo"]["from"]["take"] = "each"
    grid["dpo"]["metric"] = {**_METRIC, "failed": "drop"}
    grid["eval"]["from"] = {"stage": "dpo", "take": "best"}
    made = make(grid)
    made.cancel("sft/lr=3,seed=1")
    summary = made.drive()
    assert _by_stage(made) == {"sft": 5, "dpo": 10}
    assert any("dpo/beta=1,sft/lr=3,seed=1 and 1 more were cancelled" in w for w in summary.waits)


def test_a_choice_stays_when_values_change(make: Make) -> None:
    made = make()
    made.drive()
    runs, submitted = made.plan.runs, list(made.backend.submitted)
    for run, state in made.folder.read_states().items():
        assert state.state is State.SUCCEEDED
        lost = json.dumps({"step": 1, "loss": -100 if "sft/lr=3" in made.names()[run] else 9})
        folder = made.folder.log_path(run, state.attempt)
        made.store.replace(f"{folder}/metrics.jsonl", lost.encode())
    assert exit_code(made.drive()) == 0
    assert (made.plan.runs, made.backend.submitted) == (runs, submitted)


def _planned(grid: dict[str, Any]) -> Plan:
    return plan({"name": "p", "stages": grid}, validate=False)


def test_the_base_model_as_baseline_is_one_cell() -> None:
    grid = stages()
    sft, base = grid["sft"], {"stage": "sft", "take": "each"}
    last = _after("sft", "each", base={"m": "${from.model_name}", "n": 1})
    last |= {"from": [base, {"base": True}], "baseline": "base", "metric": _METRIC}
    planned = _planned({"sft": sft, "eval": {**last, "grid": {"n": [5]}}})
    [run] = [run for run in planned.only("eval").runs if not run.parents]
    baseline = planned.only("eval").baseline
    assert baseline is not None and baseline.cell == run.cell
    for wrong in (
        {"sft": sft, "eval": {**last, "grid": {"n": [5, 6]}}},
        {"sft": {**sft, "grid": {"model_name": ["a", "b"]}}, "eval": last},
    ):
        with pytest.raises(
            GridError, match=r"stages.eval.baseline: the base model has 2 cells \(eval/"
        ):
            _planned(wrong)


def test_a_take_of_a_known_stage_must_exist() -> None:
    each = _after("sft", "each", base={"m": "${from.model_name}"}, metric=_METRIC)
    grid = {"sft": stages()["sft"], "dpo": each}
    for take, message in (
        ("nothing", "stages.dpo has no run 'nothing'"),
        ({"top": 7}, "stages.dpo has only 6 runs, so 7 cannot be taken"),
    ):
        last = _after("dpo", take, base={"m": "${from.m}"})
        with pytest.raises(GridError, match=message):
            _planned({**grid, "last": last})
    last = _after("dpo", "sft/lr=1,seed=0", base={"m": "${from.m}"})
    assert not _planned({**grid, "last": last}).unknown


def test_a_stage_without_validation_must_refer_to_the_checkpoint() -> None:
    recipe = {"recipe": "sft", "from": {"stage": "sft", "take": "each"}}
    grid = {"sft": stages()["sft"], "dpo": recipe}
    with pytest.raises(GridError, match="checkpoints are unknown: set these fields, as in load_"):
        _planned(grid)
    going = {"load_checkpoint_path": "${from.checkpoint.state}"}
    assert len(_planned({**grid, "dpo": {**recipe, "base": going}}).runs) == 12


def test_a_missing_baseline_sweep_is_reported(make: Make) -> None:
    grid = stages()
    grid["dpo"]["baseline"] = {"sweep": "gone"}
    grid["sft"]["baseline"] = {"sweep": "other/rl"}
    made = make(grid)
    os.rename(f"{made.store.root}/p", f"{made.store.root}/other")
    assert gone_baselines(_planned(grid), made.store) == [
        "baseline: other has no stage 'rl' to compare with",
        f"baseline: no sweep 'gone' in {made.store.root} to compare with",
    ]


def _ends(made: Pipeline, name: str, **more: object) -> None:
    """Replace the checkpoint record of a run; `more` sets when it expires."""
    run = made.id_of(name)
    record = {"name": "10", "state_path": f"tinker://{run}/weights/10", **more}
    path = f"{made.folder.log_path(run, 1)}/checkpoints.jsonl"
    made.store.replace(path, json.dumps(record).encode())


def _until_chosen(make: Make, **more: object) -> tuple[Pipeline, Scheduler]:
    made = make()
    made.record_stages(stages(), service="tinker")
    scheduler = made.scheduler()
    made.drive_until_submitted(7, scheduler)
    _ends(made, "sft/lr=1,seed=0", **more)
    return made, scheduler


def test_an_expired_checkpoint_holds_its_children_back(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    made, scheduler = _until_chosen(make, expires_at="2020-01-01T00:00:00Z")
    message = "checkpoint.state of sft/lr=1,seed=0, which has expired"
    assert message in "".join(made.drive(scheduler).waits)


@pytest.mark.parametrize("there", [True, False])
def test_a_checkpoint_that_would_expire_is_kept_before_it_is_used(
    make: Make, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    requests: list[tuple[str, str, int | None]] = []

    def expire(service: Service, checkpoint: Kept, seconds: int | None) -> bool:
        requests.append((service.key, checkpoint.path, seconds))
        return there

    monkeypatch.setattr(kept_checkpoints, "expire", expire)
    monkeypatch.setenv("TINKER_API_KEY", "tml-key")
    made, scheduler = _until_chosen(make, ttl_seconds=3600)
    summary = made.drive(scheduler)
    run = made.id_of("sft/lr=1,seed=0")
    assert requests == [("tml-key", f"tinker://{run}/weights/10", None)]
    if there:
        assert exit_code(summary) == 0 and not summary.waits
    else:
        assert "sft/lr=1,seed=0, which has expired" in summary.waits[0]


def test_a_checkpoint_that_cannot_be_kept_is_reported(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    made, scheduler = _until_chosen(make, ttl_seconds=3600)
    summary = made.drive(scheduler)
    assert exit_code(summary) == 0
    assert summary.waits == (
        "the checkpoint of sft/lr=1,seed=0 from which other runs start will expire: `sweeper"
        f" checkpoints p/sft/lr=1,seed=0 --ttl never --root {made.store.root}` keeps it",
    )
