"""Makes tokenizers available to `transformers` by model name, without a network. The tokenizers
are in a cache with the layout of the Hugging Face hub's cache. `view` makes a folder of links to
the repositories in this cache and in the user's own cache."""

# <hub>/models--ORG--NAME/refs/main                  the revision
# <hub>/models--ORG--NAME/snapshots/<revision>/      tokenizer.json, config.json and others

import contextlib
import hashlib
import os
import shutil
from collections.abc import Mapping

from sweeper.common.atomic import atomic_write, replacing

FILES = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
)
_KINDS = ("models--", "datasets--", "spaces--")


def _contents(directory: str) -> dict[str, bytes]:
    out: dict[str, bytes] = {}
    for name in FILES:
        with contextlib.suppress(FileNotFoundError), open(os.path.join(directory, name), "rb") as f:
            out[name] = f.read()
    return out


def _revision(contents: dict[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name, data in contents.items():
        digest.update(f"{name} {len(data)}\n".encode() + data)
    return digest.hexdigest()[:40]  # as long as the hub's revisions, which are git hashes


def place(hub: str, name: str, directory: str) -> str:
    """Add the tokenizer in `directory` to the cache `hub`, as the tokenizer of the model `name`.
    Return the folder of the snapshot.

    The folder's name is a hash of the files, so a snapshot never changes. The reference `main` is
    switched to the snapshot atomically.
    """
    model = os.path.join(hub, "models--" + name.replace("/", "--"))
    contents = _contents(directory)
    revision = _revision(contents)
    snapshots, refs = os.path.join(model, "snapshots"), os.path.join(model, "refs")
    target = os.path.join(snapshots, revision)
    for folder in (snapshots, refs):
        os.makedirs(folder, exist_ok=True)
    if not os.path.isdir(target):
        import tempfile  # import late: rarely needed, and slow to load

        scratch = tempfile.mkdtemp(prefix=".making-", dir=snapshots)
        try:
            os.chmod(scratch, 0o755)  # noqa: S103 -- mkdtemp's 0700 would hide it from other users
            for file, data in contents.items():
                with open(os.path.join(scratch, file), "wb") as out:
                    out.write(data)
            with contextlib.suppress(OSError):  # another process has made the same contents
                os.rename(scratch, target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    reference = os.path.join(refs, "main")
    atomic_write(reference, revision.encode())
    return target


def user_cache(environ: Mapping[str, str]) -> str:
    """Return the absolute path of the cache that `huggingface_hub` uses in the environment
    `environ`."""
    cache = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE")
    if not cache:
        above = environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
        cache = os.path.join(environ.get("HF_HOME") or os.path.join(above, "huggingface"), "hub")
    return os.path.abspath(os.path.expandvars(os.path.expanduser(cache)))


def view(hub: str, user_hub: str, views: str) -> str:
    """Make a folder below `views` with links to the repositories of two caches. For a repository
    that both caches have, the link points to `hub`, not to `user_hub`. Return the path of the
    folder.

    Calls with the same `user_hub` update the same folder, and may run at the same time. Files that
    other programs add to the folder stay. Raises OSError if the folder cannot be written.
    """
    # A launch from inside a run already has a view: use it.
    nested = os.path.dirname(user_hub) == os.path.abspath(views)
    digest = hashlib.sha256(os.fsencode(user_hub)).hexdigest()[:16]
    target = user_hub if nested else os.path.join(os.path.abspath(views), digest)
    wanted = _held(user_hub) | _held(os.path.abspath(hub))
    os.makedirs(target, exist_ok=True)
    for name in _held(target).keys() - wanted.keys():
        link = os.path.join(target, name)
        if os.path.islink(link):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(link)
    for name, path in wanted.items():
        _link(path, os.path.join(target, name))
    return target


def _link(path: str, link: str) -> None:
    """Make `link` point to `path`, atomically. A folder at `link` is not replaced."""
    if path == link or (os.path.islink(link) and os.readlink(link) == path):
        return
    with contextlib.suppress(IsADirectoryError), replacing(link) as scratch:
        os.symlink(path, scratch)


def _held(cache: str) -> dict[str, str]:
    """Return the repositories in a cache as {folder name: path}. Empty if the cache does not
    exist or cannot be read."""
    try:
        names = os.listdir(cache)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return {}
    return {name: os.path.join(cache, name) for name in names if name.startswith(_KINDS)}
