"""Where a sweep came from: enough to tell later what ran, and to run it again."""

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

__all__ = ["collect"]

_PACKAGES = ("sweeper", "tinker", "chz", "tinker-cookbook", "numpy")


def collect(cwd: str) -> dict[str, Any]:
    """Command line, host, Python, versions of the packages that matter, and the git commit of
    `cwd` with whether its files differed from it (None outside a checkout)."""
    changes = _git(cwd, "status", "--porcelain")
    return {
        "command": [os.path.basename(sys.argv[0]), *sys.argv[1:]],
        "host": platform.node(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
        "commit": _git(cwd, "rev-parse", "HEAD"),
        "dirty": None if changes is None else bool(changes),
        "cwd": cwd,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git(cwd: str, *arguments: str) -> str | None:
    """What git prints; None when there is no git, no checkout, or no answer in 10 s."""
    try:
        result = subprocess.run(
            ["git", *arguments], cwd=cwd, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None
