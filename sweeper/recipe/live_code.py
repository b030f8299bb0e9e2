"""Finds the source files of a recipe that runs without a copy of its code, and hashes these files,
so that runs of different code can be distinguished. Uses only the standard library."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence

from sweeper.sweep.recipe import Recipe

SOURCES = (".py", ".sh", ".bash", ".R", ".jl", ".pl", ".lua", ".js")
_MOST_FOLDERS = 2_000
_MOST_FILES = 2_000
_MOST_BYTES = 1_000_000
"""The limits of a search for source files: folders, files, and bytes of each file. If there are
more folders or files below a folder (it may be a home folder), only the files directly in that
folder count. Of a larger file, only the first `_MOST_BYTES` are hashed."""


def program(recipes: Iterable[Recipe], results: str | None) -> str | None:
    """Return one digest of all source files (see `files`), or None if there are none."""
    return digest(files(recipes, results))


def digest(hashes: Mapping[str, str]) -> str | None:
    """Combine the digests of files into one. Return None if there are no files."""
    if not hashes:
        return None
    text = "".join(f"{name}\0{value}\n" for name, value in sorted(hashes.items()))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def files(recipes: Iterable[Recipe], results: str | None) -> dict[str, str]:
    """Return the digests of the recipes' source files, by path relative to the recipe's folder.
    `results` is a folder of results, which is left out."""
    hashes: dict[str, str] = {}
    for recipe in recipes:
        folders, named = _program(recipe)
        paths = dict.fromkeys([*named, *(path for top in folders for path in _below(top, results))])
        for path in paths:
            try:
                with open(path, "rb") as file:
                    data = file.read(_MOST_BYTES)
            except OSError:
                continue
            hashes[os.path.relpath(path, recipe.cwd)] = hashlib.sha256(data).hexdigest()[:16]
    return hashes


def _program(recipe: Recipe) -> tuple[list[str], list[str]]:
    """Return the folders of the recipe's own modules, and the files that a command names."""
    if recipe.kind != "command":
        folders = [recipe.cwd] if recipe.on_path else []
        folders += [os.path.dirname(recipe.file)] if recipe.kind == "file" and recipe.file else []
        return folders, []
    words: Sequence[str] = recipe.command or []
    named = [path for word in words if (path := _source(recipe.cwd, word)) is not None]
    folders = [os.path.dirname(path) for path in named if path.endswith(".py")]
    return [*folders, *([recipe.cwd] if "-m" in words else [])], named


def _source(cwd: str, word: str) -> str | None:
    path = os.path.normpath(os.path.join(cwd, word))
    below = path.startswith(os.path.join(cwd, ""))
    if not word or "\0" in word:  # No file has such a name.
        return None
    if not (word.endswith(SOURCES) or (below and os.access(path, os.X_OK))):
        return None
    return path if os.path.isfile(path) else None


def _below(top: str, results: str | None) -> list[str]:
    """Return the Python modules in and below a folder. If there are too many files or folders,
    return only the modules directly in the folder."""
    remaining = [_MOST_FOLDERS]
    paths: list[str] = []
    for path in _walk(top, results, remaining):
        paths.append(path)
        if len(paths) > _MOST_FILES:
            remaining[0] = 0
    if remaining[0] > 0:
        return sorted(paths)
    return sorted(path for path in paths if os.path.dirname(path) == top.rstrip("/"))


def _walk(top: str, results: str | None, remaining: list[int]) -> Iterator[str]:
    """Yield the Python modules in `top`, then those in folders below it. `remaining[0]` is the
    number of folders that may still be searched. Hidden folders, environments and results are
    skipped."""
    pending = [top.rstrip("/")]
    while pending and remaining[0] > 0:
        try:
            entries = list(os.scandir(pending.pop(0)))
        except OSError:
            continue
        remaining[0] -= 1
        if any(entry.name in ("pyvenv.cfg", "conda-meta") for entry in entries):
            continue
        for entry in entries:
            if entry.name.startswith(".") or entry.name in ("__pycache__", "node_modules"):
                continue
            if entry.is_dir(follow_symlinks=False):
                if results is None or entry.path != results.rstrip("/"):
                    pending.append(entry.path)
            elif entry.name.endswith(".py"):
                yield entry.path
