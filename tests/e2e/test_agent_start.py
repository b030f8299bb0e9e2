"""An agent without a model makes a study in podman, on a stand-in for Modal, or on this machine."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from harness.real import until
from support import podman as podmans
from support.modal import Modal

from sweeper.engine import lifecycle
from sweeper.results.registry import Registry
from sweeper.store.local import LocalStore

pytestmark = pytest.mark.e2e
AGENT = Path(__file__).parents[1] / "support" / "mcp_agent.py"
SECRET = "sesame-0123456789"
SECONDS = 240.0


class Bench:
    """A folder with a task, and the command line that starts agents in it."""

    def __init__(self, folder: Path, engine: lifecycle.EngineInfo, place: list[str]) -> None:
        self.folder, self.place, self.root = folder, place, folder / "root"
        self.modal: Any = None
        self.grids = folder / "grids"
        self.grids.mkdir()
        shutil.copy(AGENT, self.grids)
        self.temporary = Path(tempfile.mkdtemp(prefix="swa-"))  # short, because it holds a socket
        secrets = {"THEIR_KEY": SECRET, "TINKER_API_KEY": "tml-not-for-agents"}
        places = {"SWEEPER_HOME": engine.home, "TMPDIR": str(self.temporary)}
        self.env = {**os.environ, **secrets, **places}

    def command(self, task: str, name: str = "first", *more: str, agent: str = "") -> list[str]:
        (self.folder / "task.md").write_text(f"# {task}\n")
        python = sys.executable if "local" in self.place else "python3"
        run = agent or f"{python} mcp_agent.py {{mcp}} {{model}}"
        words = ["--model", "none/tiny", "--prompt", "task.md", "--agent", run, "--name", name]
        words += ["--grids", "grids", "--budget", "runs=6", "--secret", "THEIR_KEY", *self.place]
        return self.sweeper("start", *words, *more)

    def sweeper(self, *words: str) -> list[str]:
        root = ["--root", str(self.root)] if words[0] != "prompts" else []
        return [sys.executable, "-P", "-m", "sweeper", "agent", *words, *root]

    def run(self, command: list[str], code: int = 0) -> str:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    def transcript(self, name: str = "first") -> str:
        return self.run(self.sweeper("transcript", name))

    def states(self) -> Counter[str]:
        sweep = Registry(str(self.root), snapshot=True).sweep("study")
        return Counter(str(run.record()["state"]) for run in sweep.runs)

    def left(self) -> list[object]:
        """Return what agents have left: processes (found by a variable) and folders."""
        leftovers: list[object] = [*self.temporary.glob("sweeper-agent-*")]
        leftovers += [] if self.modal is None else self.modal.going()
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if str(self.temporary) in process.environ().get("SWEEPER_TASK_ROOT", ""):
                    leftovers.append(process)
        return leftovers


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a root with Python, with podman configured for the tests."""
    folder = tmp_path_factory.mktemp("podman")
    with pytest.MonkeyPatch.context() as patch:
        podmans.configure(folder, patch)
        podmans.copy_programs(folder / "root", ("bash", "sleep", "env"))
        podmans.copy_python(folder / "root")
        probe = ["--rm", "--network", "none", "--ulimit", "nofile=1024:1024"]
        probe += ["--ulimit", "nproc=4096:4096", "--rootfs", f"{folder}/root:O"]
        try:
            podmans.podman("run", *probe, "python3", "-c", "import json, socket")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"podman can do nothing for this user: {error.stderr.strip()[-200:]}")
        yield folder / "root"
        podmans.podman("rm", "-f", "-a")


@pytest.fixture(params=["local", "podman", "modal"])
def bench(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    engine: lifecycle.EngineInfo,
) -> Iterator[Bench]:
    place = ["--in", request.param]
    if request.param == "podman":
        image = str(request.getfixturevalue("root"))
        place += ["--image", image, "--network", "none"]
    if request.param == "modal":
        place += ["--image", "sweeper"]
    made = Bench(tmp_path, engine, place)
    with ExitStack() as stack:
        if request.param == "modal":
            (tmp_path / "modal").mkdir()
            made.modal = stack.enter_context(Modal(tmp_path / "modal"))
            made.env |= made.modal.environment_of_launchers
        yield made
        assert made.left() == []
        for sandbox in () if made.modal is None else made.modal.sandboxes.values():
            shutil.rmtree(sandbox.definition.entrypoint_args[-1], ignore_errors=True)
    made.temporary.rmdir()


def test_an_agent_makes_a_whole_study(bench: Bench) -> None:
    """It fails at its first start, and makes the study at the second."""
    checked = bench.run(bench.command("fail", "first", "--test-only"))
    assert "'missing': []" in checked.replace('"', "'") and "verdict" in checked
    assert "THEIR_KEY" in checked and SECRET not in checked and not bench.root.exists()
    output = bench.run(bench.command("fail"))
    assert "first: finished; sweeps: study" in output and SECRET not in output
    assert bench.states() == Counter(succeeded=4)
    lines = bench.transcript().splitlines()
    assert [line.split('"')[3] for line in lines] == [
        *("begun", "environment", "skill"),
        *("begun", "environment", "skill", "power", "plan", "launch", "beyond", "verdict"),
    ]
    assert SECRET not in "".join(lines) and '"secret": "***"' in lines[1]
    assert "TINKER_API_KEY" not in lines[1]
    assert '"again": false' in lines[0] and '"again": true' in lines[3]
    assert "96 more runs would exceed what is left of the budget: runs 2" in lines[-2]
    prompt = bench.run(bench.sweeper("transcript", "first", "--prompt"))
    assert prompt.startswith("# fail\n") and "may use: runs=6" in prompt
    listed = bench.run(bench.sweeper("transcript"))
    assert "finished" in listed and "study" in listed
    notes = subprocess.run(
        [sys.executable, "-P", "-m", "sweeper", "note", "study", "--root", str(bench.root)],
        env=bench.env, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "agent first of " in notes and "which rate" in notes
    assert "the store already has an agent first" in bench.run(bench.command("study"), 2)


@pytest.mark.parametrize("ended", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_agent_leaves_no_process_and_no_run_is_lost(
    bench: Bench, ended: signal.Signals
) -> None:
    started = subprocess.Popen(
        bench.command("hang"),
        cwd=bench.folder,
        env=bench.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    parts = bench.root / ".agents-sessions" / "first" / "transcript"
    until(lambda: any(b'"hangs"' in part.read_bytes() for part in parts.glob("*.log")))
    assert len(bench.left()) >= 2
    started.send_signal(ended)
    assert started.wait(SECONDS) == (130 if ended == signal.SIGTERM else -signal.SIGKILL)
    until(lambda: not bench.left())
    until(lambda: bench.states() == Counter(succeeded=4))
    state = "stopped" if ended == signal.SIGTERM else "running"
    assert f" {state} " in bench.run(bench.sweeper("transcript"))
    assert '"launched": true' in bench.transcript()


def test_an_agent_has_limits_of_time_and_restarts(bench: Bench) -> None:
    sleep = "bash -c 'sleep 1000 & sleep 1000'"
    output = bench.run(bench.command("x", "slow", "--hours", "0.001", agent=sleep), 4)
    assert "slow: out of time" in output
    fail = "bash -c 'echo again; exit 7'"
    output = bench.run(bench.command("x", "bad", "--restarts", "1", agent=fail), 3)
    assert "bad: failed (exit code 7)" in output and bench.transcript("bad") == "again\nagain\n"
    missing = bench.run(bench.command("x", "none", "--test-only", agent="no-such-program"), 6)
    assert '"missing": ["no-such-program"]' in missing


def test_nothing_of_an_agent_is_a_sweep(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    store.create(".agents-sessions/a/session.json", b"{}")
    assert Registry(str(tmp_path)).sweep_names() == []
