"""What a launch gives its jobs to take along to machines that have Python and nothing else, for
`launch.requirements`: sweeper's own source, and which packages its workers reach the store with.
`sweeper/worker/bare.py` is what they do with it.

The source is that of the launcher's own sweeper, in the store as
`<sweep>/code/sweeper-<hash>.zip`; the packages are pinned as they are here. The recipe's
requirements are a file of the checkout, and come with the copy of the code.
"""

import ast
import functools
import hashlib
import io
import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress

from sweeper.errors import AlreadyExists, UsageError
from sweeper.model.plan import Carried, Plan
from sweeper.provenance import snapshot
from sweeper.provenance.requirements import read
from sweeper.storage.files import Store
from sweeper.storage.layout import Layout

__all__ = ["bare_command", "carry", "describe", "pinned"]

_TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def carry(store: Store, plan: Plan, made: snapshot.Made) -> Carried | None:
    """Put into the store what the plan's jobs take along; None where they need nothing. Raises
    `UsageError` for a file of requirements that is not in the copy of the code."""
    asked = dict.fromkeys(filter(None, (part.launch.requirements for part in plan.parts)))
    if not asked:
        return None
    files: dict[str, str] = {}
    for name in asked:
        path = os.path.realpath(os.path.expanduser(name))
        root = "" if made.kept is None else made.kept.root
        below = os.path.relpath(path, root or "/")
        if not root or below.startswith("..") or below in made.linked:
            why = made.why or "it lies outside, is too large, or has a secret's value in it"
            raise UsageError(f"launch.requirements: {name} is not in the copy of the code: {why}")
        files[name] = below
    carried = describe(store, plan)._replace(files=files)
    if not store.exists(carried.archive):
        with suppress(AlreadyExists):
            store.create(carried.archive, _source())
    return carried


def describe(store: Store, plan: Plan) -> Carried:
    """The same as far as it is known before it is in the store. Raises `UsageError`."""
    digest = hashlib.sha256(_source()).hexdigest()[:32]
    options: dict[str, None] = {}
    for part in plan.parts:
        name = part.launch.requirements
        found = read(os.path.expanduser(name)) if name else None
        if found is not None and found.mistakes:
            raise UsageError(f"launch.requirements: {found.mistakes[0]}")
        options |= dict.fromkeys(found.options if found else ())
    archive = Layout(plan.name).code(f"sweeper-{digest}.zip")
    return Carried(archive, digest, (*options, *pinned(_packages(store.root))), {})


def _packages(root: str) -> list[str]:
    if "://" not in root:
        return []
    from sweeper.storage.remote import packages_of

    return packages_of(root)


def pinned(packages: Sequence[str]) -> list[str]:
    """Requirements for packages and all that they need, of the versions that are here."""
    from importlib.metadata import PackageNotFoundError, distribution

    found: dict[str, str] = {}
    left = list(packages)
    while left:
        name = re.sub(r"[-_.]+", "-", left.pop()).lower()
        if name in found:
            continue
        try:
            there = distribution(name)
        except PackageNotFoundError:  # for other systems, or other versions of Python
            continue
        found[name] = there.version
        for text in there.requires or ():
            needed = re.match(r"[A-Za-z0-9._-]+", text)
            if needed and not re.search(r";.*\bextra\s*==", text):
                left.append(needed[0])
    return [f"{name}=={version}" for name, version in sorted(found.items())]


@functools.cache
def _source() -> bytes:
    """The package sweeper as it lies here, as a zip file: the same bytes for the same files."""
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
    """The beginning of a command line that makes a worker out of Python alone; a module of
    sweeper's and its arguments follow."""
    setup = {
        "requirements": "\n".join([*carried.packages, ""]),
        "source": f"{root}/{carried.archive}",
        "digest": carried.hash,
    }
    return [python, "-I", "-c", _text(), json.dumps(setup)]


@functools.cache
def _text() -> str:
    """`worker/bare.py` as one text that needs nothing of ours: without what is for people, and with
    the functions in it that it imports of sweeper."""
    tree = _parsed("sweeper.worker.bare")
    body: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("sweeper"):
            names = {alias.name for alias in node.names}
            theirs = _parsed(str(node.module)).body
            body += (f for f in theirs if isinstance(f, ast.FunctionDef) and f.name in names)
        else:
            body.append(node)
    tree.body = body
    text = ast.unparse(ast.fix_missing_locations(_Bare().visit(tree)))
    # AWS Batch takes 8 KB of all that is said of a job.
    return re.sub(r"(?m)^ +", lambda blanks: " " * (len(blanks[0]) // 4), text)


def _parsed(module: str) -> ast.Module:
    path = os.path.join(_TOP, *module.split(".")[1:])
    with open(f"{path}.py", encoding="utf-8") as file:
        return ast.parse(file.read())


class _Bare(ast.NodeTransformer):
    """Takes out docstrings and types, which only people read."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
        return None if isinstance(node.value, ast.Constant) else node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns = None
        for argument in (*node.args.args, *node.args.kwonlyargs):
            argument.annotation = None
        self.generic_visit(node)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        self.generic_visit(node)
        node.body = node.body or [ast.Pass()]
        return node
