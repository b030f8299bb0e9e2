"""Determines which runs or choices each run of a later stage waits for, and whether the run
waits in vain. Does no I/O."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from sweeper.sweep.labels import plural
from sweeper.sweep.plan import Plan
from sweeper.sweep.request import Request
from sweeper.sweep.stage_inputs import Choice

Fate = Literal["succeeded", "failed", "cancelled", "open"]
"""The result of a run: how it has ended, or `open` if it may still succeed."""


class Wait(NamedTuple):
    """The reason why a run, or the runs that a stage may still get, cannot start yet. `on` says
    what is waited for. With `vain`, only an action of a user can end the wait, and `fate` is the
    result of the run that is waited for."""

    on: str
    vain: bool
    fate: Fate = "failed"


NO_WAITS: Mapping[str, Wait] = MappingProxyType({})


def waits(
    plan: Plan, fate: Callable[[str], Fate], lacking: Mapping[str, Wait] = NO_WAITS
) -> tuple[dict[str, Wait], dict[str, Wait]]:
    """Return {run id: wait} for unfinished runs, and {stage: wait} for stages that may get more
    runs. A run waits if a parent has not succeeded, or if the run is in `lacking`. `lacking` maps
    run ids, and the keys of choices, to waits that have other reasons."""
    runs: dict[str, Wait] = {}
    names = {run.id: run.name for run in plan.runs}
    for run in plan.runs:  # Parents come before their children.
        if run.retired or fate(run.id) != "open":
            continue
        stage_waits = [
            _wait(names.get(parent, parent), fate(parent), runs.get(parent))
            for parent in run.parents
            if fate(parent) != "succeeded"
        ]
        if run.id in lacking:
            stage_waits.append(lacking[run.id])
        if stage_waits:
            runs[run.id] = next((wait for wait in stage_waits if wait.vain), stage_waits[0])
    stages: dict[str, Wait] = {}
    choices = {
        choice.take: lacking.get(choice.key) or _choosing(choice, fate, runs, names)
        for choice in plan.choices
    }
    for stage in plan.stages:
        if stage.name not in plan.unknown:
            continue
        takes = [take for source in stage.sources for take in source.takes]
        held = [choices[take] for take in takes if take in choices]
        held += [stages[take.stage] for take in takes if take.stage in stages]
        chosen = next((wait for wait in held if wait.vain), None)
        stages[stage.name] = chosen or (held[0] if held else Wait("runs before it", vain=True))
    return runs, stages


def halted(plan: Plan, cancelled: Request | None) -> dict[str, Wait]:
    """Return {} if `cancelled` is None. Otherwise the whole sweep was cancelled, so no choice is
    made: return {key of the choice: wait} for all choices that were not made."""
    if cancelled is None:
        return {}
    advice = f"but {cancelled.by} cancelled the sweep: the next launch or retry continues it"
    waits = {c.key: Wait(f"{c.take.words}, {advice}", vain=True) for c in plan.choices}
    return {key: wait._replace(fate="cancelled") for key, wait in waits.items()}


def _wait(name: str, fate: Fate, wait: Wait | None) -> Wait:
    if fate in ("failed", "cancelled"):
        how = "has failed" if fate == "failed" else "was cancelled"
        return Wait(f"{name}, which {how}", vain=True, fate=fate)
    return wait if wait is not None and wait.vain else Wait(name, vain=False)


def fate_of(run: str, fate: Callable[[str], Fate], runs: dict[str, Wait]) -> Fate:
    """Return the result of a run. For a run that waits in vain, return the `fate` of its wait.
    `runs` has the waits by run id."""
    run_fate = fate(run)
    return runs[run].fate if run_fate == "open" and run in runs and runs[run].vain else run_fate


def _choosing(
    choice: Choice, fate: Callable[[str], Fate], runs: dict[str, Wait], names: dict[str, str]
) -> Wait:
    """Return the wait of a choice. A choice waits until all candidates have ended. The wait is in
    vain if a candidate was cancelled, because the user who cancelled it does not want the sweep to
    continue. The wait is also in vain if a candidate has failed and the grid's `metric.failed` is
    `bound`, or if all candidates have ended and none has succeeded."""
    fates: dict[str, Fate] = {run: fate_of(run, fate, runs) for run in choice.candidates}
    words = choice.take.words
    for fault, singular, several in _FAULTS:
        wrong = [run for run, outcome in fates.items() if outcome == fault]
        if wrong and _is_held(choice, fates, fault):
            more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            verb = several if more else singular
            name = names.get(wrong[0], wrong[0])
            return Wait(f"{words}, of which {name}{more} {verb}", vain=True, fate=fault)
    if "open" not in fates.values() and "succeeded" not in fates.values():
        return Wait(f"{words}, none of which has succeeded", vain=True)
    return Wait(words, vain=False)


_FAULTS: tuple[tuple[Fate, str, str], ...] = (
    ("cancelled", "was cancelled", "were cancelled"),
    ("failed", "has failed", "have failed"),
)


def holds_back(choice: Choice, fates: Mapping[str, Fate]) -> bool:
    """Return whether failed or cancelled candidates prevent a choice."""
    return any(_is_held(choice, fates, fault) for fault, *_ in _FAULTS)


def _is_held(choice: Choice, fates: Mapping[str, Fate], fault: Fate) -> bool:
    return fault in fates.values() and (fault != "failed" or choice.metric.failed == "bound")


def told_of(plan: Plan, runs: dict[str, Wait], stages: dict[str, Wait]) -> tuple[str, ...]:
    """Return a line for each reason why runs cannot start without a user's action."""
    held: dict[str, dict[str, int]] = {}
    stage_of = {run.id: run.stage or "" for run in plan.runs}
    waiting = [(stage_of[run], 1, wait) for run, wait in runs.items()]
    waiting += [(name, plan.unknown[name], wait) for name, wait in stages.items()]
    for stage, count, wait in waiting:
        if wait.vain:
            counts = held.setdefault(wait.on, {})
            counts[stage] = counts.get(stage, 0) + count
    lines: list[str] = []
    for on, counts in held.items():
        *others, last = (f"{plural(count, 'run')} of {stage}" for stage, count in counts.items())
        text = f"{', '.join(others)} and {last}" if others else last
        verb = "waits" if sum(counts.values()) == 1 else "wait"
        lines.append(f"held back: {text} {verb} for {on}")
    return tuple(lines)
