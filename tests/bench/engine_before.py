"""Compares the engine's speed with that of another commit: steps, samples and tokens a second.

    git worktree add --detach /tmp/before COMMIT
    python tests/bench/engine_before.py /tmp/before [--rounds 9]

Both engines run at once and get the same requests in turns, through the unmodified SDK. Seconds are
processor time of the engine, which other load on the machine changes little; each figure is the
best of the rounds, and the ratio the median of the rounds' ratios.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import tinker
from engine_calls import SERVE, batch, connect, step
from tinker import types

from sweeper.engine import lifecycle

HERE = str(Path(__file__).parents[2])
PROMPT = types.ModelInput.from_ints(list(range(1, 65)))


class Side(NamedTuple):
    """An engine, and clients of it."""

    process: psutil.Process
    training: tinker.TrainingClient
    sampler: tinker.SamplingClient

    def rate(self, call: Callable[["Side"], Any], times: int) -> float:
        """Return calls per second of the engine's processor time."""
        begun = self.used()
        for _ in range(times):
            call(self)
        return times / (self.used() - begun)

    def used(self) -> float:
        """Return the processor seconds of its threads; `cpu_times` only counts hundredths."""
        files = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(file.read_text().split()[0]) for file in files) / 1e9


@contextmanager
def side(checkout: str) -> Generator[Side]:
    """Start the engine of a checkout."""
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, "-P", "-c", SERVE, home, "2"]
        environment = {**os.environ, "PYTHONPATH": checkout}
        with subprocess.Popen(
            command, cwd=checkout, env=environment, stderr=subprocess.DEVNULL
        ) as process:
            try:
                info = lifecycle.wait(home, timeout=60)
                _, training = connect(info)
                sampler = training.save_weights_and_get_sampling_client().result()
                yield Side(psutil.Process(info.pid), training, sampler)
            finally:
                process.terminate()


def sample(count: int, tokens: int) -> Callable[[Side], Any]:
    """Return a call that draws this many answers of this many tokens."""
    params = types.SamplingParams(max_tokens=tokens, seed=1, stop=[])
    return lambda one: one.sampler.sample(PROMPT, count, params).result()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("before", help="a checkout of the other commit")
    parser.add_argument("--now", default=HERE, help="a checkout in the place of this one")
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    small, large = batch(16, 24), batch(64, 64)
    calls: list[tuple[str, int, int, Callable[[Side], Any]]] = [
        ("steps, 16 x 24", 1, 30, lambda one: step(one.training, small)),
        ("steps, 64 x 64", 1, 6, lambda one: step(one.training, large)),
        ("samples of 16 tokens, one a request", 1, 40, sample(1, 16)),
        ("samples of 32 tokens, 8 a request", 8, 30, sample(8, 32)),
        ("tokens sampled, 16 x 128 a request", 16 * 128, 8, sample(16, 128)),
    ]

    with ExitStack() as stack:
        before, now = (stack.enter_context(side(path)) for path in (given.before, given.now))
        print("| a second of the engine's processor | before | now | ratio |")
        print("|---|---|---|---|")
        for name, each, times, call in calls:
            rates: list[tuple[float, float]] = []
            for number in range(given.rounds + 1):
                turn = (before, now) if number % 2 else (now, before)
                found = {one.process.pid: one.rate(call, times) for one in turn}
                rates.append((found[before.process.pid], found[now.process.pid]))
            rates = rates[1:]  # the first is to warm both up
            old, new = (each * max(rate[i] for rate in rates) for i in (0, 1))
            ratio = statistics.median(b / a for a, b in rates)
            print(f"| {name} | {old:.0f} | {new:.0f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
