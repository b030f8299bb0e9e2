"""Reads the file that tinker-cookbook writes about an evaluation in its EvalStore: the
checkpoint that was evaluated, and its scores."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from sweeper.common.json_values import list_of, table_of
from sweeper.metrics.rows import as_float

BASE = "base"
"""The name of the checkpoint if the evaluated model was not trained."""
_STEP = r"(?:^|step|batch|[-_/])(\d+)$"


class Facts(NamedTuple):
    """The facts about an evaluation in an EvalStore, from its `metadata.json`. `config` includes
    the model and the checkpoint."""

    model: str
    checkpoint: str
    path: str | None
    benchmarks: tuple[str, ...]
    time: str
    scores: Mapping[str, float]
    config: Mapping[str, object]


def facts_of(document: Mapping[str, object]) -> Facts | None:
    """Return the facts about an evaluation; None if another program wrote the document."""
    if "benchmarks" not in document:
        return None
    path = document.get("checkpoint_path")
    checkpoint = str(document.get("checkpoint_name") or path or BASE)
    named = {"model_name": document.get("model_name"), "checkpoint_name": checkpoint}
    scores = {suite: as_float(score) for suite, score in table_of(document.get("scores")).items()}
    return Facts(
        model=str(document.get("model_name") or ""),
        checkpoint=checkpoint,
        path=path if isinstance(path, str) and path else None,
        benchmarks=tuple(map(str, list_of(document.get("benchmarks")))),
        time=str(document.get("timestamp") or ""),
        scores={suite: score for suite, score in scores.items() if score is not None},
        config=named | table_of(document.get("config")),
    )


def step_of_name(checkpoint: object) -> int | None:
    """Return the step in the name of a checkpoint, such as `000020` or `step20`; None if the
    name has no step."""
    match = re.search(_STEP, checkpoint) if isinstance(checkpoint, str) else None
    return None if match is None else int(match[1])
