"""Compares array libraries for the engine.

    python tests/bench/engine_arrays.py

Prints a table: numpy with the engine's own backward pass against jax (jit) and HIPS autograd, if
they can be imported. Install those into a separate environment and run this there with PYTHONPATH
at the repository. All compute the same model, loss, gradients and AdamW step, and are checked to
agree before anything is timed.
"""

import importlib.metadata
import importlib.util
import math
import os
import re
import subprocess
import sys
import time

import numpy as np

from sweeper.engine import lora, losses, models, net, optimizer, tiny
from sweeper.engine.batches import Datum, microbatches

RANK = 16
ONE_THREAD = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
}
PARAMS = optimizer.AdamParams(learning_rate=1e-3)
CONFIG = lora.LoraConfig(rank=RANK, seed=0)


def base():
    weights = {models._short(name): array for name, array in tiny.weights().items()}
    return models._shape(tiny.CONFIG), weights


def batch(rng, size, length, spread):
    out = []
    for _ in range(size):
        n = int(rng.integers(length - spread, length + 1))
        tokens = rng.integers(0, 256, n + 1)
        out.append(Datum(tokens[:-1], {"target_tokens": tokens[1:]}))
    return out


def padded(data, multiple):
    length = max(len(datum.tokens) for datum in data)
    length = -(-length // multiple) * multiple
    ids = np.zeros((len(data), length), np.int32)
    targets, weights = np.zeros_like(ids), np.zeros(ids.shape, np.float32)
    for row, datum in enumerate(data):
        n = len(datum.tokens)
        ids[row, :n], targets[row, :n] = datum.tokens, datum.inputs["target_tokens"]
        weights[row, :n] = 1
    return ids, targets, weights


class Ours:
    """numpy with the hand-written backward pass, as the engine runs it."""

    def __init__(self, shape, weights):
        self.shape, self.weights = shape, weights
        self.adapter = lora.create(shape, CONFIG)
        self.moments = optimizer.Moments({}, {}, 0)
        self.rotation = net.rotary(shape, np.float32)

    def gradients(self, data):
        network = lora.merge(self.weights, self.shape, self.rotation, self.adapter, CONFIG.scale)
        loss, grads, total = losses.LOSSES["cross_entropy"], {}, 0.0
        for part in microbatches(data, loss):
            x, tapes = net.forward(network, part.ids)
            logprobs, head = net.target_logprobs(network, x, part.rows, part.targets)
            values, slope = loss.compute(logprobs, part.inputs, {})
            total += float(values.sum())
            wanted = lora.wanted(self.adapter)
            net.backward(network, tapes, head, slope, wanted, grads)
        return total, lora.project(grads, self.shape, self.adapter, CONFIG.scale)

    def step(self, data):
        _, grads = self.gradients(data)
        self.adapter, self.moments, _ = optimizer.step(self.adapter, grads, self.moments, PARAMS)


def loss_in(xp, shape, weights, adapter, ids, targets, mask, take):
    """The same model written for automatic differentiation; `take` picks the targets' logprobs."""
    size, length = ids.shape
    groups = shape.heads // shape.kv_heads
    cos, sin = (part[:length, None, :] for part in net.rotary(shape, np.float32))
    hidden = np.triu(np.full((length, length), -1e30, np.float32), 1)

    def linear(name, x):
        return x @ weights[name].T + (x @ adapter[f"{name}.A"].T) @ adapter[f"{name}.B"].T * (
            np.float32(CONFIG.scale)
        )

    def norm(x, weight):
        return x / xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + shape.eps) * weight

    def turn(x):
        first, second = x[..., : shape.head // 2], x[..., shape.head // 2 :]
        return xp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    x = weights["embed"][ids]
    for i in range(shape.layers):
        h = norm(x, weights[f"{i}.norm1"])
        q = linear(f"{i}.q", h).reshape(size, length, shape.heads, shape.head)
        k, v = (
            linear(f"{i}.{n}", h).reshape(size, length, shape.kv_heads, shape.head) for n in "kv"
        )
        q = xp.transpose(turn(norm(q, weights[f"{i}.q_norm"])), (0, 2, 1, 3))
        k = xp.transpose(turn(norm(k, weights[f"{i}.k_norm"])), (0, 2, 1, 3))
        k = xp.repeat(k, groups, axis=1)
        v = xp.repeat(xp.transpose(v, (0, 2, 1, 3)), groups, axis=1)
        scores = q @ xp.swapaxes(k, -1, -2) * np.float32(shape.head**-0.5) + hidden
        scores = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
        scores = scores / xp.sum(scores, axis=-1, keepdims=True)
        mixed = xp.transpose(scores @ v, (0, 2, 1, 3)).reshape(size, length, -1)
        x = x + linear(f"{i}.o", mixed)
        h = norm(x, weights[f"{i}.norm2"])
        gate = linear(f"{i}.gate", h)
        x = x + linear(f"{i}.down", gate / (1 + xp.exp(-gate)) * linear(f"{i}.up", h))
    scores = linear("head", norm(x, weights["norm"]))
    scores = scores - xp.max(scores, axis=-1, keepdims=True)
    logprobs = take(scores, targets) - xp.log(xp.sum(xp.exp(scores), axis=-1))
    return -xp.sum(logprobs * mask)


class Autograd(Ours):
    """HIPS autograd over numpy."""

    def gradients(self, data):
        import autograd
        import autograd.numpy as xp

        ids, targets, mask = padded(data, 1)
        rows = np.arange(ids.shape[0])[:, None], np.arange(ids.shape[1])[None, :]

        def take(scores, targets):
            return scores[(*rows, targets)]

        def loss(adapter):
            return loss_in(xp, self.shape, self.weights, adapter, ids, targets, mask, take)

        value, grads = autograd.value_and_grad(loss)(self.adapter)
        return float(value), grads


class Jax(Ours):
    """jax: loss, gradients and optimizer in one compiled function for each shape."""

    multiple = 1

    def __init__(self, shape, weights):
        super().__init__(shape, weights)
        import jax
        import jax.numpy as xp

        weights = {name: xp.asarray(array) for name, array in weights.items()}

        def take(scores, targets):
            return xp.take_along_axis(scores, targets[..., None], -1)[..., 0]

        def loss(adapter, ids, targets, mask):
            return loss_in(xp, shape, weights, adapter, ids, targets, mask, take)

        def update(adapter, first, second, count, ids, targets, mask):
            _, grads = jax.value_and_grad(loss)(adapter, ids, targets, mask)
            p, out = PARAMS, ({}, {}, {})
            for name, g in grads.items():
                m = p.beta1 * first[name] + (1 - p.beta1) * g
                v = p.beta2 * second[name] + (1 - p.beta2) * g * g
                root = xp.sqrt(v / (1 - p.beta2**count)) + p.eps
                moved = adapter[name] - p.learning_rate * (m / (1 - p.beta1**count)) / root
                for place, value in zip(out, (moved, m, v), strict=True):
                    place[name] = value
            return out

        self._value_and_grad, self._update = jax.jit(jax.value_and_grad(loss)), jax.jit(update)
        zeros = {name: np.zeros_like(array) for name, array in self.adapter.items()}
        self._state, self._count = (self.adapter, zeros, zeros), 0

    def gradients(self, data):
        value, grads = self._value_and_grad(self.adapter, *padded(data, self.multiple))
        return float(value), {name: np.asarray(g) for name, g in grads.items()}

    def step(self, data):
        self._count += 1
        count = np.float32(self._count)
        self._state = self._update(*self._state, count, *padded(data, self.multiple))
        self._state[0]["head.A"].block_until_ready()


class JaxBucketed(Jax):
    """The same with lengths padded to a multiple of 16, so that there are few shapes."""

    multiple = 16


PEERS = [
    ("numpy, own backward", None, Ours),
    ("jax, jit", "jax", Jax),
    ("jax, jit, lengths of 16", "jax", JaxBucketed),
    ("autograd", "autograd", Autograd),
]


def megabytes(package, have=frozenset({"numpy", "scipy"})):
    """Return the size that a package adds to numpy and scipy, which the project needs anyway."""
    seen, todo, total = set(have), [package], 0
    while todo:
        name = todo.pop().lower().replace("_", "-")
        if name in seen:
            continue
        seen.add(name)
        distribution = importlib.metadata.distribution(name)
        files = [file.locate() for file in distribution.files or []]
        total += sum(file.stat().st_size for file in files if file.is_file())
        needs = [r for r in distribution.requires or [] if "extra ==" not in r]
        todo += [re.split(r"[^A-Za-z0-9_.-]", r)[0] for r in needs if ";" not in r]
    return total / 1e6


def import_seconds(package):
    code = f"import numpy, time; t = time.perf_counter(); import {package}; " + (
        "print(time.perf_counter() - t)"
    )
    runs = [subprocess.check_output([sys.executable, "-c", code], text=True) for _ in range(3)]
    return min(map(float, runs))


def milliseconds(peer, batches, warm=2):
    for data in batches[:warm]:
        peer.step(data)
    times = []
    for data in batches[warm:]:
        start = time.perf_counter()
        peer.step(data)
        times.append(time.perf_counter() - start)
    return 1e3 * min(times), 1e3 * float(np.mean(times))


def check(name, peer, reference, data):
    value, grads = peer.gradients(data)
    expected_value, expected = reference.gradients(data)
    assert math.isclose(value, expected_value, rel_tol=1e-4), name
    for key, gradient in expected.items():
        np.testing.assert_allclose(grads[key], gradient, rtol=2e-2, atol=2e-3, err_msg=name)


def measure(kind, shape, weights):
    rng = np.random.default_rng(0)
    small = [batch(rng, 16, 24, 0)] * 22
    large = [batch(rng, 64, 64, 0)] * 8
    varying = [batch(rng, 16, int(rng.integers(12, 37)), 4) for _ in range(40)]
    steady_small, _ = milliseconds(kind(shape, weights), small)
    steady_large, _ = milliseconds(kind(shape, weights), large)
    _, mean_varying = milliseconds(kind(shape, weights), varying, warm=0)
    return steady_small, steady_large, mean_varying


def main():
    if any(os.environ.get(name) != value for name, value in ONE_THREAD.items()):
        # read when the libraries are loaded, which they are by now
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ONE_THREAD})
    shape, weights = base()
    reference = Ours(shape, weights)
    rng = np.random.default_rng(1)
    for name in reference.adapter:  # B = 0 would hide the gradients of A
        reference.adapter[name] = rng.normal(0, 0.05, reference.adapter[name].shape).astype("f4")
    print(f"python {sys.version.split()[0]}, numpy {np.__version__}, rank {RANK}, one BLAS thread")
    print("ms a step (forward, backward, AdamW), the best; varying: the mean of 40 of 16 x 8..36\n")
    print(
        "| library | MB more | import s | 16 x 24 | ratio | 64 x 64 | ratio | varying | ratio |\n"
        "|---|---|---|---|---|---|---|---|---|"
    )
    ours = None
    for name, package, kind in PEERS:
        if package is not None and importlib.util.find_spec(package) is None:
            print(f"| {name} | not installed here |")
            continue
        peer = kind(shape, weights)
        peer.adapter = reference.adapter
        check(name, peer, reference, batch(np.random.default_rng(2), 4, 9, 4))
        found = measure(kind, shape, weights)
        ours = ours or found
        cells = [f"{a:.1f} | {a / b:.1f}" for a, b in zip(found, ours, strict=True)]
        size = f"{megabytes(package):.0f}" if package else "0"
        seconds = f"{import_seconds(package):.2f}" if package else "0.00"
        print(f"| {name} | {size} | {seconds} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
