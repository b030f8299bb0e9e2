"""Follows the skill from its own text like a new user: clones this repository, installs it, and
types each command of the skill in an empty folder. Prints when each was done.

    python tests/bench/skill_walk.py
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from support.own_tmux import own_tmux

ROOT = Path(__file__).parents[2]
SKILL = "sweeper/agents/SKILL.md"


def main() -> int:
    """Follow the skill. The exit code is that of the first command that failed."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="skill-walk-") as name, own_tmux():
        folder = Path(name)
        clone, work = folder / "clone", folder / "work"
        work.mkdir()
        binaries = f"{clone}/.venv/bin:{os.environ['PATH']}"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SWEEPER_")}
        environment |= {"PATH": binaries, "SWEEPER_HOME": f"{folder}/home"}

        def typed(line: str, where: Path) -> int:
            done = subprocess.run(
                ["sh", "-c", line], cwd=where, env=environment, stdin=subprocess.DEVNULL,
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            print(f"{time.monotonic() - begun:7.1f} s  exit {done.returncode}  {line}", flush=True)
            if done.returncode:
                print(done.stdout + done.stderr, file=sys.stderr)
            return done.returncode

        try:
            code = typed(f"git clone -q {ROOT} {clone}", folder) or typed("make install", clone)
            text = "" if code else (clone / SKILL).read_text()
            for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL):
                for line in filter(None, map(str.strip, block.splitlines())):
                    code = code or typed(line, work)
            return code
        finally:
            typed("sweeper engine stop", work)


if __name__ == "__main__":
    raise SystemExit(main())
