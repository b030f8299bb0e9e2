"""Curves, edges of the grid, and how numbers are written."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support import written

from sweeper.analysis import labels
from sweeper.analysis.comparison.edges import find_edges
from sweeper.analysis.figures.curves import band, thin, thin_rows
from sweeper.analysis.figures.layouts import categories, layout, plain
from sweeper.analysis.reading.costs import AtPlace, token_columns
from sweeper.analysis.reading.history import Histories
from sweeper.analysis.reading.keys import goal_of
from sweeper.analysis.reading.series import Series, best, last
from sweeper.metrics.objective import judged, smoothed
from sweeper.metrics.rows import numbers
from sweeper.results.registry import Registry


def points(pairs: list[tuple[float, float]]) -> Series:
    steps, values = (np.array([pair[i] for pair in pairs], dtype=float) for i in (0, 1))
    return Series(steps, values, np.arange(len(pairs)))


@pytest.mark.parametrize("count", [3, 240, 241, 242, 243, 500, 1001, 10_000])
def test_thinning_keeps_the_ends_and_every_spike_and_its_limit(count):
    values = np.cos(np.arange(count) ** 2)
    values[count // 8], values[count * 7 // 9] = 50.0, -50.0
    indices = thin(values).tolist()
    assert len(indices) == min(count, len(indices)) <= 240 and indices == sorted(set(indices))
    assert {0, count // 8, count * 7 // 9, count - 1} <= set(indices)
    assert count > 3 or indices == [0, 1, 2]


def test_rows_are_thinned_together_as_each_by_itself():
    table = np.cos(np.arange(3 * 777).reshape(3, 777) ** 2)
    together = thin_rows(table, 50)
    assert [at.tolist() for at in together] == [thin(row, 50).tolist() for row in table]


def test_a_band_is_the_same_whether_the_steps_are_shared_or_only_equal():
    steps, rows = np.arange(4.0), np.arange(4)
    values = ([1.0, 2.0, 3.0, 4.0], [2.0, 2.0, 9.0, 0.0])
    shared = band([Series(steps, np.array(row), rows) for row in values])
    equal = band([Series(steps.copy(), np.array(row), rows) for row in values])
    for actual, expected in zip(shared[:4], equal[:4], strict=True):
        assert np.array_equal(actual, expected)
    assert [at.tolist() for at in shared.at] == [at.tolist() for at in equal.at]


def test_a_band_covers_the_steps_that_all_runs_share():
    covered = band(
        [
            points([(0, 1.0), (10, 2.0), (20, 4.0)]),
            points([(0, 3.0), (5, 9.0), (10, 4.0), (20, math.nan)]),
        ]
    )
    assert [part.tolist() for part in covered[:4]] == [[0, 10], [2.0, 3.0], [1.0, 2.0], [3.0, 4.0]]
    assert [at.tolist() for at in covered.at] == [[0, 1], [0, 2]]
    assert not len(band([]).steps)


def test_a_band_of_enormous_values_is_finite():
    mean = band([points([(0, 1.7e308)]), points([(0, 1.5e308)])]).mean
    assert mean.tolist() == [pytest.approx(1.6e308)]


AWKWARD: list[Any] = [1, 2.5, None, "3", "text", True, [1], {"a": 1}, 10**400, -(10**400), math.nan]


@pytest.mark.parametrize("metric", [None, "key"])
def test_columns_hold_what_the_registry_takes_for_numbers(tmp_path, metric):
    rows = [{"step": step, "key": value} for step, value in enumerate(AWKWARD)]
    histories = [rows, rows[:2], rows[:3], rows[3:8], rows[8:10], rows[10:], [{"step": 0, "b": 1}]]
    histories.append([{"key": 5.0}, {"key": 2.0}])
    histories.append([{"key": 5.0}, {"key": 2.0, "step": 7}, {"step": 9, "key": math.nan}])
    sweep = written.Written(tmp_path)
    for seed, history in enumerate(histories):
        sweep.run({}, seed, history)
    sweep.save()
    registry = Registry(str(tmp_path))
    runs = registry.sweep("demo").runs
    columns = Histories(registry, runs, metric)
    for run, history in zip(runs, histories, strict=True):
        expected = numbers(run.history.rows, "key")
        stepped = [p for p in expected if p.step is not None] or [
            p._replace(step=i) for i, p in enumerate(expected)
        ]
        series = columns.of(run.id).series("key")
        assert series.steps.tolist() == [p.step for p in stepped], history
        assert np.array_equal(series.values, [p.value for p in stepped], equal_nan=True)
        if metric is not None:
            assert ("key" in columns.of(run.id).keys) == bool(expected)


def test_tokens_are_counted_under_whichever_names_a_program_gives_them(tmp_path):
    """tinker-cookbook counts all billed kinds of tokens, also those that it did not use."""
    billed = {"sampled": 5, "trained": 7, "prefill_cached": 2, "prefill_uncached": 3}
    none = dict.fromkeys(billed, 0) | {"trained": 9}
    new, tuned = ({f"tokens/{kind}": n for kind, n in b.items()} for b in (billed, none))
    old = {"num_tokens": 4, "env/all/total_ac_tokens": 6, "env/all/total_ob_tokens": 8}
    sweep = written.Written(tmp_path)
    for seed, row in enumerate((new | old, tuned | {"num_tokens": 9}, old)):
        sweep.run({}, seed, [{"step": 0, **row}, {"step": 1, **row}])
    sweep.save()
    registry = Registry(str(tmp_path))
    runs = registry.sweep("demo").runs
    histories = Histories(registry, runs, None)
    columns = [token_columns(histories.of(run.id)) for run in runs]
    assert [{kind: n.sum() for kind, n in counts.items()} for counts in columns] == [
        {"train": 14, "sample": 10, "prefill": 10},
        {"train": 18},
        {"train": 8, "sample": 12, "prefill": 16},
    ]


@pytest.mark.parametrize("goal", ["minimize", "maximize"])
@pytest.mark.parametrize(
    "pairs",
    [
        [(0, 2.0), (1, 1.0), (2, 1.0), (3, math.nan)], [(0, math.nan), (1, math.inf)], [],
    ],
)  # fmt: skip
def test_a_run_is_judged_as_the_registry_judges_it(pairs, goal):
    rows = [{"step": step, "key": value} for step, value in pairs]
    series = points(pairs)
    for at, chosen in (("last", last(series)), ("best", best(series, goal))):
        expected = judged(numbers(rows, "key"), goal, at)
        assert (chosen is None) == (expected is None)
        if chosen is not None and expected is not None:
            assert chosen == (expected.step, pytest.approx(expected.value, nan_ok=True))


def test_the_smoothed_value_is_the_mean_of_the_last_tenth():
    assert smoothed(points([(i, float(i)) for i in range(100)]).values) == pytest.approx(94.5)
    assert smoothed(points([(0, 1.0), (1, math.nan)]).values) is None
    assert smoothed(points([]).values) is None


@pytest.mark.parametrize(
    ("values", "best", "side", "suggestion"),
    [
        ([1e-4, 1e-3, 1e-2], 1e-2, "largest", 0.1),
        ([1e-3, 5e-3, 2e-2], 2e-2, "largest", 0.08),
        ([1e-4, 1e-3, 1e-2], 1e-4, "smallest", 1e-5),
        ([8, 16, 32], 32, "largest", 64),
        ([8, 16, 32], 8, "smallest", 4),
        ([1, 2, 4], 1, "smallest", None),
        ([0.0, 0.1, 0.2], 0.0, "smallest", None),
        ([0.5, 0.6, 0.7], 0.7, "largest", 0.8),
        ([-1.0, 0.0, 1.0], -1.0, "smallest", -2.0),
        # Rounded to two digits, the value would lie in the grid.
        ([0.991, 0.992, 0.993], 0.993, "largest", 0.994),
        ([0.991, 0.992, 0.993], 0.991, "smallest", 0.99),
        ([1001.5, 1002.5, 1003.5], 1003.5, "largest", 1004.0),
        ([-0.993, -0.992, -0.991], -0.993, "smallest", -0.994),
        ([4, 16], 16, "largest", 64),
        ([1.0, 1e200, 1e308], 1e308, "largest", None),
        ([1e307, 1e308, 1.7e308], 1.7e308, "largest", None),
    ],
)
def test_a_best_value_at_the_edge_gets_a_suggestion(values, best, side, suggestion):
    (edge,) = find_edges({"axis": best}, [{"axis": value} for value in values])
    assert (edge.side, edge.suggestion) == (side, pytest.approx(suggestion))


@pytest.mark.parametrize(
    ("values", "best"),
    [
        ([1, 2, 3], 2),
        (["a", "b", "c"], "c"),
        ([1, 2, "3"], 2),
        ([False, True], True),
        ([3, 3, 3], 3),
        ([1, 2, 10**400], 1),
        ([1, 2, None], 2),
    ],
)
def test_values_without_an_order_have_no_edge(values, best):
    assert find_edges({"axis": best}, [{"axis": value} for value in values]) == []


def test_a_value_planned_further_out_is_no_edge_but_one_that_is_missing_is_no_value():
    tried = [{"lr": 1}, {"lr": 2}, {"lr": 3}, {"other": 9}]
    assert find_edges({"lr": 3}, tried, [*tried, {"lr": 4}]) == []
    (edge,) = find_edges({"lr": 3}, tried, [*tried, {"lr": 2.5}])
    assert (edge.side, edge.suggestion) == ("largest", 4)


def test_an_edge_is_an_end_of_what_was_tried_with_the_other_settings_fixed():
    tried = [{"model": "a", "rank": rank} for rank in (1, 2, 4)]
    tried += [{"model": "b", "rank": rank} for rank in (4, 16, 64)]
    (edge,) = find_edges({"model": "a", "rank": 4}, tried)
    assert (edge.axis, edge.value, edge.inner, edge.suggestion) == ("rank", 4, 2, 8)
    assert find_edges({"model": "b", "rank": 16}, tried) == []


def test_numbers_have_four_digits():
    values = (0.21349, 1234.5, -0.5, 1.5e-9, 0.0, None, math.nan)
    texts = "0.2135 1234 \u22120.5000 1.500e-9 0 \u2013 NaN"
    assert " ".join(map(labels.number, values)) == texts


def test_values_that_belong_together_have_the_same_decimals():
    assert labels.together(0.2504, 0.1552, 0.3457) == ["0.250", "0.155", "0.346"]
    assert labels.together(1234.5, 1300.25) == ["1234", "1300"]
    assert labels.fixed(-0.0, 2) == "0.00" and labels.within(-0.0, -0.14, 0.14)[0] == "0.00"
    assert labels.together(0.9, None, math.nan) == ["0.900", "\u2013", "NaN"]


def test_settings_read_as_in_a_grid():
    values = (1e-4, 5e-3, 0.02, 1e20, True, 8, None, [1, None, "x"])
    texts = '1e-4 5e-3 0.02 1e20 true 8 null [1, null, "x"]'
    assert " ".join(map(labels.setting, values)) == texts


def test_a_place_that_a_model_found_has_three_digits():
    texts = [labels.place(value) for value in (3.7174e-4, 29.857, 128.0, 2e9, math.inf, "cosine")]
    assert texts == ["3.72e-4", "29.9", "128", "2000000000", "inf", "cosine"]


def test_long_texts_of_an_axis_lose_their_middle_and_of_many_a_part_is_marked():
    shown = layout("model", height=260)
    texts = [plain(f"<some>/Model-2507-{size}B") for size in range(36)]
    categories(shown, texts)
    ticks = shown["xaxis"]
    assert ticks["tickvals"] == texts[::2] and ticks["ticktext"][0] == "&lt;some&gt;/…-2507-0B"
    assert shown["height"] > 300
    short = layout("schedule", height=260)
    categories(short, ["cosine", "linear"])
    assert short["xaxis"]["ticktext"] == ["cosine", "linear"] and short["height"] == 260


def test_durations_and_lists():
    texts = [labels.duration(s) for s in (0.25, 48.2, 200.0, 7500.0, None)]
    assert texts == ["0.2 s", "48 s", "3 min 20 s", "2 h 05 min", "\u2013"]
    assert labels.listed(["a", "b", "c"]) == "a, b and c"
    assert labels.listed(list("abcdefg"), 3) == "a, b, c and 4 more"


@pytest.mark.parametrize(
    ("goal", "keys"),
    [
        ("minimize", "test/nll kl_policy_base train_mean_nll"),
        ("maximize", "test/env/all/reward/total eval_accuracy pass@4"),
        (None, "reward_loss neg_mean_squared_error eval/neg_log_loss neg_reward not_correct"),
        (None, "negative_reward lossy value"),
    ],
)
def test_a_goal_is_guessed_from_a_name_that_says_it(goal, keys):
    assert {goal_of(key) for key in keys.split()} == {goal}


def test_dollars_at_a_place_have_the_dates_of_their_prices():
    place = AtPlace("slurm", 12, 90.0, 1200, 0.4, "prices of 2026-06 to 2026-10")
    assert place.text.startswith("12 attempts on slurm, ")
    assert place.text.endswith(", 1,200 tokens, 0.4 dollars at prices of 2026-06 to 2026-10")
    assert replace(place, usd=None).text.endswith(", 1,200 tokens")
