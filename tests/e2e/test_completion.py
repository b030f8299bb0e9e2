"""Tab in a real bash: calls what `sweeper --completion bash` defines, as bash would."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e
GRIDS = Path(__file__).parents[2] / "grids"

SCRIPT = """
eval "$(sweeper --completion bash)"
for line in "$@"; do
    COMP_LINE=$line COMP_POINT=${#line} COMP_TYPE=9 COMP_KEY=9 COMPREPLY=()
    read -ra COMP_WORDS <<<"$line"
    $(complete -p sweeper | sed 's/.*-F \\([^ ]*\\).*/\\1/') sweeper
    echo "${COMPREPLY[*]}"
done
"""

TYPED = {
    "sweeper st": {"status", "stop", "store"},
    "sweeper w": {"watch", "weights"},
    "sweeper watch a": {"alpha"},
    "sweeper --completion ": {"bash", "zsh", "fish"},
    "sweeper plan ": {"mine.yaml", "sweeps/", "elsewhere/"},
    "sweeper plan --j": {"--json"},
    "sweeper plan mine.yaml le": {"learning_rate=", "length=", "letters="},
    "sweeper plan mine.yaml ~lora": {"~lora_rank"},
    "sweeper plan mine.yaml launch.max": {"launch.max_parallel="},
    "sweeper plan gone.yaml l": set(),
    "sweeper launch mine.yaml --backend l": {"local"},
    "sweeper status ": {"alpha", "beta"},
    "sweeper attach b": {"beta"},
    "sweeper status --root elsewhere ": {"gamma"},
    "sweeper best --root elsewhere ": {"gamma"},
    "sweeper ls --state su": {"submitted", "succeeded"},
    "sweeper logs a": {"alpha/"},
    "sweeper logs alpha/": {"alpha/lr=1,seed=0", "alpha/lr=2,seed=0"},
    "sweeper logs -f --gr": {"--grep"},
    "sweeper cancel alpha ": {"lr=1,seed=0", "lr=2,seed=0"},
    "sweeper engine sto": {"stop"},
    "sweeper note al": {"alpha", "alpha/"},
    "sweeper ls --tag p": {"paper"},
    "sweeper init s": {"sft", "sweeps/"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(GRIDS / "quickstart.yaml", tmp_path / "mine.yaml")
    runs = [{"id": f"run{n}", "name": f"lr={n},seed=0", "cell": "a", "config": {}} for n in (1, 2)]
    for sweep in ("sweeps/alpha", "sweeps/beta", "elsewhere/gamma"):
        (tmp_path / sweep).mkdir(parents=True)
        plan = {"schema": 1, "name": sweep, "recipe": {}, "launch": {}, "runs": runs}
        (tmp_path / sweep / "sweep.json").write_text(json.dumps(plan))
    (tmp_path / "notes.txt").write_text("")
    mark = tmp_path / "sweeps" / "beta" / "notes" / f"{1:019}-00000000.tag.json"
    mark.parent.mkdir()
    mark.write_text(json.dumps({"kind": "tag", "text": "paper"}))
    return tmp_path


def test_what_bash_offers(folder: Path) -> None:
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    environment = dict(os.environ) | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    }
    environment.pop("SWEEPER_ROOT", None)
    done = subprocess.run(
        ["bash", "--norc", "-c", SCRIPT, "bash", *TYPED],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    offered = dict(zip(TYPED, map(set, map(str.split, done.stdout.splitlines())), strict=True))
    assert offered == TYPED


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_what_a_shell_evaluates_names_the_program(shell: str) -> None:
    program = Path(sys.executable).parent / "sweeper"
    done = subprocess.run(
        [program, "--completion", shell], capture_output=True, text=True, check=True
    )
    assert "sweeper" in done.stdout
    if (executable := shutil.which(shell)) is not None:  # check its syntax with that shell
        subprocess.run([executable, "-n"], input=done.stdout, text=True, check=True)


def test_another_shell_is_refused() -> None:
    program = Path(sys.executable).parent / "sweeper"
    done = subprocess.run([program, "--completion", "dash"], capture_output=True, check=False)
    assert done.returncode == 2
