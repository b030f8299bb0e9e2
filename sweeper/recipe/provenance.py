"""Collects the provenance of a sweep: the facts that are needed to know later what ran, and to run
it again. Long parts are stored as files in `<sweep>/code/`. Secrets are removed."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from sweeper.common.redaction import Redactor, is_secret_name, secret_values
from sweeper.errors import AlreadyExists
from sweeper.recipe.checkout import checkout_of, commit_of, git, sweep_folders
from sweeper.recipe.snapshot import results_in
from sweeper.store.documents import timestamp
from sweeper.sweep.folder import SweepFolder

_SHOWN = (
    *("tinker-sweeper", "tinker", "chz", "tinker-cookbook", "numpy", "torch", "transformers"),
    *("tokenizers", "datasets", "wandb"),
)
_DIFF_BYTES = 1_000_000
_UNTRACKED = 100
_EARLIER = 50
_ESSENCE = ("time", "command", "host", "commit", "dirty", "code", "program", "launch")
_LIST = """
import json, os, sys
names = [n for f in sys.path if os.path.isdir(f) for n in os.listdir(f) if n.endswith('.dist-info')]
print(json.dumps([sys.version.split()[0], names]))
"""
_LIST_SECONDS = 20.0


def collect(
    folder: SweepFolder,
    *,
    cwd: str,
    python: str,
    secrets: Collection[str],
    code: Mapping[str, object],
) -> dict[str, object]:
    """Collect the command line, the host, the recipe's interpreter and its packages, and the commit
    and uncommitted changes of the checkout that contains `cwd`. `secrets` are names of variables.
    The fields of `code` are added to the result. Raises `StoreError`."""
    import platform  # imported late: planning imports this module but does not need it

    redactor = Redactor(secret_values(os.environ, secrets))
    version, packages = _packages(python)
    listing = "".join(f"{name}=={number}\n" for name, number in sorted(packages.items()))
    root = checkout_of(cwd)
    commit = commit_of(root) if root else None
    facts: dict[str, object] = {
        "time": timestamp(),
        "command": redact_command([os.path.basename(sys.argv[0]), *sys.argv[1:]], redactor),
        "host": platform.node(),
        "platform": platform.platform(),
        "python": version,
        "interpreter": python,
        "packages": {name: packages[name] for name in _SHOWN if name in packages},
        "all_packages": _keep(folder, listing.encode(), "packages.txt"),
        "cwd": cwd,
        "typed_in": os.getcwd(),
        "commit": commit,
        "dirty": None,
        **code,
    }
    if root:
        facts |= _changes(folder, root, commit, redactor)
    return facts


def earlier(
    provenance: Mapping[str, object], before: Sequence[Mapping[str, object]]
) -> list[Mapping[str, object]]:
    """Return a summary of each of the last 50 launches (its command line, host and code), newest
    first. `provenance` belongs to the newest launch, and `before` has the summaries of the older
    launches."""
    essence = {key: provenance.get(key) for key in _ESSENCE}
    return [essence, *before][:_EARLIER]


def redact_command(command: Sequence[str], redactor: Redactor) -> list[str]:
    """Make a command line safe to show: mask the values of `--api-key=...`, `--token ...` and
    `password=...`, and the value of any secret."""
    shown: list[str] = []
    masked = False
    for argument in command:
        name, separator, value = argument.partition("=")
        if masked and not argument.startswith("-"):
            shown.append("***")
        elif separator and value and is_secret_name(name):
            shown.append(f"{name}=***")
        else:
            shown.append(redactor.text(argument))
        masked = not separator and argument.startswith("--") and is_secret_name(argument)
    return shown


def _changes(
    folder: SweepFolder, root: str, commit: str | None, redactor: Redactor
) -> dict[str, object]:
    """Return fields about the differences between the working tree and the commit. `dirty` is None
    if git failed and no difference was found."""
    options = ("--no-color", "--no-ext-diff", "--no-textconv", "--submodule=diff")
    results = results_in(folder.store, root, folder.name)
    changed = _split(git(root, "diff", "--name-only", "-z", "HEAD")) if commit else []
    results += [os.path.join(root, folder, "") for folder in sweep_folders(root, changed)]
    inside = [os.path.relpath(folder, os.path.realpath(root)) for folder in results]
    without = [f":(exclude,literal){folder}" for folder in inside if not folder.startswith("..")]
    differs = git(root, "diff", *options, "HEAD", "--", ".", *without) if commit else b""
    listed = git(root, "ls-files", "-z", "--others", "--exclude-standard")
    is_known = differs is not None and listed is not None
    diff = differs or b""
    untracked: list[str] = []
    names = [name for name in _split(listed) if "__pycache__" not in name.split("/")]
    others = [*results, *(os.path.join(root, f, "") for f in sweep_folders(root, names))]
    real = os.path.realpath(root)
    names = [n for n in names if not os.path.join(real, n).startswith(tuple(others))]
    for name in names[:_UNTRACKED]:
        with suppress(OSError):
            size = os.lstat(os.path.join(root, name)).st_size
            untracked.append(f"{name.encode('utf-8', 'replace').decode()} ({size} bytes)")
    text = f"commit {commit}\n\n" + diff[:_DIFF_BYTES].decode("utf-8", "replace")
    whole = len(diff) <= _DIFF_BYTES
    if not whole:
        text += f"\n... and {len(diff) - _DIFF_BYTES} bytes more\n"
    path: str | None = None
    if commit and differs is not None:
        path = _keep(folder, redactor.text(text).encode(), "diff")
    return {
        "dirty": bool(diff or names) or (False if is_known else None),
        "diff": {"path": path, "bytes": len(diff), "whole": whole} if path else None,
        "untracked": untracked,
        "untracked_more": max(0, len(names) - _UNTRACKED),
    }


def _split(listed: bytes | None) -> list[str]:
    return [os.fsdecode(name) for name in (listed or b"").split(b"\0") if name]


def _keep(folder: SweepFolder, data: bytes, ending: str) -> str:
    """Store data in the sweep's folder, in a file named by a hash of the data. Return the file's
    path in the store."""
    path = folder.code(f"{hashlib.sha256(data).hexdigest()[:16]}.{ending}")
    if not folder.store.exists(path):
        with suppress(AlreadyExists):
            folder.store.create(path, data)
    return path


def _packages(python: str) -> tuple[str | None, dict[str, str]]:
    """Return the version of an interpreter, and of each package on its path. Versions are read from
    folder names. Return (None, {}) if the interpreter does not answer."""
    try:
        result = subprocess.run(
            [python, "-c", _LIST],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LIST_SECONDS,
            check=True,
            cwd="/",
        )
        version, names = json.loads(result.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None, {}
    versions: dict[str, str] = {}
    for name in names:
        package, _, number = str(name).removesuffix(".dist-info").partition("-")
        versions.setdefault(package.lower().replace("_", "-"), number)
    return version, versions
