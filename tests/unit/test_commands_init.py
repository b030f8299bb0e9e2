"""The text of a starter grid, and that nothing is overwritten (real recipes: tests/e2e)."""

import errno
import json
import os
from pathlib import Path

from sweeper.cli import main
from sweeper.fields.nodes import Problems, plain, read_yaml
from sweeper.grid import parse_grid, starter
from sweeper.grid.json_schema import grid_schema
from sweeper.sweep.recipe import Recipe

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
    reference="my/toy.py", kind="file", module=None, file="/x/my/toy.py", config_class="Config",
    command=None, python="/usr/bin/python3", cwd="/x", on_path=True, log_path_field="log_path",
    seed_field=None, behavior_field=True, takes=TAKES, forms={},
)  # fmt: skip


def fields() -> list[starter.Field]:
    return starter.fields_of(RECIPE)


def test_the_fields_are_those_that_a_grid_can_give():
    by_key = {field.key: field for field in fields()}
    assert list(by_key) == [
        "model_name", "odd", "kind", "rate", "opt.lr", "opt.must", "shuffle_seed",
    ]  # fmt: skip
    assert [key for key, field in by_key.items() if field.required] == ["kind"]
    assert by_key["kind"].choices == ("a", "b")


def test_the_starter_grid_can_be_parsed():
    guess = starter.Guess(("opt.lr", [3e-5, 1e-4, 3e-4]), {"kind": "a"}, [])
    text = starter.grid_text("toy", RECIPE, fields(), guess, given={}, out="-")
    assert max(map(len, text.splitlines())) <= 100
    grid = parse_grid(text, "toy.yaml")
    assert {key: setting.value for key, setting in grid.base.items()} == {"kind": None}
    assert [s.value for s in grid.blocks[0].axes["opt.lr"]] == [3e-5, 1e-4, 3e-4]
    assert (grid.seeds.field, grid.seeds.values) == ("shuffle_seed", (0, 1, 2))
    assert (grid.metric, grid.service) == (None, "local")
    assert "log_path: " not in text
    assert "  # model_name: tiny/qwen3        # str: base model\n" in text


def test_uncommented_lines_give_the_default():
    for field in fields():
        if field.default is not None:
            line = next(iter(starter.comment_of(field))).replace("# ", "", 1)
            problems = Problems()
            root = read_yaml(line, "x", problems)
            assert not problems
            assert root is not None and plain(root) == {field.key: field.value}


def test_init_overwrites_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("sft.yaml").write_text("mine")
    Path("link.yaml").symlink_to("nowhere")
    for arguments in ([], ["sft"], ["sft:Config"], ["rl", "--out", "link.yaml"]):
        assert main(["init", *arguments]) == 2
        assert "exists already: choose another file with --out" in capsys.readouterr().err
    assert Path("sft.yaml").read_text() == "mine"
    assert not Path("nowhere").exists()


def test_a_yaml_file_is_no_recipe(tmp_path, monkeypatch, capsys):
    """It is a file to translate or to write. As a program, it would get into a command."""
    monkeypatch.chdir(tmp_path)
    Path("w.yaml").write_text("program: train.py\nmethod: grid\nparameters: {lr: {values: [1]}}\n")
    for arguments in (["w.yaml"], ["new.yaml", "--from", "w.yaml"]):
        assert main(["init", *arguments]) == 2
        error = capsys.readouterr().err
        assert (
            f"--from {arguments[0]} translates this file, --out {arguments[0]} writes a grid to it"
            in error
        )
    assert [*tmp_path.iterdir()] == [tmp_path / "w.yaml"]
    assert main(["init", "--from", "w.yaml", "--out", "new.yaml"]) == 0


def test_the_schema_is_printed(capsys):
    assert main(["init", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == grid_schema()


def test_the_recipes_are_listed(capsys):
    assert main(["init", "--list"]) == 0
    listed = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert listed["sft"] == "sweeper.recipes.sft" and listed["rl"] == "sweeper.recipes.rl"


def test_editors_are_told_of_the_schema_where_it_is_at_hand(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def first(out: str) -> str:
        return next(starter.head("x", "train.py", out))

    assert first("grids/x.yaml") == "# A sweep of train.py."
    (tmp_path / starter.SCHEMA).touch()
    assert first("grids/x.yaml") == "# yaml-language-server: $schema=../grid.schema.json"
    assert first("/elsewhere/x.yaml") == "# A sweep of train.py."


def test_a_full_disk_is_an_environment_error(tmp_path, monkeypatch, capsys):
    """No file is left that would block the next try."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", full)
    assert main(["init", "--out", "g.yaml"]) == 6
    assert "cannot write g.yaml: No space left on device" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


SCRIPT = """
import argparse
raise SystemExit("it was run")
parser = argparse.ArgumentParser()
parser.add_argument("data", help="the file")
parser.add_argument("--lr", type=float, default=1e-3, help="peak learning rate")
parser.add_argument("-b", "--batch-size", type=int, default=32)
parser.add_argument("--optimizer", choices=["adam", "sgd"], default="adam")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--output-dir", required=True)
parser.add_argument("--verbose", action="store_true")
if __name__ == "__main__":
    parser.parse_args()
"""
CLICK = """
import click
@click.command()
@click.option("--size", default=8, type=click.Choice(["8", "16"]), help="how many")
@click.option("--fast/--slow", default=False)
@click.option("--out", required=True)
@click.argument("data")
def main(size, fast, out, data):
    pass
"""


def test_a_script_that_is_no_recipe_gets_a_command_with_its_options(tmp_path, monkeypatch, capsys):
    """Its source is read but never executed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    Path("train.py").write_text(SCRIPT)
    assert main(["init", "train.py", "--backend", "local"]) == 0
    assert "not ready for `sweeper plan`: fill in data" in capsys.readouterr().err
    text = Path("train.yaml").read_text()
    grid = parse_grid(text, "train.yaml")
    assert grid.command is not None and grid.command[1:] == (
        *("train.py", "{data}", "--lr", "{lr}"),
        *("--seed", "{seed}", "--output-dir", "{log_path}"),
    )
    assert [s.value for s in grid.blocks[0].axes["lr"]] == [3e-4, 1e-3, 3e-3]
    assert "  # batch_size: 32 " in text and "verbose" not in text
    assert main(["plan", "train.yaml"]) == 2
    assert "no value for {data}" in capsys.readouterr().err
    assert main(["plan", "train.yaml", "data=x"]) == 0
    output = capsys.readouterr()
    assert "9 runs: 9 to start" in output.out and "warning" not in output.err


def test_options_of_click_and_other_programs_are_read_as_far_as_they_can_be(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("c.py").write_text(CLICK)
    Path("run.sh").write_text("echo hi\n")
    assert main(["init", "c.py"]) == main(["init", "run.sh"]) == 0
    click, shell = (parse_grid(Path(n).read_text(), n) for n in ("c.yaml", "run.yaml"))
    assert shell.command == ("./run.sh",)
    assert click.command[1:] == (*("c.py", "{data}", "--size", "{size}", "--out", "{log_path}"),)


def test_a_recipe_s_needed_fields_are_left_for_the_user_to_fill_in(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("toy.py").write_text(
        "import chz\n@chz.chz\nclass Config:\n    log_path: str\n    lr: float\n"
        "    rank: int = 8\ndef main(c): pass\n"
        'if __name__ == "__main__":\n    chz.nested_entrypoint(main)\n'
    )
    assert main(["init", "toy.py", "--backend", "local"]) == 0
    assert "not ready for `sweeper plan`: fill in lr" in capsys.readouterr().err
    assert "  lr:  # FILL IN: float, needed, no default\n" in Path("toy.yaml").read_text()
    assert main(["plan", "toy.yaml"]) == 2
    assert "lr takes float, not null" in capsys.readouterr().err
    assert main(["plan", "toy.yaml", "lr=0.1"]) == 0
