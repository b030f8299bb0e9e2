"""Whatever happens to a growing file, a follower of it gets its content."""

import os
import random
import uuid

import pytest

from sweeper.errors import StoreError
from sweeper.metrics.follow import Growing
from sweeper.metrics.sources import Files
from sweeper.store.base import Store
from sweeper.store.local import LocalStore
from sweeper.store.opening import open_store

NAME = "runs/x/metrics.jsonl"


class Reader:
    """A follower that adds what is read, and starts again when told so."""

    def __init__(self, store: Store, *, lines: bool, most: int | None) -> None:
        self._store, self._most = store, most
        self._file = Growing(store, NAME, lines=lines)
        self.text = b""

    def check(self) -> bytes:
        more = True
        while more:
            added = self._file.read(Files(self._store, "runs").source, self._most)
            more = added is not None and added.more
            if added is not None:
                self.text = added.data if added.again else self.text + added.data
                assert added.start == len(self.text) - len(added.data)
        return self.text


def whole_lines(data: bytes) -> bytes:
    return data[: data.rfind(b"\n") + 1]


def some(chance: random.Random) -> bytes:
    """Return a few unique lines; the last may be incomplete."""
    text = "".join(f"{chance.random()}\n" for _ in range(chance.randrange(1, 60)))
    return text[: len(text) - chance.choice([0, 0, 7])].encode()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("most", [None, 64])
@pytest.mark.parametrize("lines", [True, False])
def test_a_growing_local_file_is_followed(seed, most, lines, tmp_path):
    chance, path = random.Random(seed), tmp_path / NAME
    path.parent.mkdir(parents=True)
    reader = Reader(LocalStore(str(tmp_path)), lines=lines, most=most)
    for number in range(12):
        kind = chance.choice(["grows", "grows", "cut", "replaced", "anew", "gone"])
        if kind == "grows":
            with path.open("ab") as file:
                file.write(some(chance))
        elif kind == "cut" and path.exists():
            os.truncate(path, 0)
        elif kind == "replaced":
            path.with_suffix(".new").write_bytes(some(chance) * 3)
            path.with_suffix(".new").replace(path)
        elif kind == "anew":
            path.write_bytes(some(chance) * 5)
        elif path.exists():
            path.unlink()
        if path.exists():
            os.utime(path, ns=(number * 10**9, number * 10**9))
        look = reader.check()
        there = path.read_bytes() if path.exists() else b""
        if there:  # a missing or empty file gives nothing new
            assert look == (whole_lines(there) if lines else there), kind


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("most", [None, 64])
def test_a_remote_file_in_parts_is_followed(seed, most):
    chance, store = random.Random(seed), open_store(f"memory://{uuid.uuid4().hex}")
    reader, text = Reader(store, lines=True, most=most), b""
    for _ in range(6):
        more = some(chance)
        store.replace(f"{NAME}.parts/{len(text)}", more)
        text += more
        assert reader.check() == whole_lines(text)
    store.replace(NAME, text + b"end\n")
    assert reader.check() == text + b"end\n"


def test_what_was_there_before_is_skipped(tmp_path):
    store, path = LocalStore(str(tmp_path)), tmp_path / NAME
    path.parent.mkdir(parents=True)
    for text in (b"one\ntwo\nhal", b"x" * 200_000, b"x" * 200_000 + b"\nhal"):
        path.write_bytes(text)
        file = Growing(store, NAME)
        file.skip(Files(store, "runs").source)
        with path.open("ab") as growing:
            growing.write(b"f\n")
        added = file.read(Files(store, "runs").source)
        assert not added.again and added.data == text[text.rfind(b"\n") + 1 :] + b"f\n"


def test_what_is_no_file_is_not_waited_for(tmp_path):
    path = tmp_path / NAME
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    reader = Reader(LocalStore(str(tmp_path)), lines=True, most=None)
    with pytest.raises(StoreError, match=r"metrics\.jsonl"):
        reader.check()
