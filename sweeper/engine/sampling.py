"""Generation with a key/value cache. A call draws n sequences that continue one prompt."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sweeper.engine.array_types import Floats, Ints
from sweeper.engine.errors import RequestError
from sweeper.engine.net import (
    Block,
    Network,
    Rotation,
    Shape,
    attention_weights,
    causal,
    log_softmax,
    logits,
    rms,
    rotate,
    swiglu,
)
from sweeper.engine.prefixes import BLOCK, Prefixes

ROOM = 256  # a cache grows by this many positions
_UNSEEN = causal(BLOCK, np.float32)

Cache = tuple[Floats, Floats]
"""The keys and values of a layer."""


class Params(NamedTuple):
    """The parameters of sampling, made from the SDK's `SamplingParams` and a model's defaults."""

    max_tokens: int
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    seed: int | None = None
    stop_tokens: frozenset[int] = frozenset()
    stop_text: Callable[[list[int]], bool] | None = None
    topk: int = 0  # the number of likeliest tokens to report at each position


class Sampled(NamedTuple):
    """One sampled sequence: its tokens, the logprob of each token, and whether a stop token or stop
    string ended the sequence. `topk` has the ids and logprobs of the likeliest tokens at each
    position; empty if they were not requested."""

    tokens: list[int]
    logprobs: list[float]
    stopped: bool
    topk: list[tuple[Ints, Floats]]


EMPTY = 0, -99999.0
"""The token id and logprob that pad a list of fewer than k tokens in the protocol."""


class Prompt(NamedTuple):
    """A prompt that has run through the network: its attention keys and values, and the output
    at its last positions."""

    length: int
    x: Floats  # (T - first) x d: the last layer's output, before the final norm
    cache: list[Cache]  # for each layer: KV x T x h each
    reused: int = 0  # how many positions came from the cache of prompts

    @property
    def first(self) -> int:
        """The position in the prompt that the first row of `x` belongs to."""
        return self.length - len(self.x)


def check(shape: Shape, tokens: list[int]) -> None:
    """Raise RequestError if a prompt is empty, is too long, or has invalid tokens."""
    if not tokens:
        raise RequestError("the prompt is empty")
    if len(tokens) > shape.context:
        raise RequestError(
            f"the prompt has {len(tokens)} tokens; the context has room for {shape.context}"
        )
    if min(tokens) < 0 or max(tokens) >= shape.vocab:
        raise RequestError(f"the prompt has a token outside the vocabulary of {shape.vocab} tokens")


def read(
    network: Network,
    tokens: list[int],
    *,
    first: int | None = None,
    prefixes: Prefixes | None = None,
    owner: int = 0,
) -> Prompt:
    """Run a prompt through the network. Reuse the blocks of tokens in the cache `prefixes` that
    belong to `owner`, the id of the network's weights.

    `first` is the first position whose output is needed; None means the last position. Raises
    RequestError if the prompt is empty, is too long, or has invalid tokens.
    """
    shape, dtype = network.shape, network.embed.dtype
    check(shape, tokens)
    length = len(tokens)
    first = length - 1 if first is None else min(first, length - 1)
    ids = np.array(tokens, np.int32)
    parts = [ids[at : at + BLOCK].tobytes() for at in range(0, length, BLOCK)]
    held = prefixes.find(owner, parts) if prefixes else []
    # A cached block has only the output of its last position.
    useful = len(parts) if first == length - 1 else first // BLOCK
    held = held[:useful]
    size = shape.kv_heads, length, shape.head
    cache = [(np.empty(size, dtype), np.empty(size, dtype)) for _ in network.blocks]
    for number, block in enumerate(held):
        place = slice(number * BLOCK, (number + 1) * BLOCK)
        for (keys, values), (kept_keys, kept_values) in zip(cache, block.cache, strict=True):
            keys[:, place], values[:, place] = kept_keys, kept_values
    outputs = [held[-1].last[None]] if len(held) == len(parts) else list[Floats]()
    above = held[-1] if held else None
    batch = [(keys[None], values[None]) for keys, values in cache]  # a batch of one
    for at in range(len(held) * BLOCK, length, BLOCK):
        block_ids = ids[at : at + BLOCK]
        x = _extend(network, block_ids, batch, at, len(block_ids))
        if at + len(x) > first:
            outputs.append(x)
        if prefixes:
            place = slice(at, at + len(x))
            copies = [(keys[:, place].copy(), values[:, place].copy()) for keys, values in cache]
            above = prefixes.add(owner, above, parts[at // BLOCK], copies, x[-1].copy())
    return Prompt(length, np.concatenate(outputs), cache, min(len(held) * BLOCK, length))


def _extend_layer(
    x: Floats, block: Block, shape: Shape, cache: Cache, at: int, rotation: Rotation
) -> Floats:
    length = len(rotation.cos)
    n, both = len(x) // length, shape.heads + shape.kv_heads
    kv, groups, end = shape.kv_heads, shape.heads // shape.kv_heads, at + length
    h1, _ = rms(x, block.attention_norm, shape.eps)
    qkv = (h1 @ block.qkv.T).reshape(n, length, both + kv, shape.head)
    qk = qkv[:, :, :both]
    if block.qk_norm is not None:
        qk, _ = rms(qk, block.qk_norm, shape.eps)
    turned = rotate(qk, *rotation)
    keys, values = cache
    keys[:, :, at:end] = turned[:, :, shape.heads :].swapaxes(1, 2)
    values[:, :, at:end] = qkv[:, :, both:].swapaxes(1, 2)
    q = turned[:, :, : shape.heads].reshape(n, length, kv, groups, shape.head)
    q = q.transpose(0, 2, 3, 1, 4).reshape(n, kv, groups * length, shape.head)
    mixed = attention_weights(q, keys[:, :, :end], _UNSEEN, groups) @ values[:, :, :end]
    mixed = mixed.reshape(n, kv, groups, length, shape.head).transpose(0, 3, 1, 2, 4)
    x2 = x + mixed.reshape(len(x), -1) @ block.out.T
    h2, _ = rms(x2, block.mlp_norm, shape.eps)
    return x2 + swiglu(h2 @ block.gate_up.T)[0] @ block.down.T


def _extend(
    network: Network, tokens: Ints, caches: list[Cache], at: int, length: int = 1
) -> Floats:
    """Run `length` more tokens of each of n sequences through the network, beginning at position
    `at`. Write their keys and values into the caches (n x key heads x positions x h). Return the
    last layer's output, with shape (n * length) x d."""
    x, rotation = network.embed[tokens], network.rotation.at(slice(at, at + length))
    for block, cache in zip(network.blocks, caches, strict=True):
        x = _extend_layer(x, block, network.shape, cache, at, rotation)
    return x


def _truncated(probabilities: Floats, params: Params) -> Floats:
    """Set the probabilities of tokens outside top-k or top-p to zero. Top-k also keeps tokens that
    are as likely as the k-th likeliest token."""
    if 0 < params.top_k < probabilities.shape[-1]:
        border = np.partition(probabilities, -params.top_k, -1)[:, -params.top_k, None]
        probabilities = np.where(probabilities < border, 0.0, probabilities)
    if params.top_p < 1:
        total = probabilities.sum(-1, keepdims=True)
        order = np.argsort(-probabilities, -1, kind="stable")
        ranked = np.take_along_axis(probabilities, order, -1)
        before = np.cumsum(ranked, -1) - ranked
        nucleus = np.where(before < params.top_p * total, ranked, 0.0)
        nucleus[:, 0] = ranked[:, 0]  # the likeliest token always stays
        probabilities = np.zeros_like(probabilities)
        np.put_along_axis(probabilities, order, nucleus, -1)
    return probabilities


def likeliest(logprobs: Floats, k: int) -> tuple[Ints, Floats]:
    """Return the ids and the logprobs of the k likeliest tokens of each row, padded with
    `EMPTY`."""
    order = np.argsort(-logprobs, -1, kind="stable")[:, :k]
    ids = np.full((len(logprobs), k), EMPTY[0], np.int32)
    values = np.full((len(logprobs), k), EMPTY[1], np.float32)
    ids[:, : order.shape[1]] = order
    values[:, : order.shape[1]] = np.take_along_axis(logprobs, order, -1)
    return ids, values


def _draw(
    scores: Floats, params: Params, uniform: Floats
) -> tuple[Ints, Floats, tuple[Ints, Floats] | None]:
    """Draw a token for each row of `scores` (n x V logits). `uniform` has one random number per
    row. Return the tokens, their logprobs, and the ids and logprobs of the likeliest tokens (None
    if not requested). At temperature 0, the logprobs are those at temperature 1."""
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
        # Rounding at the upper end must not select a token of probability 0.
        last = probabilities.shape[-1] - 1 - (probabilities[:, ::-1] > 0).argmax(-1)
        tokens = np.minimum(tokens, last)
    best = likeliest(logprobs, params.topk) if params.topk else None
    return tokens, np.take_along_axis(logprobs, tokens[:, None], -1)[:, 0], best


def _room(caches: list[Cache], n: int, length: int, room: int) -> list[Cache]:
    """Copy the first `length` positions of the caches of n sequences, and add `room` empty
    positions."""

    def grown(part: Floats) -> Floats:
        out = np.empty((n, part.shape[-3], length + room, part.shape[-1]), part.dtype)
        out[:, :, :length] = part[..., :length, :]
        return out

    return [(grown(keys), grown(values)) for keys, values in caches]


def sample(network: Network, prompt: Prompt, n: int, params: Params) -> list[Sampled]:
    """Draw n continuations of a prompt.

    The logprobs include the temperature, but not the truncation by top-k and top-p. At temperature
    1 these logprobs equal the logprobs that training computes for the same tokens. At temperature
    0, the likeliest token is drawn, with its logprob at temperature 1. At least one token is drawn,
    even if the prompt fills the context.
    """
    seed = None if params.seed is None else params.seed % 2**64
    rng = np.random.Generator(np.random.PCG64(seed))
    steps = max(1, min(params.max_tokens, network.shape.context - prompt.length))
    out = [Sampled([], [], stopped=False, topk=[]) for _ in range(n)]
    alive, scores = np.arange(n), logits(network, prompt.x[-1:]).repeat(n, 0)
    caches, end = prompt.cache, prompt.length
    for step in range(steps):
        # draw for ended sequences too, so that each sequence has its own stream
        tokens, logprobs, best = _draw(scores, params, rng.random(n)[alive])
        going = np.ones(len(alive), bool)
        for row, i in enumerate(alive):
            sequence, token = out[i], int(tokens[row])
            sequence.tokens.append(token)
            sequence.logprobs.append(float(logprobs[row]))
            if best is not None:
                sequence.topk.append((best[0][row], best[1][row]))
            text = params.stop_text
            if token in params.stop_tokens or (text is not None and text(sequence.tokens)):
                out[i] = sequence._replace(stopped=True)
                going[row] = False
        if step == steps - 1 or not going.any():
            break
        if not going.all():
            alive, tokens = alive[going], tokens[going]
            if step:
                caches = [(keys[going], values[going]) for keys, values in caches]
        if end == caches[0][0].shape[-2]:
            caches = _room(caches, len(alive), end, min(steps - step, ROOM))
        scores = logits(network, _extend(network, tokens, caches, end))
        end += 1
    return out
