"""Fixtures that more than one kind of test uses."""

import importlib.util
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from sweeper.engine import lifecycle


@pytest.fixture(scope="session")
def written() -> ModuleType:
    """`tests/support/written.py`: sweeps written straight into a store, with a known truth."""
    path = Path(__file__).parent / "support" / "written.py"
    spec = importlib.util.spec_from_file_location("written", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tmux_socket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A tmux server of the test's own, gone afterwards. Its tests skip loudly without tmux."""
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed: `make tmux` gets it")
    name = f"sweeper-test-{uuid.uuid4().hex[:8]}"
    monkeypatch.setenv("SWEEPER_TMUX_SOCKET", name)
    yield name
    subprocess.run(["tmux", "-L", name, "kill-server"], capture_output=True, check=False)


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lifecycle.EngineInfo]:
    """An engine with a home of its own on a free port, for the whole session: `.url`, `.home`."""
    home = str(tmp_path_factory.mktemp("engine-home"))
    with subprocess.Popen(
        lifecycle.command(home), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield lifecycle.wait(home, timeout=60)
        finally:
            process.terminate()
