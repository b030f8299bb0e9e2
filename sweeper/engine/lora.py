"""Low-rank adapters (Hu et al. 2021): each adapted map is `W0 + (alpha / rank) B A`. An adapter is
a dict of arrays, `<map>.A` (rank x in) and `<map>.B` (out x rank). These arrays are never
modified."""

import os
from typing import NamedTuple

import numpy as np

from sweeper.engine.array_types import Arrays, Floats
from sweeper.engine.net import Block, Network, Rotation, Shape

ALPHA = 32.0
MAX_RANK = 512
_ATTENTION, _MLP = ("q", "k", "v", "o"), ("gate", "up", "down")
_STACKS = {"qkv": ("q", "k", "v"), "out": ("o",), "gate_up": ("gate", "up"), "down": ("down",)}


class LoraConfig(NamedTuple):
    """The configuration of an adapter, with the fields of the SDK's `LoraConfig`."""

    rank: int = 32
    seed: int | None = None
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = True

    @property
    def scale(self) -> float:
        """The factor alpha / rank, by which the product B A is multiplied."""
        return ALPHA / self.rank


def maps(shape: Shape) -> dict[str, tuple[int, int]]:
    """Return the (out, in) sizes of each linear map that can be adapted, in a fixed order."""
    queries, keys = shape.heads * shape.head, shape.kv_heads * shape.head
    sizes = {
        "q": (queries, shape.hidden),
        "k": (keys, shape.hidden),
        "v": (keys, shape.hidden),
        "o": (shape.hidden, queries),
        "gate": (shape.mlp, shape.hidden),
        "up": (shape.mlp, shape.hidden),
        "down": (shape.hidden, shape.mlp),
    }
    out = {f"{i}.{name}": size for i in range(shape.layers) for name, size in sizes.items()}
    out["head"] = (shape.vocab, shape.hidden)
    return out


def _adapted(name: str, config: LoraConfig) -> bool:
    kind = name.rpartition(".")[2]
    if kind in _ATTENTION:
        return config.train_attn
    return config.train_mlp if kind in _MLP else config.train_unembed


def create(shape: Shape, config: LoraConfig) -> Arrays:
    """Create an adapter that has no effect yet: A is random (uniform; its variance is 1 / columns),
    and B is zero.

    The same seed gives the same adapter. If the seed is None, a random seed is used.
    """
    seed = config.seed if config.seed is not None else int.from_bytes(os.urandom(8), "big")
    rng = np.random.Generator(np.random.PCG64(seed % 2**64))
    out: Arrays = {}
    for name, (rows, columns) in maps(shape).items():
        if _adapted(name, config):
            bound = (3.0 / columns) ** 0.5
            drawn = rng.uniform(-bound, bound, (config.rank, columns))
            out[f"{name}.A"] = drawn.astype(np.float32)
            out[f"{name}.B"] = np.zeros((rows, config.rank), np.float32)
    return out


def _merged(base: Floats, name: str, adapter: Arrays, scale: float) -> Floats:
    a = adapter.get(f"{name}.A")
    if a is None:
        return base
    return base + adapter[f"{name}.B"] @ a * base.dtype.type(scale)


def merge(base: Arrays, shape: Shape, rotation: Rotation, adapter: Arrays, scale: float) -> Network:
    """Merge an adapter into base weights. Return the network."""

    def stack(i: int, kinds: tuple[str, ...]) -> Floats:
        parts = [_merged(base[f"{i}.{k}"], f"{i}.{k}", adapter, scale) for k in kinds]
        return np.concatenate(parts) if len(parts) > 1 else parts[0]

    blocks = list[Block]()
    for i in range(shape.layers):
        norm = None
        if f"{i}.q_norm" in base:
            repeats = [shape.heads, shape.kv_heads]
            norm = np.stack([base[f"{i}.q_norm"], base[f"{i}.k_norm"]]).repeat(repeats, 0)
        stacks = {name: stack(i, kinds) for name, kinds in _STACKS.items()}
        blocks.append(
            Block(base[f"{i}.norm1"], stacks["qkv"], norm, stacks["out"], base[f"{i}.norm2"],
                  stacks["gate_up"], stacks["down"])
        )  # fmt: skip
    head = _merged(base["head"], "head", adapter, scale)
    return Network(shape, rotation, base["embed"], tuple(blocks), base["norm"], head)


def wanted(adapter: Arrays) -> frozenset[str]:
    """Return the names (`0.qkv`, `head`) of the matrices whose gradients this adapter needs."""
    adapted = {name[:-2] for name in adapter if name.endswith(".A")}
    names = {"head"} & adapted
    for name in adapted - names:
        layer, kind = name.split(".")
        names.add(next(f"{layer}.{stack}" for stack, kinds in _STACKS.items() if kind in kinds))
    return frozenset(names)


def project(grads: Arrays, shape: Shape, adapter: Arrays, scale: float) -> Arrays:
    """Compute the gradients of A and B from `grads`, the gradients of the merged matrices.

    With W = W0 + s B A: dL/dB = s (dL/dW) A^T and dL/dA = s B^T (dL/dW).
    """
    sizes, out = maps(shape), Arrays()
    for name, gradient in grads.items():
        layer, _, stack = name.rpartition(".")
        start = 0
        for kind in _STACKS.get(stack, ("head",)):
            full = f"{layer}.{kind}" if layer else kind
            rows = sizes[full][0]
            part, start = gradient[start : start + rows], start + rows
            if f"{full}.A" not in adapter:
                continue
            a, b = adapter[f"{full}.A"], adapter[f"{full}.B"]
            factor = part.dtype.type(scale)
            out[f"{full}.A"] = b.T @ part * factor
            out[f"{full}.B"] = part @ a.T * factor
    return out
