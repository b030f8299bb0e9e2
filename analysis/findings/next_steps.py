"""Derives the next steps, the last sentences of the verdict, from the findings. Pure."""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sweeper.analysis import labels
from sweeper.analysis.comparison.cells import Ranking
from sweeper.analysis.comparison.power import lead_text, smallest_lead
from sweeper.analysis.findings.finding import Finding, names_of
from sweeper.analysis.findings.nextgrid import NextGrid, ends_to_extend
from sweeper.analysis.reading.checkpoints import Checkpoint
from sweeper.analysis.reading.costs import dollars
from sweeper.analysis.reading.frames import PENDING, SweepData
from sweeper.sweep.labels import plural

NOTHING_NEXT = "No follow-up suggested."
"""The text if there are no next steps."""


def next_steps(
    data: SweepData,
    findings: Sequence[Finding],
    ranking: Ranking,
    checkpoint: Checkpoint | None,
    following: NextGrid | None,
    to_part: str,
) -> tuple[str, ...]:
    """Return sentences that say what the user should do next."""
    by_kind = {finding.kind: finding for finding in findings}
    steps = list(failures(data))
    blocks = by_kind["blocks"].evidence if "blocks" in by_kind else None
    if blocks is not None and blocks["told"] and not ranking.leaders:
        by = blocks["by"]
        steps.append(
            f"Judge each {by} by itself, because the best values of other settings depend on it: "
            f"sweeper analyze {data.name} --by {by}."
        )
    steps += _again(ranking)
    steps += [_beyond(evidence) for evidence in ends_to_extend(findings)]
    if following is not None and following.kind == "extend":
        runs = plural(following.runs, "new run")
        steps.append(f"next.yaml beside this report is the extended grid: {runs}.")
    fewest = min((cell.summary.n for cell in ranking.measured), default=0)
    if "missing_end" in by_kind:
        steps.append("Read in the logs whether the runs without a last value have diverged.")
    if "tied" in by_kind:
        steps.append(to_part)
        advised = following is not None and following.kind == "confirm"
        if fewest < 2 and "not_compared" in by_kind and not advised:
            steps.append(_more_seeds(following, fewest))
    elif "uneven_best" in by_kind:
        steps.append(
            "Analyze with --at last or --at mean_of_last=5, or evaluate all runs equally often."
        )
    elif by_kind.keys() & {"not_compared", "few_runs"}:
        steps.append(_more_seeds(following, fewest))
    if "metric_missing" in by_kind or "no_metric" in by_kind:
        steps.append("Name one of the recorded keys as the metric, in the grid or with --metric.")
    if "all_equal" in by_kind:
        steps.append("Check that the recipe uses these settings and its seed.")
    if "all_diverged" in by_kind:
        steps.append("Try settings under which every seed stays finite.")
    if checkpoint is not None and not steps:
        steps.append(
            f"Use the checkpoint below; sweeper weights {data.name} --to DIR downloads its weights."
        )
        if ranking.best is not None and ranking.best.summary.n == 2:
            steps.append("Add seeds if much depends on this choice: two show little of the noise.")
    return tuple(steps)


def failures(data: SweepData) -> Iterator[str]:
    """Yield the next steps for runs that are unfinished or failed."""
    states = Counter(run.state for run in data.runs)
    pending = sum(states[state] for state in PENDING)
    if pending and data.stands_still is not None:
        yield f"{plural(pending, 'open run')}, but {data.stands_still}."
    elif pending:
        yield f"Let the {plural(pending, 'open run')} finish, then analyze again."
    if states["failed"]:
        failed = plural(states["failed"], "run")
        single = data.root and len(data.names) < 2
        again = f", then run {shlex.join(['sweeper', 'retry', data.name])}" if single else ""
        yield f"Read in the logs why {failed} failed{again}."


def how_to_part(
    ranking: Ranking,
    following: NextGrid | None,
    relevant: float | None,
    needed: int | None,
    prices: Mapping[str, float],
) -> str:
    """Return advice if several cells may be the best, else "". The advice names the smallest lead
    that more seeds could detect, and the cost of these seeds."""
    if not ranking.tied:
        return ""
    tied = len(ranking.tied) + 1
    choice = "the cheaper" if tied == 2 else "the cheapest"
    if len(ranking.equal) == len(ranking.tied):
        return f"Take {choice} of the {tied} cells with the same mean, or use a finer metric."
    take = f"Take {choice} of the {tied} cells at the top"
    if relevant is not None and needed is None and ranking.noise.spreads:
        smallest = labels.brief(relevant)
        return f"{take}: 100 seeds of each would not find a lead of {smallest} in 4 of 5 sweeps."
    confirm = following if following is not None and following.kind == "confirm" else None
    if confirm is None:
        return f"{take}, or run more seeds of them."
    paid = _price(ranking, confirm.runs, prices)
    runs = plural(confirm.runs, "run")
    seeds = confirm.runs // confirm.cells
    text = f"{take}, or launch next.yaml ({runs} of {confirm.cells} cells on fresh seeds{paid})"
    lead = smallest_lead(ranking, confirm.cells, seeds)
    if lead is not None:
        least = lead_text(ranking, lead)
        text += f": {seeds} seeds of each find a lead of {least} or more in 4 of 5 sweeps"
    if needed is not None and needed > seeds:
        text += f"; a lead of {labels.brief(relevant)} needs {needed}"
    return f"{text}."


def _price(ranking: Ranking, runs: int, prices: Mapping[str, float]) -> str:
    """Return the cost of `runs` more runs of the cells that may be the best; "" if unknown."""
    done = [r for c in (ranking.best, *ranking.tied) if c is not None for r in c.runs if r.counts]
    parts: list[str] = []
    tokens = [run.cost.total for run in done if run.cost.total is not None]
    walls = [run.wall_s for run in done if run.wall_s is not None]
    paid = [amount for run in done if (amount := dollars(run.cost, prices)) is not None]
    if tokens:
        parts.append(f"{labels.amount(runs * sum(tokens) / len(tokens))} tokens")
    if walls:
        parts.append(f"{labels.duration(runs * sum(walls) / len(walls))} of runs")
    if paid:
        parts.append(f"${labels.number(runs * sum(paid) / len(paid), 3)}")
    return f", about {labels.listed(parts)}" if parts else ""


def _again(ranking: Ranking) -> Iterator[str]:
    """Yield next steps for cells that beat the best cell except for failed or diverged runs."""
    if ranking.passed_over:
        names = labels.listed(names_of(ranking.passed_over), 3)
        yield f"Find out why runs of {names} diverge: their other runs beat the best cell's."
    if ranking.held_back:
        names = labels.listed(names_of(ranking.held_back), 3)
        yield f"Run the failed seeds of {names} again: their other runs beat the best cell's."


def _more_seeds(following: NextGrid | None, fewest: int) -> str:
    if following is not None and following.kind == "confirm":
        cells = plural(following.cells, "cell")
        runs = plural(following.runs, "run")
        return f"Launch next.yaml: the first {cells} on fresh seeds ({runs})."
    if following is not None and following.kind == "seeds":
        runs = plural(following.runs, "new run")
        return f"Launch next.yaml: every cell with three seeds ({runs})."
    if fewest > 2:
        return "Identical runs show no noise: use a finer metric, or a seed that has an effect."
    return "Run every cell with three seeds or more (seeds: 3 in the grid)."


def _beyond(evidence: Mapping[str, Any]) -> str:
    if evidence["suggestion"] is None:
        return f"Check whether {evidence['axis']} can go beyond {evidence['shown']}."
    suggestion = labels.setting(evidence["suggestion"])
    return (
        f"Extend {evidence['axis']} beyond {evidence['shown']}, for example by "
        f"{suggestion}, and launch again: finished runs are kept."
    )
