"""Commands with closed streams, in removed folders, and with paths that are not UTF-8."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e
NOT_UTF8 = b"b\xff"


@pytest.fixture
def swept(tmp_path: Path) -> Path:
    """Return a folder with `g.yaml` and its sweep, launched with all standard streams closed."""
    (tmp_path / "g.yaml").write_text(
        "command: [cp, metrics, '{log_path}/metrics.jsonl']\n"
        "grid: {lr: [1, 2]}\n"
        "metric: {name: loss, goal: minimize}\n"
        "launch: {backend: local}\n"
    )
    (tmp_path / "metrics").write_text('{"step": 0, "loss": 1.0}\n')
    return tmp_path


def sweeper(
    folder: Path | bytes, *arguments: str | bytes, streams: str = "", **more: str
) -> subprocess.CompletedProcess[str]:
    """Run sweeper in `folder`, from a shell that redirects its streams."""
    home = str(Path(os.fsdecode(folder)) / "home")
    environment = {**os.environ, "SWEEPER_HOME": home, **more}
    script = f'cd "$0" && exec "$@" {streams}'
    command = ["sh", "-c", script, folder, sys.executable, "-m", "sweeper", *arguments]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, errors="replace", check=False
    )


@pytest.mark.parametrize("streams", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_closed_streams_change_nothing(swept: Path, streams: str) -> None:
    """Daemons and cron jobs have closed streams."""
    for arguments in (
        ("launch", "g.yaml", "--wait"),
        ("plan", "g.yaml"),
        ("ls",),
        ("status", "g"),
        ("logs", "g"),
        ("analyze", "g"),
        ("--version",),
    ):
        usual, done = sweeper(swept, *arguments), sweeper(swept, *arguments, streams=streams)
        assert (done.returncode, usual.returncode) == (0, 0), (arguments, usual.stderr)
        if arguments[0] != "launch":  # the second launch starts nothing
            assert done.stdout == ("" if streams.startswith(">") else usual.stdout)
    assert sweeper(swept, "show", "g/no-such-run", streams=streams).returncode == 5


def test_what_runs_print_does_not_reach_a_file_of_ours(swept: Path) -> None:
    """A file that is opened while standard output is closed would get its number."""
    (swept / "g.yaml").write_text("command: [echo, printed]\nlaunch: {backend: local}\n")
    assert sweeper(swept, "launch", "g.yaml", "--wait", streams=">&- 2>&- <&-").returncode == 0
    files = [path for path in swept.rglob("*") if path.is_file() and path.name != "g.yaml"]
    assert [path.name for path in files if b"printed\n" in path.read_bytes()] == ["stdout.log"]
    assert "printed" in sweeper(swept, "logs", "g").stdout


def test_an_error_that_cannot_be_printed_keeps_its_exit_code(swept: Path) -> None:
    for streams in ("2>/dev/full", "2>&1 >/dev/null | true"):
        script = f'"$@" {streams}' if "|" not in streams else f'{{ "$@"; echo $? >&3; }} {streams}'
        done = subprocess.run(
            ["bash", "-c", f"exec 3>&1; {script}", "-", sys.executable, "-m", "sweeper", "ls", "x"],
            cwd=swept,
            env={**os.environ, "SWEEPER_HOME": str(swept / "home")},
            capture_output=True,
            text=True,
            check=False,
        )
        code = done.returncode if "|" not in streams else int(done.stdout.split()[0])
        assert code == 5, done.stderr


def from_a_removed_folder(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = 'mkdir "$0/gone" && cd "$0/gone" && rmdir "$0/gone" && exec "$@"'
    command = ["sh", "-c", script, str(folder), sys.executable, "-m", "sweeper", *arguments]
    environment = {**os.environ, "SWEEPER_HOME": str(folder / "home")}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_removed_current_folder_is_one_line(swept: Path) -> None:
    assert sweeper(swept, "launch", "g.yaml", "--wait").returncode == 0
    root, grid = str(swept / "sweeps"), str(swept / "g.yaml")
    needs: Sequence[Sequence[str]] = (
        ("plan", "g.yaml"),
        ("launch", grid, "--root", root),
        ("ls",),
        ("analyze", "g"),
        ("init", "sft"),
        ("sql", "select 1", "--root", root),
    )
    for arguments in needs:
        done = from_a_removed_folder(swept, *arguments)
        line = "sweeper: the current folder was removed: `cd` to an existing folder\n"
        assert (done.returncode, done.stdout, done.stderr) == (6, "", line), arguments
    for arguments in (("ls",), ("status", "g"), ("show", "g/lr=1"), ("logs", "g")):
        done = from_a_removed_folder(swept, *arguments, "--root", root)
        assert done.returncode == 0 and "removed" not in done.stderr, arguments


def test_a_path_that_is_not_utf8_is_refused_before_anything_starts(swept: Path) -> None:
    odd = os.fsencode(swept) + b"/" + NOT_UTF8
    os.mkdir(odd)
    grid = str(swept / "g.yaml")
    variable: Mapping[str, str] = {"SWEEPER_ROOT": os.fsdecode(odd)}
    for done in (
        sweeper(swept, "launch", grid, "--root", odd),
        sweeper(swept, "plan", grid, "--root", odd),
        sweeper(swept, "ls", **variable),
        sweeper(odd, "launch", grid, "--wait", SWEEPER_HOME=str(swept / "home")),
    ):
        assert done.returncode == 6, done.stderr
        assert "this path is not UTF-8: rename the folder, or use another" in done.stderr
        assert done.stderr.count("\n") == 1
    home, root = str(swept / "home"), str(swept / "sweeps")
    done = sweeper(odd, "launch", grid, "--wait", "--root", root, SWEEPER_HOME=home)
    assert (done.returncode, done.stdout) == (2, "")
    assert "this path is not UTF-8" in done.stderr
    assert os.listdir(odd) == []
