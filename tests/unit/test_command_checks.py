"""Warnings of `plan` for commands: unused values, seeds and folders, odd overrides."""

import json
import sys

import pytest

from sweeper.errors import GridError
from sweeper.grid import parse_grid
from sweeper.planner.plan import plan

COMMAND = [sys.executable, "train.py", "{lr}", "{seed}", "{log_path}"]


def grid(**sections):
    return {"name": "g", "command": COMMAND, "grid": {"lr": [1, 2]}, "seeds": 2, **sections}


def warnings(*overrides, **sections):
    return list(plan(grid(**sections), overrides).warnings)


def problems(*overrides, **sections):
    with pytest.raises(GridError) as caught:
        plan(grid(**sections), overrides)
    return list(caught.value.problems)


def test_a_command_that_uses_everything_gets_no_warning():
    assert warnings() == []


def test_a_base_value_or_an_override_that_the_command_does_not_use_is_warned_of():
    assert warnings(base={"width": 3}) == ["base.width: the command does not use width"]
    assert warnings("width=3", base={"width": 1}) == [
        "override 'width=3': the command does not use width"
    ]
    assert warnings("lrr=3") == [
        "override 'lrr=3': the command does not use lrr; did you mean 'lr'?"
    ]
    assert warnings(when=[{"if": {"lr": 1}, "base": {"warm": 3}}]) == [
        "when[0].base.warm: the command does not use warm"
    ]
    assert warnings(include=[{"lr": 5, "x": 1}]) == ["include[0].x: the command does not use x"]


def test_values_that_have_an_effect_indirectly_are_used():
    command = [*COMMAND, "{out}"]
    assert warnings(command=command, base={"out": "${top}/x", "top": "${root}", "root": "/r"}) == []
    assert warnings(command=[*COMMAND, "{opt.lr}"], base={"opt": {"lr": 1}}) == []
    assert warnings(base={"note": "a"}, launch={"window": "{note}"}) == []
    conditional = {"when": [{"if": {"kind": "a"}, "grid": {"lr": [3, 4]}}], "grid": {}}
    assert warnings(base={"kind": "a"}, **conditional) == []


@pytest.mark.parametrize(
    ("override", "advice"),
    [
        ("budget.usd=3", "budget is a section of the grid: edit it there, or use --budget usd=3"),
        ("metric.goal=maximize", "metric is a section of the grid: edit it there"),
        ("name=other", "the name of a sweep is not a value of its runs: write `name:` in the grid"),
        ("service=local", "service is a section of the grid: edit it there"),
        ("max_parallel=3", "write launch.max_parallel=..."),
        ("seeds.field=s", "seeds is a section of the grid: edit it there"),
    ],
)
def test_an_override_of_a_section_is_refused_with_how_to_set_it(override, advice):
    message = f"override '{override}': {advice}"
    assert problems(override) == [message]
    # A program whose command names such a key gets its value.
    key = override.partition("=")[0]
    if "." not in key:
        assert warnings(override, command=[*COMMAND, f"{{{key}}}"]) == []


def test_stages_refuse_an_override_of_a_section_and_use_each_others_values():
    stage = {"command": [*COMMAND[:2], "{lr}", "{log_path}"], "base": {"lr": 1}}
    after = {
        "command": [*COMMAND[:2], "{data}", "{log_path}"],
        "from": {"stage": "a", "take": "each"},
    }
    first = {**stage, "base": {"lr": 1, "data": "d"}}
    stages = {"a": first, "b": {**after, "base": {"data": "${a.data}"}}}
    made = {"name": "g", "stages": stages}
    assert plan(made).warnings == ()
    with pytest.raises(GridError, match="budget is a section of the grid"):
        plan(made, ["budget.usd=3"])


def test_a_placeholder_of_a_mapping_is_refused_with_the_cell_and_the_keys():
    message = problems(command=[*COMMAND, "{opt}"], base={"opt": {"name": "a", "lr": 1}})
    assert message == [
        "command: command: no value for {opt} in cell lr=1: opt is a mapping; write"
        " {opt.name}, {opt.lr}"
    ]
    assert problems(command=[*COMMAND, "{lrr}"]) == [
        "command: command: no value for {lrr}; did you mean 'lr'?"
    ]


def test_an_override_with_commas_and_spaces_is_one_text_and_that_is_said():
    assert warnings("lr=1e-3, 1e-4") == [
        "override 'lr=1e-3, 1e-4': this is a single string; write an axis as 'lr=[1e-3, 1e-4]'"
    ]
    for fine in ("lr=1e-3,1e-4", "lr=a, b", "lr='1e-3,1e-4'"):
        assert warnings(fine) == []


def test_seeds_that_the_command_does_not_use_are_warned_of(tmp_path):
    command = [sys.executable, "train.py", "{lr}", "{log_path}"]
    [warning] = warnings(command=command)
    assert warning.startswith(
        "seeds: the command has no {seed}: unless the program reads SWEEPER_SEED"
    )
    assert warnings(command=command, seeds={"field": "none", "values": 2}) == []
    field = {"field": "random_state", "values": 2}
    assert warnings(command=[*command, "{random_state}"], seeds=field) == []
    assert warnings(command=[*command, "{tag}"], base={"tag": "run-${seed}"}) == []
    (tmp_path / "train.py").write_text("import os\nseed = int(os.environ['SWEEPER_SEED'])\n")
    assert warnings(command=command, launch={"cwd": str(tmp_path)}) == []
    module = [sys.executable, "-m", "train", "{lr}", "{log_path}"]
    assert warnings(command=module, launch={"cwd": str(tmp_path)}) == []


def test_a_command_without_its_folder_is_warned_of(tmp_path):
    command = [sys.executable, "train.py", "{lr}", "{seed}"]
    [warning] = warnings(command=command)
    assert warning == (
        "command: the command has no {log_path}: unless the program writes to the folder in "
        "SWEEPER_RUN_DIR, all runs write to the same files, and sweeper finds no metrics"
    )
    assert warnings(command=command, launch={"env": {"OUT": "{log_path}/x"}}) == []
    (tmp_path / "train.py").write_text("import os\nout = os.environ['SWEEPER_RUN_DIR']\n")
    assert warnings(command=command, launch={"cwd": str(tmp_path)}) == []


@pytest.mark.parametrize("key", ["random_seed", "rng_seed", "data_seed", "train.seed"])
def test_an_axis_that_looks_like_a_seed_is_warned_of(key):
    messages = warnings(
        command=[*COMMAND[:2], "{log_path}", f"{{{key}}}"], grid={key: [1, 2]}, seeds=None
    )
    assert messages == [
        f"grid.{key}[0]: each value of the axis {key} is a cell of its own: for replicates write"
        f" seeds: {{field: {key}, values: [1, 2]}}"
    ]


def test_a_grid_that_json_has_written_keeps_its_emoji():
    text = json.dumps({"command": ["echo"], "base": {"text": "\U0001f642", "\u00e9": 1}})
    assert "\\ud83d\\ude42" in text
    with pytest.raises(GridError, match="cannot name a field"):
        parse_grid(text, "g.yaml")
    text = json.dumps({"command": ["echo"], "base": {"text": "a\U0001f642b"}})
    assert parse_grid(text, "g.yaml").base["text"].value == "a\U0001f642b"
    with pytest.raises(GridError, match=r"the character U\+DE42"):
        parse_grid('{"command": ["echo"], "base": {"text": "\\ude42\\ud83d"}}', "g.yaml")


def test_misplaced_keys_are_told_where_they_belong():
    def refusal(text):
        with pytest.raises(GridError) as caught:
            parse_grid(text, "g.yaml")
        return list(caught.value.problems)

    head = "command: [echo]\n"
    assert refusal(f"{head}timeout: 2h\nmax_parallel: 3\ngoal: minimize\nusd: 3\nsamples: 3") == [
        f"g.yaml:{line}:1: unknown key '{key}': it belongs in {section}, as in {section}:"
        f" {{{key}: ...}}"
        for line, key, section in (
            (2, "timeout", "launch"), (3, "max_parallel", "launch"), (4, "goal", "metric"),
            (5, "usd", "budget"), (6, "samples", "random"),
        )
    ]  # fmt: skip
    assert refusal(f"{head}grid: {{lr: {{log_uniform: [1e-4, 1e-2]}}}}") == [
        "g.yaml:2:12: axis 'lr' is a mapping; it takes a list; write random: {samples: 20, axes:"
        " {lr: ...}} to draw its values"
    ]
    assert refusal(f"{head}grid: {{lr: {{values: [1, 2]}}}}") == [
        "g.yaml:2:12: axis 'lr' is a mapping; it takes the list itself, as in lr: [...]"
    ]


RECIPE = """
import chz
@chz.chz
class Config:
    log_path: str
    learning_rate: float = 0.1
def main(config):
    pass
if __name__ == "__main__":
    chz.nested_entrypoint(main)
"""


@pytest.mark.parametrize(
    ("base", "override", "message"),
    [
        ({"lr": 1}, (), "base.lr: Config has no field 'lr'; did you mean 'learning_rate'?"),
        ({"timeout": "2h"}, (),
         "base.timeout: Config has no field 'timeout': it belongs in launch, as in launch: "
         "{timeout: ...}"),
        ({}, ("budget.usd=3",),
         "override 'budget.usd=3': Config has no field 'budget'; budget is a section of the "
         "grid: edit it there, or use --budget usd=3"),
        ({}, ("learning_rate=1e-3, 1e-4",),
         "override 'learning_rate=1e-3, 1e-4': learning_rate takes float, not \"1e-3, 1e-4\"; "
         "an axis is written 'learning_rate=[1e-3, 1e-4]'"),
    ],
)  # fmt: skip
def test_what_a_recipe_refuses_is_told_where_it_belongs(tmp_path, base, override, message):
    (tmp_path / "toy.py").write_text(RECIPE)
    with pytest.raises(GridError) as caught:
        plan({"name": "g", "recipe": str(tmp_path / "toy.py"), "base": base}, override)
    assert list(caught.value.problems) == [message]
