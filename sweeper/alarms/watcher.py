"""Applies the rules to the running attempts of a sweep, and reports new alarms. The watcher
stores little about each attempt, and reads a bounded number of bytes per check."""

import json
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, cast

from sweeper.alarms.history import Evidence, Failed, History, Vitals, median
from sweeper.alarms.rules import JUDGE_FAILED, judge, judge_clock
from sweeper.common.alarm_thresholds import Limits
from sweeper.common.json_values import table_of
from sweeper.errors import NotFound, StoreError
from sweeper.metrics.attempt_rows import Fresh, Tail
from sweeper.metrics.rows import Row, as_float, parse
from sweeper.metrics.sources import ListedOnce
from sweeper.store.base import each
from sweeper.sweep.folder import SweepFolder

_ERROR = re.compile(r'\{"error": ("(?:[^"\\]|\\.)*")')
_LONGEST = 300
_CUT = ("stop/max_tokens", "max_tokens_reached")
_GOOD = 0.5
"""In a group whose answers all have the same reward, a reward of at least this counts as right,
as in tinker-cookbook's `frac_all_good`."""


def path_of(folder: str, step: float) -> str:
    """Return the path of the file with the rollouts of a step. `folder` is the folder of the
    attempt's metrics."""
    return f"{folder}/iteration_{int(step):06d}/train_rollout_summaries.jsonl"


def failure_path(folder: str, step: float) -> str:
    """Return the path of the file with a step's reward failures, the answers that could not be
    judged. `folder` is the folder of the attempt's metrics."""
    return f"{folder}/iteration_{int(step):06d}/reward_failures.jsonl"


def first_error(data: bytes) -> str | None:
    """Return the first error in `data`, the beginning of a file of reward failures; None if `data`
    does not begin with a readable error."""
    match = _ERROR.match(data.decode(errors="replace"))
    try:
        return None if match is None else " ".join(str(json.loads(match[1])).split())[:_LONGEST]
    except ValueError:
        return None


def summarise(data: bytes) -> dict[str, float]:
    """Summarise the rollouts in `data`. Return a dict from role, such as `reward`, to a fraction or
    a mean. If `data` ends inside a line, the last group may be incomplete, so its rewards are left
    out (unless there is only one group)."""
    whole = data[: data.rfind(b"\n") + 1]
    groups: dict[object, list[float]] = {}
    cut = known = 0
    lengths: list[float] = []
    for row in parse(whole).rows:
        reward = as_float(row.get("total_reward"))
        if reward is not None:
            groups.setdefault(str(row.get("group_idx")), []).append(reward)
        turns = _turns(row)
        known += bool(turns)
        cut += any(_was_cut(turn) for turn in turns)
        length = [n for turn in turns if (n := as_float(turn.get("ac_len"))) is not None]
        if length:
            lengths.append(sum(length) / len(length))
    if len(whole) < len(data) and len(groups) > 1:
        groups.popitem()
    summary: dict[str, float] = {}
    rewards = [reward for group in groups.values() for reward in group]
    several = [group for group in groups.values() if len(group) > 1]
    if rewards:
        summary["reward"] = sum(rewards) / len(rewards)
    if several:
        same = [group for group in several if len(set(group)) == 1]
        summary["mixed"] = 1 - len(same) / len(several)
        good = sum(group[0] >= _GOOD for group in same)
        summary["good"] = good / len(several)
        summary["bad"] = (len(same) - good) / len(several)
    if known:
        summary["truncated"] = cut / known
    if lengths:
        summary["length"] = sum(lengths) / len(lengths)
    return summary


def _turns(row: dict[str, object]) -> list[dict[str, object]]:
    turns: object = row.get("steps")
    if not isinstance(turns, list):
        return []
    return [turn for turn in cast(list[object], turns) if isinstance(turn, dict)]


def _was_cut(turn: dict[str, object]) -> bool:
    metrics: object = turn.get("metrics")
    if not isinstance(metrics, dict):
        return False
    table = cast(dict[str, object], metrics)
    return any((as_float(table.get(key)) or 0.0) > 0 for key in _CUT)


MOST_BYTES = 1_000_000
"""The limit on the bytes of metrics that one check reads, for all attempts together: a few
thousand rows, which take some tens of milliseconds."""
_ROW_BYTES = 200
"""The cost of judging a row, as the number of bytes that can be read in the same time."""
_MOST_REMOTE = 64
_REMOTE_BYTES = 100_000
"""Limits on one check of a remote store: the number of attempts, and the bytes of metrics per
attempt."""
_ROLLOUT_BYTES = 262_144
_ERROR_BYTES = 16_384
_MOST_ROLLOUTS = 20
_TRIES = 3
"""If this many steps have no rollouts, and no step had any before, the watcher no longer looks for
rollouts of the attempt."""
_STEPS = 50
_FINAL_SECONDS = 600.0
"""Seconds that an attempt may take near its end for evaluations and checkpoints, in addition to
other limits."""
STALLED = "stalled"
"""The rule that is judged at every check, even after its alarm, because views show whether a run
is stalled now."""


class Seen(NamedTuple):
    """An attempt as the launcher sees it.

    `running`: a worker executes the attempt. `quiet`: seconds since the last heartbeat. `beat`: the
    contents of that heartbeat. `stopping`: a user or an alarm has requested the end of the attempt.
    `failed`: the cause of a failure. `succeeded`: the attempt has succeeded. `metric`: the metric
    of the run's stage (None: no stages, or the attempt has not ended). `model`: the name of the
    model. `drifts`: the recipe updates the policy several times in each step.
    """

    run: str
    attempt: int
    running: bool
    quiet: float = 0.0
    beat: Mapping[str, object] | None = None
    stopping: bool = False
    failed: Failed | None = None
    succeeded: bool = False
    metric: str | None = None
    model: str | None = None
    drifts: bool = False


class Criteria(NamedTuple):
    """The criteria by which a plan's attempts are judged. `limits` maps each active rule to its
    thresholds. After `lease` seconds without a heartbeat, a worker counts as lost. Metrics reach
    the store after at most `sync_s` seconds. `is_command`: all recipes are commands.
    `lacks_folder`: all recipes are commands that do not get the folder of their run. `metric`: the
    sweep's metric (None: no metric, or one for each stage)."""

    limits: Limits
    lease: float
    is_command: bool
    sync_s: float = 0.0
    metric: str | None = None
    lacks_folder: bool = False


class Detection(NamedTuple):
    """A problem that a rule has found in an attempt. `host` is the machine of the attempt's worker
    (None: unknown)."""

    run: str
    attempt: int
    rule: str
    evidence: Evidence
    host: str | None = None


class _Watch:
    def __init__(self, tail: Tail, metric: str | None, now: float) -> None:
        self.tail = tail
        self.history = History(metric)
        self.begun = now
        self.at = now  # when the attempt last made progress
        self.read_at = now
        self.steps = 0
        self.first: float | None = None  # how long the first step took
        self.looked = False
        self.took: deque[float] = deque(maxlen=_STEPS)
        self.rollouts = 0

    @property
    def longest(self) -> float | None:
        return max(self.took, default=None)


class Watcher:
    """The watcher of the attempts of one sweep. `clock` returns monotonic seconds. `tell` is called
    with a message about each rule that raises an error. No alarm is raised for a (run, attempt,
    rule) in `reported`. `stalled` has each (run, attempt) that made no progress at the last check,
    even if no alarm was raised."""

    def __init__(
        self,
        folder: SweepFolder,
        criteria: Criteria,
        reported: set[tuple[str, int, str]],
        *,
        clock: Callable[[], float],
        tell: Callable[[str], None],
        listed: ListedOnce | None = None,
    ) -> None:
        self._folder = folder
        self._listed = listed
        self._criteria = criteria
        self._reported = reported
        self._clock = clock
        self._tell = tell
        self.stalled: set[tuple[str, int]] = set()
        self._watches: dict[tuple[str, int], _Watch] = {}
        self._first: float | None = None  # the longest time to a first step
        self._turn = 0
        self._warned: set[str] = set()
        self._left = 0
        self._mismatches: dict[str | None, dict[str, float]] = {}  # model -> run -> first value

    def check(self, attempts: Sequence[Seen]) -> tuple[list[Detection], set[tuple[str, int]]]:
        """Check `attempts`, and forget all other attempts. Return the new detections, and the ended
        attempts whose metrics were read completely. Data that cannot be read now are read at the
        next check."""
        now = self._clock()
        keys = {(seen.run, seen.attempt) for seen in attempts}
        self._watches = {key: watch for key, watch in self._watches.items() if key in keys}
        self._left = MOST_BYTES
        alarms: list[Detection] = []
        over: set[tuple[str, int]] = set()
        self.stalled = set()
        # Each check begins with another attempt, so that all get their turn if there is much to
        # read.
        start = self._turn % len(attempts) if attempts else 0
        in_turn = (*attempts[start:], *attempts[:start])
        for seen in in_turn:
            key = (seen.run, seen.attempt)
            if key not in self._watches:
                tail = Tail(self._folder, *key, self._listed)
                self._watches[key] = _Watch(tail, self._metric(seen), now)
        ahead = self._read_ahead(in_turn)
        for seen in in_turn:
            key = (seen.run, seen.attempt)
            watch = self._watches[key]
            if ahead is None:
                more = self._read(watch, seen, alarms, now) if self._left > 0 else True
            else:
                fresh = ahead.get(key)
                more = True if fresh is None else self._take(fresh, watch, seen, alarms, now)
            watch.looked = watch.looked or not more
            if seen.running:
                watch.history.vitals = self._vitals(watch, seen, now)
            elif not more:
                over.add(key)
                metric = self._metric(seen) if seen.succeeded else None
                lacks_folder = self._criteria.lacks_folder
                watch.history.vitals = Vitals(
                    failed=seen.failed, metric=metric, lacks_folder=lacks_folder
                )
            if seen.running or not more:
                judged = judge_clock(watch.history, self._open(seen), self._failed)
                if STALLED in judged:
                    self.stalled.add(key)
                self._note(seen, judged, alarms)
        self._turn += 1 if ahead is None else len(ahead)
        return alarms, over

    def _read_ahead(self, attempts: Sequence[Seen]) -> dict[tuple[str, int], Fresh | None] | None:
        """Read the new data of up to `_MOST_REMOTE` attempts in parallel. Return a dict from (run,
        attempt) to the data (None: the store did not answer). If the store is on this machine, read
        nothing and return None."""
        if not self._folder.store.is_remote:
            return None

        def read(seen: Seen) -> Fresh | None:
            tail = self._watches[seen.run, seen.attempt].tail
            with suppress(StoreError):
                return tail.read(_REMOTE_BYTES, ended=seen.succeeded)
            return None

        chosen = attempts[:_MOST_REMOTE]
        keys = [(seen.run, seen.attempt) for seen in chosen]
        return dict(zip(keys, each(self._folder.store, read, chosen), strict=True))

    def _read(self, watch: _Watch, seen: Seen, alarms: list[Detection], now: float) -> bool:
        """Read and judge an attempt's new data. Return whether there is more to read."""
        try:
            fresh = watch.tail.read(MOST_BYTES)
        except StoreError:
            self._left = 0  # the store does not answer: skip the other attempts in this check
            return True
        self._left -= fresh.size + _ROW_BYTES * len(fresh.rows)
        return self._take(fresh, watch, seen, alarms, now)

    def _take(
        self, fresh: Fresh, watch: _Watch, seen: Seen, alarms: list[Detection], now: float
    ) -> bool:
        """Judge an attempt's new data. Return whether there is more to read."""
        watch.read_at = now
        if fresh.again:
            watch.history = History(self._metric(seen))
        watch.history.drifts = seen.drifts
        watch.history.malformed += fresh.malformed
        watch.history.unlike = watch.history.unlike or fresh.unlike
        recent = len(fresh.rows) - min(len(fresh.rows), _MOST_ROLLOUTS)
        for number, (row, copied) in enumerate(fresh.rows):
            if copied:
                watch.history.add(row)
                continue
            watch.history.add(row, self._rollouts(watch, seen, row) if number >= recent else None)
            self._compare_mismatch(seen, watch.history)
            judged = judge(watch.history, self._open(seen), self._failed)
            if JUDGE_FAILED in judged:
                judged[JUDGE_FAILED] = self._with_error(seen, judged[JUDGE_FAILED])
            self._note(seen, judged, alarms)
        new_rows = [row for row, copied in fresh.rows if not copied]
        if new_rows:
            self._time(watch, new_rows, now)
        return fresh.more

    def _compare_mismatch(self, seen: Seen, history: History) -> None:
        first = history.first_mismatch
        if first is None or seen.drifts:
            return
        of_model = self._mismatches.setdefault(seen.model, {})
        of_model[seen.run] = first
        values = [value for run, value in of_model.items() if run != seen.run]
        history.usual_mismatch = median(values) if values else None

    def _metric(self, seen: Seen) -> str | None:
        return seen.metric or self._criteria.metric

    def _failed(self, rule: str, error: Exception) -> None:
        if rule not in self._warned:
            self._warned.add(rule)
            self._tell(f"alarms: the rule {rule} failed: {type(error).__name__}: {error}")

    def _open(self, seen: Seen) -> Limits:
        """Return the thresholds of the rules to apply to an attempt: `stalled`, and each rule that
        has raised no alarm for the attempt."""
        return {
            rule: thresholds
            for rule, thresholds in self._criteria.limits.items()
            if rule == STALLED or (seen.run, seen.attempt, rule) not in self._reported
        }

    def _note(self, seen: Seen, evidence: Mapping[str, Evidence], alarms: list[Detection]) -> None:
        host = _text((seen.beat or {}).get("host"))
        for rule, evidence_of_rule in evidence.items():
            if (seen.run, seen.attempt, rule) not in self._reported:
                self._reported.add((seen.run, seen.attempt, rule))
                alarms.append(Detection(seen.run, seen.attempt, rule, evidence_of_rule, host))

    def _time(self, watch: _Watch, rows: list[Row], now: float) -> None:
        """Update the durations of steps. The first check finds rows of unknown age, so it uses only
        the durations that the recipe recorded."""
        durations = [
            as_float(row.get("time/total", row.get("time/step"))) or 0.0 for row in rows[-_STEPS:]
        ]
        durations = [recorded_s if 0 < recorded_s < 1e6 else 0.0 for recorded_s in durations]
        if watch.looked and not watch.steps:
            watch.first = now - watch.begun
            self._first = max(self._first or 0.0, watch.first)
        elif watch.looked:
            # If there are several new rows, the first may have taken all the time.
            durations[0] = max(durations[0], now - watch.at)
        watch.took.extend(seconds for seconds in durations if seconds)
        watch.steps += len(rows)
        watch.at = now

    def _with_error(self, seen: Seen, evidence: Evidence) -> Evidence:
        path = failure_path(self._folder.recorded(seen.run, seen.attempt), evidence.step or 0)
        with suppress(NotFound, StoreError):
            error = first_error(self._folder.store.read_range(path, 0, _ERROR_BYTES))
            if error is not None:
                return evidence._replace(message=f"{evidence.message}: {error}")
        return evidence

    def _rollouts(self, watch: _Watch, seen: Seen, row: Row) -> dict[str, float]:
        """Summarise the rollouts of a row's step; empty if there are none."""
        step = as_float(row.get("step"))
        if watch.rollouts <= -_TRIES or step is None or not 0 <= step < 1e9:
            return {}
        path = path_of(self._folder.recorded(seen.run, seen.attempt), step)
        with suppress(NotFound, StoreError):
            data = self._folder.store.read_range(path, 0, _ROLLOUT_BYTES)
            watch.rollouts = 1
            self._left -= len(data) // 4
            return summarise(data)
        if watch.rollouts <= 0:
            watch.rollouts -= 1
        return {}

    def _vitals(self, watch: _Watch, seen: Seen, now: float) -> Vitals:
        beat = seen.beat or {}
        paused, machine = table_of(beat.get("paused")), table_of(beat.get("machine"))
        if paused or seen.stopping:
            watch.at = now  # waiting for the service is not a stall
        quiet = watch.read_at - watch.at - 2 * self._criteria.sync_s
        if _nearly_done(watch.history.row):
            quiet -= _FINAL_SECONDS
        return Vitals(
            quiet=max(0.0, quiet),
            longest=watch.longest,
            to_first_step=watch.first if watch.steps else self._first,
            paused=f"{paused.get('reason')} since {paused.get('since')}" if paused else None,
            paused_s=as_float(paused.get("for_s")) or 0.0,
            beat_quiet=seen.quiet,
            lease=self._criteria.lease,
            is_command=self._criteria.is_command and not watch.steps,
            host=_text(beat.get("host")),
            disk_free=as_float(machine.get("disk_free_bytes")),
            memory_free=as_float(machine.get("memory_free_bytes")),
            memory_total=as_float(machine.get("memory_total_bytes")),
        )


def _nearly_done(row: Mapping[str, object]) -> bool:
    """Return whether a row records a progress from 0.95 to 1. A progress above 1 is a percentage or
    a count, and is ignored."""
    shares = [as_float(row.get(key)) or 0.0 for key in ("progress", "progress/done_frac")]
    return any(0.95 <= share <= 1 for share in shares)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
