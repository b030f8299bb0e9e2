"""The real worker: a process that runs another one and records how it ended."""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness.real import until

from sweeper.store.documents import encode, read_json
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.process import began
from sweeper.sweep.states import ENDED, Event, State

pytestmark = pytest.mark.e2e
Bench = Any  # tests/support/worker_bench.py


SAY = """
import json, os, sys
json.dump({"argv": sys.argv[1:], "env": dict(os.environ)}, open(sys.argv[1] + "/said", "w"))
print("to stdout", flush=True); print("to stderr", file=sys.stderr); print("stdin", repr(input()))
"""


def test_a_run_that_succeeds(bench: Bench) -> None:
    bench.prepare("print('trained'); print('é')")
    code, output = bench.finish(bench.start())
    assert code == 0
    assert "sweeper: x=1, attempt 1" in output
    assert "trained\né\n" in output
    assert "sweeper: succeeded after" in output
    outcome = bench.outcome()
    assert outcome["state"] is State.SUCCEEDED
    assert (outcome["code"], outcome["signal"], outcome["reason"]) == (0, None, None)
    assert outcome["max_rss_bytes"] > 1 << 20
    assert bench.log() == "trained\né\n"
    heartbeat: Any = read_json(bench.store, bench.folder.heartbeat(bench.id, 1))
    assert heartbeat["counter"] >= 1


def test_what_the_recipe_gets(bench: Bench) -> None:
    outcome = bench.run(SAY)
    recorded = json.loads((bench.path() / "said").read_text())
    assert recorded["argv"] == [str(bench.path()), "1", "$(touch pwned)"]
    environment = recorded["env"]
    assert environment["GRID_SAYS"] == "hello"
    assert environment["SWEEPER_RUN"] == bench.id
    assert environment["SWEEPER_ATTEMPT"] == "1"
    assert environment["SWEEPER_SEED"] == "7"
    assert environment["SWEEPER_SWEEP"] == "s"
    assert environment["SWEEPER_ROOT"] == bench.store.root
    assert environment["SWEEPER_RUN_DIR"] == str(bench.path())
    assert f"run:{bench.id}.1" in environment["TINKER_TAGS"].split(",")
    # Standard input is empty: a program that reads it gets an end of file and fails.
    assert (outcome["state"], outcome["reason"], outcome["code"]) == (State.FAILED, "error", 1)
    assert "to stdout" in bench.log()
    assert "to stderr" in bench.log()
    assert "EOFError" in bench.log()


PRINT_SECRETS = """
import json, os, sys, time
mine, other = os.environ["MY_KEY"], os.environ["SOME_API_KEY"]
assert (mine, other) == ("-".join(["canary", "4711"]), "-".join(["canary", "4712"]))
for letter in f"it is {mine}.\\n":
    sys.stdout.write(letter); sys.stdout.flush(); time.sleep(0.002)
print("x" * 65530 + mine + json.dumps({"key": other}))
raise SystemExit(f"bad key {mine}")
"""


def test_secrets_come_by_a_private_file_and_are_never_shown(bench: Bench, tmp_path: Path) -> None:
    private = tmp_path / "env.json"
    keys = {"MY_KEY": "canary-4711", "SOME_API_KEY": "canary-4712"}
    private.write_text(json.dumps({**os.environ, **keys}))
    bench.prepare(PRINT_SECRETS, env_file=str(private), secrets=["MY_KEY"])
    _, shown = bench.finish(bench.start())
    assert bench.outcome()["reason"] == "error"
    assert "it is ***.\n" in bench.log()
    assert 'xxx***{"key": "***"}\nbad key ***\n' in bench.log()
    assert "canary" not in shown
    contents = [p.read_bytes() for p in Path(bench.store.root).rglob("*") if p.is_file()]
    assert not any(b"canary-47" in data for data in contents)


def test_a_secret_that_is_missing_is_a_reason(bench: Bench) -> None:
    outcome = bench.run("pass", secrets=["NO_SUCH_KEY"])
    assert (outcome["state"], outcome["reason"]) == (State.FAILED, "start")
    assert "NO_SUCH_KEY" in outcome["detail"]


def test_failures_and_signals_are_distinguished(bench: Bench) -> None:
    first = bench.run("raise SystemExit(9)")
    assert (first["state"], first["code"], first["reason"]) == (State.FAILED, 9, "error")
    second = bench.run("import os; os.kill(os.getpid(), 9)", attempt=2)
    assert (second["state"], second["code"]) == (State.FAILED, None)
    assert (second["signal"], second["reason"]) == ("SIGKILL", "killed")


def test_the_second_copy_of_a_job_does_not_train(bench: Bench) -> None:
    bench.prepare("import sys; open(sys.argv[1] + '/trained', 'a').write('x')")
    copies = [bench.start() for _ in range(5)]
    outputs = [bench.finish(copy) for copy in copies]
    assert [code for code, _ in outputs] == [0] * 5
    assert sum("belongs to another worker" in text for _, text in outputs) == 4
    assert (bench.path() / "trained").read_text() == "x"


@pytest.mark.parametrize(
    ("number", "state", "reason"),
    [
        (signal.SIGTERM, State.PREEMPTED, "terminated"),
        (signal.SIGINT, State.CANCELLED, "interrupted"),
    ],
)
def test_requests_to_stop(bench: Bench, number: int, state: State, reason: str) -> None:
    worker = bench.start_waiting(143)
    worker.send_signal(number)
    bench.finish(worker)
    outcome = bench.outcome()
    assert (outcome["state"], outcome["reason"], outcome["code"]) == (state, reason, 143)


def test_a_recipe_that_does_not_stop_is_killed_after_the_grace(bench: Bench) -> None:
    worker = bench.start_waiting(None, grace_s=0.2)
    worker.terminate()
    bench.finish(worker)
    outcome = bench.outcome()
    assert (outcome["state"], outcome["signal"]) == (State.PREEMPTED, "SIGKILL")


def test_a_timeout_is_a_failure_with_a_reason(bench: Bench) -> None:
    outcome = bench.run(bench.waits(0), timeout_s=1.0)
    assert (outcome["state"], outcome["reason"]) == (State.FAILED, "timeout")
    assert outcome["max_rss_bytes"] > 1 << 20
    assert "launch.timeout" in outcome["detail"]


def test_a_removed_sweep_is_not_created_again(bench: Bench) -> None:
    """The recipe is stopped and nothing is written, since the results could not be found."""
    worker = bench.start_waiting(0)
    shutil.rmtree(bench.folder.address)
    code, output = bench.finish(worker)
    assert code != 0
    assert "the sweep s was removed, so nothing is recorded" in output
    assert not os.path.exists(bench.folder.address)


def test_a_hangup_is_survived(bench: Bench) -> None:
    worker = bench.start_waiting(143)
    worker.send_signal(signal.SIGHUP)
    worker.stdout.close()  # no process reads the terminal any more
    time.sleep(0.2)
    assert worker.poll() is None
    worker.terminate()
    worker.wait(timeout=150)
    assert bench.outcome()["state"] is State.PREEMPTED


ORPHAN = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[1] + "/child", "w").write(str(child.pid))
os._exit(0)
"""


def test_what_a_recipe_leaves_running_goes_with_it(bench: Bench) -> None:
    outcome = bench.run(ORPHAN)
    assert outcome["state"] is State.SUCCEEDED
    pid = int((bench.path() / "child").read_text())
    until(lambda: not began(pid))


CHECKPOINT = """
import json, sys
record = {record}
open(sys.argv[1] + "/metrics.jsonl", "a").write('{{"step": 0, "a": 1}}\\n{{"step": 1, "a"')
open(sys.argv[1] + "/checkpoints.jsonl", "a").write(json.dumps(record) + "\\n")
"""


def test_the_next_attempt_starts_from_the_last_ones_files(bench: Bench) -> None:
    bench.run(CHECKPOINT.format(record={"name": "000010", "state_path": "p"}))
    listing: Callable[[str], str] = lambda name: f"open(sys.argv[1] + '/{name}').read()"  # noqa: E731
    bench.run(f"import sys; print({listing('metrics.jsonl')!s}, end='')", attempt=2)
    assert bench.log(2) == '{"step": 0, "a": 1}\n'  # the incomplete line was not copied
    assert (bench.path(2) / "checkpoints.jsonl").exists()
    assert (bench.path(1) / "metrics.jsonl").read_text().endswith('"a"')


def test_a_worker_that_was_declared_lost_reports_that_it_lives(bench: Bench) -> None:
    bench.prepare("import time; time.sleep(1)")
    bench.store.create(bench.folder.event(bench.id, 1, Event.LOST), encode({"schema": 1}))
    bench.finish(bench.start())
    assert (1, Event.RETURNED) in SweepFolder(bench.store, "s").read_events()[bench.id]
    assert bench.outcome()["state"] is State.SUCCEEDED


def test_a_running_worker_stops_when_a_newer_attempt_was_opened(bench: Bench) -> None:
    worker = bench.start_waiting(143)
    bench.store.create(bench.folder.event(bench.id, 2, Event.INTENT), encode({"schema": 1}))
    bench.finish(worker)
    body = read_json(bench.store, bench.folder.event(bench.id, 1, Event.PREEMPTED))
    assert (body["reason"], body["code"]) == ("superseded", 143)


def test_a_late_job_leaves_the_run_to_a_newer_attempt(bench: Bench) -> None:
    bench.prepare("print('trained')")
    bench.store.create(bench.folder.event(bench.id, 2, Event.INTENT), encode({"schema": 1}))
    bench.finish(bench.start())
    events = SweepFolder(bench.store, "s").read_events()[bench.id]
    assert not any(attempt == 1 and event in ENDED | {Event.CLAIMED} for attempt, event in events)


GRANDCHILD = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[1] + "/pids", "w").write(f"{os.getpid()} {child.pid}")
time.sleep(600)
"""


def test_a_worker_that_is_killed_takes_its_recipe_with_it(bench: Bench) -> None:
    bench.prepare(GRANDCHILD)
    worker = bench.start()
    bench.wait_for(bench.path() / "pids")
    until(lambda: len((bench.path() / "pids").read_text().split()) == 2)
    pids = [int(pid) for pid in (bench.path() / "pids").read_text().split()]
    assert all(map(began, pids))
    worker.kill()
    until(lambda: not any(map(began, pids)))


def test_no_environment_is_no_run(bench: Bench) -> None:
    """The machine's own environment is no substitute: it may have the key of a paid service."""
    outcome = bench.run("print('ran')", env_file="/nowhere/env.json")
    assert (outcome["state"], outcome["reason"]) == (State.FAILED, "start")
    assert "/nowhere/env.json" in outcome["detail"]
    assert not bench.store.exists(bench.folder.log(bench.id, 1))


def test_whatever_a_recipe_does_its_attempt_gets_an_outcome(bench: Bench) -> None:
    outcome = bench.run("import os, sys; os.mkdir(sys.argv[1] + '/checkpoints.jsonl')")
    assert (outcome["state"], outcome["reason"]) == (State.FAILED, "incomplete")
