"""The Textual app of `sweeper watch`. It polls the store in a thread, updates the screens, and
handles keys."""

import asyncio
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import ClassVar, NamedTuple

from textual import events
from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Input

from sweeper.backends.tmux.server import TmuxServer, socket_name
from sweeper.errors import NotFound, SweeperError
from sweeper.launcher.control import cancel_runs, retry_runs
from sweeper.results.sweeps import Sweep
from sweeper.results.waiting import Live
from sweeper.sweep.folder import token
from sweeper.sweep.hint import hint
from sweeper.sweep.requests import Requested
from sweeper.sweep.tracking import link
from sweeper.tui.list_model import SORTS, groupings
from sweeper.tui.model import SweepView, best_run, stage_of
from sweeper.tui.panels import PageData
from sweeper.tui.poller import Poller
from sweeper.tui.run_page import PageReader, RunPage
from sweeper.tui.screen_model import Action, proposed
from sweeper.tui.screens import OpenRun, Question, WatchScreen
from sweeper.tui.sweep_screen import Leave, SweepScreen
from sweeper.tui.text import ASCII, UNICODE


def cancel(sweep: Sweep, runs: Sequence[str]) -> str:
    """Cancel runs, and wait until they have ended. Return a sentence about the result."""
    return f"{_counted(cancel_runs(sweep.folder, runs))}"


def retry(sweep: Sweep, runs: Sequence[str]) -> str:
    """Request that runs start again. Return a sentence about the result."""
    messages: list[str] = []
    done = retry_runs(sweep, runs, tell=messages.append)
    requested = sum(request.accepted for request in done)
    sentences = [f"{requested} to start again"] if requested else []
    refused = [request for request in done if not request.accepted]
    return "; ".join([*sentences, *([_counted(refused)] if refused else []), *messages])


def _counted(done: Sequence[Requested]) -> str:
    counts = Counter(request.why for request in done)
    return ", ".join(f"{number} {why}" for why, number in counts.items())


class Pane(NamedTuple):
    """A run's tmux pane: the ids of the session, the window and the pane, and the name of the
    tmux server's socket."""

    session: str
    window: str
    id: str
    socket: str


def pane_of(sweep: Sweep, run: str, attempt: int) -> Pane:
    """Return the tmux pane of a run's attempt on this machine. Raises `NotFound`."""
    launch = sweep.plan.launch
    if "tmux" not in launch.places:
        raise NotFound(f"the backend {launch.backend} has no panes; press enter for the log")
    server = TmuxServer()
    session = server.session(f"{sweep.root}/{sweep.name}")
    job = token(run, attempt)
    for pane in server.panes(session) if session is not None else ():
        if pane.command.endswith(job):
            return Pane(session or "", pane.window, pane.id, socket_name())
    raise NotFound("no pane of this run on this machine: it was closed, or the run has not started")


def go_there(pane: Pane) -> list[str] | None:
    """Select the pane in tmux. Return None if the user's terminal now shows the pane. If the user
    is outside of tmux, return a command that shows the pane. If the user is in another tmux
    server, return []."""
    server = TmuxServer()
    server.source([f"select-window -t {pane.window}", f"select-pane -t {pane.id}"])
    socket, _, rest = os.environ.get("TMUX", "").partition(",")
    if not socket:
        return ["tmux", "-L", pane.socket, "attach-session", "-t", pane.session]
    if os.path.basename(socket) != pane.socket:
        return []
    if f"${rest.rpartition(',')[2]}" != pane.session:
        server.source([f"switch-client -t {pane.session}"])
    return None


def _is_in_our_tmux() -> bool:
    try:
        return TmuxServer().is_around_us()
    except SweeperError:  # no tmux
        return False


_SECONDS = 1.0
_REMOTE_SECONDS = 5.0
_ENDED_SECONDS = 5.0
_LOADING_SECONDS = 0.02
LINGER_SECONDS = 600.0
"""After the last key press, a view that closes by itself stays open for at least this many
seconds."""
UNTOUCHED_SECONDS = 10.0
"""After its start, a view that closes by itself stays open for at least this many seconds if no
key is pressed."""

_DEBUG = bool(os.environ.get("SWEEPER_DEBUG"))


def _describe(error: Exception) -> str:
    """Describe an error in a sentence. An unexpected error is described as a bug in sweeper."""
    if isinstance(error, SweeperError | OSError):
        return str(error)
    return f"a bug in sweeper: {type(error).__name__}: {error} (SWEEPER_DEBUG=1 shows where)"


class WatchApp(App[int]):
    """The app that shows the sweep of `poller`. Its result is the exit code. `guest` is the id of
    the process that started the app. The app closes when that process ends. If `leaves` is set, the
    app also closes when the sweep has ended and no key has been pressed for some time."""

    TITLE = "sweeper watch"
    CSS_PATH = "watch.tcss"
    COMMANDS = App.COMMANDS | {OpenRun}
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (120, "-broad")]  # noqa: RUF012 - as Textual has it
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+l", "look", "refresh now", show=False),
        # This hides Textual's own key for quitting, which the help would list next to ours.
        Binding("ctrl+q", "quit", show=False, priority=True, system=True),
    ]

    def __init__(
        self,
        poller: Poller,
        view: SweepView,
        *,
        plain_glyphs: bool = False,
        guest: int | None = None,
        leaves: bool = False,
        every: float | None = None,
    ) -> None:
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"  # use the terminal's colours
        self.animation_level = "none"
        self._poller, self._guest, self._leaves = poller, guest, leaves
        self._live = Live(self._read, pause=self._pause)
        remote = poller.sweep.store.is_remote
        self._every = every or (_REMOTE_SECONDS if remote else _SECONDS)
        self.view = view
        self._plain, self._glyphs = plain_glyphs, ASCII if plain_glyphs else UNICODE
        leave = Leave.QUIT if guest is None else Leave.CLOSE
        leave = Leave.DETACH if leaves and _is_in_our_tmux() else leave
        self.sweep_screen = SweepScreen(view, self._glyphs, leave)
        self._page: RunPage | None = None
        self._reader: PageReader | None = None
        self._reader_key: object = None
        self._last_key_time = time.monotonic()
        self._any_key_pressed = False
        self._polling = False
        self._poll_again = False

    def get_default_screen(self) -> SweepScreen:
        return self.sweep_screen

    def on_mount(self) -> None:
        self._last_key_time = time.monotonic()  # no key can be pressed before
        self.set_class(self._plain, "ascii")
        loop = self._own_loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            try:
                loop.add_signal_handler(number, partial(self.exit, 0))
            except (ValueError, RuntimeError):
                break  # not in the main thread, as in tests: the caller ends the app
        self._poll()

    # Polling

    def _poll(self) -> None:
        """Poll the sweep in a thread, so that a slow store does not delay key presses."""
        if self._polling:
            self._poll_again = True
            return
        self._polling, self._poll_again = True, False
        threading.Thread(target=self._poll_in_thread, daemon=True).start()

    def _poll_in_thread(self) -> None:
        view: SweepView | None = None
        data: PageData | None = None
        problem = ""
        try:
            view, data = self._live.poll()
        except Exception as error:
            if _DEBUG:
                raise
            problem = _describe(error)
        self._call_on_app(self._take_result, view, data, problem)

    def _call_on_app(self, do: Callable[..., None], *arguments: object) -> None:
        """Call a function in the app's thread. Do nothing if the app has been closed."""
        with suppress(RuntimeError):
            self._own_loop.call_soon_threadsafe(self.call_later, do, *arguments)

    def _read(self) -> tuple[SweepView, PageData | None]:
        view = self._poller.check()
        return view, self._read_page(view)

    def _read_page(self, view: SweepView) -> PageData | None:
        page = self._page
        run = (
            None
            if page is None
            else next((each for each in view.runs if each.id == page.run), None)
        )
        if run is None:
            self._reader = None
            return None
        if self._reader is None or self._reader_key != (run.id, run.attempt, run.state):
            address = link(self._poller.sweep.plan, run.id)
            links = () if address is None else (f"W&B: {address}",)
            find_handle = self._poller.run
            handle = find_handle(run.id)
            metric = None if handle.metric is None else handle.metric["name"]
            self._reader = PageReader(handle, metric, find_handle, links)
            self._reader_key = (run.id, run.attempt, run.state)
        rivals = [each for each in view.runs if not view.stages or stage_of(each) == stage_of(run)]
        return self._reader.read(best_run(rivals, run.id))

    def _take_result(self, view: SweepView | None, data: PageData | None, problem: str) -> None:
        """Show the result of a poll. Schedule the next poll even if showing fails."""
        self._polling = False
        try:
            if problem:
                self._show(self.view._replace(problem=problem), data)
            elif view is not None and (view is not self.view or data is not None):
                self._show(view, data)
        except Exception as error:
            if _DEBUG:
                raise
            self.tell(_describe(error), "bad")
        finally:
            self._schedule_next_poll()

    @property
    def _screens(self) -> list[WatchScreen]:
        shown = (screen for screen in self.screen_stack if screen.is_mounted)
        return [screen for screen in shown if isinstance(screen, WatchScreen)]

    def _show(self, view: SweepView, data: PageData | None) -> None:
        self.view = view
        if data is not None and self._page is not None and data.run == self._page.run:
            self._page.data = data
        for screen in self._screens:
            screen.see(view)

    def _schedule_next_poll(self) -> None:
        if self._should_close():
            self.exit(0)
            return
        pause = 0.0 if self._poll_again else self._live.pause
        self.set_timer(max(pause, 0.001), self._poll)

    def _pause(self, state: tuple[SweepView, PageData | None]) -> float:
        """Return the number of seconds until the next poll."""
        view = state[0]
        if view.loading:
            return _LOADING_SECONDS
        return max(self._every, _ENDED_SECONDS) if view.ended and not self._page else self._every

    def _should_close(self) -> bool:
        """Return True if the process that started the view has ended. With `leaves`, also return
        True if the sweep has ended and no key has been pressed for some time."""
        if self._guest is not None and os.getppid() != self._guest:
            return True
        idle = time.monotonic() - self._last_key_time
        most = LINGER_SECONDS if self._any_key_pressed else UNTOUCHED_SECONDS
        return self._leaves and self.view.ended and idle > most

    # User input

    async def on_event(self, event: events.Event) -> None:
        """Handle keys before Textual does, and end the app on Ctrl-C. Textual would queue a key for
        the focused widget, even if an earlier key in the queue moves the focus. This method handles
        one key completely before the next key, so that each key reaches the right widget."""
        if isinstance(event, events.Key) and not event.is_forwarded:
            self._last_key_time, self._any_key_pressed = time.monotonic(), True
            if event.key == "ctrl+c":
                self.exit(130)
                return
            self.tell("")
            screen = self.screen
            if isinstance(screen, Question):
                await screen.answer(event.key)
                return
            typing = isinstance(self.focused, Input) or not isinstance(screen, WatchScreen)
            if not typing and await self._check_bindings(event.key):
                return
        await super().on_event(event)

    def tell(self, text: str, style: str = "warn") -> None:
        """Show a sentence until the next key press."""
        for screen in self._screens:
            screen.tell(text, style)

    def get_key_display(self, binding: Binding) -> str:
        shown = super().get_key_display(binding)
        if not self._plain or shown.isascii():
            return shown
        return {"←": "<", "→": ">"}.get(shown, binding.key)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Yield the entries of the command palette: an entry for each key's action, each sort order
        and each grouping."""
        for node, binding, enabled, tooltip in screen.active_bindings.values():
            if enabled and isinstance(node, WatchScreen):
                shown = self.get_key_display(binding)
                run = partial(self.run_action, binding.action, node)
                yield SystemCommand(f"{binding.description} ({shown})", tooltip, run)
        if isinstance(screen, SweepScreen):
            arrange = screen.action_arrange
            for sort in SORTS:
                yield SystemCommand(f"sort by {sort}", "", partial(arrange, "sort_by", sort))
            for by in groupings(self.view):
                yield SystemCommand(f"group by {by}", "", partial(arrange, "group_by", by))

    def action_look(self) -> None:
        """Redraw everything, and poll the sweep immediately."""
        self.screen.refresh()
        self._poll()

    async def action_open(self, run: str) -> None:
        """Show a run's page."""
        if self._page is None:
            self._page = RunPage(self.view, run, self._glyphs)
            await self.push_screen(self._page)
        else:
            self._page.turn_to(run)
        self._poll()

    def action_close(self) -> None:
        """Go back to the list."""
        self._page = None
        self.pop_screen()
        self._poll()

    async def action_neighbour(self, step: int) -> None:
        """Show the page of the run that is `step` runs further in the list."""
        if self._page is not None and (
            run := self.sweep_screen.model.neighbour(self._page.run, step)
        ):
            await self.action_open(run.id)

    async def action_steer(self, kind: str) -> None:
        """Ask the user to confirm the action `kind` (`cancel` or `retry`) on the selected runs."""
        screen = self.screen
        if not isinstance(screen, WatchScreen) or not screen.chosen[0]:
            return
        action = proposed(kind, *screen.chosen)
        if isinstance(action, str):
            self.tell(action)
        else:
            await self.push_screen(Question(action.question), partial(self._answered, action))

    def _answered(self, action: Action, yes: bool | None) -> None:
        if not yes:
            self.tell(f"not done: {action.question.rstrip('?')}", "dim")
            return
        stopping = action.kind == "cancel"
        self.tell("waiting for the runs to stop" if stopping else "requesting a retry", "dim")
        do = cancel if stopping else retry
        self._run_in_thread(lambda: do(self._poller.sweep, action.runs))

    def _run_in_thread(self, action: Callable[[], str]) -> None:
        """Run an action in a thread, and show the sentence that it returns."""

        def act() -> None:
            try:
                sentence, style = action(), "good"
            except Exception as error:
                if _DEBUG:
                    raise
                sentence, style = _describe(error), "bad"
            self._call_on_app(self._show_outcome, sentence, style)

        # The request is recorded, so closing the view need not wait for this thread.
        threading.Thread(target=act, daemon=True).start()

    def _show_outcome(self, sentence: str, style: str) -> None:
        self.tell(sentence, style)
        self._poll()

    def action_window(self, number: str) -> None:
        """Switch to the window with this number in the tmux session."""
        self._tell_tmux(f"select-window -t :={number}")

    def action_detach(self) -> None:
        """Detach from the tmux session. The view stays open in its window."""
        self._tell_tmux("detach-client")

    def _tell_tmux(self, command: str) -> None:
        try:
            TmuxServer().source([command])
        except SweeperError as error:
            self.tell(str(error))

    def action_jump(self) -> None:
        """Go to the tmux pane of the selected run."""
        screen = self.screen
        runs = screen.chosen[0] if isinstance(screen, WatchScreen) else ()
        if len(runs) != 1:
            self.tell("a heading has no pane: move to a run" if runs else "")
            return
        try:
            pane = pane_of(self._poller.sweep, runs[0].id, runs[0].attempt)
            command = go_there(pane)
        except SweeperError as error:
            self.tell(str(error))
            return
        if command:
            with self.suspend():
                subprocess.run(command, check=False)
            self.screen.refresh()
        elif command is not None:
            sweep = self._poller.sweep
            again = hint("attach", sweep.name, root=sweep.root)
            self.tell(f"pane selected; to see it, run in another terminal: {again}", "good")
