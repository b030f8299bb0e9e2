"""Summarizes the answers of an evaluation: mean scores, their standard errors, and pass@k."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from . import suites
from .suites import Item

Done = Sequence[tuple[Item, Sequence[Mapping[str, Any]]]]
"""Items with the rows of their answers."""


def measures(done: Done) -> dict[str, float]:
    """Return the metrics of all items together, and of each suite. The scores leave out items
    without a grader."""
    graded = _graded(done)
    measured: dict[str, float] = {"test/num_items": len(done)}
    if graded:
        overall = scores_of([rows for _, rows in graded])
        measured |= {"test/accuracy": overall["score"]}
        if "stderr" in overall:
            measured["test/stderr"] = overall["stderr"]
        measured |= failures(done)
    answers = {item.key: rows for item, rows in graded}
    for suite, items in suites.by_suite(item for item, _ in graded).items():
        measured |= of_suite(suite, [(item, answers[item.key]) for item in items])
    return measured


def failures(done: Done) -> dict[str, float]:
    """Return the metrics of answers that a grader could not judge."""
    rows = [row for _, answers in _graded(done) for row in answers]
    errors = sum(row.get("error") is not None for row in rows)
    return {"test/grader_errors": errors, "test/frac_grader_failed": errors / max(len(rows), 1)}


def of_suite(name: str, done: Done) -> dict[str, float]:
    """Return the metrics of a suite's items; empty if no item is graded."""
    graded = _graded(done)
    scores = scores_of([rows for _, rows in graded]) if graded else {}
    return {f"eval/{name}/{key}": value for key, value in scores.items()}


def _graded(done: Done) -> Done:
    return [(item, rows) for item, rows in done if item.grader is not None]


def scores_of(items: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, float]:
    """Return the mean score of items, its standard error (left out for one item), and pass@k for
    powers of two. An item's score is the mean score of its samples. A sample is right if its score
    is at least 1."""
    means = [sum(row["score"] for row in rows) / len(rows) for rows in items]
    count, mean = len(means), sum(means) / len(means)
    spread = sum((value - mean) ** 2 for value in means)
    samples = min(len(rows) for rows in items)
    scores = {"score": mean, "num_items": count}
    if count > 1:
        scores["stderr"] = math.sqrt(spread / (count - 1) / count)
    for k in (2**power for power in range(samples.bit_length()) if 2**power <= samples):
        passed = [pass_at(k, len(rows), sum(r["score"] >= 1 for r in rows)) for rows in items]
        scores[f"pass@{k}"] = sum(passed) / count
    return scores


def pass_at(k: int, samples: int, right: int) -> float:
    """Return an unbiased estimate of pass@k: the probability that at least one of `k` samples,
    drawn without replacement from all `samples`, is right (Chen et al. 2021, arXiv:2107.03374).
    The simpler 1 - (1 - right/samples)^k would be biased."""
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)
