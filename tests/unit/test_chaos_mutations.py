"""The mutations that the chaos tests must detect apply to the current code."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_SPEC = importlib.util.spec_from_file_location("mutations", ROOT / "tests/chaos/mutations.py")
mutations = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(mutations)


@pytest.mark.parametrize("mutation", mutations.MUTATIONS, ids=lambda mutation: mutation.name)
def test_each_mutation_fits_the_code(mutation):
    assert (ROOT / mutation.file).read_text().count(mutation.old) == 1
