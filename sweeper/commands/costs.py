"""`sweeper costs`: prints the usage of sweeps (such as tokens) and its cost, or the price table."""

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import cast
from urllib.parse import urlsplit

from sweeper.commands import arguments as shared
from sweeper.commands.ls_by import hint_of, identity, keys_of, nested, one_or_all
from sweeper.commands.output import print_json_answer
from sweeper.commands.selection import chosen, open_registry, prefixes
from sweeper.common.atomic import atomic_write
from sweeper.errors import EnvironmentFailure, NotFound, UsageError
from sweeper.money import prices
from sweeper.money.billing import Billed, billed, explained, since_first
from sweeper.money.costs import Spent, chain, parts, spent, together
from sweeper.results.problems import tell_problems
from sweeper.results.registry import Registry
from sweeper.results.runs import RecordedRun
from sweeper.results.service_requests import of_sweeps
from sweeper.results.sweeps import Sweep
from sweeper.store.documents import seconds_since
from sweeper.sweep.labels import plural
from sweeper.sweep.usage import KINDS, Counts
from sweeper.terminal import print_json, print_table, say, setting, warn

_FETCH_SECONDS, _LARGEST_TABLE = 30.0, 10_000_000
_FRESH_SECONDS = 6 * 3600
"""The longest time until usage appears in the service's billing."""
_RUN, _CELL, _STAGE, _DAY, _MODEL, _CHAIN = "run", "cell", "stage", "day", "model", "chain"
_OWN = (_RUN, _CELL, _STAGE, _DAY, _MODEL)
"""The keys of `--by` that are not settings. (`chain`, which is not a setting either, is handled
separately.)"""

_Row = tuple[tuple[object, ...], Spent]


def show(
    costs: Sequence[tuple[RecordedRun, Spent]], registry: Registry, arguments: Namespace
) -> int:
    """Print the usage of each run or cell, as the runs recorded it and as the service billed it.
    Also print the totals, and explain differences."""
    if arguments.by not in ("run", "cell"):
        raise UsageError("--billing needs --by run or --by cell")
    if len(registry.roots) > 1:
        raise UsageError("--billing takes one --root")
    times = [time for run, _ in costs for time in (run.times["started"], run.times["ended"])]
    since = since_first(run.times["started"] for run, _ in costs)
    bills = billed(of_sweeps(_sweeps(costs, registry)), since)
    rows: dict[str, tuple[Counts, prices.Amount, Billed]] = {}
    several = len({run.sweep for run, _ in costs}) > 1
    for run, spending in costs:
        name = run.name if arguments.by == "run" else run.cell
        name = f"{run.sweep}/{name}" if several else name
        counts, cost, bill = rows.get(name, (Counts(), prices.Amount(0.0), Billed()))
        addition = bills.get((run.sweep, run.id), Billed())
        rows[name] = (
            counts.plus(spending.usage.counts), cost.plus(spending.amount), bill.plus(addition)
        )  # fmt: skip
    whole = Counts(), prices.Amount(0.0), Billed()
    for counts, cost, bill in rows.values():
        whole = whole[0].plus(counts), whole[1].plus(cost), whole[2].plus(bill)
    age = seconds_since(max((time for time in times if time), default=None))
    fresh = age is None or age < _FRESH_SECONDS
    unmetered = sum(spending.counted == "nothing" for _, spending in costs)
    explanation = explained(whole[0], whole[2].counts, fresh=fresh, unseen=unmetered)
    if arguments.json:
        listed = [{"value": name, **_record(*row)} for name, row in rows.items()]
        document = {"schema": 1, "by": arguments.by, "costs": listed, "total": _record(*whole)}
        return print_json_answer(document | {"explained": explanation}, registry.problems)
    columns = (arguments.by, "tokens", "billed", "difference", "dollars", "billed dollars")
    print_table(
        columns, [_billing_line(name, *row) for name, row in (*rows.items(), ("all", whole))]
    )
    explanation = explanation or ["the counted and the billed tokens are equal"]
    for line in ("", *explanation, f"dollars at {whole[1].basis}"):
        print(line)
    return tell_problems(registry.problems)


def _record(counts: Counts, cost: prices.Amount, bill: Billed) -> dict[str, object]:
    counted = {kind: getattr(counts, kind) for kind in KINDS}
    usd = None if cost.unpriced else cost.usd
    priced = {"usd": usd, "unpriced": list(cost.unpriced), "prices": list(cost.dates)}
    return {**counted, **priced, "billed": bill.record()}


def _billing_line(
    name: str, counts: Counts, cost: prices.Amount, bill: Billed
) -> tuple[object, ...]:
    billed_tokens = bill.counts.tokens
    dollars = "unknown" if bill.unpriced else prices.money(bill.usd) if billed_tokens else "-"
    tokens = (f"{counts.tokens:,}", f"{billed_tokens:,}", f"{billed_tokens - counts.tokens:+,}")
    return (name, *tokens, _dollars(counts, cost), dollars)


def _sweeps(costs: Sequence[tuple[RecordedRun, Spent]], registry: Registry) -> list[Sweep]:
    return [registry.sweep(name) for name in dict.fromkeys(run.sweep for run, _ in costs)]


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper costs`."""
    shared.runs_of_any_sweeps(verb)
    shared.select(verb)
    lines = shared.group(verb, "which lines")
    lines.add_argument(
        "--by",
        metavar="KEY,...",
        default=_CELL,
        help="what each line shows: run, cell, day, model, stage, a setting, or several of them, "
        "as in model,day; or chain: a run and all runs that it continues from (default: cell)",
    )
    shared.flag(lines, "--billing", "also show what the service has billed, by run or cell")
    _add_prices(verb)
    shared.roots(verb)
    shared.json(verb)


def run(arguments: Namespace) -> int:
    """Print the costs by cell, or by the keys of `--by`, and the total. With `--prices`, show the
    price table instead."""
    if arguments.prices:
        return _show_prices(arguments)
    if arguments.refresh or arguments.reset:
        raise UsageError("--refresh and --reset need --prices")
    table = prices.load()
    registry = open_registry(arguments, snapshot=True)
    runs = chosen(registry, arguments, archived=True)
    if not runs:
        raise NotFound("no run matches")
    costs = [(run, spent(run, table)) for run in runs]
    if arguments.billing:
        return show(costs, registry, arguments)
    whole = together((spending for _, spending in costs), table)
    keys = keys_of(arguments.by)
    rows = _rows(costs, keys, table)
    if arguments.json:
        named = [{"value": one_or_all(values), **spending.record()} for values, spending in rows]
        document = {"schema": 1, "by": ",".join(keys), "costs": named, "total": whole.record()}
        extra = {"prices": {"date": table.date, "source": table.source}}
        return print_json_answer(document | extra, registry.problems)
    # Programs without a meter may have rows of only zeros. The notes below count them.
    shown = [(values, spending) for values, spending in rows if spending.counted != "nothing"]
    if shown:
        columns = (*keys, *KINDS, "steps", "dollars")
        total = ("all", *(None for _ in keys[1:]))
        print_table(columns, [_line(*row) for row in (*shown, (total, whole))])
    for line in _notes(costs, whole):
        say(line)
    return tell_problems(registry.problems)


def _rows(
    costs: Sequence[tuple[RecordedRun, Spent]], keys: Sequence[str], table: prices.Prices
) -> list[_Row]:
    """Return the costs of each combination of values of the keys, sorted by the first key, then by
    the second, and so on. The values of a key are in the order of their first appearance; days are
    in the order of time. Raises `UsageError` if `keys` contains `chain` and another key, and
    `NotFound` for a key that no run has."""
    prefix = prefixes(run for run, _ in costs)
    if _CHAIN in keys:
        if len(keys) > 1:
            raise UsageError(
                "--by chain takes no other key: use `--by chain`, or the other keys without chain"
            )
        return [((prefix(run) + run.name,), chain(run, spending, table)) for run, spending in costs]
    settings = {name for run, _ in costs for name in run.config}
    for key in keys:
        if key not in _OWN and key not in settings:
            hint = hint_of(key, {*settings, *_OWN, _CHAIN})
            raise NotFound(f"no run has the setting {key!r}; {hint}")
    days, models = _DAY in keys, _MODEL in keys
    divided = [
        ({**_names(run, prefix(run)), _DAY: day, _MODEL: model}, part)
        for run, spending in costs
        for day, model, part in parts(spending, table, by_day=days, by_model=models)
    ]
    rows: dict[tuple[str, ...], tuple[tuple[object, ...], list[Spent]]] = {}
    for labels, part in sorted(divided, key=lambda entry: str(entry[0][_DAY])):
        values = tuple(labels.get(key) for key in keys)
        rows.setdefault(identity(labels, keys), (values, []))[1].append(part)
    return [(values, together(several, table)) for values, several in nested(rows)]


def _names(run: RecordedRun, prefix: str) -> dict[str, object]:
    """Return the settings of a run, and its name, cell and stage, each of the three after `prefix`.
    For a run without a stage, use the name of the sweep as the stage."""
    stage = f"{prefix}{run.stage or run.sweep}"
    return {**run.config, _RUN: prefix + run.name, _CELL: prefix + run.cell, _STAGE: stage}


def _line(values: Sequence[object], spending: Spent) -> tuple[object, ...]:
    counts = spending.usage.counts
    names = (value if isinstance(value, str | None) else setting(value) for value in values)
    tokens = (f"{getattr(counts, kind):,}" for kind in KINDS)
    return (*names, *tokens, f"{counts.steps:,}", _dollars(counts, spending.amount))


def _dollars(counts: Counts, cost: prices.Amount) -> str:
    if not counts.tokens:
        return "-"
    if not cost.unpriced:
        return prices.money(cost.usd)
    return f"{prices.money(cost.usd)} and more" if cost.usd else "unknown"


def _notes(costs: list[tuple[RecordedRun, Spent]], whole: Spent) -> list[str]:
    """Return lines that explain the figures and say which usage is not included."""
    without = sum(spending.counted == "nothing" for _, spending in costs)
    lines: list[str] = []
    if without < len(costs):
        lines += ["", f"dollars at {whole.amount.basis}; `sweeper costs --prices` shows the prices"]
    if whole.amount.unpriced:
        lines.append(f"no price known for {', '.join(whole.amount.unpriced)}")
    if whole.usage.unknown:
        lines.append(f"usage is incomplete: {whole.usage.unknown}")
    if without:
        runs = f"{without} of {len(costs)} runs" if without < len(costs) else "these runs"
        lines.append(
            f"usage unknown: the requests of {runs} are not counted, and the runs recorded no "
            "tokens"
        )
    if any(spending.counted == "metrics" for _, spending in costs):
        lines.append(
            "some runs' requests are not counted: the tokens that these runs recorded are shown"
        )
    return lines


def _add_prices(verb: ArgumentParser) -> None:
    table = shared.group(verb, "prices")
    shared.flag(table, "--prices", "show the prices of tokens by model")
    table.add_argument(
        "--refresh",
        metavar="FILE|URL",
        help="from now on use this price table, in the format of Tinker's models.json, except "
        "where sweeper's own table has a newer price",
    )
    shared.flag(table, "--reset", "use the package's own table again")


def _show_prices(arguments: Namespace) -> int:
    """Replace or reset the price table if requested, and print the table."""
    if arguments.reset and arguments.refresh:
        raise UsageError("use either --refresh or --reset")
    if arguments.runs:
        raise UsageError(
            f"--prices shows the prices of all models, not those of {arguments.runs[0]}: leave out "
            "the name, or leave out --prices to see the costs of runs"
        )
    if arguments.reset:
        _forget()
    if arguments.refresh:
        _refresh(arguments.refresh)
    loaded = prices.load()
    if arguments.json:
        rows = [
            {"model": name, **price._asdict(), "dates": dict(price.dates)}
            for name, price in loaded.models.items()
        ]
        document = {"schema": 1, "date": loaded.date, "source": loaded.source, "path": loaded.path}
        print_json(document | {"storage_gb_month": loaded.storage_gb_month, "models": rows})
        return 0
    rows = [
        (name, *(_price(getattr(price, kind)) for kind in KINDS), price.dated)
        for name, price in loaded.models.items()
    ]
    print_table(("model", *KINDS, "of"), rows)
    print(f"\ndollars per million tokens; source: {loaded.source}")
    if loaded.storage_gb_month is not None:
        print(f"checkpoints: {loaded.storage_gb_month:g} dollars per GB and month")
    print(f"price table: {loaded.path} (models that are not in it have no known price)")
    return 0


def _price(value: float | None) -> str:
    return "unknown" if value is None else f"{value:g}"


def _forget() -> None:
    try:
        os.unlink(prices.users_file())
    except FileNotFoundError:
        warn("you have no price table to remove")
    except OSError as error:
        raise EnvironmentFailure(f"{prices.users_file()}: {error.strerror}") from error


def _refresh(source: str) -> None:
    """Check the price table at `source` (a file or URL), and store it as the user's own table."""
    data, today = _fetched(source), datetime.now(UTC).date().isoformat()
    table = prices.read(data, source, today)
    path = prices.users_file()
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        atomic_write(path, _dated(data, source, today))
    except OSError as error:
        raise EnvironmentFailure(f"{path}: {error.strerror or error}") from error
    warn(f"stored the prices of {plural(len(table.models), 'model')} in {path}")


def _dated(data: bytes, source: str, today: str) -> bytes:
    """Add today's date and the source to a price table that lacks them."""
    import json

    document = cast(dict[str, object], prices.with_rows(json.loads(data)))
    return json.dumps({"date": today, "source": source} | document, indent=1).encode() + b"\n"


def _fetched(source: str) -> bytes:
    if urlsplit(source).scheme not in ("http", "https"):
        try:
            with open(source, "rb") as file:
                return file.read(_LARGEST_TABLE)
        except OSError as error:
            raise UsageError(f"{source}: {error.strerror or error}") from error
    from http.client import HTTPException
    from urllib.request import urlopen

    try:
        with urlopen(source, timeout=_FETCH_SECONDS) as answer:  # noqa: S310 - http or https: see above
            return answer.read(_LARGEST_TABLE)
    except (OSError, HTTPException) as error:
        raise EnvironmentFailure(f"{source}: {error}") from error
