"""Fixtures that more than one kind of test uses."""

import shutil
import subprocess
import uuid
from collections.abc import Iterator

import pytest


@pytest.fixture
def tmux_socket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A tmux server of the test's own, gone afterwards. Its tests skip loudly without tmux."""
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed: `make tmux` gets it")
    name = f"sweeper-test-{uuid.uuid4().hex[:8]}"
    monkeypatch.setenv("SWEEPER_TMUX_SOCKET", name)
    yield name
    subprocess.run(["tmux", "-L", name, "kill-server"], capture_output=True, check=False)
