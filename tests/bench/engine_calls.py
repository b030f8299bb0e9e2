"""Measures the cost of the engine's calls through the unmodified SDK, HTTP included.

    python tests/bench/engine_calls.py

Starts its own engines. Prints milliseconds per call (one client, rank 16, the built-in model)
with the ratio to a round trip that computes nothing; the engine's memory over 10,000 requests
(alone with the argument `memory`); and steps per second of several clients in separate processes,
with one and two worker threads in the engine.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil
import tinker
from tinker import types

from sweeper.engine import lifecycle

ADAM = types.AdamParams(learning_rate=1e-3)
SERVE = (
    "import os\n"
    "for name in ('OPENBLAS_NUM_THREADS', 'OMP_NUM_THREADS'): os.environ[name] = '1'\n"
    "import sys, sweeper.engine.server as server\n"
    "server.THREADS = int(sys.argv[2])\n"
    "from sweeper.engine.__main__ import serve\n"
    "serve(home=sys.argv[1])\n"
)


@contextmanager
def engine(threads: int = 2) -> Generator[lifecycle.EngineInfo]:
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, "-P", "-c", SERVE, home, str(threads)]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            try:
                yield lifecycle.wait(home, timeout=60)
            finally:
                process.terminate()


def batch(size: int, length: int) -> list[types.Datum]:
    tokens = np.random.default_rng(0).integers(0, 256, (size, length + 1))
    return [
        types.Datum(
            model_input=types.ModelInput.from_ints(row[:-1].tolist()),
            loss_fn_inputs={
                "target_tokens": types.TensorData.from_numpy(row[1:].astype(np.int64)),
                "weights": types.TensorData.from_numpy(np.ones(length, np.float32)),
            },
        )
        for row in tokens
    ]


def connect(info: lifecycle.EngineInfo) -> tuple[tinker.ServiceClient, tinker.TrainingClient]:
    key = lifecycle.client_key(info.home)
    service = tinker.ServiceClient(base_url=info.url, api_key=key)
    return service, service.create_lora_training_client(
        base_model="tiny/qwen3", rank=16, seed=0
    ).result()


def step(training: tinker.TrainingClient, data: list[types.Datum]) -> None:
    futures = (training.forward_backward(data, "cross_entropy"), training.optim_step(ADAM))
    for future in futures:
        future.result()


def timed(call: Callable[[], Any], times: int) -> tuple[float, float]:
    """Return milliseconds: the best, and the median."""
    for _ in range(3):
        call()
    spent: list[float] = []
    for _ in range(times):
        begun = time.perf_counter()
        call()
        spent.append(1000 * (time.perf_counter() - begun))
    return min(spent), statistics.median(spent)


def calls() -> None:
    with engine() as info:
        service, training = connect(info)
        small, large = batch(16, 24), batch(64, 64)
        sampler = training.save_weights_and_get_sampling_client().result()
        prompt = types.ModelInput.from_ints(list(range(1, 9)))

        def sample(n: int, tokens: int) -> Callable[[], Any]:
            parameters = types.SamplingParams(max_tokens=tokens, temperature=1.0, seed=1)
            return lambda: sampler.sample(prompt, n, parameters).result()

        def forward_backward(data: list[types.Datum]) -> Callable[[], Any]:
            return lambda: training.forward_backward(data, "cross_entropy").result()

        floor = timed(service.get_server_capabilities, 100)[1]
        print(f"| call | best ms | median ms | ratio to get_server_capabilities ({floor:.1f} ms) |")
        print("|---|---|---|---|")
        for name, call, times in (
            ("forward_backward, 16 x 24", forward_backward(small), 100),
            ("optim_step", lambda: training.optim_step(ADAM).result(), 100),
            ("both, pipelined", lambda: step(training, small), 100),
            ("forward_backward, 64 x 64", forward_backward(large), 30),
            ("sample, n = 1, 16 tokens", sample(1, 16), 100),
            ("sample, n = 8, 32 tokens", sample(8, 32), 50),
            ("sample, n = 16, 128 tokens", sample(16, 128), 30),
            (
                "save_weights_and_get_sampling_client",
                lambda: training.save_weights_and_get_sampling_client().result(),
                50,
            ),
        ):
            best, median = timed(call, times)
            print(f"| {name} | {best:.1f} | {median:.1f} | {median / floor:.1f} |", flush=True)
        service.close("success").result()


def memory() -> None:
    """Send 10,000 and more requests of every kind, from sessions that come and go and one that
    stays open."""
    with engine() as info:
        process = psutil.Process(info.pid)
        data, requests = batch(16, 24), 0
        prompt, parameters = types.ModelInput.from_ints([1, 2, 3]), types.SamplingParams(
            max_tokens=16, seed=1
        )  # fmt: skip
        lost, _ = connect(info)
        print("\n| requests | MiB held | files under its home |")
        print("|---|---|---|")
        for round_ in range(11):
            held = process.memory_info().rss / 2**20
            files = sum(len(names) for _, _, names in os.walk(info.home))
            print(f"| {requests:,} | {held:.0f} | {files} |", flush=True)
            service, training = connect(info)
            for number in range(200 if round_ < 10 else 0):
                step(training, data)
                training.forward(data, "cross_entropy").result()
                sampler = training.save_weights_and_get_sampling_client().result()
                sampler.sample(prompt, 2, parameters).result()
                requests += 5
                if number % 20 == 0:
                    training.save_state(f"{number}", ttl_seconds=3600).result()
                    requests += 1
            service.close("success").result()
        lost.close("success").result()


def clients() -> None:
    print("| clients, batch | 1 worker, steps/s | 2 workers, steps/s | ratio |")
    print("|---|---|---|---|")
    for count, size, length in ((8, 16, 24), (6, 16, 48), (6, 32, 64), (4, 64, 64)):
        rates: list[float] = []
        for threads in (1, 2):
            with engine(threads) as info:
                command = [sys.executable, __file__, "client", info.home, str(size), str(length)]
                running = [
                    subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
                    for _ in range(count)
                ]
                rates.append(sum(float(client.communicate()[0]) for client in running))
        ratio = rates[1] / rates[0]
        print(
            f"| {count}, {size} x {length} | {rates[0]:.0f} | {rates[1]:.0f} | {ratio:.2f} |",
            flush=True,
        )


def client(home: str, size: int, length: int, seconds: float = 8.0) -> None:
    """Train for a while; print the steps per second."""
    service, training = connect(lifecycle.wait(home))
    data = batch(size, length)
    time.sleep(2.0)  # the others are still importing
    begun, done = time.monotonic(), 0
    while time.monotonic() - begun < seconds:
        step(training, data)
        done += 1
    print(done / (time.monotonic() - begun))
    service.close("success").result()


if __name__ == "__main__":
    if sys.argv[1:2] == ["client"]:
        client(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    elif sys.argv[1:2] == ["memory"]:
        memory()
    else:
        calls()
        memory()
        clients()
