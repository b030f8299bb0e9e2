"""The tests' own conftest.py, in the environment of somebody who uses AWS behind a proxy, and whose
sweeps are not to be touched."""

import importlib.util
import os
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"


def test_no_profile_and_no_proxy_of_the_user_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"AWS_PROFILE": "nosuch", "HTTP_PROXY": "http://127.0.0.1:9", "no_proxy": "intranet"}
    own = {"HOME": "/home/somebody", "SWEEPER_ROOT": "/theirs", "PYTEST_XDIST_WORKER": "gw0"}
    monkeypatch.setattr(os, "environ", given | own)
    spec = importlib.util.spec_from_file_location("conftest_again", CONFTEST)
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert "AWS_PROFILE" not in os.environ
    assert os.environ["AWS_CONFIG_FILE"] == os.devnull
    assert os.environ["AWS_EC2_METADATA_DISABLED"] == "true"
    assert os.environ["NO_PROXY"] == "127.0.0.1,localhost"
    assert os.environ["no_proxy"] == "intranet,127.0.0.1,localhost"
    assert "SWEEPER_ROOT" not in os.environ
    assert os.environ["HOME"] == "/home/somebody"  # the one that all workers of pytest share
