"""What tokens cost: a dated table by model, the package's own or the user's.

The table has the shape of Tinker's published `models.json`: a row a model, with `tinker_id` and
dollars per million tokens (`"$1.87"`, or a number) as `prefill`, `cached_prefill`, `sample` and
`train`. What it does not know is unknown, and never counted as nothing.
"""

import json
import os
from collections.abc import Mapping
from typing import NamedTuple, cast

from sweeper.common.document_reader import Part
from sweeper.errors import StoreError, UsageError
from sweeper.sweep.usage import KINDS, Usage

CACHED_SHARE = 0.2
"""What a token of a prompt that was read before costs, where the table does not say: a share of
the price of one that was not. Tinker's discount of October 2026, by third parties."""

_MILLION = 1e6
_LARGEST = 1e6


class Price(NamedTuple):
    """Dollars per million tokens of one model; None where that is unknown."""

    prefill: float | None = None
    cached: float | None = None
    sample: float | None = None
    train: float | None = None


class Prices(NamedTuple):
    """`date` says of when they are and `source` whose; `path` is the file."""

    date: str
    source: str
    models: Mapping[str, Price]
    storage_gb_month: float | None
    path: str

    @property
    def told(self) -> str:
        """Which prices these are, for people."""
        return f"prices of {self.date}"


class Amount(NamedTuple):
    """`usd` of what has a price, and the `unpriced` models: their part is not in it."""

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
    """Return where a table of the user's own lies: beside the configuration file."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(folder, "sweeper", "prices.json")


def load() -> Prices:
    """Return the user's table, else the package's. Raises `UsageError` for one that cannot be
    read."""
    own = users_file()
    path = own if os.path.exists(own) else os.path.join(os.path.dirname(__file__), "prices.json")
    try:
        with open(path, "rb") as file:
            return read(file.read(), path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error


def read(data: bytes, path: str, date: str | None = None) -> Prices:
    """Return the table in a file. `date` is said of one that has none. Raises `UsageError`, with
    the place of what is wrong."""
    try:
        document: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: no JSON ({error})") from error
    try:
        top = Part(with_rows(document), path)
        rows = {row.text("tinker_id"): _price(row) for row in top.parts("models")}
        if not rows:
            top.refuse("models", "a list with a row for each model")
        return Prices(
            date=top.text_or("date", date or "an unknown date"),
            source=top.text_or("source", path),
            models=rows,
            storage_gb_month=_dollars(top, "storage_gb_month"),
            path=path,
        )
    except StoreError as error:
        raise UsageError(str(error)) from error


def with_rows(document: object) -> object:
    """The published table is a list of rows and nothing else: the same as an object."""
    return {"models": cast(object, document)} if isinstance(document, list) else document


def _price(row: Part) -> Price:
    known = {"tinker_id", "prefill", "cached_prefill", "sample", "train"}
    if not row.document.keys() & (known - {"tinker_id"}):
        row.refuse("prefill", "dollars per million tokens (as are cached_prefill, sample, train)")
    prefill, cached = _dollars(row, "prefill"), _dollars(row, "cached_prefill")
    if cached is None and prefill is not None:
        cached = prefill * CACHED_SHARE
    return Price(prefill, cached, _dollars(row, "sample"), _dollars(row, "train"))


def _dollars(row: Part, key: str) -> float | None:
    value = cast(object, row.document.get(key))
    if value is None or value == "":
        return None
    if isinstance(value, str):
        try:
            value = float(value.removeprefix("$"))
        except ValueError:
            row.refuse(key, 'dollars, such as "$1.87"')
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _LARGEST:
        row.refuse(key, 'dollars, such as "$1.87"')
    return float(value)
