"""A small sweep on a failing S3. Its launcher is killed, another takes over, one run is cancelled,
another is retried, and the output of `status` and `ls` is checked. Everything except the S3 and the
backend is as users have it.
"""

import ctypes
import itertools
import json
import os
import select
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from harness.ledger import Verdict, judge, read_ledger
from harness.s3_cluster import TIMEOUT, Cluster, load
from harness.s3_proxy import Fault, Proxy, Request

sys.path.append(str(Path(__file__).resolve().parents[2]))

from support.moto_server import serving

from sweeper.sweep.folder import SweepFolder

__all__ = ["NAME", "STEPS", "Result", "Trial", "Wrong", "moto", "trials"]

HERE = Path(__file__).resolve().parent
NAME = "toys"
STEPS = 3
_TYPED_SECONDS = 150.0
_PR_SET_PDEATHSIG = 1
"""With it, a trial and all that it has started end together with its parent."""
_AGAIN = 4
"""How often a user repeats a command that ended because the store was unavailable."""


class Result(NamedTuple):
    """The result of a trial: the requests to the S3, errors by the ledger, and wrong reports."""

    fault: Fault | None
    requests: tuple[Request, ...]
    verdict: Verdict
    lies: tuple[str, ...]
    folder: str
    seconds: float

    @classmethod
    def of(cls, fault: Fault | None, data: bytes) -> "Result":
        """Read the result that a trial's process has written."""
        if not data:
            return cls(fault, (), Verdict((), (), ()), ("the trial died",), "", 0.0)
        sent, parts, lies, folder, seconds = json.loads(data)
        requests = tuple(Request(*request) for request in sent)
        verdict = Verdict(*(tuple(part) for part in parts))
        return cls(fault, requests, verdict, tuple(lies), folder, seconds)

    @property
    def good(self) -> bool:
        return self.verdict.good and not self.lies

    @property
    def struck(self) -> list[str]:
        """Describe the requests that the fault has struck."""
        return [request.what for request in self.requests if request.struck]


class Wrong(Exception):
    """The trial cannot continue."""


class Trial:
    """One sweep, in a new bucket; `type` and `run` execute a user's commands, `lies` collects wrong
    reports."""

    def __init__(self, folder: Path, upstream: str, fault: Fault | None) -> None:
        self.folder = folder
        self.fault = fault
        self.ledger = folder / "ledger"
        self.lies: list[str] = []
        self._typed = 0
        self.cluster = Cluster(folder / "cluster")  # forks: before there are threads
        self.proxy = Proxy(upstream, fault, TIMEOUT)
        bucket = f"t-{uuid.uuid4().hex[:12]}"
        self.root = f"s3://{bucket}/x"
        os.environ |= {
            "AWS_ENDPOINT_URL": upstream,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing-secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        self.environment = {
            **{name: os.environ[name] for name in os.environ if name.startswith("AWS_")},
            "AWS_ENDPOINT_URL": self.proxy.address,
            "SWEEPER_HOME": str(folder / "home"),
            "SWEEPER_ROOT": self.root,
            "PWD": str(folder),
        }
        import s3fs

        s3fs.S3FileSystem(skip_instance_cache=True).mkdir(bucket)
        toy = [sys.executable, "-I", "-S", str(HERE / "toy.py"), "{ledger}", str(STEPS), "0.3"]
        grid = {
            "name": NAME,
            "service": "none",
            "command": [*toy, "{mode}", "{log_path}"],
            "base": {"ledger": str(self.ledger)},
            "grid": {"mode": ["plain", "first:fail", "waits"]},
            "launch": {"backend": "local", "max_parallel": 3, "sync": "1s"},
        }
        (folder / "grid.yaml").write_text(json.dumps(grid))

    def type(self, *words: str) -> tuple[int, Path]:
        """Start a typed command; returns its process id, and the files of its output."""
        self._typed += 1
        out = self.folder / f"{self._typed}-{words[0]}"
        request = {"words": list(words), "out": str(out), "environment": self.environment}
        return self.cluster.ask(op="type", **request), out

    def ended(self, pid: int, out: Path) -> tuple[int, str, str]:
        """Wait for a command's end; returns its exit code and both outputs. A bug in sweeper, or a
        failure without its reason, is added to `lies`."""
        self.until(lambda: self.has_ended(pid), f"{out.name} to end")
        code = self.cluster.ask(op="code", pid=pid)
        shown, errors = out.read_text(), Path(f"{out}.err").read_text()
        if code in (1, 2, 5) or "a bug in sweeper" in errors or "Traceback" in shown + errors:
            self.lies.append(f"{out.name} ended with {code}: {errors[-400:]}")
        if code == 6 and not _names_the_store(shown, errors):
            self.lies.append(f"{out.name} ended with 6, and no word of the store: {errors[-400:]}")
        return code, shown, errors

    def run(self, *words: str) -> tuple[int, str, str]:
        """Run a command, again while it ends because the store is unavailable."""
        code, shown, errors = 6, "", ""
        for _ in range(_AGAIN):
            code, shown, errors = self.ended(*self.type(*words))
            if code != 6:
                return code, shown, errors
        raise Wrong(f"{words[0]} ends with {code} again and again: {errors[-400:]}")

    def launch(self, condition: Any, what: str) -> tuple[int, Path]:
        """Launch, again if it ends because the store is unavailable, until the condition holds."""
        errors = ""
        for _ in range(_AGAIN):
            pid, out = self.type("launch", "grid.yaml", "--wait", "--plain")
            self.until(lambda: condition() or self.has_ended(pid), what)  # noqa: B023
            if condition():
                return pid, out
            code, _, errors = self.ended(pid, out)
            if code != 6:
                raise Wrong(f"{out.name} ended with {code} before {what}: {errors[-400:]}")
        raise Wrong(f"launch ends again and again before {what}: {errors[-400:]}")

    def has_ended(self, pid: int) -> bool:
        return self.cluster.ask(op="code", pid=pid) is not None

    def log(self) -> list[str]:
        """Return the lines that the sweep's launchers have printed."""
        shown = "".join(path.read_text() for path in self.folder.glob("*-launch.err"))
        return [line for line in shown.splitlines() if "/3 succeeded" in line]

    def until(self, condition: Any, what: str) -> None:
        deadline = time.monotonic() + _TYPED_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise Wrong(f"waited {_TYPED_SECONDS:g} s in vain for {what}")
            time.sleep(0.05)

    def rows(self, mode: str) -> list[Any]:
        """Return the ledger's rows of the run of that mode."""
        run = self.runs().get(mode)
        return [row for row in read_ledger(self.ledger) if row[0] == run]

    def runs(self) -> dict[str, str]:
        """Return mode -> run id, once there is a plan."""
        from sweeper.errors import SweeperError
        from sweeper.store.opening import open_store

        if not hasattr(self, "_runs"):
            try:
                plan = SweepFolder(open_store(self.root), NAME).read_plan()
            except SweeperError:
                return {}
            self._runs = {str(run.config["mode"]): run.id for run in plan.runs}
        return self._runs

    def play(self) -> Verdict:
        first, _ = self.launch(lambda: self.rows("waits"), "the run that waits to begin")
        self.cluster.ask(op="kill", pid=first)
        begun = len(self.log())
        second, out = self.launch(lambda: len(self.log()) > begun, "the second launcher")
        self.check()
        code, _, errors = self.run("cancel", NAME, "mode=waits")
        if code:
            self.lies.append(f"cancel ended with {code}: {errors[-400:]}")
        code, _, errors = self.ended(second, out)
        if code == 6:
            code, _, errors = self.run("launch", "grid.yaml", "--wait", "--plain")
        if code != 3:
            self.lies.append(f"the launch ended with {code}, not 3: {errors[-400:]}")
        code, _, errors = self.run("retry", NAME, "--wait", "--plain")
        if code == 0 and self.fault is not None and self.fault.kind == "stale":
            # A stale listing can hide the failed run from the first retry.
            code, _, errors = self.run("retry", NAME, "--wait", "--plain")
        if code == 0 and self.fault is not None:
            # An earlier command can have requested the retry before the store failed.
            code, _, errors = self.run("launch", "grid.yaml", "--wait", "--plain")
        for words in (("retry", NAME), ("launch", "grid.yaml")):
            if self.fault is not None and self.fault.kind == "stale" and not self.made_good():
                # A stale listing can also hide the request from the launcher started for it.
                code, _, errors = self.run(*words, "--wait", "--plain")
        if code != 3:  # 3 because of the cancelled run
            self.lies.append(f"retry ended with {code}, not 3: {errors[-400:]}")
        self.until(lambda: not self.cluster.ask(op="at_work"), "the workers to end")
        self.check(over=True)
        return self.verdict()

    def made_good(self) -> bool:
        """Return whether the run that fails at first has succeeded, by the store itself."""
        from sweeper.store.opening import open_store
        from sweeper.sweep.states import State

        states = SweepFolder(open_store(self.root), NAME).read_states()
        return states[self.runs()["first:fail"]].state is State.SUCCEEDED

    def check(self, *, over: bool = False) -> None:
        """Check that the output of `status` and `ls` is true."""
        code, shown, _ = self.run("status", NAME, "--json")
        states = {run["id"]: run["state"] for run in json.loads(shown)["runs"]}
        if over:
            _, listed, _ = self.run("ls", NAME, "--json")
            listed_states = {run["id"]: run["state"] for run in json.loads(listed)["runs"]}
            want = {"plain": "succeeded", "first:fail": "succeeded", "waits": "cancelled"}
            truth = {run: want[mode] for mode, run in self.runs().items()}
            if self.fault is not None and self.fault.kind == "stale":
                return
            if states != truth or listed_states != truth or code != 3:
                self.lies.append(
                    f"status ({code}) says {states}, ls {listed_states}: it is {truth}"
                )
        elif code != 4:
            self.lies.append(f"status ended with {code} while a run is at work: {states}")
        elif self.fault is None or self.fault.kind != "stale":
            run = self.runs()["waits"]
            if states[run] not in ("running", "lost"):
                self.lies.append(f"status says {states[run]} of a run that is at work")

    def verdict(self) -> Verdict:
        """Return the verdict by the ledger and by the metrics that a reader gets."""
        from sweeper import Registry
        from sweeper.store.opening import open_store
        from sweeper.sweep.states import State

        runs = self.runs()
        expected = {runs["waits"]: State.CANCELLED}
        store, rows = open_store(self.root), read_ledger(self.ledger)
        by_ledger = judge(store, NAME, rows, STEPS, expected=expected)
        registry = Registry(self.root, cache=False)
        lost, doubled = [*by_ledger.lost], [*by_ledger.doubled]
        for mode in ("plain", "first:fail"):
            steps = registry.metrics(runs[mode], keys=["loss"])["step"].tolist()
            if steps != list(range(STEPS)):
                lost.append(f"{mode}: its metrics are those of steps {steps}")
        attempts = {row[1] for row in rows if row[0] == runs["plain"]}
        if attempts != {1}:
            doubled.append(f"plain: trained in attempts {attempts}")
        parts = [path for path in store.names(NAME) if ".parts/" in path]
        if parts:
            lost.append(f"parts are left: {parts}")
        left = [path.name for path in self.folder.glob("home/spool/*/toys/unsynced/*")]
        if left:
            lost.append(f"not brought into the store: {left}")
        return by_ledger._replace(lost=tuple(lost), doubled=tuple(doubled))

    def close(self) -> None:
        self.cluster.close()
        self.proxy.close()


Story = Callable[[Trial], Verdict]


def _names_the_store(shown: str, errors: str) -> bool:
    """Return whether the output of a failed command, also with `--json`, names the store or another
    launcher."""
    if shown.startswith("{") and not errors:
        return any("s3://" in problem for problem in json.loads(shown)["problems"])
    return "s3://" in errors or "another launcher" in errors


def _begin(folder: Path, upstream: str, fault: Fault | None, story: Story) -> tuple[int, int]:
    """Play the story once in a new process; returns its id, and a descriptor to read the result
    from. `folder` is empty, and its path is short enough for a socket."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        began = time.monotonic()
        try:
            with suppress(OSError, AttributeError):  # if there is such a call
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            os.close(reading)
            outcome = _play(folder, upstream, fault, story)
            with os.fdopen(writing, "wb") as file:
                file.write(json.dumps([*outcome, str(folder), time.monotonic() - began]).encode())
        finally:
            os._exit(0)
    os.close(writing)
    return pid, reading


def _play(folder: Path, upstream: str, fault: Fault | None, story: Story) -> list[Any]:
    trial = Trial(folder, upstream, fault)
    verdict = Verdict((), (), ())
    try:
        verdict = story(trial)
    except Wrong as error:
        trial.lies.append(str(error))
    except Exception as error:  # noqa: BLE001 - it is told where somebody looks for it
        trial.lies.append(f"{type(error).__name__}: {error}")
    finally:
        requests = list(trial.proxy.requests)
        trial.close()
    return [requests, verdict, trial.lies]


def trials(
    folder: Path,
    upstream: str,
    faults: Iterable[Fault | None],
    abreast: int,
    story: Story = Trial.play,
) -> Iterator[Result]:
    """Play the story once for each fault, this many at once; yields results as they come. Folders
    of successful trials are removed."""
    at_work: dict[int, tuple[int, Fault | None]] = {}
    waiting, number = iter(faults), 0
    load()
    while True:
        for fault in itertools.islice(waiting, abreast - len(at_work)):
            number += 1
            place = folder / str(number)
            place.mkdir()
            pid, reading = _begin(place, upstream, fault, story)
            at_work[reading] = pid, fault
        if not at_work:
            return
        for reading in select.select(list(at_work), [], [])[0]:
            pid, fault = at_work.pop(reading)
            with os.fdopen(reading, "rb") as file:
                result = Result.of(fault, file.read())
            os.waitpid(pid, 0)
            if result.good:
                shutil.rmtree(result.folder, ignore_errors=True)
            yield result


@contextmanager
def moto() -> Generator[str]:
    """Yield the address of moto's S3, which runs in a separate process."""
    with serving() as (address, _):
        yield address
