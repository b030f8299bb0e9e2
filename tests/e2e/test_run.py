"""`sweeper run`: commands as runs of an ordinary sweep."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.shell import Shell

pytestmark = pytest.mark.e2e

PROGRAM = """
import json, os, sys
mode, loss = sys.argv[1:3]
print("loss is", loss, flush=True)
with open(os.path.join(os.environ["SWEEPER_RUN_DIR"], "metrics.jsonl"), "a") as file:
    file.write(json.dumps({"step": 0, "loss": float(loss)}) + "\\n")
if mode != "fine" and not os.path.exists(mode):
    sys.exit("the file is missing")
"""


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    (tmp_path / "program.py").write_text(PROGRAM)
    return Shell(tmp_path, "local")


def test_a_command_is_followed_fails_and_is_retried(shell: Shell) -> None:
    flag = shell.folder / "flag"
    words = ["--name", "one", "launch.retries=0", "--", "python", "program.py", str(flag), "0.5"]
    follow = ("run", "--backend", "local", "-f", *words)
    output = shell.run(*follow, code=3)
    assert "loss is 0.5\n" in output
    assert "1 run failed: `sweeper logs one --state failed` shows" in output
    flag.touch()
    shell.run("retry", "one", "--wait")
    (run,) = shell.runs_of("one")
    assert (run["state"], run["attempts"]) == ("succeeded", 2)
    assert "loss is 0.5\n" in shell.run(
        "run", "--backend", "local", "-f", *words
    )  # nothing runs again
    assert (shell.folder / "flag").exists()
    (same,) = shell.runs_of("one")
    assert same["attempts"] == 2
    assert f"\npython program.py {flag} 0.5\n" in shell.run("show", "one/base")


def test_lines_become_runs_that_are_compared(shell: Shell) -> None:
    lines = [f"python program.py fine {loss}" for loss in (0.5, 0.25, 0.75)]
    (shell.folder / "jobs.txt").write_text("\n".join(lines))
    shell.run("run", "--backend", "local", "--name", "many", "--wait", "--each", "jobs.txt")
    best = json.loads(shell.run("best", "many", "--metric", "loss", "--goal", "minimize", "--json"))
    assert "fine_0.25" in json.dumps(best)
    shell.run("analyze", "many", "--metric", "loss", "--goal", "minimize")
    assert (
        '"fine", "0.25"' in (shell.folder / "sweeps" / "many" / "report" / "report.md").read_text()
    )


def test_each_run_without_a_name_is_a_sweep_of_its_own(shell: Shell) -> None:
    command = ("--", "python", "program.py", "fine", "1")
    answers = [
        shell.run("run", "--backend", "local", "--wait", "--json", *command) for _ in range(2)
    ]
    names = {json.loads(answer[: answer.rindex("}") + 1])["sweep"] for answer in answers}
    assert len(names) == 2
    assert all(name.startswith("program-") for name in names)


def test_an_interrupted_follower_leaves_the_run_alone(shell: Shell) -> None:
    program = "import sys, os, time\nprint('begun', flush=True)\n"
    program += "while os.path.exists(sys.argv[1]): time.sleep(0.05)\n"
    (shell.folder / "waits.py").write_text(program)
    shell.hold.touch()
    words = ["--name", "long", "-f", "--", "python", "waits.py", str(shell.hold)]
    process = shell.start("run", "--backend", "local", *words)
    lines = iter(process.stdout.readline, "")
    assert any("begun" in line for line in lines)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted: long continues to run; `sweeper cancel long` stops it" in errors
    shell.hold.unlink()
    shell.run("run", "--backend", "local", *words[:2], "--wait", *words[3:])
    (run,) = shell.runs_of("long")
    assert (run["state"], run["attempts"]) == ("succeeded", 1)


def test_a_loop_of_a_shell_script_becomes_a_sweep(shell: Shell) -> None:
    loop = "for loss in 0.5 0.25; do\n  python program.py fine $loss | tee log &\ndone\n"
    (shell.folder / "loop.sh").write_text(loop)
    output = shell.run("init", "--from", "loop.sh")
    assert "loop.sh:2: the command after `|` is left out" in output
    assert "wrote loop.yaml" in output
    assert "2 to start" in shell.run("plan", "loop.yaml")
    shell.run("launch", "loop.yaml", "--backend", "local", "--wait")
    runs = shell.runs_of("loop")
    assert sorted((run["name"], run["state"]) for run in runs) == [
        ("loss=0.25", "succeeded"),
        ("loss=0.5", "succeeded"),
    ]


MODULE = """
import dataclasses, json, os

@dataclasses.dataclass
class Config:
    rate: float
    log_path: str = ""
    flag: str = ""

def train(config: Config) -> None:
    with open(os.path.join(config.log_path, "metrics.jsonl"), "a") as file:
        file.write(json.dumps({"step": 0, "loss": config.rate}) + "\\n")
    if config.flag and not os.path.exists(config.flag):
        raise RuntimeError("no flag")
"""


def test_configs_from_python_are_a_sweep_that_verbs_know(shell: Shell) -> None:
    (shell.folder / "module.py").write_text(MODULE)
    flag = str(shell.folder / "flag")
    program = "import sweeper; from module import Config, train\n"
    program += f"configs = [Config(rate=1.0), Config(rate=0.5, flag={flag!r})]\n"
    settings = {"launch.backend": "local", "launch.retries": 0}
    program += f"sweeper.launch(configs, main=train, name='py', overrides={settings})\n"
    command = [sys.executable, "-c", program]
    subprocess.run(command, cwd=shell.folder, env=shell.environment, check=True, timeout=120)
    runs = shell.runs_of("py")
    assert sorted(run["state"] for run in runs) == ["failed", "succeeded"]
    Path(flag).touch()
    shell.run("retry", "py", "--wait")
    runs = shell.runs_of("py")
    assert sorted((r["attempts"], r["state"]) for r in runs) == [(1, "succeeded"), (2, "succeeded")]
