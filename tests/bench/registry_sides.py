"""One side of tests/bench/registry.py, in a separate process: prints seconds by case as JSON.

python tests/bench/registry_sides.py ours|cookbook FOLDER KEY CASES
"""

import gc
import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any


def timed(call: Callable[[], Any], rounds: int = 1) -> float:
    """Return the median seconds of this many calls; garbage is collected before each."""
    times: list[float] = []
    for _ in range(rounds):
        gc.collect()
        begun = time.perf_counter()
        result = call()
        times.append(time.perf_counter() - begun)
        del result
    return statistics.median(times)


def measured(calls: dict[str, Callable[[], Any]], cases: list[str]) -> dict[str, float]:
    """Measure quick calls five times: those that read from the cache, or only the last lines."""
    quick, once = ("later", "same objects", "last values"), {"first", "cold"}
    return {
        name: timed(
            call, 5 if any(word in name for word in quick) and not once & {*name.split()} else 1
        )
        for name, call in calls.items()
        if name in cases
    }


def append(folder: str, lines: int = 10) -> str:
    """Append ten new lines to one of the runs."""
    runs = f"{folder}/many/runs"
    path = f"{runs}/{sorted(os.listdir(runs))[-1]}/metrics.jsonl"
    with open(path, "rb") as file:
        row = json.loads(file.readline())
    with open(path, "a") as file:
        for step in range(lines):
            file.write(json.dumps({**row, "step": 1_000_000 + step}) + "\n")
    return path


def ours(folder: str, key: str, cases: list[str]) -> dict[str, float]:
    import pandas  # noqa: F401 - not part of what is measured
    import pyarrow  # noqa: F401

    from sweeper.results.metrics_reader import Tabulator  # noqa: F401
    from sweeper.results.registry import Registry

    def registry(**options: Any) -> Registry:
        return Registry(folder, **options)

    def means() -> Any:
        frame = registry().rollouts(keys=["total_reward"])
        return frame.groupby("run", observed=True)["total_reward"].mean()

    sql = f'select run, min("{key}") from metrics group by run'  # noqa: S608
    calls: dict[str, Callable[[], Any]] = {
        "one key, first": lambda: registry().metrics(keys=[key]),
        "one key, without a cache": lambda: registry(cache=False).metrics(keys=[key]),
        "all keys, first": lambda: registry().metrics(),
        "all keys, without a cache": lambda: registry(cache=False).metrics(),
        "all keys, later": lambda: registry().metrics(),
        "one key, later": lambda: registry().metrics(keys=[key]),
        "one key, SQL, later": lambda: registry().sql(sql),
        "last values, cold": lambda: registry().records(),
        "last values, first": lambda: registry().records(),
        "last values, later": lambda: registry().records(),
        "rollouts, first": means,
        "rollouts, later": means,
    }
    seconds = measured(calls, cases)
    seconds["peak MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if "new lines" in cases:
        follower = registry().follow()
        follower.poll()
        append(folder)
        news: list[Any] = []
        seconds["new lines"] = timed(lambda: news.extend(follower.poll()))
        assert [len(news_of_run.rows) for news_of_run in news] == [10]
        seconds["new lines, floor"] = floor(folder)
        cached = registry()
        cached.metrics(keys=[key])
        append(folder)
        seconds["new lines, one key of all"] = timed(lambda: cached.metrics(keys=[key]))
    return seconds


def floor(folder: str) -> float:
    """Measure the minimum: scandir, a stat of each file, and a pread of the new bytes."""
    runs = f"{folder}/many/runs"
    with os.scandir(runs) as items:
        sizes = {item.path: os.stat(f"{item.path}/metrics.jsonl").st_size for item in items}
    append(folder)

    def check() -> None:
        with os.scandir(runs) as items:
            for item in items:
                path = f"{item.path}/metrics.jsonl"
                size = os.stat(path).st_size
                if size != sizes[item.path]:
                    descriptor = os.open(path, os.O_RDONLY)
                    os.pread(descriptor, size - sizes[item.path], sizes[item.path])
                    os.close(descriptor)

    return timed(check)


def cookbook(folder: str, key: str, cases: list[str]) -> dict[str, float]:
    import logging

    from tinker_cookbook.recipes.chat_sl.sweep.results import collect
    from tinker_cookbook.stores.registry import RunRegistry
    from tinker_cookbook.stores.storage import storage_from_uri

    logging.disable(logging.CRITICAL)
    runs = f"{folder}/many/runs"
    opened: list[Any] = []

    def stores() -> list[Any]:
        registry = RunRegistry([storage_from_uri(runs)])
        return [registry.get_training_store(info.run_id) for info in registry.get_runs()]

    def everything() -> Any:
        opened[:] = stores()
        return [store.read_metrics() for store in opened]

    def one_key() -> Any:
        return [[row[key] for row in rows] for rows in everything()]

    def means() -> Any:
        averages: list[float] = []
        for store in stores():
            rewards = [
                record["total_reward"]
                for info in store.list_iterations()
                for record in store.read_rollouts(info.iteration)
            ]
            averages.append(sum(rewards) / len(rewards))
        return averages

    calls: dict[str, Callable[[], Any]] = {
        "all keys": everything,
        "one key": one_key,
        "one key, same objects": lambda: [[r[key] for r in s.read_metrics()] for s in opened],
        "last values": lambda: collect(runs, require_complete=False),
        "rollouts": means,
    }
    seconds = measured(calls, cases)
    seconds["peak MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if "new lines" in cases:
        append(folder)
        seconds["new lines"] = timed(lambda: [store.read_new_metrics() for store in opened])
    return seconds


if __name__ == "__main__":
    side, where, name, wanted = sys.argv[1:]
    print(json.dumps({"ours": ours, "cookbook": cookbook}[side](where, name, json.loads(wanted))))
