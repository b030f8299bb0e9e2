"""`sweeper logs`: shows the output of runs, from the store or, if the store has none, from the
backend."""

import re
import sys
import time
from argparse import ArgumentParser, Namespace
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from sweeper.commands import arguments as shared
from sweeper.commands.log_printer import LinePrinter, RunKey, run_key
from sweeper.commands.selection import newest, open_registry
from sweeper.common.sanitize import sanitize, sanitize_lines
from sweeper.errors import NotFound, StoreError, SweeperError, UsageError
from sweeper.metrics.sources import Files
from sweeper.results.logs import Line, Tail, files_of
from sweeper.results.problems import Problems, tell_problems
from sweeper.results.runs import RecordedRun
from sweeper.results.selectors import check_states
from sweeper.results.sweeps import SweepRun
from sweeper.results.waiting import SHARE, Live
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.labels import plural
from sweeper.sweep.states import ENDED, OPEN, Event, State
from sweeper.terminal import print_json, say, warn

if TYPE_CHECKING:
    from sweeper.backends.base import Backend

_POLL_SECONDS, _REMOTE_SECONDS = 0.4, 2.0
_REFRESH_SECONDS = 1.0
_ROUNDS = 8
_STANDS_SECONDS = 2.0
"""Seconds after which an incomplete line is printed. It may be a question or a progress bar that
has stopped."""

_IDLE_SECONDS = 3.0
"""`--follow` ends when there has been neither a launcher nor a job for this many seconds. Until
then, another launcher may take over."""

_STACKS_SECONDS = 60.0
"""Seconds to wait for the workers' answers. Workers check for requests every 5 s."""

_OVER = ENDED | {Event.LOST}


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper logs`."""
    shared.runs_of_any_sweeps(verb, "the newest sweep; all sweeps with --state or --where")
    shared.select(verb)
    lines = shared.group(verb, "which lines")
    lines.add_argument(
        "-f", "--follow", action="store_true", help="continue until all runs have ended"
    )
    lines.add_argument(
        "-n", "--lines", type=int, metavar="N", help="only the last N lines of each run"
    )
    shared.flag(lines, "--launcher", "show the log of a sweep's launchers")
    shared.flag(lines, "--stacks", "show the Python stacks of running runs")
    lines.add_argument("--grep", metavar="PATTERN", help="only lines that match this pattern")
    shared.root(verb)
    shared.json(verb)


def run(arguments: Namespace) -> int:
    """Print the output of runs. With `--follow`, continue until all runs have ended."""
    if not (arguments.runs or arguments.state or arguments.where):
        arguments.runs = [newest(open_registry(arguments, snapshot=True))]
    check_states(arguments.state)
    pattern = None
    if arguments.grep is not None:
        try:
            pattern = re.compile(arguments.grep)
        except re.error as error:
            raise UsageError(f"--grep {arguments.grep!r}: {error}") from error
    if arguments.lines is not None and arguments.lines < 0:
        raise UsageError("--lines takes 0 or more")
    if arguments.stacks:
        return _print_stacks(arguments)
    if arguments.launcher:
        return _print_launchers(arguments, pattern)
    reader = _Reader(arguments, LinePrinter(pattern, arguments.json))
    if arguments.follow:
        reader.follow()
    else:
        reader.print_all()
    return tell_problems(reader.problems)


class _Reader:
    """A reader of the logs of the chosen runs. It remembers the position in each log."""

    def __init__(self, arguments: Namespace, printer: LinePrinter) -> None:
        self._arguments = arguments
        self._printer = printer
        self._registry = open_registry(arguments, cache=False, snapshot=not arguments.follow)
        self._tails: dict[RunKey, Tail] = {}
        self._candidates: list[RecordedRun] = []
        self._removed: set[tuple[str, str]] = set()
        self._requested: set[tuple[RunKey, int]] = set()
        self._idle_since: float | None = None
        self._next_refresh = 0.0
        self._backends = _Backends()

    @property
    def problems(self) -> Problems:
        """The errors that occurred while reading."""
        return self._registry.problems

    def print_all(self) -> None:
        """Print the logs, or with `--lines` their last lines, one run after the other."""
        self._refresh()
        files = self._files()
        for tail in self._tails.values():
            try:
                lines = self._printer.matching(self._whole(tail, files[files_of(tail.run)]))
                if self._arguments.lines is not None:
                    lines = deque(lines, maxlen=self._arguments.lines)
                self._printer.print_lines(lines)
            except StoreError as error:
                self.problems.unreadable(error)
        if not self._printer.count and self._arguments.lines != 0:
            self._warn_of_silence()

    def follow(self) -> None:
        """Print new lines of the logs until all runs have ended, or no launcher and no job is
        running."""
        self._refresh()
        if not self._tails:
            warn(f"{self._no_match()}{': waiting for such a run' * self._at_work()}")
        if self._arguments.lines is not None:
            files = self._files()
            for tail in self._tails.values():
                self._start_back(tail, files[files_of(tail.run)])
        self._next_refresh = time.monotonic() + _REFRESH_SECONDS
        Live(
            self._print_more,
            ended=lambda drained: drained and self._is_over(),
            pause=lambda drained: self._poll_seconds() if drained else 0.0,
            tell=warn,
        ).run()
        if self._tails and not self._printer.count and self._arguments.lines is None:
            self._warn_of_silence()

    def _print_more(self) -> bool:
        begun = time.monotonic()
        if begun >= self._next_refresh:
            self._refresh()
            refreshed = time.monotonic()
            self._next_refresh = refreshed + max(_REFRESH_SECONDS, SHARE * (refreshed - begun))
        return self._print_new()

    def _is_over(self) -> bool:
        if not self._tails:
            return not self._at_work()
        if all(not isinstance(run, SweepRun) or run.is_finished for run in self._candidates):
            return True
        if self._at_work():
            self._idle_since = None
            return False
        self._idle_since = self._idle_since or time.monotonic()
        return time.monotonic() - self._idle_since >= _IDLE_SECONDS

    def _poll_seconds(self) -> float:
        remote = any(tail.run.store.is_remote for tail in self._tails.values())
        return _REMOTE_SECONDS if remote else _POLL_SECONDS

    def _refresh(self) -> None:
        wanted = self._arguments
        first = not self._candidates
        try:
            if not first:
                self._forget_removed()
            keys = {run_key(run) for run in self._candidates}
            # The names of a removed sweep would match others with the same prefix.
            names = sorted({sweep for _, sweep, _ in keys}) if self._removed else wanted.runs
            runs = self._registry.choose(names, None, wanted.where)
        except (NotFound, StoreError):
            if first or not self._candidates:
                raise
            return  # the runs are being removed, or the store does not answer: keep the old list
        if self._removed:
            runs = [run for run in runs if run_key(run) in keys]
        self._candidates = runs
        files: dict[tuple[str, str], Files] = {}
        for run in self._candidates:
            tail = self._tails.get(run_key(run))
            if tail is not None:
                tail.run = run
            elif not wanted.state or run.state.value in wanted.state:
                place = files_of(run)
                files.setdefault(place, Files(run.store, place[1]))
                self._tails[run_key(run)] = Tail(run, files[place])
        self._printer.add_runs(tail.run for tail in self._tails.values())

    def _forget_removed(self) -> None:
        """Forget the sweeps that have been removed. Raises `NotFound` if no sweep is left."""
        sweeps = {(run.root, run.sweep): run for run in self._candidates}
        planned = {place: run for place, run in sweeps.items() if isinstance(run, SweepRun)}
        gone = {at for at, run in planned.items() if not run.store.exists(run.sweep_folder.plan)}
        if not gone:
            return
        self._removed |= gone
        self._candidates = [run for run in self._candidates if (run.root, run.sweep) not in gone]
        self._tails = {key: tail for key, tail in self._tails.items() if key[:2] not in gone}
        if not self._candidates:
            names = ", ".join(sorted(sweep for _, sweep in gone))
            raise NotFound(f"{names}: removed, so there is no log left to follow")

    def _files(self) -> dict[tuple[str, str], Files]:
        runs = {files_of(tail.run): tail.run for tail in self._tails.values()}
        return {place: Files(run.store, place[1]) for place, run in runs.items()}

    def _print_new(self) -> bool:
        """Print new lines of all logs. Return False if some logs still have lines to print."""
        files = self._files()
        busy = list(self._tails.values())
        for _ in range(_ROUNDS):
            busy = [tail for tail in busy if self._print_some(tail, files)]
            sys.stdout.flush()
        for tail in self._tails.values():
            if tail in busy:
                continue  # the run writes faster than we print
            # An attempt's output is complete before its end is recorded.
            if tail.attempt < tail.run.attempts:
                self._print_end(tail)
                tail.next()
                busy.append(tail)
            elif self._ends(tail):
                self._print_end(tail)
            elif tail.is_idle_for(_STANDS_SECONDS):
                self._printer.print_lines(self._printer.matching(tail.finish()))
        return not busy

    def _print_some(self, tail: Tail, files: dict[tuple[str, str], Files]) -> bool:
        """Print some new lines of a log. Return False if the log has no new lines."""
        before = tail.offset
        self._printer.print_lines(self._printer.matching(tail.read(files[files_of(tail.run)])))
        return tail.offset != before

    def _ends(self, tail: Tail) -> bool:
        run, attempt = tail.run, tail.attempt
        if not tail.pending and (not tail.is_empty or (run_key(run), attempt) in self._requested):
            return False
        if not isinstance(run, SweepRun):
            return True
        return any(n == attempt and event in _OVER for n, event in run.events)

    def _print_end(self, tail: Tail) -> None:
        lines = [*tail.finish(), *self._backend_lines(tail)]
        self._printer.print_lines(self._printer.matching(lines))

    def _start_back(self, tail: Tail, files: Files) -> None:
        """Start at the last `--lines` lines of a log. With `--grep`, print the last `--lines`
        matching lines, and start at the end of the log."""
        count: int = self._arguments.lines
        if self._arguments.grep is None:
            tail.back(files, count)
            return
        lines: deque[Line] = deque(maxlen=count)
        for chunk in _chunks(tail, files):
            lines.extend(self._printer.matching(chunk))
        self._printer.print_lines(lines)

    def _whole(self, tail: Tail, files: Files) -> Iterator[Line]:
        """Yield the lines of the newest attempt with output. With `--lines N` and without `--grep`,
        yield only the last N lines."""
        if self._arguments.lines is not None and self._arguments.grep is None:
            tail.back(files, self._arguments.lines)
        for chunk in _chunks(tail, files):
            yield from chunk
        yield from tail.finish()
        yield from self._backend_lines(tail)

    def _backend_lines(self, tail: Tail) -> Iterator[Line]:
        """Yield an attempt's output from the backend if the store has none. If the backend has none
        either and the attempt is the newest, yield the reason for the run's failure, if known. In
        later calls for the same attempt, yield nothing."""
        run, attempt = tail.run, (run_key(tail.run), tail.attempt)
        if not tail.is_empty or not run.attempts or attempt in self._requested:
            return
        self._requested.add(attempt)
        if not isinstance(run, SweepRun):
            return
        lines = list(self._backends.logs(run, tail.attempt))
        if not lines and tail.attempt == run.attempts and run.outcome.detail:
            lines = [f"sweeper: {run.state.value} ({run.reason}): {run.outcome.detail}"]
        for line in lines:
            yield Line(run, tail.attempt, line.encode("utf-8", "replace"))

    def _at_work(self) -> bool:
        """Return whether a job or a launcher may be running."""
        from sweeper.sweep.lock import is_held

        if any(run.state in OPEN for run in self._candidates):
            return True
        sweeps = {(run.root, run.sweep): run.store for run in self._candidates}
        return any(is_held(SweepFolder(store, sweep)) for (_, sweep), store in sweeps.items())

    def _warn_of_silence(self) -> None:
        runs = [tail.run for tail in self._tails.values()]
        if not runs:
            warn(self._no_match())
        elif self._arguments.grep is not None:
            warn(f"no line matches {self._arguments.grep!r}")
        elif len(runs) == 1:
            warn(f"{runs[0].name} has printed nothing ({runs[0].state.value})")
        else:
            warn(f"none of {len(runs)} runs has printed anything")

    def _no_match(self) -> str:
        states, where = self._arguments.state, self._arguments.where
        wanted = [f"is {' or '.join(states)}"] if states else []
        wanted += [f"matches --where {where!r}"] if where else []
        return f"no run {' and '.join(wanted)}"


def _print_stacks(arguments: Namespace) -> int:
    """Ask the workers of running runs for the Python stacks of their recipes, and print the
    answers."""
    from sweeper.sweep import stacks

    if arguments.follow or arguments.launcher or arguments.grep or arguments.lines is not None:
        raise UsageError("--stacks can be combined only with runs, --state, --where and --json")
    registry = open_registry(arguments, cache=False)
    chosen = registry.choose(arguments.runs, arguments.state, arguments.where)
    running = [run for run in chosen if isinstance(run, SweepRun) and run.state is State.RUNNING]
    if not running:
        raise NotFound("none of these runs is running: there are no stacks to print")
    requests = [(run, stacks.ask(run.sweep_folder, run.id, run.attempts)) for run in running]
    warn(
        f"waiting for {plural(len(requests), 'worker')}, which check for requests every few seconds"
    )
    answers: dict[str, stacks.Stacks | None] = {}
    deadline = time.monotonic() + _STACKS_SECONDS
    for run, word in requests:
        remaining = max(0.0, deadline - time.monotonic())
        answer = stacks.wait(run.sweep_folder, run.id, run.attempts, word, remaining)
        answers[f"{run.sweep}/{run.name}"] = answer
    unanswered = [name for name, answer in answers.items() if answer is None]
    if arguments.json:
        shown = {name: answer and answer._asdict() for name, answer in answers.items()}
        print_json({"schema": 1, "stacks": shown})
    for name, answer in answers.items() if not arguments.json else ():
        if answer is not None:
            say(f"{name}, {answer.time}:")
            print(sanitize_lines(answer.text))
    for name in unanswered:
        warn(
            f"{name}: no answer within {_STACKS_SECONDS:g} s: the worker may have no access to the "
            "store"
        )
    return 1 if unanswered else 0


def _print_launchers(arguments: Namespace, pattern: "re.Pattern[str] | None") -> int:
    """Print what launchers have logged on this machine, one sweep after the other. With `--follow`,
    wait for the end of a sweep's launcher before the next sweep."""
    if arguments.json or arguments.state or arguments.where:
        raise UsageError(
            "--launcher can be combined only with names of sweeps, --follow, --lines and --grep"
        )
    registry = open_registry(arguments)
    for name in arguments.runs:
        _print_launcher(registry.sweep(name).folder, arguments, pattern)
    return 0


def _print_launcher(
    folder: SweepFolder, arguments: Namespace, pattern: "re.Pattern[str] | None"
) -> None:
    from sweeper.launcher.background import messages_file
    from sweeper.sweep.lock import is_held

    path = messages_file(folder)
    latest: str | None = None

    def print_more() -> bool:
        nonlocal latest
        more = arguments.follow and is_held(folder)
        lines = [line for line in _messages(path) if pattern is None or pattern.search(line)]
        if latest in lines:  # the file may have been replaced in the meantime
            lines = lines[len(lines) - lines[::-1].index(latest) :]
        elif arguments.lines is not None:
            lines = lines[len(lines) - min(arguments.lines, len(lines)) :]
        sys.stdout.writelines(f"{sanitize(line)}\n" for line in lines)
        sys.stdout.flush()
        latest = lines[-1] if lines else latest
        return more

    Live(print_more, ended=lambda more: not more, tell=warn).run()
    if latest is None:
        warn(
            f"{folder.name}: no launcher of this sweep has logged anything on this machine ({path})"
        )


def _messages(path: str) -> list[str]:
    lines: list[str] = []
    for name in (f"{path}.1", path):
        with suppress(OSError), open(name, encoding="utf-8", errors="replace") as file:
            lines += file.read().splitlines()
    return lines


class _Backends:
    """The backends of sweeps, opened on demand. A backend that cannot be opened is reported only
    once."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str, str], Backend | None] = {}

    def logs(self, run: SweepRun, attempt: int) -> Iterator[str]:
        """Yield the lines of an attempt's output that the backend has stored."""
        from sweeper.backends import open_backend, options_of
        from sweeper.sweep.folder import token

        at = run.backend_of(attempt)
        place = (run.root, run.sweep, at)
        try:
            if place not in self._open:
                self._open[place] = None
                options = options_of(run.launch, at)
                self._open[place] = open_backend(at, run.sweep, f"{run.root}/{run.sweep}", options)
            backend = self._open[place]
            if backend is not None:
                lines = [line.rstrip("\n") for line in backend.logs(token(run.id, attempt))]
                while lines and not lines[-1].strip():
                    lines.pop()
                yield from lines
        except SweeperError as error:
            self._open[place] = None
            warn(f"{run.sweep}: the backend's copy of the output cannot be read: {error}")


def _chunks(tail: Tail, files: Files) -> Iterator[list[Line]]:
    before = -1
    while tail.offset != before:
        before = tail.offset
        yield list(tail.read(files))
