"""Local datasets (JSON Lines, CSV, Parquet) below the grids folder."""

import csv
import itertools
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence

from sweeper.agents.grids import find_below, names_below
from sweeper.agents.hub import Rows
from sweeper.common.atomic import atomic_create
from sweeper.common.json_values import is_table
from sweeper.errors import UsageError

ENDINGS = (".jsonl", ".csv", ".parquet")
_EXAMINED = 1000
"""The number of rows that determine the features."""


def search_local(folder: str, text: str) -> list[dict[str, object]]:
    """Return the name and the size in bytes of each data file whose path contains `text`. Case is
    ignored."""
    names = [name for name in names_below(folder, ENDINGS) if text.lower() in name.lower()]
    paths = {name: os.path.join(folder, name) for name in names}
    return [{"name": n, "bytes": os.path.getsize(p)} for n, p in paths.items() if os.path.isfile(p)]


def features(folder: str, name: str) -> dict[str, object]:
    """Return the number of rows of a file. Return also, for each key, how often each type of value
    occurs in the first `_EXAMINED` rows. Raises `UsageError`."""
    types: dict[str, Counter[str]] = {}
    total = 0
    for total, row in enumerate(_rows(folder, name), 1):
        for key, value in row.items() if total <= _EXAMINED else ():
            types.setdefault(key, Counter())[type(value).__name__] += 1
    return {"features": {key: dict(counts) for key, counts in types.items()}, "rows": total}


def read_local(folder: str, name: str, offset: int, count: int) -> Rows:
    """Return up to `count` rows of a file, beginning at row `offset`. Raises `UsageError`."""
    rows = _rows(folder, name)
    before = sum(1 for _ in itertools.islice(rows, offset))
    chosen = list(itertools.islice(rows, count))
    return Rows(chosen, before + len(chosen) + sum(1 for _ in rows))


def _rows(folder: str, name: str) -> Iterator[dict[str, object]]:
    path = find_below(folder, name, ENDINGS, "data file")
    try:
        if path.endswith(".parquet"):
            from pyarrow import parquet  # pyright: ignore[reportMissingTypeStubs]

            for batch in parquet.ParquetFile(path).iter_batches(_EXAMINED):  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
                yield from batch.to_pylist()  # pyright: ignore[reportUnknownMemberType]
            return
        with open(path, encoding="utf-8", newline="") as file:
            if path.endswith(".csv"):
                for record in csv.DictReader(file):
                    yield {str(key): value for key, value in record.items()}
                return
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _object(line, f"{name}:{number}")
    except (OSError, UnicodeDecodeError, csv.Error, ValueError) as error:
        raise UsageError(f"{name}: cannot be read: {error}") from error


def _object(line: str, place: str) -> dict[str, object]:
    try:
        row: object = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    if not is_table(row):
        raise UsageError(f"{place} is not a JSON object: write one per line")
    return row


def save(folder: str, name: str, rows: Sequence[dict[str, object]]) -> str:
    """Write rows as JSON Lines to a new file below the folder. Return its path. Raises
    `UsageError`."""
    top = os.path.realpath(folder)
    path = os.path.realpath(os.path.join(top, name.replace("\0", "?")))
    if not path.startswith(top + os.sep) or not name.endswith(".jsonl"):
        raise UsageError(f"{name[:200]!r} is not the path of a .jsonl file below the grids folder")
    text = "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        atomic_create(path, text.encode("utf-8", "replace"), mode=0o644)
    except FileExistsError:
        raise UsageError(f"{name} exists already: choose another name") from None
    except OSError as error:
        raise UsageError(f"cannot write {name}: {error.strerror}") from error
    return path
