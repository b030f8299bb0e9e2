"""Axes, stability, the next grid, trade-offs and rollouts of sweeps with known results."""

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import written

from sweeper import analysis
from sweeper.analysis.comparison.behaviour import Behaviour
from sweeper.analysis.comparison.tradeoffs import front
from sweeper.analysis.findings.nextgrid import NextGrid, propose
from sweeper.analysis.findings.study import Study, study
from sweeper.analysis.reading.costs import Cost, dollars, parse_prices
from sweeper.analysis.reading.frames import load
from sweeper.analysis.reading.keys import choose
from sweeper.errors import NotFound, UsageError
from sweeper.grid import parse_grid
from sweeper.results.registry import Registry

pytestmark = pytest.mark.e2e


def studied(root: Path, name: str = "demo", **prices: float) -> Study:
    return study(load(Registry(str(root)), name, None, None), prices)


def kinds(result: Study) -> dict[str, Any]:
    return {finding.kind: finding for finding in result.findings}


def test_a_sweep_with_a_known_truth_is_reported_exactly(tmp_path: Path):
    written.truth(tmp_path)
    result = studied(tmp_path, "truth")
    ranking, findings = result.ranking, kinds(result)
    equal = {"learning_rate=0.001,lora_rank=64", "learning_rate=0.002,lora_rank=64"}
    assert {ranking.best.name, *(cell.name for cell in ranking.tied)} == equal
    assert len(ranking.apart) == 11
    assert result.verdict.kind == "tied"
    assert findings["edge"].evidence["axis"] == "lora_rank"
    assert findings["edge"].evidence["side"] == "largest"
    assert findings["hole"].cells == ("learning_rate=0.004,lora_rank=16",)
    assert findings["diverged"].cells == ("learning_rate=0.008,lora_rank=64",)
    assert findings["incomplete"].evidence["states"] == {"failed": 4, "succeeded": 56}
    assert findings["trend"].evidence["axis"] == "lora_rank"
    assert not {"all_equal", "same_curves", "unstable", "identical", "undeclared"} & findings.keys()
    answers = {check.name: check.good for check in result.verdict.checks}
    assert answers == {
        "Beyond the noise?": False,
        "Seeds": True,
        "Inside the grid?": False,
        "Complete?": False,
        "Stable?": False,
    }
    assert [failure.last_line for failure in result.failures] == [
        "RuntimeError: rank 16 does not fit"
    ]
    following = result.next
    assert following is not None and following.kind == "extend" and following.runs == 20
    assert "  lora_rank: [4, 16, 64, 256]" in following.yaml and "# compared" in following.yaml
    assert parse_grid(following.yaml, "next.yaml").name == "truth"
    assert following.overrides == ()


def test_ties_are_confirmed_on_fresh_seeds(tmp_path: Path):
    means = {(1e-4, 8): 2.0, (1e-3, 8): 0.30, (1e-2, 8): 0.301, (1e-1, 8): 3.0}
    grid = "recipe: sft\nbase: {max_steps: 5}\ngrid: {learning_rate: [1e-3, 1e-2]}\nseeds: 3\n"
    overrides = ["max_steps=9", "learning_rate=[1,2]", "~warmup"]
    written.grid_of_means(tmp_path, means, grid=grid, overrides=overrides)
    proposal = studied(tmp_path).next
    assert proposal is not None and proposal.kind == "confirm" and proposal.cells == 2
    read = parse_grid(proposal.yaml, "next.yaml")
    assert read.name == "demo-confirm"
    # The cells keep an axis on which they are equal.
    assert "- {learning_rate: 1e-3, lora_rank: 8}" in proposal.yaml
    assert "- {learning_rate: 0.01, lora_rank: 8}" in proposal.yaml
    assert "seeds: [3, 4, " in proposal.yaml
    assert proposal.overrides == ("max_steps=9",)
    (step,) = studied(tmp_path).verdict.steps
    assert step.startswith("Take the cheaper of the 2 cells at the top, or launch next.yaml (12 ")
    assert "6 seeds of each find a lead of 0.042 or more in 4 of 5 sweeps." in step


def test_cells_with_one_and_the_same_mean_ask_for_no_more_runs(tmp_path: Path):
    cells = [({"lr": lr}, [1.0, 1.0]) for lr in (1, 2)] + [({"lr": 4}, [3.0, 3.1])]
    written.measured(tmp_path, cells, grid="recipe: sft\ngrid: {lr: [1, 2, 4]}\nseeds: 2\n")
    result = studied(tmp_path)
    assert result.verdict.kind == "tied" and result.next is None and result.no_next is None


def test_cells_that_an_axis_is_judged_without_are_named(tmp_path: Path):
    cells = [({"lr": lr}, [1.0 / lr, 1.1 / lr]) for lr in (1, 2, 4)] + [
        ({"lr": 8}, [0.1, math.nan])
    ]
    written.measured(tmp_path, cells)
    result = studied(tmp_path)
    assert [level.shown for level in result.axes[0].levels] == ["1", "2", "4"]
    assert kinds(result)["axes_without"].text == (
        "Left out of the findings on axes, because runs there diverged or failed: lr=8."
    )


def test_of_many_cells_with_one_run_the_first_get_more_seeds(tmp_path: Path):
    means = {(10.0**-rate, 8): rate / 10 for rate in range(1, 11)}
    grid = "recipe: sft\ngrid: {learning_rate: [1e-3, 1e-2]}\nseeds: 1\n"
    written.grid_of_means(tmp_path, {**means, (2e-2, 8): 0.0}, seeds=1, grid=grid)
    result = studied(tmp_path)
    assert result.verdict.kind == "unproven"
    assert (result.next.kind, result.next.cells, result.next.runs) == ("confirm", 8, 24)
    assert (
        "seeds: [1, 2, 3]" in result.next.yaml
        and "{learning_rate: 0.02, lora_rank: 8}" in result.next.yaml
    )
    assert "Launch next.yaml: the first 8 cells on fresh seeds (24 runs)." in result.verdict.steps


def test_a_grid_that_cannot_be_read_has_no_next_one(tmp_path: Path):
    cells = [({"lr": lr}, [1.0 / lr, 1.05 / lr]) for lr in (1, 2, 4)]
    written.measured(tmp_path, cells)
    result = studied(tmp_path)
    assert "edge" in kinds(result)

    def proposed(text: str) -> NextGrid | str | None:
        data = replace(result.data, plan=result.data.plan._replace(grid_text=text))
        return propose(data, result.ranking, result.findings, None)

    why = {
        "a: [": "cannot be read",
        "- 1": "is not a mapping",
        "": "was not recorded",
        "extends: x.yaml\ngrid: {lr: [1, 2, 4]}": "whose text is not on record",
        "a: &a [*a]": "no section `grid`",
    }
    for text, reason in why.items():
        message = proposed(text)
        assert isinstance(message, str) and reason in message
    assert isinstance(proposed("grid: {lr: [1, 2, 4]}"), NextGrid)


def test_what_a_grid_extends_is_written_out_in_the_next_one(tmp_path: Path):
    """The next grid does not depend on the extended files."""
    cells = [({"lr": lr}, [1.0 / lr, 1.05 / lr]) for lr in (1, 2, 4)]
    extends = [
        {"path": "near.yaml", "grid": "extends: far.yaml\nbase: {warm: 2, cold: 3}\n"},
        {"path": "far.yaml", "grid": "name: far\nrecipe: sft\nbase: {warm: 1, steps: 10}\n"},
    ]
    grid = "extends: near.yaml\nbase: {cold: 4}\ngrid: {lr: [1, 2, 4]}\nseeds: 2\n"
    written.measured(tmp_path, cells, grid=grid, extends=extends)
    following = studied(tmp_path).next
    assert following is not None and following.kind == "extend"
    read = parse_grid(following.yaml, "next.yaml")
    assert (read.name, read.recipe, read.extends) == ("demo", "sft", ())
    base = {key: setting.value for key, setting in read.base.items()}
    assert base == {"warm": 2, "steps": 10, "cold": 4}
    assert "lr: [1, 2, 4, 8]" in following.yaml or "- 8" in following.yaml


def test_marginal_means_use_only_what_was_measured_at_every_value(tmp_path: Path):
    # x=1 has y=1 and y=2; x=2 has only y=1. The hole at (2, 2) must not move the mean of x=1.
    cells = [
        ({"x": 1, "y": 1}, [1.0, 1.2]),
        ({"x": 1, "y": 2}, [9.0, 9.2]),
        ({"x": 2, "y": 1}, [2.0, 2.2]),
        ({"x": 2, "y": 2}, [None]),
    ]
    written.measured(tmp_path, cells, axes=("x", "y"))
    axes = {axis.key: axis for axis in studied(tmp_path).axes}
    assert [entry.mean for entry in axes["x"].levels] == pytest.approx([1.1, 2.1])
    assert axes["x"].effect.value == pytest.approx(-1.0)
    assert axes["x"].levels[0].low is not None and axes["x"].matched
    assert [entry.mean for entry in axes["y"].levels] == pytest.approx([1.1, 9.1])


def test_an_interaction_is_reported(tmp_path: Path):
    cells = [
        ({"x": x, "y": y}, [abs(x - y) + 1.0, abs(x - y) + 1.1]) for x in (1, 2) for y in (1, 2)
    ]
    written.measured(tmp_path, cells, axes=("x", "y"))
    result = studied(tmp_path)
    assert "x depends on y" in kinds(result)["interaction"].text
    assert set(kinds(result)["no_effect"].evidence) == {"x", "y"}


def test_means_of_equal_cells_depend_on_nothing(tmp_path: Path):
    noise = random.Random(3)
    cells = [
        ({"x": x, "y": y}, [noise.gauss(1, 0.1) for _ in range(3)])
        for x in (1, 2, 3)
        for y in (1, 2, 3)
    ]
    written.measured(tmp_path, cells, axes=("x", "y"))
    result = studied(tmp_path)
    assert not {"interaction", "trend", "edge"} & kinds(result).keys()
    # The report still shows the grid of means and the best value of each row.
    assert len(set(result.pairs[0].best_x)) > 1


def test_a_random_search_has_no_trend_by_the_means_of_its_values(tmp_path: Path):
    noise = random.Random(1)
    cells = [
        ({"x": x, "y": noise.random()}, [x + noise.gauss(0, 0.01) for _ in range(2)])
        for x in (1, 2, 3)
    ]
    written.measured(tmp_path, cells, axes=("x", "y"))
    result = studied(tmp_path)
    assert not any(axis.matched for axis in result.axes)
    assert {axis.effect.p for axis in result.axes} == {None} and result.trends == ()


def test_noise_that_comes_back_is_not_called_lost(tmp_path: Path):
    noise = random.Random(5)
    sweep = written.Written(tmp_path, axes={"lr": [1, 2, 3]})
    for lr in (1, 2, 3):
        for seed in range(3):
            rows = [{"step": s, "test/nll": noise.gauss(2, 0.1)} for s in range(30)]
            sweep.run({"lr": lr}, seed, rows)
    sweep.save()
    assert studied(tmp_path).stability.unstable == ()


def test_a_run_that_ends_worse_than_it_began_is_reported_without_a_nan(tmp_path: Path):
    noise = random.Random(5)
    sweep = written.Written(tmp_path, axes={"lr": [1, 2, 3]})
    for lr in (1, 2, 3):
        ends = [2.5, 2.0, 1.5, 7.5] if lr == 3 else [2.5, 2.0, 1.5, 1.2]
        for seed in range(2):
            curve = [{"step": s, "test/nll": v + noise.gauss(0, 0.02)} for s, v in enumerate(ends)]
            sweep.run({"lr": lr}, seed, curve)
    sweep.save()
    result = studied(tmp_path)
    assert {cell.cell for cell in result.stability.unstable if cell.worse} == {"lr=3"}
    assert "2 runs of 1 cell ended worse than at the start" in kinds(result)["unstable"].text


def test_a_run_that_loses_what_it_learned_is_unstable(tmp_path: Path):
    sweep = written.Written(tmp_path, axes={"lr": [1, 2]})
    for lr in (1, 2):
        for seed in range(2):
            ends = [4.0, 2.0, 1.0, 3.5 if (lr, seed) == (2, 1) else 0.9 + seed / 50]
            sweep.run({"lr": lr}, seed, [{"step": s, "test/nll": v} for s, v in enumerate(ends)])
    sweep.save()
    result = studied(tmp_path)
    (cell,) = result.stability.unstable
    assert (cell.run, cell.first, cell.best, cell.last) == ("lr=2,seed=1", 4.0, 1.0, 3.5)
    rates = {rate.value: (rate.count, rate.trials) for rate in result.stability.rates}
    assert rates == {"1": (0, 2), "2": (1, 2)}
    assert kinds(result)["unstable"].level == "note"


def test_an_axis_that_does_not_reach_the_recipe(tmp_path: Path):
    sweep = written.Written(tmp_path, axes={"lr": [1, 2], "dead": [1, 2]})
    for lr in (1, 2):
        for dead in (1, 2):
            for seed in range(2):
                rows = written.curve(lr + seed / 10)
                sweep.run({"lr": lr, "dead": dead}, seed, rows)
    sweep.save()
    finding = kinds(studied(tmp_path))["same_curves"]
    assert finding.evidence["keys"] == ["dead"] and "dead may not reach" in finding.text


def test_what_counts_may_decide_the_winner(tmp_path: Path):
    sweep = written.Written(tmp_path, axes={"lr": [1, 2]})
    for lr, values in ((1, [3.0, 2.0, 1.0]), (2, [3.0, 0.2, 1.5])):
        for seed in range(2):
            rows = [{"step": s, "test/nll": v + seed / 100} for s, v in enumerate(values)]
            sweep.run({"lr": lr}, seed, rows)
    sweep.save()
    finding = kinds(studied(tmp_path))["judged_otherwise"]
    assert finding.evidence["winners"] == {"last": "lr=1", "best": "lr=2", "smoothed": "lr=1"}


def test_equal_cells_have_no_winner(tmp_path: Path):
    written.measured(tmp_path, [({"lr": lr}, [0.5, 0.5]) for lr in (1, 2, 3)])
    result = studied(tmp_path)
    assert result.ranking.best is None and result.verdict.kind == "none"
    assert "all_equal" in kinds(result) and "edge" not in kinds(result)


def test_keys_that_no_axis_declares_are_reported(tmp_path: Path):
    cells = [({"lr": 1}, [0.1, 0.2]), ({"lr": 2, "warmup": 3}, [0.3, 0.4])]
    written.measured(tmp_path, cells)
    assert kinds(studied(tmp_path))["undeclared"].evidence == {"keys": ["warmup"]}


def test_several_sweeps_are_one_with_an_axis_of_sweeps(tmp_path: Path):
    written.measured(tmp_path, [({"lr": 1}, [0.5, 0.6])], name="one")
    written.measured(tmp_path, [({"lr": 1}, [0.1, 0.2])], name="two")
    data = load(Registry(str(tmp_path)), ["one", "two"], None, None)
    result = study(data)
    assert result.ranking.keys == ("sweep",)
    assert result.ranking.best is not None and result.ranking.best.name == "two/lr=1"
    assert len({run.id for run in data.runs}) == 4


def test_the_pareto_front():
    assert front([1, 2, 3, 2], [3, 2, 1, 4]) == [0, 1, 2]
    assert front([1, 1, 2], [1, 1, 0.5]) == [0, 1, 2]
    assert front([1, 2], [1, 1]) == [0]


def test_prices():
    prices = parse_prices("train=0.4, sample=2")
    assert prices == {"train": 0.4, "sample": 2.0}
    cost = Cost(10, {"train": 1e6, "sample": 5e5}, 1.0)
    assert dollars(cost, prices) == pytest.approx(1.4)
    assert dollars(cost, {"train": 1.0}) is None and dollars(cost, {}) is None
    for wrong in ("train", "x=1", "train=-1", "train=x", "train=inf"):
        with pytest.raises(UsageError, match="dollars per million"):
            parse_prices(wrong)


def test_roles_are_found_by_name():
    keys = dict.fromkeys(("optim/entropy", "a/kl/b", "train/nll", "x", "env/all/reward/total"), 1)
    assert choose(keys, "test/nll") == {
        "train": "train/nll",
        "reward": "env/all/reward/total",
        "kl": "a/kl/b",
        "entropy": "optim/entropy",
    }


@pytest.fixture
def graded(tmp_path: Path) -> Any:
    """Return a function that makes two cells with rollouts. `first` are the rewards at iteration 0,
    and `last` those at the last."""

    def made(first: Any, last: Any, **more: Any) -> Behaviour:
        sweep = written.Written(
            tmp_path, axes={"lr": [1, 2]}, metric={"name": "reward", "goal": "maximize"}
        )
        for lr in (1, 2):
            for seed in range(2):
                rows = [{"step": s, "reward": lr + seed / 9 + s} for s in range(2)]
                run = sweep.run({"lr": lr}, seed, rows, config={"max_tokens": 8})
                written.rollouts(sweep, run, 0, first)
                written.rollouts(sweep, run, 7, last, **more)
        sweep.save()
        behaviour = studied(tmp_path).behaviour
        assert behaviour is not None
        return behaviour

    return made


def test_rollouts_are_counted_by_question(graded: Any):
    behaviour = graded([[0, 1, 0, 0]], [[1, 1, 0, 0], [1, 1, 1, 1]])
    cell = behaviour.cells[0]
    assert cell.signal == {0: 1.0, 7: 0.5}
    assert cell.passes[1].mean == pytest.approx(0.75)
    assert cell.passes[2].mean == pytest.approx((5 / 6 + 1) / 2)  # 1 of 6 pairs has no right answer
    assert cell.passes[4].mean == 1.0
    assert sum(cell.histogram) == pytest.approx(1.0)
    assert cell.truncated == 0.0  # the rollouts reach the limit but have ended
    assert cell.rollouts == 2 * 12


@pytest.mark.parametrize(
    ("rewards", "expected", "not_said"),
    [
        ([[0, 0], [0.1, 0.1]], "a low one: these groups teach nothing", "little left to learn"),
        ([[1, 1], [0.9, 0.9]], "a high one, so there is little left to learn", "teach nothing"),
    ],
)
def test_groups_that_are_all_wrong_differ_from_those_that_are_solved(
    graded: Any, tmp_path: Path, rewards: Any, expected: str, not_said: str
):
    graded(rewards, rewards)
    finding = kinds(studied(tmp_path))["rollouts_no_signal"]
    assert expected in finding.text
    assert not_said not in finding.text


def test_answers_that_did_not_end_are_cut(graded: Any):
    assert graded([[0, 1]], [[1, 0]], ended=False).cells[0].truncated == 1.0


def test_a_blow_up_of_length_and_repeated_text_are_flagged(graded: Any):
    behaviour = graded([[0, 0]], [[1, 0.5]], lengths=(90,), texts=("so so " * 60,))
    assert {flag.kind for flag in behaviour.flags} >= {"length", "repetition"}


def test_reward_without_success_is_flagged(graded: Any):
    behaviour = graded([[0.0, 0.1, 0.0, 0.1]], [[0.9, 0.8, 0.9, 0.7]])
    assert [flag.kind for flag in behaviour.flags if flag.kind != "collapse"] == [
        "reward_without_success"
    ] * 2


def test_questions_are_joined_by_what_they_say(tmp_path: Path):
    sweep = written.Written(
        tmp_path, axes={"lr": [1, 2]}, metric={"name": "reward", "goal": "maximize"}
    )
    for lr, prompts in ((1, ("q a", "q b")), (2, ("q b", "q a"))):
        run = sweep.run({"lr": lr}, 0, [{"step": 0, "reward": lr}])
        written.rollouts(sweep, run, 0, [[1, 1], [0, 0]], prompts=prompts)
    sweep.save()
    behaviour = studied(tmp_path).behaviour
    rewards = {question.prompt: question.rewards for question in behaviour.disagreements}
    assert rewards == {
        "q a": {"lr=1": (1.0, 2), "lr=2": (0.0, 2)},
        "q b": {"lr=1": (0.0, 2), "lr=2": (1.0, 2)},
    }


def test_of_two_attempts_the_later_counts(tmp_path: Path):
    sweep = written.Written(tmp_path, metric={"name": "reward", "goal": "maximize"})
    run = sweep.run({}, 0, [{"step": 0, "reward": 1.0}], "lost")
    sweep.run({}, 0, [{"step": 0, "reward": 1.0}], attempt=2)
    written.rollouts(sweep, run, 0, [[0, 0]])
    written.rollouts(sweep, run, 0, [[1, 1]], attempt=2)
    sweep.save()
    rollouts = load(Registry(str(tmp_path)), "demo", None, None).runs[0].rollouts
    assert [rollout.reward for rollout in rollouts] == [1.0, 1.0]


def test_damaged_summaries_are_passed_over(tmp_path: Path):
    sweep = written.Written(tmp_path, metric={"name": "reward", "goal": "maximize"})
    run = sweep.run({}, 0, [{"step": 0, "reward": 1.0}])
    written.rollouts(sweep, run, 0, [[1.0, math.nan]])
    (file,) = (tmp_path / "demo").rglob("*_rollout_summaries.jsonl")
    odd = ["[]", "{}", '{"total_reward": 1, "steps": 3}', '{"total_reward": 2, "steps": [5]}', "{"]
    file.write_text(file.read_text() + "\n".join(odd))
    sweep.save()
    result = studied(tmp_path)
    assert [r.reward for r in result.data.runs[0].rollouts][2:] == [1.0, 2.0]
    assert result.behaviour is not None and result.behaviour.cells[0].rollouts == 4


def test_a_folder_with_runs_of_other_programs(tmp_path: Path):
    for number, (rate, seed) in enumerate(((1, 0), (1, 1), (2, 0), (2, 1))):
        folder = tmp_path / "logs" / f"run-{number}"
        folder.mkdir(parents=True)
        config = {"learning_rate": rate, "seed": seed, "log_path": str(folder)}
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "metrics.jsonl").write_text(f'{{"step": 0, "loss": {rate + seed / 9}}}\n')
    registry = Registry(str(tmp_path / "elsewhere"))
    data = load(registry, str(tmp_path / "logs"), "loss", "minimize")
    result = study(data)
    assert result.ranking.best.settings == {"learning_rate": 1}
    assert [cell.summary.n for cell in result.ranking.cells] == [2, 2]
    assert kinds(result)["assumed"].evidence == {"runs": 4}
    with pytest.raises(NotFound):
        load(registry, str(tmp_path / "nowhere"), "loss", "minimize")


@pytest.mark.parametrize("place", ["below a root", "by its path", "a run alone"])
def test_a_foreign_folder_is_analysed_as_ls_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
):
    for rate in (0.1, 0.2):
        folder = tmp_path / "logs" / "mine" / f"rate-{rate}"
        folder.mkdir(parents=True)
        (folder / "metrics.jsonl").write_text(written.dump(written.curve(rate)))
        (folder / "config.json").write_text(json.dumps({"rate": rate, "log_path": str(folder)}))
    names = {
        "below a root": "mine",
        "by its path": str(tmp_path / "logs" / "mine"),
        "a run alone": "mine/rate-0.1",
    }
    monkeypatch.chdir(tmp_path)
    root = str(tmp_path / "logs")
    report = analysis.analyze(root, names[place], metric="test/nll", pictures=False)
    alone = place == "a run alone"
    assert [run["last"] for run in report.document["runs"]] == ([0.1] if alone else [0.1, 0.2])
    assert Path(report.html_path).is_relative_to(tmp_path / "logs" / "mine")
    reason = "no next.yaml: these runs were not launched from a grid"
    assert (reason in report.verdict) == (not alone)
    with pytest.raises(NotFound):
        analysis.analyze(root, "nothing")
