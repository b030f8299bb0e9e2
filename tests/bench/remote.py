"""Measures verbs on a distant remote store, compared with the minimum: one listing of the sweep's
objects and one concurrent `cat` of the same objects by s3fs.

    python tests/bench/remote.py [--runs 300] [--milliseconds 0 20 80] [--verbs status ls ...]

The store is moto's S3 on this machine, behind a proxy that adds a delay to each request. Each of
the finished runs has four events, a small `metrics.jsonl` of 10 rows, and its outcome. Every verb
is a separate process. "First" starts with an empty cache and without the shared process, "again"
with those that it left, "packed" like the first, on a sweep that its launcher packed at the end.
"Local" is the same verb, first and again, on a copy of the sweep on this disk; "listing" is one
listing by s3fs alone. "Extra CPU" is the verb's own time above that of the local one, without
the shared process. Requests "in turn" waited for each other: without load, they and the delay take
most of the seconds. "MB" is the peak memory of the verb and of the shared process.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

from sync import BUCKET, EVENTS, Server, s3

from sweeper.launcher.launching import pack_results
from sweeper.store.opening import open_store
from sweeper.sweep.folder import SweepFolder

T = TypeVar("T")

NAME = "s"
VERBS = {
    "status": ["status", NAME, "--json"],
    "ls": ["ls", NAME, "--json"],
    "sql": ["sql", "select count(*) from metrics"],
    "gc": ["store", "gc"],
    "analyze": ["analyze", NAME],
}
COLUMNS = (
    *("", "local, s", "first, s", "above local, times the minimum", "requests, in turn"),
    *("again, s", "above local, s", "extra CPU, s", "requests, in turn", "packed, s"),
    *("above local, times the minimum", "requests, in turn", "MB"),
)
_METHODS = (b"GET ", b"PUT ", b"POST ", b"HEAD ", b"DELETE ")


def files(count: int) -> dict[str, bytes]:
    """Return the files of a sweep of `count` finished runs, by their paths."""
    runs = [f"{number:012x}" for number in range(count)]
    planned = [
        {"id": run, "name": f"lr={number % 20},seed={number // 20}", "cell": f"lr={number % 20}",
         "seed": number // 20, "config": {"lr": number % 20}}
        for number, run in enumerate(runs)
    ]  # fmt: skip
    plan = {"schema": 1, "name": NAME, "metric": {"name": "x", "goal": "minimize"}}
    plan |= {"recipe": {}, "launch": {}, "axes": {"lr": [*range(20)]}, "runs": planned}
    made = {f"{NAME}/sweep.json": json.dumps(plan).encode()}
    made |= {f"{NAME}/launcher/{name}": name.encode() for name in ("1", "1.beat", "1.released")}
    when = "2026-01-31T12:00:00Z"
    body = {"schema": 1, "time": when, "started": when, "ended": when, "code": 0, "wall_s": 1.5}
    for number, run in enumerate(runs):
        for event in EVENTS:
            made[f"{NAME}/state/{run}/1.{event}.json"] = json.dumps(body).encode() + b"\n"
        rows = (
            json.dumps({"step": step, "x": number % 20 + (number * 7 % 11) / 10 + 1 / (1 + step)})
            for step in range(10)
        )
        made[f"{NAME}/runs/{run}.1/metrics.jsonl"] = "".join(f"{row}\n" for row in rows).encode()
    return made


async def _serve(target: int, seconds: float) -> None:
    """Forward connections to the port `target`, each request after a delay. Print this server's
    port, then for each part of an answer its connection and the times of the request and the
    part."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back_reader, back_writer = await asyncio.open_connection("127.0.0.1", target)
        begun = 0.0

        async def requests() -> None:
            nonlocal begun
            with suppress(ConnectionError):
                while data := await reader.read(1 << 16):
                    if data.startswith(_METHODS):
                        begun = time.monotonic()
                        await asyncio.sleep(seconds)
                    back_writer.write(data)
                    await back_writer.drain()
            back_writer.close()

        async def answers() -> None:
            with suppress(ConnectionError):
                while data := await back_reader.read(1 << 16):
                    writer.write(data)
                    await writer.drain()
                    print(id(writer), begun, time.monotonic(), flush=True)
            writer.close()

        await asyncio.gather(requests(), answers())

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


class Distance:
    """A server that is far away: its `address`, and the requests to it."""

    def __init__(self, lines: IO[str]) -> None:
        self.address = f"http://127.0.0.1:{next(lines).strip()}"
        self._ended: dict[tuple[str, float], float] = {}
        threading.Thread(target=self._read, args=(lines,), daemon=True).start()

    def _read(self, lines: IO[str]) -> None:
        for line in lines:
            connection, begun, ended = line.split()
            self._ended[connection, float(begun)] = float(ended)

    def during(self, action: Callable[[], T]) -> tuple[T, int, int]:
        """Return the result of `action`, how many requests it made, and how many of them waited
        for each other: the largest number of requests that do not overlap."""
        last, count = time.monotonic(), 0
        before = len(self._ended)
        result = action()
        time.sleep(0.3)  # for lines that are still in the pipe
        spans = [(ended, begun) for (_, begun), ended in [*self._ended.items()][before:]]
        for ended, begun in sorted(spans):
            if begun >= last:
                count, last = count + 1, ended
        return result, len(spans), count


@contextmanager
def delayed(address: str, milliseconds: float) -> Iterator[Distance]:
    """Yield the same server with a delay on each request."""
    port = address.rpartition(":")[2]
    command = [sys.executable, __file__, "--serve", port, str(milliseconds / 1e3)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Distance(process.stdout)
        finally:
            process.terminate()


def minimum(root: str) -> tuple[float, float]:
    """Return the seconds of one listing by s3fs, and of that and one `cat` of all outcomes and
    metrics."""
    program = (
        "import s3fs, sys, time\n"
        "fs = s3fs.S3FileSystem(config_kwargs={'max_pool_connections': 32})\n"
        "begun = time.perf_counter()\n"
        "names = fs.find(sys.argv[1])\n"
        "print(time.perf_counter() - begun)\n"
        "wanted = [n for n in names if n.endswith(('.succeeded.json', '.jsonl', 'sweep.json'))]\n"
        "fs.cat(wanted, batch_size=32)\n"
        "print(time.perf_counter() - begun)\n"
    )
    command = [sys.executable, "-c", program, root.removeprefix("s3://")]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    listing, both = map(float, printed.split())
    return listing, both


class Run(NamedTuple):
    """A verb's seconds as a separate process, its peak memory in MB, its processor seconds (which
    depend less on other load of the machine), its requests, and those that waited for each
    other."""

    seconds: float
    memory: float
    processor: float
    requests: int = 0
    in_turn: int = 0


_SMALL_PARENT = (
    "import os, sys\n"
    "child = os.posix_spawn(sys.executable, [sys.executable, *sys.argv[1:]], os.environ)\n"
    "_, status, usage = os.wait4(child, 0)\n"
    "print('\\n', usage.ru_maxrss, usage.ru_utime + usage.ru_stime, file=sys.stderr)\n"
    "sys.exit(os.waitstatus_to_exitcode(status))\n"
)
"""A process starts with the peak memory of its parent."""


def run(verb: list[str], root: str, cache: str) -> Run:
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _SMALL_PARENT, "-m", "sweeper", *verb],
        env=os.environ | {"XDG_CACHE_HOME": cache, "SWEEPER_ROOT": root},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{' '.join(verb)}: {done.stderr or done.stdout}")
    memory, processor = map(float, done.stderr.split()[-2:])
    return Run(time.perf_counter() - begun, memory / 1e3, processor)


def best(runs: Iterable[Run]) -> Run:
    """Return the quickest run. On a busy machine, slower runs measure the other work."""
    return min(runs)


def counted(far: Distance, verb: list[str], root: str, cache: str) -> Run:
    """Run a verb and count its requests."""
    result, requests, in_turn = far.during(lambda: run(verb, root, cache))
    return result._replace(requests=requests, in_turn=in_turn)


def shared_memory(root: str) -> float:
    """Return the peak memory in MB of the process through which this root is reached."""
    most = 0.0
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (folder / "cmdline").read_bytes().decode().split("\0")
            if words[-3:-1] == ["sweeper.store.serving", root]:
                lines = (folder / "status").read_text().splitlines()
                peak = next(line for line in lines if line.startswith("VmHWM"))
                most = max(most, int(peak.split()[1]) / 1e3)
    return most


def measure(server: Server, count: int, milliseconds: float, verbs: list[str], rounds: int) -> None:
    """Print a line for each verb."""
    pack = f"{BUCKET}/{count}/{NAME}/packed.jsonl"
    with tempfile.TemporaryDirectory() as folder:
        local, root = f"{folder}/local", f"s3://{BUCKET}/{count}"
        near = written(server, count, local, root)
        with delayed(server.address, milliseconds) as far:
            os.environ["AWS_ENDPOINT_URL"] = far.address
            near.rm_file(pack)
            seconds, requests, in_turn = far.during(lambda: minimum(root))
            listing, floor = min([seconds, *(minimum(root) for _ in range(rounds - 1))])
            print(
                f"\n{count} runs, {milliseconds:g} ms a request: the minimum {floor:.2f} s, "
                f"of which the listing {listing:.2f} s, by {requests} requests, {in_turn} in turn; "
                f"load {os.getloadavg()[0]:.0f}\n"
            )
            print(f"| {' | '.join(COLUMNS)} |\n" + "|---" * len(COLUMNS) + "|")
            for verb in verbs:
                runs = [timed(far, VERBS[verb], local, root) for _ in range(rounds)]
                cells = [best(column) for column in zip(*runs, strict=True)]
                near.pipe_file(pack, PACKS[count])
                with tempfile.TemporaryDirectory() as cache:
                    packed = best(
                        counted(far, VERBS[verb], root, f"{cache}/{number}")
                        for number in range(rounds)
                    )
                near.rm_file(pack)
                above = max(0.0, packed.seconds - cells[0].seconds) / floor
                print(
                    f"| `{verb}` | {summary(cells, floor)} | {packed.seconds:.2f} | {above:.1f} "
                    f"| {requests(packed)} | {packed.memory:.0f} and {shared_memory(root):.0f} |",
                    flush=True,
                )
            near.pipe_file(pack, PACKS[count])


def written(server: Server, count: int, local: str, root: str) -> Any:
    """Write the sweep to the disk, and to the store unless it is there. Return a file system that
    reaches the store without delay."""
    import s3fs

    os.environ["AWS_ENDPOINT_URL"] = server.address
    made = files(count)
    for path, data in made.items():
        file = Path(local, path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    near: Any = s3fs.S3FileSystem(
        skip_instance_cache=True, use_listings_cache=False, endpoint_url=server.address
    )
    where = root.removeprefix("s3://")
    if count not in PACKS:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda path: near.pipe_file(f"{where}/{path}", made[path]), made))
        pack_results(SweepFolder(open_store(root), NAME))
        PACKS[count] = near.cat_file(f"{where}/{NAME}/packed.jsonl")
    return near


PACKS: dict[int, bytes] = {}


def timed(far: Distance, verb: list[str], local: str, root: str) -> list[Run]:
    """Run a verb on the copy on this disk, first and again, and on the store, first and again."""
    with tempfile.TemporaryDirectory() as cache:
        here = [run(verb, local, f"{cache}/local") for _ in range(2)]
        return [*here, *(counted(far, verb, root, f"{cache}/remote") for _ in range(2))]


def summary(cells: list[Run], floor: float) -> str:
    """Describe the result of `timed`: the first run's time above local as a multiple of the
    minimum, the second's in seconds."""
    local, local_again, first, again = cells
    times = max(0.0, first.seconds - local.seconds) / floor
    later = max(0.0, again.seconds - local_again.seconds)
    processor = max(0.0, again.processor - local_again.processor)
    return (
        f"{local.seconds:.2f} | {first.seconds:.2f} | {times:.1f} | {requests(first)} "
        f"| {again.seconds:.2f} | {later:.2f} | {processor:.2f} | {requests(again)}"
    )


def requests(run: Run) -> str:
    return f"{run.requests}, {run.in_turn}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--runs", type=int, nargs="*", default=[300, 1000])
    parser.add_argument("--milliseconds", type=float, nargs="*", default=[0, 20, 80])
    parser.add_argument("--rounds", type=int, default=2, help="rounds; the quickest one counts")
    parser.add_argument("--verbs", nargs="*", default=[*VERBS])
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(_serve(int(given.serve[0]), float(given.serve[1])))
        return
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with s3() as server:
        for count in given.runs:
            for milliseconds in given.milliseconds:
                measure(server, count, milliseconds, given.verbs, given.rounds)


if __name__ == "__main__":
    main()
