"""Measures the cost of syncing, against moto's S3 over HTTP on this machine.

    python tests/bench/sync.py [--steps 10000] [--runs 100]

Bytes are those of the objects sent and read; requests are counted by the server.
"""

import argparse
import json
import os
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

sys.path.append(str(Path(__file__).resolve().parents[1]))

from support.moto_server import serving

from sweeper.results.registry import Registry
from sweeper.store.base import Store
from sweeper.store.local import LocalStore
from sweeper.store.opening import open_store
from sweeper.sweep.folder import SweepFolder
from sweeper.worker.syncing import Sync

NAME = "s"
EVENTS = ("intent", "submitted", "claimed", "succeeded")
BUCKET = "bench"


class Server:
    """moto in a separate process. `requests` counts by method; `log` has the method and the path of
    each request, or the prefix of a listing, below the root's first folder."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.log: list[tuple[str, str]] = []
        self.address = ""

    def count(self, line: str) -> None:
        """Count the request of a line of moto's log."""
        plain = re.sub(r"\x1b\[[0-9;]*m", "", line)  # it colours everything but a plain 200
        if match := re.search(r'"(GET|PUT|POST|HEAD|DELETE) (\S+)', plain):
            address = urlsplit(match[2])
            prefix = parse_qs(address.query).get("prefix", [""])[0]
            listing = match[1] == "GET" and "list-type" in address.query
            path = f"{BUCKET}/{prefix}" if listing else unquote(address.path).lstrip("/")
            method = "LIST" if listing else match[1]
            self.requests[method] += 1
            self.log.append((method, "/".join(path.split("/")[3:])))

    def during(self, action: Callable[[], object]) -> tuple[Counter[str], float]:
        """Return the requests and seconds of `action`."""
        time.sleep(0.3)  # for lines that are still in the pipe
        before, begun = self.requests.copy(), time.perf_counter()
        action()
        seconds = time.perf_counter() - begun
        time.sleep(0.3)
        return self.requests - before, seconds


@contextmanager
def s3() -> Iterator[Server]:
    server = Server()
    with serving(server.count) as (server.address, _):
        os.environ["AWS_ENDPOINT_URL"] = server.address
        os.environ["AWS_ACCESS_KEY_ID"] = os.environ["AWS_SECRET_ACCESS_KEY"] = "testing"
        os.environ["AWS_DEFAULT_REGION"] = "us-east-1"
        import s3fs

        s3fs.S3FileSystem(skip_instance_cache=True).mkdir(BUCKET)
        yield server


class Counted:
    """A store that counts uploaded and downloaded bytes."""

    def __init__(self, store: Store) -> None:
        self.up = self.down = 0
        self._store = store

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if name in ("create", "replace"):
                self.up += len(arguments[1])
            elif name == "upload":
                self.up += os.stat(arguments[1]).st_size
            result = getattr(self._store, name)(*arguments)
            if name in ("read", "read_range"):
                self.down += len(result)
            return result

        return call


def row(step: int) -> bytes:
    values = {f"train/key_{key:02d}": 1 / (1 + step + key) for key in range(20)}
    return json.dumps({"step": step, **values}).encode() + b"\n"


def one_long_run(server: Server, root: str, spool: LocalStore, steps: int, every: int) -> None:
    store = Counted(open_store(root))
    folder = SweepFolder(spool, NAME)
    sync: Any = Sync(store, folder, "long", 1, fresh=True)  # type: ignore[arg-type]
    path = Path(spool.root, folder.log_path("long", 1), "metrics.jsonl")
    path.parent.mkdir(parents=True)

    def run() -> None:
        with path.open("ab") as file:
            for step in range(steps):
                file.write(row(step))
                if step % every == every - 1:
                    file.flush()
                    sync.step()
        sync.finish()

    requests, seconds = server.during(run)
    written = path.stat().st_size
    assert open_store(root).read(f"{folder.log_path('long', 1)}/metrics.jsonl") == path.read_bytes()
    print(
        f"{steps} steps, a sync every {every}: {written / 1e6:.2f} MB written, "
        f"{store.up / written:.2f} times that up, {store.down} bytes down, "
        f"{sum(requests.values())} requests ({_counts(requests)}), {seconds:.1f} s"
    )


def many_runs(server: Server, root: str, spool: LocalStore, runs: int) -> None:
    """Sync each run in a thread with its own client, all at the same moment."""
    sweep = SweepFolder(spool, NAME)
    syncs: list[Any] = []
    for run in range(runs):
        folder = Path(spool.root, sweep.log_path(f"r{run}", 1))
        folder.mkdir(parents=True)
        (folder / "metrics.jsonl").write_bytes(b"".join(map(row, range(100))))
        store = open_store(root)
        store.exists("x")  # leaves out the time to make a client
        syncs.append(Sync(store, sweep, f"r{run}", 1, fresh=True))
    for what in ("step", "finish"):

        def together(what: str = what) -> None:
            threads = [threading.Thread(target=getattr(sync, what)) for sync in syncs]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        requests, seconds = server.during(together)
        count = sum(requests.values())
        print(
            f"{runs} runs at once, {what}: {count} requests ({_counts(requests)}), {seconds:.1f} s"
        )
    names = set(open_store(root).names(sweep.runs))
    assert all(f"{sweep.log_path(f'r{run}', 1)}/metrics.jsonl" in names for run in range(runs))


def finding(server: Server, root: str, count: int, folder: str) -> None:
    """Write a sweep of this many finished runs, with four events and one metrics file each."""
    root = f"{root}/{count}"
    store = open_store(root)
    runs = [f"{number:012x}" for number in range(count)]
    planned = [{"id": run, "name": run, "cell": run, "seed": None, "config": {}} for run in runs]
    plan = {"schema": 1, "name": "s", "metric": {"name": "x", "goal": "minimize"}}
    plan |= {"recipe": {}, "launch": {}, "runs": planned}
    store.replace("s/sweep.json", json.dumps(plan).encode())
    paths = [
        path
        for run in runs
        for path in (
            *(f"s/state/{run}/1.{word}.json" for word in EVENTS),
            f"s/runs/{run}.1/metrics.jsonl",
        )
    ]
    import concurrent.futures

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda path: store.replace(path, b'{"step": 0, "x": 1.0}\n'), paths))

    def listed() -> None:
        sweep = Registry(root, cache=False).sweep("s")
        assert len(sweep.runs) == count
        assert len(sweep.files.entries()) == count

    def sweeps() -> None:
        [record] = Registry(root, cache=folder).sweep_records()
        assert record["states"] == {"succeeded": count}

    def runs_() -> None:
        records = Registry(root, cache=folder).records()
        assert [record["value"] for record in records] == [1.0] * count

    def metrics() -> None:
        assert len(Registry(root, cache=folder).metrics(keys=["x"])) == count

    print(f"{count} runs, {len(paths) + 1} keys:")
    actions = {"find and list": listed, "sweeps": sweeps, "runs": runs_, "runs again": runs_}
    for what, action in (actions | {"metrics": metrics, "metrics again": metrics}).items():
        requests, seconds = server.during(action)
        total = sum(requests.values())
        print(f"  {what}: {total} requests ({_counts(requests)}), {seconds:.2f} s")


def _counts(requests: Counter[str]) -> str:
    return ", ".join(f"{count} {word}" for word, count in sorted(requests.items())) or "none"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=100)
    given = parser.parse_args()
    with s3() as server, tempfile.TemporaryDirectory() as folder:
        spool = LocalStore(folder)
        for every in (10, 100):
            root = f"s3://{BUCKET}/every-{every}"
            one_long_run(server, root, LocalStore(f"{folder}/{every}"), given.steps, every)
        many_runs(server, f"s3://{BUCKET}/many", spool, given.runs)
        for count in (10, 100, 1000):
            finding(server, f"s3://{BUCKET}/finding", count, f"{folder}/cache")


if __name__ == "__main__":
    main()
