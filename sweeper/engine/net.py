"""A decoder-only transformer like Qwen3 in numpy, with an exact backward pass. The backward pass
computes `dL/dW` of each merged linear map, from which `lora.project` computes the gradients of A
and B."""

# Sources: RMSNorm (Zhang and Sennrich 2019), rotary positions (Su et al. 2021), grouped queries
# (Ainslie et al. 2023), SwiGLU (Shazeer 2020), query and key norms as in Qwen3.

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sweeper.engine.array_types import Arrays, Floats, Ints

MASKED = -1e30
# Attention weights of sequences longer than LONG are not stored, but computed for QUERIES positions
# at a time. For 16,384 positions they would take 4 GB per layer.
LONG, QUERIES = 1024, 256


class Shape(NamedTuple):
    """The sizes of a model, as in a Hugging Face `config.json` but with shorter names."""

    vocab: int
    hidden: int
    mlp: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    context: int
    eps: float = 1e-6
    theta: float = 10000.0


class Block(NamedTuple):
    """The weights of one layer. Linear maps with the same input are stacked into one matrix."""

    attention_norm: Floats
    qkv: Floats  # [(H + 2 KV) h, d]
    qk_norm: Floats | None  # [H + KV, h]: the query norm for each head, then the key norm
    out: Floats  # [d, H h]
    mlp_norm: Floats
    gate_up: Floats  # [2 f, d]
    down: Floats  # [d, f]


class Rotation(NamedTuple):
    """The rotation of queries and keys by position. `cos` and `sin` have shape T x (h / 2): T
    positions, and the h / 2 pairs of channels of a head."""

    cos: Floats
    sin: Floats

    def at(self, place: slice) -> "Rotation":
        """Return the rotation of the L positions in `place`; its arrays are L x 1 x (h / 2)."""
        return Rotation(self.cos[place, None, :], self.sin[place, None, :])


class Network(NamedTuple):
    """A model ready to run: its sizes, and the base weights with an adapter merged in."""

    shape: Shape
    rotation: Rotation  # of all positions of the context
    embed: Floats
    blocks: tuple[Block, ...]
    norm: Floats
    head: Floats


class Tape(NamedTuple):
    """The values of one layer's forward pass that the backward pass needs."""

    x: Floats  # input, N x d
    inv1: Floats
    h1: Floats
    qk: Floats  # queries and keys before their norm, B x T x (H + KV) x h
    inv_qk: Floats | None
    q: Floats  # B x KV x (G T) x h
    k: Floats  # B x KV x T x h
    v: Floats
    p: Floats | None  # attention weights, B x KV x (G T) x T; None for a long sequence
    mixed: Floats  # N x (H h)
    x2: Floats
    inv2: Floats
    h2: Floats
    gate_up: Floats
    sigmoid: Floats
    act: Floats


def rms(x: Floats, weight: Floats, eps: float) -> tuple[Floats, Floats]:
    """Compute RMSNorm over the last axis. Return the result, and 1/rms for the gradient."""
    inv = 1.0 / np.sqrt(np.vecdot(x, x)[..., None] * x.dtype.type(1.0 / x.shape[-1]) + eps)
    inv = inv.astype(x.dtype, copy=False)
    return x * inv * weight, inv


def _rms_grad(dy: Floats, x: Floats, inv: Floats, weight: Floats) -> Floats:
    dyw = dy * weight
    mean = np.vecdot(dyw, x)[..., None] * (inv * inv * x.dtype.type(1.0 / x.shape[-1]))
    dyw -= x * mean
    dyw *= inv
    return dyw


def rotary(shape: Shape, dtype: npt.DTypeLike) -> Rotation:
    """Return the rotation of all positions of the context."""
    inverse = shape.theta ** -(np.arange(0, shape.head, 2, dtype=np.float64) / shape.head)
    angle = np.arange(shape.context, dtype=np.float64)[:, None] * inverse
    return Rotation(np.cos(angle).astype(dtype), np.sin(angle).astype(dtype))


def rotate(x: Floats, cos: Floats, sin: Floats) -> Floats:
    """Rotate each pair of channels (x[i], x[i + half]) of the last axis. With -sin, the rotation is
    inverted."""
    half = x.shape[-1] // 2
    out = np.empty_like(x)
    first, second = x[..., :half], x[..., half:]
    np.subtract(first * cos, second * sin, out=out[..., :half])
    np.add(second * cos, first * sin, out=out[..., half:])
    return out


def swiglu(gate_up: Floats) -> tuple[Floats, Floats]:
    """Compute silu(gate) * up. The input has gate and up side by side (N x 2f). Return the result,
    and sigmoid(gate)."""
    half = gate_up.shape[-1] // 2
    gate, up = gate_up[..., :half], gate_up[..., half:]
    sigmoid = np.exp(-gate)
    sigmoid += 1.0
    np.reciprocal(sigmoid, out=sigmoid)
    act = gate * sigmoid
    act *= up
    return act, sigmoid


def causal(length: int, dtype: npt.DTypeLike) -> Floats:
    """Return the causal mask of `length` queries and keys. It is added to the attention scores."""
    return np.triu(np.full((length, length), MASKED, dtype), 1)


def attention_weights(q: Floats, keys: Floats, mask: Floats, groups: int) -> Floats:
    """Return causal attention weights, B x KV x (G L) x T. The queries `q` (B x KV x (G L) x h)
    belong to the last L positions of `keys` (B x KV x T x h). KV is the number of key heads, and G
    (`groups`) is the number of query heads per key head. `mask` is a causal mask of at least L
    positions."""
    length = q.shape[2] // groups
    scores = q @ keys.swapaxes(-1, -2)
    scores *= scores.dtype.type(1.0 / np.sqrt(q.shape[-1]))
    if length > 1:
        grouped = scores.reshape(*scores.shape[:2], groups, length, -1)
        grouped[..., -length:] += mask[:length, :length]
    scores -= scores.max(-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(-1, keepdims=True)
    return scores


def _in_parts(x: Floats, groups: int) -> Iterator[tuple[slice, Floats]]:
    """Split an array (B x KV x (G T) x h) along T, into parts of at most `QUERIES` positions. Yield
    the slice of positions and the values of each part."""
    batch, kv, rows, head = x.shape
    whole = x.reshape(batch, kv, groups, rows // groups, head)
    for start in range(0, rows // groups, QUERIES):
        part = whole[..., start : start + QUERIES, :]
        place = slice(start, start + part.shape[3])
        yield place, part.reshape(batch, kv, -1, head)


def _attend(
    q: Floats, k: Floats, v: Floats, mask: Floats, groups: int
) -> tuple[Floats, Floats | None]:
    """Compute causal attention for the queries `q` (B x KV x (G T) x h, with G = `groups`). Return
    the output, and the attention weights (None if the sequence is longer than `LONG`)."""
    if k.shape[2] <= LONG:
        weights = attention_weights(q, k, mask, groups)
        return weights @ v, weights
    mixed = np.empty_like(q)
    whole = mixed.reshape(*k.shape[:2], groups, k.shape[2], k.shape[3])
    for place, queries in _in_parts(q, groups):
        weights = attention_weights(queries, k[:, :, : place.stop], mask, groups)
        part = weights @ v[:, :, : place.stop]
        whole[..., place, :] = part.reshape(*k.shape[:2], groups, -1, k.shape[3])
    return mixed, None


def _layer(
    x: Floats, block: Block, shape: Shape, batch: int, rotation: Rotation, mask: Floats
) -> tuple[Floats, Tape]:
    length, groups = x.shape[0] // batch, shape.heads // shape.kv_heads
    both = shape.heads + shape.kv_heads
    h1, inv1 = rms(x, block.attention_norm, shape.eps)
    qkv = (h1 @ block.qkv.T).reshape(batch, length, both + shape.kv_heads, shape.head)
    qk, inv_qk = qkv[:, :, :both], None
    normed = qk
    if block.qk_norm is not None:
        normed, inv_qk = rms(qk, block.qk_norm, shape.eps)
    turned = rotate(normed, *rotation)
    q = turned[:, :, : shape.heads].reshape(batch, length, shape.kv_heads, groups, shape.head)
    q = q.transpose(0, 2, 3, 1, 4).reshape(batch, shape.kv_heads, groups * length, shape.head)
    k = np.ascontiguousarray(turned[:, :, shape.heads :].transpose(0, 2, 1, 3))
    v = np.ascontiguousarray(qkv[:, :, both:].transpose(0, 2, 1, 3))
    mixed, p = _attend(q, k, v, mask, groups)
    mixed = mixed.reshape(batch, shape.kv_heads, groups, length, shape.head)
    mixed = mixed.transpose(0, 3, 1, 2, 4).reshape(x.shape[0], shape.heads * shape.head)
    x2 = x + mixed @ block.out.T
    h2, inv2 = rms(x2, block.mlp_norm, shape.eps)
    gate_up = h2 @ block.gate_up.T
    act, sigmoid = swiglu(gate_up)
    tape = Tape(
        x, inv1, h1, qk, inv_qk, q, k, v, p, mixed, x2, inv2, h2, gate_up, sigmoid, act
    )  # fmt: skip
    return x2 + act @ block.down.T, tape


def forward(network: Network, ids: Ints) -> tuple[Floats, list[Tape]]:
    """Run B x T token ids through every layer.

    Return the last layer's output, (B T) x d, before the final norm, and one tape per layer.
    Padding on the right of a sequence does not change the output at the other positions.
    """
    batch, length = ids.shape
    rotation = network.rotation.at(slice(length))
    mask = causal(length if length <= LONG else QUERIES, network.embed.dtype)
    x, tapes = network.embed[ids.reshape(-1)], list[Tape]()
    for block in network.blocks:
        x, tape = _layer(x, block, network.shape, batch, rotation, mask)
        tapes.append(tape)
    return x, tapes


def logits(network: Network, x: Floats) -> Floats:
    """Compute the logits (n x V) of n rows of the last layer's output."""
    return rms(x, network.norm, network.shape.eps)[0] @ network.head.T


def log_softmax(scores: Floats) -> Floats:
    """Compute log softmax over the last axis."""
    shifted = scores - scores.max(-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(-1, keepdims=True))
    return shifted


class HeadTape(NamedTuple):
    """The values that `target_logprobs` saves for `backward`, for each of M rows. `x` and `h` are
    the rows before and after the final norm, and `p` has the probabilities of all tokens."""

    rows: Ints
    targets: Ints
    x: Floats
    inv: Floats
    h: Floats
    p: Floats


def target_logprobs(
    network: Network, x: Floats, rows: Ints, targets: Ints
) -> tuple[Floats, HeadTape]:
    """Compute the logprobs of `targets` (M x K token ids) at `rows` (M indices into the N rows of
    `x`). Return the logprobs, with shape M x K, and the tape for `backward`."""
    picked = x[rows]
    h, inv = rms(picked, network.norm, network.shape.eps)
    scores = log_softmax(h @ network.head.T)
    logprobs = np.take_along_axis(scores, targets, -1)
    np.exp(scores, out=scores)
    return logprobs, HeadTape(rows, targets, picked, inv, h, scores)


def _accumulate(grads: Arrays, name: str, dy: Floats, x: Floats) -> None:
    gradient = dy.T @ x
    if name in grads:
        grads[name] += gradient
    else:
        grads[name] = gradient


def _head_grad(
    dlogprobs: Floats,
    tape: HeadTape,
    network: Network,
    n: int,
    wanted: frozenset[str],
    grads: Arrays,
) -> Floats:
    """Return the gradient of the last layer's output (`n` x d). If `wanted` has `head`, also add
    the gradient of the head to `grads`."""
    dscores = tape.p * -dlogprobs.sum(-1, keepdims=True)
    index = np.arange(len(dscores))
    for column in range(dlogprobs.shape[1]):
        dscores[index, tape.targets[:, column]] += dlogprobs[:, column]
    if "head" in wanted:
        _accumulate(grads, "head", dscores, tape.h)
    dx = np.zeros((n, tape.x.shape[1]), tape.x.dtype)
    dx[tape.rows] = _rms_grad(dscores @ network.head, tape.x, tape.inv, network.norm)
    return dx


def _attention_grads(
    dmixed: Floats, p: Floats, q: Floats, k: Floats, v: Floats
) -> tuple[Floats, Floats, Floats]:
    dv = p.swapaxes(-1, -2) @ dmixed
    dscores = dmixed @ v.swapaxes(-1, -2)
    dscores -= np.vecdot(dscores, p)[..., None]
    dscores *= p
    dscores *= dscores.dtype.type(1.0 / np.sqrt(k.shape[-1]))
    return dscores @ k, dscores.swapaxes(-1, -2) @ q, dv


def _long_attention_grads(dmixed: Floats, tape: Tape, groups: int) -> tuple[Floats, Floats, Floats]:
    mask = causal(QUERIES, dmixed.dtype)
    dq, dk, dv = np.empty_like(tape.q), np.zeros_like(tape.k), np.zeros_like(tape.v)
    whole = dq.reshape(*tape.k.shape[:2], groups, *tape.k.shape[2:])
    parts = zip(_in_parts(tape.q, groups), _in_parts(dmixed, groups), strict=True)
    for (place, q), (_, d) in parts:
        k, v = tape.k[:, :, : place.stop], tape.v[:, :, : place.stop]
        p = attention_weights(q, k, mask, groups)
        dq_part, dk_part, dv_part = _attention_grads(d, p, q, k, v)
        whole[..., place, :] = dq_part.reshape(*tape.k.shape[:2], groups, -1, tape.k.shape[3])
        dk[:, :, : place.stop] += dk_part
        dv[:, :, : place.stop] += dv_part
    return dq, dk, dv


def _attention_grad(
    dmixed: Floats, tape: Tape, block: Block, shape: Shape, rotation: Rotation
) -> Floats:
    batch, kv, length, head = tape.k.shape
    groups, both = shape.heads // kv, shape.heads + kv
    dmixed = dmixed.reshape(batch, length, kv, groups, head).transpose(0, 2, 3, 1, 4)
    dmixed = dmixed.reshape(batch, kv, groups * length, head)
    if tape.p is None:
        dq, dk, dv = _long_attention_grads(dmixed, tape, groups)
    else:
        dq, dk, dv = _attention_grads(dmixed, tape.p, tape.q, tape.k, tape.v)
    dq = dq.reshape(batch, kv, groups, length, head)
    dqkv = np.empty((batch, length, both + kv, head), dmixed.dtype)
    turned = np.empty((batch, length, both, head), dmixed.dtype)
    turned[:, :, : shape.heads] = dq.transpose(0, 3, 1, 2, 4).reshape(batch, length, -1, head)
    turned[:, :, shape.heads :] = dk.transpose(0, 2, 1, 3)
    dqk = rotate(turned, rotation.cos, -rotation.sin)
    if block.qk_norm is not None and tape.inv_qk is not None:
        dqk = _rms_grad(dqk, tape.qk, tape.inv_qk, block.qk_norm)
    dqkv[:, :, :both] = dqk
    dqkv[:, :, both:] = dv.transpose(0, 2, 1, 3)
    return dqkv.reshape(batch * length, (both + kv) * head)


def _mlp_grad(dact: Floats, tape: Tape) -> Floats:
    half = dact.shape[-1]
    gate, up = tape.gate_up[:, :half], tape.gate_up[:, half:]
    out = np.empty_like(tape.gate_up)
    silu = gate * tape.sigmoid
    np.multiply(dact, silu, out=out[:, half:])
    slope = 1.0 - tape.sigmoid  # d silu / d gate = sigmoid + silu (1 - sigmoid)
    slope *= silu
    slope += tape.sigmoid
    slope *= up
    np.multiply(dact, slope, out=out[:, :half])
    return out


def backward(
    network: Network,
    tapes: list[Tape],
    head: HeadTape,
    dlogprobs: Floats,
    wanted: frozenset[str],
    grads: Arrays,
) -> None:
    """Add dL/dW to `grads` for each merged weight W whose name is in `wanted`.

    `dlogprobs` is dL/dlogprob, with shape M x K. The names are `head` and, for each layer,
    `<layer>.qkv`, `<layer>.out`, `<layer>.gate_up` and `<layer>.down`.
    """
    layers = [int(name.split(".")[0]) for name in wanted if name != "head"]
    rows, length = tapes[0].x.shape[0], tapes[0].k.shape[2]
    rotation = network.rotation.at(slice(length))
    dx = _head_grad(dlogprobs, head, network, rows, wanted, grads)
    lowest = min(layers, default=len(tapes))
    for i in range(len(tapes) - 1, lowest - 1, -1):
        tape, block = tapes[i], network.blocks[i]
        if f"{i}.down" in wanted:
            _accumulate(grads, f"{i}.down", dx, tape.act)
        dgate_up = _mlp_grad(dx @ block.down, tape)
        if f"{i}.gate_up" in wanted:
            _accumulate(grads, f"{i}.gate_up", dgate_up, tape.h2)
        dx += _rms_grad(dgate_up @ block.gate_up, tape.x2, tape.inv2, block.mlp_norm)
        if f"{i}.out" in wanted:
            _accumulate(grads, f"{i}.out", dx, tape.mixed)
        dqkv = _attention_grad(dx @ block.out, tape, block, network.shape, rotation)
        if f"{i}.qkv" in wanted:
            _accumulate(grads, f"{i}.qkv", dqkv, tape.h1)
        if i > lowest:
            dx += _rms_grad(dqkv @ block.qkv, tape.x, tape.inv1, block.attention_norm)
