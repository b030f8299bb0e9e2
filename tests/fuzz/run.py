"""Fuzz `sweeper plan`: for every grid it ends soon, writes and starts nothing, and either plans the
runs or reports what is wrong, with the place.

    python tests/fuzz/run.py [--cases N] [--seed N] [--keep FOLDER]

Every case runs in a separate process (judge.py). In one case of twenty the recipe is queried as
usual, in another interpreter; in the others it is queried in the process of the case. A case fails
if its exit code is not 0 or 2, if it shows a traceback, does what a plan must not do, leaves a
file, has a message without a place, grows by more than 200 MB, or takes more than 1 s of processor
time (plus 0.1 ms for each planned run) in all of three tries: other load can slow one down. Prints
the counts, the slowest and the largest case; exit code 1 when a case failed.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import hypothesis
from cases import ROOT, language, mutated, overrides, soup, tame
from hypothesis import strategies as st

SECONDS, SECONDS_A_RUN, MEGABYTES = 1.0, 0.0001, 200.0
MOST_REFUSED = 0.9
_PLACED = re.compile(r"[^:]*\.yaml:\d+:\d+: .|override .+: .")
_PLACELESS = re.compile(
    r"grid\.yaml: (the grid is empty; |larger than |more than |\d+ bytes|not YAML: |File name|"
    r"Is a dir)|launch\.\w+: "
)
_RUNS = re.compile(r"(\d+) runs?: ")


class Judge:
    """The process that runs the cases (judge.py)."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("judge.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(ROOT)},
        )

    def __call__(self, cwd: Path, arguments: list[str], real: bool) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        request = {"cwd": str(cwd), "arguments": arguments, "real": real}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.communicate()


def faults(answer: dict[str, Any]) -> list[str]:
    """Return the failures of a case."""
    problems: list[str] = [f"did {deed}" for deed in answer["did"]]
    text: str = answer["err"]
    if answer["code"] not in (0, 2) or "Traceback" in text:
        problems.append(f"ended with {answer['code']}: {text.strip()[-300:]}")
    runs = [int(n) for n in _RUNS.findall(answer["out"])]
    allowed = SECONDS + SECONDS_A_RUN * max(runs, default=0)
    if answer["seconds"] > allowed:
        problems.append(f"{answer['seconds']:.2f} s of processor time")
    if answer["megabytes"] > MEGABYTES:
        problems.append(f"{answer['megabytes']:.0f} MB")
    if answer["code"] == 2:
        lines = text.removeprefix("sweeper: ").removesuffix("\n").split("\n")
        odd = [li for li in lines if not _PLACED.match(li) and not _PLACELESS.match(li)]
        problems += [f"no place: {line[:200]}" for line in odd[:1]]
    return problems


class Fuzz:
    """The cases of one run and their results."""

    def __init__(self, folder: Path, keep: Path | None) -> None:
        self.folder, self.keep, self.judge = folder, keep, Judge()
        shutil.copytree(ROOT / "grids", folder, dirs_exist_ok=True)
        self.before = self._files()
        self.cases = self.refused = self.tracebacks = 0
        self.slowest: tuple[float, int] = (0.0, 0)
        self.largest: tuple[float, int] = (0.0, 0)
        self.failed: list[str] = []

    def _files(self) -> list[str]:
        return sorted(str(path) for path in self.folder.rglob("*") if path.name != "grid.yaml")

    def case(self, text: bytes, arguments: list[str]) -> None:
        self.cases += 1
        number = self.cases
        (self.folder / "grid.yaml").write_bytes(text)
        given = ["plan", "--root", "sweeps", "--", "grid.yaml", *arguments]
        answer = self.judge(self.folder, given, real=number % 20 == 0)
        for _ in range(2):
            if answer["seconds"] > SECONDS:
                again = self.judge(self.folder, given, real=number % 20 == 0)
                answer["seconds"] = min(answer["seconds"], again["seconds"])
        problems = faults(answer)
        if self._files() != self.before:
            problems.append("left a file")
        self.refused += answer["code"] == 2
        self.tracebacks += "Traceback" in answer["err"]
        self.slowest = max(self.slowest, (answer["seconds"], number))
        self.largest = max(self.largest, (answer["megabytes"], number))
        if problems:
            self.failed.append(f"case {number} {arguments}: {'; '.join(problems)}")
            print(self.failed[-1], flush=True)
            if self.keep is not None:
                self.keep.mkdir(parents=True, exist_ok=True)
                (self.keep / f"{number}.yaml").write_bytes(text)


def fuzz(cases: int, seed: int, keep: Path | None) -> Fuzz:
    """Run this many cases. The same seed makes the same cases."""
    grids = [
        path.read_bytes()
        for path in sorted(ROOT.rglob("*.yaml"))
        if "." not in path.parts[len(ROOT.parts)]
    ]
    grids = [grid for grid in grids if 0 < len(grid) < 20_000]
    with tempfile.TemporaryDirectory() as folder:
        made = Fuzz(Path(folder), keep)
        texts = st.one_of(language(), tame(), mutated(grids), mutated(grids), soup())

        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=cases,
            database=None,
            deadline=None,
            phases=[hypothesis.Phase.generate],
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(texts, overrides())
        def run(text: bytes, arguments: list[str]) -> None:
            if made.cases < cases:
                made.case(text, arguments)

        run()
        made.judge.close()
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="where failing grids are kept")
    given = parser.parse_args()
    made = fuzz(given.cases, given.seed, given.keep)
    print(
        f"{made.cases} cases ({made.refused} refused): {made.tracebacks} tracebacks,"
        f" {len(made.failed)} failed; slowest {made.slowest[0]:.2f} s of processor time (case"
        f" {made.slowest[1]}), largest {made.largest[0]:.0f} MB (case {made.largest[1]})"
    )
    if made.refused > MOST_REFUSED * made.cases:
        print(
            "nearly all were refused: what plans grids was hardly tried (see tests/fuzz/cases.py)"
        )
        return 1
    return 1 if made.failed or made.cases < given.cases else 0


if __name__ == "__main__":
    sys.exit(main())
