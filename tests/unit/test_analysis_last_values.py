"""Which value of a run counts if the grid does not say."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import written

from sweeper import analysis
from sweeper.analysis.comparison.cells import rank
from sweeper.analysis.reading.frames import SweepData, load
from sweeper.analysis.reading.last_values import OF, settle
from sweeper.results.registry import Registry

AUTO = {"name": "test/nll", "goal": "minimize", "at": "auto"}


@pytest.fixture
def swept(tmp_path: Path) -> Any:
    """Return a function that writes two cells of three seeds, with a given curve."""

    def made(curve: Any, metric: dict[str, str] = AUTO, name: str = "demo") -> SweepData:
        rng = np.random.default_rng(3)
        sweep = written.Written(tmp_path, name, {"lr": [0, 1]}, metric)
        for lr in (0, 1):
            for seed in range(3):
                rows = [
                    {"step": i, "test/nll": float(v)} for i, v in enumerate(curve(rng, lr, seed))
                ]
                sweep.run({"lr": lr}, seed, rows)
        sweep.save()
        return load(Registry(str(tmp_path)), name, None, None)

    return made


def _at(data: SweepData) -> str | None:
    return data.metric and data.metric.at


def flat(rng: np.random.Generator, lr: int, seed: int) -> Any:
    """Return a curve whose cells differ by less than single values scatter."""
    return 1 + 0.1 * lr + rng.normal(0, 0.1, 40)


@pytest.mark.parametrize("factor", [1.0, 1e300])  # squares of the large values overflow
def test_where_the_last_values_are_noise_a_mean_of_some_is_judged_by(swept, factor):
    data = swept(lambda rng, lr, seed: factor * flat(rng, lr, seed))
    (settled,) = settle(data)
    assert _at(settled) == f"mean_of_last={OF}" and settled.ends.noisy
    assert settled.ends.scatter / factor == pytest.approx(0.1, rel=0.3)
    for run, before in zip(settled.runs, data.runs, strict=True):
        values = before.curves["test/nll"].values[-OF:]
        assert run.value == pytest.approx(float(values.mean())) and before.value == values[-1]
    before, after = (
        sum(cell.summary.sd or 0.0 for cell in rank(study).cells) for study in (data, settled)
    )
    assert after < 0.8 * before


@pytest.mark.parametrize(
    "curve",
    [
        lambda rng, lr, seed: 2 - 0.1 * np.arange(20) + rng.normal(0, 0.1, 20),  # still learns
        lambda rng, lr, seed: lr + 0.3 * seed + rng.normal(0, 0.1, 20),  # seeds differ by more
        lambda rng, lr, seed: 1 + rng.normal(0, 0.1, 2 * OF - 1),  # too few to tell
        lambda rng, lr, seed: np.append(1 + rng.normal(0, 0.1, 20), [np.inf, 1.0]),
        lambda rng, lr, seed: np.full(20, 1.0 + lr),
    ],
)
def test_the_last_value_is_used_unless_the_ends_are_noisy(swept, curve):
    data = swept(curve)
    (settled,) = settle(data)
    assert _at(settled) == "last" and settled.ends is None
    assert [run.value for run in settled.runs] == [run.value for run in data.runs]


@pytest.mark.parametrize("place", [-1, -4, -9])
@pytest.mark.parametrize("noisy", [True, False])
def test_one_outlier_does_not_change_what_all_runs_are_judged_by(swept, noisy, place):
    """A spike in one run neither counts as scatter of all runs nor hides it."""

    def curve(rng: np.random.Generator, lr: int, seed: int) -> Any:
        values = flat(rng, lr, seed) if noisy else 1 + 0.1 * seed + rng.normal(0, 0.02, 40)
        values[place] += 30.0 * (lr == 1 and seed == 1)
        return values

    (settled,) = settle(swept(curve))
    assert _at(settled) == (f"mean_of_last={OF}" if noisy else "last")


@pytest.mark.parametrize("at", ["last", "best", "mean_of_last=2"])
def test_the_choice_of_the_grid_is_kept(swept, at):
    data = swept(flat, AUTO | {"at": at})
    assert settle(data) == (data,)


def test_sweeps_that_are_compared_are_judged_by_the_same_value(swept):
    noisy, calm = swept(flat), swept(lambda rng, lr, seed: rng.normal() + np.zeros(20), name="calm")
    settled = settle(noisy, calm)
    assert len({_at(data) for data in settled}) == 1
    assert settle(noisy, replace(calm, metric=replace(calm.metric, at="last")))[0] == noisy


def test_the_report_names_the_mean_and_keeps_its_command(swept, tmp_path):
    swept(flat)
    report = analysis.analyze(str(tmp_path), "demo", pictures=False)
    assert "mean of the last 5 values of each run" in report.verdict
    (finding,) = [f for f in report.document["findings"] if f["kind"] == "noisy_ends"]
    assert "at: last" in finding["text"] and "--at" not in Path(report.html_path).read_text()
    report = analysis.analyze(str(tmp_path), "demo", at="last", pictures=False)
    assert "last value of each run" in report.verdict


def test_analyze_refuses_unknown_options(tmp_path):
    with pytest.raises(TypeError, match="no option 'noisy'"):
        analysis.analyze(str(tmp_path), "demo", noisy="own")  # pyright: ignore[reportCallIssue]


def test_identical_runs_do_not_differ_by_a_rounding_error(swept):
    """The mean of three equal numbers may be off in its last bit."""
    values = [0.1 * (-1) ** step + 2 / 37 for step in range(40)]
    (settled,) = settle(swept(lambda rng, lr, seed: [value + lr / 3 for value in values]))
    assert settled.ends.noisy and settled.ends.between == 0


def test_the_verdict_says_when_only_the_mean_decides(swept, tmp_path):
    """Spikes near the end of the better cell reverse the means, but not the last values."""

    def spiked(rng: np.random.Generator, lr: int, seed: int) -> Any:
        values = 1 + 0.1 * lr + rng.normal(0, 0.002, 40)
        values[37] += 3 * (1 - lr)
        return values

    swept(spiked)
    verdict = analysis.analyze(str(tmp_path), "demo", pictures=False).document["verdict"]
    assert verdict["best"] == "lr=1" and verdict["label"].endswith(", but not by the last value")
