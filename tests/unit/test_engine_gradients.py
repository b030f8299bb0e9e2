"""The backward pass against finite differences in float64, for every kind of adapted map."""

import numpy as np
import pytest

from sweeper.engine import lora, losses, net
from sweeper.engine.batches import Datum, microbatches
from sweeper.engine.lora import LoraConfig
from sweeper.engine.net import Shape

SHAPE = Shape(vocab=11, hidden=8, mlp=12, layers=2, heads=4, kv_heads=2, head=4, context=16)


def random_base(rng, shape, *, qk_norm=True):
    base = {name: rng.normal(size=size) * 0.4 for name, size in lora.maps(shape).items()}
    base["embed"] = rng.normal(size=(shape.vocab, shape.hidden))
    for i in range(shape.layers):
        for name in ("norm1", "norm2"):
            base[f"{i}.{name}"] = 1 + 0.2 * rng.normal(size=shape.hidden)
        if qk_norm:
            for name in ("q_norm", "k_norm"):
                base[f"{i}.{name}"] = 1 + 0.2 * rng.normal(size=shape.head)
    base["norm"] = 1 + 0.2 * rng.normal(size=shape.hidden)
    return base


def random_adapter(rng, config):
    adapter = lora.create(SHAPE, config)
    return {name: rng.normal(size=array.shape) * 0.2 for name, array in adapter.items()}


def random_data(rng, lengths, width=None):
    out = []
    for n in lengths:
        size = (n,) if width is None else (n, width)
        inputs = {
            "target_tokens": rng.integers(0, SHAPE.vocab, size),
            "weights": rng.normal(size=size),
            "logprobs": rng.normal(size=size) - 2,
            "advantages": rng.normal(size=size),
        }
        out.append(Datum(rng.integers(0, SHAPE.vocab, n), inputs))
    return out


def loss_and_gradients(base, adapter, config, data, name, backward=True):
    loss = losses.find(name, {})
    rotation = net.rotary(SHAPE, np.float64)
    network = lora.merge(base, SHAPE, rotation, adapter, config.scale)
    total, grads = 0.0, {}
    for batch in microbatches(data, loss):
        x, tapes = net.forward(network, batch.ids)
        logprobs, head = net.target_logprobs(network, x, batch.rows, batch.targets)
        values, slope = loss.compute(logprobs, batch.inputs, {})
        total += float(values.sum())
        if backward:
            wanted = lora.wanted(adapter)
            net.backward(network, tapes, head, slope, wanted, grads)
    return total, lora.project(grads, SHAPE, adapter, config.scale)


def assert_matches_differences(rng, base, config, data, name):
    adapter = random_adapter(rng, config)
    _, gradients = loss_and_gradients(base, adapter, config, data, name)
    assert set(gradients) == set(adapter)
    step = 1e-6
    for key, array in adapter.items():
        # two entries and one random direction of each array: every entry counts in the direction
        directions = [rng.normal(size=array.shape)]
        for flat in rng.integers(0, array.size, 2):
            unit = np.zeros(array.size)
            unit[flat] = 1
            directions.append(unit.reshape(array.shape))
        for direction in directions:
            ends = []
            for sign in (1, -1):
                moved = {**adapter, key: array + sign * step * direction}
                total, _ = loss_and_gradients(base, moved, config, data, name, backward=False)
                ends.append(total)
            measured = (ends[0] - ends[1]) / (2 * step)
            computed = float((gradients[key] * direction).sum())
            assert computed == pytest.approx(measured, rel=1e-5, abs=1e-7), key


# Part of the loss `cispo` is held constant: its slope is not the derivative.
@pytest.mark.parametrize("name", sorted(losses.LOSSES.keys() - {"cispo"}))
def test_gradients_of_every_adapter_match_finite_differences(name):
    rng = np.random.default_rng(0)
    config = LoraConfig(rank=3, seed=0)
    data = random_data(rng, [7, 3, 5])
    assert_matches_differences(rng, random_base(rng, SHAPE), config, data, name)


def test_gradients_match_without_query_norms_and_with_several_targets():
    rng = np.random.default_rng(1)
    base = random_base(rng, SHAPE, qk_norm=False)
    data = random_data(rng, [6, 4], width=2)
    assert_matches_differences(rng, base, LoraConfig(rank=2, seed=0), data, "cross_entropy")


@pytest.mark.parametrize("trained", ["train_attn", "train_mlp", "train_unembed"])
def test_gradients_match_when_one_kind_of_map_is_trained(trained):
    rng = np.random.default_rng(2)
    flags = {flag: flag == trained for flag in ("train_attn", "train_mlp", "train_unembed")}
    config = LoraConfig(rank=2, seed=0, **flags)
    data = random_data(rng, [5, 5])
    assert_matches_differences(rng, random_base(rng, SHAPE), config, data, "cross_entropy")


def test_gradients_of_long_sequences_match_and_are_those_of_short_ones(monkeypatch):
    """Attention is computed a few positions at a time, and again for the backward pass."""
    rng = np.random.default_rng(4)
    base, config = random_base(rng, SHAPE), LoraConfig(rank=2, seed=0)
    adapter, data = random_adapter(rng, config), random_data(rng, [11, 9, 2])
    short = loss_and_gradients(base, adapter, config, data, "cross_entropy")
    monkeypatch.setattr(net, "LONG", 4)
    monkeypatch.setattr(net, "QUERIES", 3)
    long = loss_and_gradients(base, adapter, config, data, "cross_entropy")
    assert long[0] == pytest.approx(short[0], rel=1e-12)
    for key, gradient in short[1].items():
        np.testing.assert_allclose(long[1][key], gradient, rtol=1e-9, atol=1e-12)
    assert_matches_differences(rng, base, config, data, "cross_entropy")


def test_microbatches_change_the_sum_by_rounding_only():
    rng = np.random.default_rng(3)
    base, config = random_base(rng, SHAPE), LoraConfig(rank=2, seed=0)
    adapter, data = random_adapter(rng, config), random_data(rng, [7, 2, 5, 3, 6])
    whole = loss_and_gradients(base, adapter, config, data, "cross_entropy")
    parts = [loss_and_gradients(base, adapter, config, [d], "cross_entropy") for d in data]
    assert sum(total for total, _ in parts) == pytest.approx(whole[0], rel=1e-6)
    for key, gradient in whole[1].items():
        total = sum(gradients[key] for _, gradients in parts)
        np.testing.assert_allclose(total, gradient, rtol=1e-5, atol=1e-7)
