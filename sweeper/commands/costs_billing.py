"""`sweeper costs --billing`: compares what runs have counted with what the service has billed."""

from argparse import Namespace
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from sweeper.commands.output import print_json_answer
from sweeper.errors import UsageError
from sweeper.money import prices
from sweeper.results.billing import Billed, billed, explained, since_first
from sweeper.results.costs import Spent
from sweeper.results.problems import tell_problems
from sweeper.results.registry import Registry
from sweeper.results.runs import RecordedRun
from sweeper.results.service_requests import of_sweeps
from sweeper.results.sweeps import Sweep
from sweeper.sweep.usage import KINDS, Counts
from sweeper.terminal import print_table

_FRESH = timedelta(hours=6)
"""The longest delay of billing."""


def show(
    costs: Sequence[tuple[RecordedRun, Spent]], registry: Registry, arguments: Namespace
) -> int:
    """Print a line for each run or cell, then the sum and what explains the difference."""
    if arguments.by not in ("run", "cell"):
        raise UsageError("--billing goes with --by run or --by cell")
    if len(registry.roots) > 1:
        raise UsageError("--billing takes one --root")
    times = [time for run, _ in costs for time in (run.times["started"], run.times["ended"])]
    since = since_first(run.times["started"] for run, _ in costs)
    theirs = billed(of_sweeps(_sweeps(costs, registry)), since)
    rows: dict[str, tuple[Counts, float, Billed]] = {}
    several = len({run.sweep for run, _ in costs}) > 1
    for run, one in costs:
        name = run.name if arguments.by == "run" else run.cell
        name = f"{run.sweep}/{name}" if several else name
        counts, usd, known = rows.get(name, (Counts(), 0.0, Billed()))
        there = theirs.get((run.sweep, run.id), Billed())
        rows[name] = (
            counts.plus(one.usage.counts), usd + one.amount.usd, known.plus(there)
        )  # fmt: skip
    whole = Counts(), 0.0, Billed()
    for counts, usd, known in rows.values():
        whole = whole[0].plus(counts), whole[1] + usd, whole[2].plus(known)
    last = max((time for time in times if time), default=None)
    fresh = last is None or datetime.fromisoformat(last) > datetime.now(UTC) - _FRESH
    unseen = sum(one.counted == "nothing" for _, one in costs)
    explanation = explained(whole[0], whole[2].counts, fresh=fresh, unseen=unseen)
    if arguments.json:
        listed = [{arguments.by: name, **_record(*row)} for name, row in rows.items()]
        document = {"schema": 1, "by": arguments.by, "costs": listed, "total": _record(*whole)}
        return print_json_answer(document | {"explained": explanation}, registry.problems)
    columns = (arguments.by, "tokens", "billed", "difference", "dollars", "billed dollars")
    print_table(columns, [_line(name, *row) for name, row in (*rows.items(), ("all", whole))])
    for line in ("", *explanation) if explanation else ("", "the two are the same, to the token"):
        print(line)
    return tell_problems(registry.problems)


def _record(counts: Counts, usd: float, known: Billed) -> dict[str, object]:
    ours = {kind: getattr(counts, kind) for kind in KINDS}
    return {**ours, "usd": usd, "billed": known.record()}


def _line(name: str, counts: Counts, usd: float, known: Billed) -> tuple[object, ...]:
    there = known.counts.tokens
    dollars = "unknown" if known.unpriced else prices.money(known.usd) if there else "-"
    priced = prices.money(usd) if usd else "-"
    return (
        name,
        f"{counts.tokens:,}",
        f"{there:,}",
        f"{there - counts.tokens:+,}",
        priced,
        dollars,
    )


def _sweeps(costs: Sequence[tuple[RecordedRun, Spent]], registry: Registry) -> list[Sweep]:
    return [registry.sweep(name) for name in dict.fromkeys(run.sweep for run, _ in costs)]
