"""Tokens of programs without a meter, from the metrics that they record."""

import json
from pathlib import Path

import pytest

from sweeper.metrics.recorded_usage import AttemptRecords, RecordedTokens
from sweeper.store.local import LocalStore
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.usage import NO_USAGE, Counts, Usage


def rows(*steps: int) -> bytes:
    lines = [json.dumps({"step": step, "num_tokens": 100}) + "\n" for step in steps]
    return "".join(lines).encode()


def test_an_attempt_counts_its_new_rows_and_not_those_it_got_from_the_one_before(
    tmp_path: Path, no_sync: None
) -> None:
    store = LocalStore(str(tmp_path))
    folder = SweepFolder(store, "s")
    first, second = (f"{folder.log_path('r', attempt)}/metrics.jsonl" for attempt in (1, 2))
    store.append(first, rows(0, 1, 2))
    records = AttemptRecords(folder, "r", 1)
    assert records.read({"model_name": "m"}) == Usage({"m": Counts(train=300)})
    store.append(first, rows(3))
    assert records.read({"model_name": "m"}) == Usage({"m": Counts(train=400)})
    store.append(second, rows(0, 1, 5))
    assert AttemptRecords(folder, "r", 2).read({}) == Usage({"unknown": Counts(train=100)})
    assert AttemptRecords(folder, "r", 3).read({}) == NO_USAGE


@pytest.mark.parametrize(
    ("row", "counts"),
    [
        ({"tokens/trained": 5, "num_tokens": 7}, Counts(train=5)),
        ({"env/all/total_ac_tokens": 3, "total_ob_tokens": 4}, Counts(sample=3, prefill=4)),
        (
            {"tokens/prefill_uncached": 4, "tokens/prefill_cached": 2, "tokens/sampled": 1},
            Counts(prefill=4, cached=2, sample=1),
        ),
        ({"num_tokens": float("nan"), "tokens/sampled": 1}, Counts(sample=1)),
    ],
)
def test_the_first_key_of_a_kind_counts(row: dict[str, object], counts: Counts) -> None:
    tokens = RecordedTokens()
    tokens.add([row, row])
    assert tokens.usage({"model_name": "m"}).counts == counts.plus(counts)
