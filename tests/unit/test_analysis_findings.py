"""What is said of sweeps with a known truth, without a page around it."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import written

from sweeper import analysis
from sweeper.analysis.comparison.cells import Ranking, rank
from sweeper.analysis.comparison.edges import judge_edges
from sweeper.analysis.findings.finding import Finding, noise_text
from sweeper.analysis.findings.study import find
from sweeper.analysis.findings.verdict import Verdict, decide
from sweeper.analysis.page.verdict_line import verdict_line
from sweeper.analysis.pairwise import versus
from sweeper.analysis.reading.checkpoints import choose_checkpoint
from sweeper.analysis.reading.frames import lend, load
from sweeper.results.registry import Registry
from sweeper.sweep.metric import lenders

NAN = math.nan
Judged = tuple[Ranking, dict[str, Finding], Verdict]


@pytest.fixture
def judge(tmp_path: Path) -> Any:
    """From cells (settings, ends of the seeds) to what is said of them."""

    def judged(
        *cells: tuple[dict[str, Any], list[float]], goal: str = "minimize", name: str = "demo"
    ) -> Judged:
        metric = {"name": "test/nll", "goal": goal, "at": "last"}
        written.measured(tmp_path, cells, metric=metric, name=name)
        data = load(Registry(str(tmp_path)), name, None, None)
        ranking = rank(data)
        findings = find(data, ranking)
        return ranking, {f.kind: f for f in findings}, decide(data, ranking, findings)

    return judged


def test_alone_says_why_it_is_alone(judge: Any):
    _, kinds, verdict = judge(({"lr": 1}, [0.5, 0.6]), ({"lr": 2}, [NAN, NAN]))
    assert verdict.kind == "alone"
    assert kinds["alone"].text.startswith("The other cell with a result diverged")


def test_alone_among_cells_without_a_value(judge: Any):
    _, kinds, _ = judge(({"lr": 1}, [0.5, 0.6]), ({"lr": 2}, [None]))
    assert kinds["alone"].text.startswith("No other cell has a value")


def test_a_winner_beside_a_better_cell_that_lost_a_run_is_not_clear(judge: Any):
    ranking, kinds, verdict = judge(
        ({"lr": 1}, [0.50, 0.51, 0.52]),
        ({"lr": 2}, [0.90, 0.91, 0.92]),
        ({"lr": 3}, [NAN, 0.10, 0.11]),
    )
    assert ranking.best is not None and ranking.best.name == "lr=1"
    assert verdict.kind == "ahead"
    assert "The other runs of lr=3 are better than the best" in kinds["diverged"].text
    assert kinds["diverged"].document()["evidence"]["better"] == ["lr=3"]
    assert any("runs of lr=3 diverge" in step for step in verdict.steps)


def test_a_worse_cell_that_lost_a_run_is_not_called_better(judge: Any):
    _, kinds, verdict = judge(
        ({"lr": 1}, [0.50, 0.51, 0.52]),
        ({"lr": 2}, [0.90, 0.91, 0.92]),
        ({"lr": 3}, [NAN, 0.70, 0.71]),
    )
    assert verdict.kind == "ahead"
    assert "better" not in kinds["diverged"].text
    assert not any("diverge" in step for step in verdict.steps)


def test_a_winner_beside_cells_that_diverged_altogether_is_clear(judge: Any):
    _, kinds, verdict = judge(
        ({"lr": 1}, [0.50, 0.51, 0.52]),
        ({"lr": 2}, [0.90, 0.91, 0.92]),
        ({"lr": 3}, [NAN, NAN, NAN]),
    )
    assert verdict.kind == "clear"
    assert "better" not in kinds["diverged"].text
    # Three values were tried: lr 1 is the smallest of them.
    assert kinds["edge"].evidence["side"] == "smallest"


def test_a_value_without_a_result_was_not_tried(judge: Any):
    cells = [({"lr": lr}, [1 / lr, 1.01 / lr]) for lr in (1, 2)]
    assert "edge" not in judge(*cells, ({"lr": 3}, [None]))[1]


def test_an_end_that_is_not_told_from_the_value_before_it_is_shown_and_not_said(judge: Any):
    noisy = {1: [1.0, 1.4, 1.2], 2: [1.1, 0.9, 1.3], 3: [1.0, 1.2, 0.9]}
    _, kinds, verdict = judge(*(({"lr": lr}, ends) for lr, ends in noisy.items()))
    assert "edge" not in kinds and not verdict.at_edge
    assert kinds["at_end"].level == "note" and kinds["at_end"].evidence["inner"] == 2
    assert not any("Extend" in step for step in verdict.steps)


def test_one_run_a_cell_tells_no_edge(judge: Any):
    kinds = judge(*(({"lr": lr}, [1 / lr]) for lr in (1, 2, 3)))[1]
    assert "edge" not in kinds and "at_end" in kinds


def test_with_one_run_a_cell_the_rows_of_a_grid_tell_an_edge(judge: Any):
    cells = [
        ({"lr": x, "warmup": y}, [1 / x + (y - 1) ** 2 / 10 + x * y / 900])
        for x in (1, 2, 4)
        for y in range(4)
    ]
    evidence = judge(*cells)[1]["edge"].evidence
    assert (evidence["axis"], evidence["gain"]["df"]) == ("lr", 3)


def test_of_equal_cells_an_inner_one_is_as_good_as_an_end(judge: Any):
    kinds = judge(({"lr": 4}, [0.5]), ({"lr": 2}, [0.5]), ({"lr": 1}, [0.7]))[1]
    assert not {"edge", "at_end"} & kinds.keys()


@pytest.mark.parametrize(
    ("ends", "edge"),
    [([2.0, 2.1], False), ([NAN, NAN], False), ([None, None], False), (None, True)],
)
def test_the_largest_value_tried_may_be_an_included_one(
    judge: Any, ends: list[float | None] | None, edge: bool
):
    cells = [({"lr": lr}, [1 / lr, 1.05 / lr]) for lr in (1, 2, 3)]
    included = [] if ends is None else [({"lr": 4, "warmup": 1}, ends)]
    assert ("edge" in judge(*cells, *included)[1]) == edge


def test_the_best_run_is_the_best_for_the_goal(judge: Any):
    ranking, _, _ = judge(({"lr": 1}, [0.1, 0.4, 0.2]), ({"lr": 2}, [0.0]), goal="maximize")
    assert ranking.best_run is not None and ranking.best_run.value == 0.4


def test_the_final_checkpoint_goes_before_a_later_record(tmp_path: Path):
    sweep = written.Written(tmp_path)
    final = written.checkpoint("a")[0]
    late = {"name": "extra", "batch": 81, "sampler_path": "tinker://extra", "ttl_seconds": 10**400}
    for seed, records in enumerate(([final, late], [{**final, "final": False}, late])):
        sweep.run({}, seed, [{"step": 80, "test/nll": 1.0}], checkpoints=records)
    sweep.save()
    runs = load(Registry(str(tmp_path)), "demo", None, None).runs
    chosen = [choose_checkpoint(run, "last") for run in runs]
    assert [checkpoint.name for checkpoint in chosen if checkpoint] == ["final", "extra"]
    assert chosen[1] is not None and chosen[1].expires is None


PROPORTIONAL = (
    ({"lr": 1}, [0.068, 0.071, 0.074]),
    ({"lr": 2}, [0.36, 0.40, 0.42]),
    ({"lr": 3}, [1.26, 1.54, 1.80]),
)


def test_proportional_noise_is_compared_as_ratios(judge: Any):
    ranking, kinds, verdict = judge(*PROPORTIONAL)
    assert (ranking.scale, verdict.kind) == ("log", "clear")
    assert ranking.best is not None
    assert ranking.best.summary.mean == pytest.approx((0.068 * 0.071 * 0.074) ** (1 / 3))
    assert kinds["separated"].evidence["nearest"]["low"] > 1
    assert "times the best (95 %, for all cells at once)" in kinds["separated"].text
    assert "log scale, because all values are positive" in kinds["separated"].evidence["method"]
    assert verdict.spread.startswith("geometric mean of 3 seeds")
    assert all(cell.summary.low > 0 for cell in ranking.cells)


def test_even_noise_is_compared_as_differences(judge: Any):
    ranking, kinds, verdict = judge(
        ({"lr": 1}, [0.09, 0.10, 0.11]),
        ({"lr": 2}, [0.49, 0.50, 0.51]),
        ({"lr": 3}, [1.49, 1.50, 1.51]),
    )
    assert (ranking.scale, verdict.kind) == ("linear", "clear")
    assert "worse by" in kinds["separated"].text
    assert "log" not in kinds["separated"].evidence["method"]
    assert verdict.spread.startswith("mean of 3 seeds")


def test_each_rule_for_failed_runs_is_kept_and_said(tmp_path: Path):
    """Seeds of lr=2 that go bad crash: what is left of it is the best mean of all."""
    sweep = written.Written(
        tmp_path, "demo", {"lr": [1, 2, 3]}, {"name": "test/nll", "goal": "minimize", "at": "last"}
    )
    for lr, ends in ((1, [0.50, 0.51, 0.52]), (2, [0.40, None, None]), (3, [0.90, 0.91, 0.92])):
        for seed, end in enumerate(ends):
            if end is None:
                sweep.run({"lr": lr}, seed, [{"step": 1, "test/nll": 3.0}], "failed")
            else:
                sweep.run({"lr": lr}, seed, [{"step": 1, "test/nll": end}])
    sweep.save()

    def by_rule(rule: str) -> tuple[str, str, list[float]]:
        data = load(Registry(str(tmp_path)), "demo", None, None)
        assert data.metric is not None
        data = replace(data, metric=replace(data.metric, failed=rule))
        ranking = rank(data)
        assert ranking.best is not None
        by_kind = {finding.kind: finding for finding in find(data, ranking)}
        cell = next(c for c in ranking.cells if c.name == "lr=2")
        return ranking.best.name, by_kind["failed"].text, cell.values

    best, text, values = by_rule("bound")
    assert best == "lr=1" and values == [0.40]
    assert "the best with the worst value of all, 0.92, in place of each" in text
    assert "The other runs of lr=2 are better than the best named here." in text
    best, text, values = by_rule("drop")
    assert best == "lr=2" and "may look better without them" in text
    best, text, values = by_rule("worst")
    assert best == "lr=1" and values == [0.40, 0.92, 0.92] and "the worst value of all" in text


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_cell_of_which_every_run_failed_is_never_the_best(tmp_path: Path, seeds: int):
    """Nor tied with it: the worst value of all, as which its runs count, is here that of the one
    cell that has any."""
    metric = {"name": "test/nll", "goal": "minimize", "at": "last", "failed": "worst"}
    sweep = written.Written(tmp_path, "demo", {"lr": [1, 2]}, metric)
    for seed in range(seeds):
        sweep.run({"lr": 1}, seed, [], "failed")
        sweep.run({"lr": 2}, seed, [{"step": 1, "test/nll": 0.5}])
    data = load(Registry(str(sweep.save() and tmp_path)), "demo", None, None)
    ranking = rank(data)
    assert [cell.name for cell in ranking.cells] == ["lr=2", "lr=1"]
    assert ranking.best is ranking.cells[0] and not ranking.equal
    findings = find(data, ranking)
    assert decide(data, ranking, findings).kind == "unproven"


def test_a_cell_that_would_lead_with_the_worst_value_for_its_failed_run_is_the_best(tmp_path: Path):
    sweep = written.Written(
        tmp_path, "demo", {"lr": [1, 2]}, {"name": "test/nll", "goal": "minimize", "at": "last"}
    )
    for seed in range(9):
        sweep.run({"lr": 1}, seed, [{"step": 1, "test/nll": 0.1 + seed / 100}])
        sweep.run({"lr": 2}, seed, [{"step": 1, "test/nll": 0.9 + seed / 100}])
    sweep.run({"lr": 1}, 9, [], "failed")
    data = load(Registry(str(sweep.save() and tmp_path)), "demo", None, None)
    ranking = rank(data)
    assert ranking.best is not None and ranking.best.name == "lr=1"
    failed = {finding.kind: finding for finding in find(data, ranking)}["failed"]
    assert (
        failed.level == "warning"
        and "The best cell lost runs, and would be the best even then." in failed.text
    )


def test_single_runs_are_compared_by_the_noise_of_an_earlier_sweep(tmp_path: Path):
    metric = {"name": "test/nll", "goal": "minimize", "at": "last"}
    ends = [({"lr": lr}, [lr, lr + 0.02, lr + 0.03]) for lr in (1, 2, 3)]
    written.measured(tmp_path, ends, name="before", metric=metric)
    single = [({"lr": 1}, [0.5]), ({"lr": 2}, [0.6]), ({"lr": 3}, [0.51])]
    with_noise = metric | {"noise": "from=before"}
    written.measured(tmp_path, single, name="after", metric=with_noise)
    registry = Registry(str(tmp_path))
    data = load(registry, "after", None, None)
    assert data.metric is not None and not rank(data).comparisons
    ranking = rank(lend(data, registry, lenders(data.metric.noise)))
    assert [cell.name for cell in ranking.tied] == ["lr=3"]
    assert [cell.name for cell in ranking.apart] == ["lr=2"]
    assert ranking.best is not None and ranking.best.summary.low is not None
    assert noise_text(ranking.noise) == (
        "All cells share one noise, that of 3 cells of before (6 degrees of freedom), as their "
        "variances do not differ (Bartlett's test, p = 1.000)."
    )
    # And where that lets one lead: it is a single run all the same.
    written.measured(tmp_path, [*single[:2], ({"lr": 3}, [0.8])], name="third", metric=with_noise)
    data = lend(load(registry, "third", None, None), registry, ["before"])
    ranking = rank(data)
    findings = find(data, ranking)
    assert [f.kind for f in findings[:2]] == ["separated", "few_runs"]
    assert decide(data, ranking, findings).label.startswith("ahead, by 1 run")


@pytest.mark.parametrize(
    ("ends", "kind", "message"),
    [
        (([0.50, 0.51], [0.90, 0.91]), "ahead", "It rests on 2 runs against 2"),
        (([0.50, 0.51, 0.52], [0.90, 0.91, 0.92]), "clear", ""),
    ],
)
def test_a_lead_of_two_runs_each_with_its_own_noise_is_no_clear_one(
    judge: Any, ends: tuple[list[float], list[float]], kind: str, message: str
):
    """Seeds that end at one of two values would part equal cells like this in one of eight."""
    _, kinds, verdict = judge(*(({"lr": at}, values) for at, values in enumerate(ends)))
    assert verdict.kind == kind and ("few_runs" in kinds) == bool(message)
    if message:
        assert kinds["few_runs"].text.startswith(message) and verdict.label == "ahead, by 2 runs"


def test_a_leader_that_was_compared_with_nothing_is_not_said_to_be_far_ahead(judge: Any):
    single = [({"lr": lr}, [0.5 + lr / 100]) for lr in (2, 3, 4, 5, 6)]
    ranking, _, verdict = judge(({"lr": 1}, [0.50, 0.51, 0.52]), *single)
    assert not ranking.comparisons and ranking.chosen_of == 6
    assert "a choice among 6 cells" in verdict.caution
    ranking, _, verdict = judge(
        ({"lr": 1}, [0.50, 0.51, 0.52]), ({"lr": 2}, [0.9, 0.91, 0.92]), *single[1:], name="two"
    )
    assert len(ranking.apart) == 1 and ranking.chosen_of == 5
    (check,) = [item for item in verdict.checks if item.name == "Beyond the noise?"]
    assert (check.answer, check.good) == ("ahead of 1 of 5", None)


def test_exact_ties_are_called_ties(judge: Any):
    """A metric at its best in every run of three cells: nothing parts them, and no number of seeds
    would."""
    cells = [({"lr": lr}, [1.0, 1.0, 1.0]) for lr in (1, 2, 3)]
    ranking, kinds, verdict = judge(*cells, ({"lr": 4}, [0.7, 0.8, 0.75]), goal="maximize")
    assert verdict.kind == "tied" and [cell.name for cell in ranking.tied] == ["lr=2", "lr=3"]
    assert "lr=1, lr=2 and lr=3 are tied: the mean of each is exactly 1" in kinds["tied"].text
    assert any("3 cells with one and the same mean" in step for step in verdict.steps)
    assert "three seeds or more" not in "".join(verdict.steps)


def test_a_metric_at_its_worst_could_be_better(judge: Any):
    cells = [({"lr": lr}, [0.0]) for lr in (1, 2)]
    for goal, end in (("minimize", True), ("maximize", False)):
        text = judge(*cells, goal=goal, name=goal)[1]["tied"].text
        assert text.startswith("lr=1 and lr=2 are tied") and ("cannot be better" in text) == end


def test_noise_that_looks_as_if_some_seeds_went_another_way_is_warned_of(judge: Any):
    """Two of twelve seeds in each of six cells end somewhere else; evenly noisy ones do not."""
    ends = [[0.5, 0.9], [0.5, 0.501], [0.501, 0.88], [0.503, 0.5], [0.502, 0.5005], [0.91, 0.502]]
    _, kinds, _ = judge(*(({"lr": lr}, values) for lr, values in enumerate(ends)))
    assert kinds["split_noise"].text.startswith("Seeds of 3 cells end close together")


def test_and_not_where_it_does_not(judge: Any):
    even = [({"lr": lr}, [0.5 + lr / 100, 0.52 - lr / 300]) for lr in range(6)]
    assert "split_noise" not in judge(*even)[1]


@pytest.mark.parametrize(("often", "compared"), [((40, 4), False), ((40, 40), True)])
def test_the_best_of_more_values_is_no_better(
    tmp_path: Path, often: tuple[int, int], compared: bool
):
    """Two equal cells judged by their best evaluation; one was evaluated ten times as often."""
    rng = np.random.default_rng(3)
    metric = {"name": "test/nll", "goal": "minimize", "at": "best"}
    sweep = written.Written(tmp_path, "demo", {"every": [1, 10]}, metric)
    for every, count in zip((1, 10), often, strict=True):
        for seed in range(5):
            rows = [{"step": n, "test/nll": v} for n, v in enumerate(rng.normal(1, 0.1, count))]
            sweep.run({"every": every}, seed, rows)
    sweep.save()
    data = load(Registry(str(tmp_path)), "demo", None, None)
    ranking = rank(data)
    by_kind = {finding.kind: finding for finding in find(data, ranking)}
    assert bool(ranking.comparisons) == compared == ("uneven_best" not in by_kind)
    if not compared:
        assert ranking.best is not None and ranking.best.summary.low is None
        assert "evaluated 4 times, of others 40" in by_kind["uneven_best"].text
        assert decide(data, ranking, list(by_kind.values())).kind == "unproven"


def test_a_sweep_and_its_confirmation_are_one_study(tmp_path: Path):
    """The first two of three cells, repeated: the winner does not tie with itself, and is judged by
    the fresh seeds alone, which here say the other of the two."""
    metric = {"name": "test/nll", "goal": "minimize", "at": "last"}
    first = {1: [0.50, 0.51, 0.49], 2: [0.52, 0.51, 0.53], 3: [0.90, 0.91, 0.89]}
    fresh = {1: [0.60, 0.61, 0.59], 2: [0.52, 0.51, 0.53]}
    for name, cells, start in (("one", first, 0), ("one-confirm", fresh, 3)):
        sweep = written.Written(tmp_path, name, {"lr": list(cells)}, metric)
        for lr, ends in cells.items():
            for seed, end in enumerate(ends, start):
                sweep.run({"lr": lr}, seed, [{"step": 1, "test/nll": end}])
        sweep.save()
    registry = Registry(str(tmp_path))
    data = load(registry, ["one", "one-confirm"], None, None)
    ranking = rank(data)
    assert ranking.keys == ("lr",) and [cell.name for cell in ranking.cells] == ["lr=2", "lr=1"]
    assert [len(cell.runs) for cell in ranking.cells] == [6, 6]
    assert [cell.values for cell in ranking.cells] == [fresh[2], fresh[1]]
    assert [cell.name for cell in ranking.apart] == ["lr=1"]
    by_kind = {finding.kind: finding for finding in find(data, ranking)}
    assert by_kind["confirmed"].text.startswith("one-confirm repeated 2 of the 3 cells of one on")


def test_a_confirmation_of_all_cells_is_told_by_its_name(tmp_path: Path):
    metric = {"name": "test/nll", "goal": "minimize", "at": "last"}
    for name, start in (("one", 0), ("one-confirm", 3), ("two", 6)):
        sweep = written.Written(tmp_path, name, {"lr": [1, 2]}, metric)
        for lr in (1, 2):
            for seed in range(start, start + 2):
                sweep.run({"lr": lr}, seed, [{"step": 1, "test/nll": lr + seed / 100}])
        sweep.save()
    registry = Registry(str(tmp_path))
    again = load(registry, ["one", "one-confirm"], None, None).confirmed
    assert again is not None and (again.first, again.fresh) == ("one", ("one-confirm",))
    assert load(registry, ["one", "two"], None, None).confirmed is None


def test_a_pilot_before_a_sweep_confirms_none_of_it(tmp_path: Path):
    """Fewer cells and other seeds, as in a confirmation, but earlier: the sweep was chosen from
    nothing, and is judged by all of its runs."""
    metric = {"name": "test/nll", "goal": "minimize", "at": "last"}
    hours = {"pilot": "08", "main": "09", "again": "10"}
    for name, rates, start in (("pilot", (1,), 0), ("main", (1, 2), 3), ("again", (1,), 6)):
        created = f"2026-11-21T{hours[name]}:00:00Z"
        sweep = written.Written(tmp_path, name, {"lr": list(rates)}, metric, created=created)
        for lr in rates:
            for seed in range(start, start + 3):
                sweep.run({"lr": lr}, seed, [{"step": 1, "test/nll": lr + seed / 100}])
        sweep.save()
    registry = Registry(str(tmp_path))
    assert load(registry, ["pilot", "main"], None, None).confirmed is None
    again = load(registry, ["again", "main"], None, None).confirmed
    assert again is not None and (again.first, again.fresh) == ("main", ("again",))


def test_cells_are_looked_through_a_few_times_and_not_once_for_each(tmp_path: Path):
    """Of a thousand cells that would be a million looks."""
    cells = [({"lr": lr}, [lr, lr + 0.5 + lr / 100]) for lr in range(1, 31)]
    written.measured(tmp_path, cells)
    ranking = rank(load(Registry(str(tmp_path)), "demo", None, None))
    looks = 0

    class Looked(tuple[Any, ...]):
        def __iter__(self) -> Any:
            nonlocal looks
            looks += 1
            return super().__iter__()

    counted = [replace(cell, runs=Looked(cell.runs)) for cell in ranking.cells]
    ranking = replace(ranking, cells=tuple(counted), best=counted[0])
    assert len(ranking.tied) + len(ranking.apart) == 29 and not ranking.not_compared
    assert looks <= 4 * 30


def _ending(values: list[object]) -> list[dict[str, object]]:
    return [
        {"step": n, "other": 1, **({} if value is ... else {"test/nll": value})}
        for n, value in enumerate(values)
    ]


@pytest.mark.parametrize("end", [[None], [..., ..., ...], ["oops"]])
def test_a_cell_whose_metric_is_missing_at_the_end_is_not_named_best_without_a_caution(
    tmp_path: Path, end: list[object]
):
    """Null, or nothing, is what some programs write for NaN: the last number is then from before
    the run diverged."""
    sweep = written.Written(tmp_path, "demo", {"lr": [0, 1]})
    for seed in range(3):
        sweep.run({"lr": 0}, seed, _ending([3.0, 2.5, 2.0 + 0.01 * seed, 2.0 + 0.01 * seed]))
        sweep.run({"lr": 1}, seed, _ending([3.0, 2.0, 1.0 + 0.01 * seed, *end]))
    sweep.save()
    registry = Registry(str(tmp_path))
    data = load(registry, "demo", None, None)
    ranking = rank(data)
    findings = find(data, ranking)
    verdict = decide(data, ranking, findings)
    assert verdict.kind == "ahead" and "may have diverged" in verdict.label
    [finding] = [f for f in findings if f.kind == "missing_end"]
    assert finding.cells == ("lr=1",) and finding in verdict.believe
    assert "may have diverged" in (verdict_line(registry, "demo") or "")
    assert (
        "! 3 runs of lr=1 in B may have diverged" in versus(registry, "demo/lr=0", "demo/lr=1").text
    )
    registry.records("demo")
    assert (
        len([line for line in registry.problems if "may be from before it diverged" in line]) == 3
    )
    assert not registry.problems.unread


def test_replicates_that_differ_by_rounding_alone_get_a_warning(judge: Any):
    """The seed most likely does not reach the program: nothing else makes runs that alike."""
    _, kinds, _ = judge(
        ({"lr": 1}, [0.5, 0.500001, 0.500002]),
        ({"lr": 2}, [0.7, 0.700001, 0.700003]),
        ({"lr": 3}, [0.9, 0.900001, 0.900002]),
    )
    assert "Check that the seed reaches the program" in kinds["almost_identical"].text
    _, kinds, _ = judge(({"lr": 1}, [0.5, 0.52, 0.51]), ({"lr": 2}, [0.9, 0.93, 0.91]), name="b")
    assert "almost_identical" not in kinds


def test_worse_is_said_only_where_the_interval_for_all_cells_leaves_0(judge: Any):
    """Each cell is left out of the set by a test of its own: of equal cells some are."""
    _, kinds, _ = judge(
        ({"lr": 1}, [0.50, 0.53, 0.56]),
        ({"lr": 2}, [0.51, 0.54, 0.57]),
        ({"lr": 3}, [0.573, 0.603, 0.633]),
        ({"lr": 4}, [0.90, 0.93, 0.96]),
    )
    assert kinds["tied"].text.endswith(
        "2 cells are unlikely to be the best; of these lr=4 is worse beyond the noise."
    )
    assert kinds["tied"].evidence is not None and kinds["tied"].evidence["worse"] == ["lr=4"]


def test_worse_is_not_said_of_a_cell_whose_runs_may_be_much_noisier(judge: Any):
    """One of its runs collapsed: by the noise that it then has, it may be as good as the best."""
    cells = [({"lr": lr}, [0.50 + d, 0.53, 0.56 + d]) for lr, d in ((1, 0), (2, 0.02), (3, 0.01))]
    calm = ({"lr": 4}, [0.88, 0.93, 0.98])
    assert judge(*cells, calm)[1]["tied"].evidence["worse"] == ["lr=4"]
    collapsed = ({"lr": 4}, [0.83, 0.88, 1.08])
    assert judge(*cells, collapsed, name="b")[1]["tied"].evidence["worse"] == []


def test_an_end_of_two_values_claims_nothing_and_is_advice_beside_a_winner(judge: Any):
    better = judge(({"lr": 1}, [0.9, 0.91, 0.92]), ({"lr": 2}, [0.5, 0.51, 0.52]))
    assert "edge" not in better[1] and not better[2].at_edge
    assert better[1]["at_end"].text == (
        "lr was tried at 1 and 2 only. The best cell has 2. Nothing further out was tried."
    )
    assert any("Extend lr beyond 2" in step for step in better[2].steps)


def _looked_at(tmp_path: Path, name: str, open_: int, before: int) -> Ranking:
    """Two cells with a clear lead; `open_` runs of either are planned, and an earlier launch had
    `before` seeds."""
    launches = [{"seeds": before}] if before else None
    sweep = written.Written(tmp_path, name, {"lr": [1, 2]}, launches=launches)
    for lr, level in ((1, 0.5), (2, 0.62)):
        for seed, noise in enumerate((0.0, 0.04, -0.04, 0.05, -0.05)):
            state = "planned" if seed >= 5 - open_ else "succeeded"
            sweep.run({"lr": lr}, seed, [{"step": 1, "test/nll": level + noise * lr}], state)
    sweep.save()
    return rank(load(Registry(str(tmp_path)), name, None, None))


def test_a_lead_has_to_be_larger_while_runs_are_open_and_after_seeds_were_added(tmp_path: Path):
    """Looking after each run, or adding seeds until something shows, gives chance many tries."""
    whole = _looked_at(tmp_path, "whole", 0, 0)
    assert whole.price == 1 and not whole.tied
    running = _looked_at(tmp_path, "running", 1, 0)
    assert running.price > 1.5
    grown = _looked_at(tmp_path, "grown", 0, 3)
    assert grown.price > 10 and grown.tied
    (p,) = (comparison.p for comparison in whole.comparisons.values())
    (priced,) = (comparison.p for comparison in grown.comparisons.values())
    assert priced == pytest.approx(min(1.0, p * grown.price))
    same = _looked_at(tmp_path, "same", 0, 5)
    assert same.price == 1


def test_a_third_round_is_one_study_with_the_first_two(tmp_path: Path):
    """Each cell appears once, the seeds that chose it count for nothing, and each round has half
    of the level of the one before."""
    for number, name in enumerate(("a", "a-confirm", "a-confirm-confirm")):
        sweep = written.Written(tmp_path, name, {"lr": [1, 2]})
        for lr in (1, 2):
            for seed in range(3 * number, 3 * number + 3):
                sweep.run({"lr": lr}, seed, [{"step": 1, "test/nll": lr / 10 + seed % 3 / 9}])
        sweep.save()
    registry = Registry(str(tmp_path))
    data = load(registry, ["a", "a-confirm", "a-confirm-confirm"], None, None)
    ranking = rank(data)
    assert [cell.name for cell in ranking.cells] == ["lr=1", "lr=2"]
    assert [len(cell.values) for cell in ranking.cells] == [6, 6] and ranking.price == 2


def _findings_about(root: Path, *files: str) -> tuple[list[Finding], Registry]:
    """What is said of one run for each text of a metrics.jsonl."""
    sweep = written.Written(root, "demo", {"lr": [0, 1]})
    for lr, text in enumerate(files):
        sweep.run({"lr": lr}, 0, text)
    sweep.save()
    registry = Registry(str(root))
    data = load(registry, "demo", None, None)
    registry.metrics(registry.runs("demo"))
    return find(data, rank(data)), registry


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("".join(f'{{"step": {s}, "test/nll": 1}}\n' for s in (20, 20, 40, 20, 40, 60)),
         "steps go back 1 time (the first from 40 to 20)"),
        ('{"step": "3", "test/nll": 1}\n' * 2,
         '2 rows have steps that are not numbers (the first: "3")'),
        ("epoch 1 loss 0.5\n" * 3, "the first: epoch 1 loss 0.5"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git lfs pull"),
        ('{"step": 1, "test/nll": 1}\nx\n', "1 malformed line skipped"),
    ],
)  # fmt: skip
def test_what_is_odd_about_a_file_is_said_in_the_report_and_by_the_registry(
    tmp_path: Path, text: str, words: str
):
    plain = '{"step": 1, "test/nll": 2}\n'
    findings, registry = _findings_about(tmp_path, text, plain)
    [finding] = [f for f in findings if f.kind in ("odd_records", "unreadable")]
    assert words in finding.text and "lr=1" not in finding.text
    assert any(words in line for line in registry.problems)


@pytest.mark.parametrize(
    "text",
    [
        # An evaluation beside the training writes late; rows of a step may be written in parts.
        '{"step": 1, "loss": 1}\n{"step": 2, "loss": 1}\n{"step": 1, "test/nll": 1}\n',
        '{"step": 1, "loss": 1}\n{"step": 1, "test/nll": 1}\n',
    ],
)
def test_rows_that_come_late_are_not_odd(tmp_path: Path, text: str):
    findings, registry = _findings_about(tmp_path, text, text)
    assert "odd_records" not in {f.kind for f in findings} and not registry.problems


def test_a_resumed_attempt_may_begin_before_its_copies_end(tmp_path: Path):
    rows = [{"step": s, "test/nll": 1.0} for s in (0, 1, 2, 3)]
    sweep = written.Written(tmp_path, "demo")
    sweep.run({}, 0, rows, "preempted", cell="")
    sweep.run({}, 0, [*rows, *rows[2:], {"step": 4, "test/nll": 1.0}], cell="", attempt=2)
    sweep.save()
    registry = Registry(str(tmp_path))
    assert len(registry.metrics("demo")) == 5 and not registry.problems


def test_metrics_that_are_no_numbers_are_said_with_what_they_are(tmp_path: Path):
    text = '{"step": 1, "eval": {"nll": 1.0, "acc": 0.5}, "test/nll": "0.5", "list": [1]}\n'
    findings, _ = _findings_about(tmp_path, text, text)
    [finding] = [f for f in findings if f.kind == "metric_missing"]
    assert 'It is "0.5".' in finding.text
    assert "eval (an object with nll, acc) and list (a list)" in finding.text


@pytest.mark.parametrize("at", ["auto", "last", "best"])
@pytest.mark.parametrize(
    "values",
    [
        lambda rng, lr: np.exp(500 + 30 * rng.normal(size=12)) if lr else 5 + rng.normal(size=12),
        lambda rng, lr: 1e300 * (1 + 0.1 * lr + 0.01 * rng.normal(size=12)),
        lambda rng, lr: rng.choice([1.79e308, -1.79e308, 1e308], 12),
    ],
)
def test_huge_values_are_analyzed_and_compared(tmp_path: Path, at: str, values: Any):
    """A perplexity of a diverged run, for example: its square is no float."""
    rng = np.random.default_rng(1)
    sweep = written.Written(tmp_path, "demo", {"lr": [0, 1, 2]})
    for lr in (0, 1, 2):
        for seed in range(3):
            rows = [{"step": n, "test/nll": float(v)} for n, v in enumerate(values(rng, lr))]
            sweep.run({"lr": lr}, seed, rows)
    sweep.save()
    report = analysis.analyze(str(tmp_path), "demo", at=at, pictures=False)
    assert report.verdict
    registry = Registry(str(tmp_path))
    assert versus(registry, "demo/lr=0", "demo/lr=1", at=at).text
    assert analysis.compare(registry.runs("demo")).best is not None


def test_noise_that_is_modelled_is_said_to_be(judge: Any):
    """Seeds that move all cells alike do not count in differences, and the report says so."""
    seeds = (0.0, 0.3, -0.2, 0.5, -0.4)
    wiggle = ((0.01, -0.02, 0.015, 0.0, -0.01), (-0.01, 0.01, 0.0, 0.02, -0.02))
    cells = [
        ({"lr": lr}, [1 + lr / 50 + a + b for a, b in zip(seeds, wiggle[lr % 2], strict=True)])
        for lr in range(1, 7)
    ]
    ranking, _, _ = judge(*cells)
    text = noise_text(ranking.noise)
    assert text is not None and "All ran the same seeds" in text
    assert ranking.noise.between is not None
    assert ranking.noise.between.spreads["lr=1"].sd < 0.05 < ranking.noise.spreads["lr=1"].sd


def test_an_edge_is_judged_by_the_noise_that_lies_there(judge: Any):
    """The cells at the end are noisier than the rest, which share their noise with them."""
    noise = (
        np.random.default_rng(7).normal(0, 1, (4, 3, 3)) * np.array([1, 1, 1, 2.5])[:, None, None]
    )
    values = 20 + noise
    values[3] -= 1.5
    calm = values.copy()
    middle = values[3].mean(axis=1, keepdims=True)
    calm[3] = middle + (values[3] - middle) / 2.5

    def edges(grid: Any, name: str) -> list[str]:
        cells = [
            ({"lr": lr + 1, "rank": rank + 1}, grid[lr, rank].round(2).tolist())
            for lr in range(4)
            for rank in range(3)
        ]
        ranking, _, _ = judge(*cells, name=name)
        assert ranking.noise.shared and not ranking.noise.trend
        return [edge.axis for edge in judge_edges(ranking, 1.0) if edge.told]

    assert edges(calm, "calm") == ["lr"] and edges(values, "noisy") == []


def test_a_lead_of_few_runs_counts_for_the_runs_that_were_seen(judge: Any):
    """Three runs of each of two cells may hide that some collapse; six most likely show it."""
    few = [1.0, 1.01, 0.99]
    for runs, hidden in ((few, True), (few * 2, False)):
        name = f"n{len(runs)}"
        cells = [({"lr": lr}, [lr + run for run in runs]) for lr in (1, 2)]
        text = judge(*cells, name=name)[1]["separated"].text
        assert ("beyond the noise that these runs show" in text) == hidden
        assert (f"some runs collapse can look good in {len(runs)} runs by luck" in text) == hidden
