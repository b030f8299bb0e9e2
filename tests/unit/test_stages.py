"""A sweep with stages: which runs wait, which are taken, and launchers that are killed."""

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.driven import Driven, at_write, metrics

from sweeper.analysis.reading.frames import load
from sweeper.cli import main
from sweeper.errors import NotFound, UsageError
from sweeper.results.checkpoints import last
from sweeper.results.kept_checkpoints import referred
from sweeper.results.registry import Registry
from sweeper.results.status import read_status
from sweeper.scheduler.progress import exit_code
from sweeper.store.documents import read_json
from sweeper.sweep.plan import Run
from sweeper.sweep.states import State
from sweeper.testing import Fault as Kind
from sweeper.testing import Faults, FaultyBackend, FaultyStore, Killed
from sweeper.tui.list_model import Group, arranged, groupings
from sweeper.tui.poller import Poller

_METRIC = {"name": "loss", "goal": "minimize"}


def stages(lrs: tuple[int, ...] = (3, 1, 2), **more: Any) -> dict[str, Any]:
    """Return stages: `dpo` continues the best of `sft`; `eval` takes each of `dpo` and the base."""
    of = {"state": "${sft.checkpoint.state}", "lr": "${sft.lr}"}
    sft = {"command": ["t"], "base": {"model_name": "m"}, "grid": {"lr": list(lrs)}, "seeds": 2}
    grid: dict[str, Any] = {
        "sft": sft | {"metric": _METRIC},
        "dpo": {
            "command": ["t"],
            "from": {"stage": "sft", "take": "best"},
            "base": of,
            "grid": {"beta": [1, 2]},
            "metric": _METRIC,
        },
        "eval": {
            "command": ["t"],
            "from": [{"stage": "dpo", "take": "each"}, {"base": True}],
            "base": {"model": "${from.model_name}", "path": "${from.checkpoint.sampler}"},
        },
    }
    grid["dpo"]["base"] = {**of, "model_name": "${sft.model_name}"}
    return grid | more


class Pipeline(Driven):
    """A sweep with stages. The loss of a run is the sum of the integers of its configuration, or
    in `losses`; `ends` has a second value, and runs in `bare` write no checkpoint."""

    def __init__(self, root: Path, grid: dict[str, Any], **launch: Any) -> None:
        super().__init__(root, "p")
        self.bare: set[str] = set()
        self.losses: dict[str, float] = {}
        self.ends: dict[str, Any] = {}
        self.launch = {"backend": "fake", "max_parallel": 4} | launch
        self.record_stages(grid)

    def record_stages(self, grid: dict[str, Any], **more: Any) -> None:
        self.record({"stages": grid, "launch": self.launch} | more)

    def files(self, run: Run, attempt: int) -> Mapping[str, str]:
        config = self.job(run.id, attempt)["config"]
        loss = self.losses.get(run.name, sum(v for v in config.values() if isinstance(v, int)))
        rows = [{"step": 1, "loss": loss}]
        rows += [{"step": 2, "loss": self.ends[run.name]}] if run.name in self.ends else []
        paths = {"state_path": f"state/{run.id}", "sampler_path": f"sampler/{run.id}"}
        record = {"name": "final", "final": True} | ({} if run.name in self.bare else paths)
        return {"metrics.jsonl": metrics(*rows), "checkpoints.jsonl": json.dumps(record)}

    def names(self) -> dict[str, str]:
        return {run.id: run.name for run in self.plan.runs}

    def submitted(self) -> list[str]:
        names = self.names()
        return [names[job.partition("-")[0]] for job in self.backend.submitted]

    def job(self, run: str, attempt: int = 1) -> Any:
        return read_json(self.store, self.folder.job(run, attempt))

    def config(self, name: str) -> dict[str, Any]:
        return self.job(self.id_of(name))["config"]


@pytest.fixture
def make(tmp_path: Path, no_sync: None, fake_backend: None) -> Callable[..., Pipeline]:
    return lambda grid=None, **launch: Pipeline(tmp_path, grid or stages(), **launch)


Make = Callable[..., Pipeline]


def test_stages_run_in_order_and_continue_from_the_best_run(make: Make) -> None:
    made = make()
    summary = made.drive()
    assert exit_code(summary) == 0
    assert made.submitted() == [
        *("eval/base", "sft/lr=3,seed=0", "sft/lr=3,seed=1", "sft/lr=1,seed=0"),
        *("sft/lr=1,seed=1", "sft/lr=2,seed=0", "sft/lr=2,seed=1"),
        *("dpo/beta=1", "dpo/beta=2", "eval/dpo/beta=1", "eval/dpo/beta=2"),
    ]
    state = f"state/{made.id_of('sft/lr=1,seed=0')}"
    assert made.config("dpo/beta=2") == {"state": state, "lr": 1, "model_name": "m", "beta": 2}
    path = f"sampler/{made.id_of('dpo/beta=1')}"
    assert made.config("eval/dpo/beta=1") == {"model": "m", "path": path}
    assert made.config("eval/base") == {"model": "m"}


def test_a_finished_sweep_has_no_usage_to_come(make: Make) -> None:
    made = make()
    made.outcome = {"usage": {"models": {"m": {"train": 100, "steps": 10}}}}
    made.drive()
    usage = read_status(Registry(made.store.root).sweep("p")).usage
    assert usage is not None
    assert (usage.used.counts.tokens, usage.to_come.counts.tokens, usage.untold) == (1100, 0, 0)


def test_a_run_starts_as_soon_as_its_parent_is_done(make: Make) -> None:
    grid = stages()
    grid["dpo"]["from"]["take"] = "each"
    made = make(grid, max_parallel=1)
    made.drive_until_submitted(4)
    # The deepest run that can start goes first: the base's evaluation, then along one chain.
    assert made.submitted() == [
        "eval/base",
        "sft/lr=3,seed=0",
        "dpo/beta=1,sft/lr=3,seed=0",
        "eval/dpo/beta=1,sft/lr=3,seed=0",
    ]


def test_a_stage_has_its_own_limits_retries_and_environment(make: Make) -> None:
    grid = stages()
    grid["sft"]["launch"] = {"max_parallel": 2, "retries": 1, "env": {"ONLY": "sft"}}
    made = make(grid, max_parallel=6)
    made.failing = {"sft/lr=3,seed=0", "dpo/beta=1"}
    scheduler = made.scheduler()
    most = Counter[str | None]()
    while not (summary := scheduler.step()).finished:
        states = made.folder.read_states()
        busy = [run.stage for run in made.plan.runs if run.id in states and states[run.id].at_work]
        most |= Counter(busy)
        if made.submitted().count("sft/lr=3,seed=0") == 2:
            made.failing = {"dpo/beta=1"}
        made.work()
        made.clock.sleep(10)
    assert exit_code(summary) == 4  # children of the failed run are held back
    assert made.submitted().count("sft/lr=3,seed=0") == 2
    assert made.submitted().count("dpo/beta=1") == 1
    assert (most["sft"], most["dpo"]) == (2, 2)
    jobs = [made.job(run) for run in made.folder.read_states()]
    with_env = [job["name"].partition("/")[0] for job in jobs if "ONLY" in job["settings"]["env"]]
    assert {*with_env} == {"sft"}


def test_the_order_may_be_breadth(make: Make) -> None:
    grid = stages()
    grid["dpo"]["from"]["take"] = "each"
    made = make(grid, max_parallel=1)
    made.record_stages(grid, order="breadth")
    made.drive()
    assert [name.partition("/")[0] for name in made.submitted()] == (
        ["sft"] * 6 + ["dpo"] * 12 + ["eval"] * 13
    )


def test_a_failed_parent_holds_its_children_back_until_a_retry(make: Make) -> None:
    grid = stages()
    grid["dpo"]["from"]["take"] = "each"
    made = make(grid)
    made.failing = {"sft/lr=2,seed=1"}
    summary = made.drive()
    assert (summary.counts[State.SUCCEEDED], summary.counts[State.FAILED]) == (5 + 10 + 11, 1)
    assert summary.held_back == 4 and exit_code(summary) == 4
    message = (
        "held back: 2 runs of dpo and 2 runs of eval wait for sft/lr=2,seed=1, which has failed"
    )
    assert summary.waits == (message,)
    seen = read_status(Registry(made.store.root).sweep("p"))
    assert seen.waits == (message,)
    names = made.names()
    assert {names[run]: words for run, words in seen.observed.items()} == {
        name: "held back: sft/lr=2,seed=1, which has failed"
        for name in names.values()
        if "sft/lr=2,seed=1" in name and not name.startswith("sft")
    }
    assert seen.exit_code == 4
    made.retry("sft/lr=2,seed=1")
    assert exit_code(made.drive()) == 0
    assert len(made.submitted()) == len(set(made.submitted())) + 1


def test_a_choice_waits_for_failed_runs_unless_they_are_dropped(make: Make) -> None:
    made = make()
    made.failing = {"sft/lr=2,seed=1"}
    summary = made.drive()
    assert summary.waits == (
        "held back: 2 runs of dpo and 2 runs of eval wait for the best of sft, of which "
        "sft/lr=2,seed=1 has failed",
    )
    assert (summary.held_back, exit_code(summary)) == (4, 4)
    grid = stages()
    grid["sft"]["metric"] = {**_METRIC, "failed": "drop"}
    made.record_stages(grid)
    assert exit_code(made.drive()) == 3
    assert "eval/dpo/beta=2" in made.submitted()


def test_a_choice_waits_for_cancelled_runs(make: Make) -> None:
    made = make()
    for seed in (0, 1):
        made.cancel(f"sft/lr=3,seed={seed}")
    summary = made.drive()
    assert summary.waits == (
        "held back: 2 runs of dpo and 2 runs of eval wait for the best of sft, of which"
        " sft/lr=3,seed=0 and 1 more were cancelled",
    )
    made.record_stages(stages((1, 2)))  # without them in the grid, the sweep continues
    assert exit_code(made.drive()) == 0
    assert made.config("dpo/beta=1")["lr"] == 1


def test_the_best_cell_is_taken_with_all_its_runs(make: Make) -> None:
    grid = stages()
    grid["dpo"]["from"]["take"] = "best-cell"
    made = make(grid)
    made.losses = {"sft/lr=3,seed=0": -9.0, "sft/lr=3,seed=1": 99.0}
    made.drive()
    cells = {run.cell for run in made.plan.only("dpo").runs}
    assert cells == {"dpo/beta=1,sft/lr=1", "dpo/beta=2,sft/lr=1"}
    assert [run.seed for run in made.plan.only("dpo").runs] == [0, 0, 1, 1]


@pytest.mark.parametrize("end", ["NaN", "inf", None])
@pytest.mark.parametrize("take", ["best", "best-cell"])
def test_a_stage_does_not_continue_from_a_diverged_run(
    make: Make, take: str, end: str | None
) -> None:
    """A text for NaN counts as NaN, and so does null after numbers."""
    grid = stages()
    grid["dpo"]["from"]["take"] = take
    made = make(grid)
    made.ends = {"sft/lr=1,seed=0": end, "sft/lr=1,seed=1": end}
    made.drive()
    assert {made.config(run.name)["lr"] for run in made.plan.only("dpo").runs} == {2}


def test_if_all_runs_may_have_diverged_the_best_is_taken(make: Make) -> None:
    made = make()
    made.ends = dict.fromkeys(f"sft/lr={lr},seed={s}" for lr in (1, 2, 3) for s in (0, 1))
    made.drive()
    assert made.config("dpo/beta=1")["lr"] == 1


def test_a_parent_without_a_checkpoint_holds_its_children_back(make: Make) -> None:
    made = make()
    made.bare = {"dpo/beta=1"}
    summary = made.drive()
    assert summary.waits == (
        "held back: 1 run of eval waits for checkpoint.sampler of dpo/beta=1, which has recorded"
        " no sampler_path",
    )
    assert (summary.counts[State.SUCCEEDED], summary.held_back) == (10, 1)


def test_a_relaunch_with_more_cells_runs_only_what_is_new(make: Make) -> None:
    made = make()
    made.drive()
    before = made.submitted()
    made.record_stages(stages((3, 1, 2, 5)))  # worse: the best stays
    summary = made.drive()
    assert made.submitted()[len(before) :] == ["sft/lr=5,seed=0", "sft/lr=5,seed=1"]
    assert exit_code(summary) == 0 and not any(run.retired for run in made.plan.runs)
    made.record_stages(stages((3, 1, 2, 5, 0)))  # better: it gets new children
    assert exit_code(made.drive()) == 0
    assert len(made.backend.submitted) == len(set(made.backend.submitted))
    fresh = made.backend.submitted[len(before) + 2 :]
    names = made.names()
    assert [names[job.partition("-")[0]].partition("/")[0] for job in fresh] == (
        ["sft"] * 2 + ["dpo"] * 2 + ["eval"] * 2
    )
    assert sum(run.retired for run in made.plan.runs) == 4


@pytest.mark.parametrize("kind", [Kind.KILL, Kind.KILL_AFTER])
def test_a_launcher_killed_twenty_times_makes_the_same_runs_once(
    tmp_path: Path, no_sync: None, fake_backend: None, kind: Kind
) -> None:
    whole = Pipeline(tmp_path / "whole", stages())
    whole.drive()
    wanted = {name: whole.config(name) for name in whole.submitted()}
    assert len(wanted) == 11
    made = Pipeline(tmp_path / "killed", stages())
    struck: list[str] = []
    rng = random.Random(7)
    while len(struck) < 20 or not any("/chosen/" in what for what in struck):
        # Kills before each first write would prevent all progress; kills after it do not.
        last = 1 if kind is Kind.KILL_AFTER else rng.randrange(1, 4)
        faults = Faults(at_write(last, kind))
        store, backend = FaultyStore(made.store, faults), FaultyBackend(made.backend, faults)
        with suppress(Killed):
            assert not made.drive(made.scheduler(store, backend)).finished, struck
        struck += [what for _, _, what in faults.struck]
        made.work()
    assert any("submit" in what for what in struck)
    made.drive()
    assert sorted(made.submitted()) == sorted(wanted)
    assert {name: made.config(name) for name in wanted} == wanted
    assert made.plan.runs == whole.plan.runs


def test_the_view_ranks_runs_within_stages_and_shows_new_ones(make: Make) -> None:
    made = make()
    poller = Poller(made.folder, clock=made.clock, wall=lambda: 0.0)
    first = poller.check()
    assert len(first.runs) == 7
    assert groupings(first)[0] == "stage"
    made.drive()
    seen = poller.check()
    ranks = {run.name: run.rank for run in seen.runs}
    assert (ranks["sft/lr=1,seed=0"], ranks["sft/lr=3,seed=0"]) == (1, 4)
    assert (ranks["dpo/beta=1"], ranks["dpo/beta=2"], ranks["eval/base"]) == (1, 2, None)
    lines = arranged(seen, by="stage")[0]
    groups = [line for line in lines if isinstance(line, Group)]
    assert [(group.title, len(group.runs), group.rank) for group in groups] == [
        ("sft", 6, None),
        ("dpo", 2, None),
        ("eval", 3, None),
    ]


def test_verbs_show_stages_and_lineage(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    made = make()
    made.failing = {"dpo/beta=2"}
    made.drive()
    root = ("--root", made.store.root)
    assert main(["status", "p", *root]) == 4
    printed = capsys.readouterr().out
    assert "dpo: t, from the best of sft\n" in printed
    assert "held back: 1 run of eval waits for dpo/beta=2, which has failed" in printed
    assert main(["show", "p/eval/dpo/beta=1", "--json", *root]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [above["name"] for above in shown["lineage"]] == ["dpo/beta=1", "sft/lr=1,seed=0"]
    assert (shown["run"]["stage"], shown["run"]["metric"]) == ("eval", None)
    assert main(["costs", "p/eval/dpo/beta=1", "--by", "chain", "--json", *root]) == 0
    [chain] = json.loads(capsys.readouterr().out)["costs"]
    assert chain["value"] == "eval/dpo/beta=1"
    frame = Registry(made.store.root).runs(sweep="p", where="stage = dpo")
    assert set(frame["name"]) == {"dpo/beta=1", "dpo/beta=2"}


def test_a_run_continues_from_the_last_checkpoint_that_stays() -> None:
    early = {"name": "10", "state_path": "a"}
    late = {"name": "20", "state_path": "b", "ttl_seconds": 3600}
    final = {"name": "final", "final": True, "state_path": "c"}
    assert last([early, final, {"name": "30", "sampler_path": "x"}], "state_path") == final
    assert last([early, late], "state_path") == early
    assert last([late], "state_path") == late
    assert last([early], "sampler_path") is None


def test_runs_of_a_stage_are_compared_by_their_parents(make: Make) -> None:
    made = make()
    made.drive()
    data = load(Registry(made.store.root), "p/eval", "loss", "minimize", rollouts=False)
    assert data.name == "p/eval"
    assert {run.cell: run.config for run in data.runs} == {
        "eval/dpo/beta=1": {"from": "dpo/beta=1", "model": "m"},
        "eval/dpo/beta=2": {"from": "dpo/beta=2", "model": "m"},
        "eval/base": {"from": "the base model", "model": "m"},
    }
    with pytest.raises(UsageError, match="p has stages: name one of p/sft, "):
        load(Registry(made.store.root), "p", None, None)
    with pytest.raises(NotFound, match="no stage 'rl' in p: choose from sft, dpo, eval"):
        load(Registry(made.store.root), "p/rl", None, None)


def test_checkpoints_that_a_stage_may_take_are_protected(make: Make) -> None:
    made = make()
    made.failing = {"sft/lr=2,seed=1"}
    made.drive()
    names = made.names()
    waiting = referred(Registry(made.store.root, cache=False).all_handles())[1]
    assert {names[run] for run in waiting} == {name for name in names.values() if "sft" in name}
    made.retry("sft/lr=2,seed=1")
    made.drive()
    taken = referred(Registry(made.store.root, cache=False).all_handles())[1]
    names = made.names()
    assert {names[run] for run in taken} == {"sft/lr=1,seed=0", "dpo/beta=1", "dpo/beta=2"}
