"""Measures the cost of showing a sweep on the screen: `sweeper watch` against the control window
of tinker-cookbook's xmux, with 10, 100 and 1,000 running runs.

    python tests/bench/watch_refresh.py [--runs 10 100 1000] [--xmux .venv-cookbook/bin/python]

A refresh of sweeper is a poll of the store and all lines of a screen of 200x50, after one run in
twenty has written a heartbeat and a row of metrics; an idle refresh is without changes. A refresh
of xmux is its `refresh_jobs`, with a window of `sleep` for each job; the time of tmux's server is
shown separately. Then the whole program runs for some seconds in a tmux window, with as many
changes each second, and with none: the figure is the processor time of its process. xmux's program
has no idle state: it does the same every 5 s, or all the time if that takes longer.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from sweeper.common.sweeper_argv import self_command
from sweeper.store.documents import encode, timestamp
from sweeper.store.local import LocalStore
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.states import Event

sys.path.append(str(Path(__file__).resolve().parents[1]))

from support.own_tmux import own_tmux

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
KEYS = 10
ROWS = 200
XMUX_ROUNDS = {10: 10, 100: 5, 1000: 2}

XMUX = """
import json, os, resource, sys, time
from tinker_cookbook.xmux.control import ControlWindow
count, rounds = int(sys.argv[1]), int(sys.argv[2])
home = os.path.expanduser("~/experiments/.xmux")
os.makedirs(home, exist_ok=True)
pane = lambda n: {"0": {"log_relpath": f"s/{n}", "display_name": f"job {n}"}}
mapping = {str(n): {"window_name": f"j{n}", "panes": pane(n)} for n in range(1, count + 1)}
with open(f"{home}/s.json", "w") as file:
    json.dump({"session_name": "s", "sweep_name": "s", "job_mapping": mapping}, file)
def spent():
    own, others = (resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime
control = ControlWindow("s")
walls, cpus = [], []
for _ in range(rounds):
    begun, used = time.perf_counter(), spent()
    control.refresh_jobs()
    walls.append(time.perf_counter() - begun)
    cpus.append(spent() - used)
assert len(control.jobs) == count, len(control.jobs)
print(json.dumps({"wall": sorted(walls)[rounds // 2], "cpu": sorted(cpus)[rounds // 2]}))
"""


class Sweep:
    """Running runs, with the files that their workers would write."""

    def __init__(self, root: str, count: int) -> None:
        self.store = LocalStore(root)
        self.folder = SweepFolder(self.store, "many")
        self.ids = [f"{number:012x}" for number in range(count)]
        self._step, self._next = ROWS, 0
        runs = []
        rows = b"".join(self._row(step) for step in range(ROWS))
        body = encode({"schema": 1, "time": timestamp(), "started": timestamp()})
        for number, run in enumerate(self.ids):
            name = f"lr={number / 1e6:g}"
            config = {"learning_rate": number / 1e6, "max_steps": 100 * ROWS}
            runs.append({"id": run, "name": name, "cell": name, "seed": None, "config": config})
            for event in (Event.INTENT, Event.SUBMITTED, Event.CLAIMED):
                self.store.replace(self.folder.event(run, 1, event), body, durable=False)
            self.beat(run)
            self.store.append(f"{self.folder.log_path(run, 1)}/metrics.jsonl", rows)
        launch = {"backend": "tmux", "retries": 0, "max_parallel": count, "lease_s": 3600}
        metric = {"name": "key/0", "goal": "minimize", "at": "last"}
        plan = {"schema": 1, "name": "many", "recipe": {"reference": "true"}, "metric": metric}
        plan |= {"launch": launch, "axes": {}, "runs": runs}
        self.store.replace(self.folder.plan, encode(plan))

    def _row(self, step: int) -> bytes:
        return json.dumps({"step": step} | {f"key/{k}": step * 0.5 + k for k in range(KEYS)}
                          ).encode() + b"\n"  # fmt: skip

    def beat(self, run: str) -> None:
        body = {"schema": 1, "counter": time.time(), "time": timestamp(), "paused": None}
        self.store.replace(self.folder.heartbeat(run, 1), encode(body), durable=False)

    def go_on(self) -> None:
        """Write a heartbeat and a row for the next twentieth of the runs."""
        self._step += 1
        for _ in range(max(1, len(self.ids) // 20)):
            run = self.ids[self._next % len(self.ids)]
            self._next += 1
            self.beat(run)
            path = f"{self.folder.log_path(run, 1)}/metrics.jsonl"
            self.store.append(path, self._row(self._step))


def cost(action: Callable[[], object], before: Callable[[], object], rounds: int = 25) -> dict:
    """Return the median milliseconds of an action, in wall and processor time."""
    walls, cpus = [], []
    for _ in range(rounds):
        before()
        begun, used = time.perf_counter(), time.process_time()
        action()
        walls.append((time.perf_counter() - begun) * 1e3)
        cpus.append((time.process_time() - used) * 1e3)
    return {"wall": statistics.median(walls), "cpu": statistics.median(cpus)}


def refreshes(sweep: Sweep) -> dict[str, dict]:
    """Measure a refresh without a terminal: live, and idle."""
    from sweeper.tui.poller import Poller
    from sweeper.tui.render import head_lines
    from sweeper.tui.screen_model import ScreenModel
    from sweeper.tui.sweep_screen import list_lines
    from sweeper.tui.text import UNICODE

    poller = Poller(SweepFolder(sweep.store, "many"))
    while (view := poller.check()).loading:
        pass
    model = ScreenModel(view)

    def refresh() -> None:
        view = poller.check()
        if view is not model.view:
            model.see(view)
            head_lines(view, UNICODE)
            list_lines(model, 200, 45, 0, UNICODE)

    for _ in range(4):
        refresh()
    live = cost(refresh, sweep.go_on)
    assert model.view.runs[0].step is not None and model.view.runs[0].step > ROWS
    return {"live": live, "idle": cost(refresh, lambda: None)}


def program(sweep: Sweep, seconds: float) -> dict[str, float]:
    """Return processor seconds per second of `sweeper watch` in a tmux window, live and idle."""
    command = self_command("watch", "many", "--root", sweep.store.root)
    made = ["tmux", "-u", "new-session", "-d", "-P", "-F", "#{pane_pid}", "-x", "200", "-y", "50"]
    with own_tmux():
        environment = os.environ | {"TERM": "xterm-256color"}
        done = subprocess.run(
            [*made, *command], env=environment, capture_output=True, text=True, check=True
        )
        process = psutil.Process(int(done.stdout))
        deadline = time.monotonic() + 60
        while f"{len(sweep.ids)} runs" not in _screen() or "reading" in _screen():
            assert time.monotonic() < deadline, _screen()
            time.sleep(0.5)
        time.sleep(5)
        stop = threading.Event()

        def write() -> None:
            while not stop.wait(1.0):
                sweep.go_on()

        idle = _used(process, seconds)
        writer = threading.Thread(target=write)
        writer.start()
        live = _used(process, seconds)
        stop.set()
        writer.join()
    return {"idle": idle, "live": live}


def _screen() -> str:
    with suppress(subprocess.CalledProcessError):
        return subprocess.run(
            ["tmux", "capture-pane", "-p"], capture_output=True, text=True, check=True
        ).stdout
    return ""


def _used(process: psutil.Process, seconds: float) -> float:
    before = process.cpu_times()
    time.sleep(seconds)
    after = process.cpu_times()
    return (after.user + after.system - before.user - before.system) / seconds


def xmux(python: str, count: int) -> dict[str, float]:
    """Return the seconds of a refresh of xmux's control window."""
    with tempfile.TemporaryDirectory() as home, own_tmux():
        environment = os.environ | {"HOME": home}
        lines = [f"new-window -d -t s: -n j{number} 'sleep 3600'" for number in range(count)]
        Path(home, "windows").write_text("\n".join(lines) + "\n")
        for command in (["new-session", "-d", "-s", "s", "-n", "control", "sleep 3600"],
                        ["source-file", f"{home}/windows"]):  # fmt: skip
            subprocess.run(["tmux", *command], env=environment, check=True)
        rounds = str(XMUX_ROUNDS.get(count, 3))
        shown = ["tmux", "display-message", "-p", "#{pid}"]
        said = subprocess.run(shown, env=environment, capture_output=True, text=True, check=True)
        server = psutil.Process(int(said.stdout))
        before = server.cpu_times()
        done = subprocess.run(
            [python, "-c", XMUX, str(count), rounds],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        after = server.cpu_times()
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    found = json.loads(done.stdout.splitlines()[-1])
    spent = after.user + after.system - before.user - before.system
    return found | {"server": spent / int(rounds)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--xmux", default=".venv-cookbook/bin/python")
    options = parser.parse_args()
    result: dict[int, dict] = {}
    for count in options.runs:
        with tempfile.TemporaryDirectory() as root, tempfile.TemporaryDirectory() as home:
            os.environ["SWEEPER_HOME"] = home
            sweep = Sweep(root, count)
            found = {"refresh": refreshes(sweep), "program": program(sweep, options.seconds)}
        live, idle = found["refresh"]["live"], found["refresh"]["idle"]
        print(f"{count} runs: refresh {live['wall']:.1f} ms ({live['cpu']:.1f} of the processor), "
              f"idle {idle['wall']:.1f} ms; the program {found['program']['live']:.1%} of a "
              f"processor, idle {found['program']['idle']:.1%}", flush=True)  # fmt: skip
        if shutil.which(options.xmux):
            other = found["xmux"] = {k: v * 1e3 for k, v in xmux(options.xmux, count).items()}
            print(
                f"  xmux: {other['wall']:.0f} ms ({other['cpu']:.0f} of the processor, and "
                f"{other['server']:.0f} tmux's server): {other['wall'] / live['wall']:.0f} times "
                f"as long, {other['cpu'] / live['cpu']:.0f} times the processor time, "
                f"{(other['cpu'] + other['server']) / live['cpu']:.0f} times with the server's",
                flush=True,
            )
        result[count] = found
    if not shutil.which(options.xmux):
        print(f"no xmux: there is no {options.xmux}")
    print(json.dumps(result))


if __name__ == "__main__":
    sys.exit(main())
