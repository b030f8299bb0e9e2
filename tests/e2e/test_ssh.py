"""Sweeps on a real sshd: killed launchers, lost connections, hosts that lose power."""

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.shell import Shell

pytestmark = pytest.mark.e2e

GRID = """
name: toys
command: [{python}, {toy}, '{ledger}', '6', '3', resume, '{{log_path}}']
service: none
grid: {{x: [1, 2, 3, 4, 5, 6]}}
metric: {{name: loss, goal: minimize}}
launch: {{backend: ssh, lease: 15s, ssh: {options}}}
"""
TOY = Path(__file__).parents[1] / "chaos" / "harness" / "toy.py"


@pytest.fixture
def shell(tmp_path: Path, ssh_hosts: Any) -> Any:
    made = Shell(tmp_path, "local")
    options = json.dumps(ssh_hosts.options(3))
    text = GRID.format(python=sys.executable, toy=TOY, ledger=made.ledger, options=options)
    (tmp_path / "grid.yaml").write_text(text)
    return made


def steps(shell: Any) -> Counter[tuple[str, str]]:
    """Return how often each step of each run was executed."""
    counted: Counter[tuple[str, str]] = Counter()
    for (run, _, step), times in shell.executed().items():
        counted[run, step] += times
    return counted


def attempts(shell: Any) -> Counter[str]:
    return Counter(run for run, _ in {(run, attempt) for run, attempt, _ in shell.executed()})


def running(shell: Any) -> int:
    """Return the number of live programs of runs."""
    ledger, count = str(shell.ledger), 0
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            count += process.cmdline()[1:3] == [str(TOY), ledger]
    return count


def test_killed_launchers_and_a_lost_connection_do_no_harm(shell: Any, ssh_hosts: Any) -> None:
    first = shell.start("launch", "grid.yaml", "--wait")
    shell.until(lambda: len(attempts(shell)) == 6)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    second = shell.start("launch", "grid.yaml", "--wait")
    with ssh_hosts.unplugged("a"):
        shell.until(lambda: len(steps(shell)) == 36)  # the runs continue
        time.sleep(2)
    output, errors = second.communicate(timeout=240)
    assert second.returncode == 0, output + errors
    assert set(steps(shell).values()) == {1} and set(attempts(shell).values()) == {1}
    shown = json.loads(shell.run("show", "toys/x=1", "--json"))
    assert [attempt["events"][-1] for attempt in shown["attempts"]] == ["succeeded"]


def test_a_host_that_is_switched_off_loses_and_doubles_no_run(shell: Any, ssh_hosts: Any) -> None:
    """Its runs continue from their checkpoints, on any host, as soon as it answers again."""
    launcher = shell.start("launch", "grid.yaml", "--wait")
    shell.until(lambda: len(attempts(shell)) == 6)
    ssh_hosts.hosts["b"].cut()
    time.sleep(1)
    ssh_hosts.hosts["b"].start()
    output, errors = launcher.communicate(timeout=240)
    assert launcher.returncode == 0, output + errors
    assert set(shell.states()) == {"succeeded"} and len(steps(shell)) == 36
    assert set(shell.executed().values()) == {1}
    again = {run for run, count in attempts(shell).items() if count > 1}
    assert len(again) == 3 and set(attempts(shell).values()) == {1, 2}
    for run in again:  # only the interrupted step may be repeated
        assert sum(steps(shell)[run, str(step)] for step in range(6)) <= 7


def test_slots_are_those_of_all_sweeps_together(shell: Any, ssh_hosts: Any) -> None:
    grid = (shell.folder / "grid.yaml").read_text()
    (shell.folder / "other.yaml").write_text(grid.replace("name: toys", "name: others"))
    launchers = [shell.start("launch", name, "--wait") for name in ("grid.yaml", "other.yaml")]
    most = 0
    while any(launcher.poll() is None for launcher in launchers):
        most = max(most, running(shell))
        time.sleep(0.1)
    for launcher in launchers:
        output, errors = launcher.communicate()
        assert launcher.returncode == 0, output + errors
    assert set(steps(shell).values()) == {2}  # both sweeps have the same runs
    assert most == 6  # of 12 runs


def test_records_of_finished_jobs_are_removed_here_and_on_their_hosts(
    shell: Any, ssh_hosts: Any
) -> None:
    shell.run("launch", "grid.yaml", "--wait")
    records = ssh_hosts.folder / "records"

    def left() -> tuple[int, int]:
        here = len(list((shell.folder / "sweeps/toys/launcher/hosts").glob("*.json")))
        return here, len(list(records.glob("*/*/*.json")))

    assert left() == (6, 6)
    gc = ("store", "gc", "--days", "0")
    listed = shell.run(*gc)
    for host in ("a", "b"):
        assert listed.count(f"record of a job on {host} whose run succeeded") == 3
    with ssh_hosts.unplugged("a"):
        output = shell.run(*gc, "--delete")
    assert "ssh a: " in output and "kept 3 job records" in output
    assert left() == (3, 3)
    assert "record of a job on" in shell.run(*gc, "--delete")
    assert left() == (0, 0)
    assert not list(records.glob("*/*/"))  # no folder of the sweep is left on a host
    assert "record of a job on" not in shell.run(*gc)
    shell.run("show", "toys/x=1")  # it needs no folder on a host


class Elsewhere:
    """The hosts as machines without shared files, for the fixture `elsewhere`."""

    def __init__(self, hosts: Any) -> None:
        self.hosts = hosts
        self.environment: dict[str, str] = {}

    def options(self) -> dict[str, object]:
        names = sorted(name for name in os.environ if name.startswith("AWS_"))
        apart = {"shared": False, "python": sys.executable, "secrets": names}
        return {**self.hosts.options(3), **apart}


def test_a_remote_store_and_the_code_as_it_was_launched(
    elsewhere: Callable[[str, Any], Any], ssh_hosts: Any
) -> None:
    """The checkout is gone when runs start; a host loses its connection while they sync."""
    sweep = elsewhere("ssh", Elsewhere(ssh_hosts))
    shell = sweep.shell
    shell.run("launch", "grid.yaml", code=0)
    shell.folder = shell.folder.rename(shell.folder.with_name("gone"))
    shell.until(shell.executed)
    with ssh_hosts.unplugged("a"):
        time.sleep(2)
    shell.until(lambda: shell.run_states() == {"succeeded": 3})
    shell.judge(once=True)
    assert shell.run("store", "gc", "--days", "0", "--delete").count("record of a job on") == 3
    assert "record of a job on" not in shell.run("store", "gc", "--days", "0")
    assert not list((ssh_hosts.folder / "records").glob("*/*/*.json"))


def test_mistakes_are_one_line(shell: Any, ssh_hosts: Any) -> None:
    grid = (shell.folder / "grid.yaml").read_text()

    def typed(options: Any, *arguments: str, code: int) -> str:
        text = grid.replace(json.dumps(ssh_hosts.options(3)), json.dumps(options))
        (shell.folder / "grid.yaml").write_text(text)
        output: str = shell.run(*arguments, "grid.yaml", code=code)
        return output

    assert "launch.ssh.hosts is missing" in typed({"shared": True}, "plan", code=2)
    assert "launch.ssh.hosts[1]: a is given twice" in typed({"hosts": ["a", "a"]}, "plan", code=2)
    assert "host is missing" in typed({"hosts": [{"slots": 2}]}, "plan", code=2)
    assert "is not a host" in typed({"hosts": ["-oProxyCommand=x"]}, "plan", code=2)
    good = ssh_hosts.options(3)
    away = {**good, "hosts": ["a"], "python": "/nowhere/python"}
    assert "set launch.ssh.python to a Python on that host" in typed(away, "launch", code=6)
    with ssh_hosts.unplugged():
        assert "Connection refused" in typed(good, "launch", code=6)
    shell.run("doctor", "--backend", "ssh", "--grid", "grid.yaml")
