"""Parts of a sweep that are judged each by itself."""

from pathlib import Path
from types import ModuleType

from sweeper.analysis.blocks import find_blocks
from sweeper.analysis.cells import rank
from sweeper.analysis.frames import load
from sweeper.results.registry import Registry


def test_holes_with_other_settings_each_have_one_order(tmp_path: Path, written: ModuleType):
    """A set of rows is iterated by hashes, which differ from process to process."""
    keys = [f"x{i}" for i in range(6)]
    alone = [({"model": "a", key: "nan"}, [0.5, 0.6]) for key in keys]
    whole = ({"model": "b"} | dict.fromkeys(keys, "nan"), [0.4, 0.5])
    written.measured(tmp_path, [*alone, whole], axes=("model",))
    ranking = rank(load(Registry(str(tmp_path)), "demo", None, None))
    found = find_blocks(ranking, 1.0, "model")
    assert found is not None
    (block,) = [one for one in found.blocks if one.value == "b"]
    assert block.holes == tuple(((key, "nan"),) for key in keys)
