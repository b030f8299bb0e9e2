"""Runs a small sweep on a real AWS account, to check what no emulation can show.

It costs a few minutes of the smallest job that the queue accepts, and leaves a sweep
`batch-smoke-<time>` in the root, which may be deleted.

    python tests/manual/aws_batch_smoke.py --root s3://BUCKET/smoke --queue QUEUE --image IMAGE \
        [--role ARN] [--execution-role ARN] [--region REGION] [--python python] [--steps 20]

Needs the permissions of docs/aws-batch-policy.json here, and for the jobs, by --role, those of
docs/aws-batch-job-policy.json. Checks: the doctor; an array of four jobs with a run that fails and
is retried; a run that is cancelled while it runs; the output of each job in CloudWatch; a relaunch
that finds everything done. Exit code 0 when all of it was correct. Not checked: a machine that is
taken away (AWS's Fault Injection Service does it on request), thousands of jobs.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from sweeper.backends import open_backend, options_of
from sweeper.results.registry import Registry
from sweeper.store.opening import open_store
from sweeper.sweep.folder import SweepFolder

TOY = """
import json, os, sys, time
mode, steps, log_path = sys.argv[1:]
for step in range(int(steps)):
    with open(os.path.join(log_path, "metrics.jsonl"), "a") as file:
        print(json.dumps({"step": step, "loss": 1 / (1 + step)}), file=file)
    print("step", step, flush=True)
    time.sleep(3600 if mode == "wait" else 0.5)
sys.exit(mode == "first" and os.environ["SWEEPER_ATTEMPT"] == "1")
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("root", "queue", "image"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("role", "execution-role", "region"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--python", default="python")
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args()
    keys = ("queue", "image", "role", "execution_role", "region", "python")
    options = {key: getattr(given, key) for key in keys if getattr(given, key) is not None}
    name = f"batch-smoke-{time.strftime('%Y%m%d-%H%M%S')}"
    grid = {
        "name": name,
        "command": [given.python, "toy.py", "{mode}", str(given.steps), "{log_path}"],
        "service": "none",
        "grid": {"mode": ["plain", "other", "first", "wait"]},
        "metric": {"name": "loss", "goal": "minimize"},
        "launch": {
            "backend": "aws-batch",
            "retries": 1,
            "sync": "5s",
            "aws_batch": options | {"array": 2},
        },
    }
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "toy.py").write_text(TOY)
        Path(folder, "grid.yaml").write_text(json.dumps(grid))
        subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
        return steps(folder, given.root, name)


def steps(folder: str, root: str, name: str) -> int:
    """Do all steps in turn; return 0 if all results were correct."""

    def sweeper(*arguments: str, check: bool = True) -> None:
        print(f"$ sweeper {' '.join(arguments)}", flush=True)
        command = [sys.executable, "-P", "-m", "sweeper", *arguments, "--root", root]
        subprocess.run(command, cwd=folder, check=check)

    sweeper("doctor", "--backend", "aws-batch", "--grid", "grid.yaml")
    sweeper("launch", "grid.yaml")
    for text, least in (("at work", 1), ("over but for one", 3)):
        wait_for(root, name, text, least)
    sweeper("status", name, check=False)
    sweeper("cancel", name)
    sweeper("launch", "grid.yaml", "--wait", check=False)  # 3: one run is cancelled
    launch = SweepFolder(open_store(root), name).read_plan().launch
    backend = open_backend("aws-batch", name, f"{root}/{name}", options_of(launch, "aws-batch"))
    runs = Registry(root, cache=False).sweep(name).runs
    wrong: list[str] = []
    for run in runs:
        for attempt in range(1, run.attempts + 1):
            lines = list(backend.logs(f"{run.id}-a{attempt}"))
            print(f"{run.name}, attempt {attempt}: {len(lines)} lines in CloudWatch")
            if not any(f"attempt {attempt}, in" in line for line in lines):
                wrong.append(f"{run.name}, attempt {attempt}: CloudWatch has no word of its worker")
    states = Counter(run.state.value for run in runs)
    if states != {"succeeded": 3, "cancelled": 1}:
        wrong.append(f"the runs' states are {dict(states)}")
    attempts = {run.config["mode"]: run.attempts for run in runs}
    if attempts != {"plain": 1, "other": 1, "first": 2, "wait": 1}:
        wrong.append(f"the runs' attempts are {attempts}")
    print("as it should be" if not wrong else "\n".join(["NOT as it should be:", *wrong]))
    return 1 if wrong else 0


def wait_for(root: str, name: str, what: str, least: int) -> None:
    """Wait until a run is running, and at least `least` runs are running (`what` is "at work") or
    have succeeded."""
    deadline = time.monotonic() + 1800
    while time.monotonic() < deadline:
        states = Counter(run.state.value for run in Registry(root, cache=False).sweep(name).runs)
        done = states["running"] if what == "at work" else states["succeeded"]
        if done >= least and states["running"] >= 1:
            print(f"{what}: {dict(states)}", flush=True)
            return
        time.sleep(2)
    raise SystemExit(f"half an hour, and not {what}: {dict(states)}")


if __name__ == "__main__":
    sys.exit(main())
