"""The separate Python environments of some tests, which the Makefile installs."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def environment(name: str) -> Path:
    """Return the folder of the environment that `make NAME` installs."""
    return ROOT / f".venv-{name}"


def needs(name: str, package: str) -> pytest.MarkDecorator:
    """Return the mark of tests that are skipped without a package in an environment."""
    return pytest.mark.skipif(
        not (environment(name) / ".installed").exists(),
        reason=f"there is no {package} in .venv-{name}: `make {name}` installs it",
    )
