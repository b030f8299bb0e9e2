"""The cache: never stale, never mixed, safe to lose, and only new bytes are read."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweeper import paths
from sweeper.metrics.cache_folder import Folder, Index
from sweeper.metrics.sources import MOMENT, Files, stamp_of
from sweeper.metrics.tables import cache
from sweeper.metrics.tables.columns import Columns, present
from sweeper.metrics.tables.reading import Reader
from sweeper.store.base import Entry
from sweeper.store.local import LocalStore

OLD = 1_600_000_000_000_000_000
PATH = "runs/a/metrics.jsonl"


def lines(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


class Desk:
    """A metrics file and readers of it in new processes; `later` shifts their clock."""

    def __init__(self, folder: Path) -> None:
        self.store = LocalStore(str(folder / "root"))
        self.cache = str(folder / "cache")
        self.file = folder / "root" / PATH
        self.file.parent.mkdir(parents=True)
        self.moment = OLD
        self.later = 0
        self.parsed = 0

    def clock(self) -> int:
        return time.time_ns() + self.later

    def write(self, text: str | bytes, *, age: bool = True) -> None:
        data = text.encode() if isinstance(text, str) else text
        self.file.write_bytes(data)
        self.settle(age)

    def add(self, text: str, *, age: bool = True) -> None:
        with self.file.open("a") as file:
            file.write(text)
        self.settle(age)

    def settle(self, age: bool) -> None:
        self.later = 600 * MOMENT if age else -600 * MOMENT
        if age:  # long ago, and another time than before
            self.moment += 1_000_000_000
            os.utime(self.file, ns=(self.moment, self.moment))

    def columns(self, keys: list[str] | None = None) -> Columns:
        reader, files = Reader(Folder(self.store.root, self.cache, self.clock)), self.files()
        columns = reader.columns(files, PATH, keys)
        if writer := reader.cache(files):
            writer.flush()  # even little data
        cache.wait_for_writers()
        self.parsed = reader.parsed
        assert columns is not None
        return columns

    def files(self) -> Files:
        return Files(self.store, "runs")

    def rows(self) -> int:
        """Return the number of complete lines."""
        return self.file.read_bytes().count(b"\n")

    def values(self, key: str = "a") -> list[float]:
        column = self.columns([key]).column(key)
        return column[present(column)].tolist()


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_an_unchanged_file_is_not_parsed_again(desk: Desk):
    desk.write(lines({"step": 0, "a": 1.0}, {"step": 1, "a": 2.0, "note": "x"}))
    assert desk.values() == [1.0, 2.0] and desk.parsed > 0
    assert desk.values() == [1.0, 2.0] and desk.parsed == 0
    assert desk.columns().odd == {"note": {1: "x"}} and desk.parsed == 0
    assert desk.values("none") == [] and desk.parsed == 0


def test_only_new_bytes_are_parsed(desk: Desk):
    desk.write(lines(*({"step": i, "a": i} for i in range(2000))), age=False)
    assert len(desk.columns().column("a")) == 2000
    size = desk.file.stat().st_size
    desk.add(lines({"step": 2000, "a": 7}) + '{"step": 2001', age=False)
    columns = desk.columns()
    assert (columns.rows, columns.torn, columns.column("a")[-1]) == (2001, 1, 7)
    assert desk.parsed < 5000 < size
    desk.add(', "late": 9}\n', age=False)  # completes the torn line
    columns = desk.columns()
    assert (columns.rows, columns.torn, columns.column("late")[-1]) == (2002, 0, 9)
    assert desk.parsed < 5000


REWRITES: dict[str, Callable[[str], str]] = {
    "shorter": lambda text: text[: len(text) // 2],
    "longer": lambda text: text.replace('"a": 1', '"a": 5') + text,
    "as long": lambda text: text.replace('"a": 1', '"a": 5'),
    "longer, one line far from the end is another": lambda text: (
        text.replace('"a": 0', '"a": 5', 1) + lines({"step": 300, "a": 5})
    ),
}


@pytest.mark.parametrize("rewrite", REWRITES.values(), ids=REWRITES)
@pytest.mark.parametrize("moment", ["just now", "growing", "long ago", "long ago, time put back"])
@pytest.mark.parametrize("keys", [None, ["a"]])
def test_a_rewritten_file_is_read_again(
    desk: Desk, rewrite: Callable[[str], str], moment: str, keys: list[str] | None
):
    text = lines(*({"step": i, "a": i} for i in range(300)))
    desk.write(text, age="ago" in moment)
    if moment == "growing":  # for more than an instant, and less than minutes
        desk.later = 2 * MOMENT
    desk.columns(keys)
    before = desk.file.stat()
    desk.write(rewrite(text), age="ago" in moment)
    if moment == "growing":
        desk.later = 2 * MOMENT
    if "back" in moment:
        os.utime(desk.file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert desk.columns(keys).column("a").tolist() == [
        json.loads(line)["a"] for line in desk.file.read_text().splitlines()[: desk.rows()]
    ]


def test_a_file_rewritten_within_a_clock_tick_is_read_again(desk: Desk):
    desk.later = 0
    for value in range(100, 200):
        desk.file.write_text(lines({"step": 0, "a": value}))
        assert desk.values() == [value]


def test_a_replaced_file_is_read_again(desk: Desk):
    desk.write(lines({"step": 0, "a": 1}))
    desk.columns()
    other = desk.file.with_name("new")
    other.write_text(lines({"step": 0, "a": 2}, {"step": 1, "a": 3}))
    other.replace(desk.file)
    assert desk.values() == [2.0, 3.0]


def test_a_damaged_cache_is_ignored(desk: Desk):
    desk.write(lines({"step": 0, "a": 1.5}, {"step": 1, "a": 2.5}))
    desk.columns()
    [cached] = Path(desk.cache).rglob("*.parquet")
    whole = cached.read_bytes()
    for place in range(0, len(whole), 7):
        for damaged in (
            whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :],
            whole[:place],
        ):
            for other in Path(desk.cache).rglob("*.parquet"):
                other.unlink()
            cached.write_bytes(damaged)
            assert desk.values() == [1.5, 2.5]
            assert desk.columns().column("a").tolist() == [1.5, 2.5]


def test_the_cache_may_vanish_or_be_unwritable(desk: Desk):
    desk.write(lines({"step": 0, "a": 1.5}))
    reader = Reader(Folder(desk.store.root, desk.cache))
    for _ in range(3):
        assert reader.columns(desk.files(), PATH) is not None
        reader.save()
        cache.wait_for_writers()
        shutil.rmtree(desk.cache, ignore_errors=True)
    Path(desk.cache).write_text("in the way")
    assert desk.values() == [1.5]


def test_the_path_of_the_cache(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SWEEPER_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert paths.cache() == "/x/sweeper"
    monkeypatch.setenv("SWEEPER_HOME", "/h")
    assert paths.cache() == "/h/cache"


class Remote:
    """A store that is not on this machine, with files in parts."""

    root = "mock://root"

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.listed = 0
        self.read: list[str] = []

    def local_path(self, path: str) -> None:
        return None

    def list(self, prefix: str) -> list[Entry]:
        self.listed += 1
        return [
            Entry(path, len(data), hash(data))
            for path, data in self.files.items()
            if path.startswith(prefix)
        ]

    def read_range(self, path: str, start: int, end: int) -> bytes:
        self.read.append(path)
        return self.files[path][start:end]


def test_parts_are_read_as_one_file_until_the_whole_arrives(tmp_path: Path):
    store: Any = Remote()
    first, second, three = (lines({"step": i, "a": i}).encode() for i in range(3))
    parts = {0: first[:5], 5: first[5:] + second, len(first + second) + 3: b"behind a gap"}
    store.files = {f"{PATH}.parts/{offset}": data for offset, data in parts.items()}

    def rows() -> list[float]:
        store.read.clear()
        reader = Reader(Folder(store.root, str(tmp_path)))
        columns = reader.columns(Files(store, "runs"), PATH)
        reader.save()
        cache.wait_for_writers()
        return [] if columns is None else columns.column("a").tolist()

    assert rows() == [0, 1]
    assert rows() == [0, 1] and not store.read
    del store.files[f"{PATH}.parts/{len(first + second) + 3}"]
    store.files[f"{PATH}.parts/{len(first + second)}"] = three
    assert rows() == [0, 1, 2]
    store.files[PATH] = first + second + three
    assert rows() == [0, 1, 2] and set(store.read) <= {PATH}
    store.files = {PATH: first + second + three}
    assert rows() == [0, 1, 2] and not store.read


def test_the_index_forgets_changed_and_very_new_files(desk: Desk, tmp_path: Path):
    folder, file = Folder("root", str(tmp_path / "cache"), desk.clock), tmp_path / "file"
    desk.later = -MOMENT
    calls: list[int] = []

    def recall(name: str = "1") -> int:
        index, files = Index(folder, "s"), [(name, stamp_of(str(file)))]
        value = index.recall("r", "x", files, lambda: calls.append(1) or len(calls))
        index.save()
        return value

    file.write_text("1")
    assert [recall(), recall()] == [1, 2]  # too new to rely on its time
    desk.later = 2 * MOMENT
    assert [recall(), recall()] == [3, 3]
    file.read_text()
    assert recall() == 3  # reading the file changes nothing
    assert [recall("2"), recall("2")] == [4, 4]  # another name, with the same time and size
    os.utime(file, ns=(OLD, OLD))
    assert [recall("2"), recall("2")] == [5, 5]
    file.unlink()
    assert [recall(), recall()] == [6, 6]


def test_changed_parts_on_this_machine_are_read_again(desk: Desk):
    first, second = lines({"step": 0, "a": 1}).encode(), lines({"step": 1, "a": 2}).encode()
    folder = desk.file.with_name(f"{desk.file.name}.parts")
    folder.mkdir()
    for offset, data in ((0, first), (len(first), second)):
        (folder / str(offset)).write_bytes(data)
    desk.later = 2 * MOMENT
    assert desk.values() == [1.0, 2.0] and desk.parsed > 0
    assert desk.values() == [1.0, 2.0] and desk.parsed == 0
    part = folder / "0"
    before = part.stat()
    part.write_bytes(first.replace(b'"a": 1', b'"a": 5'))
    os.utime(part, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert desk.values() == [5.0, 2.0]
    desk.later = -MOMENT
    part.write_bytes(first)
    for _ in range(2):  # changed just now: not cached
        assert desk.values() == [1.0, 2.0] and desk.parsed > 0
