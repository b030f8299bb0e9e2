"""`sweeper status`: prints the states of all sweeps, or of the runs of one sweep."""

import io
import json
import re
import sys
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, TypedDict, cast

from sweeper.commands import arguments as shared
from sweeper.commands.status_table import alarm_line, counted, print_status
from sweeper.common.json_values import table_of
from sweeper.common.sanitize import Writer, raw, sanitize_json
from sweeper.errors import StoreError, UsageError
from sweeper.results.problems import tell_problems
from sweeper.results.registry import Registry
from sweeper.results.selectors import current, pick
from sweeper.results.status import NOBODY, Status, alarms_of, check_service, read_status
from sweeper.store.documents import strict, timestamp
from sweeper.store.opening import default_root
from sweeper.sweep.labels import shown_marks
from sweeper.terminal import is_screen, print_table, say, shortened, warn

if TYPE_CHECKING:
    from sweeper.alarms import Alarm
    from sweeper.results.runs import RecordedRun
    from sweeper.results.sweeps import Sweep

_SECONDS, _REMOTE_SECONDS = 1.0, 3.0
_COLOUR = r"\x1b\[[0-9;]*m"
_BELOW = 8
"""The number of lines of the screen that are reserved for the text below the table."""


class RunStatus(TypedDict):
    """The status of a run: its state, the number of attempts, the reason if the run ended without
    success, and the launcher's last observation of the job."""

    state: str
    attempts: int
    reason: str | None
    observed: str | None


class _Screen(io.StringIO):
    """A text buffer whose `isatty` returns True. Printing a whole buffer at once avoids flicker."""

    def isatty(self) -> bool:
        return True


def follow(arguments: Namespace) -> int:
    """Print the status of a sweep repeatedly until no job and no launcher of the sweep is
    running."""
    from sweeper.commands.selection import open_registry
    from sweeper.results.waiting import SHARE, Live

    registry = open_registry(arguments, cache=False)
    drawn = is_screen() and not arguments.json
    reporter = _Reporter(arguments)
    warned: set[str] = set()

    def read() -> "tuple[Sweep, Status]":
        sweep = registry.sweep(arguments.sweep)
        return sweep, read_status(sweep)

    def show(state: "tuple[Sweep, Status]") -> None:
        if drawn:
            _draw(*state, arguments)
        else:
            reporter.report(*state)
        sys.stdout.flush()
        for line in [line for line in registry.problems if line not in warned]:
            warn(line)
            warned.add(line)

    _, last = Live(
        read,
        ended=lambda state: not state[1].at_work,
        show=show,
        pause=lambda state: _REMOTE_SECONDS if state[0].store.is_remote else _SECONDS,
        share=SHARE,
        tell=warn,
    ).run()
    return StoreError.exit_code if registry.problems.unread else last.exit_code


def _draw(sweep: "Sweep", seen: Status, arguments: Namespace) -> None:
    screen = _Screen()
    import shutil  # imported late, since it loads three compressors

    width, height = shutil.get_terminal_size()
    with redirect_stdout(cast(io.StringIO, Writer(screen))):
        print_status(sweep, seen, arguments, max(3, min(50, height - _BELOW)))
    # The cursor needs the last line: a full screen would scroll.
    lines = fitted(screen.getvalue().splitlines(), width, max(1, height - 1))
    text = "".join(f"{line}\x1b[K\n" for line in lines)
    raw(sys.stdout).write(f"\x1b[H{text}\x1b[J")


def fitted(lines: Sequence[str], width: int, height: int) -> list[str]:
    """Shorten the output of `print_status` to `height` lines. Lines wider than `width` are wrapped,
    except alarms, which are cut to one line. To make the text below the table fit, the last rows of
    the table are left out."""
    from rich.cells import chop_cells

    shown: list[str] = []
    end = 0
    for line in lines:
        plain = re.sub(_COLOUR, "", line)
        if not plain and not end:
            end = len(shown)
        parts = chop_cells(plain, width)
        if len(parts) <= 1:
            parts = [line]
        shown += parts[:1] if plain.startswith("alarm: ") else parts
    below = shown[end:][: height - 1]
    above = shown[:end]
    if len(above) + len(below) > height:
        above = [*above[: height - len(below) - 1], "..."]
    return [*above, *below]


class Change:
    """The changes between two polls. `runs` has (run, earlier status, new status) for each changed
    run; the earlier status is None for a new run. `sentences` are about the sweep."""

    def __init__(self) -> None:
        self.runs: list[tuple[str, RunStatus | None, RunStatus]] = []
        self.sentences: list[str] = []

    def __bool__(self) -> bool:
        return bool(self.runs or self.sentences)


def changes(
    before: dict[str, RunStatus],
    after: dict[str, RunStatus],
    seen: dict[str, object],
    now: dict[str, object],
) -> Change:
    """Return the changes between two polls. `before` and `after` are the statuses by run id in the
    earlier and the later poll. `seen` and `now` are the launcher's published values in each."""
    change = Change()
    for run, status in after.items():
        if before.get(run) != status:
            change.runs.append((run, before.get(run), status))
    sentences = {
        "unreachable": ("the launcher waits: {}", "the launcher continues"),
        "limit": (
            f"at most {{}} at once: {now.get('limit_why')}",
            "the limit of the grid applies again",
        ),
        "held": ("held: {}", "no longer held"),
    }
    for key, (begins, ends) in sentences.items():
        if seen.get(key) != (value := now.get(key)):
            change.sentences.append(ends if value is None else begins.format(value))
    if seen and seen["launcher"] != now["launcher"]:
        change.sentences.append("a launcher is running" if now["launcher"] else NOBODY)
    return change


class _Reporter:
    def __init__(self, arguments: Namespace) -> None:
        self._arguments = arguments
        self._printed: dict[str, RunStatus] = {}
        self._published: dict[str, object] = {}
        self._alarms: set[tuple[str, int, str]] = set()
        self._began = False
        self._counts: Counter[str] = Counter()

    def report(self, sweep: "Sweep", status: Status) -> None:
        """Print what changed since the previous call."""
        runs, at_work = current(sweep.runs), status.at_work
        seen = status.published()
        wanted = self._wanted(runs)
        statuses = {run.id: _run_status(run, dict(status.observed)) for run in wanted}
        change = changes(self._printed, statuses, self._published, seen)
        if not self._began and at_work and not status.launcher:
            change.sentences.append(NOBODY)
        keyed = {
            (alarm.run, alarm.attempt, alarm.rule): alarm for alarm in alarms_of(sweep, wanted)
        }
        alarms = [alarm for key, alarm in keyed.items() if key not in self._alarms]
        self._alarms |= keyed.keys()
        counts = Counter(run.state.value for run in runs)
        if self._arguments.json:
            if change or alarms or not self._began or not at_work:
                self._write_object(sweep, wanted, seen, change, alarms, at_work)
        else:
            self._write_lines(sweep, wanted, change, alarms, at_work)
            if not self._began or (not at_work and counts != self._counts):
                _line(f"{sweep.name}: {counted(counts)}")
                self._counts = counts
        self._began, self._printed, self._published = True, statuses, seen

    def _wanted(self, runs: Sequence["RecordedRun"]) -> list["RecordedRun"]:
        """Return the runs that match `--where` and now have, or earlier had, a state in
        `--state`."""
        states = self._arguments.state
        chosen = pick(runs, (), None, self._arguments.where)
        if not states:
            return chosen
        now = {run.id for run in pick(chosen, (), states)}
        return [run for run in chosen if run.id in now or run.id in self._printed]

    def _write_lines(
        self,
        sweep: "Sweep",
        runs: list["RecordedRun"],
        change: Change,
        alarms: list["Alarm"],
        at_work: bool,
    ) -> None:
        names = {run.id: run.name for run in runs}
        if self._began:
            for run, before, status in change.runs:
                _line(f"{names[run]}  {describe(before, status)}")
            for sentence in change.sentences if at_work else ():
                _line(f"{sweep.name}: {sentence}")
        for alarm in alarms:
            _line(alarm_line(alarm))

    def _write_object(
        self,
        sweep: "Sweep",
        runs: list["RecordedRun"],
        seen: dict[str, object],
        change: Change,
        alarms: list["Alarm"],
        at_work: bool,
    ) -> None:
        changed = {run for run, _, _ in change.runs}
        observed = table_of(seen["observed"])
        records = [
            run.record() | {"observed": observed.get(run.id)}
            for run in runs
            if run.id in changed or not self._began
        ]
        states = Counter(run.state.value for run in current(sweep.runs))
        document = {"schema": 1, "time": timestamp(), "sweep": sweep.name, "at_work": at_work}
        document |= {**seen, "states": dict(states), "runs": records}
        document["alarms"] = [alarm.document() for alarm in alarms]
        print(sanitize_json(json.dumps(strict(document), allow_nan=False)))


def _run_status(run: "RecordedRun", observed: dict[str, str]) -> RunStatus:
    ended = run.state.value in ("failed", "cancelled", "preempted", "lost")
    return {
        "state": run.state.value,
        "attempts": run.attempts,
        "reason": run.explained if ended else None,
        "observed": observed.get(run.id),
    }


def describe(before: RunStatus | None, status: RunStatus) -> str:
    """Describe a run's status, such as `running (attempt 2)`, `failed (oom)` or `running: paused:
    rate limit`. Leave out the number of the attempt if it is 1, or the same as in `before`."""
    text = str(status["state"])
    about: list[str] = []
    if status["reason"]:
        about.append(str(status["reason"]))
    if status["attempts"] > 1 and (before is None or before["attempts"] != status["attempts"]):
        about.append(f"attempt {status['attempts']}")
    text += f" ({', '.join(about)})" if about else ""
    return f"{text}: {status['observed']}" if status["observed"] else text


def _line(text: str) -> None:
    say(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


_RECIPE = 40
"""The largest number of characters of a recipe (which may be a long command) in a table of
sweeps."""


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper status`."""
    shared.optional_sweep(verb, "one line for each sweep", shared.RUNS)
    shared.select(verb)
    runs, output = shared.group(verb, shared.RUNS), shared.group(verb, shared.OUTPUT)
    shared.flag(runs, "--archived", "without a sweep: include archived sweeps")
    shared.root(verb)
    shared.flag(output, "--follow", "keep updating until the sweep has ended")
    shared.json(verb)


def run(arguments: Namespace) -> int:
    """Print the states of all sweeps, or of the runs of one sweep."""
    if arguments.sweep is None:
        for option in ("follow", "state", "where"):
            if getattr(arguments, option):
                raise UsageError(f"--{option} needs a sweep: `sweeper status SWEEP --{option}`")
        return _status_of_all(arguments)
    if arguments.follow:
        return follow(arguments)
    root = arguments.root or default_root()
    # For a remote root, ended runs come from the cache; on a local disk reading them anew is
    # faster.
    registry = Registry(root, cache="://" in root, snapshot=True)
    sweep = registry.sweep(arguments.sweep)
    seen = read_status(sweep)
    check_service(sweep)
    print_status(sweep, seen, arguments, problems=registry.problems)
    return tell_problems(registry.problems, listed=arguments.json) or seen.exit_code


def _status_of_all(arguments: Namespace) -> int:
    from sweeper.commands.output import print_json_answer
    from sweeper.commands.selection import open_registry

    registry = open_registry(arguments, cache=False, snapshot=True)
    records = registry.sweep_records("*" if arguments.archived else None)
    # The newest sweep comes last, next to the prompt.
    records.sort(key=lambda sweep: sweep["created"] or "")
    if arguments.json:
        return print_json_answer({"schema": 1, "sweeps": records}, registry.problems)
    columns = ["sweep", "recipe", "runs", "states", "created"]
    rows = [
        [s["sweep"], shortened(s["recipe"], _RECIPE), s["runs"], counted(s["states"]), s["created"]]
        for s in records
    ]
    marks = [shown_marks(s["tags"], starred=s["starred"], archived=s["archived"]) for s in records]
    if any(marks):
        columns.append("noted")
        rows = [[*row, mark] for row, mark in zip(rows, marks, strict=True)]
    print_table(columns, rows)
    return tell_problems(registry.problems)
