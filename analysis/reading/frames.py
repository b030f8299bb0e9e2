"""Reads the data of a sweep once, through the registry, for all parts of the report."""

import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sweeper.alarms import Alarm, alarms
from sweeper.analysis.reading.costs import (
    AtPlace,
    Cost,
    Priced,
    clock,
    spent,
    steps_done,
    token_columns,
    token_keys,
)
from sweeper.analysis.reading.history import Histories, History
from sweeper.analysis.reading.keys import candidates, choose, suite_scores, train_candidates
from sweeper.analysis.reading.metric import Metric, differently, find_metric
from sweeper.analysis.reading.rollouts import BUDGET, Rollout, read_rollouts
from sweeper.analysis.reading.run_keys import NO_KEYS, OwnKeys
from sweeper.analysis.reading.series import Ends, Floats, Series, best, judged, last
from sweeper.analysis.reading.sources import (
    NOBODY,
    Confirmed,
    Noted,
    Placed,
    Source,
    confirmation,
    find_sources,
    read_noted,
)
from sweeper.analysis.reading.splits import counterparts, family
from sweeper.errors import GridError, UsageError
from sweeper.grid.extends import in_one
from sweeper.metrics.objective import smoothed
from sweeper.results.cells import counts
from sweeper.results.items import Answered, files_of, item_files, read_items
from sweeper.results.origins import Origin
from sweeper.results.registry import Registry
from sweeper.results.runs import RecordedRun
from sweeper.results.scores import Score, scores_of
from sweeper.results.status import stands_still
from sweeper.results.step_times import StepTimes, timelines
from sweeper.results.sweeps import SweepRun
from sweeper.store.documents import dotted, place_of
from sweeper.sweep.event import Outcome
from sweeper.sweep.plan import Plan

LOG_LINES = 12
"""The number of lines of a run's log that the report shows."""

PENDING = ("planned", "submitted", "running", "lost", "preempted")
"""States of runs that may still get a result."""

_LOGS = 400
"""If a sweep has more runs than this, only the logs of runs that did not succeed are shown."""


@dataclass(frozen=True)
class RunData:
    """A planned run, in any state. The run is judged by `value`, recorded at `step`; both are None
    if the run never recorded the metric. `last`, `best` and `smoothed` are the three values by
    which a curve may be judged. `curves` maps keys to recorded points. `clocks` has the total
    "tokens" and "time" up to each row of the history, as x values. `items` has answers to
    questions, `scores` has the scores of checkpoints on suites, and `unread` lists files of answers
    that are too large to read. `link` is the run's page at W&B. `alarms` were raised while the run
    executed. `origin` identifies the executed program, code and data. `missing` is the number of
    last rows that lack the metric, though they should have it: the run may have diverged. `notes`
    describe oddities of the metrics file. `not_numbers` maps each key that has no numbers to a
    description of the key's first value."""

    id: str
    name: str
    cell: str
    seed: int | None
    config: Mapping[str, Any]
    state: str
    attempts: int
    reason: str | None
    detail: str | None
    wall_s: float | None
    value: float | None
    step: float | None
    diverged: bool
    unreadable: int
    last: float | None = None
    best: float | None = None
    smoothed: float | None = None
    cost: Cost = field(default_factory=lambda: Cost(None, {}, None))
    curves: Mapping[str, Series] = field(default_factory=dict[str, Series])
    clocks: Mapping[str, Floats] = field(default_factory=dict[str, Floats])
    times: StepTimes | None = None
    timelines: Mapping[str, str] = field(default_factory=dict[str, str])
    log: tuple[str, ...] = ()
    checkpoints: tuple[Mapping[str, Any], ...] = ()
    rollouts: tuple[Rollout, ...] = ()
    items: tuple[Answered, ...] = ()
    scores: tuple[Score, ...] = ()
    unread: tuple[str, ...] = ()
    sweep: str = ""
    link: str | None = None
    alarms: tuple[Alarm, ...] = ()
    superseded: bool = False
    origin: Origin | None = field(default=None, compare=False)
    missing: int = 0
    notes: tuple[str, ...] = ()
    not_numbers: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def counts(self) -> bool:
        """Whether the run's value counts in comparisons: the run succeeded with a finite value,
        and its cell was not repeated on new seeds afterwards (`superseded`)."""
        return counts(self.state, self.value, self.diverged) and not self.superseded

    @property
    def why(self) -> str:
        """The recorded reason of the failure; "" if none is recorded."""
        return ": ".join(part for part in (self.reason, self.detail) if part)

    @property
    def last_line(self) -> str:
        """The last non-empty line of the log; "" if there is none."""
        return next((text for line in reversed(self.log) if (text := line.strip())), "")

    def last_of(self, key: str) -> float | None:
        """Return the last value, NaN included, of a key in `curves`; None for other keys."""
        points = self.curves.get(key)
        value = None if points is None else last(points)
        return None if value is None else value[1]


@dataclass(frozen=True)
class SweepData:
    """One or several sweeps at the time when they were read.

    `retired` counts runs that the grid no longer contains; `runs` does not contain them. `keys`
    maps each numeric key to the number of runs that recorded it. `train_key` is the key of the
    training curve, and `roles` maps "reward", "kl" and other roles to keys (see `reading/keys.py`).
    `lent` maps each sweep named in `noise: {from: ...}` to the values of the sweep's cells.
    `confirmed` names a first sweep and the sweeps that repeat its cells. If `at: auto` chose a mean
    of the last values, `ends` has the statistics that led to this choice. `baseline` is the cell
    that the best cell is compared with, `unmet` is the reason why there is no baseline, and
    `borrowed` are cells from other sweeps. `used` describes the usage of the model service.
    `places` has the usage at each backend of a sweep with several backends. `root` is the store of
    the first sweep ("" for a folder), and `paths` are the folders of all sweeps. `noted` has users'
    notes and tags. `stands_still` is the reason why unfinished runs are not being started (None: no
    such reason). For plain folders, `own_keys` are the keys that identify runs.
    """

    name: str
    plan: Plan | None
    metric: Metric | None
    axes: Mapping[str, list[Any]]
    runs: tuple[RunData, ...]
    keys: Mapping[str, int]
    train_key: str | None
    retired: int
    assumed: int = 0
    roles: Mapping[str, str] = field(default_factory=dict[str, str])
    names: tuple[str, ...] = ()
    root: str = ""
    paths: tuple[str, ...] = ()
    lent: Mapping[str, Mapping[str, Sequence[float]]] = field(
        default_factory=dict[str, Mapping[str, Sequence[float]]]
    )
    confirmed: Confirmed | None = None
    ends: Ends | None = None
    baseline: str | None = None
    unmet: str | None = None
    borrowed: frozenset[str] = frozenset()
    noted: Noted = NOBODY
    used: str | None = None
    places: tuple[AtPlace, ...] = ()
    stands_still: str | None = None
    own_keys: OwnKeys = NO_KEYS

    @property
    def own_runs(self) -> tuple[RunData, ...]:
        """The runs of cells that are not `borrowed`."""
        if not self.borrowed:
            return self.runs
        return tuple(run for run in self.runs if run.cell not in self.borrowed)

    @property
    def metric_name(self) -> str | None:
        """The key of the metric; None without a metric."""
        return None if self.metric is None else self.metric.name

    @property
    def sign(self) -> float:
        """1 for a metric to minimize and without a metric, -1 for a metric to maximize."""
        return 1.0 if self.metric is None else self.metric.sign

    @property
    def provenance(self) -> Mapping[str, Any]:
        """The recorded provenance of the launch; empty for plain folders."""
        return (self.plan and self.plan.provenance) or {}

    @property
    def seed_field(self) -> str:
        """The configuration key that distinguishes the replicates of a cell."""
        return (self.plan and self.plan.recipe.seed_field) or "seed"

    @functools.cached_property
    def derived(self) -> frozenset[str]:
        """The keys whose values refer to other keys, such as `title: ${lr} at ${rank}`."""
        if self.plan is None or "${" not in f"{self.plan.grid_text}{self.plan.overrides}":
            return frozenset()
        try:
            base = in_one(self.plan.grid_text, self.plan.extends).get("base")
        except GridError:
            return frozenset()
        given = [override.partition("=")[::2] for override in self.plan.overrides]
        pairs = [*dotted(base if isinstance(base, Mapping) else {}), *given]  # pyright: ignore[reportUnknownArgumentType]
        return frozenset(str(key) for key, value in pairs if "${" in str(value))

    @property
    def drawn(self) -> list[str]:
        """The keys that get figures, in order: the metric, the training curve, and others."""
        suites = suite_scores(self.keys)
        named = (self.metric_name, self.train_key, *self.roles.values(), *suites)
        return list(dict.fromkeys([key for key in named if key is not None]))


def load(
    registry: Registry,
    sweeps: str | Sequence[str],
    metric: str | None,
    goal: str | None,
    at: str | None = None,
    *,
    rollouts: bool = True,
) -> SweepData:
    """Read a sweep, or several sweeps as one. Raises `NotFound` if a sweep does not exist. Raises
    `UsageError` if the sweeps differ in metric, goal or `at`, and for an invalid `metric`, `goal`
    or `at` (see `find_metric`)."""
    names = [sweeps] if isinstance(sweeps, str) else list(dict.fromkeys(sweeps))
    return read(find_sources(registry, names), metric, goal, at, rollouts=rollouts)


def read(
    sources: Sequence[Source],
    metric: str | None,
    goal: str | None,
    at: str | None = None,
    *,
    rollouts: bool = True,
) -> SweepData:
    """Read all sources as one sweep. Raises as `load` does."""
    names = [source.name for source in sources]
    chosen = _one_metric(sources, metric, goal, at)
    again = confirmation(sources)
    several = len(sources) > 1
    budget = BUDGET // max(sum(len(source.runs) for source in sources), 1) if rollouts else 0
    budget = min(budget, BUDGET // 32)
    logged = rollouts and sum(len(source.runs) for source in sources) <= _LOGS
    runs: list[RunData] = []
    keys: Counter[str] = Counter()
    priced = Priced()
    for source in sources:
        handles = [placed.run for placed in source.runs]
        histories = Histories(source.registry, handles, chosen.name if chosen is not None else None)
        keys.update(histories.keys)
        raised = _alarms(source)
        for placed in source.runs:
            data = _read(placed, histories.of(placed.run.id), chosen, budget, logged=logged)
            cost = replace(data.cost, usd=priced.usd(placed.run))
            data = replace(data, cost=cost, alarms=tuple(raised.get(placed.run.id, ())))
            if again is None:
                runs.append(_of_sweep(data, source.name) if several else data)
            elif (cell := again.cell(placed)) is not None:
                runs.append(_of_study(data, source.name, cell, again))
    axes: dict[str, list[Any]] = {"sweep": list(names)} if several and again is None else {}
    for source in sources:
        for key, values in source.axes.items():
            axes.setdefault(key, values)
    roles = choose(keys, chosen.name if chosen is not None else None)
    train = roles.pop("train", None)
    return SweepData(
        name=" + ".join(names),
        plan=sources[0].plan,
        metric=chosen,
        axes=axes,
        runs=tuple(runs),
        keys=dict(sorted(keys.items())),
        train_key=train,
        retired=sum(source.retired for source in sources),
        assumed=sum(placed.assumed for source in sources for placed in source.runs),
        roles=roles,
        names=tuple(names),
        root=sources[0].root,
        paths=tuple(source.path for source in sources),
        confirmed=again,
        noted=read_noted(sources),
        used=priced.sentence(sources),
        places=priced.by_place(sources),
        stands_still=_stands_still(sources),
        own_keys=_own_keys(sources),
    )


def _own_keys(sources: Sequence[Source]) -> OwnKeys:
    parts = zip(*(source.own_keys for source in sources), strict=True)
    return OwnKeys(*(tuple(dict.fromkeys(key for keys in part for key in keys)) for part in parts))


def _stands_still(sources: Sequence[Source]) -> str | None:
    for source in sources:
        runs = [placed.run for placed in source.runs]
        sweeps = {run.sweep for run in runs if isinstance(run, SweepRun) and not run.is_finished}
        for name in sorted(sweeps):
            if (why := stands_still(source.registry.sweep(name))) is not None:
                return why
    return None


def lend(data: SweepData, registry: Registry, names: Sequence[str]) -> SweepData:
    """Return `data` with its field `lent` set to the values of the cells of the sweeps `names`. The
    noise is then estimated from these sweeps too. Return `data` unchanged if it has no metric.
    Raises `NotFound` for an unknown sweep, and `UsageError` for a sweep with another recipe."""
    metric, lent = data.metric, dict[str, Mapping[str, Sequence[float]]]()
    if metric is None:
        return data
    for name in names:
        lender = load(registry, name, metric.name, metric.goal, metric.at, rollouts=False)
        recipes = [part.plan and part.plan.recipe.reference for part in (data, lender)]
        if all(recipes) and recipes[0] != recipes[1]:
            reason = f"it has the recipe {recipes[1]}, not {recipes[0]}"
            raise UsageError(f"noise from={name}: {reason}")
        cells: dict[str, list[float]] = {}
        for run in lender.runs:
            if run.counts and run.value is not None:
                cells.setdefault(run.cell, []).append(run.value)
        lent[name] = cells
    return replace(data, lent=lent)


def _one_metric(
    sources: Sequence[Source], name: str | None, goal: str | None, at: str | None
) -> Metric | None:
    metrics = [find_metric(source.metric, name, goal, at) for source in sources]
    if (mismatch := differently(metrics)) is not None:
        raise UsageError(mismatch)
    return metrics[0]


def _of_study(run: RunData, sweep: str, cell: str, again: Confirmed) -> RunData:
    return replace(
        run,
        id=f"{sweep}/{run.id}",
        name=f"{sweep}/{run.name}",
        cell=cell,
        sweep=sweep,
        superseded=sweep not in again.fresh,
    )


def _of_sweep(run: RunData, sweep: str) -> RunData:
    key = "sweep" if "sweep" not in run.config else "the sweep"
    return replace(
        run,
        id=f"{sweep}/{run.id}",
        name=f"{sweep}/{run.name}",
        cell=f"{sweep}/{run.cell}",
        config={key: sweep, **run.config},
        sweep=sweep,
    )


def _read(
    placed: Placed, history: History, metric: Metric | None, budget: int, *, logged: bool
) -> RunData:
    run = placed.run
    keys = history.keys
    name = metric.name if metric is not None else None
    held = counterparts(name, keys)[:2] if name is not None else ()
    tasks = family(keys, name)
    wanted = [name, *train_candidates(name), *candidates(keys, name), *held, *tasks]
    curves = {key: history.series(key) for key in wanted if key is not None and key in keys}
    judged_values = judged_by(curves, metric)
    tokens = token_columns(history)
    clocks = _clocks(history, tokens)
    times = run.times
    succeeded = placed.state == "succeeded"
    files = files_of(run) if budget and run.attempts else {}
    answered, unread = read_items(run, item_files(files.items())) if files else ([], [])
    return RunData(
        id=run.id,
        name=run.name,
        cell=placed.cell,
        seed=placed.seed,
        config=placed.config,
        state=placed.state,
        attempts=run.attempts,
        reason=run.outcome.reason,
        detail=_detail(run.outcome),
        wall_s=times["wall_s"],
        unreadable=history.malformed,
        cost=_cost(history, name, tokens, times["wall_s"]),
        curves={key: curve for key, curve in curves.items() if curve},
        clocks=clocks,
        times=spent(history),
        timelines={kind: _address(run, path) for kind, path in timelines(files).items()},
        log=tuple(run.readable(lambda: run.log_tail(LOG_LINES), []))
        if not succeeded or logged
        else (),
        checkpoints=tuple(run.readable(run.checkpoint_records, [])) if succeeded else (),
        rollouts=read_rollouts(run, files, budget) if files else (),
        items=tuple(answered),
        scores=tuple(run.readable(lambda: scores_of(run, history.points(), files), [])),
        unread=tuple(unread),
        sweep=run.sweep,
        link=_link(run),
        origin=run.origin,
        missing=history.missing(name) if name in keys else 0,
        notes=history.notes,
        not_numbers=history.not_numbers,
        **judged_values,
    )


def _link(run: RecordedRun) -> str | None:
    link = run.wandb if isinstance(run, SweepRun) else None
    return link if link is not None and link.startswith(("https://", "http://")) else None


def _address(run: RecordedRun, path: str) -> str:
    local = run.store.local_path(path)
    return place_of(run.store, path) if local is None else Path(local).absolute().as_uri()


def _alarms(source: Source) -> dict[str, list[Alarm]]:
    by_run: dict[str, list[Alarm]] = {}
    if source.sweep is not None:
        for alarm in alarms(source.sweep.folder):
            by_run.setdefault(alarm.run, []).append(alarm)
    return by_run


def judged_by(curves: Mapping[str, Series], metric: Metric | None) -> dict[str, Any]:
    """Return the fields of `RunData` by which a run is judged, such as `value` and `step`."""
    if metric is None or metric.name not in curves:
        return {"value": None, "step": None, "diverged": False}
    points = curves[metric.name]
    end, top = last(points), best(points, metric.goal)
    judgement = judged(points, metric.goal, metric.at)
    return {
        "value": None if judgement is None else judgement[1],
        "step": None if judgement is None else judgement[0],
        "diverged": end is not None and not math.isfinite(end[1]),
        "last": None if end is None else end[1],
        "best": None if top is None else top[1],
        "smoothed": smoothed(points.values),
    }


def _clocks(history: History, tokens: Mapping[str, Floats]) -> dict[str, Floats]:
    clocks: dict[str, Floats] = {}
    if tokens:
        clocks["tokens"] = functools.reduce(lambda a, b: a + b, tokens.values()).cumsum()
    if (seconds := clock(history)) is not None:
        clocks["time"] = seconds
    return clocks


def _cost(
    history: History, metric: str | None, tokens: Mapping[str, Floats], wall_s: float | None
) -> Cost:
    steps = steps_done(history, [*token_keys(), *train_candidates(metric)])
    return Cost(steps, {kind: float(part.sum()) for kind, part in tokens.items()}, wall_s)


def _detail(outcome: Outcome) -> str | None:
    parts = [text for text in (outcome.detail, outcome.signal) if text]
    if outcome.code:
        parts.append(f"exit code {outcome.code}")
    return ", ".join(parts) or None
