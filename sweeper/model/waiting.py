"""What runs of later stages wait for, and whether that can still come. Pure."""

from collections.abc import Callable
from typing import Literal, NamedTuple

from sweeper.model.plan import Plan
from sweeper.model.taking import Choice

__all__ = ["Fate", "Wait", "fate_of", "told_of", "waits"]

Fate = Literal["succeeded", "failed", "cancelled", "open"]
"""What became of a run: it is over for one of these reasons, or it may still succeed."""


class Wait(NamedTuple):
    """What a run, or the runs of a stage that are not known, wait for: `on` in words. `vain`: it
    will not come, unless somebody does something about it."""

    on: str
    vain: bool


def waits(plan: Plan, fate: Callable[[str], Fate]) -> tuple[dict[str, Wait], dict[str, Wait]]:
    """What each run waits for whose parents have not all succeeded (by its id), and what those runs
    wait for that are not known yet (by their stage)."""
    runs: dict[str, Wait] = {}
    names = {run.id: run.name for run in plan.runs}
    for run in plan.runs:  # parents come before their children
        if run.retired or fate(run.id) != "open":
            continue
        found = [
            _wait(names.get(parent, parent), fate(parent), runs.get(parent))
            for parent in run.parents
            if fate(parent) != "succeeded"
        ]
        if found:
            runs[run.id] = next((one for one in found if one.vain), found[0])
    stages: dict[str, Wait] = {}
    choices = {choice.take: _choosing(choice, fate, runs, names) for choice in plan.choices}
    for stage in plan.stages:
        if stage.name not in plan.unknown:
            continue
        takes = [take for source in stage.sources for take in source.takes]
        held = [choices[take] for take in takes if take in choices]
        held += [stages[take.stage] for take in takes if take.stage in stages]
        chosen = next((wait for wait in held if wait.vain), None)
        stages[stage.name] = chosen or (held[0] if held else Wait("runs before it", vain=True))
    return runs, stages


def _wait(name: str, fate: Fate, wait: Wait | None) -> Wait:
    if fate in ("failed", "cancelled"):
        how = "has failed" if fate == "failed" else "was cancelled"
        return Wait(f"{name}, which {how}", vain=True)
    return wait if wait is not None and wait.vain else Wait(name, vain=False)


def fate_of(run: str, fate: Callable[[str], Fate], runs: dict[str, Wait]) -> Fate:
    """The fate of a run; of one that waits in vain that of what it waits for."""
    found = fate(run)
    return "failed" if found == "open" and run in runs and runs[run].vain else found


def _choosing(
    choice: Choice, fate: Callable[[str], Fate], runs: dict[str, Wait], names: dict[str, str]
) -> Wait:
    """What a choice waits for: that all have ended, and none has failed, unless failures count for
    nothing in the metric."""
    fates = {run: fate_of(run, fate, runs) for run in choice.candidates}
    failed = [run for run, one in fates.items() if one == "failed"]
    left = [run for run, one in fates.items() if one == "open"]
    if failed and choice.metric.failed == "bound":
        more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
        which = f"{names.get(failed[0], failed[0])}{more}"
        verb = "have" if more else "has"
        return Wait(f"{choice.take.words}, of which {which} {verb} failed", vain=True)
    if not left and not any(one == "succeeded" for one in fates.values()):
        return Wait(f"{choice.take.words}, of which none has succeeded", vain=True)
    return Wait(choice.take.words, vain=False)


def told_of(plan: Plan, runs: dict[str, Wait], stages: dict[str, Wait]) -> tuple[str, ...]:
    """Say, a line for each reason, which runs are held back in vain."""
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
        which = ", ".join(f"{count} of {stage}" for stage, count in counts.items())
        lines.append(f"held back ({which}): they wait for {on}")
    return tuple(lines)
