"""After a kill during episodes, no process, mount or folder of an environment remains."""

import json
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from support import shell as shells

from sweeper import sandbox
from sweeper.sandbox.bubblewrap import below
from sweeper.sweep.process import began

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(sandbox.missing("bubblewrap") is not None, reason="no bubblewrap here"),
]
TASKS = Path(__file__).parents[2] / "grids" / "terminal"
DAEMONS = "RUN setsid sleep 1000 & sleep 1000 & sleep 0.2\n"
"""Background processes that each episode starts."""
GRID = {
    "name": "killed",
    "recipe": "terminal",
    "service": "none",
    "secrets": ["TINKER_API_KEY"],
    "base": {
        "groups_per_batch": 2,
        "group_size": 4,
        "n_parallel_envs": 4,
        "max_turns": 2,
        "max_tokens": 1,
        "context_limit": 512,
        "eval_every": 0,
    },
    "seeds": 1,
    "metric": {"name": "env/all/reward/total", "goal": "maximize"},
    "launch": {"backend": "local", "retries": 0},
}


@pytest.fixture
def at_work(recipes, tmp_path):
    """Yield a function that launches the sweep and waits until its environments are running."""
    shell, begun = shells.Shell(tmp_path, "local"), []
    shell.environment |= {"TINKER_API_KEY": recipes.key}

    def start(environment, steps):
        for name in ("door", "lamp"):
            shutil.copytree(TASKS / name, tmp_path / "tasks" / name)
            with (tmp_path / "tasks" / name / "environment" / "Dockerfile").open("a") as file:
                file.write(DAEMONS)
        (tmp_path / "tmp").mkdir()
        base = GRID["base"] | {"tasks": str(tmp_path / "tasks"), "base_url": recipes.url}
        base |= {"environment": environment, "unsafe": environment == "process"}
        base |= {"max_steps": steps}
        env = dict(recipes.tokenizers) | {"TMPDIR": str(tmp_path / "tmp")}
        grid = GRID | {"base": base, "launch": GRID["launch"] | {"env": env}}
        (tmp_path / "killed.yaml").write_text(json.dumps(grid))
        launcher = shell.start("launch", "killed.yaml", "--wait", start_new_session=True)
        begun.append(launcher)
        shell.until(lambda: daemons(tmp_path) or launcher.poll() is not None)
        assert launcher.poll() is None, launcher.communicate()
        return launcher

    yield start
    for process in (*begun, *jobs(tmp_path)):
        with suppress(psutil.Error):
            process.kill()
    for launcher in begun:
        launcher.communicate()


def jobs(folder):
    """Return the workers of the sweep, their guards and their recipes."""
    processes = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = process.cmdline()
            if "launch" not in words and any(str(folder / "sweeps") in word for word in words):
                processes.append(process)
    return processes


def daemons(folder):
    """Return the processes that episodes started in their environments."""
    pids = []
    for pid in {pid for job in jobs(folder) for pid in below(job.pid)}:
        with suppress(psutil.Error):
            if psutil.Process(pid).cmdline() == ["sleep", "1000"]:
                pids.append(pid)
    return pids


def victim(who, launcher, folder):
    """Return the pid to kill."""
    victims = {"launcher": launcher.pid}
    for process in jobs(folder):
        if "run" in process.cmdline():
            victims |= {"recipe": process.pid, "worker": process.ppid()}
    return victims[who]


def mounts():
    return set(Path("/proc/self/mountinfo").read_text().splitlines())


@pytest.mark.parametrize(
    ("who", "environment"),
    [
        ("recipe", "bubblewrap"),
        ("recipe", "process"),
        ("worker", "bubblewrap"),
        ("launcher", "bubblewrap"),
    ],
)
def test_nothing_of_an_environment_stays(at_work, tmp_path, who, environment):
    """If only the launcher is killed, the run continues to its end."""
    before = mounts()
    # The killed process would run for much longer, even if the kill comes late.
    launcher = at_work(environment, steps=4 if who == "launcher" else 200)
    pids = {pid for job in jobs(tmp_path) for pid in (job.pid, *below(job.pid))}
    inside = daemons(tmp_path)
    os.kill(victim(who, launcher, tmp_path), signal.SIGKILL)
    shells.Shell.until(lambda: not any(map(began, [*pids, *inside])))
    shells.Shell.until(lambda: not jobs(tmp_path))
    # Environments that started since then are removed too.
    shells.Shell.until(lambda: not list((tmp_path / "tmp").glob("sweeper-task-*")))
    # Parallel tests have mounts too. The entry of an overlay names its folders.
    assert not [line for line in mounts() - before if str(tmp_path) in line]
    launcher.wait(120)
    events = {path.name for path in (tmp_path / "sweeps" / "killed" / "state").rglob("*.json")}
    assert ("1.succeeded.json" in events) == (who == "launcher")
