"""Counts the tokens that runs without a meter recorded as metrics, for `sweeper costs` and for
budgets."""

from collections.abc import Iterable, Mapping

from sweeper.metrics.attempt_rows import Tail
from sweeper.metrics.rows import Row, as_float
from sweeper.metrics.sources import ListedOnce
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.usage import NO_USAGE, Counts, Usage

SOURCES: Mapping[str, tuple[str, ...]] = {
    "train": ("tokens/trained", "num_tokens", "train/num_tokens", "tokens"),
    "sample": ("tokens/sampled", "env/all/total_ac_tokens", "total_ac_tokens"),
    "prefill": ("tokens/prefill_uncached", "env/all/total_ob_tokens", "total_ob_tokens"),
}
"""Keys of metrics that are numbers of tokens, by kind. If a run has several keys of a kind, only
the first in this order counts."""

ALSO: Mapping[str, str] = {"tokens/prefill_uncached": "tokens/prefill_cached"}
"""The key of the cached tokens, by the key of the tokens that were not cached. The two are counted
separately, because cached prompts are cheaper."""

_MOST = 1e15
"""A count of this many tokens or more in one row is considered wrong, and is ignored."""
_MOST_BYTES = 1_000_000
_KEYS = (*(key for keys in SOURCES.values() for key in keys), *ALSO.values())


class RecordedTokens:
    """The sum of the tokens that rows record."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}

    def add(self, rows: Iterable[Row]) -> None:
        """Add the tokens in `rows`."""
        for row in rows:
            for key in _KEYS:
                if key in row:
                    value = as_float(row[key]) or 0.0
                    counts = value if 0 <= value < _MOST else 0.0  # NaN is not counted
                    self._sums[key] = self._sums.get(key, 0.0) + counts

    def usage(self, config: Mapping[str, object]) -> Usage:
        """Return the sum of the tokens added until now as the `Usage` of the model that `config`
        names; `NO_USAGE` if there are no tokens."""
        counts: dict[str, int] = {}
        for kind, names in SOURCES.items():
            key = next((name for name in names if name in self._sums), None)
            if key is None:
                continue
            counts[kind] = round(self._sums[key])
            if key in ALSO:
                counts["cached"] = round(self._sums.get(ALSO[key], 0.0))
        totals = Counts(**counts)
        model = config.get("model_name")
        name = model if isinstance(model, str) else "unknown"
        return Usage({name: totals}) if totals.tokens else NO_USAGE


class AttemptRecords:
    """A follower of the recorded tokens of one attempt. Rows copied from the previous attempt do
    not count."""

    def __init__(
        self, folder: SweepFolder, run: str, attempt: int, listed: ListedOnce | None = None
    ) -> None:
        self._tail = Tail(folder, run, attempt, listed)
        self._tokens = RecordedTokens()

    def read(self, config: Mapping[str, object], *, ended: bool = False) -> Usage:
        """Return the tokens recorded until now. Reads only new rows. Raises `StoreError`."""
        more = True
        while more:
            fresh = self._tail.read(_MOST_BYTES, ended=ended)
            if fresh.again:
                self._tokens = RecordedTokens()
            self._tokens.add(row for row, copied in fresh.rows if not copied)
            more = fresh.more
        return self._tokens.usage(config)
