"""The list of runs of `sweeper watch` without a terminal: actions in, lines out."""

from typing import Any

import pytest
from rich.cells import cell_len

from sweeper.tui.model import Alarm, RunView, SweepView
from sweeper.tui.render import head_lines
from sweeper.tui.screen_model import ScreenModel, proposed
from sweeper.tui.sweep_screen import list_lines
from sweeper.tui.text import ASCII, UNICODE, joined


def run(lr: str, seed: int, state: str = "succeeded", **fields: Any) -> RunView:
    cell = f"lr={lr}"
    config = {"learning_rate": float(lr), "seed": seed}
    return RunView(f"{lr}-{seed}", f"{cell},seed={seed}", cell, seed, config, state, 1, **fields)


RUNS = (
    run("1e-3", 0, value=0.5, rank=3, curve=(3.0, 2.0, 0.5), step=9.0, total=10, fraction=1.0),
    run("1e-3", 1, value=0.4, rank=2, curve=(3.0, 2.0, 0.4), step=9.0, total=10, fraction=1.0),
    run("3e-3", 0, "running", value=0.3, rank=1, step=4.0, total=10, eta=90.0, beat=0.0),
    run("3e-3", 1, "failed", reason="oom"),
    run("9e-3", 0, "running", waits="rate limit since 12:01", beat=5.0),
    run("9e-3", 1, "planned"),
)
VIEW = SweepView("demo", RUNS, metric="test/nll", axes=("learning_rate",), launcher=True)


def shown(model: ScreenModel, width: int = 100) -> list[str]:
    """Return the lines of the list, below the titles."""
    return [joined(line).rstrip() for line in list_lines(model, width, 50, 0, UNICODE)[1:]]


def names(model: ScreenModel) -> list[str]:
    """Return the first word of each line of the list."""
    return [line[2:].split()[0] for line in shown(model)]


def test_the_step_has_room_for_its_title() -> None:
    view = SweepView("demo", (run("1e-3", 0, "planned"),), metric="loss", launcher=True)
    assert " step " in joined(list_lines(ScreenModel(view), 120, 5, 0, UNICODE)[0])


def test_groups_of_numbers_too_large_to_add() -> None:
    huge = tuple(run("1e-3", n, value=1.5e308, curve=(1.5e308, -1.5e308)) for n in range(3))
    lines = shown(ScreenModel(SweepView("demo", huge, metric="loss")), 160)
    assert "1.5e+308" in lines[0]


@pytest.mark.parametrize("width", [200, 80, 40])
@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
def test_every_line_fits_the_screen(width: int, glyphs: Any) -> None:
    lines = list_lines(ScreenModel(VIEW), width, 20, 0, glyphs)
    assert list_lines(ScreenModel(VIEW._replace(metric=None)), 0, 1, 0, glyphs)  # without room
    assert {cell_len(joined(line)) for line in lines} == {width}
    if glyphs is ASCII:
        assert all(joined(line).isascii() for line in lines)


def test_the_list_shows_states_steps_values_and_ranks() -> None:
    first, second = (joined(line) for line in head_lines(VIEW, UNICODE))
    assert first.startswith("demo 6 runs: 1 running, 1 waiting, 1 failed, 2 succeeded, 1 plan")
    assert second == "paused: 1 by rate limit · launcher running"
    titles = joined(list_lines(ScreenModel(VIEW), 100, 50, 0, UNICODE)[0]).split()
    assert "place" in titles and "rank" not in titles  # an axis may be called rank
    lines = shown(ScreenModel(VIEW))
    assert lines[0].startswith(">▾ lr=1e-3") and "2 succeeded" in lines[0] and "0.45" in lines[0]
    running = next(line for line in lines if "4/10" in line)
    assert running.split()[:3] == ["seed=0", "running", "1"]
    assert sum("10/10" in line for line in lines) == 2  # they ended at step 9, the tenth step
    assert "2m" in running and "0.3" in running and running.endswith("1  now")
    assert any("waiting" in line and "seed=0" in line for line in lines)


def test_the_list_is_sorted_grouped_and_folded() -> None:
    model = ScreenModel(VIEW)
    assert names(model)[:3] == ["lr=1e-3", "seed=0", "seed=1"]
    assert [model.sort_by() for _ in range(2)] == ["sorted by state", "sorted by metric"]
    assert names(model)[:2] == ["lr=3e-3", "seed=0"]
    assert model.group_by() == "not grouped"
    assert names(model)[:3] == ["lr=3e-3,seed=0", "lr=1e-3,seed=1", "lr=1e-3,seed=0"]
    assert model.reverse() == "sorted by metric, backwards"
    assert names(model)[-1] == "lr=3e-3,seed=0"
    assert model.group_by() == "grouped by learning_rate"
    assert "learning_rate=0.001" in names(model)
    model.fold_all()
    assert len(names(model)) == 3
    model.go(0)
    model.fold()
    assert len(names(model)) == 5
    model.go(2)
    model.fold(folded=False)  # a run cannot be unfolded
    assert model.place == 2
    model.fold(folded=True)  # the cursor moves to its heading
    assert model.place == 0
    model.fold(folded=True)
    assert len(names(model)) == 3


def test_the_cursor_stays_on_its_run() -> None:
    model = ScreenModel(VIEW)
    model.go(2)
    assert shown(model)[2].startswith(">   seed=1")
    model.see(VIEW._replace(runs=RUNS[2:] + RUNS[:2]))
    (line,) = [line for line in shown(model) if line.startswith(">")]
    assert line.split()[1] == "seed=1" and "0.4" in line


@pytest.mark.parametrize(
    ("typed", "left"),
    [
        ("failed", ["lr=3e-3,seed=1"]),
        ("oom", ["lr=3e-3,seed=1"]),
        ("WAITING rate", ["lr=9e-3,seed=0"]),
        ("lr=1e-3 seed=0", ["lr=1e-3,seed=0"]),
        ("lr=1e-3", ["lr=1e-3,seed=0", "lr=1e-3,seed=1"]),  # no setting has this name: a word
        ("learning_rate < 3e-3 and place = 2", ["lr=1e-3,seed=1"]),
        ("learning_rate == 0.003", ["lr=3e-3,seed=0", "lr=3e-3,seed=1"]),
        ("learning_rate=3e-3 and state=failed", ["lr=3e-3,seed=1"]),
        ("learning_rate in (1e-3, 3e-3) and not seed = 0", ["lr=1e-3,seed=1", "lr=3e-3,seed=1"]),
        ("(place < 3 or state = failed) and value is missing", ["lr=3e-3,seed=1"]),
        ("nothing at all", []),
    ],
)
def test_the_filter_selects_runs(typed: str, left: list[str]) -> None:
    model = ScreenModel(VIEW)
    model.group_by("none")
    model.filter(typed)
    assert [item.id for item in model.items if isinstance(item, RunView)] == [
        f"{name[3:7]}-{name[-1]}" for name in left
    ]
    assert not model.problem
    model.filter("")
    assert len(names(model)) == 6


def test_a_malformed_filter_hides_nothing() -> None:
    model = ScreenModel(VIEW)
    model.filter("learning_rte < 1")
    assert "did you mean 'learning_rate'" in model.problem
    assert len(names(model)) == 9
    model.filter("")
    assert not model.problem


def test_actions_are_proposed_for_the_chosen_line() -> None:
    model = ScreenModel(VIEW)
    assert "cannot cancel" in str(proposed("cancel", *model.chosen))
    model.go(4)
    assert proposed("cancel", *model.chosen) == ("cancel", ("3e-3-0",), "cancel lr=3e-3,seed=0?")
    model.go(5)
    assert proposed("retry", *model.chosen)[:2] == ("retry", ("3e-3-1",))
    model.go(6)
    action = proposed("cancel", *model.chosen)
    assert action == ("cancel", ("9e-3-0", "9e-3-1"), "cancel 2 of lr=9e-3?")


def test_alarms_are_marked_and_described() -> None:
    alarm = Alarm("nan", "loss is NaN at step 4; lower the learning rate")
    view = VIEW._replace(runs=(*RUNS[:2], RUNS[2]._replace(alarms=(alarm,)), *RUNS[3:]))
    model = ScreenModel(view)
    assert "1 with alarms" in joined(head_lines(view, UNICODE)[1])
    marked = [line.split()[:2] for line in shown(model) if line.startswith("!")]
    assert marked == [["!▾", "lr=3e-3"], ["!", "seed=0"]]
    model.go(3)
    assert model.about()[0] == "lr=3e-3  alarms: 1 nan"
    model.go(4)
    assert "nan: loss is NaN at step 4" in model.about()[0]
    model.filter("alarm nan")
    assert names(model) == ["lr=3e-3", "seed=0"]


def test_a_run_without_numbers_shows_its_error_instead() -> None:
    failed = RUNS[3]._replace(reason="error", last_line="no tokenizer there")
    for width in (80, 200):
        lines = shown(ScreenModel(VIEW._replace(runs=(*RUNS[:3], failed))), width)
        (line,) = [line for line in lines if "failed" in line and "seed=1" in line]
        assert line.endswith("error: no tokenizer there")
    model = ScreenModel(VIEW._replace(runs=(failed._replace(step=3.0, value=0.1),)))
    assert not any("tokenizer" in line for line in shown(model, 80))
    assert "tokenizer" in model.about()[0]


def test_a_silent_run_has_no_heartbeat_now() -> None:
    """A new view does not know for how long a run has been silent."""
    for beat, age in ((0.0, ""), (30.0, "30s"), (90.0, "1m")):
        quiet = RUNS[2]._replace(silent=True, beat=beat, rank=None)
        line = shown(ScreenModel(VIEW._replace(runs=(quiet,))))[-1]
        assert "silent" in line and "now" not in line and line.endswith(age)


def test_an_empty_sweep_is_shown() -> None:
    model = ScreenModel(SweepView("empty", ()))
    for do in (model.fold, model.fold_all, model.sort_by, model.group_by, model.reverse):
        do()
    model.go(3)
    assert model.chosen == ((), "") and model.neighbour("x", 1) is None
    assert shown(model) == ["no runs"] and model.about() == ("", "")
