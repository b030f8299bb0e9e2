"""Disks without room, by bytes or by inodes, or read-only: before a sweep and in the middle of
one. It is reported in one line, the sweep continues once there is room, and reading verbs still
work."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from harness.real import NAME, Sweep, Sweeps, until
from harness.small_disk import SmallDisk, small_disk
from support import written

from sweeper.cli import main
from sweeper.metrics import sources

Typed = Callable[..., tuple[int, str, str]]
FULL = "No space left on device"
READ_ONLY = "Read-only file system"


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Typed:
    """Return a function that runs a command in a sweep's folder; it returns exit code and both
    outputs, and fails at a bug in sweeper."""

    def run(sweep: Sweep, *words: str) -> tuple[int, str, str]:
        monkeypatch.setenv("SWEEPER_HOME", sweep.environment["SWEEPER_HOME"])
        monkeypatch.setenv("SWEEPER_ROOT", str(sweep.root))
        monkeypatch.chdir(sweep.folder)
        capsys.readouterr()
        code = main([*words])
        printed = capsys.readouterr()
        assert "a bug in sweeper" not in printed.err, words
        return code, printed.out, printed.err

    return run


def _last(sweep: Sweep) -> str:
    """Return the last line that the sweep's launchers have printed."""
    return sweep.log.read_text().splitlines()[-1]


def _waiting(make_sweep: Sweeps) -> Sweep:
    """Make two runs that write nothing and end on request."""
    return make_sweep(runs=2, mode="silent:waits")


def _is_over_as_it_should_be(sweep: Sweep, disk: SmallDisk) -> None:
    """Check that all succeeded at the first attempt, and left no temporary files."""
    sweep.finish_well(once=True)
    unfinished = {path for path in sweep.folder.rglob(".tmp-*") if ".filler" not in path.parts}
    left = unfinished - disk.cut
    assert not left, f"left behind: {left}"


@pytest.mark.parametrize("lacks", ["bytes", "inodes"])
def test_the_store_has_no_room(make_sweep: Sweeps, typed: Typed, lacks: str) -> None:
    """The launcher waits, and says why; its workers keep their outcomes until they can be written;
    a request that cannot be recorded is not confirmed."""
    sweep = _waiting(make_sweep)
    with small_disk(sweep.root, lacks) as disk:
        disk.fill()
        assert sweep.start().wait() == 6
        assert FULL in _last(sweep)
        disk.free()
        launching = sweep.start()
        until(lambda: len(sweep.rows()) == 2)
        _without_room(sweep, typed, disk, launching.poll)
        disk.free()
        assert launching.wait() == 0
        _is_over_as_it_should_be(sweep, disk)


def _without_room(sweep: Sweep, typed: Typed, disk: SmallDisk, ended: Callable[[], object]) -> None:
    disk.fill()
    code, _, errors = typed(sweep, "cancel", NAME)
    assert (code, errors.count("\n")) == (6, 1)
    assert FULL in errors
    assert typed(sweep, "status", NAME)[0] == 4
    sweep.folder.joinpath("ledger.go").touch()
    until(lambda: len(sweep.rows()) == 2 * sweep.steps)
    until(lambda: FULL in _last(sweep) or ended(), 60, "the launcher does not say so")
    assert not ended()


def test_the_store_is_read_only_for_a_while(make_sweep: Sweeps, typed: Typed) -> None:
    """The same for a disk that the kernel has remounted read-only after an error."""
    sweep = _waiting(make_sweep)
    with small_disk(sweep.root) as disk:
        launching = sweep.start()
        until(lambda: len(sweep.rows()) == 2)
        with disk.read_only():
            for words in (["cancel", NAME], ["analyze", NAME]):
                code, _, errors = typed(sweep, *words)
                assert (code, errors.count("\n")) == (6, 1), words
                assert READ_ONLY in errors
            assert typed(sweep, "status", NAME)[0] == 4
            assert typed(sweep, "ls", NAME)[0] == 0
            sweep.folder.joinpath("ledger.go").touch()
            until(lambda: len(sweep.rows()) == 2 * sweep.steps)
            until(lambda: READ_ONLY in _last(sweep), 60, "the launcher does not say so")
            assert sweep.start().wait() == 6
            assert "cannot be written to" in _last(sweep)
        assert launching.wait() == 0
        _is_over_as_it_should_be(sweep, disk)


@pytest.mark.parametrize("lacks", ["bytes", "inodes", "writing"])
def test_the_home_has_no_room(make_sweep: Sweeps, typed: Typed, lacks: str) -> None:
    """A launch says so before it begins, as do the engine and the doctor; running
    jobs continue."""
    sweep = _waiting(make_sweep)
    home = Path(sweep.environment["SWEEPER_HOME"])
    message = READ_ONLY if lacks == "writing" else FULL
    with small_disk(home, "bytes" if lacks == "writing" else lacks) as disk:
        with _broken(disk, lacks):
            assert sweep.start().wait() == 6
            assert message in _last(sweep)
            assert "SWEEPER_HOME" in _last(sweep)
            assert not sweep.ledger.exists()
            for words in (["engine", "start"], ["doctor"]):
                code, shown, errors = typed(sweep, *words)
                assert code == 6, words
                assert message in shown + errors, words
        launching = sweep.start()
        until(lambda: len(sweep.rows()) == 2)
        with _broken(disk, lacks):
            sweep.folder.joinpath("ledger.go").touch()
            assert launching.wait() == 0
        _is_over_as_it_should_be(sweep, disk)


@contextmanager
def _broken(disk: SmallDisk, lacks: str) -> Iterator[None]:
    """Fill the disk or make it read-only during the block."""
    if lacks == "writing":
        with disk.read_only():
            yield
        return
    disk.fill()
    yield
    disk.free()


READS = (
    ["ls", "--json"],
    ["status", "s", "--json"],
    ["sql", "select run, step, other from runs join metrics using (run, sweep) order by 1, 2"],
    ["show", "s/lr=1", "--json"],
    ["export", "s", "--format", "csv", "--out", "metrics.csv"],
    ["compare", "s"],
    ["analyze", "s", "--json", "--no-pictures", "--out", "report"],
)


@pytest.mark.parametrize("lacks", ["bytes", "inodes", "writing"])
def test_the_cache_has_no_room(
    make_sweep: Sweeps, typed: Typed, lacks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output of reading verbs is right if their cache cannot be written, whether it is empty or
    has older results."""
    sweep = make_sweep()
    made = written.Written(sweep.root, "s", {"lr": [1, 2, 3]})
    for lr in (1, 2, 3):
        rows = [{"step": step, "test/nll": lr / (1 + step), "other": 1.5} for step in range(50)]
        made.run({"lr": lr}, 0, rows)
    made.save()
    for path in sweep.root.rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    monkeypatch.setattr(sources, "MOMENT", 0)
    cache = Path(sweep.environment["SWEEPER_HOME"], "cache")
    want = [typed(sweep, *words) for words in READS]
    assert not [errors for code, _, errors in want if code not in (0, 3) or errors]
    assert list(cache.rglob("*"))
    with small_disk(cache, "bytes" if lacks == "writing" else lacks) as disk:
        with _broken(disk, lacks):
            assert [typed(sweep, *words) for words in READS] == want
        assert [typed(sweep, *words) for words in READS] == want
        with next(sweep.root.rglob("metrics.jsonl")).open("a") as file:
            file.write(json.dumps({"step": 50, "test/nll": 0.001}) + "\n")
        with _broken(disk, lacks):
            assert "0.001" in typed(sweep, "ls", "s")[1]
        assert not [path for path in cache.rglob("*") if ".tmp-" in path.name]
