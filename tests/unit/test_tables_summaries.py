"""Rollout summaries read quickly: the same rows as reading record by record."""

import json
import math
import random
from typing import Any

import pytest

from sweeper.metrics.rollout_files import LABELS, SummaryFile, flat
from sweeper.metrics.rows import parse
from sweeper.metrics.tables.columns import Columns, present
from sweeper.metrics.tables.rollouts import read_summaries

AWKWARD: list[Any] = [None, True, "text", [], {}, 2**60 + 1, 10**400, -1.5, math.nan, math.inf]


def record(rng: random.Random, turns: int = 1, awkward: float = 0.0) -> dict[str, Any]:
    """Return a summary as recipes write it, with a share of `awkward` values."""

    def value(usual: Any) -> Any:
        return rng.choice(AWKWARD) if rng.random() < awkward else usual

    def metrics(*names: str) -> Any:
        made = {name: value(rng.random()) for name in names if rng.random() < 0.8}
        return value({key: made[key] for key in rng.sample(sorted(made), len(made))})

    steps = [
        {
            "ob_len": value(rng.randrange(99)),
            "ac_len": value(rng.randrange(99)),
            "metrics": metrics("ok", "format", "both", "turns", "ä"),
            "logs": {"response": "{four}\n"},
        }
        for _ in range(turns)
    ]
    made = {
        **{"iteration": value(3), "group_idx": value(1), "traj_idx": value(rng.randrange(8))},
        **{"total_reward": value(rng.random()), "final_reward": value(0), "steps": value(steps)},
        **{"split": value(rng.choice(("train", "test"))), "tags": value([rng.choice("xyz")])},
        "sampling_client_step": rng.choice((None, 3)),
        "trajectory_metrics": metrics("both", "own", "run", 'a"b', "metrics.run"),
    }
    return {key: item for key, item in made.items() if rng.random() < 0.97}


def by_record(files: list[tuple[SummaryFile, bytes]]) -> tuple[list[dict[str, str]], list[int]]:
    """Return rows as `flat` makes them, with texts, and the number of unreadable lines per file."""
    rows: list[dict[str, str]] = []
    bad: list[int] = []
    for file, data in files:
        parsed = parse(data)
        bad.append(parsed.malformed + parsed.torn)
        for summary in parsed.rows:
            row = flat(summary, file)
            tags: Any = summary.get("tags") if isinstance(summary.get("tags"), list) else []
            texts = (
                file.name,
                str(summary.get("split", file.name)),
                ",".join(map(str, tags or [])),
            )
            shown = {key: as_text(value) for key, value in row.items()}
            rows.append(shown | dict(zip(LABELS, texts, strict=True)))
    return rows, bad


def as_text(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**53:
        return repr(float(value))
    return repr(value)


def as_rows(columns: Columns, texts: list[tuple[str, ...]]) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = [{} for _ in range(columns.rows)]
    for key, column in columns.values.items():
        for place in present(column).nonzero()[0].tolist():
            if key == LABELS[0]:
                rows[place] |= zip(LABELS, texts[int(column[place])], strict=True)
            else:
                rows[place][key] = repr(float(column[place]))
    for key, odd in columns.odd.items():
        for place, value in odd.items():
            assert key not in rows[place]
            rows[place][key] = repr(value)
    return rows


@pytest.mark.parametrize("awkward", [0.0, 0.01, 0.2])
@pytest.mark.parametrize("turns", [(1,), (0, 1, 3), (2,)])
def test_quick_summaries_equal_those_read_record_by_record(awkward: float, turns: tuple[int, ...]):
    rng = random.Random(f"{awkward} {turns}")
    for _ in range(12):
        files: list[tuple[SummaryFile, bytes]] = []
        for iteration in range(rng.randrange(1, 4)):
            lines = [json.dumps(record(rng, rng.choice(turns), awkward)) for _ in range(20)]
            if awkward and rng.random() < 0.3:
                lines.insert(rng.randrange(20), rng.choice(("nonsense", "", "[1]", "{}", "\xff")))
            data = "\n".join(lines).encode("latin-1") + rng.choice((b"\n", b"\n", b"", b"{torn"))
            name = rng.choice(("train", "eval"))
            files.append((SummaryFile("x", iteration, name, 2), rng.choice((data, data, b""))))
        quick = read_summaries(files)
        rows, bad = by_record(files)
        assert as_rows(quick.columns, quick.texts) == rows
        assert (sum(quick.rows), quick.malformed) == (len(rows), bad)
        assert quick.rows == [len(parse(data).rows) for _, data in files]
