"""Tokenizers where `transformers` finds them by a model's name, without a network.

The SDK looks the tokenizer of a base model up by name, as recipes do. `place` makes a cache laid
out as the hub's own:

    <hub>/models--ORG--NAME/refs/main                  the revision
    <hub>/models--ORG--NAME/snapshots/<revision>/      tokenizer.json, config.json and others

Weights are not placed: nobody asks the cache for them.

A program has one cache only, and its user's may hold models and data sets that it needs. So it gets
a view of both (`view`): a folder of links, in which the engine's names hide the user's. Nothing is
ever written into the user's own cache, where `Qwen/Qwen3-8B` is the real one.
"""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Mapping

from sweeper.atomic import atomic_write, replacing

__all__ = ["FILES", "place", "user_cache", "view"]

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
    return digest.hexdigest()[:40]  # as long as the hub's, which are git's


def place(hub: str, name: str, directory: str) -> str:
    """Put the tokenizer of `directory` into the cache `hub` under a model's name; its directory.

    The revision is made of the contents, so a snapshot never changes; the reference is replaced
    at once. What other models have in the cache is left alone.
    """
    model = os.path.join(hub, "models--" + name.replace("/", "--"))
    contents = _contents(directory)
    revision = _revision(contents)
    snapshots, refs = os.path.join(model, "snapshots"), os.path.join(model, "refs")
    target = os.path.join(snapshots, revision)
    for folder in (snapshots, refs):
        os.makedirs(folder, exist_ok=True)
    if not os.path.isdir(target):
        import tempfile  # once for a model, and it loads slowly

        scratch = tempfile.mkdtemp(prefix=".making-", dir=snapshots)
        try:
            os.chmod(scratch, 0o755)  # noqa: S103 -- mkdtemp's 0700 would hide it from other users
            for file, data in contents.items():
                with open(os.path.join(scratch, file), "wb") as out:
                    out.write(data)
            with contextlib.suppress(OSError):  # another process was first, with the same contents
                os.rename(scratch, target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    reference = os.path.join(refs, "main")
    atomic_write(reference, revision.encode())
    return target


def user_cache(environ: Mapping[str, str]) -> str:
    """Where `huggingface_hub` keeps what it has fetched in that environment: an absolute path."""
    cache = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE")
    if not cache:
        above = environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
        cache = os.path.join(environ.get("HF_HOME") or os.path.join(above, "huggingface"), "hub")
    return os.path.abspath(os.path.expandvars(os.path.expanduser(cache)))


def view(hub: str, theirs: str, views: str) -> str:
    """A cache below `views` with links to what `hub` has, and `theirs` where `hub` has it not.

    Each user's cache has a view of its own, brought up to date by every call; two at once make the
    same links. What a program itself puts into the view stays. Raises OSError.
    """
    # Launched from a run, which has a view: that one.
    nested = os.path.dirname(theirs) == os.path.abspath(views)
    digest = hashlib.sha256(os.fsencode(theirs)).hexdigest()[:16]
    target = theirs if nested else os.path.join(os.path.abspath(views), digest)
    wanted = _held(theirs) | _held(os.path.abspath(hub))
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
    """See that `link` leads to `path`; replaced at once. A folder that is in its place stays."""
    if path == link or (os.path.islink(link) and os.readlink(link) == path):
        return
    with contextlib.suppress(IsADirectoryError), replacing(link) as scratch:
        os.symlink(path, scratch)


def _held(cache: str) -> dict[str, str]:
    """The repositories in a cache: folder -> path. None where there is no cache."""
    try:
        names = os.listdir(cache)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return {}
    return {name: os.path.join(cache, name) for name in names if name.startswith(_KINDS)}
