"""Findings about sweeps whose truth is known, without a page."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import written

from sweeper.analysis.comparison.cells import Ranking, rank
from sweeper.analysis.comparison.edges import judge_edges
from sweeper.analysis.findings.finding import Finding, noise_text
from sweeper.analysis.findings.study import find
from sweeper.analysis.findings.verdict import Verdict, decide
from sweeper.analysis.reading.frames import lend, load
from sweeper.results.registry import Registry
from sweeper.sweep.metric import lenders

NAN = math.nan
Judged = tuple[Ranking, dict[str, Finding], Verdict]


@pytest.fixture
def judge(tmp_path: Path) -> Any:
    """Return a function from cells (settings, last values of the seeds) to their findings."""

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


@pytest.mark.parametrize(
    ("ends", "reason"),
    [
        ([NAN, NAN], "The other cell with a result diverged"),
        ([None], "No other cell has a value"),
    ],
)
def test_a_cell_without_rivals_is_alone_for_a_stated_reason(judge, ends, reason):
    _, kinds, verdict = judge(({"lr": 1}, [0.5, 0.6]), ({"lr": 2}, ends))
    assert verdict.kind == "alone" and kinds["alone"].text.startswith(reason)


@pytest.mark.parametrize(
    ("ends", "kind", "better"),
    [([0.10, 0.11], "ahead", True), ([0.70, 0.71], "ahead", False), ([NAN, NAN], "clear", False)],
)
def test_a_winner_is_clear_unless_a_cell_lost_only_some_runs(judge, ends, kind, better):
    ranking, kinds, verdict = judge(
        ({"lr": 1}, [0.50, 0.51, 0.52]), ({"lr": 2}, [0.90, 0.91, 0.92]), ({"lr": 3}, [NAN, *ends])
    )
    assert ranking.best.name == "lr=1" and verdict.kind == kind
    diverged = kinds["diverged"]
    assert ("The other runs of lr=3 are better than the best" in diverged.text) == better
    assert ("better" in diverged.text) == better
    assert diverged.document()["evidence"]["better"] == ["lr=3"] * better
    assert any("runs of lr=3 diverge" in step for step in verdict.steps) == better
    # Three values were tried: lr 1 is the smallest of them.
    assert kinds["edge"].evidence["side"] == "smallest"


def test_an_insignificant_end_is_a_note_and_no_edge(judge):
    noisy = {1: [1.0, 1.4, 1.2], 2: [1.1, 0.9, 1.3], 3: [1.0, 1.2, 0.9]}
    _, kinds, verdict = judge(*(({"lr": lr}, ends) for lr, ends in noisy.items()))
    assert "edge" not in kinds and not verdict.at_edge
    assert kinds["at_end"].level == "note" and kinds["at_end"].evidence["inner"] == 2
    assert not any("Extend" in step for step in verdict.steps)


@pytest.mark.parametrize(
    ("cells", "kinds"),
    [
        ({1: [1.0], 2: [1 / 2], 3: [1 / 3]}, {"at_end"}),  # one run per cell
        ({4: [0.5], 2: [0.5], 1: [0.7]}, set()),  # an inner cell is as good as the end
    ],
)
def test_an_end_that_may_be_chance_is_no_edge(judge, cells, kinds):
    findings = judge(*(({"lr": lr}, ends) for lr, ends in cells.items()))[1]
    assert {"edge", "at_end"} & findings.keys() == kinds


def test_with_one_run_a_cell_the_rows_of_a_grid_tell_an_edge(judge):
    cells = [
        ({"lr": x, "warmup": y}, [1 / x + (y - 1) ** 2 / 10 + x * y / 900])
        for x in (1, 2, 4)
        for y in range(4)
    ]
    evidence = judge(*cells)[1]["edge"].evidence
    assert (evidence["axis"], evidence["gain"]["df"]) == ("lr", 3)


@pytest.mark.parametrize(
    ("ends", "edge"),
    [([2.0, 2.1], False), ([NAN, NAN], False), ([None, None], False), (None, True)],
)
def test_included_cells_count_as_tried_values(judge, ends, edge):
    cells = [({"lr": lr}, [1 / lr, 1.05 / lr]) for lr in (1, 2, 3)]
    included = [] if ends is None else [({"lr": 4, "warmup": 1}, ends)]
    assert ("edge" in judge(*cells, *included)[1]) == edge


def test_the_best_run_is_the_best_for_the_goal(judge):
    ranking, _, _ = judge(({"lr": 1}, [0.1, 0.4, 0.2]), ({"lr": 2}, [0.0]), goal="maximize")
    assert ranking.best_run.value == 0.4


PROPORTIONAL = (
    ({"lr": 1}, [0.068, 0.071, 0.074]),
    ({"lr": 2}, [0.36, 0.40, 0.42]),
    ({"lr": 3}, [1.26, 1.54, 1.80]),
)


def test_proportional_noise_is_compared_as_ratios(judge):
    ranking, kinds, verdict = judge(*PROPORTIONAL)
    assert (ranking.scale, verdict.kind) == ("log", "clear")
    assert ranking.best.summary.mean == pytest.approx((0.068 * 0.071 * 0.074) ** (1 / 3))
    assert kinds["separated"].evidence["nearest"]["low"] > 1
    assert "times the best (95 %, for all cells at once)" in kinds["separated"].text
    assert "log scale, because all values are positive" in kinds["separated"].evidence["method"]
    assert verdict.spread.startswith("geometric mean of 3 seeds")
    assert all(cell.summary.low > 0 for cell in ranking.cells)


def test_even_noise_is_compared_as_differences(judge):
    ranking, kinds, verdict = judge(
        ({"lr": 1}, [0.09, 0.10, 0.11]),
        ({"lr": 2}, [0.49, 0.50, 0.51]),
        ({"lr": 3}, [1.49, 1.50, 1.51]),
    )
    assert (ranking.scale, verdict.kind) == ("linear", "clear")
    assert "worse by" in kinds["separated"].text
    assert "log" not in kinds["separated"].evidence["method"]
    assert verdict.spread.startswith("mean of 3 seeds")


def test_each_rule_for_failed_runs_is_kept_and_said(tmp_path):
    """Bad seeds of lr=2 crash, so its remaining runs have the best mean."""
    sweep = written.Written(tmp_path, "demo", {"lr": [1, 2, 3]})
    for lr, ends in ((1, [0.50, 0.51, 0.52]), (2, [0.40, None, None]), (3, [0.90, 0.91, 0.92])):
        for seed, end in enumerate(ends):
            rows = [{"step": 1, "test/nll": end or 3.0}]
            sweep.run({"lr": lr}, seed, rows, "succeeded" if end else "failed")
    sweep.save()

    def by_rule(rule: str) -> tuple[str, str, list[float]]:
        data = load(Registry(str(tmp_path)), "demo", None, None)
        assert data.metric is not None
        data = replace(data, metric=replace(data.metric, failed=rule))
        ranking = rank(data)
        by_kind = {finding.kind: finding for finding in find(data, ranking)}
        cell = next(c for c in ranking.cells if c.name == "lr=2")
        return ranking.best.name, by_kind["failed"].text, cell.values

    best, text, values = by_rule("bound")
    assert best == "lr=1" and values == [0.40]
    assert "each of its failed runs counted as the worst value of all, 0.92." in text
    assert "The other runs of lr=2 are better than the best cell." in text
    best, text, values = by_rule("drop")
    assert best == "lr=2" and "may look better without them" in text
    best, text, values = by_rule("worst")
    assert best == "lr=1" and values == [0.40, 0.92, 0.92] and "the worst value of all" in text


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_cell_of_which_every_run_failed_is_never_the_best(tmp_path, seeds):
    metric = written.METRIC | {"failed": "worst"}
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


def test_a_cell_that_leads_despite_a_failed_run_is_the_best(tmp_path):
    sweep = written.Written(tmp_path, "demo", {"lr": [1, 2]})
    for seed in range(9):
        sweep.run({"lr": 1}, seed, [{"step": 1, "test/nll": 0.1 + seed / 100}])
        sweep.run({"lr": 2}, seed, [{"step": 1, "test/nll": 0.9 + seed / 100}])
    sweep.run({"lr": 1}, 9, [], "failed")
    data = load(Registry(str(sweep.save() and tmp_path)), "demo", None, None)
    ranking = rank(data)
    assert ranking.best.name == "lr=1"
    (failed,) = [finding for finding in find(data, ranking) if finding.kind == "failed"]
    assert failed.level == "warning"
    assert "The best cell has failed runs, and would be the best even then." in failed.text


def test_single_runs_are_compared_by_the_noise_of_an_earlier_sweep(tmp_path):
    ends = [({"lr": lr}, [lr, lr + 0.02, lr + 0.03]) for lr in (1, 2, 3)]
    written.measured(tmp_path, ends, name="before")
    single = [({"lr": 1}, [0.5]), ({"lr": 2}, [0.6]), ({"lr": 3}, [0.51])]
    with_noise = written.METRIC | {"noise": "from=before"}
    written.measured(tmp_path, single, name="after", metric=with_noise)
    registry = Registry(str(tmp_path))
    data = load(registry, "after", None, None)
    assert not rank(data).comparisons
    ranking = rank(lend(data, registry, lenders(data.metric.noise)))
    assert [cell.name for cell in ranking.tied] == ["lr=3"]
    assert [cell.name for cell in ranking.apart] == ["lr=2"]
    assert ranking.best.summary.low is not None
    assert noise_text(ranking.noise) == (
        "All cells share one noise, that of 3 cells of before (6 degrees of freedom), as their "
        "variances do not differ (Bartlett's test, p = 1.000)."
    )
    # A cell that leads by this noise still has a single run.
    written.measured(tmp_path, [*single[:2], ({"lr": 3}, [0.8])], name="third", metric=with_noise)
    data = lend(load(registry, "third", None, None), registry, ["before"])
    ranking = rank(data)
    findings = find(data, ranking)
    assert [f.kind for f in findings[:2]] == ["separated", "few_runs"]
    assert decide(data, ranking, findings).label.startswith("ahead, by 1 run")


@pytest.mark.parametrize(
    ("ends", "kind", "message"),
    [
        (([0.50, 0.51], [0.90, 0.91]), "ahead", "The lead rests on 2 runs against 2"),
        (([0.50, 0.51, 0.52], [0.90, 0.91, 0.92]), "clear", ""),
    ],
)
def test_a_lead_of_two_runs_per_cell_is_not_clear(judge, ends, kind, message):
    """If seeds end at one of two values, equal cells separate like this once in eight times."""
    _, kinds, verdict = judge(*(({"lr": at}, values) for at, values in enumerate(ends)))
    assert verdict.kind == kind and ("few_runs" in kinds) == bool(message)
    if message:
        assert kinds["few_runs"].text.startswith(message) and verdict.label == "ahead, by 2 runs"


def test_a_leader_that_was_compared_with_nothing_is_not_said_to_be_far_ahead(judge):
    single = [({"lr": lr}, [0.5 + lr / 100]) for lr in (2, 3, 4, 5, 6)]
    ranking, _, verdict = judge(({"lr": 1}, [0.50, 0.51, 0.52]), *single)
    assert not ranking.comparisons and ranking.chosen_of == 6
    assert "chosen among 6 equally good cells" in verdict.caution
    ranking, _, verdict = judge(
        ({"lr": 1}, [0.50, 0.51, 0.52]), ({"lr": 2}, [0.9, 0.91, 0.92]), *single[1:], name="two"
    )
    assert len(ranking.apart) == 1 and ranking.chosen_of == 5
    (check,) = [item for item in verdict.checks if item.name == "Beyond the noise?"]
    assert (check.answer, check.good) == ("ahead of 1 of 5", None)


def test_exact_ties_are_called_ties(judge):
    cells = [({"lr": lr}, [1.0, 1.0, 1.0]) for lr in (1, 2, 3)]
    ranking, kinds, verdict = judge(*cells, ({"lr": 4}, [0.7, 0.8, 0.75]), goal="maximize")
    assert verdict.kind == "tied" and [cell.name for cell in ranking.tied] == ["lr=2", "lr=3"]
    assert "lr=1, lr=2 and lr=3 are tied: the mean of each is exactly 1" in kinds["tied"].text
    assert any("3 cells with the same mean" in step for step in verdict.steps)
    assert "three seeds or more" not in "".join(verdict.steps)


def test_a_metric_at_its_worst_could_be_better(judge):
    cells = [({"lr": lr}, [0.0]) for lr in (1, 2)]
    for goal, end in (("minimize", True), ("maximize", False)):
        text = judge(*cells, goal=goal, name=goal)[1]["tied"].text
        assert text.startswith("lr=1 and lr=2 are tied") and ("cannot be better" in text) == end


def test_seeds_that_end_in_two_groups_get_a_warning_and_evenly_noisy_ones_do_not(judge):
    ends = [[0.5, 0.9], [0.5, 0.501], [0.501, 0.88], [0.503, 0.5], [0.502, 0.5005], [0.91, 0.502]]
    _, kinds, _ = judge(*(({"lr": lr}, values) for lr, values in enumerate(ends)))
    assert kinds["split_noise"].text.startswith("Seeds of 3 cells end close together")
    even = [({"lr": lr}, [0.5 + lr / 100, 0.52 - lr / 300]) for lr in range(6)]
    assert "split_noise" not in judge(*even, name="even")[1]


@pytest.mark.parametrize(("often", "compared"), [((40, 4), False), ((40, 40), True)])
def test_the_best_of_more_values_is_no_better(tmp_path, often, compared):
    """Two equal cells judged by their best evaluation; one was evaluated ten times as often."""
    rng = np.random.default_rng(3)
    sweep = written.Written(tmp_path, "demo", {"every": [1, 10]}, written.METRIC | {"at": "best"})
    for interval, count in zip((1, 10), often, strict=True):
        for seed in range(5):
            rows = [{"step": n, "test/nll": v} for n, v in enumerate(rng.normal(1, 0.1, count))]
            sweep.run({"every": interval}, seed, rows)
    sweep.save()
    data = load(Registry(str(tmp_path)), "demo", None, None)
    ranking = rank(data)
    by_kind = {finding.kind: finding for finding in find(data, ranking)}
    assert bool(ranking.comparisons) == compared == ("uneven_best" not in by_kind)
    if not compared:
        assert ranking.best.summary.low is None
        assert "evaluated 4 times, of others 40" in by_kind["uneven_best"].text
        assert decide(data, ranking, list(by_kind.values())).kind == "unproven"


def test_a_sweep_and_its_confirmation_are_one_study(tmp_path):
    """Only the fresh seeds judge the winner; here they favour the other cell."""
    first = {1: [0.50, 0.51, 0.49], 2: [0.52, 0.51, 0.53], 3: [0.90, 0.91, 0.89]}
    fresh = {1: [0.60, 0.61, 0.59], 2: [0.52, 0.51, 0.53]}
    for name, cells, start in (("one", first, 0), ("one-confirm", fresh, 3)):
        sweep = written.Written(tmp_path, name, {"lr": list(cells)})
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


@pytest.mark.parametrize(
    ("sweeps", "confirmed"),
    [
        (["one", "one-confirm"], ("one", ("one-confirm",))),  # all cells; matches by name
        (["one", "two"], None),
        (["pilot", "one"], None),  # has fewer cells, but is earlier
        (["part", "one"], ("one", ("part",))),
    ],
)
def test_a_later_sweep_of_the_same_cells_confirms_the_first(tmp_path, sweeps, confirmed):
    hours = {"pilot": 8, "one": 9, "one-confirm": 10, "two": 11, "part": 12}
    for name, hour in hours.items():
        created = f"2026-11-21T{hour:02d}:00:00Z"
        rates = [1] if name in ("pilot", "part") else [1, 2]
        sweep = written.Written(tmp_path, name, {"lr": rates}, created=created)
        for lr in rates:
            for seed in range(3 * hour, 3 * hour + 3):
                sweep.run({"lr": lr}, seed, [{"step": 1, "test/nll": lr + seed / 100}])
        sweep.save()
    again = load(Registry(str(tmp_path)), sweeps, None, None).confirmed
    assert (again and (again.first, again.fresh)) == confirmed


def test_comparing_cells_takes_linear_time(tmp_path):
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


def test_replicates_that_differ_by_rounding_alone_get_a_warning(judge):
    """Most likely the seed does not reach the program."""
    _, kinds, _ = judge(
        ({"lr": 1}, [0.5, 0.500001, 0.500002]),
        ({"lr": 2}, [0.7, 0.700001, 0.700003]),
        ({"lr": 3}, [0.9, 0.900001, 0.900002]),
    )
    assert "Check that the seed reaches the program" in kinds["almost_identical"].text
    _, kinds, _ = judge(({"lr": 1}, [0.5, 0.52, 0.51]), ({"lr": 2}, [0.9, 0.93, 0.91]), name="b")
    assert "almost_identical" not in kinds


def test_a_cell_is_worse_only_if_its_simultaneous_interval_excludes_0(judge):
    """A separate test excludes each cell from the set, so some equal cells are excluded."""
    _, kinds, _ = judge(
        ({"lr": 1}, [0.50, 0.53, 0.56]),
        ({"lr": 2}, [0.51, 0.54, 0.57]),
        ({"lr": 3}, [0.573, 0.603, 0.633]),
        ({"lr": 4}, [0.90, 0.93, 0.96]),
    )
    assert kinds["tied"].text.endswith(
        "2 cells are unlikely to be the best; of these lr=4 is worse beyond the noise."
    )
    assert kinds["tied"].evidence["worse"] == ["lr=4"]


def test_worse_is_not_said_of_a_cell_whose_runs_may_be_much_noisier(judge):
    """One of its runs collapsed: with that noise, the cell may be as good as the best."""
    cells = [({"lr": lr}, [0.50 + d, 0.53, 0.56 + d]) for lr, d in ((1, 0), (2, 0.02), (3, 0.01))]
    calm = ({"lr": 4}, [0.88, 0.93, 0.98])
    assert judge(*cells, calm)[1]["tied"].evidence["worse"] == ["lr=4"]
    collapsed = ({"lr": 4}, [0.83, 0.88, 1.08])
    assert judge(*cells, collapsed, name="b")[1]["tied"].evidence["worse"] == []


def test_an_end_of_two_values_claims_nothing_and_is_advice_beside_a_winner(judge):
    better = judge(({"lr": 1}, [0.9, 0.91, 0.92]), ({"lr": 2}, [0.5, 0.51, 0.52]))
    assert "edge" not in better[1] and not better[2].at_edge
    assert better[1]["at_end"].text == (
        "lr was tried at 1 and 2 only. The best cell has 2. Nothing further out was tried."
    )
    assert any("Extend lr beyond 2" in step for step in better[2].steps)


def _looked_at(tmp_path: Path, name: str, open_: int, before: int) -> Ranking:
    """Rank two cells: a clear lead, `open_` planned seeds, `before` seeds launched earlier."""
    launches = [{"seeds": before}] if before else None
    sweep = written.Written(tmp_path, name, {"lr": [1, 2]}, launches=launches)
    for lr, level in ((1, 0.5), (2, 0.62)):
        for seed, noise in enumerate((0.0, 0.04, -0.04, 0.05, -0.05)):
            state = "planned" if seed >= 5 - open_ else "succeeded"
            sweep.run({"lr": lr}, seed, [{"step": 1, "test/nll": level + noise * lr}], state)
    sweep.save()
    return rank(load(Registry(str(tmp_path)), name, None, None))


def test_a_lead_has_to_be_larger_while_runs_are_open_and_after_seeds_were_added(tmp_path):
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


def test_a_third_round_is_one_study_with_the_first_two(tmp_path):
    """Each cell appears once, and the seeds that selected it are not counted."""
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


def test_the_report_says_when_seed_noise_is_modelled(judge):
    """Effects of a seed on all cells cancel in differences, and the report says so."""
    seeds = (0.0, 0.3, -0.2, 0.5, -0.4)
    wiggle = ((0.01, -0.02, 0.015, 0.0, -0.01), (-0.01, 0.01, 0.0, 0.02, -0.02))
    cells = [
        ({"lr": lr}, [1 + lr / 50 + a + b for a, b in zip(seeds, wiggle[lr % 2], strict=True)])
        for lr in range(1, 7)
    ]
    ranking, _, _ = judge(*cells)
    text = noise_text(ranking.noise)
    assert text is not None and "All ran the same seeds" in text
    assert ranking.noise.between.spreads["lr=1"].sd < 0.05 < ranking.noise.spreads["lr=1"].sd


def test_an_edge_is_judged_by_the_noise_that_lies_there(judge):
    """The cells at the end are noisier than the rest, but all share one noise estimate."""
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


def test_a_lead_of_few_runs_gets_a_caution(judge):
    """Three runs per cell may hide that some collapse; six most likely show it."""
    values = [1.0, 1.01, 0.99]
    for runs, hidden in ((values, True), (values * 2, False)):
        name = f"n{len(runs)}"
        cells = [({"lr": lr}, [lr + run for run in runs]) for lr in (1, 2)]
        text = judge(*cells, name=name)[1]["separated"].text
        assert ("beyond the noise that these runs show" in text) == hidden
        assert (
            f"some runs of a cell collapse, {len(runs)} runs may miss that by luck" in text
        ) == hidden
