"""Measures the cost of the next turn of an episode, with and without cached prompts.

    python tests/bench/engine_turns.py

In an episode of 20 turns, each prompt is the previous prompt, the 40 tokens sampled for it and a
reply of 80 tokens. Prints milliseconds of CPU to read each prompt and to sample its tokens, one
thread, the best of five episodes, and the ratio of reading all to reading the new tokens. Then the
cost of long prompts: seconds of CPU to read one and to train on it, and memory. The model is the
built-in one.
"""

import os

for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ[name] = "1"

# ruff: noqa: E402
import resource
import tempfile
import time

import numpy as np

from sweeper.engine import lora, losses, models, operations, sampling, tiny
from sweeper.engine.batches import Datum
from sweeper.engine.models import Model
from sweeper.engine.prefixes import Prefixes
from sweeper.engine.state import Adapter

TURNS, DRAWN, REPLY = 20, 40, 80


def built_in() -> Model:
    with tempfile.TemporaryDirectory() as folder:
        return models.Models(folder).get(tiny.TINY)


def episode(adapter: Adapter, prefixes: Prefixes | None) -> list[tuple[int, float, float, str]]:
    """Return for each turn: its prompt's length, ms to read and to sample, and the
    sampled tokens."""
    network = adapter.network
    rng, rows = np.random.default_rng(0), list[tuple[int, float, float, str]]()
    tokens: list[int] = rng.integers(0, 256, 200).tolist()
    for turn in range(TURNS):
        begun = time.process_time()
        prompt = sampling.read(network, tokens, prefixes=prefixes, owner=adapter.serial)
        between = time.process_time()
        params = sampling.Params(max_tokens=DRAWN, seed=turn)
        (drawn,) = sampling.sample(network, prompt, 1, params)
        ended = time.process_time()
        read, drew = 1000 * (between - begun), 1000 * (ended - between)
        rows.append((len(tokens), read, drew, repr(drawn)))
        tokens += drawn.tokens + rng.integers(0, 256, REPLY).tolist()
    return rows


def turns(adapter: Adapter) -> None:
    cached = [episode(adapter, Prefixes()) for _ in range(5)]
    plain = [episode(adapter, None) for _ in range(5)]
    assert [row[3] for row in cached[0]] == [row[3] for row in plain[0]], (
        "they must be the same bits"
    )
    print("| turn | tokens | read all, ms | read new, ms | ratio | draw, ms |")
    totals = [0.0, 0.0]
    for turn, (length, *_) in enumerate(cached[0]):
        without = min(run[turn][1] for run in plain)
        with_it = min(run[turn][1] for run in cached)
        drawing = min(run[turn][2] for run in cached)
        totals[0] += without
        totals[1] += with_it
        if turn in (0, 1, 4, 9, 14, 19):
            print(
                f"| {turn + 1} | {length} | {without:.1f} | {with_it:.1f} "
                f"| {without / with_it:.1f} | {drawing:.1f} |"
            )
    print(f"| all | | {totals[0]:.0f} | {totals[1]:.0f} | {totals[0] / totals[1]:.1f} | |")


def lengths(adapter: Adapter) -> None:
    print("| tokens | read, s | train, s | MiB at most |")
    model, rng = adapter.model, np.random.default_rng(0)
    loss = losses.find("cross_entropy", {})
    for length in (1024, 2048, 4096, 8192, 16384):
        if length > model.shape.context:
            break
        tokens = rng.integers(0, 256, length)
        begun = time.process_time()
        sampling.read(adapter.network, tokens.tolist())
        between = time.process_time()
        operations.one_pass(
            adapter, [Datum(tokens, {"target_tokens": tokens})], loss, {}, train=True
        )
        ended = time.process_time()
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"| {length} | {between - begun:.2f} | {ended - between:.2f} | {most:.0f} |")


def main() -> None:
    model = built_in()
    config = lora.LoraConfig(rank=16, seed=0)
    adapter = Adapter(model, config, lora.create(model.shape, config))
    turns(adapter)
    lengths(adapter)


if __name__ == "__main__":
    main()
