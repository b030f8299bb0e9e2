"""Which settings distinguish cells and name them."""

from typing import Any

import pytest
from support import written

from sweeper.analysis.comparison.cells import rank
from sweeper.analysis.findings.study import find
from sweeper.analysis.findings.verdict import decide
from sweeper.analysis.reading.frames import load
from sweeper.analysis.reading.settings import settings
from sweeper.results.registry import Registry


def shown_settings(*configs: dict[str, Any], axes: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    keys, by_cell = settings({str(i): c for i, c in enumerate(configs)}, axes, "seed")
    assert all(tuple(key for key in keys if key in row) == tuple(row) for row in by_cell.values())
    return list(by_cell.values())


@pytest.mark.parametrize(
    ("configs", "axes", "shown"),
    [
        # A key that no axis declares distinguishes cells.
        ([{"b": 1, "lr": 1}, {"b": 1, "lr": 1, "warmup": 10}, {"b": 1, "lr": 2}], (),
         [{"lr": 1}, {"lr": 1, "warmup": 10}, {"lr": 2}]),
        # Null is a value, unlike a missing key.
        ([{"a": None}, {"a": 1}, {}], (), [{"a": None}, {"a": 1}, {}]),
        ([{"a": None}, {}], (), [{"a": None}, {}]),
        # Equal numbers are one value, and the seed is no setting.
        ([{"a": 1, "b": 1, "seed": 0}, {"a": 1.0, "b": True, "seed": 1}], (),
         [{"b": 1}, {"b": True}]),
        # A lone cell keeps its axes.
        ([{"a": 1, "b": 2}], ("a",), [{"a": 1}]),
    ],
)  # fmt: skip
def test_cells_are_named_by_what_differs(configs, axes, shown):
    assert shown_settings(*configs, axes=axes) == shown


def test_mappings_are_told_apart_by_what_is_in_them():
    nested = shown_settings(
        {"opt": {"lr": 1, "eps": 3}}, {"opt": {"lr": 2, "eps": 3}}, axes=("opt",)
    )
    dotted = shown_settings({"opt.lr": 1, "opt.eps": 3}, {"opt.lr": 2, "opt.eps": 3}, axes=("opt",))
    assert nested == dotted == [{"opt.lr": 1}, {"opt.lr": 2}]


def test_declared_axes_come_first_and_in_their_order():
    rows = shown_settings({"x": 1, "b.c": 1, "a": 1}, {"x": 2, "b.c": 2, "a": 2}, axes=("a", "b"))
    assert [list(row) for row in rows] == [["a", "b.c", "x"]] * 2


@pytest.mark.parametrize(
    ("cells", "axes", "headline"),
    [
        ([({"lr": 1}, 0.9), ({"lr": 1, "warmup": 10}, 0.1)], ["lr"], "warmup 10"),
        ([({"lr": 1}, 0.1), ({"lr": 1, "warmup": 10}, 0.9)], ["lr"], "warmup not set"),
        ([({"lr": 1}, 0.9), ({"lr": 2}, 0.8), ({"lr": 1, "warmup": 10}, 0.1)], ["lr"],
         "lr 1, warmup 10"),
        ([({"lr": 1}, 0.1), ({"lr": 2}, 0.8), ({"lr": 1, "warmup": 10}, 0.9)], ["lr"],
         "lr 1, warmup not set"),
        ([({"lr": 1}, 0.9), ({"lr": 2}, 0.1), ({"lr": 1, "warmup": 10}, 0.9)], ["lr"], "lr 2"),
        ([({"opt.lr": 1}, 0.9), ({"opt.lr": 2}, 0.1)], ["opt"], "opt.lr 2"),
        ([({"cap": None}, 0.1), ({"cap": 5}, 0.9)], ["cap"], "cap null"),
    ],
)  # fmt: skip
def test_the_headline_names_the_best_cell_and_no_other(tmp_path, cells, axes, headline):
    written.measured(tmp_path, [(settings_of, [value]) for settings_of, value in cells], axes)
    data = load(Registry(str(tmp_path)), "demo", None, None)
    ranking = rank(data)
    assert decide(data, ranking, find(data, ranking)).headline == headline


def test_the_seed_of_another_name_is_no_setting(tmp_path):
    sweep = written.Written(tmp_path, axes={"lr": [1, 2]}, recipe={"seed_field": "shuffle"})
    for lr in (1, 2):
        sweep.run({"lr": lr}, None, [{"step": 1, "test/nll": lr}], config={"shuffle": 7 + lr})
    sweep.save()
    assert rank(load(Registry(str(tmp_path)), "demo", None, None)).keys == ("lr",)
