"""Keys and screens of `sweeper watch`, with Textual's own pilot."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from sweeper.tui import app as app_module
from sweeper.tui.app import WatchApp
from sweeper.tui.model import RunView, SweepView
from sweeper.tui.panels import PageData, Rollout

pytestmark = pytest.mark.e2e
STEPS = tuple((float(step), 10.0**-step) for step in range(5))
OTHER = tuple((2.0 * step, 20.0 - 2.0 * step) for step in range(10))
SPOKEN = (("user", "2+2?"), ("assistant", "5 [/bold]"))
LOG = tuple(f"line {number}" for number in range(100))


def run(lr: str, seed: int, state: str = "succeeded", **fields: Any) -> RunView:
    cell, config = f"lr={lr}", {"learning_rate": float(lr), "seed": seed}
    return RunView(f"{lr}-{seed}", f"{cell},seed={seed}", cell, seed, config, state, 1, **fields)


RUNS = (
    run("1e-3", 0, value=0.5, rank=2, step=9.0, total=10),
    run("1e-3", 1, "running", value=0.3, rank=1, step=4.0),
    run("3e-3", 0, "failed", reason="oom"),
    run("3e-3", 1, "planned"),
)
VIEW = SweepView("demo", RUNS, metric="test/nll", axes=("learning_rate",), launcher=True)


class Driven:
    """The running app: `press` keys, and `see` its screen."""

    def __init__(self, app: WatchApp, pilot: Any) -> None:
        self.app, self.pilot = app, pilot

    async def press(self, *keys: str) -> None:
        """Press keys. Their effects may come later: `see` and `until` wait for them."""
        await self.pilot.press(*keys)

    async def see(self, *texts: str, keys: Sequence[str] = ()) -> list[str]:
        """Press keys, wait until all texts are on the screen, and return its lines."""
        return await self.until(
            lambda lines: all(text in "\n".join(lines) for text in texts), keys=keys
        )

    async def until(
        self, condition: Callable[[list[str]], object], keys: Sequence[str] = ()
    ) -> list[str]:
        """Press keys, wait until the lines of the screen meet a condition, and return them."""
        await self.press(*keys)
        deadline = time.monotonic() + 90
        while not condition(lines := self.lines):
            assert time.monotonic() < deadline, "\n".join(lines)
            await self.pilot.pause(0.02)
        return lines

    @property
    def lines(self) -> list[str]:
        strips = self.app.screen._compositor.render_strips()
        return [strip.text.rstrip() for strip in strips]


@pytest.fixture
def drive(monkeypatch: pytest.MonkeyPatch) -> Callable[..., WatchApp]:
    """Return a function that runs the app on a view while a script presses its keys."""

    def data(reader: Any) -> Any:
        page = PageData(reader, "/somewhere", {"test/nll": STEPS, "lr": STEPS}, LOG)
        page = page._replace(rollouts=(Rollout("reward 0", SPOKEN),), best="1e-3-1")
        return SimpleNamespace(read=lambda _: page._replace(best_curves={"test/nll": OTHER}))

    monkeypatch.setattr(app_module, "PageReader", lambda run, *_: data(run.id))

    def drive_it(
        script: Callable[[Driven], Awaitable[None]],
        view: SweepView = VIEW,
        size: tuple[int, int] = (80, 24),
        views: Sequence[SweepView] = (),
        every: float = 3600.0,
        **options: Any,
    ) -> WatchApp:
        store = SimpleNamespace(is_remote=False)
        launch = SimpleNamespace(backend="local", places=("local",))
        plan = SimpleNamespace(launch=launch, wandb=None)
        sweep = SimpleNamespace(store=store, name="demo", plan=plan)
        metric = None if view.metric is None else {"name": view.metric}
        shown = views or [view]
        poller: Any = SimpleNamespace(
            sweep=sweep,
            check=lambda: shown[-1],
            run=lambda run: SimpleNamespace(id=run, metric=metric),
        )
        app = WatchApp(poller, view, every=every, **options)

        async def driven() -> None:
            async with app.run_test(size=size) as pilot:
                await pilot.pause()
                await script(Driven(app, pilot))

        asyncio.run(driven())
        return app

    return drive_it


def test_the_list_by_its_keys(drive: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[Any] = []
    for kind in ("cancel", "retry"):
        monkeypatch.setattr(
            app_module, kind, lambda _, runs, kind=kind: requests.append((kind, runs)) or "ok"
        )

    async def script(on: Driven) -> None:
        lines = await on.see("\n>▾ lr=1e-3", "\n/ filter  s sort")
        assert lines[0].startswith("demo 4 runs: 1 running, 1 failed, 1 succeeded, 1 planned")
        await on.pilot.click("RunList", offset=(9, 2))
        await on.see(">   seed=0")
        await on.pilot.click("RunList", offset=(9, 2))
        await on.see("esc back")
        await on.see("/ filter  s sort", keys=("escape",))
        await on.see("sorted by state", keys=("home", "s"))
        await on.see("not grouped", keys="g")
        await on.see("sorted by state, backwards", keys="S")
        listed = ["lr=3e-3,seed=1", "lr=1e-3,seed=1"]
        await on.until(
            lambda lines: (
                "[seed=1] " in "\n".join(lines)
                and [line[2:16] for line in lines[3:-2] if line] == listed
            ),
            keys=("slash", *"seed=1", "enter"),
        )
        await on.until(  # a filter may contain letters that are keys
            lambda lines: len([line for line in lines[3:-2] if line]) == 4,
            keys=("slash", *"q?", "escape", "escape"),
        )
        await on.see("cancel lr=1e-3,seed=1?", keys=("end", "c"))
        await on.see("not done", keys="n")
        await on.see("the backend local has no panes", keys="t")
        await on.see("ok", keys=("c", "y"))
        await on.see("a heading has no pane: move to a run", keys=("g", "home", "t"))
        await on.until(
            lambda lines: [line[1:3].strip() for line in lines[3:-2] if line] == ["▾", "", "", "▸"],
            keys=("z", "enter"),
        )
        await on.pilot.resize_terminal(12, 3)
        await on.press("enter", "down", "enter", "l", "3", "escape", "q")

    assert drive(script).return_value is None
    assert requests == [("cancel", ("1e-3-1",))]


def test_a_page_shows_its_panels(drive: Any) -> None:
    async def script(on: Driven) -> None:
        lines = await on.see("test/nll  0.0001 at step 4   1 of 2", keys=("down", "enter"))
        assert "x 16 at step 4, 2 at 18: the best, lr=1e-3,seed=1" in lines
        assert "logarithmic" not in "\n".join(lines)
        await on.see("logarithmic", "\n  0.01", "\n     1", keys="l")
        await on.see("\nlr  0.0001", keys=("l", "right"))
        on.app.simulate_key("3")  # faster than the app reacts
        on.app.simulate_key("1")
        await on.see("learning_rate: 0.001", keys="2")
        await on.pilot.click("Tab#--content-tab-panel-3")
        await on.see("[/bold]")
        await on.until(lambda lines: lines[-3].startswith("line 99"), keys="3")
        await on.until(lambda lines: lines[-3].startswith("line 97"), keys=("up", "up"))
        await on.see("assistant: 5 [/bold]", keys=("tab",))
        await on.until(lambda lines: lines[0].startswith("lr=1e-3,seed=1  running"), keys="n")
        await on.see("cannot start again lr=1e-3,seed=1: the state is running", keys="r")
        await on.until(  # the cursor followed the run
            lambda lines: lines[5].startswith(">   seed=1"), keys=("escape",)
        )

    drive(script)


def test_all_panels_at_once_on_a_large_screen(drive: Any) -> None:
    async def script(on: Driven) -> None:
        titles = [f"{n} {name}" for n, name in
                  enumerate(("curves", "configuration", "log", "rollouts"), start=1)]  # fmt: skip
        await on.see(*titles, "line 99", "learning_rate: 0.001", "[/bold]", keys=("down", "enter"))
        await on.until(lambda lines: "line 99" not in "\n".join(lines), keys=("3", "up"))
        await on.pilot.resize_terminal(80, 24)
        await on.until(lambda lines: "learning_rate" not in "\n".join(lines))
        await on.see("line 9", "3 log")

    drive(script, size=(200, 50))


@pytest.mark.parametrize("before", [["slash", "x"], ["down", "down", "c"], ["ctrl+p"], ["down"]])
def test_ctrl_c_interrupts_whatever_has_the_keys(drive: Any, before: list[str]) -> None:
    async def script(on: Driven) -> None:
        await on.press(*before, "ctrl+c")

    assert drive(script).return_value == 130


def test_the_palette_opens_a_run_and_sorts(drive: Any) -> None:
    def offered(lines: list[str], wanted: str, others: str) -> bool:
        """Return whether `wanted` is offered first, and the others no longer."""
        matches = [line for line in lines if wanted[:8] in line]
        return matches != [] and wanted in matches[0] and others not in "".join(matches)

    async def script(on: Driven) -> None:
        await on.until(
            lambda lines: offered(lines, "open lr=3e-3,seed=1", "seed=0"),
            keys=("ctrl+p", *"open3e1"),
        )
        await on.see("lr=3e-3,seed=1  planned", keys=("enter",))
        await on.until(
            lambda lines: offered(lines, "sort by progress", "sort by name"),
            keys=("escape", "ctrl+p", *"byprog"),
        )
        await on.see("sorted by progress", keys=("enter",))

    drive(script)


def test_all_of_the_help_can_be_read_on_a_small_screen(drive: Any) -> None:
    async def script(on: Driven) -> None:
        await on.see("sort by the next column", "filter", keys=("question_mark",))
        words = {"sort backwards", "group by", "palette", "page up and down", "place", "tmux"}
        words |= {"stalled", "condition as for --where", "state = failed"}
        deadline = time.monotonic() + 90
        for key in itertools.cycle(["pagedown"] * 6 + ["pageup"] * 6):
            text = " ".join(" ".join(on.lines).split())
            words = {word for word in words if word not in text}
            if not words:
                break
            assert time.monotonic() < deadline, words
            await on.press(key)
            await on.pilot.pause(0.05)
        await on.until(lambda lines: lines[0].startswith("demo"), keys=("escape",))

    drive(script, size=(60, 20))


@pytest.mark.parametrize("size", [(200, 50), (30, 6)])
def test_without_unicode_all_is_ascii(drive: Any, size: tuple[int, int]) -> None:
    async def script(on: Driven) -> None:
        for keys in ([], ["c"], ["n", "down", "enter"], ["3"], ["l", "1"], ["question_mark"]):
            await on.press(*keys)
            await on.pilot.pause()
            assert [line for line in on.lines if not line.isascii()] == []

    drive(script, size=size, plain_glyphs=True)


def test_only_what_has_changed_is_drawn(drive: Any) -> None:
    views = [VIEW]

    async def script(on: Driven) -> None:
        runs, drawn = on.app.sweep_screen.list, -1
        deadline = time.monotonic() + 90
        while runs.drawn != drawn:  # until nothing more is drawn
            assert time.monotonic() < deadline
            drawn = runs.drawn
            await on.pilot.pause(0.2)
        views.append(VIEW._replace(runs=(*RUNS[:3], RUNS[3]._replace(step=1.0))))
        await on.until(lambda _: runs.drawn > drawn)
        await on.pilot.pause(0.2)
        assert runs.drawn <= drawn + 2  # the run and its group

    drive(script, views=views, every=0.02)


class Undrawable(str):
    """A text that cannot be drawn because of a bug."""

    def __format__(self, form: str) -> str:
        raise ZeroDivisionError("x")

    __str__ = __format__  # type: ignore[assignment]


def test_a_failed_drawing_is_reported_and_repeated(drive: Any) -> None:
    views = [VIEW]

    async def script(on: Driven) -> None:
        views.append(VIEW._replace(held=Undrawable("x")))
        await on.see("a bug in sweeper: ZeroDivisionError: x")
        views.append(VIEW._replace(held="y"))
        await on.see("held: y")

    drive(script, views=views, every=0.02)
