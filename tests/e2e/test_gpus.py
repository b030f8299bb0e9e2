"""Runs on GPUs of this machine, which a stand-in for `nvidia-smi` lists, never share a device."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.gpus import StandInGpus
from support.shell import Shell

pytestmark = pytest.mark.e2e

# Each run holds a folder while it computes on a device, so two runs would collide.
RUN = """
import os, sys, time
devices, order = os.environ["CUDA_VISIBLE_DEVICES"], os.environ["CUDA_DEVICE_ORDER"]
assert order == "PCI_BUS_ID"
places = [f"{sys.argv[1]}/{device}" for device in devices.split(",")]
most = int(sys.argv[3])
mine = []
for place in places:
    for slot in range(most):
        try:
            os.mkdir(f"{place}.{slot}")
        except FileExistsError:
            continue
        mine.append(f"{place}.{slot}")
        break
    else:
        open(f"{sys.argv[1]}/met", "a").write(f"{place}\\n")
while os.path.exists(sys.argv[2]):
    time.sleep(0.02)
time.sleep(0.3)
for place in mine:
    os.rmdir(place)
with open(f"{sys.argv[1]}/ledger", "a") as file:
    file.write(f"{sys.argv[4]} {devices}\\n")
"""
GRID = """
name: {name}
command: [{python}, run.py, '{folder}', '{hold}', '{most}', '{name}-{{run}}']
grid: {{x: {xs}}}
service: none
launch: {{backend: {backend}, max_parallel: 8, {gpus}}}
"""


class Machine:
    """A machine with stand-in devices, and sweeps on it."""

    def __init__(self, folder: Path, gpus: Any, backend: str) -> None:
        self.folder, self.gpus, self.backend = folder, gpus, backend
        self.hold = folder / "hold"
        self._python = sys.executable
        self.shell = Shell(folder, backend)
        self.shell.environment |= {"PATH": gpus.path}
        (folder / "run.py").write_text(RUN)

    def write(self, name: str, gpus: str, runs: int, most: int = 1) -> None:
        values = {"folder": self.folder, "hold": self.hold, "most": most, "gpus": gpus}
        text = GRID.format(
            name=name, python=self._python, backend=self.backend, xs=list(range(runs)), **values
        )
        (self.folder / f"{name}.yaml").write_text(text)

    def launch(self, name: str, *more: str) -> "subprocess.Popen[str]":
        return self.shell.start("launch", f"{name}.yaml", *more, "--wait")

    def finish(self, *launchers: "subprocess.Popen[str]") -> None:
        for launcher in launchers:
            output, errors = launcher.communicate(timeout=240)
            assert launcher.returncode == 0, output + errors
        assert not (self.folder / "met").exists()

    def taken(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("[0-9]*.[0-9]"))

    def ledger(self) -> list[list[str]]:
        return [line.split() for line in (self.folder / "ledger").read_text().splitlines()]

    def status(self, name: str) -> str:
        if not (self.folder / "sweeps" / name / "sweep.json").exists():
            return ""
        return self.shell.run("status", name, code=4)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    gpus = StandInGpus(tmp_path / "gpus", 3)
    made = Machine(tmp_path, gpus, "local")
    yield made
    made.hold.unlink(missing_ok=True)


@pytest.mark.usefixtures("tmux_socket")
def test_two_launchers_share_the_devices_and_no_two_runs_meet(machine: Machine) -> None:
    """One launcher uses local, the other tmux."""
    machine.hold.touch()
    machine.write("a", "gpus: 1", 5)
    machine.write("b", "gpus: 1", 5)
    launchers = [machine.launch("a"), machine.launch("b", "--backend", "tmux")]
    machine.shell.until(lambda: machine.taken() == ["0.0", "1.0", "2.0"])
    shown = machine.status("a") + machine.status("b")
    rows = [line.split() for line in shown.splitlines() if line.startswith("x=")]
    # A run that has just begun shows "-" until it has looked for a device.
    running = sorted(row[2] for row in rows if row[1] == "running" and row[2].isdigit())
    assert running == ["0", "1", "2"]
    machine.shell.until(
        lambda: "the machines have no more free GPUs" in machine.status("a") + machine.status("b")
    )
    machine.hold.unlink()
    machine.finish(*launchers)
    assert len({run for run, _ in machine.ledger()}) == len(machine.ledger()) == 10
    shown = json.loads(machine.shell.run("show", "a/x=0", "--json"))
    assert shown["attempts"][0]["gpus"] in {"0", "1", "2"}


def test_two_devices_for_each_run_and_none_in_use_elsewhere(machine: Machine) -> None:
    machine.gpus.use([1])
    machine.write("a", "gpus: 2", 3)
    machine.finish(machine.launch("a"))
    assert [devices for _, devices in machine.ledger()] == ["0,2"] * 3


def test_two_runs_share_a_device_that_a_run_of_its_own_does_not_get(machine: Machine) -> None:
    machine.hold.touch()
    machine.write("shared", "gpus: 1, per_gpu: 2", 6, most=2)
    both = machine.launch("shared")
    machine.shell.until(lambda: len(machine.taken()) == 6)
    machine.write("alone", "gpus: 1", 1)
    alone = machine.launch("alone")
    machine.shell.until(lambda: "no more free GPUs" in machine.status("alone"))
    machine.hold.unlink()
    machine.finish(both, alone)
    assert len(machine.ledger()) == 7


def test_a_killed_launcher_and_a_killed_worker_keep_no_device(machine: Machine) -> None:
    machine.hold.touch()
    machine.write("a", "gpus: 1, retries: 3, lease: 15s", 3)
    first = machine.launch("a")
    machine.shell.until(lambda: len(machine.taken()) == 3)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    # The runs continue, and another sweep gets none of their devices.
    machine.write("b", "gpus: 1", 3)
    other = machine.launch("b")
    machine.shell.until(lambda: "no more free GPUs" in machine.status("b"))
    assert len(machine.taken()) == 3
    # The killed worker's recipe ends too, and the other sweep gets the device.
    beats = sorted((machine.folder / "sweeps" / "a" / "heartbeats").iterdir())
    beat = json.loads(beats[0].read_text())
    os.kill(beat["pid"], signal.SIGKILL)
    os.rmdir(machine.folder / f"{beat['gpus']}.0")
    machine.shell.until(lambda: len(machine.taken()) == 3)
    machine.hold.unlink()
    machine.finish(other, machine.launch("a"))
    assert len({run for run, _ in machine.ledger()}) == len(machine.ledger()) == 6


STAGES = """
name: stages
service: none
launch: {{backend: {backend}, max_parallel: 8{more}}}
stages:
  plain:
    command: [{python}, plain.py, '{folder}/plain', '{hold}', '{{run}}']
    grid: {{x: [0, 1, 2, 3]}}
  pinned:
    command: [{python}, run.py, '{folder}', '{hold}', '1', '{{run}}']
    grid: {{x: [0, 1, 2, 3, 4]}}
    launch: {own}
"""
PLAIN = """
import os, sys, time
assert "CUDA_VISIBLE_DEVICES" not in os.environ
open(f"{sys.argv[1]}.{sys.argv[3]}", "w").close()
while os.path.exists(sys.argv[2]):
    time.sleep(0.02)
"""


def write_stages(machine: Machine, resources: str, more: str = "") -> None:
    values = {"folder": machine.folder, "hold": machine.hold, "backend": machine.backend}
    text = STAGES.format(python=sys.executable, own=resources, more=more, **values)
    (machine.folder / "stages.yaml").write_text(text)


def test_a_stage_has_gpus_and_the_other_stage_does_not_wait_for_them(machine: Machine) -> None:
    (machine.folder / "plain.py").write_text(PLAIN)
    machine.hold.touch()
    write_stages(machine, "{gpus: 1}")
    launcher = machine.launch("stages")
    machine.shell.until(lambda: machine.taken() == ["0.0", "1.0", "2.0"])
    machine.shell.until(lambda: len(list(machine.folder.glob("plain.[0-9a-f]*"))) == 4)
    runs = json.loads(machine.shell.run("status", "stages", "--json", code=4))["runs"]
    states = [(run["stage"], run["state"]) for run in runs]
    assert states.count(("pinned", "running")) == 3
    assert states.count(("pinned", "planned")) == 2
    assert states.count(("plain", "running")) == 4
    machine.hold.unlink()
    machine.finish(launcher)
    assert len({run for run, _ in machine.ledger()}) == len(machine.ledger()) == 5


def test_mistakes_of_stages_are_one_line(tmp_path: Path) -> None:
    gpus = StandInGpus(tmp_path / "gpus", 1)
    machine = Machine(tmp_path, gpus, "local")
    shell, where = machine.shell, "stages.pinned.launch"
    for resources, more, message in (
        ("{gpus: 1}", ", gpus: 1", f"{where}.gpus: launch.gpus applies to all stages"),
        ("{per_gpu: 2}", "", f"{where}.per_gpu needs `gpus: 1`: runs share one GPU"),
        ("{gpus: 1, env: {CUDA_VISIBLE_DEVICES: '0'}}", "", f"{where}.env: CUDA_VISIBLE_DEVICES"),
        ("{gpus: 1}", ", env: {CUDA_VISIBLE_DEVICES: '0'}", f"{where}.gpus: launch.env sets"),
    ):
        write_stages(machine, resources, more)
        shown = shell.run("plan", "stages.yaml", code=2).splitlines()
        assert len(shown) == 1, shown
        assert "stages.yaml:12:" in shown[0] and message in shown[0], shown
    write_stages(machine, "{gpus: 1}", ", ssh: {hosts: [a], shared: true}")
    refused = shell.run("plan", "stages.yaml", "--backend", "ssh", code=2)
    assert f"{where}.gpus: with ssh, use launch.gpus for all stages instead" in refused
    refused = shell.run("plan", "stages.yaml", "--backend", "slurm", code=2)
    assert "slurm assigns GPUs itself" in refused
    write_stages(machine, "{gpus: 2}")
    refused = shell.run("launch", "stages.yaml", "--wait", code=6)
    assert "local: `launch.gpus` is 2, but this machine has only 1" in refused


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    gpus = StandInGpus(tmp_path / "gpus", 1)
    machine = Machine(tmp_path, gpus, "local")
    shell = machine.shell
    machine.write("a", "gpus: 2", 1)
    refused = shell.run("launch", "a.yaml", "--wait", code=6)
    assert "local: `launch.gpus` is 2, but this machine has only 1" in refused
    assert "GPUs" in shell.run("doctor", "--grid", "a.yaml", "--backend", "local", code=6)
    machine.write("a", "per_gpu: 2", 1)
    assert "launch.per_gpu needs `gpus: 1`" in shell.run("plan", "a.yaml", code=2)
    machine.write("a", "gpus: 1, env: {CUDA_VISIBLE_DEVICES: '0'}", 1)
    assert "CUDA_VISIBLE_DEVICES is set by `gpus`" in shell.run("plan", "a.yaml", code=2)
    machine.write("a", "gpus: 1, slurm: {partition: a}", 1)
    refused = shell.run("plan", "a.yaml", "--backend", "slurm", code=2)
    assert "launch.gpus works only with local, ssh, tmux: slurm assigns GPUs itself" in refused
    machine.write("a", "gpus: 1", 1)
    shell.environment |= {"PATH": os.environ["PATH"]}
    refused = shell.run("launch", "a.yaml", "--wait", code=6)
    assert "sweeper: local: nvidia-smi is not found: `launch.gpus` needs it" in refused
