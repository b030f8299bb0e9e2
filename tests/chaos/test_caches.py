"""Cached data of runs agree with their files; `caches.py` tries many more sequences."""

from pathlib import Path

import pytest
from harness.readings import check


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_to_files_the_verbs_say_what_is_in_them(memory: Path, seed: int):
    assert check(memory, seed) == []
