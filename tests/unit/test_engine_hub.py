"""Tokenizers by a model's name, and other names for models."""

import os

import numpy as np
import pytest

from sweeper.engine import hub, tiny
from sweeper.engine.errors import Unknown
from sweeper.engine.models import Models


def test_an_alias_is_the_same_model_by_another_name(tmp_path):
    models = Models(str(tmp_path), aliases={"Qwen/Qwen3-8B": tiny.NAME})
    assert models.names() == [tiny.NAME, "Qwen/Qwen3-8B"]
    alias, own = models.get("Qwen/Qwen3-8B"), models.get(tiny.NAME)
    assert (alias.name, own.name) == ("Qwen/Qwen3-8B", tiny.NAME)
    assert alias.base is own.base and alias.directory == own.directory
    assert models.contexts() == {tiny.NAME: 2048, "Qwen/Qwen3-8B": 2048}
    with pytest.raises(Unknown, match="use tiny/qwen3, Qwen/Qwen3-8B"):
        models.get("Qwen/Qwen3-4B")


@pytest.mark.parametrize(
    ("aliases", "message"),
    [
        ({"a/b": "c/d"}, "there is no model 'c/d'"),
        ({tiny.NAME: tiny.NAME}, "cannot be an alias"),
        ({"../../x": tiny.NAME}, "cannot be an alias"),
        ({"a/b/c": tiny.NAME}, "cannot be an alias"),
        ({"a": tiny.NAME, "b": "a"}, "there is no model 'a'"),
    ],
)
def test_what_cannot_be_an_alias_is_refused(aliases, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        Models(str(tmp_path), aliases=aliases)


def test_a_tokenizer_is_placed_as_the_hub_has_it(tmp_path):
    source, cache = tiny.ensure(str(tmp_path / "models")), str(tmp_path / "hub")
    target = hub.place(cache, "Qwen/Qwen3-8B", source)
    model = tmp_path / "hub" / "models--Qwen--Qwen3-8B"
    revision = (model / "refs" / "main").read_text()
    assert target == str(model / "snapshots" / revision) and len(revision) == 40
    assert sorted(os.listdir(target)) == ["config.json", "tokenizer.json", "tokenizer_config.json"]
    for name in os.listdir(target):
        with open(os.path.join(source, name), "rb") as ours, open(f"{target}/{name}", "rb") as its:
            assert ours.read() == its.read()
    assert hub.place(cache, "Qwen/Qwen3-8B", source) == target
    assert os.listdir(model / "refs") == ["main"] and len(os.listdir(model / "snapshots")) == 1


def test_another_tokenizer_by_the_same_name_is_another_revision(tmp_path):
    sources = [tmp_path / "one", tmp_path / "other"]
    for n, source in enumerate(sources):
        source.mkdir()
        (source / "tokenizer.json").write_text(f"{{}}{' ' * n}")
        (source / "model.safetensors").write_bytes(np.zeros(8).tobytes())
    first, second = (hub.place(str(tmp_path / "hub"), "a/b", str(source)) for source in sources)
    assert first != second and os.listdir(first) == os.listdir(second) == ["tokenizer.json"]
    main = tmp_path / "hub" / "models--a--b" / "refs" / "main"
    assert second.endswith(main.read_text())
