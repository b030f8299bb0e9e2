"""The screen of one run. The panels with curves, configuration, log and rollouts are tabs, or
side by side on a large screen. After the first read, only additions are read."""

import os
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from functools import partial
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import TabbedContent, TabPane, Tabs

from sweeper.common.sanitize import sanitize
from sweeper.errors import NotFound, StoreError
from sweeper.metrics.rollout_files import flat, summary_files
from sweeper.metrics.rows import Point, Row, as_float, as_number, as_step, parse
from sweeper.metrics.sources import Files
from sweeper.results.metrics_follower import Follower
from sweeper.results.rollouts import Found, Words
from sweeper.results.sweeps import SweepRun
from sweeper.sweep.states import OPEN
from sweeper.tui.model import RunView, SweepView
from sweeper.tui.panels import (
    PageData,
    Points,
    Rollout,
    about_best,
    configuration_lines,
    curve_lines,
    log_lines,
    page_head,
    rollout_lines,
)
from sweeper.tui.screens import SCROLLING, Lines, WatchScreen
from sweeper.tui.series import Series
from sweeper.tui.text import Glyphs, Line, as_strip, value

_LOG_LINES = 300
_ROLLOUTS = 8
_BEST = 2
_SUMMARY_BYTES = 4_000_000
"""Files of rollout summaries with more bytes are not read."""


class _Metrics:
    """All metrics of one run, as curves."""

    def __init__(self, run: SweepRun) -> None:
        self.run = run
        self._series: dict[str, Series] = {}
        self._curves: Mapping[str, Points] = {}
        self._changed = True
        self.take(run.history.rows)
        del run.history  # the history may be large, and is not needed again

    def curves(self, first: str | None) -> Mapping[str, Points]:
        """Return {metric: curve}, with the metric `first` before the others. Without new data,
        return the previous object."""
        if self._changed:
            keys = sorted(self._series, key=lambda key: key != first)
            self._curves = {key: tuple(self._series[key].points) for key in keys}
            self._changed = False
        return self._curves

    def take(self, rows: Sequence[Row]) -> None:
        self._changed = True
        for row in rows:
            step = as_step(row.get("step"))
            for key, recorded in row.items():
                number = as_number(recorded)
                if key != "step" and number is not None:
                    if key not in self._series:
                        self._series[key] = Series(key)
                    self._series[key].load([Point(step, number)])


class PageReader:
    """A reader of one run's page data. `run` is the run's handle. After a new attempt or a change
    of the run's state, create a new reader. `handle` returns the handle of any run of the sweep.
    Ended runs are read only once."""

    def __init__(
        self,
        run: SweepRun,
        metric: str | None,
        handle: Callable[[str], SweepRun],
        links: tuple[str, ...] = (),
    ) -> None:
        self._run, self._metric, self._links = run, metric, links
        self._handle = handle
        self._metrics: _Metrics | None = None
        self._others: dict[tuple[str, int, str], _Metrics] = {}
        self._follower = Follower(())
        self._followed: Set[str] = frozenset()
        self._added = True
        self._log: tuple[object, tuple[str, ...]] = (None, ())
        self._rollouts: tuple[str, tuple[Rollout, ...]] = ("", ())
        self._data: PageData | None = None

    def read(self, best: RunView | None = None) -> PageData:
        """Return the current data of the page. `best` is the run to compare with. If something
        cannot be read, the data's `problem` has the error."""
        problem = ""
        best_curves: dict[str, Points] = {}
        parts = [self._read_metrics, self._poll, self._read_log, self._read_rollouts]
        if best is not None:
            parts.append(partial(self._read_best, best, best_curves))
        for read in parts:
            try:
                read()
            except (NotFound, StoreError, OSError) as error:
                problem = problem or str(error)
        data = PageData(
            run=self._run.id,
            path=self._run.path,
            curves={} if self._metrics is None else self._metrics.curves(self._metric),
            best="" if best is None else best.id,
            best_curves=best_curves,
            log=self._log[1],
            rollouts=self._rollouts[1],
            links=self._links,
            problem=problem,
        )
        if self._data is None or data != self._data:
            self._data = data
        return self._data

    def _read_metrics(self) -> None:
        if self._metrics is None:
            self._metrics = self._begin(self._run)

    def _poll(self) -> None:
        """Read the metrics that were added since the last poll."""
        for news in self._follower.poll():
            for metrics in self._all_metrics():
                if metrics.run.id == news.run.id:
                    metrics.take(news.rows)
                    self._added |= metrics is self._metrics

    def _all_metrics(self) -> list[_Metrics]:
        of_run = [] if self._metrics is None else [self._metrics]
        return [*of_run, *self._others.values()]

    def _begin(self, run: SweepRun) -> _Metrics:
        """Read all metrics that a run has recorded, and follow the run for additions."""
        self._follow([*(metrics.run for metrics in self._all_metrics()), run])
        return _Metrics(run)

    def _follow(self, runs: Sequence[SweepRun]) -> None:
        """Follow the running runs among `runs`. They share one follower, since each follower lists
        files in each poll, which is slow on a remote store."""
        at_work = {run.id: run for run in runs if run.state in OPEN}
        if at_work.keys() != self._followed:
            follower = Follower([*at_work.values()])
            with suppress(StoreError, OSError):
                self._poll()  # read what they have recorded so far
            self._follower, self._followed = follower, at_work.keys()

    def _read_best(self, best: RunView, into: dict[str, Points]) -> None:
        """Read the curves of the best other run into `into`. Cache the curves of the last `_BEST`
        runs, since runs with similar values often swap ranks."""
        place = (best.id, best.attempt, best.state)
        of_best = self._others.pop(place, None)
        recent = [*self._others.items()][1 - _BEST :]
        self._others = {key: cached for key, cached in recent if self._is_unchanged(cached.run)}
        if of_best is None:
            of_best = self._begin(self._handle(best.id))
        self._others[place] = of_best
        self._follow([metrics.run for metrics in self._all_metrics()])
        into.update(of_best.curves(self._metric))

    def _is_unchanged(self, run: SweepRun) -> bool:
        now = self._handle(run.id)
        return (now.state, now.attempts) == (run.state, run.attempts)

    def _read_log(self) -> None:
        run = self._run
        full = run.store.local_path(run.sweep_folder.log(run.id, max(run.attempts, 1)))
        # A remote log has no cheap stamp.
        stamp: object = object() if run.state in OPEN else run.state
        if full is not None:
            try:
                status = os.stat(full)
            except OSError:
                return
            stamp = (status.st_size, status.st_mtime_ns)
        if stamp != self._log[0]:
            self._log = (stamp, tuple(run.log_tail(_LOG_LINES)))

    def _read_rollouts(self) -> None:
        if self._added:
            self._read_last_rollouts()
            self._added = False

    def _read_last_rollouts(self) -> None:
        """Read some rollouts of the last iteration."""
        run = self._run
        run.files = Files(run.store, run.sweep_folder.runs)
        files = summary_files(run.files, run.folders())
        trained = [file for file in files if file.name == "train"] or files
        if not trained or trained[-1].path == self._rollouts[0]:
            return
        file = trained[-1]
        source = run.files.source(file.path)
        if source is None or source.stamp.size > _SUMMARY_BYTES:
            return
        records = parse(source.read(0)[1]).rows
        rollouts = [Found(file, record, flat(record, file)) for record in records[:_ROLLOUTS]]
        words = Words(run, rollouts)
        shown: list[Rollout] = []
        for rollout in rollouts:
            numbers = rollout.numbers
            reward, length = as_float(numbers.get("total_reward")), as_float(numbers.get("ac_len"))
            head = (
                f"iteration {file.iteration} {file.name}, group {numbers.get('group_idx')}, "
                f"trajectory {numbers.get('traj_idx')}: reward {value(reward)}, "
                f"{value(length)} tokens"
            )
            shown.append(Rollout(head, tuple(words.of(rollout).shown())))
        self._rollouts = (file.path, tuple(shown))


_PANELS = ("curves", "configuration", "log", "rollouts")
_WIDE = (130, 34)
"""The smallest size (columns, lines) of a screen that shows all panels side by side."""
_ONE_OF = Binding.Group("panel", compact=True)
_CURVE = Binding.Group("curve", compact=True)
_RUN = Binding.Group("run", compact=True)


class _Curves(Widget, can_focus=True):
    """The panel with curves. Textual's `Sparkline` has no axes and no second curve."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "screen.curve(-1)", system=True),
        Binding("down,j", "screen.curve(1)", system=True),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[Line] = []

    def show(self, lines: list[Line]) -> None:
        """Put these lines on the screen."""
        if lines != self._lines:
            self._lines = lines
            self.refresh()

    def render_line(self, y: int) -> Strip:
        return as_strip(self._lines[y] if y < len(self._lines) else [], self.size.width)


class _Words(VerticalScroll, can_focus=True, inherit_bindings=False):
    """A panel with text that scrolls. `at_end`: show the end of the text until the user scrolls."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *SCROLLING,
        Binding("home", "scroll_home", system=True),
        Binding("end", "scroll_end", system=True),
    ]

    def __init__(self, *, at_end: bool = False) -> None:
        super().__init__()
        self._at_end = at_end

    def compose(self) -> ComposeResult:
        yield Lines("words")

    def on_mount(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Scroll to the start of the text, or to the end if `at_end` is set."""
        if self._at_end:
            self.anchor()
        else:
            self.scroll_home(animate=False)

    def show(self, lines: list[Line]) -> None:
        """Put these lines on the screen."""
        self.query_one("#words", Lines).show(lines)


class RunPage(WatchScreen, inherit_bindings=False):
    """The page of the run `run` (an id)."""

    HELP = """
Each plot also shows the curve of the best run at the same steps, drawn with `x`. The page of the
best run shows the next best run instead.
"""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,backspace", "app.close", "back", key_display="esc"),
        *(
            Binding(str(number), f"panel({number - 1})", name, group=_ONE_OF)
            for number, name in enumerate(_PANELS, start=1)
        ),
        Binding("tab", "next_panel(1)", "the next panel", show=False),
        Binding("shift+tab", "next_panel(-1)", "the previous panel", show=False),
        Binding("left", "curve(-1)", "the previous curve", group=_CURVE),
        Binding("right", "curve(1)", "the next curve", group=_CURVE),
        Binding("l", "log_scale", "log", tooltip="a logarithmic scale for curves"),
        Binding("n", "neighbour(1)", "the next run", group=_RUN),
        Binding("p", "neighbour(-1)", "the previous run", group=_RUN),
        *WatchScreen.BINDINGS,
    ]

    def __init__(self, view: SweepView, run: str, glyphs: Glyphs) -> None:
        super().__init__(view, glyphs)
        self.run = run
        self.data = PageData(run)
        self._panel = self._curve = 0
        self._log_scale = False

    def compose(self) -> ComposeResult:
        yield Lines("head")
        with TabbedContent():
            panels = (_Curves(), _Words(), _Words(at_end=True), _Words())
            for number, (name, panel) in enumerate(zip(_PANELS, panels, strict=True)):
                panel.border_title = f" {number + 1} {name} "
                with TabPane(f"{number + 1} {name}", id=f"panel-{number}"):
                    yield panel
        yield from self.compose_notice()

    @property
    def _panels(self) -> list[Widget]:
        return [pane.children[0] for pane in self.query(TabPane)]

    @property
    def _view_of_run(self) -> RunView | None:
        return next((run for run in self.view.runs if run.id == self.run), None)

    @property
    def chosen(self) -> tuple[Sequence[RunView], str]:
        run = self._view_of_run
        return ((), "") if run is None else ((run,), sanitize(run.name))

    def turn_to(self, run: str) -> None:
        """Show another run."""
        self.run, self.data, self._curve = run, PageData(run), 0
        for panel in self.query(_Words):
            panel.begin()
        self.draw()

    def see(self, view: SweepView) -> None:
        super().see(view)
        self.draw()

    def on_mount(self) -> None:
        self.query_one(Tabs).can_focus = False  # keys move within a panel, not between tabs
        self.action_panel(0)

    def on_resize(self, event: events.Resize) -> None:
        wide = event.size.width >= _WIDE[0] and event.size.height >= _WIDE[1]
        self.set_class(wide, "wide")
        self.action_panel(self._panel)
        self.call_after_refresh(self.draw)

    def draw(self) -> None:
        """Draw all parts of the page that have changed."""
        run, data, head = self._view_of_run, self.data, self.query_one("#head", Lines)
        if run is None:
            head.show([[("the run is no longer in the sweep", "warn")]])
            return
        head.show(page_head(self.view, run, data))
        shown = (configuration_lines(self.view, run), log_lines(run, data), rollout_lines(data))
        for panel, lines in zip(self.query(_Words), shown, strict=True):
            panel.show(lines)
        self.draw_curves()
        self.draw_notice()

    def draw_curves(self) -> None:
        """Draw the curves in the size of their panel."""
        run, panel = self._view_of_run, self.query_one(_Curves)
        if run is None or not panel.size:
            return
        about = about_best(self.view, run, self.data.best)
        lines = curve_lines(
            self.data, about, self._curve, panel.size, self.glyphs, log=self._log_scale
        )
        panel.show(lines)

    def action_panel(self, number: int) -> None:
        """Show the panel with this number."""
        self._panel = number
        wide = self.has_class("wide")
        self.query_one(TabbedContent).active = f"panel-{number}"
        for place, pane in enumerate(self.query(TabPane)):
            pane.display = wide or place == number
        self.focus_usual()

    def focus_usual(self) -> None:
        self.set_focus(self._panels[self._panel], scroll_visible=False)

    @on(TabbedContent.TabActivated)
    def _tab_clicked(self, event: TabbedContent.TabActivated) -> None:
        if event.pane.id == event.tabbed_content.active:  # ignore late events
            self.action_panel(int((event.pane.id or "panel-0").rpartition("-")[2]))

    def action_next_panel(self, step: int) -> None:
        """Show the next panel (`step` 1) or the previous panel (-1)."""
        self.action_panel((self._panel + step) % len(_PANELS))

    def action_curve(self, step: int) -> None:
        """Show the next curve (`step` 1) or the previous curve (-1)."""
        self._curve = max(0, self._curve + step)
        self.draw_curves()

    def action_log_scale(self) -> None:
        """Switch the curves between a logarithmic and a linear scale."""
        self._log_scale = not self._log_scale
        self.draw_curves()

    async def action_neighbour(self, step: int) -> None:
        """Show the page of the next run (`step` 1) or the previous run (-1) in the list."""
        await self.run_action(f"app.neighbour({step})")
