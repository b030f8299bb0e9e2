"""The recipe of the chaos tests, a command: `toy.py LEDGER STEPS SECONDS MODE LOG_PATH`.

It uses only the standard library, and starts quickly: each step is a row in the ledger and a line
of metrics. `MODE` is a list of words, separated by `:`:

    plain       nothing else
    silent      no metrics: nothing in its folder
    resume      a checkpoint after every step; starts after the last one; a final one at the end
    incomplete  as `resume`, without the final checkpoint
    fail        exit code 1 at the end
    first       the following words are for the first attempt only
    torn-N      write N bytes of the second step's metrics, and die by SIGKILL
    memory      take memory until there is none
    say-TEXT    print TEXT at the end
    waits       end only when there is a file LEDGER.go
    holds-N     begin step N only when there is this file
"""

import json
import os
import signal
import sys
import time


def main(ledger: str, steps: str, seconds: str, mode: str, log_path: str) -> int:
    run, attempt = os.environ["SWEEPER_RUN"], int(os.environ["SWEEPER_ATTEMPT"])
    before, _, after = mode.partition("first:")
    words = before.split(":") + (after.split(":") if attempt == 1 else [])
    saves = "resume" in words or "incomplete" in words
    checkpoints = os.path.join(log_path, "checkpoints.jsonl")
    begin = next_step(checkpoints) if saves else 0
    torn = next((int(word[5:]) for word in words if word.startswith("torn-")), None)
    for step in range(begin, int(steps)):
        while f"holds-{step}" in words and not os.path.exists(f"{ledger}.go"):
            time.sleep(0.02)
        line = json.dumps({"step": step, "loss": 1 / (1 + step), "note": "é" * 3}) + "\n"
        if torn is not None and step == 1:
            append(os.path.join(log_path, "metrics.jsonl"), line.encode()[:torn])
            os.kill(os.getpid(), signal.SIGKILL)
        append(ledger, f"{run} {attempt} {step}\n".encode(), sync=True)
        if "silent" not in words:
            append(os.path.join(log_path, "metrics.jsonl"), line.encode())
        time.sleep(float(seconds) / int(steps))
        while "waits" in words and not os.path.exists(f"{ledger}.go"):
            time.sleep(0.02)
        if saves:
            record = {"name": f"{step:06d}", "step": step, "state_path": f"toy://{run}/{step}"}
            append(checkpoints, (json.dumps(record) + "\n").encode())
    if "resume" in words:
        append(checkpoints, b'{"name": "final", "final": true}\n')
    if "memory" in words:
        taken = []
        while True:
            taken.append(bytearray(b"x" * (1 << 20)))
    for word in words:
        if word.startswith("say-"):
            print(word[4:], flush=True)
    return 1 if "fail" in words else 0


def append(path: str, data: bytes, *, sync: bool = False) -> None:
    """Append with one write."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(descriptor, data)
    if sync:
        os.fsync(descriptor)
    os.close(descriptor)


def next_step(path: str) -> int:
    """Return the step after the last recorded checkpoint."""
    try:
        with open(path, encoding="utf-8") as file:
            records = [json.loads(line) for line in file]
    except OSError:
        return 0
    return max((record.get("step", -1) for record in records), default=-1) + 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
