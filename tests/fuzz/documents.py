"""Fuzz the documents in a store: if a document of a sweep is damaged, every verb reports it in one
line, and shows the other documents correctly.

    python tests/fuzz/documents.py [--cases N] [--seed N] [--jobs N]

Two sweeps, `bad` and `good`, are really launched (with a failed run, retries, alarms, checkpoints,
rollouts). The folder of a run of another program is beside them. Each case changes one document of
`bad`, of that folder or of the cache (shapes.py), and then runs some verbs in this process, or
steps a launcher of the sweep. A case fails if a verb ends with an undocumented exit code or with "a
bug in sweeper", if anything but a `SweeperError` is raised, if a verb takes longer than a minute,
or if `ls` shows `good` differently. Prints the counts; exit code 1 when a case failed.
"""

import argparse
import contextlib
import io
import json
import logging
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from shapes import mutated, mutated_lines

from sweeper.sweep.folder import SweepFolder

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

CODES = (0, 2, 3, 4, 5, 6)
SECONDS = 60
VERBS = 5
"""The number of verbs of a case, besides `ls`."""

PROGRAM = """
import json, os, sys
folder, lr = os.environ["SWEEPER_RUN_DIR"], float(sys.argv[1])
def write(name, *rows):
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "a") as file:
        file.writelines(json.dumps(row) + "\\n" for row in rows)
loss = float("nan") if lr == 3 else 1 / lr
write("config.json", {"lr": lr, "nested": {"a": [1, 2]}})
write("metrics.jsonl", *({"step": s, "loss": loss, "text": "x", "list": [s]} for s in range(20)))
if lr == 2:
    sys.exit(3)
write("checkpoints.jsonl", {"name": "000010", "batch": 10, "state_path": "tinker://x/weights/1"},
      {"name": "final", "batch": 19, "final": True, "sampler_path": "tinker://x/sampler/1"})
turn = {"ob_len": 3, "ac_len": 4, "reward": 1.0, "metrics": {"correct": 1.0}, "logs": {"a": "yes"}}
write("iteration_000001/train_rollout_summaries.jsonl", *(
    {"iteration": 1, "group_idx": g, "traj_idx": 0, "total_reward": 0.5, "final_reward": 0.0,
     "tags": ["t"], "split": "train", "steps": [turn], "trajectory_metrics": {"m": 2.0}}
    for g in range(2)))
said = {"type": "conversation", "messages": [{"role": "user", "content": "1 + 1"},
        {"role": "assistant", "content": [{"type": "text", "text": "2"}], "tool_calls": []}]}
group = {"tag": "section", "children": [{"tag": "h2", "children": ["Group"]}, {"data": said}]}
write("iteration_000001/train_logtree.json", {"root": {"children": [group, group]}})
"""

SQL = (
    "select * from runs",
    "select * from metrics",
    "select * from rollouts",
    "select * from checkpoints",
    "select run, min(loss) from runs join metrics using (run, sweep) group by 1",
)
VERBS_OF_ALL: tuple[tuple[str, ...], ...] = (
    *(("status",), ("status", "--json"), ("status", "bad"), ("status", "bad", "--json")),
    *(("ls",), ("ls", "bad"), ("ls", "--metric", "loss"), ("ls", "--where", "lr < 5")),
    *(("show", "RUN"), ("show", "RUN", "--json"), ("show", "mine/x")),
    ("compare", "bad/*", "--json"),
    *(("note", "bad"), ("note", "RUN", "--json"), ("ls", "--tag", "x")),
    ("doctor", "notify", "bad"),
    *(("compare", "bad/*"), ("rollouts", "RUN"), ("rollouts", "RUN", "--full")),
    *(("rollouts", "RUN", "--json"), ("alarms", "bad"), ("alarms", "bad", "--json")),
    *(("store", "gc"), ("store", "gc", "--json"), ("store", "gc", "--attempts")),
    *(("logs", "bad"), ("plan", "GRID")),
    *(("plan", "GRID", "--json"), ("engine", "status")),
    *(("sql", query) for query in SQL),
    *(("sql", query, "--json") for query in SQL),
    *(("export", "--format", "csv", "--table", table, "--out", "OUT")
      for table in ("runs", "metrics", "rollouts", "checkpoints")),
    ("export", "--format", "parquet", "--table", "metrics", "--out", "OUT"),
    *(("LOOK",), ("LAUNCHER",), ("LAUNCHER",), ("READY",), ("WORKER",), ("FRAMES",)),
    ("VAULT",),
)  # fmt: skip
"""Command lines. RUN, GRID and OUT are replaced; other words in capitals are keys of `_OTHERS`."""
SELDOM = ("analyze", "bad", "--no-pictures", "--out", "OUT")
"""This verb takes a second."""


def launched(top: Path) -> None:
    """Launch two real sweeps, and write a folder as another program would leave it."""
    import numpy

    import sweeper
    from sweeper.engine.checkpoints import Checkpoint, Place, Vault
    from sweeper.engine.lora import LoraConfig
    from sweeper.engine.optimizer import Moments
    from sweeper.sweep import environment_file

    os.chdir(top)
    (top / "program.py").write_text(PROGRAM)
    grid = {
        "command": [sys.executable, str(top / "program.py"), "{lr}"],
        "grid": {"lr": [1, 2, 3, 4]},
        "metric": {"name": "loss", "goal": "minimize"},
        "on_alarm": {"run": ["true", "{name}"]},
        "launch": {"backend": "local", "retries": 1, "resume": "never", "max_parallel": 4},
    }
    for name in ("bad", "good"):
        sweeper.launch(grid | {"name": name}, root=str(top / "root"), live=True)
    text = {"name": "bad", "seeds": 2} | {key: grid[key] for key in ("command", "grid", "launch")}
    (top / "bad.yaml").write_text(json.dumps(text))
    done = min((top / "root" / "bad" / "runs").glob("*.1/iteration_000001")).parent
    shutil.copytree(done, top / "root" / "mine" / "x")
    with (top / "root" / "mine" / "x" / "metrics.jsonl").open("a") as file:  # enough to be cached
        for step in range(100, 4100):
            row = {"step": step, **{f"m/{key}": step / (key + 1) for key in range(10)}}
            file.write(json.dumps(row) + "\n")
    environment = environment_file.write(str(top / "root" / "bad"), {})
    os.utime(environment, (1, 1))
    vault = Vault(str(top / "vault"))
    for name in ("000010", "final"):
        arrays = {"0.q.A": numpy.ones((2, 3), numpy.float32)}
        moments = Moments(arrays, arrays, 7)
        made = Checkpoint("m", LoraConfig(rank=2), arrays, moments, {"k": "v"})
        vault.save(Place("0a-1:train:0", "weights", name), made)
    # One run looks as if it were running: it has a heartbeat, and no outcome.
    run = done.name.partition(".")[0]
    (top / "root" / "bad" / "state" / run / "1.succeeded.json").unlink()
    beat = top / "root" / "bad" / "heartbeats" / f"{run}.1"
    if not beat.exists():
        raise SystemExit(f"no heartbeat {beat}")
    body = json.loads(beat.read_text())
    body["paused"] = {"reason": "rate_limit", "since": "2026-01-01T00:00:00Z"}
    beat.write_text(json.dumps(body))


def documents(top: Path) -> dict[str, list[Path]]:
    """Return the documents that cases change, by kind."""
    from sweeper.engine.lifecycle import record_path

    bad, mine, home = top / "root" / "bad", top / "root" / "mine" / "x", top / "home"
    targets = {
        "plan": [bad / "sweep.json"],
        "service": [bad / "launcher" / "service.json"],
        "observations": [bad / "launcher" / "observations.json"],
        "judged": list(bad.glob("launcher/judged.json")),
        "events": sorted(bad.glob("state/*/*.json")),
        "heartbeats": sorted(bad.glob("heartbeats/*")),
        "alarms": sorted(bad.glob("alarms/*.json")),
        "jobs": sorted(bad.glob("attempts/*/job.json")),
        "metrics": [*sorted(bad.glob("runs/*/metrics.jsonl")), mine / "metrics.jsonl"],
        "checkpoints": [*sorted(bad.glob("runs/*/checkpoints.jsonl")), mine / "checkpoints.jsonl"],
        "config": [mine / "config.json"],
        "rollouts": sorted(bad.glob("runs/*/*/*_rollout_summaries.jsonl")),
        "transcripts": sorted(bad.glob("runs/*/*/*_logtree.json")),
        "cache": sorted(path for path in home.glob("cache/v*/*/*") if path.name != "root"),
        "environments": sorted(home.glob("environments/*.json")),
        "engine": [Path(record_path(str(home)))],
        "vault": sorted((top / "vault").rglob("*.json")),
    }
    missing = [kind for kind, paths in targets.items() if not paths or not paths[0].exists()]
    if missing:
        raise SystemExit(f"the sweep has left no {', '.join(missing)}")
    return targets


class Never(BaseException):
    """A verb takes too long."""


@contextlib.contextmanager
def limited() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise Never

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class World:
    """The sweeps that the cases change, one after the other; `top` is a copy for this process."""

    def __init__(self, top: Path, seed: int) -> None:
        self.top, self.seed = top, seed
        from sweeper.engine.lifecycle import record_path

        os.environ["SWEEPER_HOME"] = str(top / "home")
        os.environ["SWEEPER_ROOT"] = str(top / "root")
        os.environ.pop("SWEEPER_DEBUG", None)
        os.chdir(top)
        self._type("ls", "--json")  # fills the cache
        self._type("sql", SQL[1])
        self._type("sql", SQL[2])
        engine = Path(record_path(str(top / "home")))
        engine.parent.mkdir(parents=True, exist_ok=True)
        record = {"url": "http://127.0.0.1:9", "pid": 1, "started": "2026-01-01T00:00:00Z"}
        record |= {"version": "0", "models": ["m"], "aliases": {"a": "m"}}
        engine.write_text(json.dumps(record))
        self.original = top.parent / f"{top.name}.original"
        shutil.copytree(top, self.original, symlinks=True)
        self.documents = documents(top)
        _, out, _ = self._type("ls", "--json")
        self.good = self._good(out)
        assert len(self.good) == 4, out
        self.runs = [row["name"] for row in json.loads(out)["runs"] if row["sweep"] == "bad"]

    def _type(self, *words: str) -> tuple[int, str, str]:
        from sweeper.cli import main

        streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2)]
        with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
            try:
                code = main(list(words))
            except SystemExit as error:  # argparse
                code = error.code if isinstance(error.code, int) else 1
        texts: list[str] = []
        for stream in streams:
            stream.flush()
            texts.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
        return code, *texts

    def _good(self, out: str) -> list[Any]:
        return [row for row in json.loads(out)["runs"] if row["sweep"] == "good"]

    def case(self, number: int) -> tuple[str, str | None, list[str], Counter[int]]:
        """Run a case. Return the kind of document, the failure, the last verb, the exit codes."""
        rng = random.Random(f"{self.seed}/{number}")
        kind = rng.choice([*self.documents, "plan", "plan", "plan", "events", "metrics"])
        path = rng.choice(self.documents[kind])
        before, typed = path.read_bytes(), list[str]()
        codes: Counter[int] = Counter()
        try:
            self._change(path, kind, before, rng)
            verbs = [("ls", "--json"), *rng.sample(VERBS_OF_ALL, VERBS)]
            verbs += [(_EXTRA_VERB[kind],)] if kind in _EXTRA_VERB else []
            verbs += [SELDOM] if rng.random() < 0.02 else []
            for words in verbs:
                typed[:] = [" ".join(words)]
                wrong = self._judge(words, rng, codes)
                if wrong is not None:
                    return kind, wrong, typed, codes
        except Never:
            return kind, f"more than {SECONDS} s", typed, codes
        finally:
            self._restore()
        return kind, None, typed, codes

    def _change(self, path: Path, kind: str, data: bytes, rng: random.Random) -> None:
        how = rng.random()
        path.unlink()
        if how < 0.02:
            path.mkdir()  # as unreadable as a file without read permission
        elif how < 0.03:
            path.symlink_to(path.name)
        elif how < 0.04:
            path.symlink_to("nowhere")
        elif kind == "cache":
            path.write_bytes(_cached(data, rng))
        elif path.suffix == ".jsonl":
            path.write_bytes(mutated_lines(data, rng))
        else:
            path.write_bytes(mutated(data, rng))
        if how > 0.5 and path.is_file():  # readers cache files that are older than some seconds
            os.utime(path, (1, 1))

    def _restore(self) -> None:
        for name in ("root", "home", "vault"):
            shutil.rmtree(self.top / name, ignore_errors=True)
            shutil.copytree(self.original / name, self.top / name, symlinks=True)

    def _judge(self, words: tuple[str, ...], rng: random.Random, codes: Counter[int]) -> str | None:
        """Run a verb, and return its failure."""
        with limited():
            if words[0] in _OTHERS:
                return self._call(words[0], rng, codes)
            names = {
                "RUN": f"bad/{rng.choice(self.runs)}",
                "GRID": str(self.top / "bad.yaml"),
                "OUT": str(self.top / "out"),
            }
            code, out, err = self._type(*(names.get(word, word) for word in words))
        codes[code] += 1
        if code not in CODES or "a bug in sweeper" in err or "Traceback" in out + err:
            return f"{code}: {err[-400:]}"
        if words == ("ls", "--json") and (code not in (0, 6) or self._good(out) != self.good):
            return f"another good, and {code}: {err[-400:]}"
        return None

    def _call(self, name: str, rng: random.Random, codes: Counter[int]) -> str | None:
        from sweeper.errors import SweeperError

        try:
            _OTHERS[name](self, rng)
        except SweeperError as error:
            codes[error.exit_code] += 1
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            return f"{type(error).__name__}: {error}"[:300]
        return None

    def check(self, rng: random.Random) -> None:
        """Poll the sweep as the live view does."""
        del rng
        from sweeper.store.opening import open_store
        from sweeper.tui.poller import Poller

        poller = Poller(SweepFolder(open_store(str(self.top / "root")), "bad"))
        for _ in range(3):
            poller.check()

    def launcher(self, rng: random.Random) -> None:
        """Request retries and cancels; then step a launcher on a backend that executes nothing."""
        from sweeper.scheduler.context import Context
        from sweeper.scheduler.loop import Scheduler
        from sweeper.store.opening import open_store
        from sweeper.sweep.requests import request_cancel, request_retry
        from sweeper.testing import FakeBackend, FakeClock

        store, clock = open_store(str(self.top / "root")), FakeClock()
        for run, happened in SweepFolder(store, "bad").read_events().items():
            if rng.random() < 0.3:
                request_retry(SweepFolder(store, "bad"), run, happened)
            elif rng.random() < 0.1:
                request_cancel(SweepFolder(store, "bad"), run, happened, 1)
        launcher = Scheduler(Context(SweepFolder(store, "bad"), FakeBackend(), clock, clock.sleep),
                            starting=rng.random() < 0.8)  # fmt: skip
        for _ in range(4):
            launcher.step()
            clock.sleep(rng.choice((0.5, 20.0, 400.0)))

    def ready(self, rng: random.Random) -> None:
        """Make the checks of `retry` before its request."""
        del rng
        from sweeper.launcher.launching import ready
        from sweeper.launcher.placement_guard import refuse_moved_sweep
        from sweeper.store.opening import open_store

        store = open_store(str(self.top / "root"))
        is_ready = ready(SweepFolder(store, "bad"), lambda _: True)
        refuse_moved_sweep(SweepFolder(store, "bad"), is_ready.places)

    def worker(self, rng: random.Random) -> None:
        """Prepare a job as a worker does before it executes anything."""
        from sweeper.store.documents import read_as
        from sweeper.store.opening import open_store
        from sweeper.sweep import job as jobs
        from sweeper.sweep.environment_file import read_environment
        from sweeper.sweep.folder import SweepFolder
        from sweeper.worker.job import prepare

        store = open_store(str(self.top / "root"))
        path = rng.choice(self.documents["jobs"]).relative_to(self.top / "root")
        job = read_as(store, str(path), jobs.read)
        prepare(SweepFolder(store, "bad"), job, read_environment(job.env_file))

    def vault(self, rng: random.Random) -> None:
        """Use the checkpoints as an engine does."""
        from sweeper.engine.checkpoints import Place, Vault
        from sweeper.engine.errors import RequestError

        vault = Vault(str(self.top / "vault"))
        for run in vault.runs():
            for entry in vault.entries(run):
                assert entry.document.size >= 0 or entry.document.created
            place = Place(run, "weights", rng.choice(("000010", "final")))
            for ask in (vault.load, vault.entry, lambda at: vault.expire(at, 1000), vault.delete):
                with contextlib.suppress(RequestError):
                    ask(place)
        vault.purge()

    def frames(self, rng: random.Random) -> None:
        """Read the registry's tables from Python."""
        del rng
        from sweeper.results.registry import Registry

        registry = Registry(str(self.top / "root"))
        for make in (registry.runs, registry.sweeps, registry.metrics, registry.rollouts,
                     registry.checkpoints):  # fmt: skip
            frame: Any = make()
            assert "good" in set(frame["sweep"]), "no good among them"


_OTHERS: dict[str, Callable[[World, random.Random], None]] = {
    "LOOK": World.check,
    "LAUNCHER": World.launcher,
    "READY": World.ready,
    "WORKER": World.worker,
    "FRAMES": World.frames,
    "VAULT": World.vault,
}


_EXTRA_VERB = {
    "jobs": "WORKER",
    "vault": "VAULT",
    "heartbeats": "LAUNCHER",
    "service": "LAUNCHER",
}
"""An additional verb for each kind of document that few verbs read."""


def _cached(data: bytes, rng: random.Random) -> bytes:
    """Change a file of the cache. A changed document gets a correct checksum, because files with a
    wrong one are ignored."""
    try:
        entry = json.loads(data[8:])
        text = json.dumps(entry | {"document": json.loads(
            mutated(json.dumps(entry["document"]).encode(), rng))}).encode()  # fmt: skip
    except (ValueError, TypeError, RecursionError, KeyError):
        at = rng.randrange(len(data) + 1)
        return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
    return f"{zlib.crc32(text):08x}".encode() + text


def _some(share: tuple[Path, int, int, int, int]) -> tuple[Counter[str], Counter[int], list[str]]:
    """Run every `step`-th case, on a new copy of the sweeps."""
    top, seed, cases, first, step = share
    logging.disable(logging.CRITICAL)  # the engine's messages about checkpoints
    copy = top.parent / f"copy{first}"
    shutil.copytree(top, copy, symlinks=True)
    _move(copy, str(top), str(copy))
    world = World(copy, seed)
    kinds: Counter[str] = Counter()
    codes: Counter[int] = Counter()
    failed: list[str] = []
    for number in range(first, cases, step):
        kind, wrong, typed, ended = world.case(number)
        kinds[kind] += 1
        codes += ended
        if wrong is not None:
            failed.append(f"case {number} ({kind}) {typed[0]}: {wrong}")
            print(failed[-1], flush=True)
    return kinds, codes, failed


def _move(folder: Path, before: str, after: str) -> None:
    """Replace the folder's path in the documents."""
    for path in folder.rglob("*.json"):
        path.write_text(path.read_text().replace(before, after))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--only", type=int, help="the number of a single case")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder).resolve() / "made"
        top.mkdir()
        os.environ["SWEEPER_HOME"] = str(top / "home")
        launched(top)
        shares = [(top, given.seed, given.cases, n, given.jobs) for n in range(given.jobs)]
        if given.only is not None:
            shares = [(top, given.seed, given.only + 1, given.only, 1)]
        if len(shares) == 1:
            results = [_some(shares[0])]
        else:
            with multiprocessing.get_context("fork").Pool(len(shares)) as pool:
                results = pool.map(_some, shares)
        os.chdir(ROOT)
    kinds, codes = Counter[str](), Counter[int]()
    failed: list[str] = []
    for failures in results:
        kinds += failures[0]
        codes += failures[1]
        failed += failures[2]
    print(f"documents: {', '.join(f'{n} {kind}' for kind, n in sorted(kinds.items()))}")
    print(f"verbs that ended with: {', '.join(f'{c}: {n}' for c, n in sorted(codes.items()))}")
    print(f"{sum(kinds.values())} cases: {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
