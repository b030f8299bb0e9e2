"""Tokenizers where `transformers` finds them by a model's name, without a network.

The SDK looks the tokenizer of a base model up by name, as recipes do. With `HF_HOME` pointing at
the engine's home and `HF_HUB_OFFLINE=1` those names lead to a cache laid out as the hub's own:

    <hub>/models--ORG--NAME/refs/main                  the revision
    <hub>/models--ORG--NAME/snapshots/<revision>/      tokenizer.json, config.json and others

Weights are not placed: nobody asks the cache for them.
"""

import contextlib
import hashlib
import os
import shutil
import tempfile

__all__ = ["FILES", "place"]

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
    scratch = f"{reference}.{os.getpid()}"
    with open(scratch, "w", encoding="ascii") as out:
        out.write(revision)
    os.replace(scratch, reference)
    return target
