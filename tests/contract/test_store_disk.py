"""A local store on a disk that fails at each system call in turn."""

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sweeper.errors import StoreError
from sweeper.store.local import LocalStore

CALLS = ("open", "write", "fsync", "link", "replace", "mkdir")


class Disk:
    """A disk that counts the store's system calls and is full at call number `fails`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.fails = 0
        for name in CALLS:
            monkeypatch.setattr(os, name, self._counted(name, getattr(os, name)))

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.count += 1
            if self.count == self.fails:
                if name == "write":
                    real(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*arguments, **options)

        return call


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def _files(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


@pytest.mark.parametrize("operation", ["create", "replace", "append"])
def test_a_full_disk_leaves_the_old_or_the_new_file(
    tmp_path: Path, disk: Disk, operation: str
) -> None:
    old = b"" if operation == "create" else b"before\n"
    new = b"something longer\n" if operation != "append" else old + b"something longer\n"
    failed = 0
    for number in range(1, 100):
        store = LocalStore(str(tmp_path / str(number)))
        if old:
            store.replace("a/b/file", old)
        disk.count, disk.fails = 0, number
        try:
            getattr(store, operation)("a/b/file", b"something longer\n")
        except StoreError as error:
            assert "No space left on device" in str(error)
            failed += 1
        else:
            assert disk.count < number
            break
        finally:
            disk.fails = 0
        files = _files(Path(store.root))
        # No partial or temporary files. The new file may exist if only its folder was not synced.
        assert set(files) <= {"a/b/file"}
        assert files.get("a/b/file", b"") in (old, new)
        if not files:
            getattr(store, operation)("a/b/file", b"something longer\n")
            assert store.read("a/b/file") == new
    assert failed >= {"create": 8, "replace": 5, "append": 2}[operation]


WRITE = """
import sys
from sweeper.errors import StoreError
from sweeper.store.local import LocalStore
store = LocalStore(sys.argv[1])
for operation in (store.create, store.replace, store.append):
    try:
        operation(operation.__name__, b"x" * 5000)
    except StoreError as error:
        print(error)
"""


def test_a_limit_on_file_size_leaves_no_half_files(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WRITE, str(tmp_path)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.count("File too large") == 3
    assert _files(tmp_path) == {"append": b""}


def test_an_unreadable_path_is_an_error_not_an_absence(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(StoreError):
        LocalStore(str(tmp_path)).exists("loop/a")
