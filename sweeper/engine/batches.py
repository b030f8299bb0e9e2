"""Turns a client's data into padded arrays: checks the data, sorts them by length, and cuts them
into microbatches."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from sweeper.engine.array_types import Arrays, Ints, Numbers
from sweeper.engine.errors import RequestError
from sweeper.engine.losses import Loss
from sweeper.engine.net import Shape

ROWS = 1024  # positions in a microbatch: about as many as fit in a core's cache (tests/bench)

# The protocol has these inputs, but the engine's losses do not use them, so they are rejected.
_IGNORED = ("clip_low_threshold", "clip_high_threshold", "sequence_ratio_mask")


class Span(NamedTuple):
    """The source of some consecutive target tokens: a slice of a sequence that a sampler drew. The
    slice is from the sampled tokens, or from the prompt if `sampled` is False."""

    sequence: str
    offset: int
    length: int
    sampled: bool


class Datum(NamedTuple):
    """A training sequence of T tokens. `inputs` maps names to arrays: the target tokens (T or T x
    K), and the other inputs of the loss, in the same shape. `spans` lists the sources of the target
    tokens, in order; empty if the client sent none."""

    tokens: Ints
    inputs: dict[str, Numbers]
    spans: tuple[Span, ...] = ()


class Microbatch(NamedTuple):
    """A batch of B sequences, padded to T tokens. `members` are the sequences' indices in the
    client's data, `ids` are B x T token ids, and `rows` are the flat indices of the M positions
    that are not padding. `targets` and each array of `inputs` are M x K."""

    members: list[int]
    ids: Ints
    rows: Ints
    targets: Ints
    inputs: Arrays


def _in_vocabulary(tokens: Numbers, shape: Shape) -> bool:
    return bool(tokens.size == 0 or (tokens.min() >= 0 and tokens.max() < shape.vocab))


def check(datum: Datum, number: int, loss: Loss, shape: Shape) -> None:
    """Raise RequestError if a datum is invalid. The message names the datum by its `number`."""
    n, where = len(datum.tokens), f"data[{number}]"
    if n == 0:
        raise RequestError(f"{where}: model_input is empty")
    if n > shape.context:
        raise RequestError(f"{where} has {n} tokens, but the model's context is {shape.context}")
    if "target_tokens" not in datum.inputs:
        raise RequestError(f"{where}: loss_fn_inputs['target_tokens'] is missing")
    targets = datum.inputs["target_tokens"]
    if targets.shape[:1] != (n,) or targets.ndim > 2 or targets.dtype.kind not in "iu":
        raise RequestError(
            f"{where}: target_tokens is {targets.dtype} of shape {targets.shape}; it must be "
            f"integers of shape ({n},) or ({n}, K), since model_input has {n} tokens"
        )
    if not (_in_vocabulary(datum.tokens, shape) and _in_vocabulary(targets, shape)):
        raise RequestError(f"{where}: a token is outside the vocabulary of {shape.vocab} tokens")
    for name in _IGNORED:
        if name in datum.inputs:
            raise RequestError(f"{where}: loss_fn_inputs[{name!r}] is not supported; "
                               "set thresholds in loss_fn_config")  # fmt: skip
    for name in loss.needs:
        if name not in datum.inputs:
            raise RequestError(f"{where}: this loss needs loss_fn_inputs[{name!r}]")
    for name in ("weights", *loss.needs):
        input_shape = datum.inputs.get(name, targets).shape
        if input_shape != targets.shape:
            raise RequestError(
                f"{where}: {name} has shape {input_shape}, but target_tokens has {targets.shape}"
            )


def _columns(datum: Datum, name: str) -> Numbers:
    values = datum.inputs[name]
    return values.reshape(len(values), -1)


def _build(data: Sequence[Datum], index: list[int], loss: Loss) -> Microbatch:
    chosen = [data[i] for i in index]
    length = max(len(datum.tokens) for datum in chosen)
    width = max(_columns(datum, "target_tokens").shape[1] for datum in chosen)
    ids = np.zeros((len(chosen), length), np.int64)
    rows = list[Ints]()
    total = sum(len(datum.tokens) for datum in chosen)
    targets = np.zeros((total, width), np.int64)
    names = ("weights", *loss.needs)
    inputs: Arrays = {name: np.zeros((total, width), np.float32) for name in names}
    start = 0
    for row, datum in enumerate(chosen):
        n = len(datum.tokens)
        ids[row, :n] = datum.tokens
        rows.append(np.arange(n) + row * length)
        columns = _columns(datum, "target_tokens")
        place = slice(start, start + n), slice(columns.shape[1])
        targets[place] = columns
        for name in names:
            # Without weights, every token has weight 1.
            has_input = name in datum.inputs
            inputs[name][place] = _columns(datum, name) if has_input else 1.0
        start += n
    return Microbatch(index, ids, np.concatenate(rows), targets, inputs)


def microbatches(data: Sequence[Datum], loss: Loss) -> Iterator[Microbatch]:
    """Yield the data in microbatches of sequences of similar length, which limits padding. A
    microbatch of more than one sequence has at most `ROWS` positions. The same data give the same
    microbatches."""
    order = sorted(range(len(data)), key=lambda i: len(data[i].tokens))
    pending = list[int]()
    for i in order:
        if pending and (len(pending) + 1) * len(data[i].tokens) > ROWS:
            yield _build(data, pending, loss)
            pending = []
        pending.append(i)
    if pending:
        yield _build(data, pending, loss)
