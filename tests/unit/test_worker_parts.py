"""What the worker does to files before and after the recipe runs."""

from pathlib import Path

import pytest

from sweeper.layout import Layout
from sweeper.seeding import has_final_checkpoint, read_records, seed
from sweeper.store import LocalStore


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path))


def _attempt(store: LocalStore, number: int, **files: str) -> Path:
    folder = Path(store.root, Layout("s").log_path("r", number))
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


def test_the_nearest_earlier_attempt_is_copied(store: LocalStore) -> None:
    _attempt(store, 1, checkpoints_jsonl='{"name": "old"}\n')
    _attempt(store, 2, checkpoints_jsonl='{"name": "new"}\n{"na', config_json="{}")
    _attempt(store, 3)  # ended before it had been seeded itself
    target = _attempt(store, 5)  # the fourth never made a folder
    assert seed(store, Layout("s"), "r", 5, "auto") == 2
    assert (target / "checkpoints.jsonl").read_text() == '{"name": "new"}\n'
    assert (target / "config.json").read_text() == "{}"


@pytest.mark.parametrize(("mode", "copied"), [("auto", None), ("always", 1)])
def test_without_a_checkpoint(store: LocalStore, mode: str, copied: int | None) -> None:
    _attempt(store, 1, metrics_jsonl='{"step": 0}\n')
    target = _attempt(store, 2)
    assert seed(store, Layout("s"), "r", 2, mode) == copied
    assert (target / "metrics.jsonl").exists() is (mode == "always")


def test_the_first_attempt_has_nothing_to_start_from(store: LocalStore) -> None:
    _attempt(store, 1)
    assert seed(store, Layout("s"), "r", 1, "auto") is None


@pytest.mark.parametrize(
    ("text", "final"),
    [
        (None, None),
        ("", False),
        ('{"name": "000010"}\n', False),
        ('{"name": "000010"}\n{"name": "x", "final": true}\n', True),
        ('{"name": "final"}\n', True),
        ('{"name": "final"}\n{"name": "000020"}\n', False),
        ('{"name": "final"}\n{"torn', True),
        ("[1, 2]\nnonsense\n", False),
    ],
)
def test_final_checkpoints(tmp_path: Path, text: str | None, final: bool | None) -> None:
    if text is not None:
        (tmp_path / "checkpoints.jsonl").write_text(text)
    assert has_final_checkpoint(str(tmp_path)) is final


def test_records_of_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert read_records(str(tmp_path / "none")) == []
