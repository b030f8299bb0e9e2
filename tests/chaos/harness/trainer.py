"""The recipe of the tests that kill engines, a command: `trainer.py LEDGER STEPS SECONDS
LOG_PATH`.

It trains with the unmodified SDK, saves its weights after every step, and starts from the last
saved ones. Each finished step is a row in the ledger. While there is a file LEDGER.hold it does
not begin its last step.
"""

import json
import os
import sys
import time

import tinker
from ledger import write_row

TOKENS = list(range(10, 20))
DATA = [
    tinker.Datum(
        model_input=tinker.ModelInput.from_ints(TOKENS[:-1]),
        loss_fn_inputs={
            "target_tokens": tinker.TensorData(data=TOKENS[1:], dtype="int64", shape=[9])
        },
    )
]


def main(ledger: str, steps: str, seconds: str, log_path: str) -> None:
    run, attempt = os.environ["SWEEPER_RUN"], int(os.environ["SWEEPER_ATTEMPT"])
    checkpoints = os.path.join(log_path, "checkpoints.jsonl")
    saved = []
    if os.path.exists(checkpoints):
        with open(checkpoints, encoding="utf-8") as file:
            saved = [json.loads(line) for line in file]
    service = tinker.ServiceClient()
    if saved:
        last = saved[-1]["state_path"]
        training = service.create_training_client_from_state_with_optimizer(last).result()
    else:
        training = service.create_lora_training_client("tiny/qwen3", rank=2, seed=0).result()
    for step in range(saved[-1]["step"] + 1 if saved else 0, int(steps)):
        while step + 1 == int(steps) and os.path.exists(f"{ledger}.hold"):
            time.sleep(0.02)
        passed = training.forward_backward(DATA, "cross_entropy")
        training.optim_step(tinker.AdamParams(learning_rate=1e-2)).result()
        loss = passed.result().metrics["loss:sum"]
        path = training.save_state(f"{run}-{attempt}-{step}").result().path
        write_row(ledger, (run, attempt, step))
        name = "final" if step + 1 == int(steps) else f"{step:06d}"
        note(os.path.join(log_path, "metrics.jsonl"), {"step": step, "loss": loss})
        note(checkpoints, {"name": name, "step": step, "state_path": path})
        time.sleep(float(seconds) / int(steps))


def note(path: str, record: dict[str, object]) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # the SDK's threads have nothing to report any more
