"""Lists the files of a git checkout that belong in a copy of its code, including submodules and
other repositories inside it. Standard library only."""

import hashlib
import os
import stat
import subprocess
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from sweeper.sweep.labels import plural

if TYPE_CHECKING:
    import tarfile

_TRACKED_BYTES = 10_000_000
_UNTRACKED_BYTES = 1_000_000
_UNTRACKED_FILES = 2_000
_NESTED_BYTES = 20_000_000
ALL_BYTES = 100_000_000
_SOURCES = (".py", ".pyi", ".pyx", ".sh", ".toml", ".cfg", ".c", ".cc", ".cpp", ".cu", ".h")
LEFT_OUT = frozenset({".git", "__pycache__"})
_ENVIRONMENTS = ("/pyvenv.cfg", "/conda-meta/history")
"""Files that mark a folder as a virtual environment. Such a folder is linked, even if git does not
ignore it."""
_GIT_SECONDS = 20.0
_ANOTHER_REPOSITORY = frozenset(
    {
        *("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_PREFIX"),
        *("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE"),
    }
)
"""Variables that make git use another repository than the folder's. Git hooks set some of them."""


def git(folder: str, *arguments: str) -> bytes | None:
    """Return the output of git. Return None if git or the checkout is missing, or if git fails or
    does not answer in time. Git's index is not locked or refreshed."""
    environment = {k: v for k, v in os.environ.items() if k not in _ANOTHER_REPOSITORY}
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        result = subprocess.run(
            ["git", *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout if result.returncode == 0 else None


def checkout_of(*folders: str | None) -> str | None:
    """Look for a git checkout that contains one of `folders`, in their order. Return the top folder
    of the first such checkout, or None."""
    for folder in folders:
        root = git(folder, "rev-parse", "--show-toplevel") if folder else None
        if root and root.strip():
            return os.fsdecode(root.rstrip(b"\n"))
    return None


def commit_of(root: str) -> str | None:
    """Return the current commit of a checkout, or None if the commit is unknown."""
    commit = git(root, "rev-parse", "--verify", "HEAD")
    return commit.decode().strip() if commit else None


def sweep_folders(root: str, names: Iterable[str]) -> set[str]:
    """Return the folders of sweeps in the checkout `root` that contain any of the files `names`."""
    folders: set[str] = set()
    folders_of_sweeps: dict[str, bool] = {}
    for name in names:
        folder = os.path.dirname(name)
        while folder and folder not in folders:
            if folder not in folders_of_sweeps:
                path = os.path.join(root, folder)
                plan, states = os.path.join(path, "sweep.json"), os.path.join(path, "state")
                folders_of_sweeps[folder] = os.path.isfile(plan) and os.path.isdir(states)
            if folders_of_sweeps[folder]:
                folders.add(folder)
            folder = os.path.dirname(folder)
    return folders


class TooMuchError(Exception):
    """The checkout is too large to copy."""


class UnlistedError(Exception):
    """git failed to list the files of the checkout, or did not answer in time."""


class Tree:
    """The files of a checkout that belong in the copy."""

    def __init__(self, root: str, results: Sequence[str], secrets: Collection[str]) -> None:
        self._root = os.path.realpath(root)
        self._results = tuple(results)
        self._secrets = [os.fsencode(value) for value in secrets if value]
        self._folders: dict[str, bool] = {}
        self._untracked = 0
        self.live: list[str] = []
        self.linked: list[str] = []
        self.files: dict[str, str] = {}

    def archive(self) -> bytes:
        """Return the tree as a tar file. The same tree always gives the same bytes. Raises
        `TooMuchError` or `UnlistedError`."""
        import io
        import tarfile

        written = io.BytesIO()
        with tarfile.open(fileobj=written, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for name, most in self._names():
                self._add(tar, name, most)
                if written.tell() > ALL_BYTES:
                    raise TooMuchError
        return written.getvalue()

    def _names(self) -> Iterator[tuple[str, int]]:
        """Yield (path, maximum size in bytes) for each file to copy, sorted by path."""
        names, nested = self._repository("")
        while nested:
            folder = nested.pop(0)
            try:
                inner, more = self._repository(folder)
            except UnlistedError:
                self._leave(folder, "git failed to list it")
                continue
            sizes = (_size(os.path.join(self._root, n), most) for n, most in inner.items())
            if sum(sizes) > _NESTED_BYTES:
                self._leave(folder, f"more than {_NESTED_BYTES // 1_000_000} MB")
                continue
            names |= inner
            nested += more
        yield from sorted(names.items())

    def _repository(self, folder: str) -> tuple[dict[str, int], list[str]]:
        """Return a dict from a repository's files to their maximum sizes in bytes, and the folders
        of nested repositories. `folder` is "" for the checkout itself. Raises `UnlistedError`."""
        tracked, others = (
            self._list(folder, "--cached"),
            self._list(folder, "--others", "--exclude-standard"),
        )
        nested = [n.rstrip("/") for n in (*tracked, *others) if self._is_repository(n.rstrip("/"))]
        sources = dict.fromkeys(tracked, _TRACKED_BYTES)
        files = [name for name in _without_environments(others) if not name.endswith("/")]
        files.sort(key=lambda name: not name.endswith(_SOURCES))  # Code comes first.
        room = max(0, _UNTRACKED_FILES - self._untracked)
        for name in files[:room]:
            sources.setdefault(name, _UNTRACKED_BYTES)
        self._untracked += len(files)
        if len(files) > room:
            self.linked.append(f"... and {plural(len(files) - room, 'other untracked file')}")
            self.live.append(f"{plural(len(files) - room, 'untracked file')} such as {files[room]}")
        return {name: most for name, most in sources.items() if name not in nested}, nested

    def _leave(self, folder: str, why: str) -> None:
        self.linked.append(f"{folder}/")
        self.live.append(f"{folder}/ ({why})")

    def _is_repository(self, name: str) -> bool:
        """Return whether a folder is a submodule or another repository. Return False for a
        worktree."""
        path = os.path.join(self._root, name, ".git")
        if os.path.isdir(path):
            return True
        with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
            return "/worktrees/" not in file.read(_UNTRACKED_BYTES)
        return False

    def _list(self, folder: str, *options: str) -> list[str]:
        listed = git(os.path.join(self._root, folder), "ls-files", "-z", *options)
        if listed is None:
            raise UnlistedError
        names = {os.path.join(folder, os.fsdecode(name)) for name in listed.split(b"\0") if name}
        sweeps = tuple(f"{sweep}/" for sweep in sweep_folders(self._root, names))
        return sorted(name for name in names if not name.startswith(sweeps) and self._ours(name))

    def _ours(self, name: str) -> bool:
        """Return whether a file belongs to the code of the checkout. Return False for results in a
        store inside the checkout, for files in `.git` or `__pycache__`, and for files below a
        symbolic link to a folder."""
        if not LEFT_OUT.isdisjoint(name.split("/")):
            return False
        folder = os.path.dirname(name)
        if folder not in self._folders:
            full = os.path.normpath(os.path.join(self._root, folder))
            outside_results = not os.path.join(full, "").startswith(self._results)
            self._folders[folder] = outside_results and os.path.realpath(full) == full
        return self._folders[folder]

    def _add(self, tar: "tarfile.TarFile", name: str, most: int) -> None:
        import io
        import tarfile

        path = os.path.join(self._root, name)
        entry = tarfile.TarInfo(name)
        try:
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                target = os.readlink(path)
                if self._leads_out(path, target):
                    self.linked.append(name)
                    return
                entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, target, 0o777
                tar.addfile(entry)
                self.files[name] = f"link {target}"
                return
            if not stat.S_ISREG(status.st_mode):
                return  # a pipe, or a missing submodule
            with open(path, "rb") as file:
                data = file.read(most + 1)
        except FileNotFoundError:
            return  # tracked but deleted
        except OSError:
            self.linked.append(name)
            return
        if len(data) > most or any(secret in data for secret in self._secrets):
            self.linked.append(name)
            return
        entry.size, entry.mode = len(data), 0o755 if status.st_mode & 0o100 else 0o644
        tar.addfile(entry, io.BytesIO(data))
        self.files[name] = hashlib.sha256(data).hexdigest()[:16]

    def _leads_out(self, path: str, target: str) -> bool:
        if os.path.isabs(target):
            return True
        led = os.path.normpath(os.path.join(os.path.dirname(path), target))
        return not led.startswith(self._root + os.sep)


def _size(path: str, most: int) -> int:
    """Return the size of a file in bytes; 0 if the file is missing or larger than `most`."""
    with suppress(OSError):
        size = os.lstat(path).st_size
        return size if size <= most else 0
    return 0


def _without_environments(names: Sequence[str]) -> list[str]:
    remaining = {
        name.removesuffix(mark) + "/"
        for name in names
        for mark in _ENVIRONMENTS
        if name.endswith(mark)
    }
    return [name for name in names if not name.startswith(tuple(remaining))]
