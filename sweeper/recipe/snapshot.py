"""Copies the checkout at launch (`make`) to `<sweep>/code/<hash>.tar.gz`, and extracts it for jobs
(`extract`). docs/reliability.md says which files are copied, and which are linked. Uses only the
standard library."""

import hashlib
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, NamedTuple, Never

from sweeper.errors import AlreadyExists, StoreError
from sweeper.recipe.checkout import (
    ALL_BYTES,
    LEFT_OUT,
    TooMuchError,
    Tree,
    UnlistedError,
    checkout_of,
    commit_of,
    git,
)
from sweeper.store.base import Store
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.recipe import Snapshot
from sweeper.sweep.worker_lock import hold

if TYPE_CHECKING:
    import tarfile

_NO_FILES: Mapping[str, Never] = MappingProxyType({})


class CodeCopy(NamedTuple):
    """The result of `make`. If there is no copy, `snapshot` is None and `why` is the reason. The
    files in `linked` are not in the copy: runs use them from the checkout."""

    snapshot: Snapshot | None
    why: str | None
    linked: tuple[str, ...] = ()
    live: tuple[str, ...] = ()
    """Descriptions of the linked files that are code. Later edits of these files affect the
    runs."""
    in_checkout: bool = True
    """Whether there is a checkout to copy."""
    files: Mapping[str, str] = _NO_FILES
    """The digest of each file in the copy."""


def make(
    folder: SweepFolder, cwd: str, file: str | None = None, *, secrets: Collection[str] = ()
) -> CodeCopy:
    """Copy the checkout that contains `cwd` into the store. If `cwd` is in no checkout, copy the
    checkout that contains the recipe's `file`. Files that contain one of the values `secrets` are
    not copied. Raises `StoreError`."""
    root = checkout_of(cwd, os.path.dirname(file) if file else None)
    if root is None:
        return CodeCopy(None, "not in a git checkout", in_checkout=False)
    tree = Tree(root, results_in(folder.store, root, folder.name), secrets)
    try:
        data = tree.archive()
    except TooMuchError:
        return CodeCopy(None, f"more than {ALL_BYTES // 1_000_000} MB of code in {root}")
    except UnlistedError:
        return CodeCopy(None, f"git failed to list the files of {root}")
    digest = hashlib.sha256(data).hexdigest()[:32]
    archive = folder.code(f"{digest}.tar.gz")
    if not folder.store.exists(archive):
        import gzip

        with suppress(AlreadyExists):
            folder.store.create(archive, gzip.compress(data, compresslevel=6, mtime=0))
    real = os.path.realpath(cwd)
    inside = real == root or real.startswith(root + os.sep)
    snapshot = Snapshot(
        hash=digest,
        archive=archive,
        root=root,
        cwd=os.path.relpath(real, root) if inside else cwd,
        commit=commit_of(root),
    )
    relink(snapshot)
    return CodeCopy(snapshot, None, tuple(tree.linked), tuple(tree.live), files=tree.files)


def preview(store: Store, snapshot: Snapshot, *, secrets: Collection[str] = ()) -> CodeCopy | None:
    """Return the copy that a launch would now make of a snapshot's checkout; None if the checkout
    cannot be copied. The result's `snapshot` equals the given one if the code is unchanged. Stores
    nothing."""
    tree = Tree(
        snapshot.root, results_in(store, snapshot.root, snapshot.archive.partition("/")[0]), secrets
    )
    try:
        data = tree.archive()
    except (TooMuchError, UnlistedError):
        return None
    same = hashlib.sha256(data).hexdigest().startswith(snapshot.hash)
    return CodeCopy(snapshot if same else snapshot._replace(hash=""), None, files=tree.files)


def relink(snapshot: Snapshot) -> None:
    """Link new files of the checkout into the copy that was extracted on this machine. Do nothing
    if there is no such copy. The next attempt of a run then finds files that were missing
    before."""
    from sweeper.paths import home

    top = _top(snapshot, home())
    if os.path.isdir(top):
        with suppress(OSError):
            _link_rest(snapshot.root, top)
        _give_history(snapshot, top)  # The code may have been committed since.


def results_in(store: Store, root: str, sweep: str) -> list[str]:
    """Return the folders of results that a copy of the checkout `root` must not contain: sweeper's
    home and a local store. If the checkout is inside the store, return the folders of `sweep` and
    of the store's other sweeps instead of the store."""
    from sweeper.paths import home

    top = store.local_path("")
    folders = [home()]
    if top is not None and f"{root}/".startswith(os.path.join(os.path.realpath(top), "")):
        folders += [os.path.join(top, name) for name in {sweep, *store.folders_with("sweep.json")}]
    elif top is not None:
        folders.append(top)
    below = [os.path.join(os.path.realpath(folder), "") for folder in folders]
    return [folder for folder in below if not f"{root}/".startswith(folder)]


def extract(store: Store, snapshot: Snapshot, home: str) -> str:
    """Extract a snapshot on this machine, if this was not done before. Return the copy's folder.
    Concurrent calls extract the snapshot only once. `sweeper store gc` does not remove the folder
    before the calling process ends. Raises `StoreError`.

    The recipe's folder is `os.path.join(<returned folder>, snapshot.cwd)`.
    """
    import fcntl
    import shutil

    digest = os.path.basename(snapshot.hash)
    top = _top(snapshot, home)
    hold_copy(top)
    if os.path.isdir(top):
        return top
    data = _unpacked(store.read(snapshot.archive), digest)
    try:
        os.makedirs(os.path.dirname(top), exist_ok=True)
        with open(f"{top}.lock", "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if os.path.isdir(top):
                return top
            part = f"{top}.part"
            shutil.rmtree(part, ignore_errors=True)  # A killed process left this.
            try:
                os.mkdir(part)
                _unpack(data, part)
                _link_rest(snapshot.root, part)
                _give_history(snapshot, part)
                os.rename(part, top)
            except OSError:
                shutil.rmtree(part, ignore_errors=True)  # The disk may be full, so free the space.
                raise
    except OSError as error:
        raise StoreError(f"cannot extract the code of this run: {error}") from error
    return top


def hold_copy(top: str) -> None:
    """Prevent `sweeper store gc` from removing the copy in `top` until this process ends."""
    path = f"{top}.use"
    try:
        os.makedirs(os.path.dirname(top), exist_ok=True)
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT, 0o600))
    except OSError:
        return  # The disk may be full. Extracting the copy reports that.
    hold(path)


def _top(snapshot: Snapshot, home: str) -> str:
    # Two clones with the same files need different links.
    clone = hashlib.sha256(os.fsencode(snapshot.root)).hexdigest()[:8]
    return os.path.join(home, "snapshots", f"{os.path.basename(snapshot.hash)}-{clone}")


def _unpacked(archive: bytes, digest: str) -> bytes:
    import gzip
    import zlib

    try:
        data = gzip.decompress(archive)
    except (OSError, EOFError, zlib.error) as error:
        raise StoreError(f"the code of this run is damaged: {error}") from error
    if not hashlib.sha256(data).hexdigest().startswith(digest):
        raise StoreError(f"the code of this run is damaged: its hash is not {digest}")
    return data


def _unpack(data: bytes, folder: str) -> None:
    """Extract an archive. Raise `StoreError` if a path in the archive leads out of `folder`."""
    import io
    import tarfile

    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        for member in tar:
            path = os.path.normpath(os.path.join(folder, member.name))
            parent = os.path.dirname(path)
            if not path.startswith(folder + os.sep):
                raise StoreError(
                    f"the code of this run is damaged: {member.name!r} is outside the copy"
                )
            os.makedirs(parent, exist_ok=True)
            if os.path.realpath(parent) != os.path.join(os.path.realpath(folder), *_below(member)):
                raise StoreError(
                    f"the code of this run is damaged: {member.name!r} is in a linked folder"
                )
            source = tar.extractfile(member) if member.isreg() else None
            if source is not None:
                _write(path, source, member.mode)
            elif member.issym():
                os.symlink(member.linkname, path)


def _below(member: "tarfile.TarInfo") -> list[str]:
    return [part for part in os.path.normpath(member.name).split("/")[:-1] if part]


def _write(path: str, source: IO[bytes], mode: int) -> None:
    # The mode keeps the executable bit, and the umask applies.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode & 0o777)
    with os.fdopen(descriptor, "wb") as file:
        file.write(source.read())


def _give_history(snapshot: Snapshot, copy: str) -> None:
    """Make a git repository for the copy, since many recipes record the current commit and fail
    without a repository. The repository reads the objects of the checkout's repository. Do nothing
    if git, the checkout or the commit is missing."""
    commit = snapshot.commit
    objects = git(snapshot.root, "rev-parse", "--git-path", "objects") if commit else None
    if not commit or not objects or git(copy, "init", "-q", "--template=") is None:
        return
    path = os.path.join(snapshot.root, os.fsdecode(objects.rstrip(b"\n")))
    with suppress(OSError):
        with open(os.path.join(copy, ".git", "objects", "info", "alternates"), "wb") as file:
            file.write(os.fsencode(path) + b"\n")
        with open(os.path.join(copy, ".git", "HEAD"), "w", encoding="ascii") as file:
            file.write(f"{commit}\n")
    git(copy, "read-tree", "HEAD")


def _link_rest(live: str, copy: str) -> None:
    """Link each file of the checkout `live` that is missing in `copy`."""
    try:
        entries = sorted(os.scandir(live), key=lambda entry: entry.name)
    except OSError:
        return  # Another machine does not have this checkout.
    for entry in entries:
        path = os.path.join(copy, entry.name)
        if entry.name in LEFT_OUT:
            continue
        if not os.path.lexists(path):
            with suppress(FileExistsError):  # Two launches may do the same at once.
                os.symlink(entry.path, path)
        elif entry.is_dir(follow_symlinks=False) and not os.path.islink(path):
            _link_rest(entry.path, path)
