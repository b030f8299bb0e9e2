"""The worker with requests and signals at odd moments, full disks, and a service with limits."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

import pytest
from harness.real import until

from sweeper.store.documents import encode, read_json
from sweeper.sweep.folder import SweepFolder, token
from sweeper.sweep.process import began
from sweeper.sweep.states import Event, State, fold

pytestmark = pytest.mark.e2e
Bench = Any  # tests/support/worker_bench.py
PATIENT = """
import importlib, sys
from sweeper.worker import main
module, name, *arguments = sys.argv[1:]
patience = vars(importlib.import_module(module))
patience[name] += 60.0
sys.exit(main.main(arguments))
"""
UNHURRIED = 60.0
"""Seconds that a recipe has to stop, since it may wait for a processor."""


def _patient(bench: Bench, module: str, name: str, **options: Any) -> "subprocess.Popen[bytes]":
    """Start a worker with the limit `name` a minute longer, for a busy machine."""
    command = [
        sys.executable,
        "-P",
        "-c",
        PATIENT,
        module,
        name,
        bench.folder.address,
        token(bench.id, 1),
    ]
    worker = subprocess.Popen[bytes](command, stdout=subprocess.PIPE, **options)
    bench.workers.append(worker)
    return worker


def test_a_cancelled_attempt_does_not_start(bench: Bench) -> None:
    bench.prepare("import sys; open(sys.argv[1] + '/trained', 'w')")
    bench.store.create(bench.folder.event(bench.id, 1, Event.CANCEL), encode({"schema": 1}))
    bench.finish(bench.start())
    outcome = bench.outcome()
    assert (outcome["state"], outcome["reason"]) == (State.CANCELLED, "cancelled")
    assert not bench.path().exists()


def test_cancelling_and_the_signal_that_hands_it_on(bench: Bench) -> None:
    worker = bench.start_waiting(0, grace_s=UNHURRIED)
    bench.store.create(bench.folder.event(bench.id, 1, Event.CANCEL), encode({"schema": 1}))
    worker.terminate()
    bench.finish(worker)
    outcome = bench.outcome()
    assert (outcome["state"], outcome["reason"], outcome["code"]) == (
        State.CANCELLED,
        "cancelled",
        0,  # no sign of success: it was asked to stop
    )


def test_a_request_alone_stops_a_run(bench: Bench) -> None:
    worker = bench.start_waiting(143)
    bench.store.create(bench.folder.event(bench.id, 1, Event.CANCEL), encode({"schema": 1}))
    bench.finish(worker)
    assert bench.outcome()["state"] is State.CANCELLED


UV = """#!/bin/sh
[ "$1" = venv ] && mkdir -p "$5/bin" && touch "$5/bin/python" && exit 0
echo $$ > {folder}/number
mv {folder}/number {folder}/begun
while [ ! -e {folder}/go ]; do sleep 0.05; done
"""
"""A stand-in for uv that waits for a file."""


@pytest.fixture
def installer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Let a job build its environment with a stand-in for uv, which writes its pid to `begun`."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "uv").write_text(UV.format(folder=tmp_path))
    (tmp_path / "bin" / "uv").chmod(0o755)
    (tmp_path / "needs.txt").write_text("a==1\n")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    return {"requirements": str(tmp_path / "needs.txt")}


def test_a_request_reaches_a_worker_that_makes_an_environment(
    bench: Bench, tmp_path: Path, installer: dict[str, object]
) -> None:
    """Heartbeats continue. The installer is killed and leaves nothing incomplete."""
    bench.prepare("pass", **installer)
    worker = bench.start()
    bench.wait_for(tmp_path / "begun")
    bench.wait_for(Path(bench.store.root, bench.folder.heartbeat(bench.id, 1)))
    bench.store.create(bench.folder.event(bench.id, 1, Event.CANCEL), encode({"schema": 1}))
    bench.finish(worker)
    assert bench.outcome()["state"] is State.CANCELLED
    pid = int((tmp_path / "begun").read_text())
    until(lambda: not began(pid))  # the kernel may still be ending it
    made = tmp_path / "home" / "built"
    assert not [path for path in made.iterdir() if path.is_dir()]


def test_a_recipe_in_an_environment_of_its_own(
    bench: Bench, tmp_path: Path, installer: dict[str, object]
) -> None:
    """Its programs come first, and the grid's PYTHONPATH precedes sweeper's own source."""
    (tmp_path / "go").touch()
    program = (
        "import json, os, sys; open(sys.argv[1] + '/env', 'w').write(json.dumps({**os.environ}))"
    )
    bench.prepare(program, env={"PYTHONPATH": "/mine"}, **installer)
    bench.finish(bench.start(env={**os.environ, "SWEEPER_SOURCE": "/source"}))
    assert bench.outcome()["state"] is State.SUCCEEDED, bench.outcome()
    environment = json.loads((bench.path() / "env").read_text())
    (made,) = (tmp_path / "home" / "built").glob("*/requirements.txt")
    assert environment["VIRTUAL_ENV"] == str(made.parent)
    assert environment["PATH"].split(":")[0] == str(made.parent / "bin")
    assert environment["PYTHONPATH"] == "/mine:/source"


def test_no_secret_is_shown_when_an_installation_fails(
    bench: Bench, tmp_path: Path, installer: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INDEX_WORD", "canary-5f0c1d2e")
    (tmp_path / "bin" / "uv").write_text("#!/bin/sh\necho no route by $INDEX_WORD\nexit 1\n")
    bench.prepare("pass", secrets=("INDEX_WORD",), **installer)
    bench.finish(bench.start())
    outcome = bench.outcome()
    assert outcome["state"] is State.FAILED
    assert "no route by ***" in outcome["detail"] and "canary" not in outcome["detail"]


def test_variables_of_the_grid_reach_the_installer(
    bench: Bench, tmp_path: Path, installer: dict[str, object]
) -> None:
    (tmp_path / "bin" / "uv").write_text("#!/bin/sh\necho index $UV_INDEX_URL\nexit 1\n")
    bench.prepare("pass", env={"UV_INDEX_URL": "https://index"}, **installer)
    bench.finish(bench.start())
    assert "index https://index" in bench.outcome()["detail"]


def test_a_retry_takes_a_cancel_back(bench: Bench) -> None:
    for event in (Event.CANCEL, Event.RETRY):
        bench.store.create(bench.folder.event(bench.id, 1, event), encode({"schema": 1}))
    assert bench.run("pass")["state"] is State.SUCCEEDED


def _read(pipe: Path) -> IO[str]:
    """Return the writing end of a pipe once a process reads it."""
    deadline = time.monotonic() + 90
    while True:
        try:
            return open(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK), "w")
        except OSError:
            assert time.monotonic() < deadline, f"nobody reads {pipe}"
            time.sleep(0.01)


def test_a_signal_that_comes_before_the_recipe_starts(bench: Bench, tmp_path: Path) -> None:
    """The environment's file is a pipe, so that the worker waits before it starts anything."""
    private = tmp_path / "env"
    os.mkfifo(private)
    bench.prepare("import sys; open(sys.argv[1] + '/trained', 'w')", env_file=str(private))
    worker = bench.start()
    with _read(private) as pipe:
        worker.terminate()
        pipe.write(json.dumps(dict(os.environ)))
    bench.finish(worker)
    outcome = bench.outcome()
    assert (outcome["state"], outcome["reason"]) == (State.PREEMPTED, "terminated")
    assert not (bench.path() / "trained").exists()


COUNTS = """
import signal, sys, time
count = 0
def note(*_):
    global count
    count += 1
signal.signal(signal.SIGTERM, note)
open(sys.argv[1] + "/ready", "w").close()
while not count: time.sleep(0.01)
time.sleep(1.0)  # a checkpoint is saved
sys.exit(100 + count)
"""


def test_a_recipe_gets_one_request_to_stop(bench: Bench) -> None:
    bench.prepare(COUNTS, grace_s=UNHURRIED)
    worker = bench.start()
    bench.wait_for(bench.path() / "ready")
    for _ in range(5):
        worker.terminate()
        time.sleep(0.1)
    bench.finish(worker)
    assert bench.outcome()["code"] == 101


DIES = """
import os, pathlib, signal, sys, time
code = {code}
if code:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(code))
pathlib.Path(sys.argv[1], "pid").write_text(str(os.getpid()))
pathlib.Path(sys.argv[1], "ready").touch()
time.sleep(60)
"""


EVERYBODY = {**os.environ, "SWEEPER_SIGNALS": "everybody"}


def _end_recipe(bench: Bench, number: signal.Signals) -> None:
    """Signal the program `DIES`, and wait until its worker has reaped it."""
    pid = int((bench.path() / "pid").read_text())
    os.kill(pid, number)
    until(lambda: not Path(f"/proc/{pid}").exists())


@pytest.mark.parametrize("code", [0, 7])
def test_a_recipe_that_a_scheduler_signals_before_its_worker(bench: Bench, code: int) -> None:
    bench.prepare(DIES.format(code=code))
    worker = _patient(bench, "sweeper.worker.main", "SIGNAL_SECONDS", env=EVERYBODY)
    bench.wait_for(bench.path() / "ready")
    _end_recipe(bench, signal.SIGTERM)
    time.sleep(0.3)
    worker.terminate()
    assert bench.finish(worker)[0] == os.EX_TEMPFAIL
    outcome = bench.outcome()
    assert (outcome["state"], outcome["reason"]) == (State.PREEMPTED, "terminated")


def test_a_recipe_that_a_scheduler_kills_before_its_worker(bench: Bench) -> None:
    """As when memory runs out, but slowly: the scheduler reports the reason."""
    bench.prepare(DIES.format(code=0))
    worker = _patient(bench, "sweeper.worker.main", "KILL_SECONDS", env=EVERYBODY)
    bench.wait_for(bench.path() / "ready")
    _end_recipe(bench, signal.SIGKILL)
    time.sleep(2)
    worker.kill()
    worker.wait(timeout=60)
    (events,) = SweepFolder(bench.store, "s").read_events().values()
    assert fold(events).state is State.RUNNING  # its end is not recorded


def test_an_unread_terminal_stops_nothing(bench: Bench) -> None:
    bench.prepare("import sys\nfor n in range(3000): print('x' * 999)\nsys.exit(5)")
    worker = bench.start()  # nothing reads its output
    assert worker.wait(timeout=60) == 1
    assert bench.outcome()["code"] == 5
    assert len(bench.log()) == 3_000_000


def test_a_terminal_that_reads_slowly_gets_it_all(bench: Bench) -> None:
    bench.prepare("for n in range(300): print(n, 'x' * 999)")
    worker = _patient(bench, "sweeper.worker.output", "_PATIENCE")
    text = b""
    while chunk := os.read(worker.stdout.fileno(), 4096):
        text += chunk
    worker.wait(timeout=60)
    assert text.count(b"x" * 999) == 300


def test_a_full_disk_loses_the_log_but_not_the_run(bench: Bench) -> None:
    def limit() -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    bench.prepare("print('x' * 300_000); print('the end')")
    # The output exceeds a pipe's buffer, and its reader may be late.
    worker = _patient(bench, "sweeper.worker.output", "_PATIENCE", preexec_fn=limit)
    _, shown = bench.finish(worker)
    outcome = bench.outcome()
    assert outcome["state"] is State.SUCCEEDED
    assert outcome["log_lost_bytes"] > 200_000
    assert "the end" in shown
    assert shown.count("cannot write the log") == 1


PAUSED = """
import os, sys, time
print("Sampling is paused for sampler s. Reason: concurrent sampler weights limit hit", flush=True)
while not os.path.exists(sys.argv[1] + "/go"): time.sleep(0.05)
"""


def test_waiting_for_the_service_is_recorded_and_not_counted(bench: Bench) -> None:
    timeout_s = 9.0  # in this time it must reach its pause
    bench.prepare(PAUSED, timeout_s=timeout_s)
    worker = bench.start()
    path = bench.folder.heartbeat(bench.id, 1)
    deadline = time.monotonic() + 90
    beat: dict[str, Any] = {"paused": None}
    while not (beat["paused"] and beat["paused_s"] > timeout_s):
        assert time.monotonic() < deadline, beat
        time.sleep(0.05)
        if bench.store.exists(path):
            beat = read_json(bench.store, path)
    (bench.path() / "go").touch()
    assert set(beat["paused"]) == {"reason", "since", "for_s"}
    assert beat["paused"]["for_s"] > 0
    assert beat["up_s"] > 0
    assert beat["paused"]["reason"] == "rate_limit"
    bench.finish(worker)
    outcome = bench.outcome()
    assert outcome["state"] is State.SUCCEEDED
    assert outcome["paused_s"] > timeout_s
    [pause] = outcome["pauses"]
    assert (pause["reason"], pause["since"]) == ("rate_limit", beat["paused"]["since"])
    assert pause["for_s"] > timeout_s


def test_memory_is_the_recipes_own(bench: Bench) -> None:
    outcome = bench.run("x = bytearray(80_000_000)")
    assert 80_000_000 < outcome["max_rss_bytes"] < 200_000_000


def test_the_recipe_starts_with_signals_as_they_are_by_default(bench: Bench) -> None:
    command = ["grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"]
    bench.run("", recipe={"cwd": "/", "kind": "command", "command": command})
    masks = [int(mask, 16) for mask in re.findall("Sig...:\t([0-9a-f]*)", bench.log())]
    # Signals 32 and 33 belong to the C library: no program can set them, but our parent may have.
    assert [mask & ~(0b11 << 31) for mask in masks] == [0, 0]


def test_a_killed_guard_does_no_harm(bench: Bench) -> None:
    worker = bench.start_waiting(3, grace_s=UNHURRIED)
    children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
    commands = {int(p): Path(f"/proc/{p}/cmdline").read_bytes() for p in children}
    (guard,) = (p for p, command in commands.items() if b"sweeper.worker.main" in command)
    os.kill(guard, signal.SIGKILL)
    worker.terminate()
    bench.finish(worker)
    outcome = bench.outcome()
    assert (outcome["state"], outcome["code"]) == (State.PREEMPTED, 3)


@pytest.mark.parametrize(
    ("recipe", "cwd", "message"),
    [
        (["/no/such/program"], None, "/no/such/program: No such file"),
        (["true\0"], None, "embedded null"),
        (["true"], "/no/such/folder", "/no/such/folder: No such file"),
        (["/bin/true", "x" * 200_000], None, "/bin/true: Argument list too long"),
    ],
)
def test_what_cannot_start_says_why(
    bench: Bench, recipe: list[str], cwd: str | None, message: str
) -> None:
    recipe_found = {"cwd": "/", "kind": "command", "command": recipe}
    outcome = bench.run("", recipe=recipe_found, cwd=cwd or bench.store.root)
    assert (outcome["state"], outcome["reason"]) == (State.FAILED, "start")
    assert message in outcome["detail"]
