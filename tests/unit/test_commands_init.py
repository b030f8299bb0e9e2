"""The text of a starter grid, and what it does not overwrite. That it plans for real recipes is in
tests/e2e/test_init.py."""

import errno
import json
import os
from pathlib import Path

import pytest

from sweeper.cli import main
from sweeper.commands import init_fields, init_text
from sweeper.fields.nodes import Problems, plain, read_yaml
from sweeper.grid import parse_grid
from sweeper.grid.json_schema import grid_schema
from sweeper.model.recipe import Recipe

TAKES = {
    "log_path": {"type": "str", "required": True, "doc": ""},
    "behavior_if_log_dir_exists": {"type": "str", "default": "ask", "doc": ""},
    "model_name": {"type": "str", "default": "tiny/qwen3", "doc": "base\nmodel"},
    "odd": {"type": "str", "default": "no: 1 #x\x1b", "doc": ""},
    "kind": {"type": "Literal['a', 'b']", "required": True, "doc": "which " * 30},
    "rate": {"type": "float", "default": 0.5, "doc": ""},
    "opt": {
        "type": "Opt",
        "required": False,
        "doc": "",
        "fields": {
            "lr": {"type": "float", "default": 0.0001, "doc": "peak"},
            "must": {"type": "int", "required": True, "doc": ""},
        },
    },
    "shuffle_seed": {"type": "int", "default": 0, "doc": ""},
}
RECIPE = Recipe(
    reference="my/toy.py",
    kind="file",
    module=None,
    file="/x/my/toy.py",
    config_class="Config",
    command=None,
    python="/usr/bin/python3",
    cwd="/x",
    on_path=True,
    log_path_field="log_path",
    seed_field=None,
    behavior_field=True,
    takes=TAKES,
    forms={},
)


def fields() -> list[init_fields.Field]:
    return init_fields.fields_of(RECIPE)


def test_the_fields_are_those_that_a_grid_can_give() -> None:
    found = {field.key: field for field in fields()}
    assert list(found) == [
        "model_name",
        "odd",
        "kind",
        "rate",
        "opt.lr",
        "opt.must",
        "shuffle_seed",
    ]
    assert [key for key, field in found.items() if field.required] == ["kind"]
    assert found["kind"].choices == ("a", "b")


def test_the_text_reads_back() -> None:
    guess = init_fields.Guess(("opt.lr", [3e-5, 1e-4, 3e-4]), {"kind": "a"}, [])
    text = init_text.grid_text("toy", RECIPE, fields(), guess, given={}, out="-")
    assert max(map(len, text.splitlines())) <= 100
    grid = parse_grid(text, "toy.yaml")
    assert {key: setting.value for key, setting in grid.base.items()} == {"kind": "a"}
    assert [s.value for s in grid.blocks[0].axes["opt.lr"]] == [3e-5, 1e-4, 3e-4]
    assert (grid.seeds.field, grid.seeds.values) == ("shuffle_seed", (0, 1, 2))
    assert (grid.metric, grid.service) == (None, "local")
    assert "log_path: " not in text
    assert "  # model_name: tiny/qwen3        # str: base model\n" in text


def test_a_comment_taken_in_is_the_default() -> None:
    """Without its `# `, each line gives the field what it has anyway."""
    for field in fields():
        if field.default is not None:
            line = next(iter(init_text._comment(field))).replace("# ", "", 1)
            problems = Problems()
            root = read_yaml(line, "x", problems)
            assert not problems
            assert root is not None
            assert plain(root) == {field.key: field.value}


def test_nothing_is_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sft.yaml").write_text("mine")
    Path("link.yaml").symlink_to("nowhere")
    for arguments in ([], ["sft"], ["sft:Config"], ["rl", "--out", "link.yaml"]):
        assert main(["init", *arguments]) == 2
        assert "is there already: choose another file with --out" in capsys.readouterr().err
    assert Path("sft.yaml").read_text() == "mine"
    assert not Path("nowhere").exists()


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == grid_schema()


def test_the_recipes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--list"]) == 0
    listed = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert listed["sft"] == "sweeper.recipes.sft"
    assert listed["rl"] == "sweeper.recipes.rl"


def test_editors_are_told_of_the_schema_where_it_is_at_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert init_text._schema_below("grids/x.yaml") is None
    (tmp_path / init_text.SCHEMA).touch()
    assert init_text._schema_below("grids/x.yaml") == "../grid.schema.json"
    assert init_text._schema_below("/elsewhere/x.yaml") is None


def test_a_full_disk_is_not_the_users_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And nothing is left that the next try would find in its way."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sweeper.atomic.os.fsync", full)
    assert main(["init", "--out", "g.yaml"]) == 6
    assert "cannot write g.yaml: No space left on device" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
