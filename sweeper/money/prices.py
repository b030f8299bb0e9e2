"""The prices of tokens by model. The package and the user each have a table, in the format of
Tinker's `models.json`. If both tables have a price, the newer price is used."""

import json
import os
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

from sweeper.common import codec
from sweeper.common.codec import Check, Parse, Wrong, value_of
from sweeper.common.json_values import is_list
from sweeper.errors import StoreError, UsageError
from sweeper.sweep.usage import KINDS, Usage

CACHED_SHARE = 0.2
"""The price of a cached prompt token as a share of the price of an uncached one, if the table has
no price for cached tokens. This is Tinker's discount of October 2026, according to third
parties."""

_MILLION = 1e6
_NO_DATE = "an unknown date"
_LARGEST = 1e6


class Price(NamedTuple):
    """Dollars per million tokens of one model. A field is None if the price is unknown. `dates`
    maps the names of the other fields to the dates of their prices."""

    prefill: float | None = None
    cached: float | None = None
    sample: float | None = None
    train: float | None = None
    dates: Mapping[str, str] = MappingProxyType({})

    @property
    def dated(self) -> str:
        """The dates for display: `2026-10`, or `2026-06 (train), 2026-10` if they differ."""
        kinds: dict[str, list[str]] = {}
        for kind, date in self.dates.items():
            if kind != "cached":  # The cached price has the date of `prefill`.
                kinds.setdefault(date, []).append(kind)
        newest = _sorted(kinds)[-1:]
        older = (f"{date} ({', '.join(kinds[date])})" for date in _sorted(kinds)[:-1])
        return ", ".join((*older, *newest))

    def of(self, date: str) -> "Price":
        """Return a copy in which each known price has the date `date`."""
        kinds = (kind for kind in KINDS if getattr(self, kind) is not None)
        return self._replace(dates=dict.fromkeys(kinds, date))

    def updated(self, other: "Price") -> "Price":
        """Return the newer of the two prices of each kind. If the dates are equal, `other`'s price
        is used."""
        newer = [
            kind
            for kind, date in other.dates.items()
            if kind not in self.dates or _order(date) >= _order(self.dates[kind])
        ]
        dates = {**self.dates, **{kind: other.dates[kind] for kind in newer}}
        return self._replace(**{kind: getattr(other, kind) for kind in newer}, dates=dates)


class Prices(NamedTuple):
    """The prices in the table `path`. A row without a date has the table's `date`."""

    date: str
    source: str
    models: Mapping[str, Price]
    storage_gb_month: float | None
    path: str


class Amount(NamedTuple):
    """The cost in dollars (`usd`) of the models with a known price. `unpriced` are the models
    without a price. `dates` are the dates of the prices used, oldest first."""

    usd: float
    unpriced: tuple[str, ...] = ()
    dates: tuple[str, ...] = ()

    @property
    def basis(self) -> str:
        """The dates of the prices, for display."""
        return basis(self)

    def plus(self, other: "Amount") -> "Amount":
        """Return the sum."""
        unpriced = tuple(sorted({*self.unpriced, *other.unpriced}))
        return Amount(self.usd + other.usd, unpriced, _sorted((*self.dates, *other.dates)))


def basis(*amounts: Amount) -> str:
    """Return the dates of the prices in a sum of amounts, as `prices of 2026-06 to 2026-10`; `no
    price` if there are no dates."""
    dates = _sorted(date for amount in amounts for date in amount.dates)
    return f"prices of {' to '.join(dict.fromkeys((dates[0], dates[-1])))}" if dates else "no price"


def amount(usage: Usage, prices: Prices) -> Amount:
    """Return the cost of `usage` at these prices."""
    usd, unpriced, dates = 0.0, list[str](), set[str]()
    for model, counts in usage.models.items():
        price = prices.models.get(model, Price())
        used = {kind: getattr(counts, kind) for kind in KINDS if getattr(counts, kind)}
        if any(getattr(price, kind) is None for kind in used):
            unpriced.append(model)
            continue
        usd += sum(count * getattr(price, kind) for kind, count in used.items()) / _MILLION
        dates.update(price.dates[kind] for kind in used)
    return Amount(usd, tuple(sorted(unpriced)), _sorted(dates))


def money(usd: float) -> str:
    """Format dollars for display: `12.40`, `1,234.50`, `0.0123`."""
    return f"{usd:,.2f}" if usd >= 1 else f"{usd:.3g}"


def users_file() -> str:
    """Return the path of the user's price table, in the folder of sweeper's configuration file."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(folder, "sweeper", "prices.json")


def load() -> Prices:
    """Return the package's prices, updated by the user's price table if the file exists. For each
    model and kind of token, the newer price is used. Raises `UsageError` if a table cannot be
    read."""
    package = _load(os.path.join(os.path.dirname(__file__), "prices.json"))
    path = users_file()
    if not os.path.exists(path):
        return package
    table = _load(path)
    names = dict.fromkeys((*table.models, *package.models))
    no = Price()
    models = {n: package.models.get(n, no).updated(table.models.get(n, no)) for n in names}
    storage = table.storage_gb_month
    return table._replace(
        models=models,
        source=f"{table.source}; older or other prices: {package.source}",
        storage_gb_month=package.storage_gb_month if storage is None else storage,
    )


def _load(path: str) -> Prices:
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
    date: str | None


class _Dated(NamedTuple):
    model: str
    price: Price
    date: str | None


def _priced(value: Any) -> _Dated:
    row = value_of(_Row, value)
    if not value.keys() & set(_Row._fields[1:-1]):
        expected = "dollars per million tokens (as are cached_prefill, sample, train)"
        raise Wrong(expected, None, "prefill", missing=True)
    cached = row.cached_prefill
    if cached is None and row.prefill is not None:
        cached = row.prefill * CACHED_SHARE
    return _Dated(row.tinker_id, Price(row.prefill, cached, row.sample, row.train), row.date)


_Rows = tuple[Annotated[_Dated, Parse(_priced)], ...]


class _Table(NamedTuple):
    models: Annotated[_Rows, Check(bool, "a list with a row for each model")]
    date: str | None
    source: str | None
    storage_gb_month: _Dollars


def read(data: bytes, path: str, date: str | None = None) -> Prices:
    """Parse the price table `data` of the file `path`. `date` is used for a table without a date.
    Raises a `UsageError` that says where the mistake is."""
    try:
        document: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON ({error})") from error
    try:
        table = codec.read(_Table, with_rows(document), path)
    except StoreError as error:
        raise UsageError(str(error)) from error
    of_table = date or _NO_DATE if table.date is None else table.date
    models: dict[str, Price] = {}
    for row in table.models:
        price = row.price.of(row.date or of_table)
        models[row.model] = models.get(row.model, Price()).updated(price)
    return Prices(
        date=of_table,
        source=path if table.source is None else table.source,
        models=models,
        storage_gb_month=table.storage_gb_month,
        path=path,
    )


def with_rows(document: object) -> object:
    """Put a list of rows, as Tinker publishes it, into an object under the key `models`. Return any
    other document unchanged."""
    return {"models": document} if is_list(document) else document


def _order(date: str) -> tuple[bool, str]:
    """Return the sort key of a date. An unknown date counts as the newest."""
    return date == _NO_DATE, date


def _sorted(dates: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(dates), key=_order))
