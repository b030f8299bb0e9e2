"""Checkpoints on disk: complete or not at all, and only under their root."""

import json
import os
import re

import numpy as np
import pytest

from sweeper.engine.checkpoints import Checkpoint, Place, Vault, parse
from sweeper.engine.errors import RequestError, Unknown
from sweeper.engine.lora import LoraConfig
from sweeper.engine.optimizer import Moments

RUN = "0a1b-22:train:0"
PLACE = Place(RUN, "weights", "000010")


def checkpoint(value=1.0, moments=True):
    arrays = {"0.q.A": np.full((2, 3), value, np.float32), "head.B": np.zeros((4, 2), np.float32)}
    held = Moments({"head.B": arrays["head.B"] + 5}, {"head.B": arrays["head.B"] + 6}, 7)
    config = LoraConfig(rank=2, seed=None)
    return Checkpoint("m", config, arrays, held if moments else None, {"k": "v"})


@pytest.fixture
def root(tmp_path):
    return tmp_path / "checkpoints"


@pytest.fixture
def vault(root):
    return Vault(str(root))


@pytest.fixture
def folder(root):
    """Return the folder of the files of `PLACE`."""
    return root / "0a1b-22@train@0" / "weights"


def assert_same(actual, expected):
    assert actual._replace(adapter=None, moments=None) == expected._replace(
        adapter=None, moments=None
    )
    pairs = [(actual.adapter, expected.adapter)]
    if expected.moments is None:
        assert actual.moments is None
    else:
        assert actual.moments.steps == expected.moments.steps
        pairs += zip(actual.moments[:2], expected.moments[:2], strict=True)
    for a, b in pairs:
        assert set(a) == set(b)
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])
            assert a[name].dtype == b[name].dtype


@pytest.mark.parametrize("moments", [True, False])
def test_saved_checkpoints_are_loaded(vault, root, moments):
    vault.save(PLACE, checkpoint(moments=moments))
    assert_same(Vault(str(root)).load(PLACE), checkpoint(moments=moments))


def test_a_name_is_taken_once_unless_overwritten(vault, folder):
    vault.save(PLACE, checkpoint(1.0))
    with pytest.raises(RequestError, match="exists"):
        vault.save(PLACE, checkpoint(2.0))
    assert_same(vault.load(PLACE), checkpoint(1.0))
    vault.save(PLACE, checkpoint(2.0), overwrite=True)
    assert_same(vault.load(PLACE), checkpoint(2.0))
    assert len(os.listdir(folder)) == 2  # the old arrays are gone


def test_a_save_that_is_cut_short_leaves_what_was_there(vault, monkeypatch):
    vault.save(PLACE, checkpoint(1.0))

    def cut(*_):
        raise OSError("disk full")

    with monkeypatch.context() as full:
        full.setattr(os, "replace", cut)
        with pytest.raises(OSError, match="disk full"):
            vault.save(PLACE, checkpoint(2.0), overwrite=True)
        with pytest.raises(OSError, match="disk full"):
            vault.save(PLACE._replace(name="new"), checkpoint(2.0))
    assert_same(vault.load(PLACE), checkpoint(1.0))
    assert [entry.place.name for entry in vault.entries(RUN)] == ["000010"]


def test_listing_and_deleting(vault, folder):
    assert vault.runs() == [] and vault.entries(RUN) == []
    vault.save(PLACE, checkpoint())
    vault.save(Place(RUN, "sampler_weights", "final"), checkpoint(moments=False))
    assert vault.runs() == [RUN]
    assert [str(entry.place) for entry in vault.entries(RUN)] == [
        f"tinker://{RUN}/weights/000010",
        f"tinker://{RUN}/sampler_weights/final",
    ]
    vault.delete(PLACE)
    with pytest.raises(Unknown, match="no checkpoint"):
        vault.load(PLACE)
    with pytest.raises(Unknown):
        vault.delete(PLACE)
    assert os.listdir(folder) == []


def test_an_expired_checkpoint_does_not_exist(vault):
    vault.save(PLACE, checkpoint(), ttl_seconds=-1)
    with pytest.raises(Unknown, match="expired"):
        vault.load(PLACE)
    assert vault.entries(RUN) == []
    vault.save(PLACE, checkpoint(2.0))  # its name is free again
    assert_same(vault.load(PLACE), checkpoint(2.0))


def test_only_expired_checkpoints_are_deleted(vault, folder):
    lasting = PLACE._replace(name="lasting")
    vault.save(PLACE, checkpoint(), ttl_seconds=-1)
    vault.save(lasting, checkpoint(), ttl_seconds=3600)
    young, old = os.path.join(folder, "x.1234.npz"), os.path.join(folder, "y.json.1234.tmp")
    for path in (young, old):
        with open(path, "w"):
            pass
    os.utime(old, (1, 1))
    assert vault.purge() == [PLACE] and vault.purge() == []
    assert len(os.listdir(folder)) == 3 and os.path.exists(young)
    assert_same(vault.load(lasting), checkpoint())


def test_a_time_to_live_can_be_given_and_taken(vault):
    vault.save(PLACE, checkpoint(), ttl_seconds=100)
    vault.expire(PLACE, None)
    assert vault.entry(PLACE).document.expires is None
    assert_same(vault.load(PLACE), checkpoint())
    vault.expire(PLACE, -1)
    for attempt in (vault.load, lambda place: vault.expire(place, 100)):
        with pytest.raises(Unknown, match="expired"):
            attempt(PLACE)


@pytest.mark.parametrize(
    "path",
    [
        "tinker://../weights/x", "tinker://run/weights/..", "tinker://run/weights/a/b",
        "tinker://run/other/x", "tinker://run/weights/.hidden", "tinker://run/weights/",
        "tinker://run/weights/x\n", "/etc/passwd", "",
    ],
)  # fmt: skip
def test_invalid_checkpoint_paths_are_refused(vault, path):
    with pytest.raises(RequestError, match="not a checkpoint's path"):
        parse(path)


def test_a_bad_name_is_not_written(vault, tmp_path):
    with pytest.raises(RequestError):
        vault.save(PLACE._replace(name="../../escaped"), checkpoint())
    assert os.listdir(tmp_path) == []
    assert vault.entries("../..") == []


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"created": "x"}, 'created: should be a number, not "x"'),
        ({"data": "../../../victim"}, "data: should be the name of a file in the same folder"),
        ({"lora": None}, "lora: should be an object, not null"),
    ],
)
def test_a_damaged_checkpoint_hides_no_other_and_loses_nothing(vault, root, folder, change, what):
    """Once, its arrays were deleted as unused after an hour, and listings failed."""
    vault.save(PLACE, checkpoint())
    vault.save(PLACE._replace(name="good"), checkpoint())
    path = folder / "000010.json"
    with open(path) as file:
        before = json.load(file)
    with open(path, "w") as file:
        json.dump(before | change, file)
    victim = root.parent / "victim"
    with open(victim, "w"):
        os.utime(victim, (1, 1))
    arrays = folder / before["data"]
    os.utime(arrays, (1, 1))
    assert [entry.place.name for entry in vault.entries(RUN)] == ["good"]
    with pytest.raises(RequestError, match=re.escape(what)):
        vault.load(PLACE)
    assert vault.purge() == []
    assert os.path.exists(arrays) and os.path.exists(victim)
    vault.save(PLACE, checkpoint(2.0), overwrite=True)
    assert_same(vault.load(PLACE), checkpoint(2.0))
