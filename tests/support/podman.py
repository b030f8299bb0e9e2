"""A podman with a separate store, and root folders with programs of this machine."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest


def podman(*words: str, **options: Any) -> str:
    return subprocess.run(
        ["podman", *words], capture_output=True, text=True, timeout=120, check=True, **options
    ).stdout


def configure(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Make podman keep all its files in `folder`. Skips if podman is not installed."""
    if shutil.which("podman") is None:
        pytest.skip("there is no podman: `make podman` installs it")
    runtime = "crun" if shutil.which("runc") is None else "runc"
    (folder / "containers.conf").write_text(
        f'[engine]\nruntime = "{runtime}"\ncgroup_manager = "cgroupfs"\nevents_logger = "none"\n'
    )
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/store"\nrunroot = "{folder}/run"\n'
    )
    patch.setenv("CONTAINERS_CONF", str(folder / "containers.conf"))
    patch.setenv("CONTAINERS_STORAGE_CONF", str(folder / "storage.conf"))


def copy_with_libraries(root: Path, programs: Sequence[str]) -> list[str]:
    """Copy programs of this machine and their libraries below a root. Return the paths of the
    programs."""
    paths = [shutil.which(name) or "" for name in programs]
    listing = subprocess.run(["ldd", *paths], capture_output=True, text=True, check=True).stdout
    for path in {*paths, *re.findall(r"(/\S+)(?= \(0x)", listing)}:
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    return paths


def copy_programs(root: Path, programs: Sequence[str]) -> None:
    """Make a root with these programs of this machine, bash first, and their libraries."""
    paths = copy_with_libraries(root, programs)
    for name in ("bin/bash", "bin/sh", "usr/bin/sh"):
        if not (root / name).exists():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(paths[0], root / name)
    for name in ("tmp", "root", "etc"):
        (root / name).mkdir(exist_ok=True)


def copy_python(root: Path) -> None:
    """Add the system's Python to a root, with its standard library. Skips if there is none."""
    python = Path("/usr/bin/python3").resolve()
    library = Path("/usr/lib") / python.name
    if not library.is_dir():
        pytest.skip("/usr/bin/python3 has no standard library in /usr/lib")
    files = [python, *library.glob("lib-dynload/*.so")]
    listing = subprocess.run(["ldd", *files], capture_output=True, text=True, check=True).stdout
    for path in {str(python), *re.findall(r"(/\S+)(?= \(0x)", listing)}:
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    shutil.copy(python, root / "usr/bin/python3")
    skipped = shutil.ignore_patterns("test", "dist-packages", "__pycache__", "idlelib", "config-*")
    shutil.copytree(library, root / str(library).lstrip("/"), ignore=skipped)
