"""Tokenizers by a model's name, and other names for models."""

import os
from pathlib import Path

import numpy as np
import pytest

from sweeper.engine import hub, model_aliases, tiny
from sweeper.engine.errors import Unknown
from sweeper.engine.models import Models


def test_an_alias_is_the_same_model_by_another_name(tmp_path):
    models = Models(str(tmp_path), aliases={"Qwen/Qwen3-8B": tiny.TINY})
    assert models.names() == [*tiny.BUILT_IN, "Qwen/Qwen3-8B"]
    alias, model = models.get("Qwen/Qwen3-8B"), models.get(tiny.TINY)
    assert (alias.name, model.name) == ("Qwen/Qwen3-8B", tiny.TINY)
    assert alias.base is model.base and alias.directory == model.directory
    assert models.contexts() == dict.fromkeys(models.names(), 16384)
    with pytest.raises(Unknown, match="use tiny/qwen3, tiny/teacher, Qwen/Qwen3-8B"):
        models.get("Qwen/Qwen3-4B")


@pytest.mark.parametrize(
    ("aliases", "message"),
    [
        ({"a/b": "c/d"}, "no model 'c/d'"),
        ({tiny.TINY: tiny.TINY}, "cannot be an alias"),
        ({"../../x": tiny.TINY}, "cannot be an alias"),
        ({"a/b/c": tiny.TINY}, "cannot be an alias"),
        ({"a": tiny.TINY, "b": "a"}, "no model 'a'"),
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


def repository(cache, name, text):
    (cache / name).mkdir(parents=True)
    (cache / name / "file").write_text(text)


def shown(view):
    return {name: Path(view, name, "file").read_text() for name in os.listdir(view)}


def test_a_view_shows_the_engines_names_and_beside_them_the_users(tmp_path):
    ours, theirs, views = tmp_path / "hub", tmp_path / "cache", str(tmp_path / "views")
    repository(ours, "models--a--b", "engine's")
    repository(theirs, "models--a--b", "user's")
    repository(theirs, "datasets--c--d", "user's")
    repository(theirs, "version.txt", "no repository")
    expected = {"models--a--b": "engine's", "datasets--c--d": "user's"}
    view = hub.view(str(ours), str(theirs), views)
    assert shown(view) == expected
    assert hub.view(str(ours), str(theirs), views) == view and shown(view) == expected
    # a program's own folder stays; folders that are gone leave the view
    repository(tmp_path / "views" / os.path.basename(view), "datasets--e--f", "program's")
    (theirs / "datasets--c--d").rename(theirs / "models--g--h")
    (ours / "models--a--b").rename(ours / "models--i--j")
    assert hub.view(str(ours), str(theirs), views) == view
    assert shown(view) == {
        "models--a--b": "user's",
        "models--g--h": "user's",
        "models--i--j": "engine's",
        "datasets--e--f": "program's",
    }
    # a run that launches a sweep has the view as its cache
    before = shown(view)
    assert hub.view(str(ours), view, views) == view and shown(view) == before
    assert (theirs / "models--a--b" / "file").read_text() == "user's"
    # another user's cache, or none, has another view
    other = hub.view(str(ours), str(tmp_path / "nothing"), views)
    assert other != view and shown(other) == {"models--i--j": "engine's"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HF_HUB_CACHE": "/a", "HUGGINGFACE_HUB_CACHE": "/b", "HF_HOME": "/c"}, "/a"),
        ({"HUGGINGFACE_HUB_CACHE": "/b", "HF_HOME": "/c"}, "/b"),
        ({"HF_HOME": "/c", "XDG_CACHE_HOME": "/d"}, "/c/hub"),
        ({"XDG_CACHE_HOME": "/d"}, "/d/huggingface/hub"),
        ({}, os.path.expanduser("~/.cache/huggingface/hub")),
    ],
)
def test_the_users_cache_is_where_the_hubs_library_has_it(environ, expected):
    assert hub.user_cache(environ) == expected


def test_stand_ins_give_way_to_models_and_aliases_of_ones_own():
    completed = model_aliases.complete(
        {"Qwen/Qwen3-8B": "/dir"}, {"Qwen/Qwen3-32B": "mine", "a/b": "tiny"}
    )
    assert "Qwen/Qwen3-8B" not in completed
    assert (completed["Qwen/Qwen3-32B"], completed["a/b"]) == ("mine", "tiny")
    assert completed["Qwen/Qwen3.5-9B"] == tiny.TINY
