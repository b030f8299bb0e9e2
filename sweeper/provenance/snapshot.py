"""The code as it was at launch: a copy of the checkout, in which the runs execute.

What is kept: every file that git tracks, as it is in the working tree, and untracked files that git
does not ignore; as `<sweep>/code/<hash>.tar.gz`, the same tree under the same hash. Neither the
user's index nor any ref or object of their repository is touched.

What is not kept is reached where it is, by symbolic links made when a host first extracts the
snapshot, and by a later launch of the same code for what has come since: whatever git ignores
(`.venv`, data), virtual environments, large files (over 10 MB, untracked ones over 1 MB), files in
which a secret's value stands, links that lead out of the checkout, submodules. `__pycache__` is
left out, and `.git` is the copy's own: at the commit of the launch, with the checkout's objects, so
that recipes can ask git where they come from. So relative paths lead where they led; but what a run
writes by a relative path into a folder that git tracks, or that did not exist, lands in the
snapshot, which all runs of the same code share: results belong into `log_path`.

A recipe's imports are moved to the copy (`bootstrap.py`); those of a `command:` are not, which so
finds a package that is installed in place (`pip install -e`) in the checkout.

Recipes are checked in the checkout itself, moments before it is kept: what is changed in between is
kept as changed, and has not been checked.

Used by the launch (`make`) and by the worker (`extract`). Standard library only.
"""

import hashlib
import os
import stat
import subprocess
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import IO, TYPE_CHECKING, NamedTuple

from sweeper.errors import AlreadyExists, StoreError
from sweeper.model.recipe import Snapshot
from sweeper.storage.base import Store
from sweeper.storage.layout import Layout

if TYPE_CHECKING:
    import tarfile

__all__ = ["CodeCopy", "changed", "checkout_of", "commit_of", "extract", "git", "make", "relink"]

_TRACKED_BYTES = 10_000_000
_UNTRACKED_BYTES = 1_000_000
_UNTRACKED_FILES = 2_000
_ALL_BYTES = 100_000_000
_LEFT_OUT = frozenset({".git", "__pycache__"})
_ENVIRONMENTS = ("/pyvenv.cfg", "/conda-meta/history")
"""What tells that a folder is an environment of packages: linked, ignored by git or not."""
_GIT_SECONDS = 20.0
_ANOTHER_REPOSITORY = frozenset(
    {
        *("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_PREFIX"),
        *("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE"),
    }
)
"""Where a hook, say, has git look, wherever it is called."""


class CodeCopy(NamedTuple):
    """`kept` is None where nothing was kept, and `why` says why. `linked` are files
    that a copy could have been expected of and that are reached in the checkout instead."""

    kept: Snapshot | None
    why: str | None
    linked: tuple[str, ...] = ()
    in_checkout: bool = True
    """Whether there is anything that could be kept."""


def git(folder: str, *arguments: str) -> bytes | None:
    """What git prints; None when there is no git, no checkout, or no answer in time. Takes no lock
    and refreshes no index."""
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
    """The top folder of the checkout in which the first of `folders` lies that lies in one."""
    for folder in folders:
        found = git(folder, "rev-parse", "--show-toplevel") if folder else None
        if found and found.strip():
            return os.fsdecode(found.rstrip(b"\n"))
    return None


def commit_of(root: str) -> str | None:
    """The commit that a checkout is at; None where there is none."""
    found = git(root, "rev-parse", "--verify", "HEAD")
    return found.decode().strip() if found else None


def make(
    store: Store, sweep: str, cwd: str, file: str | None = None, *, secrets: Collection[str] = ()
) -> CodeCopy:
    """Keep the checkout in which `cwd`, else the recipe's `file`, lies. `secrets` are values that
    must not get into the store. Raises `StoreError`."""
    root = checkout_of(cwd, os.path.dirname(file) if file else None)
    if root is None:
        return CodeCopy(None, "not in a git checkout", in_checkout=False)
    tree = _Tree(root, _results(store, root, sweep), secrets)
    try:
        data = tree.archive()
    except _TooMuchError:
        return CodeCopy(None, f"more than {_ALL_BYTES // 1_000_000} MB of code in {root}")
    except _UnlistedError:
        return CodeCopy(None, f"git does not list the files of {root}")
    digest = hashlib.sha256(data).hexdigest()[:32]
    archive = Layout(sweep).code(f"{digest}.tar.gz")
    if not store.exists(archive):
        import gzip

        with suppress(AlreadyExists):
            store.create(archive, gzip.compress(data, compresslevel=6, mtime=0))
    real = os.path.realpath(cwd)
    inside = real == root or real.startswith(root + os.sep)
    kept = Snapshot(
        hash=digest,
        archive=archive,
        root=root,
        cwd=os.path.relpath(real, root) if inside else cwd,
        commit=commit_of(root),
    )
    relink(kept)
    return CodeCopy(kept, None, tuple(tree.linked))


def changed(store: Store, kept: Snapshot, *, secrets: Collection[str] = ()) -> bool:
    """Whether the checkout is not any more what a `snapshot` kept of it."""
    try:
        results = _results(store, kept.root, kept.archive.partition("/")[0])
        data = _Tree(kept.root, results, secrets).archive()
    except (_TooMuchError, _UnlistedError):
        return True
    return not hashlib.sha256(data).hexdigest().startswith(kept.hash)


def relink(kept: Snapshot) -> None:
    """Where this machine has extracted a `snapshot` before, link what has come to the checkout
    since: data that a run has failed for want of, say. Only for code that has not changed."""
    from sweeper.paths import home

    top = _top(kept, home())
    if os.path.isdir(top):
        with suppress(OSError):
            _link_rest(kept.root, top)
        _give_history(kept, top)  # the same code may have been committed


def _results(store: Store, root: str, sweep: str) -> list[str]:
    """Folders in the checkout `root` that hold what sweeps leave, and no code: the store; where
    the checkout lies in the store, its sweeps; and what sweeper keeps on this machine."""
    from sweeper.paths import home

    top = store.local_path("")
    found = [home()]
    if top is not None and f"{root}/".startswith(os.path.join(os.path.realpath(top), "")):
        found += [os.path.join(top, name) for name in {sweep, *store.folders_with("sweep.json")}]
    elif top is not None:
        found.append(top)
    below = [os.path.join(os.path.realpath(folder), "") for folder in found]
    return [folder for folder in below if not f"{root}/".startswith(folder)]


class _TooMuchError(Exception):
    """The checkout is too large to be copied."""


class _UnlistedError(Exception):
    """Git does not say, or not in time, which files the checkout has."""


class _Tree:
    """The files of a checkout that are kept."""

    def __init__(self, root: str, results: Sequence[str], secrets: Collection[str]) -> None:
        self._root = os.path.realpath(root)
        self._results = tuple(results)
        self._secrets = [os.fsencode(value) for value in secrets if value]
        self._folders: dict[str, bool] = {}
        self.linked: list[str] = []

    def archive(self) -> bytes:
        """A tar file, the same bytes for the same tree. Raises `_TooMuchError`, `_UnlistedError`:
        a copy without some of the code would pass for the code."""
        import io
        import tarfile

        written = io.BytesIO()
        with tarfile.open(fileobj=written, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for name, most in self._names():
                self._add(tar, name, most)
                if written.tell() > _ALL_BYTES:
                    raise _TooMuchError
        return written.getvalue()

    def _names(self) -> Iterator[tuple[str, int]]:
        """Paths below the root, sorted, each with the most bytes that it may have."""
        found = dict.fromkeys(self._list("--cached"), _TRACKED_BYTES)
        others = self._list("--others", "--exclude-standard")
        for count, name in enumerate(_without_environments(others)):
            if count >= _UNTRACKED_FILES:
                self.linked.append("... and other untracked files")
                break
            found.setdefault(name, _UNTRACKED_BYTES)
        yield from sorted(found.items())

    def _list(self, *which: str) -> list[str]:
        listed = git(self._root, "ls-files", "-z", *which)
        if listed is None:
            raise _UnlistedError
        names = [os.fsdecode(name) for name in listed.split(b"\0") if name]
        return sorted({name for name in names if not name.endswith("/") and self._ours(name)})

    def _ours(self, name: str) -> bool:
        """Whether a file is the checkout's own: not a result in a store that lies in it, nor what
        Python leaves about, nor, as git sees it too, anything beyond a symbolic link."""
        if not _LEFT_OUT.isdisjoint(name.split("/")):
            return False
        folder = os.path.dirname(name)
        if folder not in self._folders:
            full = os.path.normpath(os.path.join(self._root, folder))
            ours = not os.path.join(full, "").startswith(self._results)
            self._folders[folder] = ours and os.path.realpath(full) == full
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
                return
            if not stat.S_ISREG(status.st_mode):
                return  # a submodule, a pipe
            with open(path, "rb") as file:
                data = file.read(most + 1)
        except FileNotFoundError:
            return  # tracked, and deleted
        except OSError:
            self.linked.append(name)
            return
        if len(data) > most or any(secret in data for secret in self._secrets):
            self.linked.append(name)
            return
        entry.size, entry.mode = len(data), 0o755 if status.st_mode & 0o100 else 0o644
        tar.addfile(entry, io.BytesIO(data))

    def _leads_out(self, path: str, target: str) -> bool:
        if os.path.isabs(target):
            return True
        led = os.path.normpath(os.path.join(os.path.dirname(path), target))
        return not led.startswith(self._root + os.sep)


def _without_environments(names: Sequence[str]) -> list[str]:
    found = {
        name.removesuffix(mark) + "/"
        for name in names
        for mark in _ENVIRONMENTS
        if name.endswith(mark)
    }
    return [name for name in names if not name.startswith(tuple(found))]


def extract(store: Store, kept: Snapshot, home: str) -> str:
    """The folder, on this machine, with the code of the `snapshot` of a job; made when there is
    none yet, by the first of those who ask at once. Raises `StoreError`.

    The recipe's own folder in it is `os.path.join(<it>, kept.cwd)`.
    """
    import fcntl
    import shutil

    digest = os.path.basename(kept.hash)
    top = _top(kept, home)
    if os.path.isdir(top):
        return top
    data = _unpacked(store.read(kept.archive), digest)
    try:
        os.makedirs(os.path.dirname(top), exist_ok=True)
        with open(f"{top}.lock", "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if os.path.isdir(top):
                return top
            part = f"{top}.part"
            shutil.rmtree(part, ignore_errors=True)  # of one who was killed at it
            try:
                os.mkdir(part)
                _unpack(data, part)
                _link_rest(kept.root, part)
                _give_history(kept, part)
                os.rename(part, top)
            except OSError:
                shutil.rmtree(part, ignore_errors=True)  # a disk that is full has use for the room
                raise
    except OSError as error:
        raise StoreError(f"cannot extract the code of this run: {error}") from error
    return top


def _top(kept: Snapshot, home: str) -> str:
    # Two clones with the same files have links of their own.
    clone = hashlib.sha256(os.fsencode(kept.root)).hexdigest()[:8]
    return os.path.join(home, "snapshots", f"{os.path.basename(kept.hash)}-{clone}")


def _unpacked(archive: bytes, digest: str) -> bytes:
    import gzip
    import zlib

    try:
        data = gzip.decompress(archive)
    except (OSError, EOFError, zlib.error) as error:
        raise StoreError(f"the code of this run is damaged: {error}") from error
    if not hashlib.sha256(data).hexdigest().startswith(digest):
        raise StoreError(f"the code of this run is damaged: it is not {digest}")
    return data


def _unpack(data: bytes, folder: str) -> None:
    """Write the files of our own archive, and nothing outside of `folder`."""
    import io
    import tarfile

    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        for member in tar:
            path = os.path.normpath(os.path.join(folder, member.name))
            parent = os.path.dirname(path)
            if not path.startswith(folder + os.sep):
                raise StoreError(f"the code of this run is damaged: it has {member.name!r}")
            os.makedirs(parent, exist_ok=True)
            if os.path.realpath(parent) != os.path.join(os.path.realpath(folder), *_below(member)):
                raise StoreError(f"the code of this run is damaged: a link above {member.name!r}")
            source = tar.extractfile(member) if member.isreg() else None
            if source is not None:
                _write(path, source, member.mode)
            elif member.issym():
                os.symlink(member.linkname, path)


def _below(member: "tarfile.TarInfo") -> list[str]:
    """The folders above a file of an archive."""
    return [part for part in os.path.normpath(member.name).split("/")[:-1] if part]


def _write(path: str, source: IO[bytes], mode: int) -> None:
    # Executable or not, as it was; and as our umask has it.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode & 0o777)
    with os.fdopen(descriptor, "wb") as file:
        file.write(source.read())


def _give_history(kept: Snapshot, copy: str) -> None:
    """A repository for the copy, as far as there is git and the checkout. Many a recipe notes its
    commit, and fails where there is none. Nothing that is done to it reaches the checkout's."""
    commit = kept.commit
    objects = git(kept.root, "rev-parse", "--git-path", "objects") if commit else None
    if not commit or not objects or git(copy, "init", "-q", "--template=") is None:
        return
    path = os.path.join(kept.root, os.fsdecode(objects.rstrip(b"\n")))
    with suppress(OSError):
        with open(os.path.join(copy, ".git", "objects", "info", "alternates"), "wb") as file:
            file.write(os.fsencode(path) + b"\n")
        with open(os.path.join(copy, ".git", "HEAD"), "w", encoding="ascii") as file:
            file.write(f"{commit}\n")
    git(copy, "read-tree", "HEAD")


def _link_rest(live: str, copy: str) -> None:
    """Link what the checkout has and its copy has not."""
    try:
        found = sorted(os.scandir(live), key=lambda entry: entry.name)
    except OSError:
        return  # another machine, where there is no such checkout
    for entry in found:
        path = os.path.join(copy, entry.name)
        if entry.name in _LEFT_OUT:
            continue
        if not os.path.lexists(path):
            with suppress(FileExistsError):  # two launches may do the same at once
                os.symlink(entry.path, path)
        elif entry.is_dir(follow_symlinks=False) and not os.path.islink(path):
            _link_rest(entry.path, path)
