"""Measures how long the command line takes to start, compared with a Python that does nothing.

    python tests/bench/startup.py [ROUNDS]

Prints medians (and minimums, for busy machines), with the ratio to `python -c pass`, all measured
in turns in one run: `sweeper --help`, and a plan of 10 runs of the recipe `sft` compared with the
import of that recipe. A plan may cost four times a bare Python plus the recipe's import, which
happens in a separate Python: the one that will run it.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GRID = """
name: ten
recipe: sft
grid: {learning_rate: [1e-3, 2e-3, 4e-3, 8e-3, 16e-3], lora_rank: [4, 16]}
"""


def main() -> None:
    rounds = int(sys.argv[1]) if sys.argv[1:] else 41
    python, program = sys.executable, str(Path(sys.executable).parent / "sweeper")
    # Without bytecode files every start would compile its imports.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "ten.yaml").write_text(GRID)
        commands = {
            "python -c pass": [python, "-c", "pass"],
            "sweeper --help": [program, "--help"],
            "import sweeper.recipes.sft": [python, "-c", "import sweeper.recipes.sft"],
            "sweeper plan": [program, "plan", "ten.yaml", "--root", "none"],
        }
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        for number in range(rounds + 2):
            for name, command in commands.items():
                begun = time.perf_counter()
                subprocess.run(
                    command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=True
                )
                if number >= 2:  # the first ones write the bytecode
                    seconds[name].append(time.perf_counter() - begun)
    print(f"{'':<20} {'median':>10} {'':>8} {'least':>10}")
    table = [{k: 1e3 * f(v) for k, v in seconds.items()} for f in (statistics.median, min)]
    for name in commands:
        cells = (f"{t[name]:7.1f} ms {t[name] / t['python -c pass']:6.1f} x" for t in table)
        print(f"{name:<20} {' '.join(cells)}")
    allowed = (4 * t["python -c pass"] + t["import sweeper.recipes.sft"] for t in table)
    print(f"{'a plan may take':<20} {'          '.join(f'{ms:7.1f} ms' for ms in allowed)}")


if __name__ == "__main__":
    main()
