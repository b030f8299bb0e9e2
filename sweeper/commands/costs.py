"""`sweeper costs`: prints what sweeps used of their service, and what that costs."""

from argparse import ArgumentParser, Namespace

from sweeper.commands import arguments as shared
from sweeper.commands import costs_billing, costs_prices
from sweeper.commands.output import print_json_answer
from sweeper.commands.selection import chosen, open_registry, prefixes
from sweeper.errors import NotFound, UsageError
from sweeper.money import prices
from sweeper.results.costs import Spent, by_cell, by_day, by_stage, chain, spent, together
from sweeper.results.problems import tell_problems
from sweeper.results.runs import RecordedRun
from sweeper.sweep.usage import KINDS
from sweeper.terminal import print_table, say


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper costs`."""
    shared.roots(verb)
    shared.json(verb)
    shared.select(verb)
    shared.some_runs(verb)
    verb.add_argument(
        "--by",
        choices=("run", "cell", "day", "model", "stage", "chain"),
        default="cell",
        help="what each line shows (cell); chain: a run with all runs that it started from",
    )
    verb.add_argument(
        "--billing",
        action="store_true",
        help="also show what the service has billed, by run or cell",
    )
    costs_prices.add_arguments(verb)


def run(arguments: Namespace) -> int:
    """Print a line for each cell, run, day, model, stage or chain; then the sum."""
    if arguments.prices:
        return costs_prices.show_prices(arguments)
    if arguments.refresh or arguments.reset:
        raise UsageError("--refresh and --reset go with --prices")
    table = prices.load()
    registry = open_registry(arguments)
    runs = chosen(registry, arguments, archived=True)
    if not runs:
        raise NotFound("no run fits")
    costs = [(run, spent(run, table)) for run in runs]
    if arguments.billing:
        return costs_billing.show(costs, registry, arguments)
    whole = together((one for _, one in costs), table)
    rows = _rows(costs, whole, arguments.by, table)
    if arguments.json:
        named = [{arguments.by: name, **one.record()} for name, one in rows]
        document = {"schema": 1, "by": arguments.by, "costs": named, "total": whole.record()}
        extra = {"prices": {"date": table.date, "source": table.source}}
        return print_json_answer(document | extra, registry.problems)
    # Programs without a meter may have rows of nothing but zeros: the notes below count them.
    shown = [(name, one) for name, one in rows if one.counted != "nothing"]
    if shown:
        columns = (arguments.by, *KINDS, "steps", "dollars")
        print_table(columns, [_line(name, one) for name, one in (*shown, ("all", whole))])
    for line in _notes(costs, whole, table):
        say(line)
    return tell_problems(registry.problems)


def _rows(
    costs: list[tuple[RecordedRun, Spent]], whole: Spent, by: str, table: prices.Prices
) -> list[tuple[str, Spent]]:
    prefix = prefixes(run for run, _ in costs)
    if by == "run":
        return [(f"{prefix(run)}{run.name}", one) for run, one in costs]
    if by == "day":
        return list(by_day((one for _, one in costs), table).items())
    if by == "model":
        each = {m: whole.usage._replace(models={m: c}) for m, c in whole.usage.models.items()}
        return [
            (model, Spent(usage, prices.amount(usage, table), whole.counted))
            for model, usage in each.items()
        ]
    before = {(run.root, run.sweep): prefix(run) for run, _ in costs}
    if by == "stage":
        stages = by_stage(costs, table)
        return [(f"{before[root, s]}{name}", one) for (root, s, name), one in stages.items()]
    if by == "chain":
        return [(f"{prefix(run)}{run.name}", chain(run, one, table)) for run, one in costs]
    cells = by_cell(costs, table)
    return [(f"{before[root, s]}{cell}", one) for (root, s, cell), one in cells.items()]


def _line(name: str, one: Spent) -> tuple[object, ...]:
    counts = one.usage.counts
    tokens = (f"{getattr(counts, kind):,}" for kind in KINDS)
    return (name, *tokens, f"{counts.steps:,}", _dollars(one))


def _dollars(one: Spent) -> str:
    if not one.usage.counts.tokens:
        return "-"
    priced = prices.money(one.amount.usd)
    if not one.amount.unpriced:
        return priced
    return "unknown" if not one.amount.usd else f"{priced} and more"


def _notes(costs: list[tuple[RecordedRun, Spent]], whole: Spent, table: prices.Prices) -> list[str]:
    """Explain the figures, and what they leave out."""
    without = sum(one.counted == "nothing" for _, one in costs)
    lines: list[str] = []
    if without < len(costs):
        lines += [
            "",
            f"dollars by {table.told} ({table.path}); `sweeper costs --prices` shows them",
        ]
    if whole.amount.unpriced:
        lines.append(f"no price known for {', '.join(whole.amount.unpriced)}")
    if whole.usage.unknown:
        lines.append(f"not all is counted: {whole.usage.unknown}")
    if without:
        which = f"{without} of {len(costs)} runs" if without < len(costs) else "these runs"
        lines.append(f"{which} have no meter and recorded no tokens: what they used is not known")
    if any(one.counted == "metrics" for _, one in costs):
        lines.append("some runs have no meter: their tokens are those that they recorded")
    return lines
