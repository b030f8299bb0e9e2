"""A store behind fsspec: S3 and compatible stores, Google Cloud Storage, Azure, or this process's
memory. A create is a conditional PUT. Listings are not cached."""

import contextlib
import functools
import hashlib
import logging
import os
import posixpath
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from typing import NamedTuple, NoReturn, Required, TypedDict, TypeVar

from sweeper.common.logs import Log
from sweeper.errors import AlreadyExists, NotFound, StoreError
from sweeper.store.base import AT_ONCE, Entry, each

_LOG = Log(__name__)

T = TypeVar("T")


class _Listed(TypedDict, total=False):
    """A file or folder in a listing by fsspec. Only `_stamp` reads fields not declared here."""

    name: Required[str]
    type: str
    size: int | None


class _Kind(NamedTuple):
    """A filesystem of fsspec that can create files exclusively. `options` are arguments of the
    filesystem. `whole` are arguments of the call that reads a file; they save one of two requests.
    `prefixed`: the filesystem's `find` can list the keys with a prefix in one request."""

    package: str
    options: dict[str, object]
    whole: Mapping[str, int] = {}
    prefixed: bool = False


S3 = _Kind(
    "s3fs",
    {
        "use_listings_cache": False,
        # The timeouts report a store that does not answer within a minute. Callers that must not
        # lose data retry. Not every S3 store supports the checksums that AWS's client adds by
        # default.
        "config_kwargs": {
            "connect_timeout": 5,
            "read_timeout": 30,
            "retries": {"mode": "standard", "max_attempts": 2},
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
            "max_pool_connections": AT_ONCE,
        },
    },
    whole={"max_concurrency": 1},
    prefixed=True,
)
_GCS = _Kind("gcsfs", {"use_listings_cache": False}, whole={"concurrency": 1})
_AZURE = _Kind("adlfs", {"use_listings_cache": False})
_KINDS = {
    "s3": S3,
    "s3a": S3,
    "gs": _GCS,
    "gcs": _GCS,
    "az": _AZURE,
    "abfs": _AZURE,
    "abfss": _AZURE,
    "memory": _Kind("fsspec", {}),
}
_NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError")
_NOT_LOGGED_IN = ("SSOTokenLoadError", "TokenRetrievalError", "UnauthorizedSSOTokenError")
_LOGGERS = ("adlfs", "aiobotocore", "azure", "botocore", "fsspec", "gcsfs", "google", "s3fs")
"""Loggers of the clients. Without handlers they would print tracebacks on standard error, next to
our own message about the same error."""
_SKEWED = ("RequestTimeTooSkewed", "RequestExpired", "RequestInTheFuture")
_CONFLICTS = 5
_BUSY = ("SlowDown", "503", "ServiceUnavailable", "RequestLimitExceeded", "429")
_BEYOND = ("InvalidRange", "416")
"""Codes for a read that begins at or after the end of a file."""
_PAUSES = (0.5, 1.0, 2.0)
"""Seconds to wait before each repetition of reads that a busy store refused."""
_memory = threading.RLock()
"""Serializes access to fsspec's memory filesystem. This filesystem creates a file by a check
followed by a write, and the readers of a file share one position."""


def open_remote(root: str) -> "RemoteStore":
    """Return the store at the URL `root`. Raises `StoreError` for an unsupported scheme, a missing
    package, or credentials in the address."""
    scheme, _, rest = root.partition("://")
    kind = _KINDS.get(scheme)
    if kind is None:
        raise StoreError(f"there is no store for {scheme}://; use a folder, s3://, gs:// or az://")
    authority = rest.partition("/")[0]
    if ":" in authority.rpartition("@")[0] or (scheme in ("s3", "s3a") and "@" in authority):
        raise StoreError(
            f"{scheme}:// root: remove the credentials from the address, because the address is "
            "recorded in many files. Use AWS_PROFILE, or your provider's variables or files"
        )
    if "?" in rest or "#" in rest or "::" in rest:
        raise StoreError(f"root in {scheme}://{authority}: a root cannot contain ?, # or ::")
    if not authority and scheme != "memory":
        raise StoreError(f"{root} has no bucket")
    path = rest.strip("/")
    parts = path.split("/")
    if path and not {"", ".", ".."}.isdisjoint(parts):
        # Clients and stores interpret such keys differently, so a written file might not be found.
        clean = "/".join(part for part in parts if part not in ("", "."))
        hint = "" if ".." in parts else f": write {scheme}://{clean}"
        raise StoreError(f"{root}: a root cannot contain //, /./ or /../{hint}")
    return RemoteStore(scheme, path, kind)


def packages_of(root: str) -> list[str]:
    """Return the packages needed for the store at the URL `root`; empty for an unsupported
    scheme."""
    kind = _KINDS.get(root.partition("://")[0])
    return [] if kind is None else list(dict.fromkeys(("fsspec", kind.package)))


class RemoteStore:
    """A store behind fsspec (see `sweeper.store.base.Store`). Threads may share it."""

    is_remote = True
    at_once = AT_ONCE

    def __init__(self, scheme: str, rest: str, kind: _Kind) -> None:
        self.root = f"{scheme}://{rest}"
        self._lock = _memory if scheme == "memory" else contextlib.nullcontext()
        for logger in map(logging.getLogger, _LOGGERS):
            if not logger.handlers:
                logger.addHandler(logging.NullHandler())
        try:
            fsspec = import_module("fsspec")  # fsspec has no types
            # Do not use fsspec's cached instance: it may have another endpoint or a closed session.
            session = {"session": _session()} if kind is S3 else {}
            self._fs = fsspec.filesystem(
                scheme, skip_instance_cache=scheme != "memory", **kind.options, **session
            )
        except ImportError as error:
            raise StoreError(
                f"{scheme}:// needs the package {kind.package}: `pip install {kind.package}`"
            ) from error
        except Exception as error:
            raise StoreError(f"{self.root}: {_reason(error)}") from error
        self._whole = kind.whole
        if kind is S3:
            self._fs.retries = 2
        self._base: str = self._fs._strip_protocol(self.root)
        self._bucketed = scheme != "memory"
        self._prefixed = kind.prefixed

    def create(self, path: str, data: bytes) -> None:
        full = self._full(path)
        for _ in range(_CONFLICTS):
            try:
                with self._lock:
                    self._fs.pipe_file(full, data, mode="create")
            except Exception as error:
                if _is_taken(error):
                    raise AlreadyExists(f"{self._shown(path)} already exists") from error
                if _code(error) not in ("ConditionalRequestConflict", "OperationAborted"):
                    self._refuse(path, error, writing=True)
                time.sleep(0.05)  # Another create of the same file is in progress.
            else:
                return
        raise StoreError(f"{self._shown(path)}: too many processes are creating this file at once")

    def replace(self, path: str, data: bytes, *, durable: bool = True) -> None:
        del durable  # A remote write is always durable.
        full = self._full(path)
        self._do(path, lambda: self._fs.pipe_file(full, data), writing=True)

    def append(self, path: str, data: bytes) -> None:
        """Raise `StoreError`, since a remote store cannot append. Files that grow go through the
        spool."""
        del data
        raise StoreError(f"{self._shown(path)}: cannot append to a file on {self.root}")

    def upload(self, path: str, source: str) -> None:
        full = self._full(path)
        if not os.path.isfile(source):
            raise NotFound(f"{source}: no such file")
        self._do(path, lambda: self._fs.put_file(source, full), writing=True)

    def remove(self, paths: Iterable[str]) -> None:
        def remove_file(path: str) -> None:
            with contextlib.suppress(NotFound):
                self._do(path, lambda: self._fs.rm_file(self._full(path)))

        each(self, remove_file, paths)

    def read(self, path: str) -> bytes:
        full = self._full(path)
        return self._do(path, lambda: self._fs.cat_file(full, **self._whole))

    def read_many(self, paths: Iterable[str]) -> dict[str, bytes]:
        waiting = {path: self._full(path) for path in paths}
        contents: dict[str, bytes] = {}
        for pause in (*_PAUSES, None):
            answers = self._contents(list(waiting.values()))
            busy: dict[str, str] = {}
            for (path, full), answer in zip(waiting.items(), answers, strict=True):
                if isinstance(answer, bytes):
                    contents[path] = answer
                elif _code(answer) in _BUSY:
                    busy[path] = full
            if not busy or pause is None:
                break
            time.sleep(pause)
            waiting = busy
        return contents

    def _contents(self, files: list[str]) -> list[bytes | BaseException]:
        """Return the content of each file, or its error."""
        if self._fs.async_impl:
            return import_module("fsspec.asyn").sync(self._fs.loop, self._gather, files)

        def content(file: str) -> bytes | BaseException:
            try:
                with self._lock:
                    return self._fs.cat_file(file)
            except Exception as error:  # noqa: BLE001 - each kind of store has its own errors
                return error

        return each(self, content, files)

    async def _gather(self, files: list[str]) -> list[bytes | BaseException]:
        import asyncio

        room = asyncio.Semaphore(self.at_once)

        async def fetch(file: str) -> bytes:
            async with room:
                return await self._fs._cat_file(file, **self._whole)

        return await asyncio.gather(*map(fetch, files), return_exceptions=True)

    def read_range(self, path: str, start: int, end: int) -> bytes:
        full = self._full(path)
        if start >= end:
            return b""
        try:
            return self._do(path, lambda: self._fs.cat_file(full, start=start, end=end))
        except StoreError as error:
            if error.__cause__ is not None and _code(error.__cause__) in _BEYOND:
                return b""  # The file is shorter.
            raise

    def exists(self, path: str) -> bool:
        # A client's own `exists` also lists the path as a folder, which takes a second request.
        try:
            self.read_range(path, 0, 1)
        except NotFound:
            return False
        return True

    def list(self, prefix: str) -> Iterator[Entry]:
        full = self._full(prefix)
        try:
            listed: dict[str, _Listed]
            listed = self._do(prefix, lambda: self._find(full))
        except NotFound as error:
            if not self._bucketed:
                return
            raise StoreError(f"{self.root}: no such bucket") from error
        start = len(self._base) + 1
        for name, about in listed.items():
            if about.get("type") == "file" and name != full and not name.endswith("/"):
                yield Entry(name[start:], about.get("size") or 0, _stamp(about))

    def _find(self, full: str) -> "dict[str, _Listed]":
        above, _, name = full.rpartition("/")
        if self._prefixed and above:
            # Without a prefix, `find` sends two more requests for a folder that has no files.
            return self._fs.find(above, detail=True, prefix=f"{name}/")
        return self._fs.find(full, detail=True)

    def names(self, prefix: str) -> Iterator[str]:
        return (entry.path for entry in self.list(prefix))

    def children(self) -> Iterator[Entry]:
        start = len(self._base) + 1
        for about in self._listed():
            name = about["name"].rstrip("/")
            if about.get("type") == "directory":
                yield Entry(f"{name[start:]}/", 0, 0)
            elif name != self._base and not about["name"].endswith("/"):
                yield Entry(name[start:], about.get("size") or 0, _stamp(about))

    def _listed(self) -> "list[_Listed]":
        """Return the folders and files directly in the root."""
        try:
            return self._do("", lambda: self._fs.ls(self._base, detail=True, **self._fresh()))
        except NotFound:
            if self._bucketed and not self._do("", lambda: self._fs.exists(self._base)):
                # A root without files is fine, a missing bucket is not.
                bucket = self._base.partition("/")[0]
                if not self._do("", lambda: self._fs.exists(bucket)):
                    raise StoreError(f"{self.root}: no such bucket") from None
            return []

    def folders_with(self, name: str) -> Iterator[str]:
        folders = [child.path[:-1] for child in self.children() if child.path.endswith("/")]
        results = each(self, lambda folder: self.exists(f"{folder}/{name}"), folders)
        return (folder for folder, has in zip(folders, results, strict=True) if has)

    def local_path(self, path: str) -> str | None:
        del path
        return None

    def _full(self, path: str) -> str:
        inside = posixpath.normpath(path) if path else "."
        if inside == ".":
            return self._base
        if inside.startswith("/") or inside.split("/", 1)[0] == "..":
            raise StoreError(f"{path} is outside the store {self.root}")
        return f"{self._base}/{inside}"

    def _shown(self, path: str) -> str:
        return f"{self.root}/{path}".rstrip("/")

    def _fresh(self) -> dict[str, bool]:
        return {"refresh": True} if self._bucketed else {}

    def _do(self, path: str, action: Callable[[], T], *, writing: bool = False) -> T:
        try:
            with self._lock:
                return action()
        except Exception as error:  # noqa: BLE001 - each kind of store has its own errors
            self._refuse(path, error, writing)

    def _refuse(self, path: str, error: Exception, writing: bool) -> NoReturn:
        if not isinstance(error, FileNotFoundError):
            _LOG.debug("%s: %s: %s", self._shown(path), type(error).__name__, error)
        if writing and isinstance(error, FileNotFoundError):
            raise StoreError(f"{self.root}: no such bucket") from error
        if type(error).__name__ in _NO_CREDENTIALS:
            raise StoreError(f"{self.root}: {_reason(error)}") from error
        if isinstance(error, FileNotFoundError | IsADirectoryError):
            raise NotFound(f"{self._shown(path)}: no such file") from error
        raise StoreError(f"{self._shown(path)}: {_reason(error)}") from error


def _session() -> object:
    """Return a session of the S3 client. The session does not parse times (nor does AWS's command
    line), because parsing takes half the time of a listing."""

    def as_sent(value: object) -> object:
        return value

    session = import_module("aiobotocore.session").AioSession()
    session.register_component("data_loader", _loader())
    factory = session.get_component("response_parser_factory")
    factory.set_parser_defaults(timestamp_parser=as_sent)
    return session


@functools.cache
def _loader() -> object:
    """Return the loader of the descriptions of AWS's services. All sessions share this loader and
    the descriptions that it has read, because reading them is slow."""
    return import_module("aiobotocore.session").AioSession().get_component("data_loader")


def _code(error: BaseException) -> str:
    """Return the error code of S3, or the HTTP status of Google or Azure, from an error; "" for
    other errors."""
    for cause in (error, error.__cause__):
        response: object = getattr(cause, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        for name in ("code", "status_code"):
            status: object = getattr(cause, name, None)
            if isinstance(status, int | str):
                return str(status)
    return ""


def _is_taken(error: Exception) -> bool:
    """Return whether a file was not created because it exists. Ceph and Google report this by the
    error's code, other stores by the error's class."""
    return isinstance(error, FileExistsError) or _code(error) in ("PreconditionFailed", "412")


def _reason(error: BaseException) -> str:
    name = type(error).__name__
    if name in _NOT_LOGGED_IN:
        return f"not logged in: run `aws sso login` ({error})"
    if name in _NO_CREDENTIALS:
        return "no credentials: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    if _code(error) in _SKEWED:
        return f"refused because of the time: is this machine's clock right? ({error})"
    if isinstance(error, PermissionError):
        return f"not allowed ({error})"
    line = " ".join(str(error).split())
    code = _code(error)
    if code and not code.isdecimal():
        # Report the store's own code (SlowDown, InternalError), not the errno it was mapped to.
        name, line = code, re.sub(r"^\[Errno \d+\] ", "", line)
    return f"{name}: {line}"[:300] if line else name


def _stamp(about: Mapping[str, object]) -> int:
    """Return a number that changes when a file's size, hash, version or time in the listing
    changes."""
    keys = ("ETag", "etag", "md5Hash", "generation", "LastModified", "last_modified", "updated")
    parts = [str(about.get(key)) for key in (*keys, "mtime", "created") if key in about]
    text = "|".join([str(about.get("size")), *parts])
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
