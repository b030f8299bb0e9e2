"""Measures the cost of "A solves, B does not" in a report, with both answers, over 100,000
answers.

    python tests/bench/report_items.py [--answers 100000] [--characters 600] [--rounds 5]

Five cells of two runs answer the same questions, five samples each, in `items.jsonl` as `eval`
writes it. Each measurement is in a separate process, in processor and wall time: finding the pairs
and reading the answers to show, the whole report, and the growth of the page. Medians.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from support.written import Written, dump

CELLS, RUNS, SAMPLES = 5, 2, 5

OURS = """
import json, resource, sys, time
from pathlib import Path
from sweeper import analysis
from sweeper.analysis.page import report
read, whole = report.read_transcripts, []
def timed(*given):
    clock, used = time.perf_counter(), time.process_time()
    pairs = read(*given) if sys.argv[3] == "with" else []
    whole.extend((time.perf_counter() - clock, time.process_time() - used))
    return pairs
report.read_transcripts = timed
clock, used = time.perf_counter(), time.process_time()
made = analysis.analyze(sys.argv[1], "bench", out=sys.argv[2], pictures=False)
print(json.dumps({
    "pairs": whole, "report": [time.perf_counter() - clock, time.process_time() - used],
    "page": Path(made.html_path).stat().st_size,
    "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
}))
"""


def generate(root: Path, answers: int, characters: int) -> None:
    """Write a sweep of ten runs with this many answers in total."""
    metric = {"name": "eval/gsm", "goal": "maximize", "at": "last"}
    sweep, chance = Written(root, "bench", metric=metric), random.Random(1)
    words = [f"{chance.getrandbits(30):x}" for _ in range(5000)]
    items = answers // (CELLS * RUNS * SAMPLES)
    hard = [chance.random() for _ in range(items)]
    for number in range(CELLS * RUNS):
        cell, seed = divmod(number, RUNS)
        lines = []
        for item in range(items):
            solves = hard[item] < 0.3 + 0.1 * cell + 0.2 * chance.random()
            for sample in range(SAMPLES):
                score = float(chance.random() < (0.9 if solves else 0.1))
                text = " ".join(chance.choices(words, k=characters // 9))
                scored = {"item": f"{item:032x}", "task": "gsm", "sample": sample, "score": score}
                texts = {"prompt": f"Question {item}: what is it?", "text": text, "answer": "42"}
                lines.append({**scored, **texts})
        rows = [{"step": 1, "eval/gsm": 0.3 + 0.1 * cell}]
        run = sweep.run({"learning_rate": cell}, seed, rows)
        (root / "bench" / "runs" / f"{run}.1" / "items.jsonl").write_text(dump(lines))
    sweep.save()


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    options.add_argument("--answers", type=int, default=100_000)
    options.add_argument("--characters", type=int, default=600)
    options.add_argument("--rounds", type=int, default=5)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        generate(root, given.answers, given.characters)
        size = sum(path.stat().st_size for path in root.glob("bench/runs/*/items.jsonl"))
        environment = {**os.environ, "XDG_CACHE_HOME": f"{place}/cache"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        measured = {"with": [], "without": []}
        for _ in range(given.rounds):
            for kind, rows in measured.items():
                command = [sys.executable, "-c", OURS, place, f"{place}/out", kind]
                done = subprocess.run(
                    command, env=environment, capture_output=True, text=True, check=True
                )
                rows.append(json.loads(done.stdout.splitlines()[-1]))
    print(f"{given.answers:,} answers, {size / 1e6:.0f} MB; load {os.getloadavg()[0]:.0f}\n")
    print("| | by the clock, s | processor, s | page, kB | memory, MB |\n|---|---|---|---|---|")
    for title, kind, key in (
        ("finding the items, reading the answers that are shown", "with", "pairs"),
        ("the whole report", "with", "report"),
        ("the report without these items", "without", "report"),
    ):
        clock, used = (statistics.median(row[key][n] for row in measured[kind]) for n in (0, 1))
        page, memory = (
            statistics.median(row[k] for row in measured[kind]) for k in ("page", "memory")
        )
        print(f"| {title} | {clock:.2f} | {used:.2f} | {page / 1e3:.0f} | {memory / 1e3:.0f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
