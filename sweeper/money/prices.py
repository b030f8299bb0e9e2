"""The prices of tokens: a dated table by model, the package's own or the user's.

The table has the format of Tinker's published `models.json`: a row per model, with `tinker_id` and
dollars per million tokens (`"$1.87"`, or a number) as `prefill`, `cached_prefill`, `sample` and
`train`. A missing price is unknown, never zero.
"""

import json
import os
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from sweeper.common import codec
from sweeper.common.codec import Check, Parse, Wrong, value_of
from sweeper.common.json_values import is_list
from sweeper.errors import StoreError, UsageError
from sweeper.sweep.usage import KINDS, Usage

CACHED_SHARE = 0.2
"""What a token of a prompt that was read before costs, where the table does not say: a share of
the price of one that was not. Tinker's discount of October 2026, by third parties."""

_MILLION = 1e6
_LARGEST = 1e6


class Price(NamedTuple):
    """Dollars per million tokens of one model; None if unknown."""

    prefill: float | None = None
    cached: float | None = None
    sample: float | None = None
    train: float | None = None


class Prices(NamedTuple):
    """The prices of a `date`, from a `source`; `path` is the file."""

    date: str
    source: str
    models: Mapping[str, Price]
    storage_gb_month: float | None
    path: str

    @property
    def told(self) -> str:
        """The origin of these prices, for people."""
        return f"prices of {self.date}"


class Amount(NamedTuple):
    """The cost in `usd` of the models with a price, and the `unpriced` models, which are not
    included."""

    usd: float
    unpriced: tuple[str, ...] = ()


def amount(usage: Usage, prices: Prices) -> Amount:
    """Return what a usage costs by these prices."""
    usd, unpriced = 0.0, list[str]()
    for model, counts in usage.models.items():
        price = prices.models.get(model, Price())
        used = {kind: getattr(counts, kind) for kind in KINDS if getattr(counts, kind)}
        if any(getattr(price, kind) is None for kind in used):
            unpriced.append(model)
            continue
        usd += sum(count * getattr(price, kind) for kind, count in used.items()) / _MILLION
    return Amount(usd, tuple(sorted(unpriced)))


def money(usd: float) -> str:
    """Return dollars for people: `12.40`, `1,234.50`, `0.0123`."""
    return f"{usd:,.2f}" if usd >= 1 else f"{usd:.3g}"


def users_file() -> str:
    """Return the path of the user's own table, next to the configuration file."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(folder, "sweeper", "prices.json")


def load() -> Prices:
    """Return the user's table, else the package's. Raises `UsageError` if it cannot be read."""
    own = users_file()
    path = own if os.path.exists(own) else os.path.join(os.path.dirname(__file__), "prices.json")
    try:
        with open(path, "rb") as file:
            return read(file.read(), path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error


def _dollars(value: Any) -> float | None:
    if value == "":
        return None
    try:
        number = float(value.removeprefix("$") if isinstance(value, str) else value)
    except (TypeError, ValueError, OverflowError):
        number = -1.0
    if isinstance(value, bool) or not 0 <= number < _LARGEST:
        raise Wrong('dollars, such as "$1.87"', value)
    return number


_Dollars = Annotated[float | None, Parse(_dollars)]


class _Row(NamedTuple):
    tinker_id: str
    prefill: _Dollars
    cached_prefill: _Dollars
    sample: _Dollars
    train: _Dollars


def _priced(value: Any) -> tuple[str, Price]:
    row = value_of(_Row, value)
    if not value.keys() & set(_Row._fields[1:]):
        expected = "dollars per million tokens (as are cached_prefill, sample, train)"
        raise Wrong(expected, None, "prefill", missing=True)
    cached = row.cached_prefill
    if cached is None and row.prefill is not None:
        cached = row.prefill * CACHED_SHARE
    return row.tinker_id, Price(row.prefill, cached, row.sample, row.train)


_Rows = tuple[Annotated[tuple[str, Price], Parse(_priced)], ...]


class _Table(NamedTuple):
    models: Annotated[_Rows, Check(bool, "a list with a row for each model")]
    date: str | None
    source: str | None
    storage_gb_month: _Dollars


def read(data: bytes, path: str, date: str | None = None) -> Prices:
    """Return the table in a file. `date` is used for a table without one. Raises `UsageError` with
    the place of the mistake."""
    try:
        document: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: no JSON ({error})") from error
    try:
        table = codec.read(_Table, with_rows(document), path)
    except StoreError as error:
        raise UsageError(str(error)) from error
    return Prices(
        date=date or "an unknown date" if table.date is None else table.date,
        source=path if table.source is None else table.source,
        models=dict(table.models),
        storage_gb_month=table.storage_gb_month,
        path=path,
    )


def with_rows(document: object) -> object:
    """Return the document as an object: the published table is only a list of rows."""
    return {"models": document} if is_list(document) else document
