"""`extends`: what a grid takes from another file, and what it replaces."""

import os

import pytest

from sweeper.errors import GridError
from sweeper.grid.extends import MAX_EXTENDS, in_one
from sweeper.planner.plan import plan
from sweeper.sweep.metric import Metric

COMMON = """
name: common
command: [echo]
service: none
base: {steps: 5, opt: {name: adam, wd: 0.1}}
grid: {lr: [1, 2], rank: [8, 32]}
zip: [{data: [a, b], length: [3, 4]}]
random: {samples: 2, seed: 7, axes: {t: {integers: [1, 1000]}, w: {integers: [1, 1000]}}}
when: [{if: {rank: 8}, grid: {beta: [1, 2]}}]
include: [{lr: 9, rank: 1}]
metric: {name: loss, goal: minimize}
launch: {backend: local, retries: 2, env: {A: "1", B: "2"}}
"""


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Return a function that writes grids into a folder and plans them there."""
    monkeypatch.chdir(tmp_path)

    def planned(text, *overrides, **others):
        (tmp_path / "common.yaml").write_text(COMMON)
        for name, other in others.items():
            (tmp_path / f"{name}.yaml").write_text(other)
        (tmp_path / "g.yaml").write_text(text)
        return plan("g.yaml", overrides)

    return planned


def problems(files, text, **others):
    with pytest.raises(GridError) as caught:
        files(text, **others)
    return list(caught.value.problems)


def values(planned, key):
    return sorted({str(run.config.get(key)) for run in planned.runs})


def test_extending_makes_the_same_runs_as_one_file(files):
    near = "extends: common.yaml\nbase: {opt.wd: null, steps: 6}\nlaunch: {retries: 3}\n"
    planned = files("extends: near.yaml\ngrid: {rank: [4, 8]}\nwhen: null\n", near=near)
    whole = in_one(planned.grid_text, planned.extends)
    assert "extends" not in whole and "name" not in whole
    whole = {key: value for key, value in whole.items() if value is not None}
    again = plan({"name": planned.name, **whole})
    assert (again.runs, again.launch) == (planned.runs, planned.launch)


def test_everything_is_taken_over_but_the_name(files):
    planned = files("extends: common.yaml")
    whole = plan("common.yaml")
    assert planned.name == "g" and planned.runs == whole.runs
    assert planned._replace(name="", grid_text="", grid_path="", extends=()) == whole._replace(
        name="", grid_text="", grid_path=""
    )
    assert len(planned.runs) == 2 * (2 + 1) * 2 * 2 + 1


def test_mappings_are_merged_by_key_and_the_rest_is_replaced(files):
    planned = files(
        "extends: common.yaml\nbase: {opt.wd: 0.2, new: 1}\ngrid: {rank: [8], depth: [1, 2]}\n"
        "include: []\nmetric: {name: acc, goal: maximize}\n"
        "launch: {retries: 0, env: {B: '3', C: '4'}}\nrandom: {samples: 1}\nseeds: 1\n"
    )
    assert list(planned.axes) == ["lr", "rank", "depth", "data", "length", "t", "w", "beta"]
    assert planned.axes["rank"] == [8]
    config = planned.runs[0].config
    assert [config[key] for key in ("steps", "opt.name", "opt.wd", "new")] == [5, "adam", 0.2, 1]
    assert planned.metric == Metric("acc", "maximize")
    assert (planned.launch.backend, planned.launch.retries) == ("local", 0)
    assert planned.launch.env == {"A": "1", "B": "3", "C": "4"}
    assert len(planned.runs) == 2 * 2 * 2 * 2


def test_a_base_value_stands_for_axes_and_included_cells_of_the_other(files):
    planned = files("extends: common.yaml\nbase: {lr: 3, beta: 7, t: 0, w: 0, length: 1}\n")
    assert values(planned, "lr") == ["3"] and values(planned, "beta") == ["7"]
    assert list(planned.axes) == ["rank", "data"]
    assert [run.config["rank"] for run in planned.runs] == [8, 8, 32, 32, 1]


def test_an_axis_stands_for_an_axis_of_the_other_wherever_that_was(files):
    planned = files(
        "extends: common.yaml\ngrid: {t: [1, 2], data: [c], beta: [5, 6]}\nzip: [{lr: [3, 4]}]\n"
    )
    assert planned.axes["lr"] == [3, 4] and planned.axes["t"] == [1, 2]
    assert values(planned, "beta") == ["5", "6", "None"]  # the included cell has none
    assert "length" not in planned.axes  # the list zip was replaced
    assert len(planned.axes["w"]) == 2


def test_a_null_takes_away(files):
    planned = files(
        "extends: common.yaml\ngrid: {lr: ~}\nzip: ~\nrandom: ~\nwhen: ~\ninclude: ~\nmetric: ~\n"
        "launch: {env: ~}\n"
    )
    assert list(planned.axes) == ["rank"] and planned.metric is None and planned.launch.env == {}
    assert problems(files, "extends: common.yaml\ngrid: {nope: ~}\n") == [
        "g.yaml:2:14: axis 'nope' is nothing; it takes a list (a single value belongs in base)"
    ]


def test_a_recipe_stands_for_a_command(files):
    assert problems(files, "extends: common.yaml\nrecipe: nope\n")[0].startswith(
        "g.yaml:2:9: recipe 'nope': no recipe or module is called 'nope'"
    )
    assert files("extends: common.yaml\ncommand: [echo, y]\n").recipe.command == ["echo", "y"]


def test_chains_count_from_the_file_that_says_so(files, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "middle.yaml").write_text("extends: ../common.yaml\nbase: {steps: 6}\n")
    planned = files("extends: sub/middle.yaml\nbase: {x: 1}\n")
    assert (values(planned, "steps"), values(planned, "x")) == (["6"], ["1"])
    assert [path for path, _ in planned.extends] == ["sub/middle.yaml", "common.yaml"]
    document = planned.document()
    assert document["grid"] == "extends: sub/middle.yaml\nbase: {x: 1}\n"
    assert document["extends"][1] == {"path": "common.yaml", "grid": COMMON}
    assert plan({"name": "g", "extends": "common.yaml"}).runs == plan("common.yaml").runs


def test_the_command_line_overrides_all_files(files):
    planned = files("extends: common.yaml\nbase: {steps: 6}\n", "steps=7", "lr=[5]", "~data")
    assert values(planned, "steps") == ["7"] and planned.axes["lr"] == [5]
    assert "data" not in planned.axes


def test_mistakes_carry_the_place_in_their_file(files):
    messages = problems(
        files,
        "extends: other.yaml\nbase: {a: '${nope}'}\nmetrc: 1\n",
        other="command: [echo]\ngrid: {b: 3}\nseeds: 0\n",
    )
    assert messages == [
        "g.yaml:3:1: unknown key 'metrc'; did you mean 'metric'?",
        "other.yaml:2:11: axis 'b' is an integer; it takes a list (a single value belongs in base)",
        "other.yaml:3:8: seeds must be 1 to 10000, not 0",
    ]
    assert problems(files, "extends: other.yaml\n", other="a: [1\n")[0].startswith("other.yaml:2:1")
    assert problems(files, "extends: other.yaml\n", other="- 1\n") == [
        "other.yaml:1:1: a grid is a mapping, not a list"
    ]
    assert problems(files, "extends: other.yaml\n", other="") == [
        "g.yaml:1:10: extends: other.yaml is empty"
    ]
    assert problems(files, "extends: other.yaml\ngrid: {lr: [1]}\nzip: [{lr: [2]}]\n",
                    other=COMMON) == ["g.yaml:3:13: axis 'lr' is given twice"]  # fmt: skip


def test_circles_and_long_chains_are_refused(files):
    assert problems(files, "extends: g.yaml\n") == [
        "g.yaml:1:10: extends: g.yaml extends itself in a cycle"
    ]
    assert problems(files, "extends: a.yaml\n", a="extends: b.yaml\n", b="extends: ./a.yaml\n") == [
        "b.yaml:1:10: extends: a.yaml extends itself in a cycle"
    ]
    chain = {f"c{n}": f"extends: c{n + 1}.yaml\n" for n in range(20)}
    assert problems(files, "extends: c0.yaml\n", **chain) == [
        f"c{MAX_EXTENDS - 1}.yaml:1:10: extends forms a chain of more than {MAX_EXTENDS} files"
    ]


def test_only_regular_files_can_be_extended(files, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert problems(files, "extends: pipe\n") == ["g.yaml:1:10: extends: pipe is not a file"]
    for path in ("/dev/zero", "."):
        message = f"g.yaml:1:10: extends: {path} is not a file"
        assert problems(files, f"extends: {path}\n") == [message]
    assert problems(files, 'extends: "a\\0"\n')[-1] == (
        "g.yaml:1:10: extends takes the path of another grid"
    )
    (tmp_path / "big.yaml").write_text("#" * 200_000)
    assert problems(files, "extends: big.yaml\n") == [
        "g.yaml:1:10: extends: big.yaml: larger than the limit of 131072 bytes for a grid"
    ]


def test_a_stage_is_put_over_the_others_of_its_name(files):
    common = """
service: none
stages:
  a:
    command: [echo]
    base: {lr: 1, wd: 0.1}
    grid: {rank: [8, 32]}
    metric: {name: loss, goal: minimize}
  b: {command: [echo], from: {stage: a, take: best}, base: {lr: 2}}
  c: {command: [echo], from: {stage: b, take: each}}
"""
    text = """
extends: below.yaml
stages:
  a: {base: {lr: 5}, grid: {rank: [4]}}
  b: {from: {stage: a, take: each}, grid: {beta: [1, 2]}}
  c: ~
"""
    planned = files(text, below=common)
    (later,) = planned.stages[1:]
    assert (later.name, later.sources[0].takes[0].how) == ("b", "each")
    of_stage = [run for run in planned.runs if run.stage == "a"]
    assert [run.config for run in of_stage] == [{"lr": 5, "wd": 0.1, "rank": 4}]
    assert planned.stages[0].metric.name == "loss"
    assert [run.config for run in later.runs] == [{"lr": 2, "beta": n} for n in (1, 2)]
