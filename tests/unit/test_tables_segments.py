"""Many files in few segments of the cache are read as if each were separate."""

import json
import os
import shutil
import sys
import time
import uuid
from pathlib import Path

import pytest

from sweeper.metrics.cache_folder import Folder
from sweeper.metrics.sources import Files
from sweeper.metrics.tables import cache
from sweeper.metrics.tables.columns import Columns, present
from sweeper.metrics.tables.reading import Reader
from sweeper.store.base import Store
from sweeper.store.local import LocalStore
from sweeper.store.opening import open_store

OLD = 1_600_000_000_000_000_000
TEXTS = {
    "plain": '{"step": 0, "a": 1.5}\n{"step": 1, "a": 2}\n',
    "other keys": '{"b": 1, "step": 0, "a": 3}\n',
    "odd": '{"step": 0, "a": "text"}\n{"step": 1, "a": NaN, "n": 1152921504606846977, "x": null}\n',
    "bad": '{"step": 0, "a": 4}\nnonsense\n{"step": 1, "a"',
    "empty": "",
    "also odd": '{"step": 7, "a": [1, NaN], "\\ud800": "\\ud800"}\n{"step": 8}\n',
}


class Desk:
    """Small files, and readers of them an hour later, each as in a new process."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder, self.cache = folder / "root", str(folder / "cache")
        self.store = store
        for name, text in TEXTS.items():
            self.write(name, text)

    def write(self, name: str, text: str, moment: int = OLD) -> None:
        path = f"runs/{name}/metrics.jsonl"
        self.store.replace(path, text.encode())
        if self.store.local_path(path) is not None:
            os.utime(self.folder / path, ns=(moment, moment))

    def reader(self) -> Reader:
        hour = 3_600_000_000_000
        return Reader(Folder(self.store.root, self.cache, lambda: time.time_ns() + hour))

    def keep(self, reader: Reader, files: Files) -> None:
        """Write what was read to the cache, even little data."""
        writer = reader.cache(files)
        assert writer is not None
        writer.flush()
        cache.wait_for_writers()

    def read(self, keys: list[str] | None = None, names: list[str] | None = None) -> list[object]:
        reader, files = self.reader(), Files(self.store, "runs")
        columns = [reader.columns(files, f"runs/{n}/metrics.jsonl", keys) for n in names or TEXTS]
        self.keep(reader, files)
        self.parsed = reader.parsed
        return [*map(plain, columns)]

    def alone(self, keys: list[str] | None = None) -> list[object]:
        files = Files(self.store, "runs")
        paths = [f"runs/{name}/metrics.jsonl" for name in TEXTS]
        return [plain(Reader(None).columns(files, path, keys)) for path in paths]

    def segments(self) -> list[Path]:
        return sorted(Path(self.cache).rglob("*.parquet"))


def plain(columns: Columns | None) -> object:
    """Return all contents of columns as values that can be compared."""
    if columns is None:
        return None
    values = {
        key: [repr(v) if has else None for v, has in zip(c.tolist(), present(c), strict=True)]
        for key, c in columns.values.items()
    }
    odd = {
        key: {row: repr(value) for row, value in cells.items()}
        for key, cells in columns.odd.items()
    }
    return values, odd, columns.rows, columns.malformed, columns.torn


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path, LocalStore(str(tmp_path / "root")))


@pytest.mark.parametrize("keys", [None, ["a"], ["n", "none"]])
def test_a_segment_equals_its_files(desk: Desk, keys: list[str] | None):
    alone = desk.alone(keys)
    assert desk.read(keys) == alone
    [segment] = desk.segments()
    assert desk.read(keys) == alone and desk.parsed == 0
    assert desk.segments() == [segment]


def test_files_are_read_in_any_order_and_selection(desk: Desk):
    desk.read(None, ["odd"])
    everything = dict(zip(TEXTS, desk.alone(), strict=True))
    assert desk.read(None, ["bad", "odd", "bad"]) == [everything[n] for n in ("bad", "odd", "bad")]
    assert desk.read() == desk.alone()
    assert desk.read(None, [*reversed(TEXTS)]) == desk.alone()[::-1]


def test_a_changed_file_of_a_segment_is_read_again(desk: Desk):
    desk.read()
    text = '{"step": 0, "a": 9.5}\n{"step": 1, "a": 8}\n'
    desk.write("plain", text, OLD + 1)
    assert desk.read() == desk.alone()
    desk.write("plain", text.replace("9", "7"), OLD + 1)  # with the same size and time
    assert desk.read() == desk.alone()
    assert desk.read(["a"]) == desk.alone(["a"])
    (desk.folder / "runs" / "odd" / "metrics.jsonl").unlink()
    assert desk.read() == desk.alone()


def test_small_segments_are_merged(tmp_path: Path):
    """On a remote store, where even the smallest files are cached."""
    desk = Desk(tmp_path, open_store(f"memory://{uuid.uuid4().hex}"))
    most = 0
    for step in range(40):
        name = [*TEXTS][step % len(TEXTS)]
        desk.write(name, TEXTS[name] + json.dumps({"step": step, "a": step}) + "\n")
        reader, files = desk.reader(), Files(desk.store, "runs")
        read = [plain(reader.columns(files, f"runs/{n}/metrics.jsonl")) for n in TEXTS]
        reader.save()
        cache.wait_for_writers()
        assert read == desk.alone()
        most = max(most, len(desk.segments()))
    assert 10 < most < 20


def test_a_reader_overtaken_by_a_writer_reads_the_same(desk: Desk):
    early = desk.reader()
    files = Files(desk.store, "runs")
    assert early.columns(files, "runs/plain/metrics.jsonl") is not None
    desk.read()
    assert plain(early.columns(files, "runs/bad/metrics.jsonl")) == desk.alone()[3]
    desk.keep(early, files)
    assert desk.read() == desk.alone()


def test_a_reader_reads_what_it_is_still_writing(desk: Desk):
    reader, files = desk.reader(), Files(desk.store, "runs")
    writer = reader.cache(files)
    assert writer is not None
    for _ in range(2):
        for name, alone in zip(TEXTS, desk.alone(), strict=True):
            assert plain(reader.columns(files, f"runs/{name}/metrics.jsonl")) == alone
            writer.flush()
    assert reader.parsed == sum(map(len, TEXTS.values()))


def test_other_processes_fill_the_cache_with_the_last_files(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    names = [f"run{number}" for number in range(12)]
    for name in names:
        desk.write(name, "".join(f'{{"step": {n}, "a": {n / 3}}}\n' for n in range(5000)))
    paths = [f"runs/{name}/metrics.jsonl" for name in names]
    alone = [plain(Reader(None).columns(Files(desk.store, "runs"), path)) for path in paths]
    size = sum((desk.folder / path).stat().st_size for path in paths)
    for executable, parsed in ((sys.executable, size * 9 / 16), ("/no/such/python", size)):
        reader, files = desk.reader(), Files(desk.store, "runs")
        monkeypatch.setattr(sys, "executable", executable)
        reader.fill(((files, path) for path in paths), share=size // 8)
        assert [plain(reader.columns(files, path)) for path in paths] == alone
        assert reader.parsed == pytest.approx(parsed, rel=0.1)
        shutil.rmtree(desk.cache, ignore_errors=True)


def test_files_of_other_keys_are_kept_apart(desk: Desk):
    """A segment has a column for each key of any of its files."""
    names = [f"run{number}" for number in range(30)]
    for name in names:
        row = {"step": 0, **{f"{name}/{key}": key for key in range(40)}}
        desk.write(name, json.dumps(row) + "\n")
    first = desk.read(None, names)
    assert desk.read(None, names) == first
    assert sum(path.stat().st_size for path in desk.segments()) < 2_000_000


def test_keys_of_each_file_are_kept_apart(desk: Desk):
    def keys() -> list[set[str]]:
        reader, files = desk.reader(), Files(desk.store, "runs")
        read = [{*reader.keys(files, f"runs/{name}/metrics.jsonl")} for name in TEXTS]
        desk.keep(reader, files)
        return read

    expected = [{"step", "a"}, {"b", "step", "a"}, {"step", "a", "n", "x"}, {"step", "a"}, set()]
    assert keys() == keys() == [*expected, {"step", "a", "\ufffd"}]
    assert len(desk.segments()) == 1
