"""Notes, archives and deletions behave the same on every kind of store."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sweeper.errors import EnvironmentFailure, NotFound, StoreError
from sweeper.launcher import environment_cleanup
from sweeper.results import annotations
from sweeper.results.registry import Registry
from sweeper.store.documents import encode
from sweeper.store.opening import open_store
from sweeper.sweep import environment_file
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.lock import holding_sweep


@pytest.fixture(params=["folder", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    if request.param == "s3":
        return request.getfixturevalue("s3_root")
    return str(tmp_path / "root")


@pytest.fixture
def make(root: str) -> Callable[[str], None]:
    def sweep(name: str) -> None:
        store = open_store(root)
        run = {"id": "0" * 12, "name": "lr=1", "cell": "lr=1", "seed": None, "config": {"lr": 1}}
        plan = {"schema": 1, "name": name, "recipe": {}, "launch": {}, "runs": [run]}
        store.create(f"{name}/state/{run['id']}/1.succeeded.json", encode({"schema": 1}))
        store.create(f"{name}/runs/{run['id']}.1/metrics.jsonl", b'{"step": 0}\n')
        store.create(f"{name}/sweep.json", encode(plan))

    return sweep


def test_notes_archive_and_delete(root: str, make: Callable[[str], None]) -> None:
    make("one")
    make("two")
    annotations.note("one", "first", root=root, tag=["b", "a"])
    assert annotations.note("one/lr=1", "second", root=root, star=True).starred
    annotation = annotations.note("one", "third", root=root, untag=["b"])
    assert [note.text for note in annotation.notes] == ["first", "third"] and annotation.tags == (
        "a",
    )
    assert annotations.archive("one", root=root) and not annotations.archive("one", root=root)
    assert [sweep["sweep"] for sweep in Registry(root).sweep_records()] == ["two"]
    annotations.delete("one", root=root)
    assert Registry(root).sweep_names() == ["two"]
    assert list(open_store(root).names("one")) == []
    with pytest.raises(NotFound):
        annotations.delete("one", root=root)


def test_no_launch_after_an_interrupted_deletion(
    root: str, make: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise runs without results would count as succeeded and never run again."""
    make("one")

    def cut_off(folder: SweepFolder) -> None:
        folder.store.remove(folder.store.names(folder.runs))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(annotations, "clear", cut_off)
        annotations.delete("one", root=root)
    folder = SweepFolder(open_store(root), "one")
    with (
        pytest.raises(StoreError, match=r"deletion of .* was interrupted.*delete one"),
        holding_sweep(folder),
    ):
        pass
    annotations.delete("one", root=root)
    assert list(open_store(root).names("one")) == []


def test_rename_needs_a_store_that_moves_folders(root: str, make: Callable[[str], None]) -> None:
    make("one")
    if open_store(root).is_remote:
        with pytest.raises(EnvironmentFailure, match="cannot move folders"):
            annotations.rename("one", "other", root=root)
        assert Registry(root).sweep_names() == ["one"]
    else:
        annotations.rename("one", "other", root=root)
        assert Registry(root).sweep_names() == ["other"]


@pytest.mark.parametrize("change", ["rename", "delete"])
def test_rename_and_delete_forget_the_kept_environment(
    root: str, make: Callable[[str], None], change: str
) -> None:
    """Otherwise a launch would look for the sweep on a disk that is not mounted."""
    store = open_store(root)
    if store.is_remote and change == "rename":
        pytest.skip("no folder is moved there")
    make("one")
    environment = environment_file.write(f"{store.root}/one", {})
    if change == "rename":
        annotations.rename("one", "other", root=root)
    else:
        annotations.delete("one", root=root)
    assert not Path(environment).exists()
    # The name can be used again.
    environment_cleanup.refuse_if_folder_missing(SweepFolder(store, "one"))
