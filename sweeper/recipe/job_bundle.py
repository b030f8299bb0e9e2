"""Prepares jobs for machines that have only Python (`launch.requirements`): uploads sweeper's
source and lists the packages that workers need. `sweeper/worker/bare_machine.py` installs them."""

import ast
import base64
import functools
import hashlib
import io
import json
import os
import re
import zlib
from collections.abc import Sequence
from contextlib import suppress

from sweeper.errors import AlreadyExists, UsageError
from sweeper.recipe import snapshot
from sweeper.recipe.requirements import read
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.plan import Carried, Plan

_TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_FIRST = """import sys
if sys.version_info < (3, 11):
    python = (sys.executable, sys.version.split()[0])
    sys.exit("sweeper: needs Python 3.11, and %%s is %%s" %% python)
sys.path[:] = [path for path in sys.path if path]
import base64, zlib
exec(zlib.decompress(base64.b64decode("%s")))
"""
"""The first code of a job, which every Python version can parse. The rest of the code is compressed
and encoded, because AWS Batch limits the description of a job to 8 KB, and Kubernetes interprets
`$`. The working folder is removed from `sys.path`, since the folder's modules belong to the
recipe."""


def carry(folder: SweepFolder, plan: Plan, code: snapshot.CodeCopy) -> Carried | None:
    """Upload sweeper's source for jobs on machines that have only Python. Return None if the plan
    has no such jobs. Raises `UsageError` for a requirements file that has mistakes or is not in the
    copy of the code."""
    paths = dict.fromkeys(filter(None, (part.launch.requirements for part in plan.parts)))
    if not paths:
        return None
    files: dict[str, str] = {}
    for name in paths:
        path = os.path.realpath(os.path.expanduser(name))
        root = "" if code.snapshot is None else code.snapshot.root
        below = os.path.relpath(path, root or "/")
        if not root or below.startswith("..") or below in code.linked:
            why = (
                code.why
                or "it lies outside the checkout, is too large, or contains a secret's value"
            )
            raise UsageError(f"launch.requirements: {name} is not in the copy of the code: {why}")
        files[name] = below
    carried = describe(folder, plan)._replace(files=files)
    if not folder.store.exists(carried.archive):
        with suppress(AlreadyExists):
            folder.store.create(carried.archive, _source())
    return carried


def describe(folder: SweepFolder, plan: Plan) -> Carried:
    """Return what `carry` returns, but upload nothing and leave `files` empty. Raises `UsageError`
    for a requirements file with mistakes."""
    digest = hashlib.sha256(_source()).hexdigest()[:32]
    options: dict[str, None] = {}
    for part in plan.parts:
        name = part.launch.requirements
        text = read(os.path.expanduser(name)) if name else None
        if text is not None and text.mistakes:
            raise UsageError(f"launch.requirements: {text.mistakes[0]}")
        options |= dict.fromkeys(text.options if text else ())
    archive = folder.code(f"sweeper-{digest}.zip")
    return Carried(archive, digest, (*options, *pinned(_packages(folder.store.root))), {})


def _packages(root: str) -> list[str]:
    if "://" not in root:
        return []
    from sweeper.store.remote import packages_of

    return packages_of(root)


def pinned(packages: Sequence[str]) -> list[str]:
    """Return requirements for packages and their dependencies, pinned to the versions installed
    here. Leave out packages that are not installed here."""
    from importlib.metadata import PackageNotFoundError, distribution

    versions: dict[str, str] = {}
    pending = list(packages)
    while pending:
        name = re.sub(r"[-_.]+", "-", pending.pop()).lower()
        if name in versions:
            continue
        try:
            installed = distribution(name)
        except PackageNotFoundError:  # for other systems or other versions of Python
            continue
        versions[name] = installed.version
        for text in installed.requires or ():
            needed = re.match(r"[A-Za-z0-9._-]+", text)
            if needed and not re.search(r";.*\bextra\s*==", text):
                pending.append(needed[0])
    return [f"{name}=={version}" for name, version in sorted(versions.items())]


@functools.cache
def _source() -> bytes:
    """Return the installed package sweeper as a zip file: the same bytes for the same files."""
    import zipfile

    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as packed:
        for folder, folders, names in os.walk(_TOP, followlinks=True):
            folders[:] = sorted(name for name in folders if name != "__pycache__")
            for name in sorted(names):
                path = os.path.join(folder, name)
                entry = zipfile.ZipInfo(f"sweeper/{os.path.relpath(path, _TOP)}")
                entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                with open(path, "rb") as file:
                    packed.writestr(entry, file.read())
    return written.getvalue()


def bare_command(python: str, root: str, carried: Carried) -> list[str]:
    """Return a command that runs sweeper on a machine with only Python. The caller appends a module
    of sweeper and the module's arguments. The command installs a Python environment and sweeper's
    source in sweeper's home on the machine. Later commands use them again."""
    setup = {
        "requirements": "\n".join([*carried.packages, ""]),
        "source": f"{root}/{carried.archive}",
        "digest": carried.hash,
    }
    packed = base64.b64encode(zlib.compress(_text().encode(), 9)).decode()
    return [python, "-Es", "-c", _FIRST % packed, json.dumps(setup)]


@functools.cache
def _text() -> str:
    """Return the source of `worker/bare_machine.py`, with its imports of sweeper replaced by the
    source of the imported functions. `ast.unparse` is not used, since older versions of Python
    cannot parse its output."""
    tree, lines = _parsed("sweeper.worker.bare_machine")
    for node in reversed(tree.body):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("sweeper"):
            names = {alias.name for alias in node.names}
            imported_lines, module_text = _parsed(str(node.module))
            lines[node.lineno - 1 : node.end_lineno] = [
                line
                for f in imported_lines.body
                if isinstance(f, ast.FunctionDef) and f.name in names
                for line in module_text[f.lineno - 1 : f.end_lineno]
            ]
    # Annotations are not evaluated, since the types in the copied functions are not imported.
    return "\n".join(["from __future__ import annotations", *lines, ""])


def _parsed(module: str) -> tuple[ast.Module, list[str]]:
    """Return the syntax tree of a module of sweeper, and the module's lines without docstrings."""
    path = os.path.join(_TOP, *module.split(".")[1:])
    with open(f"{path}.py", encoding="utf-8") as file:
        text = file.read()
    tree, lines = ast.parse(text), text.splitlines()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            for number in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                lines[number - 1] = ""
            lines[node.lineno - 1] = f"{' ' * node.col_offset}pass"
    return tree, lines
