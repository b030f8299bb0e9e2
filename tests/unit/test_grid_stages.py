"""Stages of a grid: mistakes in them, and the runs that they plan."""

import sys
from typing import Any

import pytest

from sweeper.commands import plan_text
from sweeper.errors import GridError
from sweeper.launcher import preview
from sweeper.planner.plan import plan
from sweeper.scheduler.submitter import asked_by
from sweeper.store.local import LocalStore
from sweeper.sweep.plan import Plan, read
from sweeper.sweep.stage_runs import depths, grown

_SFT = (
    "stages:\n  sft: {command: [echo, '{lr}'], grid: {lr: [1, 2]}, seeds: 2,"
    " metric: {name: nll, goal: minimize}}\n"
)
_FROM = "stages.dpo.from"
_HOW = "best, best-cell, each, {top: 3} or a run's name"


def _dpo(take: str, more: str = "") -> str:
    return f"{_SFT}  dpo: {{command: [echo], from: {take}{more}}}\n"


def _value(value: str, take: str = "{stage: sft, take: best}") -> str:
    return f"{_SFT}  dpo: {{command: [echo], base: {{m: '{value}'}}, from: {take}}}\n"


_CIRCLE = "stages:\n" + "".join(
    f"  {taker}: {{command: [echo], from: {{stage: {taken}, take: each}}}}\n"
    for taker, taken in ("ac", "ba", "cb")
)
_PLAIN = "stages:\n  sft: {command: [echo]}\n"


def _sft(settings: str) -> str:
    return f"stages:\n  sft: {{command: [echo], {settings}}}\n"


MISTAKES = [
    ("stages: {}\n", "1:9: stages is empty"),
    ("stages: [sft]\n", "1:9: stages is a list; it takes a mapping of names to stages"),
    ("stages:\n  sft: {}\n", "2:8: stages.sft is empty; it takes a mapping, like a grid"),
    ("stages:\n  sft: train\n", "2:8: stages.sft is a string; it takes a mapping, like a grid"),
    ("stages:\n  from: {command: [echo]}\n",
     "2:3: stages: 'from' cannot name a stage (this word is reserved)"),
    ("stages:\n  1st: {command: [echo]}\n",
     "2:3: stages: '1st' cannot name a stage (a letter, then letters, digits and '_', at most 40)"),
    ("stages:\n  sft: {grid: {lr: [1, 2]}}\n", "2:3: stages.sft needs a recipe, or a command"),
    (_sft("recipe: sft"), "2:9: stages.sft has both a recipe and a command: remove one"),
    (_sft("launch: {backend: local}"),
     "2:35: stages.sft.launch.backend applies to all stages: "
     "move it into `launch` next to `stages`"),
    (_sft("launch: 2h"), "2:34: stages.sft.launch is a string; it takes a mapping"),
    (_sft("launch: {timeout: soon}"),
     "2:44: stages.sft.launch.timeout takes a duration such as 90s, 30m, 2h or 1h30m"),
    (_sft("launch: {retry: 1}"),
     "2:35: unknown key 'retry' in stages.sft.launch; did you mean 'retries'?"),
    (_sft("launch: {max_parallel: 0}"),
     "2:49: stages.sft.launch.max_parallel must be 1 to 1000000, not 0"),
    (_sft("launch: {aws_batch: {vcpus: 2}}"),
     "2:35: stages.sft.launch.aws_batch applies to all stages: "
     "move it into `launch` next to `stages`"),
    (_sft("launch: {env: {TINKER_BASE_URL: 'http://x'}}"),
     "2:40: stages.sft.launch.env: TINKER_BASE_URL belongs to the service, which all stages share"),
    ("secrets: [KEY]\nstages:\n  sft: {command: [echo], launch: {env: {KEY: x}}}\n",
     "3:34: KEY is in both secrets and launch.env: remove one"),
    ("stages:\n  sft: {recipe: sft, launch: {python: /nowhere/python}}\n",
     "2:39: launch.python: no interpreter /nowhere/python"),
    (_sft("form: {stage: sft}"), "2:26: unknown key 'form' in stages.sft; did you mean 'from'?"),
    (f"grid: {{lr: [1]}}\n{_SFT}", "1:1: grid: the grid has stages: move it into one of them"),
    (_dpo("{stage: sftt, take: best}"), f"3:40: {_FROM}: no stage 'sftt'; did you mean 'sft'?"),
    (_dpo("{sft: best, sgd: best}"), f"3:44: {_FROM}: no stage 'sgd'"),
    (_dpo("{stage: dpo, take: each}"), f"3:40: {_FROM}: a stage cannot continue from itself"),
    (_CIRCLE, "2:30: stages continue from each other in a cycle: a -> b -> c -> a"),
    (f"{_PLAIN}  dpo: {{command: [echo], from: {{stage: sft, take: best}}}}\n",
     f"3:40: {_FROM}: `best` needs a metric, but stages.sft has none"),
    (f"{_PLAIN}  dpo: {{command: [echo], from: {{stage: sft, take: {{top: 3}}}}}}\n",
     f"3:40: {_FROM}: `top` needs a metric, but stages.sft has none"),
    (_dpo("{stage: sft}"), f"3:32: {_FROM} needs a take: {_HOW}"),
    (_dpo("{take: best}"), f"3:32: {_FROM} needs a stage: the name of a stage"),
    (_dpo("sft"),
     f"3:32: {_FROM} is a string; it takes {{stage: ..., take: ...}}, or a list of these"),
    (_dpo("[]"), f"3:32: {_FROM} names no stage"),
    (_dpo("{stage: sft, take: {top: 0}}"), f"3:57: {_FROM}: top takes a number, 1 to 1000"),
    (_dpo("{stage: sft, take: {top: 9}}"),
     f"3:40: {_FROM}: stages.sft has only 4 runs, so 9 cannot be taken"),
    (_dpo("{stage: sft, take: {bottom: 3}}"), f"3:51: {_FROM}: take is a mapping; it takes {_HOW}"),
    (_dpo("{stage: sft, take: bset}"),
     f"3:40: {_FROM}: stages.sft has no run 'bset'; did you mean 'best'?"),
    (_dpo("[{stage: sft, take: best}, {stage: sft, take: best}]"),
     f"3:59: {_FROM}: takes the same runs twice"),
    (_dpo("{base: false}"), f"3:33: {_FROM}: write {{base: true}} for the base model"),
    (_dpo("[{stage: sft, take: best}, {base: true}]"),
     f"3:59: {_FROM}: no stage gives a model_name, so there is no base model"),
    (_value("${sft.checkpoint.stat}"),
     "3:36: ${sft.checkpoint.stat}: a checkpoint has checkpoint.state and checkpoint.sampler; "
     "did you mean 'checkpoint.state'?"),
    (_value("${sft.rank}"), "3:36: ${sft.rank}: stages.sft has no such value"),
    (_value("${sfft.checkpoint.state}"),
     "3:36: ${sfft.checkpoint.state}: no stage 'sfft'; did you mean 'sft'?"),
    (f"{_SFT}  dpo: {{command: [echo], base: {{m: '${{sft.lr}}'}}}}\n",
     "3:36: ${sft.lr}: stages.dpo has no from, so it has no parents"),
    (f"{_SFT}  rm: {{command: [echo]}}\n  dpo: {{command: [echo], base: {{m: "
     f"'${{rm.log_path}}'}}, from: {{stage: sft, take: each}}}}\n",
     "4:36: ${rm.log_path}: stages.dpo does not come from rm"),
    (_value("$${sft.log_path}"),
     "3:36: $${sft.log_path}: this looks like a reference to a stage and cannot be escaped"),
    (f"{_SFT}  dpo: {{command: [echo], grid: {{x: [1]}}, exclude: [{{x: 1}}], from: {{stage: sft, "
     f"take: each}}}}\n",
     "3:51: exclude leaves no cell"),
    (f"{_SFT}  again: {{command: [echo, '{{lr}}'], grid: {{lr: [2, 3]}}, seeds: 2}}\n",
     "3:3: stages.again makes the same runs as stages.sft"),
    (f"{_SFT}order: deepest\n",
     "3:8: order: 'deepest' is not one of depth, breadth; did you mean 'depth'?"),
    (f"{_SFT}  dpo: {{command: [echo, '{{beta}}'], from: {{stage: sft, take: each}}}}\n",
     "3:18: command: no value for {beta}"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), MISTAKES, ids=range(len(MISTAKES)))
def test_a_mistake_is_one_line_with_its_place(tmp_path, text, message):
    (tmp_path / "p.yaml").write_text(text)
    with pytest.raises(GridError) as error:
        plan(str(tmp_path / "p.yaml"))
    assert [line.removeprefix(f"{tmp_path}/p.yaml:") for line in error.value.problems] == [message]


def test_mistakes_of_several_stages_are_told_together():
    stages = {"sft": _stage(grid={}), "dpo": {"command": ["echo", "{beta}"]}}
    stages["sft"]["command"] = ["echo", "{lr}"]
    with pytest.raises(GridError) as error:
        plan({"name": "p", "stages": stages})
    assert len(error.value.problems) == 2


def test_the_command_line_says_which_stage_it_means():
    grid = {"name": "p", "stages": {"sft": _stage(), "dpo": _stage(grid={"lr": [3]}, **_each())}}
    planned = plan(grid, ["sft.seeds=1", "dpo.lr=9", "launch.retries=2"])
    assert [run.seed for run in planned.only("sft").runs] == [0, 0]
    assert {run.config["lr"] for run in planned.only("dpo").runs} == {9}
    assert planned.launch.retries == 2
    with pytest.raises(GridError, match=r"name one, such as sft.lr=\.\.\."):
        plan(grid, ["lr=1"])


def _stage(**more: Any) -> dict[str, Any]:
    metric = {"name": "nll", "goal": "minimize"}
    usual = {"command": ["echo"], "grid": {"lr": [1, 2]}, "seeds": 2, "metric": metric}
    return {key: value for key, value in (usual | more).items() if value}


def _each(stage: str = "sft", take: object = "each") -> dict[str, Any]:
    return {"from": {"stage": stage, "take": take}, "seeds": None}


def _plan(**stages: dict[str, Any]) -> Plan:
    return plan({"name": "p", "stages": stages})


def test_a_stage_without_parents_is_what_its_grid_would_be_alone():
    alone = plan({"name": "p", **_stage()})
    staged = _plan(sft=_stage(), dpo=_stage(**_each())).only("sft")
    assert [run.id for run in staged.runs] == [run.id for run in alone.runs]
    assert [run.config for run in staged.runs] == [run.config for run in alone.runs]
    assert [run.name for run in staged.runs] == [f"sft/{run.name}" for run in alone.runs]
    assert staged.axes == alone.axes


def test_each_run_of_a_stage_has_children_that_are_replicates_as_it_is():
    planned = _plan(
        sft=_stage(),
        dpo=_stage(
            grid={"beta": [0.1, 0.3]}, base={"of": "${sft.lr}", "p": "x-${from.lr}"}, **_each()
        ),
    )
    parents = {run.id: run for run in planned.only("sft").runs}
    children = planned.only("dpo").runs
    assert [run.name for run in children[:2]] == [
        "dpo/beta=0.1,sft/lr=1,seed=0",
        "dpo/beta=0.3,sft/lr=1,seed=0",
    ]
    assert len(children) == 8 and len({run.cell for run in children}) == 4
    assert len({run.id for run in children}) == 8
    for run in children:
        [parent] = run.parents
        assert run.seed == parents[parent].seed and run.config["of"] == parents[parent].config["lr"]
        assert run.config["p"] == f"x-{parents[parent].config['lr']}"
    assert not planned.unknown


def test_a_stage_with_seeds_of_its_own_has_cells_for_each_parent():
    planned = _plan(sft=_stage(), dpo=_stage(grid=None, **(_each() | {"seeds": 3})))
    names = [run.name for run in planned.only("dpo").runs]
    assert names[:2] == ["dpo/sft/lr=1,seed=0,seed=0", "dpo/sft/lr=1,seed=0,seed=1"]
    assert len({run.cell for run in planned.only("dpo").runs}) == 4
    assert len(names) == 12


def test_what_is_chosen_is_counted_before_and_made_after():
    planned = _plan(
        sft=_stage(),
        dpo=_stage(grid={"beta": [1, 2, 3]}, **_each(take="best")),
        top=_stage(grid=None, **_each(take={"top": 2})),
        cell=_stage(grid=None, **_each(take="best-cell"), base={"x": 1}),
        rl=_stage(grid={"z": [1, 2]}, **_each("dpo")),
    )
    assert planned.unknown == {"dpo": 3, "top": 2, "cell": 2, "rl": 6}
    assert [run.stage for run in planned.runs] == ["sft"] * 4
    ids = [run.id for run in planned.runs]
    later = grown(planned, lambda choice: ids[-choice.take.number :])
    assert {stage: len(later.only(stage).runs) for stage in ("dpo", "top", "cell", "rl")} == {
        "dpo": 3, "top": 2, "cell": 1, "rl": 6,
    }  # fmt: skip
    assert {run.parents for run in later.only("dpo").runs} == {(ids[-1],)}
    assert [run.name for run in later.only("dpo").runs] == [f"dpo/beta={n}" for n in (1, 2, 3)]
    assert later.unknown == {}  # one run of the best cell was chosen
    assert not later.choices
    taken = grown(planned, lambda choice: ids[: choice.take.number])
    mine, theirs = ({run.id for run in p.only("dpo").runs} for p in (later, taken))
    assert not mine & theirs  # they have another parent


def test_a_choice_is_made_anew_once_a_stage_has_more_runs():
    dpo = _stage(**_each(take="best"))
    [before] = _plan(sft=_stage(), dpo=dpo).choices
    [same] = _plan(sft=_stage(), dpo=dpo | {"grid": {"beta": [1]}}).choices
    [after] = _plan(sft=_stage(grid={"lr": [1, 2, 3]}), dpo=dpo).choices
    assert before.key == same.key != after.key and set(before.candidates) < set(after.candidates)


def test_a_run_has_a_parent_of_each_stage_that_is_taken_together():
    planned = _plan(
        sft=_stage(seeds=None),
        rm=_stage(seeds=None, grid={"size": [3, 4]}),
        rl=_stage(
            base={"policy": "${sft.checkpoint.state}", "reward": "${rm.checkpoint.sampler}"},
            grid=None,
            seeds=None,
        )
        | {"from": {"sft": "each", "rm": "size=3"}},
    )
    runs = {run.id: run.name for run in planned.runs}
    assert [[runs[parent] for parent in run.parents] for run in planned.only("rl").runs] == [
        ["sft/lr=1", "rm/size=3"],
        ["sft/lr=2", "rm/size=3"],
    ]


def test_the_base_model_has_no_parent_and_nothing_that_a_parent_has():
    planned = _plan(
        sft=_stage(base={"model_name": "tiny/qwen3"}),
        ev=_stage(
            grid=None,
            seeds=None,
            base={"model_name": "${from.model_name}", "path": "${from.checkpoint.sampler}", "n": 3},
        )
        | {"from": [{"stage": "sft", "take": "best"}, {"base": True}]},
    )
    [base] = planned.only("ev").runs
    assert (base.name, base.parents) == ("ev/base", ())
    assert base.config == {"model_name": "tiny/qwen3", "n": 3}
    assert planned.unknown == {"ev": 1}


def test_stages_stand_in_any_order():
    planned = _plan(dpo=_stage(grid={"b": [1]}, **_each()), sft=_stage())
    assert [stage.name for stage in planned.stages] == ["sft", "dpo"]
    assert depths(planned.stages) == {"sft": 0, "dpo": 1}


def test_a_plan_is_read_as_it_was_written():
    planned = _plan(sft=_stage(), dpo=_stage(grid={"b": [1]}, **_each(take={"top": 2})))
    again = read(planned.document(), "sweep.json")
    assert (again.runs, again.stages, again.order) == (planned.runs, planned.stages, "depth")
    assert "stages" not in plan({"name": "p", "command": ["echo"]}).document()


def test_plan_draws_the_graph_with_counts(tmp_path):
    planned = _plan(
        sft=_stage(base={"model_name": "m"}),
        dpo=_stage(grid={"b": [1, 2]}, **_each(take="best")),
        ev=_stage(grid=None, seeds=None)
        | {"from": [{"stage": "dpo", "take": "each"}, {"base": True}]},
    )
    survey = preview.survey(planned, LocalStore(str(tmp_path)))
    lines = list(plan_text.short(survey))
    assert lines[:6] == [
        "p: 3 stages on tmux, service none, at most 8 at once",
        "",
        "stage   runs                                     of",
        "sft     2 cells x 2 seeds, 4 runs                echo",
        "  dpo   2 runs not known yet                     echo, from the best of sft",
        "    ev  1 cell, 1 run, and 2 runs not known yet  echo, from each of dpo and the base "
        "model",
    ]
    assert "4 more runs start once the runs that they continue from have ended" in lines


def test_a_stage_that_says_nothing_of_its_parents_goes_on_from_their_weights():
    sft = {"recipe": "sft", "grid": {"lora_rank": [4, 8]}}
    later = {"recipe": "sft", "from": [{"stage": "sft", "take": "each"}, {"base": True}]}
    planned = _plan(sft=sft, later=later, own={**later, "base": {"model_name": "tiny/gpt2"}})
    assert [run.config for run in planned.only("later").runs] == [
        {"model_name": "tiny/qwen3", "load_checkpoint_path": "${from.checkpoint.state}"},
        {"model_name": "tiny/qwen3", "load_checkpoint_path": "${from.checkpoint.state}"},
        {"model_name": "tiny/qwen3"},
    ]
    assert planned.only("own").runs[0].config["model_name"] == "tiny/gpt2"


def test_values_of_a_parent_are_checked_as_what_they_are():
    sft = {"recipe": "sft", "grid": {"learning_rate": [0.1, 0.2]}}
    later = {"recipe": "sft", "from": {"stage": "sft", "take": "each"}}
    good = _plan(sft=sft, later={**later, "base": {"lora_rank": "${sft.lora_rank}"}})
    assert {run.config["lora_rank"] for run in good.only("later").runs} == {16}
    with pytest.raises(GridError) as error:
        _plan(sft=sft, later={**later, "base": {"lora_rank": "${sft.learning_rate}"}})
    assert list(error.value.problems) == [
        "stages.later.base.lora_rank: lora_rank takes int | Literal['auto'], not 0.1"
    ]


def test_a_stage_says_itself_how_its_runs_are_executed(tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    settings = {"python": str(python), "timeout": "2h", "retries": 3, "env": {"B": "2", "C": "3"}}
    later = {"recipe": "sft", "from": {"stage": "sft", "take": "each"}, "launch": settings}
    launch = {"backend": "local", "timeout": "1h", "max_parallel": 4, "env": {"A": "1", "B": "1"}}
    grid = {"name": "p", "launch": launch, "stages": {"sft": {"recipe": "sft"}, "later": later}}
    planned = plan(grid, ["later.launch.retries=5", "launch.timeout=3h"])
    read_back = read(planned.document(), "sweep.json")
    assert read_back.stages == planned.stages
    sft, effective = read_back.launch_of("sft"), read_back.of("later").launch
    assert (sft.timeout_s, sft.retries, sft.env) == (3 * 3600, 0, {"A": "1", "B": "1"})
    assert (effective.timeout_s, effective.retries, effective.max_parallel) == (2 * 3600, 5, 4)
    assert (effective.env, effective.backend) == ({"A": "1", "B": "2", "C": "3"}, "local")
    assert [stage.recipe.python for stage in read_back.stages] == [sys.executable, str(python)]


def test_what_jobs_ask_their_backend_for_may_differ_by_stage():
    sft = {"command": ["echo"], "launch": {"slurm": {"partition": "gpu"}}}
    launch = {"backend": "slurm", "slurm": {"partition": "cpu", "mem": "8G"}}
    taken = {"command": ["echo", "{x}"], "base": {"x": 1}}
    made = plan({"name": "p", "launch": launch, "stages": {"sft": sft, "other": taken}})
    requests = [
        asked_by(made.launch_of(stage.name), made.launch.backend, {}) for stage in made.stages
    ]
    assert [request["partition"] for request in requests] == ["gpu", "cpu"]
    assert requests[0]["mem"] == requests[1]["mem"]


def test_options_that_do_not_go_together_take_each_others_place_in_a_stage():
    """Also in overrides, as the backend declares its options."""
    over = {"docker_image": "registry/sweeper:1", "overrides": [{"if": {"x": 1}, "image": "lab/b"}]}
    sft = {"command": ["echo"], "grid": {"x": [0, 1]}, "launch": {"beaker": over}}
    later = {"command": ["echo"], "launch": {"beaker": {"min_runtime": "1h"}}}
    options = {"image": "lab/a", "preemptible": False, "cpus": 2}
    launch = {"backend": "beaker", "beaker": options}
    made = plan({"name": "p", "launch": launch, "stages": {"sft": sft, "later": later}})
    made = read(made.document(), "sweep.json")
    requests = [
        dict(asked_by(made.launch_of(stage), "beaker", {"x": x}))
        for stage, x in (("sft", 0), ("sft", 1), ("later", 1))
    ]
    assert requests == [
        {"docker_image": "registry/sweeper:1", "preemptible": False, "cpus": 2},
        {"image": "lab/b", "preemptible": False, "cpus": 2},
        {"image": "lab/a", "min_runtime_s": 3600.0, "cpus": 2},
    ]


def test_a_stage_may_have_options_of_a_backend_that_the_sweep_does_not_go_to():
    """As a grid may outside its stages: with another backend, it needs no change."""
    sft = {"command": ["echo"], "launch": {"slurm": {"mem": "8G"}}}
    grid = {"name": "p", "launch": {"slurm": {"partition": "gpu"}}, "stages": {"sft": sft}}
    elsewhere = plan(grid, ["launch.backend=local"])
    assert asked_by(elsewhere.launch_of("sft"), "local", {}) == {}
    there = plan(grid, ["launch.backend=slurm"])
    assert asked_by(there.launch_of("sft"), "slurm", {}) == {"partition": "gpu", "mem": "8G"}
    with pytest.raises(GridError, match=r"stages.sft.launch.slurm.*'mm'"):
        wrong = {**sft, "launch": {"slurm": {"mm": "8G"}}}
        plan({**grid, "stages": {"sft": wrong}}, ["launch.backend=local"])


def test_what_a_stage_extends_may_say_how_it_is_executed(tmp_path):
    (tmp_path / "a.yaml").write_text(
        "stages: {sft: {command: [echo], launch: {timeout: 1h, retries: 2, env: {A: '1'}}}}\n"
    )
    text = "extends: a.yaml\nstages: {sft: {launch: {timeout: ~, env: {B: '2'}}}}\n"
    (tmp_path / "b.yaml").write_text(text)
    launch = plan(str(tmp_path / "b.yaml")).stages[0].launch
    assert launch == {"retries": 2, "env": {"A": "1", "B": "2"}}


def test_runs_that_multiply_from_stage_to_stage_are_counted_and_not_made():
    grid: dict[str, Any] = {"s0": _stage(grid=None, seeds=None)}
    grid["s1"] = _stage(grid=None, seeds=None, base={"x": 1})
    for number in range(2, 50):
        both = [{"stage": f"s{number - back}", "take": "each"} for back in (1, 2)]
        grid[f"s{number}"] = _stage(grid=None, seeds=None) | {"from": both}
    with pytest.raises(GridError) as error:
        _plan(**grid)
    assert list(error.value.problems) == ["stages.s23: 121392 runs; a sweep has at most 100000"]
