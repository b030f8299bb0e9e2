"""Generation with a key/value cache: n sequences of one prompt at a time."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sweeper.engine.arrays import Array
from sweeper.engine.errors import RequestError
from sweeper.engine.net import (
    Block,
    Effective,
    Shape,
    forward,
    log_softmax,
    logits,
    rms,
    rotate,
    swiglu,
)

__all__ = ["Params", "Prompt", "Sampled", "read", "sample"]


class Params(NamedTuple):
    """How to draw: the SDK's `SamplingParams`, resolved for a model."""

    max_tokens: int
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    seed: int | None = None
    stop_tokens: frozenset[int] = frozenset()
    stop_text: Callable[[list[int]], bool] | None = None


class Sampled(NamedTuple):
    """One sequence: its tokens, the logprob of each, and whether a stop ended it."""

    tokens: list[int]
    logprobs: list[float]
    stopped: bool


class Prompt(NamedTuple):
    """A prompt that has been read: logits of every position, keys and values of every layer."""

    length: int
    logits: Array  # T x V
    cache: list[tuple[Array, Array]]  # 1 x KV x T x h each


def read(net: Effective, shape: Shape, turns: tuple[Array, Array], tokens: list[int]) -> Prompt:
    """Run the prompt through the network. RequestError if it is empty, too long or not tokens."""
    if not tokens:
        raise RequestError("the prompt is empty")
    if len(tokens) > shape.context:
        raise RequestError(f"the prompt has {len(tokens)} tokens; the context is {shape.context}")
    if min(tokens) < 0 or max(tokens) >= shape.vocab:
        raise RequestError(f"the prompt has a token outside the vocabulary of {shape.vocab}")
    x, tapes = forward(net, shape, np.array([tokens]), turns)
    return Prompt(len(tokens), logits(net, shape, x), [(tape.k, tape.v) for tape in tapes])


def _cached_attention(q: Array, keys: Array, values: Array) -> Array:
    """One position's queries (n x KV x G x h) over the cached ones (n x KV x T x h)."""
    scores = q @ keys.swapaxes(-1, -2)
    scores *= scores.dtype.type(1.0 / np.sqrt(q.shape[-1]))
    scores -= scores.max(-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(-1, keepdims=True)
    return scores @ values


def _next_layer(
    x: Array,
    block: Block,
    shape: Shape,
    cache: tuple[Array, Array],
    at: int,
    turn: tuple[Array, Array],
) -> Array:
    n, both = len(x), shape.heads + shape.kv_heads
    h1, _ = rms(x, block.attention_norm, shape.eps)
    qkv = (h1 @ block.qkv.T).reshape(n, both + shape.kv_heads, shape.head)
    qk = qkv[:, :both]
    if block.qk_norm is not None:
        qk, _ = rms(qk, block.qk_norm, shape.eps)
    turned = rotate(qk, *turn)
    keys, values = cache
    keys[:, :, at] = turned[:, shape.heads :]
    values[:, :, at] = qkv[:, both:]
    q = turned[:, : shape.heads].reshape(n, shape.kv_heads, -1, shape.head)
    mixed = _cached_attention(q, keys[:, :, : at + 1], values[:, :, : at + 1])
    x2 = x + mixed.reshape(n, -1) @ block.out.T
    h2, _ = rms(x2, block.mlp_norm, shape.eps)
    return x2 + swiglu(h2 @ block.gate_up.T)[0] @ block.down.T


def _next_logits(
    net: Effective,
    shape: Shape,
    turns: tuple[Array, Array],
    tokens: npt.NDArray[Any],
    caches: list[tuple[Array, Array]],
    at: int,
) -> Array:
    x, turn = net.embed[tokens], (turns[0][at], turns[1][at])
    for block, cache in zip(net.blocks, caches, strict=True):
        x = _next_layer(x, block, shape, cache, at, turn)
    return logits(net, shape, x)


def _truncated(probabilities: Array, params: Params) -> Array:
    """Zero what top-k and top-p leave out. Ties at the border of top-k all stay."""
    if 0 < params.top_k < probabilities.shape[-1]:
        border = np.partition(probabilities, -params.top_k, -1)[:, -params.top_k, None]
        probabilities = np.where(probabilities < border, 0.0, probabilities)
    if params.top_p < 1:
        total = probabilities.sum(-1, keepdims=True)
        order = np.argsort(-probabilities, -1, kind="stable")
        ranked = np.take_along_axis(probabilities, order, -1)
        before = np.cumsum(ranked, -1) - ranked
        kept = np.where(before < params.top_p * total, ranked, 0.0)
        kept[:, 0] = ranked[:, 0]  # the likeliest stays, whatever top_p is
        probabilities = np.zeros_like(probabilities)
        np.put_along_axis(probabilities, order, kept, -1)
    return probabilities


def _draw(
    scores: Array, params: Params, uniform: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[Any], Array]:
    """A token for each row of n x V logits, and its logprob under the temperature.

    Inverse transform sampling, with one uniform number a row, so that what one row draws does not
    depend on the others.
    """
    if not np.isfinite(scores).all():
        raise RequestError("the model's logits are not finite: its training has diverged")
    if params.temperature <= 0:
        tokens = scores.argmax(-1)
        logprobs = log_softmax(scores)
    else:
        logprobs = log_softmax(scores / scores.dtype.type(params.temperature))
        probabilities = _truncated(np.exp(logprobs.astype(np.float64)), params)
        cumulative = np.cumsum(probabilities, -1)
        tokens = (cumulative <= uniform[:, None] * cumulative[:, -1:]).sum(-1)
        # rounding at the upper end must not pick a token of probability 0
        last = probabilities.shape[-1] - 1 - (probabilities[:, ::-1] > 0).argmax(-1)
        tokens = np.minimum(tokens, last)
    return tokens, np.take_along_axis(logprobs, tokens[:, None], -1)[:, 0]


def _room(prompt: Prompt, n: int, steps: int) -> list[tuple[Array, Array]]:
    """The prompt's cache for n sequences, with room for `steps` more positions."""

    def grown(part: Array) -> Array:
        _, heads, length, size = part.shape
        out = np.empty((n, heads, length + steps, size), part.dtype)
        out[:, :, :length] = part
        return out

    return [(grown(keys), grown(values)) for keys, values in prompt.cache]


def sample(
    net: Effective, shape: Shape, turns: tuple[Array, Array], prompt: Prompt, n: int, params: Params
) -> list[Sampled]:
    """Draw n continuations of a prompt.

    The logprobs are those of the tempered distribution before top-k and top-p cut it; at
    temperature 1 they equal what training computes for the same tokens.
    """
    seed = None if params.seed is None else params.seed % 2**64
    rng = np.random.Generator(np.random.PCG64(seed))
    steps = min(params.max_tokens, shape.context - prompt.length)
    if steps < 1:
        raise RequestError(f"a prompt of {prompt.length} tokens leaves no room in {shape.context}")
    out = [Sampled([], [], stopped=False) for _ in range(n)]
    alive, scores = np.arange(n), prompt.logits[-1:].repeat(n, 0)
    caches = _room(prompt, n, steps) if steps > 1 else []
    for step in range(steps):
        # numbers are drawn for every sequence, ended or not: each has its own stream
        tokens, logprobs = _draw(scores, params, rng.random(n)[alive])
        going = np.ones(len(alive), bool)
        for row, i in enumerate(alive):
            sequence, token = out[i], int(tokens[row])
            sequence.tokens.append(token)
            sequence.logprobs.append(float(logprobs[row]))
            text = params.stop_text
            if token in params.stop_tokens or (text is not None and text(sequence.tokens)):
                out[i] = sequence._replace(stopped=True)
                going[row] = False
        if step == steps - 1 or not going.any():
            break
        if not going.all():
            alive, tokens = alive[going], tokens[going]
            caches = [(keys[going], values[going]) for keys, values in caches]
        scores = _next_logits(net, shape, turns, tokens, caches, prompt.length + step)
    return out
