"""`sweeper watch` without its terminal: keys in, lines out."""

from typing import Any

import pytest
from rich.cells import cell_len

from sweeper.tui.charts import ASCII, UNICODE
from sweeper.tui.helping import HELP
from sweeper.tui.model import Alarm, RunView, SweepView
from sweeper.tui.render import joined
from sweeper.tui.run_page import PageData, Rollout
from sweeper.tui.screen_model import ScreenModel


def run(lr: str, seed: int, state: str = "succeeded", **known: Any) -> RunView:
    cell = f"lr={lr}"
    config = {"learning_rate": float(lr), "seed": seed}
    return RunView(f"{lr}-{seed}", f"{cell},seed={seed}", cell, seed, config, state, 1, **known)


RUNS = (
    run("1e-3", 0, value=0.5, rank=3, curve=(3.0, 2.0, 0.5), step=9.0, total=10, fraction=1.0),
    run("1e-3", 1, value=0.4, rank=2, curve=(3.0, 2.0, 0.4), step=9.0, total=10, fraction=1.0),
    run("3e-3", 0, "running", value=0.3, rank=1, step=4.0, total=10, eta=90.0, beat=0.0),
    run("3e-3", 1, "failed", reason="oom"),
    run("9e-3", 0, "running", waits="rate limit since 12:01", beat=5.0),
    run("9e-3", 1, "planned"),
)
VIEW = SweepView("demo", RUNS, metric="test/nll", axes=("learning_rate",), launcher=True)


def shown(desk: ScreenModel) -> list[str]:
    return [joined(line).rstrip() for line in desk.screen()]


def press(desk: ScreenModel, *keys: str) -> Any:
    deed = None
    for key in keys:
        deed = desk.press(key, key if len(key) == 1 else None)
    return deed


def names(desk: ScreenModel) -> list[str]:
    """The first word of each line of the list."""
    return [line[2:].split()[0] for line in shown(desk)[3:-2] if line.strip()]


def test_the_step_has_room_for_its_title() -> None:
    view = SweepView("demo", (run("1e-3", 0, "planned"),), metric="loss", launcher=True)
    assert " step " in joined(ScreenModel(view, 120, 12).screen()[2])


def test_groups_of_numbers_too_large_to_add() -> None:
    huge = tuple(run("1e-3", n, value=1.5e308, curve=(1.5e308, -1.5e308)) for n in range(3))
    lines = shown(ScreenModel(SweepView("demo", huge, metric="loss"), 160, 12))
    assert any("1.5e+308" in line for line in lines[3:4])


def test_what_cannot_be_drawn_is_said_and_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    from sweeper.tui import app
    from sweeper.tui.app import WatchApp

    store = SimpleNamespace(is_remote=False)
    poller: Any = SimpleNamespace(sweep=SimpleNamespace(store=store))
    watching, timers, drawn = WatchApp(poller, VIEW), list[float](), list[Any]()
    monkeypatch.setattr(app, "_DEBUG", False)
    monkeypatch.setattr(watching, "set_timer", lambda seconds, _: timers.append(seconds))
    monkeypatch.setattr(watching.canvas, "show", drawn.append)

    def fails(*_: object) -> None:
        raise ZeroDivisionError("x")

    for broken in ("screen", "see"):
        with monkeypatch.context() as patch:
            patch.setattr(watching.desk, broken, fails)
            watching._seen(VIEW._replace(held="x"), None, "")
        lines = [joined(line) for line in drawn.pop()]
        assert "a bug of ours: ZeroDivisionError: x" in lines[-2]
        assert len(lines) == 24
    assert len(timers) == 2
    watching._seen(VIEW, None, "")
    assert len(timers) == 3
    assert "demo" in joined(drawn.pop()[0])
    monkeypatch.setattr(app, "_DEBUG", True)
    monkeypatch.setattr(watching.desk, "screen", fails)
    with pytest.raises(ZeroDivisionError):
        watching._seen(VIEW, None, "")
    assert len(timers) == 4


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50), (40, 10), (30, 6), (12, 3)])
@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
@pytest.mark.parametrize("keys", [[], ["down", "enter"], ["?"], ["slash", "x"], ["down", "c"]])
def test_every_line_fits_the_screen(width: int, height: int, glyphs: Any, keys: list[str]) -> None:
    desk = ScreenModel(VIEW, width, height, glyphs=glyphs)
    press(desk, *("question_mark" if key == "?" else key for key in keys))
    desk.data = None if desk.page is None else PageData("1e-3-0", curves={"a": ((0.0, 1.0),)})
    lines = desk.screen()
    assert len(lines) <= height
    assert max(cell_len(joined(line)) for line in lines) <= width
    if glyphs is ASCII:
        assert all(joined(line).isascii() for line in lines)


def test_the_list_tells_states_steps_values_and_ranks() -> None:
    lines = shown(ScreenModel(VIEW, 100, 20))
    assert lines[0].startswith("demo 6 runs: 1 running, 1 waiting, 1 failed, 2 succeeded, 1 plan")
    assert lines[1] == "paused: 1 by rate limit · launcher at work"
    assert lines[3].startswith(">▾ lr=1e-3") and "2 succeeded" in lines[3] and "0.45" in lines[3]
    running = next(line for line in lines if "4/10" in line)
    assert running.split()[:3] == ["seed=0", "running", "1"]
    assert "2m" in running and "0.3" in running and running.endswith("1  now")
    assert any("waiting" in line and "seed=0" in line for line in lines)


def test_sort_group_and_fold() -> None:
    desk = ScreenModel(VIEW, 100, 20)
    assert names(desk)[:3] == ["lr=1e-3", "seed=0", "seed=1"]
    press(desk, "s", "s")
    assert names(desk)[:2] == ["lr=3e-3", "seed=0"]
    press(desk, "g")
    assert names(desk)[:3] == ["lr=3e-3,seed=0", "lr=1e-3,seed=1", "lr=1e-3,seed=0"]
    press(desk, "S")
    assert names(desk)[-1] == "lr=3e-3,seed=0"
    press(desk, "g")
    assert "learning_rate=0.001" in names(desk)
    press(desk, "z")
    assert len(names(desk)) == 3
    press(desk, "home", "enter")
    assert len(names(desk)) == 5


def test_the_cursor_stays_on_its_run() -> None:
    desk = ScreenModel(VIEW, 100, 20)
    press(desk, "down", "down")
    assert shown(desk)[5].startswith(">   seed=1")
    desk.see(VIEW._replace(runs=RUNS[2:] + RUNS[:2]))
    (line,) = [line for line in shown(desk) if line.startswith(">")]
    assert line.split()[1] == "seed=1" and "0.4" in line


@pytest.mark.parametrize(
    ("typed", "left"),
    [
        ("failed", ["lr=3e-3,seed=1"]),
        ("oom", ["lr=3e-3,seed=1"]),
        ("WAITING rate", ["lr=9e-3,seed=0"]),
        ("lr=1e-3 seed=0", ["lr=1e-3,seed=0"]),
        ("learning_rate < 3e-3 and place = 2", ["lr=1e-3,seed=1"]),
        ("nothing at all", []),
    ],
)
def test_the_filter(typed: str, left: list[str]) -> None:
    desk = ScreenModel(VIEW, 120, 20)
    press(desk, "g", "slash", *typed, "enter")
    assert [n for n in names(desk) if n.startswith("lr")] == left
    press(desk, "escape")
    assert len(names(desk)) == 6


def test_a_filter_that_is_wrong_says_why_and_hides_nothing() -> None:
    desk = ScreenModel(VIEW, 120, 20)
    press(desk, "g", "slash", *"learning_rte < 1")
    assert "did you mean 'learning_rate'" in shown(desk)[-2]
    assert len(names(desk)) == 6
    press(desk, "escape")
    assert "did you mean" not in shown(desk)[-2]


def test_cancel_and_retry_ask_first() -> None:
    desk = ScreenModel(VIEW, 100, 20)
    assert press(desk, "c") is None
    assert "nothing to cancel" in shown(desk)[-2]
    press(desk, *["down"] * 4)
    assert press(desk, "c") is None
    assert shown(desk)[-2].startswith("cancel lr=3e-3,seed=0?")
    assert press(desk, "n") is None and "not done" in shown(desk)[-2]
    assert press(desk, "c", "y") == ("cancel", ("3e-3-0",))
    assert press(desk, "down", "r", "y") == ("retry", ("3e-3-1",))
    press(desk, "g")
    assert press(desk, "t") == ("jump", ("3e-3-1",))


def test_all_of_a_group() -> None:
    desk = ScreenModel(VIEW, 100, 20)
    press(desk, *["down"] * 6)
    assert press(desk, "c", "y") == ("cancel", ("9e-3-0", "9e-3-1"))
    assert press(desk, "t") is None and "choose a run" in shown(desk)[-2]


def test_a_page_shows_its_panels() -> None:
    desk = ScreenModel(VIEW, 80, 24)
    assert press(desk, "down", "enter") == ("open", ("1e-3-0",))
    points = tuple((float(x), 1.0 / (1 + x)) for x in range(50))
    said = (("user", "2+2?"), ("assistant", "5 [/bold]"))
    desk.data = PageData(
        "1e-3-0",
        "/somewhere",
        {"test/nll": points, "lr": points},
        tuple(f"line {n}" for n in range(100)),
        (Rollout("reward 0", said),),
    )
    text = "\n".join(shown(desk))
    assert "test/nll  0.02 at step 49   1 of 2" in text and "⠈" in text
    press(desk, "right")
    assert "lr  0.02" in "\n".join(shown(desk))
    press(desk, "2")
    assert any("learning_rate: 0.003, here 0.001" in line for line in shown(desk))
    press(desk, "3")
    assert shown(desk)[-3] == "line 99"
    press(desk, "up", "up")
    assert shown(desk)[-3] == "line 97"
    press(desk, "tab")
    assert "assistant: 5 [/bold]" in shown(desk)
    assert press(desk, "n") == ("open", ("1e-3-1",))
    assert press(desk, "c") is None and "nothing to cancel" in shown(desk)[-2]
    assert press(desk, "escape") == ("close", ())


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
def test_the_best_run_s_curve_stands_beside_this_one_s(glyphs: Any) -> None:
    desk = ScreenModel(VIEW, 80, 24, glyphs=glyphs)
    press(desk, "down", "enter")
    rising = tuple((float(step), float(step)) for step in range(10))
    falling = tuple((2.0 * step, 20.0 - 2.0 * step) for step in range(10))
    desk.data = PageData("1e-3-0", curves={"a": rising, "b": rising}, best="3e-3-0",
                         best_curves={"a": falling})  # fmt: skip
    lines = shown(desk)
    told = lines.index("x 12 at step 8, 2 at 18: the best, lr=3e-3,seed=0")
    assert lines[told + 1] == "  learning_rate 0.003, here 0.001"
    *drawn, axis = lines[told + 2 : told + 16]
    assert axis.split() == ["0", "18"] and drawn[0].startswith("20 x")  # all of both is there
    assert 70 < sum(line.count("x") for line in drawn) < 80  # one a column
    own = "*" if glyphs is ASCII else "⠉"
    assert any(own in line for line in drawn) and not any(own in line[50:] for line in drawn)
    press(desk, "right")  # a metric that the other does not have
    assert not any("x" in line for line in shown(desk)[4:-2])


def test_all_panels_at_once_on_a_large_screen() -> None:
    desk = ScreenModel(VIEW, 200, 50)
    press(desk, "down", "enter")
    desk.data = PageData("1e-3-0", curves={"test/nll": ((0.0, 1.0), (1.0, 2.0))}, log=("hello",))
    text = "\n".join(shown(desk))
    assert all(f"{n} {name}" in text for n, name in
               enumerate(("curves", "configuration", "log", "rollouts"), start=1))  # fmt: skip
    assert "hello" in text and "learning_rate: 0.003, here 0.001" in text


def test_alarms_are_marked_and_told() -> None:
    alarm = Alarm("nan", "loss is NaN at step 4; lower the learning rate")
    runs = (*RUNS[:2], RUNS[2]._replace(alarms=(alarm,)), *RUNS[3:])
    desk = ScreenModel(VIEW._replace(runs=runs), 80, 24)
    lines = shown(desk)
    assert "1 with alarms" in lines[1]
    marked = [line.split()[:2] for line in lines if line.startswith("!")]
    assert marked == [["!▾", "lr=3e-3"], ["!", "seed=0"]]
    press(desk, *["down"] * 3)
    assert shown(desk)[-2] == "lr=3e-3  alarms: 1 nan"
    press(desk, "down")
    assert "nan: loss is NaN at step 4" in shown(desk)[-2]
    press(desk, "slash", *"alarm nan", "enter")
    assert names(desk) == ["lr=3e-3", "seed=0"]


def test_a_run_without_numbers_tells_its_story_in_their_place() -> None:
    failed = RUNS[3]._replace(reason="error", said="no tokenizer there")
    for width in (80, 200):
        lines = shown(ScreenModel(VIEW._replace(runs=(*RUNS[:3], failed)), width, 24))
        (line,) = [line for line in lines if "failed" in line and "seed=1" in line]
        assert line.endswith("error: no tokenizer there")
    ran = failed._replace(step=3.0, value=0.1)
    lines = shown(ScreenModel(VIEW._replace(runs=(ran,)), 80, 24))
    assert not any("tokenizer" in line for line in lines[3:-2]) and "tokenizer" in lines[-2]


def test_hostile_names_are_data() -> None:
    name = "[bold red]x[/] \x1b[2J\x07\u202e\n日本"
    bad = RUNS[0]._replace(name=name, cell=name, reason=name, config={name: name})
    desk = ScreenModel(VIEW._replace(name=name, runs=(bad,), metric=name), 90, 24)
    for keys in ([], ["c"], ["enter"], ["2"]):
        press(desk, *keys)
        for line in desk.screen():
            assert joined(line).isprintable()
            assert cell_len(joined(line)) <= 90
    assert any("[bold red]x[/] \\x07" in line for line in shown(desk))


def test_all_of_the_help_can_be_read_on_a_small_screen() -> None:
    desk = ScreenModel(VIEW, 60, 15)
    press(desk, "question_mark")
    assert "more" in shown(desk)[-1]
    seen = "\n".join(shown(desk)[:13])
    for _ in range(4):
        press(desk, "pagedown")
        seen += "\n".join(shown(desk)[:13])
    assert all(word in " ".join(seen.split()) for word in " ".join(HELP.split()).split())
    assert "place: by the metric" in "\n".join(shown(desk))
    press(desk, "x")
    assert shown(desk)[0].startswith("demo")


def test_nothing_to_show() -> None:
    desk = ScreenModel(SweepView("empty", ()), 80, 24)
    for key in ("down", "enter", "c", "r", "t", "g", "s", "z", "left", "space", "pagedown"):
        assert press(desk, key) is None
    assert "no runs" in shown(desk)
    assert press(desk, "q") == ("quit", ()) and press(desk, "ctrl+c") == ("interrupt", ())
