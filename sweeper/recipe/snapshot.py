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
    """The result of `make`. `snapshot` is None if there is no copy, and `why` is the reason.
    `linked` are files that runs use in the checkout although a user might expect them in the
    copy."""

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
    """Copy the checkout that contains `cwd`, or else the one that contains the recipe's `file`,
    into the store. Files that contain a value in `secrets` are not copied. Raises `StoreError`."""
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
    """Return the copy that a snapshot's checkout would give now, or None if the checkout cannot be
    copied. The copy's `snapshot` equals the given one if the code is the same. Stores nothing."""
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
    """Link files that are new in the checkout into the extracted copy, if this machine has one. A
    run that failed because of missing data then finds the data at its next attempt."""
    from sweeper.paths import home

    top = _top(snapshot, home())
    if os.path.isdir(top):
        with suppress(OSError):
            _link_rest(snapshot.root, top)
        _give_history(snapshot, top)  # The code may have been committed since.


def results_in(store: Store, root: str, sweep: str) -> list[str]:
    """Return the folders that a copy of the checkout `root` leaves out, since they contain
    results and no code: the store, and sweeper's home. If the checkout is inside the store,
    return the folders of the sweeps instead of the store."""
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
    """Extract a job's snapshot on this machine, unless that was done before. Return the folder. If
    several processes call this at the same time, only one extracts. Each process that calls this
    holds the folder until the process ends, so that `gc` keeps the folder. Raises `StoreError`.

    The recipe's own folder is `os.path.join(<returned folder>, snapshot.cwd)`.
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
    """Hold a copy until this process ends, so that `sweeper store gc` does not remove it."""
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
    """Write the files of an archive, and nothing outside `folder`."""
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
                    f"the code of this run is damaged: {member.name!r} is below a link"
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
    """Make a git repository for the copy, since many recipes record their commit and fail without a
    repository. Make none if git, the checkout or its commit is missing. The new repository reads
    the objects of the checkout's repository, and changes nothing there."""
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
    """Link the files of the checkout that its copy lacks."""
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
