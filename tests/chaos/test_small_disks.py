"""Disks without room, by bytes or by inodes, or read-only: before a sweep and in the middle of
one. It is reported in one line, the sweep continues once there is room, and reading verbs still
work."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from harness.real import NAME, Sweep, until
from harness.small_disk import SmallDisk, small_disk
from support import written

from sweeper.cli import main
from sweeper.metrics import sources

Sweeps = Callable[..., Sweep]
Typed = Callable[..., tuple[int, str, str]]
FULL = "No space left on device"
READ_ONLY = "Read-only file system"


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Typed:
    """Run a command about a sweep; returns exit code and both outputs. None may be a
    bug of ours.
    """

    def run(one: Sweep, *words: str) -> tuple[int, str, str]:
        monkeypatch.setenv("SWEEPER_HOME", one.environment["SWEEPER_HOME"])
        monkeypatch.setenv("SWEEPER_ROOT", str(one.root))
        monkeypatch.chdir(one.folder)
        capsys.readouterr()
        code = main([*words])
        printed = capsys.readouterr()
        assert "a bug in sweeper" not in printed.err, words
        return code, printed.out, printed.err

    return run


def _last(one: Sweep) -> str:
    """Return the last line that the sweep's launchers have printed."""
    return one.log.read_text().splitlines()[-1]


def _waiting(sweep: Sweeps) -> Sweep:
    """Make two runs that write nothing and end on request."""
    return sweep(runs=2, mode="silent:waits")


def _is_over_as_it_should_be(one: Sweep, disk: SmallDisk) -> None:
    """Check that all succeeded, at the first attempt."""
    assert one.finish() == 0, one.log.read_text()
    assert one.verdict(once=True).good
    found = {path for path in one.folder.rglob(".tmp-*") if ".filler" not in path.parts}
    left = found - disk.cut
    assert not left, f"left behind: {left}"


@pytest.mark.parametrize("lacks", ["bytes", "inodes"])
def test_the_store_has_no_room(sweep: Sweeps, typed: Typed, lacks: str) -> None:
    """The launcher waits, and says why; its workers keep their outcomes until they can be written;
    a request that cannot be recorded is not confirmed."""
    one = _waiting(sweep)
    with small_disk(one.root, lacks) as disk:
        disk.fill()
        assert one.start().wait() == 6
        assert FULL in _last(one)
        disk.free()
        launching = one.start()
        until(lambda: len(one.rows()) == 2)
        _without_room(one, typed, disk, launching.poll)
        disk.free()
        assert launching.wait() == 0
        _is_over_as_it_should_be(one, disk)


def _without_room(one: Sweep, typed: Typed, disk: SmallDisk, ended: Callable[[], object]) -> None:
    disk.fill()
    code, _, said = typed(one, "cancel", NAME)
    assert (code, said.count("\n")) == (6, 1)
    assert FULL in said
    assert typed(one, "status", NAME)[0] == 4
    one.folder.joinpath("ledger.go").touch()
    until(lambda: len(one.rows()) == 2 * one.steps)
    until(lambda: FULL in _last(one) or ended(), 60, "the launcher does not say so")
    assert not ended()


def test_the_store_is_read_only_for_a_while(sweep: Sweeps, typed: Typed) -> None:
    """The same for a disk that the kernel has remounted read-only after an error."""
    one = _waiting(sweep)
    with small_disk(one.root) as disk:
        launching = one.start()
        until(lambda: len(one.rows()) == 2)
        with disk.read_only():
            for words in (["cancel", NAME], ["analyze", NAME]):
                code, _, said = typed(one, *words)
                assert (code, said.count("\n")) == (6, 1), words
                assert READ_ONLY in said
            assert typed(one, "status", NAME)[0] == 4
            assert typed(one, "ls", NAME)[0] == 0
            one.folder.joinpath("ledger.go").touch()
            until(lambda: len(one.rows()) == 2 * one.steps)
            until(lambda: READ_ONLY in _last(one), 60, "the launcher does not say so")
            assert one.start().wait() == 6
            assert "cannot be written to" in _last(one)
        assert launching.wait() == 0
        _is_over_as_it_should_be(one, disk)


@pytest.mark.parametrize("lacks", ["bytes", "inodes", "writing"])
def test_the_home_has_no_room(sweep: Sweeps, typed: Typed, lacks: str) -> None:
    """A launch says so before it begins, as do the engine and the doctor; running
    jobs continue.
    """
    one = _waiting(sweep)
    home = Path(one.environment["SWEEPER_HOME"])
    told = READ_ONLY if lacks == "writing" else FULL
    with small_disk(home, "bytes" if lacks == "writing" else lacks) as disk:
        with _broken(disk, lacks):
            assert one.start().wait() == 6
            assert told in _last(one)
            assert "SWEEPER_HOME" in _last(one)
            assert not one.ledger.exists()
            for words in (["engine", "start"], ["doctor"]):
                code, shown, said = typed(one, *words)
                assert code == 6, words
                assert told in shown + said, words
        launching = one.start()
        until(lambda: len(one.rows()) == 2)
        with _broken(disk, lacks):
            one.folder.joinpath("ledger.go").touch()
            assert launching.wait() == 0
        _is_over_as_it_should_be(one, disk)


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
    sweep: Sweeps, typed: Typed, lacks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading verbs give the same output with a cache that takes nothing, or only a part, or is
    the cache of before."""
    one = sweep()
    made = written.Written(one.root, "s", {"lr": [1, 2, 3]})
    for lr in (1, 2, 3):
        rows = [{"step": step, "test/nll": lr / (1 + step), "other": 1.5} for step in range(50)]
        made.run({"lr": lr}, 0, rows)
    made.save()
    for path in one.root.rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    monkeypatch.setattr(sources, "MOMENT", 0)
    cache = Path(one.environment["SWEEPER_HOME"], "cache")
    want = [typed(one, *words) for words in READS]
    assert not [told for code, _, told in want if code not in (0, 3) or told]
    assert list(cache.rglob("*"))
    with small_disk(cache, "bytes" if lacks == "writing" else lacks) as disk:
        with _broken(disk, lacks):
            assert [typed(one, *words) for words in READS] == want
        assert [typed(one, *words) for words in READS] == want
        with next(one.root.rglob("metrics.jsonl")).open("a") as file:
            file.write(json.dumps({"step": 50, "test/nll": 0.001}) + "\n")
        with _broken(disk, lacks):
            assert "0.001" in typed(one, "ls", "s")[1]
        assert not [path for path in cache.rglob("*") if ".tmp-" in path.name]
