"""Many small files in one file of the cache: as if each were read by itself."""

import json
import os
from pathlib import Path

import pytest

from sweeper.metrics.tables import cache_dir, packing, reading
from sweeper.metrics.tables.cache import Cache
from sweeper.metrics.tables.cache_dir import Folder
from sweeper.metrics.tables.columns import Columns, present
from sweeper.metrics.tables.packing import PackedReader
from sweeper.metrics.tables.reading import Reader
from sweeper.metrics.tables.sources import Files
from sweeper.store.local import LocalStore

OLD = 1_600_000_000_000_000_000
TEXTS = {
    "plain": '{"step": 0, "a": 1.5}\n{"step": 1, "a": 2}\n',
    "other keys": '{"b": 1, "step": 0, "a": 3}\n',
    "odd": '{"step": 0, "a": "text"}\n{"step": 1, "a": NaN, "n": 1152921504606846977, "x": null}\n',
    "bad": '{"step": 0, "a": 4}\nnonsense\n{"step": 1, "a"',
    "empty": "",
    "also odd": '{"step": 7, "a": [1]}\n{"step": 8}\n',
}


class Desk:
    """Small files of long ago, and readers of them, each as in a new process."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cache = folder / "root", str(folder / "cache")
        self.store = LocalStore(str(self.folder))
        for name, text in TEXTS.items():
            self.write(name, text)

    def write(self, name: str, text: str, time: int = OLD) -> None:
        file = self.folder / "runs" / name / "metrics.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        os.utime(file, ns=(time, time))

    def told(self, keys: list[str] | None = None, names: list[str] | None = None) -> list[object]:
        reader, files = PackedReader(Cache(Folder(self.store.root, self.cache))), self.files()
        found = [reader.columns(files, f"runs/{n}/metrics.jsonl", keys) for n in names or TEXTS]
        reader.save()
        return [*map(plain, found)]

    def alone(self, keys: list[str] | None = None) -> list[object]:
        files = self.files()
        paths = [f"runs/{name}/metrics.jsonl" for name in TEXTS]
        return [plain(Reader(None).columns(files, path, keys)) for path in paths]

    def files(self) -> Files:
        return Files(self.store, "runs")

    def kept(self) -> list[Path]:
        return [p for p in Path(self.cache).rglob("*") if p.is_file() and p.name != "root"]


def plain(found: Columns | None) -> object:
    """All there is to columns, as values that can be compared."""
    if found is None:
        return None
    values = {
        key: [repr(v) if has else None for v, has in zip(c.tolist(), present(c), strict=True)]
        for key, c in found.values.items()
    }
    return values, dict(found.odd), found.rows, found.malformed, found.torn


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setattr(cache_dir, "MOMENT", 0)
    return Desk(tmp_path)


@pytest.mark.parametrize("keys", [None, ["a"], ["n", "none"]])
def test_what_comes_from_a_pack_is_what_is_in_the_files(
    desk: Desk, keys: list[str] | None, monkeypatch: pytest.MonkeyPatch
):
    alone = desk.alone(keys)
    assert desk.told(keys) == alone
    [pack] = desk.kept()
    before = pack.stat()
    with monkeypatch.context() as nothing:  # is parsed again
        for module in (packing, reading):
            nothing.delattr(module, "parse_file")
        assert desk.told(keys) == alone
    assert (pack.stat().st_ino, pack.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_in_any_order_and_any_part(desk: Desk):
    desk.told(None, ["odd"])
    everything = dict(zip(TEXTS, desk.alone(), strict=True))
    assert desk.told(None, ["bad", "odd", "bad"]) == [everything[n] for n in ("bad", "odd", "bad")]
    assert desk.told() == desk.alone()
    backwards = [*reversed(TEXTS)]
    assert desk.told(None, backwards) == desk.alone()[::-1]


def test_a_file_that_has_changed_is_read_again(desk: Desk):
    desk.told()
    text = '{"step": 0, "a": 9.5}\n{"step": 1, "a": 8}\n'
    desk.write("plain", text, OLD + 1)
    assert desk.told() == desk.alone()
    desk.write("plain", text.replace("9", "7"), OLD + 1)  # as long, and with its time put back
    assert desk.told() == desk.alone()
    assert desk.told(["a"]) == desk.alone(["a"])
    (desk.folder / "runs" / "odd" / "metrics.jsonl").unlink()
    assert desk.told() == desk.alone()


def test_a_file_that_may_still_grow_is_kept_by_itself(desk: Desk):
    desk.told()
    text = TEXTS["plain"] + json.dumps({"step": 2, "a": 7}) + "\n"
    (desk.folder / "runs" / "plain" / "metrics.jsonl").write_text(text)
    assert desk.told() == desk.alone()
    assert len(desk.kept()) == 2


def test_a_damaged_pack_is_none(desk: Desk):
    desk.told()
    [pack] = desk.kept()
    whole = pack.read_bytes()
    for place in range(0, len(whole), 151):
        pack.write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
        assert desk.told() == desk.alone()
        pack.write_bytes(whole[:place])
        assert desk.told(["a"]) == desk.alone(["a"])


def test_what_has_no_room_is_read_each_time(desk: Desk, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(packing, "_ROOM", 3)
    assert desk.told() == desk.alone() == desk.told()
    assert not desk.kept()


def test_the_keys_of_a_file_and_no_others(desk: Desk):
    def keys() -> list[set[str]]:
        reader = PackedReader(Cache(Folder(desk.store.root, desk.cache)))
        found = [{*reader.keys(desk.files(), f"runs/{n}/metrics.jsonl")} for n in TEXTS]
        reader.save()
        return found

    expected = [{"step", "a"}, {"b", "step", "a"}, {"step", "a", "n", "x"}, {"step", "a"}, set()]
    assert keys() == keys() == [*expected, {"step", "a"}]
    assert len(desk.kept()) == 1


def test_who_reads_a_few_uses_a_pack_and_writes_none(desk: Desk):
    reader, files = PackedReader(Cache(Folder(desk.store.root, desk.cache))), desk.files()
    reader.adding = False
    path = "runs/odd/metrics.jsonl"
    found = reader.columns(files, path)
    reader.save()
    assert plain(found) == desk.alone()[2]
    [own] = desk.kept()
    assert desk.told() == desk.alone()
    assert own in desk.kept() and len(desk.kept()) == 2
    own.unlink()
    assert plain(reader.columns(files, path)) == desk.alone()[2]
    [pack] = [kept for kept in desk.kept() if kept != own]
    again = PackedReader(Cache(Folder(desk.store.root, desk.cache)))
    again.adding = False
    assert plain(again.columns(files, path, ["n"])) == desk.alone(["n"])[2]
    again.save()
    assert pack in desk.kept()
