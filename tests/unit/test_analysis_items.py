"""Comparisons item by item, against scipy and against definitions written out."""

import math

import numpy as np
import pytest
from scipy import special, stats

from sweeper.analysis.comparison.items import Parts, compare, difference, level, lucks
from sweeper.analysis.statistics.distributions import upper_tail_f
from sweeper.analysis.statistics.inference import counted_share, on_logits

RNG = np.random.default_rng(3)


def sheet(scores: list[list[float]]) -> list[dict[str, float]]:
    return [{f"q{i}": score for i, score in enumerate(run)} for run in scores]


def test_single_runs_are_compared_by_a_paired_t_test_over_items():
    first, second = RNG.normal(0.4, 2, (2, 50))
    result = difference(first[np.newaxis], second[np.newaxis])
    expected = stats.ttest_rel(first, second)
    low, high = expected.confidence_interval()
    assert result.p == pytest.approx(expected.pvalue, abs=1e-9)
    assert result.value - result.reach() == pytest.approx(low, abs=1e-9)
    assert result.value + result.reach() == pytest.approx(high, abs=1e-9)


def test_what_few_differing_items_tell_is_bonett_and_prices_interval():
    first = np.array([[1.0] * 17 + [0.0] * 83])
    other = np.array([[1.0] * 12 + [0.0] * 4 + [1.0] + [0.0] * 83])
    result = difference(first, other, shares=True)
    won, lost, n = (4 + 1) / 102, (0 + 1) / 102, 102
    assert result.value == pytest.approx(won - lost, abs=1e-12)
    assert result.items == pytest.approx((won + lost - (won - lost) ** 2) / n, abs=1e-12)
    same = compare({"a": sheet([[1.0] * 40]), "b": sheet([[1.0] * 40])})
    (tie,) = same.parted
    assert (tie.difference, tie.p, tie.told_apart) == (0, 1, False)
    assert -0.1 < tie.low < 0 < tie.high < 0.1


def test_runs_add_what_a_two_way_analysis_of_variance_with_random_effects_says():
    runs, items = 4, 30
    table = RNG.normal(0, 1, (runs, items)) + RNG.normal(0, 2, (runs, 1)) + RNG.normal(0, 1, items)
    rows, columns, grand = table.mean(axis=1), table.mean(axis=0), table.mean()
    between = items * sum((row - grand) ** 2 for row in rows) / (runs - 1)
    rest = sum(
        (table[r, i] - rows[r] - columns[i] + grand) ** 2 for r in range(runs) for i in range(items)
    ) / ((runs - 1) * (items - 1))
    (luck,) = lucks({"a": table}).values()
    assert luck == pytest.approx((between / items, rest / items, runs - 1), abs=1e-9)
    result = level(table, luck)
    assert result.items == pytest.approx(
        np.var(columns, ddof=1) / items - rest / (items * runs), abs=1e-12
    )
    square = stats.t.ppf(0.975, items - 1) ** 2 * result.items
    square += stats.t.ppf(0.975, runs - 1) ** 2 * luck.variance / runs
    assert result.reach() == pytest.approx(math.sqrt(square), abs=1e-9)


def test_a_p_value_is_where_the_interval_first_holds_zero():
    parts = Parts(0.31, 0.004, 40.0, 0.02, 3.0)
    assert parts.reach(1 - parts.p) == pytest.approx(0.31, abs=1e-9)
    assert Parts(0.3, 0.01, 20.0, 0.0, 1.0).p == pytest.approx(2 * stats.t.sf(3, 20), abs=1e-12)
    assert Parts(0.0, 0.0, 5.0, 0.0, 1.0).p == 1 and Parts(0.1, 0.0, 5.0, 0.0, 1.0).p == 0


def test_cells_share_the_luck_of_their_runs_but_one_that_stands_out_keeps_its_own():
    def table(spread: float, runs: int = 3) -> np.ndarray:
        deviations = np.array([[-spread], [0.0], [spread]])[:runs]
        return RNG.normal(0, 0.1, (runs, 40)) + deviations

    tables = {"a": table(0.1), "b": table(0.12), "c": table(0.09), "once": table(0.0, 1)}
    shared = lucks(tables)
    assert len(set(shared.values())) == 1 and shared["once"].df == 6
    shared = lucks(tables | {"wild": table(9.0)})
    assert shared["wild"].df == 2 and shared["wild"].variance > 20 * shared["a"].variance
    assert lucks({"once": tables["once"]}) == {}
    assert upper_tail_f(2.5, 2, 6) == pytest.approx(stats.f.sf(2.5, 2, 6), abs=1e-12)


def test_items_that_belong_together_count_together():
    scores = RNG.normal(0, 1, 12)
    clusters = [i // 3 for i in range(12)]
    sums = [sum(scores[i] - scores.mean() for i in range(3 * c, 3 * c + 3)) for c in range(4)]
    expected = sum(part**2 for part in sums) / 12**2 * 4 / 3
    result = level(scores[np.newaxis], None, clusters)
    assert (result.items, result.items_df) == pytest.approx((expected, 3), abs=1e-12)
    named = {f"q{i}": str(c) for i, c in enumerate(clusters)}
    compared = compare({"a": sheet([scores.tolist()]), "b": sheet([[0.0] * 12])}, clusters=named)
    assert compared.clusters == 4


def test_of_groups_of_unequal_size_the_large_ones_count_for_what_they_are():
    sizes, values = (2, 3, 4, 6), (1.0, -1.0, 3.0, 0.5)
    scores = np.repeat(values, sizes)
    clusters = np.repeat(range(4), sizes).tolist()
    rest = [n * (value - scores.mean()) for n, value in zip(sizes, values, strict=True)]
    result = level(scores[np.newaxis], None, clusters)
    parts = (e**2 / (1 - n / 15) for n, e in zip(sizes, rest, strict=True))
    assert result.items == pytest.approx(sum(parts) / 15**2, abs=1e-12)
    # If all values of a group are equal, its sum varies with the square of its size.
    alike = sum(n**2 for n in sizes) ** 2 / sum(n**4 for n in sizes) - 1
    assert result.items_df == pytest.approx(alike)
    # If they are unrelated, its sum varies with its size.
    mixed = [[1, -1], [1, -2, 1], [1, -1, 2, -2], [1, -1, 2, -2, 3, -3]]
    unlike = level(np.concatenate(mixed)[np.newaxis].astype(float), None, clusters)
    assert unlike.items_df == pytest.approx(15**2 / sum(n**2 for n in sizes) - 1)


def test_intervals_of_shares_end_where_shares_do():
    low, high = on_logits(0.98, 0.05)
    logit, width = special.logit(0.98), 0.05 / (0.98 * 0.02)
    assert (low, high) == pytest.approx(
        (special.expit(logit - width), special.expit(logit + width)), abs=1e-12
    )
    assert on_logits(0.5, 1e9) == (0.0, 1.0)
    assert counted_share(1.0, 8) == pytest.approx((0.6756, 1.0), abs=1e-4)
    all_right = compare({"a": sheet([[1.0] * 8]), "b": sheet([[0.0] * 4 + [1.0] * 4])})
    best, second = all_right.cells
    assert best.high == 1 and best.low == pytest.approx(0.6756, abs=1e-4)
    assert 0 < second.low < 0.5 < second.high < 1


def test_cells_are_compared_on_what_all_their_runs_answered():
    a = sheet([[1, 1, 1, 0, 0.5], [1, 1, 0, 0, 0.5]])
    b = sheet([[0, 1, 0, 0, 0.5]])
    del a[1]["q4"]
    comparison = compare({"b": b, "a": a, "empty": []}, "task", {"q0": "Why?"})
    assert (comparison.items, comparison.known) == (4, 5)
    assert [cell.cell for cell in comparison.cells] == ["a", "b"]
    assert comparison.cells[0].mean == 5 / 8 and comparison.cells[1].over == "items and runs"
    (parted,) = comparison.parted
    assert (parted.better, parted.worse, parted.difference) == (0, 2, 0.25 - 5 / 8)
    assert (comparison.apart[0].prompt, comparison.apart[0].scores) == ("Why?", (1.0, 0.0))
    assert [item.item for item in comparison.unsolved] == ["q3"] and comparison.solved == 1
    assert compare({"a": sheet([[1.0]])}) is None and compare({}) is None
    assert compare({"a": sheet([[1.0, 2.0]]), "b": [{"other": 1.0}]}) is None


def test_of_many_cells_p_pays_for_all_their_pairs():
    """The best was selected from all cells, so each p value is corrected for six pairs."""
    cells = {str(i): sheet([RNG.normal(i, 1, 30).tolist()]) for i in range(4)}
    comparison = compare(cells)
    best = np.array([[run[f"q{i}"] for i in range(30)] for run in cells["3"]])
    for parted in comparison.parted:
        answers = np.array([[run[f"q{i}"] for i in range(30)] for run in cells[parted.cell]])
        assert parted.p == pytest.approx(min(1.0, 6 * stats.ttest_rel(answers[0], best[0]).pvalue))


def test_the_best_by_items_has_an_interval_that_allows_for_its_choice():
    """12 equal cells: fewer than 86 of 100 has a probability of 1 in 10,000."""
    rng = np.random.default_rng(8)
    held = 0
    for _ in range(100):
        hard = rng.normal(0, 1, 100)
        right = rng.random((12, 100)) < 1 / (
            1 + np.exp(-0.8 - hard - rng.normal(0, 0.7, (12, 100)))
        )
        truth = float(np.mean(1 / (1 + np.exp(-0.8 - rng.normal(0, 1.49**0.5, 40000)))))
        comparison = compare(
            {str(i): sheet([row.astype(float).tolist()]) for i, row in enumerate(right)}
        )
        held += comparison.cells[0].low <= truth <= comparison.cells[0].high
    assert held >= 86


def test_the_bound_of_the_best_of_many_has_the_variance_of_a_share_at_the_bound():
    right = np.random.default_rng(5).random((20, 100)) < 0.63
    comparison = compare(
        {str(i): sheet([row.astype(float).tolist()]) for i, row in enumerate(right)}
    )
    best = comparison.cells[0]
    errors = (best.mean - best.low) / math.sqrt(best.low * (1 - best.low) / 100)
    largest = stats.norm.ppf(0.95 ** (1 / 20))
    assert errors == pytest.approx(largest, rel=0.05)
