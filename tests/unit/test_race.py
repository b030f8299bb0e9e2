"""`seeds: {race: 3..6}`: every cell gets 3 seeds, then only cells that may still be the best."""

import random
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chi2
from support.driven import Driven, at_write, metrics

from sweeper.analysis.comparison.cells import rank
from sweeper.analysis.findings.study import study
from sweeper.analysis.reading.frames import load
from sweeper.analysis.reading.last_values import settle
from sweeper.analysis.reading.series import Series
from sweeper.analysis.statistics.distributions import student_tail
from sweeper.analysis.statistics.noise import fit_noise
from sweeper.analysis.statistics.seeds import against_best
from sweeper.cli import main
from sweeper.errors import GridError
from sweeper.money.forecast import not_known_yet
from sweeper.planner.plan import plan
from sweeper.results.race import chi_squared_chance, contenders, level, next_round, student_chance
from sweeper.results.registry import Registry
from sweeper.results.status import read_status
from sweeper.scheduler.progress import exit_code
from sweeper.sweep.plan import Run
from sweeper.sweep.race import sentence
from sweeper.sweep.states import State
from sweeper.testing import (
    Fault,
    Faults,
    FaultyBackend,
    FaultyStore,
    Killed,
)
from sweeper.tui.poller import Poller
from sweeper.tui.render import head_lines
from sweeper.tui.text import UNICODE

CLOSE = {1: (1.0, 1.1, 0.9, 1.0, 1.1, 0.9), 2: (1.0, 0.95, 1.1, 1.05, 0.9, 1.0)}
FAR = {3: (9.0, 9.1, 8.9, 9.0, 9.1, 8.9), 4: (8.0, 8.1, 7.9, 8.0, 8.1, 7.9)}


class Raced(Driven):
    """A sweep whose runs record the given values."""

    def __init__(self, root: Path, values: dict[int, tuple[float, ...]], race: str) -> None:
        super().__init__(root, "r")
        self.values = values
        self.record_seeds(race)

    def record_seeds(self, seeds: str | int) -> None:
        """Record the plan with a race for these seeds, or with this number of seeds."""
        self.record(
            {
                "command": ["t", "{lr}", "{seed}", "{log_path}"],
                "grid": {"lr": [*self.values]},
                "seeds": {"race": seeds} if isinstance(seeds, str) else seeds,
                "metric": {"name": "loss", "goal": "minimize"},
                "launch": {"backend": "fake", "max_parallel": 50},
            }
        )

    def files(self, run: Run, attempt: int) -> Mapping[str, str]:
        value = self.values[run.config["lr"]][run.seed or 0]
        return {"metrics.jsonl": metrics({"step": 1, "loss": value})}

    def counts(self) -> dict[str, int]:
        """Return the number of succeeded runs of each cell."""
        states = self.folder.read_states()
        done = [
            r for r in self.plan.runs if r.id in states and states[r.id].state is State.SUCCEEDED
        ]
        return dict(Counter(run.cell for run in done))

    def sentence(self) -> str | None:
        return sentence(self.plan)


Make = Callable[..., Raced]


@pytest.fixture
def make(tmp_path: Path, no_sync: None, fake_backend: None) -> Make:
    return lambda values=None, race="3..6": Raced(tmp_path, values or CLOSE | FAR, race)


def test_only_cells_that_may_be_best_get_more_seeds(make: Make) -> None:
    made = make()
    assert made.sentence() == (
        "race: every cell gets 3 seeds, and cells that may be the best get up to 6: at most 12 more"
        " runs"
    )
    assert len(not_known_yet(made.plan)) == 12
    assert exit_code(made.drive()) == 0
    assert not_known_yet(made.plan) == []
    assert made.counts() == {"lr=1": 6, "lr=2": 6, "lr=3": 3, "lr=4": 3}
    assert made.sentence() == (
        "raced: 6 of 24 runs were not needed: the cells that may be the best have all their seeds"
    )
    status = read_status(Registry(made.store.root).sweep("r"))
    assert status.finished and status.exit_code == 0
    assert len(made.backend.submitted) == 18


def test_a_race_ends_once_one_cell_is_clearly_best(make: Make) -> None:
    made = make(FAR)
    made.drive()
    assert made.counts() == {"lr=3": 3, "lr=4": 3}
    assert made.sentence() == "raced: 6 of 12 runs were not needed: one cell is clearly the best"
    report = study(load(Registry(made.store.root), "r", None, None))
    assert report.ranking.best is not None and not report.ranking.tied
    [text] = [finding.text for finding in report.findings if finding.kind == "raced"]
    assert text.startswith("Raced: 6 of 12 runs were not needed")


def test_a_race_ends_if_runs_are_identical(make: Make) -> None:
    made = make({1: (1.0,) * 6, 2: (2.0,) * 6})
    made.drive()
    assert made.counts() == {"lr=1": 3, "lr=2": 3}
    assert "identical" in (made.sentence() or "")


def test_diverged_cells_and_failed_runs_get_no_more_seeds(make: Make) -> None:
    made = make({1: CLOSE[1], 2: CLOSE[2], 3: (0.1, float("nan"), 0.2, 0.1, 0.1, 0.1)})
    made.failing = {"lr=1,seed=1"}
    assert exit_code(made.drive()) == 3
    assert made.counts() == {"lr=1": 5, "lr=2": 6, "lr=3": 3}


def test_a_race_without_values_waits_for_a_retry(make: Make) -> None:
    made = make(FAR)
    made.failing = {f"lr=4,seed={seed}" for seed in range(3)}
    summary = made.drive()
    assert summary.waits == (
        "race: waits for cells with a value of loss: see why runs failed (up to 6 runs to come)",
    )
    assert (summary.held_back, exit_code(summary)) == (6, 4)
    assert not read_status(Registry(made.store.root).sweep("r")).finished
    for seed in range(3):
        made.retry(f"lr=4,seed={seed}")
    assert exit_code(made.drive()) == 0
    assert made.counts() == {"lr=3": 3, "lr=4": 3}


def test_a_cancelled_run_stops_the_race(make: Make) -> None:
    made = make()
    made.cancel("lr=2,seed=1")
    summary = made.drive()
    assert summary.waits == (
        "race: waits for runs that were cancelled: retry them, or launch again "
        "(up to 12 runs to come)",
    )
    assert sum(made.counts().values()) == 11


def test_more_cells_or_seeds_continue_the_race(make: Make) -> None:
    made = make()
    made.drive()
    made.values = made.values | {5: tuple(v - 0.02 for v in CLOSE[1])}
    made.record_seeds("3..6")
    assert exit_code(made.drive()) == 0
    assert made.counts() == {"lr=1": 6, "lr=2": 6, "lr=3": 3, "lr=4": 3, "lr=5": 6}
    made.values = {lr: losses + losses for lr, losses in made.values.items()}
    made.record_seeds("3..8")
    made.drive()
    assert made.counts() == {"lr=1": 8, "lr=2": 8, "lr=3": 3, "lr=4": 3, "lr=5": 8}
    assert not any(run.retired for run in made.plan.runs)


def test_a_sweep_that_becomes_a_race_keeps_its_seeds(make: Make) -> None:
    made = make()
    made.record_seeds(4)
    made.drive()
    made.record_seeds("3..6")
    made.drive()
    assert made.counts() == {"lr=1": 6, "lr=2": 6, "lr=3": 4, "lr=4": 4}


@pytest.mark.parametrize("kind", [Fault.KILL, Fault.KILL_AFTER])
def test_a_launcher_killed_at_any_write_runs_the_same_race(
    tmp_path: Path, no_sync: None, fake_backend: None, kind: Fault
) -> None:
    whole = Raced(tmp_path / "whole", CLOSE | FAR, "3..6")
    whole.drive()
    made = Raced(tmp_path / "killed", CLOSE | FAR, "3..6")
    struck: list[str] = []
    rng = random.Random(5)
    for _ in range(200):
        last = rng.randrange(1, 5)
        faults = Faults(at_write(last, kind))
        store, backend = FaultyStore(made.store, faults), FaultyBackend(made.backend, faults)
        with suppress(Killed):
            made.drive(made.scheduler(store, backend))
            break
        struck += [what for _, _, what in faults.struck]
        made.work()
    assert any("/race/" in what for what in struck) and any("submit" in what for what in struck)
    made.drive()
    assert sorted(made.backend.submitted) == sorted(whole.backend.submitted)
    assert made.plan.runs == whole.plan.runs


def test_a_race_needs_two_cells() -> None:
    grid = {
        "name": "r",
        "command": ["t", "{seed}"],
        "seeds": {"race": "3..6"},
        "metric": {"name": "loss", "goal": "minimize"},
    }
    message = "seeds: seeds.race needs two cells or more: write seeds: 3, or add an axis"
    with pytest.raises(GridError, match=message):
        plan(grid, validate=False)


@pytest.mark.parametrize("df", [1, 2, 3, 4, 9, 10, 57])
@pytest.mark.parametrize("t", [0.0, 0.3, 1.7, 4.0, -12.0])
def test_the_t_distribution_equals_the_reference(t: float, df: int) -> None:
    assert student_chance(t, df) == pytest.approx(float(student_tail(t, df)), abs=1e-12)


@pytest.mark.parametrize("df", [1, 2, 3, 4, 5, 18, 19])
@pytest.mark.parametrize("value", [0.0, 0.5, 3.0, 30.0])
def test_the_chi_squared_distribution_equals_scipy(value: float, df: int) -> None:
    assert chi_squared_chance(value, df) == pytest.approx(float(chi2.sf(value, df)), abs=1e-12)


@pytest.mark.parametrize("cells", [2, 6, 12, 20])
def test_the_report_agrees_that_a_clear_cell_is_best(cells: int) -> None:
    """Otherwise a race would end and the report would find no winner."""
    rng = np.random.default_rng(cells)
    clear = 0
    for _ in range(60):
        values = rng.normal(0, 1, (cells, 5)).round(6)
        values[0] -= 3
        groups = {str(at): row.tolist()[: 4 + at % 2] for at, row in enumerate(values)}
        if contenders(groups, 1.0, 0.01) == ["0"]:
            clear += 1
            compared = against_best(groups, "0", fit_noise(groups), price=5.0)
            assert all(comparison.told_apart for comparison in compared.values())
    assert clear > 10


def test_a_noisier_cell_needs_a_larger_lead() -> None:
    calm = {str(n): [1.0, 1.01, 0.99, 1.0] for n in range(5)}
    alike = contenders(calm | {"best": [0.972, 0.982, 0.962, 0.972]}, 1, 0.01)
    noisy = contenders(calm | {"best": [0.94, 1.004, 0.972, 0.972]}, 1, 0.01)
    assert alike == ["best"] and noisy is not None and len(noisy) > 1


def test_rounds_grow_and_levels_rise() -> None:
    rounds = [3]
    while rounds[-1] < 10:
        rounds.append(next_round(rounds[-1], 10))
    assert rounds == [3, 4, 5, 6, 7, 8, 10]
    levels = [level(seeds, 10) for seeds in rounds]
    assert levels == sorted(levels) and 0.002 < levels[0] < 0.003 and 0.02 < levels[-1] < 0.03


def test_contenders_are_the_cells_that_may_be_best() -> None:
    cells = {"a": [1.0, 1.1, 0.9], "b": [1.1, 1.2, 1.0], "c": [5.0, 5.1, 4.9]}
    assert contenders(cells, 1.0, 0.05) == ["a", "b"]
    assert contenders(cells, -1.0, 0.05) == ["c"]
    assert contenders({"a": [1.0, 1.0], "b": [2.0, 2.0]}, 1.0, 0.05) is None
    assert contenders({"a": [1.0], "b": [2.0]}, 1.0, 0.05) is None
    # A far noisier cell does not change the estimated noise of the others.
    noisy = cells | {"d": [9.0, 90.0, 400.0], "e": [5.2, 5.1, 5.0]}
    alive = contenders(noisy, 1.0, 0.01)
    assert alive is not None and not {"c", "e"} & set(alive)


def test_the_report_uses_the_level_of_the_round(make: Make) -> None:
    made = make()
    made.drive()
    ranking = rank(load(Registry(made.store.root), "r", None, None))
    assert ranking.price == pytest.approx(0.05 / level(6, 6))


def test_watch_and_show_report_the_race(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    made = make()
    scheduler = made.scheduler()
    scheduler.step()
    poller = Poller(made.folder)
    first = poller.check()
    assert first.race.startswith("race: every cell gets 3 seeds")
    made.drive(scheduler)
    second = poller.check()
    assert len(second.runs) == len(first.runs) + 6
    sentence = "raced: 6 of 24 runs were not needed"
    assert second.race.startswith(sentence)
    assert any(sentence in text for line in head_lines(second, UNICODE) for text, _ in line)
    assert main(["show", "r/lr=1,seed=4", "--root", made.store.root]) == 0
    assert sentence in capsys.readouterr().out


def test_the_report_judges_a_race_by_last_values(make: Make) -> None:
    """A mean of the last values might choose another cell than the race."""
    made = make()
    made.drive()
    data = load(Registry(made.store.root), "r", None, None)
    flat = Series(np.arange(20.0), np.tile([1.0, 3.0], 10), np.arange(20))
    noisy = replace(data, runs=tuple(replace(r, curves={"loss": flat}) for r in data.runs))
    (settled,) = settle(noisy)
    assert settled.metric is not None and settled.metric.at == "last"
    (alone,) = settle(replace(noisy, plan=noisy.plan and noisy.plan._replace(race=None)))
    assert alone.metric is not None and alone.metric.at.startswith("mean_of_last")
