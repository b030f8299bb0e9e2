"""A sweep whose runs are forked from a fork server. The server, keepers of runs and launchers are
killed repeatedly. The result is checked against the recipe's own ledger."""

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.shell import Shell

from sweeper.store.documents import read_as
from sweeper.store.local import LocalStore
from sweeper.sweep import job as jobs
from sweeper.worker import fork_client

RUNS, STEPS = 12, 5
GRID = """
name: toys
recipe: toy.py
service: none
base: {{ledger: {ledger}, hold: {hold}, seconds: 2.5}}
grid: {{learning_rate: {rates}}}
seeds: {seeds}
metric: {{name: loss, goal: minimize}}
launch: {{backend: local, max_parallel: 4, retries: 50}}
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Any]:
    made = Shell(tmp_path, "local")
    yield made
    for pid in servers(made):
        os.kill(pid, signal.SIGKILL)


def write(shell: Any, rates: list[float], seeds: int) -> None:
    text = GRID.format(ledger=shell.ledger, hold=shell.hold, rates=rates, seeds=seeds)
    (shell.folder / "grid.yaml").write_text(text)


def learn(shell: Any) -> None:
    """Write the list of imports that a run of a Tinker recipe leaves."""
    store = LocalStore(str(shell.folder / "sweeps"))
    (path,) = Path(store.root).glob("toys/attempts/*/job.json")
    job = read_as(store, str(path.relative_to(store.root)), jobs.read)
    modules = fork_client.module_list(job, shell.environment)
    assert modules is not None
    Path(modules).write_text(json.dumps({"schema": 1, "modules": ["json", "chz"]}))


def servers(shell: Any) -> list[int]:
    pids: list[int] = []
    for path in Path(shell.environment["SWEEPER_HOME"], "warm").glob("*.json"):
        pid = int(json.loads(path.read_text())["pid"])
        if Path(f"/proc/{pid}/exe").exists():
            pids.append(pid)
    return pids


def keepers(shell: Any) -> list[int]:
    """Return the keepers whose server is alive. Each is the parent of a recipe."""
    pids: list[int] = []
    for server in servers(shell):
        with suppress(OSError):
            text = Path(f"/proc/{server}/task/{server}/children").read_text()
            pids += map(int, text.split())
    return pids


def kill(pids: list[int], chance: random.Random) -> int:
    """Kill one of these processes; returns how many were killed."""
    if not pids:
        return 0
    try:
        os.kill(chance.choice(pids), signal.SIGKILL)
    except ProcessLookupError:
        return 0
    return 1


def test_killed_again_and_again(shell: Any) -> None:
    write(shell, [0.1], 1)
    shell.run("launch", "grid.yaml", "--wait")
    learn(shell)
    write(shell, [0.1, 0.3], RUNS // 2)
    chance = random.Random(4)
    killed: Counter[str] = Counter()
    deadline = time.monotonic() + 240
    launcher = shell.start("launch", "grid.yaml", "--wait")
    while launcher.poll() is None or launcher.returncode < 0:
        assert time.monotonic() < deadline, killed
        time.sleep(chance.uniform(0.1, 0.5))
        # No run ends until one of each kind was killed, however slow the machine is.
        if keepers(shell) and not (killed["server"] and killed["keeper"] and killed["launcher"]):
            shell.hold.touch()
        else:
            shell.hold.unlink(missing_ok=True)
        what = chance.choice(["server", "keeper", "keeper", "launcher"])
        if what == "server" and not killed["keeper"]:
            what = "keeper"  # those of a dead server are not found
        # A limit for each: a launcher that starts slowly must not use up all kills.
        if killed[what] < 10:
            if what == "launcher":
                launcher.kill()
                killed[what] += 1
            else:
                killed[what] += kill((servers if what == "server" else keepers)(shell), chance)
        if launcher.poll() is not None and launcher.returncode < 0:
            launcher.communicate()
            launcher = shell.start("launch", "grid.yaml", "--wait")
    output, errors = launcher.communicate()
    assert launcher.returncode == 0, output + errors
    assert killed["server"] and killed["keeper"] and killed["launcher"], killed
    assert shell.states() == {"succeeded": RUNS}
    executed = shell.executed()
    assert set(executed.values()) == {1}
    last: dict[str, int] = {}
    done: Counter[tuple[str, int]] = Counter()
    for line in shell.ledger.read_text().splitlines():
        run, attempt, _ = line.split()
        assert int(attempt) >= last.get(run, 0), f"two attempts of {run} at once"
        last[run] = int(attempt)
        done[run, int(attempt)] += 1
    assert len(last) == RUNS
    assert all(done[run, attempt] == STEPS for run, attempt in last.items())
