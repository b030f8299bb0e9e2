"""`sweeper costs --prices`: prints what tokens cost, by model, and the source of the prices."""

import os
from argparse import ArgumentParser, Namespace
from datetime import UTC, datetime
from typing import cast
from urllib.parse import urlsplit

from sweeper.commands import arguments as shared
from sweeper.common.atomic import atomic_write
from sweeper.errors import EnvironmentFailure, UsageError
from sweeper.money import prices
from sweeper.sweep.labels import plural
from sweeper.terminal import print_json, print_table, warn

_SECONDS = 30.0
_LARGEST = 10_000_000


def add_arguments(verb: ArgumentParser) -> None:
    """Declare the arguments of `sweeper costs --prices`."""
    table = shared.group(verb, "prices")
    table.add_argument("--prices", action="store_true", help="show the price of tokens, by model")
    table.add_argument(
        "--refresh",
        metavar="FILE|URL",
        help="use this table from now on; its format is that of Tinker's models.json",
    )
    table.add_argument("--reset", action="store_true", help="use the package's own table again")


def show_prices(arguments: Namespace) -> int:
    """Replace the table if asked to, and print it."""
    if arguments.reset and arguments.refresh:
        raise UsageError("--refresh and --reset: one of them")
    if arguments.reset:
        _forget()
    if arguments.refresh:
        _refresh(arguments.refresh)
    loaded = prices.load()
    if arguments.json:
        rows = [{"model": name, **price._asdict()} for name, price in loaded.models.items()]
        document = {"schema": 1, "date": loaded.date, "source": loaded.source, "path": loaded.path}
        print_json(document | {"storage_gb_month": loaded.storage_gb_month, "models": rows})
        return 0
    columns = ("model", *prices.Price._fields)
    print_table(columns, [(name, *map(_shown, one)) for name, one in loaded.models.items()])
    print(f"\ndollars per million tokens, of {loaded.date}; source: {loaded.source}")
    if loaded.storage_gb_month is not None:
        print(f"checkpoints: {loaded.storage_gb_month:g} dollars a GB and month")
    print(f"{loaded.path}; models that are not in it have no known price")
    return 0


def _shown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:g}"


def _forget() -> None:
    try:
        os.unlink(prices.users_file())
    except FileNotFoundError:
        warn("there is no table of your own")
    except OSError as error:
        raise EnvironmentFailure(f"{prices.users_file()}: {error.strerror}") from error


def _refresh(source: str) -> None:
    """Store the table at `source` as the user's own, once it has been read without a mistake."""
    data, today = _fetched(source), datetime.now(UTC).date().isoformat()
    table = prices.read(data, source, today)
    path = prices.users_file()
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        atomic_write(path, _dated(data, source, today))
    except OSError as error:
        raise EnvironmentFailure(f"{path}: {error.strerror or error}") from error
    warn(f"{path}: {plural(len(table.models), 'model')}")


def _dated(data: bytes, source: str, today: str) -> bytes:
    """Return the table with its date and its source added if they are missing."""
    import json

    document = cast(dict[str, object], prices.with_rows(json.loads(data)))
    return json.dumps({"date": today, "source": source} | document, indent=1).encode() + b"\n"


def _fetched(source: str) -> bytes:
    if urlsplit(source).scheme not in ("http", "https"):
        try:
            with open(source, "rb") as file:
                return file.read(_LARGEST)
        except OSError as error:
            raise UsageError(f"{source}: {error.strerror or error}") from error
    from http.client import HTTPException
    from urllib.request import urlopen

    try:
        with urlopen(source, timeout=_SECONDS) as answer:  # noqa: S310 - http or https: see above
            return answer.read(_LARGEST)
    except (OSError, HTTPException) as error:
        raise EnvironmentFailure(f"{source}: {error}") from error
