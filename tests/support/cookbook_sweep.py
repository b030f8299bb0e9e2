"""Writes tinker-cookbook's own sweep of 35 models as run folders, for looking at its report.

    python tests/support/cookbook_sweep.py OUT [--cookbook CHECKOUT] [--csv FILE]

writes `OUT/sft-sweep` from the numbers of `cookbook_sft_sweep.csv` in this folder, or, with a
checkout of tinker-cookbook, from its `recipes/chat_sl/results/sft_sweep.md` (`--csv` writes these
as a table). The tables of that page omit diverged runs. Its notes name their rates and ranks: each
combination of these that is in no table is a cell that diverged. A learning rate and a rank that
occur twice are two runs of one cell.
"""

import argparse
import csv
import io
import itertools
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1]))
from support import written

CSV = Path(__file__).with_name("cookbook_sft_sweep.csv")
RESULTS = "tinker_cookbook/recipes/chat_sl/results/sft_sweep.md"
HEAD = """\
# Test NLL of LoRA fine-tuning on tulu3, from tinker-cookbook's recipes/chat_sl/results/sft_sweep.md
# (github.com/thinking-machines-lab/tinker-cookbook, Apache License 2.0, Thinking Machines Lab).
# An empty test_nll: the run diverged.
"""
_ROW = re.compile(r"^\| (\S+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \| (\d+) \|$", re.MULTILINE)
_DIVERGED = re.compile(r"\d+ run\(s\) diverged .*? at lr=\{(.*?)\} with rank=\{(.*?)\}")


class Row(NamedTuple):
    """A run; `test_nll` is None if it diverged."""

    model: str
    rate: float
    rank: int
    test_nll: float | None
    train_nll: float | None
    minutes: int | None


def parse(text: str) -> list[Row]:
    """Parse the runs of the results page."""
    rows: list[Row] = []
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        model = section.split("\n", 1)[0]
        cells = [
            Row(model, float(rate), int(rank), float(test), float(train), int(minutes))
            for rate, rank, test, train, minutes in _ROW.findall(section)
        ]
        there = {(row.rate, row.rank) for row in cells}
        note = _DIVERGED.search(section)
        if note is not None:
            rates, ranks = (part.split(",") for part in note.groups())
            for rate, rank in itertools.product(map(float, rates), map(int, ranks)):
                if (rate, rank) not in there:
                    cells.append(Row(model, rate, rank, None, None, None))
        rows += cells
    return rows


def read() -> list[Row]:
    """Read the runs of the table in this folder."""
    lines = [line for line in CSV.read_text().splitlines() if not line.startswith("#")]
    return [
        Row(
            row["model"],
            float(row["learning_rate"]),
            int(row["lora_rank"]),
            float(row["test_nll"]) if row["test_nll"] else None,
            float(row["train_nll"]) if row["train_nll"] else None,
            int(row["minutes"]) if row["minutes"] else None,
        )
        for row in csv.DictReader(lines)
    ]


def table(rows: list[Row]) -> str:
    """Return the runs as the text of the table in this folder."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["model", "learning_rate", "lora_rank", "test_nll", "train_nll", "minutes"])
    for row in rows:
        writer.writerow(["" if value is None else value for value in row])
    return HEAD + out.getvalue()


def write(root: Path, rows: list[Row], name: str = "sft-sweep") -> None:
    """Write the sweep into `root`."""
    axes = {
        "model_name": list(dict.fromkeys(row.model for row in rows)),
        "learning_rate": sorted({row.rate for row in rows}),
        "lora_rank": sorted({row.rank for row in rows}),
    }
    sweep = written.Written(root, name, axes)
    for settings, runs in _cells(rows):
        for seed, row in enumerate(runs):
            wall = 60.0 * (row.minutes or 0)
            sweep.run(settings, seed, _metrics(row), wall_s=wall)
    sweep.save()


def _cells(rows: list[Row]) -> Iterator[tuple[dict[str, object], list[Row]]]:
    cells: dict[tuple[str, float, int], list[Row]] = {}
    for row in rows:
        cells.setdefault((row.model, row.rate, row.rank), []).append(row)
    for (model, rate, rank), runs in cells.items():
        yield {"model_name": model, "learning_rate": rate, "lora_rank": rank}, runs


def _metrics(row: Row) -> list[dict[str, float]]:
    test = math.nan if row.test_nll is None else row.test_nll
    train = math.nan if row.train_nll is None else row.train_nll
    return [{"step": 780, "test/nll": test, "train/nll": train}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--cookbook", type=Path, help="a checkout of tinker-cookbook")
    parser.add_argument("--csv", type=Path, help="where to keep its numbers as a table")
    given = parser.parse_args()
    rows = read() if given.cookbook is None else parse((given.cookbook / RESULTS).read_text())
    if given.csv is not None:
        given.csv.write_text(table(rows))
    write(given.out, rows)


if __name__ == "__main__":
    main()
