"""Runs the real launcher and the real worker, in separate processes, with faults.

    entry.py launch SPEC              what `sweeper launch --wait` does
    entry.py drive SPEC               what a detached launcher does
    entry.py worker SPEC FOLDER TOKEN what `python -m sweeper.worker.main FOLDER TOKEN` does

`SPEC` is JSON (see `Spec`), or the path of a file with it. The product has no hooks for this:
stores, backends and intervals are replaced here, before its own code is called.
"""

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any, TypedDict

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))


class Spec(TypedDict, total=False):
    """The faults and settings of a process.

    `faults`: number of a call -> fault, for the launcher's store and backend together, or for the
    store of a run's first worker. `only`: count only the calls that contain this text. `no_space`:
    the first of three writes for which the disk is full. `clock`: seconds by which the time of day
    is off. `hidden`: neither a lock nor the process table shows workers, as if they were on
    another machine. `window`: seconds for which a launcher that was slowed stays slow. `step_back`:
    seconds that the clock loses at each reading. `strikes`: for workers, the seed and the kinds of
    interference by an assassin. `backoff`: factor of the waits between attempts. `workers_time`:
    the file by which faketime sets the clock of the workers. `engine_patience`: seconds that an
    attempt gets after its engine has moved."""

    folder: str
    grid: dict[str, Any]
    lease: float
    poll: float
    settle: float
    beat: float
    faults: dict[str, str]
    only: str
    clock: float
    step_back: float
    strikes: dict[str, Any]
    no_space: int
    backoff: float
    engine_patience: float
    window: float
    workers_time: str
    hidden: bool
    worker: "Spec"


def launch(spec: Spec) -> int:
    """Run the launcher until it has ended; returns its exit code."""
    from sweeper.launcher import launching
    from sweeper.planner import plan as planner
    from sweeper.scheduler import progress

    _prepare_launcher(spec)
    planned = planner.plan(spec["grid"])
    planned = planned._replace(launch=planned.launch._replace(lease_s=spec["lease"]))
    request = launching.LaunchRequest(planned, f"{spec['folder']}/sweeps")
    summary = launching.launch_plan(request, launching.User(notify=_tell)).summary
    return 0 if summary is None else progress.exit_code(summary)


def drive(spec: Spec) -> int:
    """Run the launcher of a sweep that is already recorded."""
    from sweeper.launcher import launching
    from sweeper.scheduler import progress

    _prepare_launcher(spec)
    folder = f"{spec['folder']}/sweeps/{spec['grid']['name']}"
    return progress.exit_code(launching.drive(folder, _tell))


def worker(spec: Spec, folder: str, token: str) -> int:
    import sweeper.worker.main
    from sweeper.store import opening

    _set_clock(spec)
    set_everywhere("BEAT_SECONDS", spec.get("beat"))
    if "folder" in spec:
        folder = spec["folder"]
        set_everywhere("hold", lambda _: None)
    first = token.endswith("-a1")
    if "faults" in spec and first:
        _break(spec, (opening, "open_store"))
    if "no_space" in spec and first:
        _fill_disk(spec["no_space"])
    if "strikes" in spec:
        _hire(spec["strikes"], token)
    return sweeper.worker.main.main([folder, token])


def _prepare_launcher(spec: Spec) -> None:
    from sweeper.launcher import launching
    from sweeper.scheduler import failures
    from sweeper.store import opening

    _set_clock(spec)
    set_everywhere("POLL_SECONDS", spec.get("poll"))
    set_everywhere("SETTLE_SECONDS", spec.get("settle"))
    set_everywhere("ORPHAN_SECONDS", spec.get("engine_patience"))
    set_everywhere("_WINDOW_SECONDS", spec.get("window"))
    true_backoff, scale = failures.backoff, spec.get("backoff", 1.0)
    set_everywhere("backoff", lambda *about: scale * true_backoff(*about))
    worker_spec = json.dumps(spec.get("worker", {}))

    def worker_command(folder: str, token: str, *_: object, **__: object) -> list[str]:
        command = [sys.executable, "-P", str(HERE / "entry.py"), "worker"]
        if "workers_time" in spec:
            command = ["env", f"FAKETIME_TIMESTAMP_FILE={spec['workers_time']}", *command]
        if spec.get("hidden"):
            apart = json.dumps({**spec.get("worker", {}), "folder": folder})
            return [*command, apart, "elsewhere", token]
        return [*command, worker_spec, folder, token]

    set_everywhere("worker_command", worker_command)
    if "faults" in spec:
        places = (launching, "open_places")
        _break(spec, (launching, "open_store"), (opening, "open_store"), places)
    if "no_space" in spec:
        _fill_disk(spec["no_space"])


def _break(spec: Spec, *openers: tuple[ModuleType, str]) -> None:
    """Wrap the stores and backends that these functions open, with one count of calls over
    all of them."""
    from sweeper.testing import Fault, Faults

    chosen = {int(number): Fault(fault) for number, fault in spec["faults"].items()}
    counted = 0

    def choose(_: int, what: str) -> Fault | None:
        nonlocal counted
        counted += spec.get("only", "") in what
        return chosen.get(counted) if spec.get("only", "") in what else None

    faults = Faults(choose, kill=lambda: os.kill(os.getpid(), signal.SIGKILL))
    for module, name in openers:
        opener = getattr(module, name)
        wrap: Any = _broken_store if name == "open_store" else _broken_places
        setattr(
            module, name, lambda *a, _open=opener, _wrap=wrap, **k: _wrap(_open(*a, **k), faults)
        )


def _broken_store(store: Any, faults: Any) -> Any:
    from sweeper.testing import FaultyStore

    return FaultyStore(store, faults)


def _broken_places(places: Any, faults: Any) -> Any:
    from sweeper.testing import FaultyBackend

    return {place: FaultyBackend(backend, faults) for place, backend in places.items()}


def set_everywhere(name: str, value: Any) -> None:
    """Set `name` in every imported module of sweeper that has it."""
    if value is None:
        return
    loaded = [module for key, module in sys.modules.items() if key.partition(".")[0] == "sweeper"]
    having = [module for module in loaded if name in vars(module)]
    assert having, f"there is no {name} any more"
    for module in having:
        setattr(module, name, value)


def _set_clock(spec: Spec) -> None:
    """Change the time of day, but not the monotonic clock."""
    if "clock" not in spec and "step_back" not in spec:
        return
    true_time, true_gmtime, looks = time.time, time.gmtime, 0

    def now() -> float:
        nonlocal looks
        looks += 1
        return true_time() + spec.get("clock", 0.0) - looks * spec.get("step_back", 0.0)

    time.time = now
    time.time_ns = lambda: int(now() * 1e9)
    time.gmtime = lambda seconds=None: true_gmtime(now() if seconds is None else seconds)


def _fill_disk(number: int) -> None:
    """Make the disk full from write `number` on, for three writes."""
    import errno

    true_write, writes = os.write, 0

    def write(descriptor: int, data: Any) -> int:
        nonlocal writes
        if descriptor > 2 and os.path.isfile(f"/proc/self/fd/{descriptor}"):
            writes += 1
            if number <= writes < number + 3:
                if len(data) > 1 and writes == number:
                    return true_write(descriptor, bytes(data[: len(data) // 2]))  # fills the disk
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return true_write(descriptor, data)

    os.write = write


def _hire(strikes: dict[str, Any], token: str) -> None:
    """Start an assassin for the first attempts of a run: at least one, at most `most`."""
    run, _, attempt = token.rpartition("-a")
    chance = random.Random(f"{strikes['seed']}/{token}")
    if int(attempt) > random.Random(f"{strikes['seed']}/{run}").randint(1, strikes["most"]):
        return
    kind = chance.choice(strikes["kinds"])
    seconds = chance.uniform(0, strikes["within"])
    script, diary = str(HERE / "assassin.py"), strikes["diary"]
    subprocess.Popen(
        [sys.executable, "-I", "-S", script, str(os.getpid()), kind, str(seconds), diary, token]
    )


def _tell(summary: Any) -> None:
    from sweeper.scheduler.progress import line

    print(line(summary), flush=True)


def _sleep_beside_faketime() -> None:
    """Work around faketime, whose clock_nanosleep mistakes a monotonic time for a time of day."""
    if "FAKETIME_TIMESTAMP_FILE" in os.environ:
        time.sleep = lambda seconds: select.select((), (), (), seconds) and None


def main(arguments: list[str]) -> int:
    _sleep_beside_faketime()  # before any module imports `sleep`
    verb, text, *rest = arguments
    spec = json.loads(text if text.startswith("{") else Path(text).read_text())
    from sweeper.errors import SweeperError

    try:
        return {"launch": launch, "drive": drive, "worker": worker}[verb](spec, *rest)
    except SweeperError as error:
        print(f"sweeper: {error}", file=sys.stderr, flush=True)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
