"""Runs inside a Slurm job, as `python -E -s slurm/job.py TABLE`. Starts the task's command,
forwards SIGTERM, and requeues the job if the attempt can be resumed. Imports only the standard
library."""

import base64
import json
import os
import signal
import subprocess
import sys

RESUMABLE = 75
"""The exit code of a worker whose attempt can be resumed (EX_TEMPFAIL)."""

_GIVEN = (
    *("SLURM_", "SLURMD_NODENAME"),
    *("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"),
)
_SHELLS = {"SWEEPER_BEFORE", "_", "SHLVL", "PWD", "OLDPWD"}


def main(path: str) -> int:
    stopped: list[int] = []
    child: list[subprocess.Popen[bytes]] = []

    def stop(number: int, frame: object) -> None:
        del frame
        stopped.append(number)
        if child:
            child[0].send_signal(signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)
    with open(path, encoding="utf-8") as file:
        table = json.load(file)
    task = table["tasks"][int(os.environ.get("SLURM_ARRAY_TASK_ID") or 0)]
    folder, token = task["argv"][-2:]
    print(f"{token} on {os.environ.get('SLURMD_NODENAME', '?')}", flush=True)
    child.append(
        subprocess.Popen(
            task["argv"],
            cwd=task["cwd"],
            stdin=subprocess.DEVNULL,
            env=environment(dict(os.environ)),
        )
    )
    if stopped:  # SIGTERM arrived while the process started.
        child[0].send_signal(signal.SIGTERM)
    code = child[0].wait()
    if code == RESUMABLE and stopped and table["requeue"]:
        requeue(folder, token)
    return code if code >= 0 else 128 - code


def environment(launched: dict[str, str]) -> dict[str, str]:
    """Return the worker's environment: this job's environment `launched`, and variables for the
    worker. SWEEPER_KEEP lists the variables that the recipe gets from this job, namely those that
    Slurm sets and those that `setup` has changed. The recipe's other variables come from `sweeper
    launch`."""
    from_job = {name for name in launched if name.startswith(_GIVEN)}
    before = launched.get("SWEEPER_BEFORE")
    if before is not None:
        parts = base64.b64decode(before).split(b"\0")
        old_values = {
            os.fsdecode(n): os.fsdecode(v) for n, _, v in (p.partition(b"=") for p in parts)
        }
        from_job |= {
            name for name, value in launched.items() if old_values.get(name) != value
        } - _SHELLS
    variables = {name: value for name, value in launched.items() if name != "SWEEPER_BEFORE"}
    variables["SWEEPER_KEEP"] = "\n".join(sorted(from_job))
    variables["SWEEPER_DROP"] = "SLURM_"
    variables["SWEEPER_SIGNALS"] = "everybody"  # Slurm signals every process of a job.
    return variables


def requeue(folder: str, token: str) -> None:
    """Requeue the job for the next attempt. Do nothing if a launcher has already started the next
    attempt, or if Slurm does not report the job as running. If Slurm refuses, a launcher submits
    the next attempt."""
    run, _, first = token.rpartition("-a")
    attempt = int(first) + int(os.environ.get("SLURM_RESTART_COUNT") or 0)
    if os.path.exists(os.path.join(folder, "state", run, f"{attempt + 1}.intent.json")):
        return
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    # For a task, SLURM_JOB_ID would be wrong: one task of each array has the id of the whole array.
    job = f"{array}_{task}" if array and task else os.environ["SLURM_JOB_ID"]
    shown = scontrol("show", "job", "--oneliner", job)
    if " JobState=RUNNING " not in shown.stdout:
        return  # A user ran `scancel`, or Slurm has already requeued the job.
    done = scontrol("requeue", job)
    if done.returncode:
        print(f"not requeued: {done.stderr.strip()}", flush=True)


def scontrol(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["scontrol", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
