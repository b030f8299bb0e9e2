"""Cached prefixes of prompts: they change no bit, are bounded, and belong to their weights."""

import numpy as np
import pytest

from sweeper.engine import lora, net, sampling
from sweeper.engine.net import Shape
from sweeper.engine.prefixes import BLOCK, Prefixes

SHAPE = Shape(vocab=12, hidden=16, mlp=24, layers=2, heads=4, kv_heads=2, head=4, context=600)
ROTATION = net.rotary(SHAPE, np.float32)


@pytest.fixture(scope="module")
def network():
    rng = np.random.default_rng(0)
    sizes = lora.maps(SHAPE) | {"embed": (SHAPE.vocab, SHAPE.hidden), "norm": (SHAPE.hidden,)}
    for i in range(SHAPE.layers):
        sizes |= {f"{i}.norm1": (SHAPE.hidden,), f"{i}.norm2": (SHAPE.hidden,)}
        sizes |= {f"{i}.q_norm": (SHAPE.head,), f"{i}.k_norm": (SHAPE.head,)}
    base = {name: rng.normal(0.1, 0.4, size).astype(np.float32) for name, size in sizes.items()}
    return lora.merge(base, SHAPE, ROTATION, {}, 1.0)


def read(network, tokens, prefixes=None, owner=1, first=None):
    return sampling.read(network, tokens, first=first, prefixes=prefixes, owner=owner)


def same(actual, expected):
    arrays = [(actual.x[-1], expected.x[-1])]
    arrays += [
        pair
        for a, b in zip(actual.cache, expected.cache, strict=True)
        for pair in zip(a, b, strict=True)
    ]
    return all(np.array_equal(a, b) for a, b in arrays)


@pytest.mark.parametrize("budget", [2**30, 40_000, 0])
def test_cached_prefixes_change_no_bit(network, budget):
    """Prompts with common prefixes, in any order, with blocks that are added and evicted."""
    rng, prefixes, reused = np.random.default_rng(1), Prefixes(budget), 0
    episodes = [rng.integers(0, SHAPE.vocab, 70).tolist()] * 4
    for _ in range(25):
        chosen = int(rng.integers(len(episodes)))
        more = rng.integers(0, SHAPE.vocab, rng.integers(0, 40)).tolist()
        episodes[chosen] = (episodes[chosen] + more)[: SHAPE.context]
        first = int(rng.integers(200)) if rng.random() < 0.3 else None
        result = read(network, episodes[chosen], prefixes, first=first)
        fresh = read(network, episodes[chosen], first=first)
        assert same(result, fresh)
        if first is not None:
            wanted = len(episodes[chosen]) - min(first, len(episodes[chosen]) - 1)
            assert np.array_equal(result.x[-wanted:], fresh.x[-wanted:])
        assert prefixes.nbytes <= budget
        reused += result.reused
    assert (reused > 0) == (budget > 0)


def test_the_next_turn_reads_its_new_tokens_only(network):
    prefixes = Prefixes()
    prompt = [n % SHAPE.vocab for n in range(500)]
    assert read(network, prompt[:400], prefixes).reused == 0
    assert 400 - read(network, prompt[:430], prefixes).reused < BLOCK
    assert read(network, prompt[:430], prefixes).reused == 430  # nothing is read again
    # scores need the outputs of their positions, which are not kept
    assert read(network, prompt, prefixes, first=0).reused == 0
    assert 300 - read(network, prompt[:430], prefixes, first=300).reused < BLOCK


def test_prefixes_belong_to_their_weights_and_are_freed(network):
    prefixes = Prefixes()
    prompt = [1] * 200
    read(network, prompt, prefixes, owner=1)
    held = prefixes.nbytes
    assert read(network, prompt, prefixes, owner=2).reused == 0 and prefixes.nbytes == 2 * held > 0
    prefixes.forget(1)
    assert prefixes.nbytes == held and read(network, prompt, prefixes, owner=2).reused == 200
    assert read(network, prompt, prefixes, owner=1).reused == 0


def test_the_most_recently_used_prefixes_stay(network):
    rows = [[n] * 130 for n in range(6)]
    prefixes = Prefixes()
    read(network, rows[0], prefixes)
    small = Prefixes(3 * prefixes.nbytes)
    for row in (*rows[:3], rows[0], *rows[3:5]):
        read(network, row, small)
    assert [read(network, row, small).reused for row in (rows[0], rows[4])] == [130, 130]
    assert read(network, rows[1], small).reused == 0
