"""A run of a few steps, each a line of the ledger and one of `metrics.jsonl`: `quick_run.py LEDGER
STEPS`. Its resumed attempts start anew."""

import json
import os
import sys
import time

from ledger import write_row

ledger, steps = sys.argv[1], int(sys.argv[2])
run, attempt = os.environ["SWEEPER_RUN"], int(os.environ["SWEEPER_ATTEMPT"])
for step in range(steps):
    write_row(ledger, (run, attempt, step))
    with open(f"{os.environ['SWEEPER_RUN_DIR']}/metrics.jsonl", "a", encoding="ascii") as file:
        file.write(json.dumps({"step": step, "loss": 1 / (1 + step)}) + "\n")
    time.sleep(0.1)
