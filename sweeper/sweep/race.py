"""Determines the runs of a sweep with a race from the rounds that have been decided. In a race,
worse cells get fewer seeds."""

from collections import Counter
from collections.abc import Sequence

from sweeper.sweep.labels import plural
from sweeper.sweep.plan import Plan, Race, Round, Run
from sweeper.sweep.stage_inputs import digest


def raced(plan: Plan, rounds: Sequence[Round]) -> Plan:
    """Return the plan with the runs that `rounds` have added. The field `unknown` of the result is
    {"": number of runs that later rounds may add}, or {} if no runs can follow."""
    race = plan.race
    if race is None:
        return plan
    later = {run.id for run in race.runs}
    added = {run for round_ in rounds for run in round_.runs} & later
    current = [run for run in plan.runs if not run.retired]
    current_ids = {run.id for run in current}
    gone = {run.id: run for run in plan.runs if run.retired}
    names = {run.name for run in plan.runs}
    for run in race.runs:
        if run.id in added and run.id not in current_ids:
            before = gone.pop(run.id, None)
            name = run.name if run.name not in names else f"{run.name}~{run.id[:6]}"
            current.append(run._replace(name=name if before is None else before.name))
    whole = plan._replace(runs=(*current, *gone.values()), rounds=tuple(rounds))
    to_come = len(later - {run.id for run in current})
    over = bool(rounds) and rounds[-1].ended is not None and rounds[-1].judged == judged(whole)
    return whole._replace(unknown={"": to_come} if to_come and not over else {})


def later_runs(plan: Plan) -> list[Run]:
    """Return the runs of a race that no round has added yet."""
    current_ids = {run.id for run in plan.runs if not run.retired}
    return [] if plan.race is None else [run for run in plan.race.runs if run.id not in current_ids]


def judged(plan: Plan) -> str:
    """Return a digest of a race's runs, metric and maximum number of seeds per cell."""
    race = plan.race or Race(2, 3)
    runs = {run.id for run in (*plan.runs, *race.runs) if not run.retired}
    metric = plan.metric and [plan.metric.name, plan.metric.goal, plan.metric.at]
    return digest([race.most, metric, sorted(runs)])


_ENDED = {
    "clear": "one cell is clearly the best",
    "spent": "the cells that may be the best have all their seeds",
    "identical": "the runs of each cell are identical, so more seeds show nothing",
}


def sentence(plan: Plan) -> str | None:
    """Return a sentence about the progress of a race, or None for a plan without a race."""
    race = plan.race
    if race is None:
        return None
    current = sum(not run.retired for run in plan.runs)
    to_come = len(later_runs(plan))
    last = plan.rounds[-1] if plan.rounds else None
    if last is not None and last.ended is not None and not plan.unknown:
        runs = plural(current + to_come, "run")
        return f"raced: {to_come} of {runs} were not needed: {_ENDED[last.ended]}"
    if not to_come:
        return f"race: all {plural(current, 'run')} are needed"
    more = f"at most {plural(to_come, 'more run')}"
    if last is None:
        first = f"every cell gets {race.least} seeds, and cells that may be the best get"
        return f"race: {first} up to {race.most}: {more}"
    cells = Counter(run.cell for run in plan.runs if not run.retired)
    going = {run.cell for run in plan.runs if run.id in last.runs}
    cells_text = f"{len(going)} of {plural(len(cells), 'cell')}"
    return f"race: {cells_text} get {last.seeds} seeds each: {more}"
