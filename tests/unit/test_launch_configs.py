"""Config objects from Python: the grid made from them, and the functions that take them."""

import dataclasses
import sys

import chz
import pytest

import sweeper
from sweeper.errors import GridError, UsageError
from sweeper.grid.translation.from_configs import grid_of
from sweeper.planner.plan import plan
from sweeper.results.registry import Registry

MODULE = """
import dataclasses, json, os
import chz

@chz.chz
class Optimizer:
    lr: float = 0.1

@chz.chz
class Config:
    log_path: str = ""
    steps: int = 3
    optimizer: Optimizer = chz.field(default_factory=Optimizer)
    tags: list[str] = chz.field(default_factory=list)
    extra: object = None
    seed: int = 0

@dataclasses.dataclass
class Inner:
    width: int = 8

@dataclasses.dataclass
class Data:
    lr: float
    inner: Inner = dataclasses.field(default_factory=Inner)
    log_path: str = ""
    fixed: tuple[int, ...] = (1, 2)

def _write(config, value):
    with open(os.path.join(config.log_path, "metrics.jsonl"), "a") as file:
        file.write(json.dumps({"step": 0, "loss": value}) + "\\n")

def train(config: Config) -> None:
    assert type(config) is Config and type(config.optimizer) is Optimizer
    _write(config, config.optimizer.lr * config.steps)

async def fit(config: Data):
    assert type(config) is Data and type(config.inner) is Inner and config.fixed == (1, 2)
    _write(config, config.lr * config.inner.width)

def build(config: Config) -> Config:
    return config

def two(config: Config, other: int) -> None: ...
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "configured.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "configured", raising=False)
    import configured

    yield configured
    sys.modules.pop("configured", None)


def launch(configs, main, **options):
    overrides = {"launch.backend": "local", "launch.max_parallel": 2}
    launched = sweeper.launch(configs, "sweeps", main=main, overrides=overrides, **options)
    registry = Registry("sweeps")
    table = registry.metrics(registry.runs(sweep=launched.name), keys=["loss"])
    losses = dict(zip(table["run"], table["loss"], strict=True))
    return {run.name: losses[run.id] for run in registry.sweep(launched.name).runs}


def test_objects_of_a_chz_class_are_runs(module):
    configs = [
        module.Config(steps=2, optimizer=module.Optimizer(lr=lr), seed=seed)
        for lr in (0.1, 0.5)
        for seed in (4, 5)
    ]
    losses = launch(configs, module.train)
    assert losses == {
        "lr=0.1,seed=4": 0.2, "lr=0.1,seed=5": 0.2, "lr=0.5,seed=4": 1.0, "lr=0.5,seed=5": 1.0,
    }  # fmt: skip
    more = [*configs, *(module.Config(steps=2, seed=seed, tags=["a"]) for seed in (4, 5))]
    assert len(grid_of(more, module.train, None)["include"]) == 3


def test_objects_of_a_dataclass_are_runs_of_a_coroutine(module):
    configs = [module.Data(lr=0.5), module.Data(lr=0.25, inner=module.Inner(width=2))]
    losses = launch(configs, module.fit, name="fits")
    assert losses == {"lr=0.5,width=8": 4.0, "lr=0.25,width=2": 0.5}


def test_one_config_is_one_run_with_the_name_of_the_module(module):
    grid = grid_of([module.Config(steps=5)], module.train, None)
    assert (grid["name"], grid["recipe"]) == ("configured", "configured:train")
    assert (grid["base"]["steps"], "include" in grid) == (5, False) and len(plan(grid).runs) == 1


def test_a_function_that_takes_a_config_is_a_recipe(module):
    grid = {"name": "g", "recipe": "configured:train"}
    assert plan({**grid, "base": {"optimizer.lr": 0.3}}).recipe.log_path_field == "log_path"
    with pytest.raises(GridError, match=r"nope"):
        plan({**grid, "base": {"nope": 1}})
    with pytest.raises(GridError, match=r"lr"):
        plan({"name": "g", "recipe": "configured:fit", "base": {"lr": "x"}})


@dataclasses.dataclass
class Mine:
    a: int = 1


@chz.chz
class Odd:
    a: object = None


def run_mine(config: Mine) -> None:
    """Take a config."""


def test_what_cannot_be_a_run_is_refused(module):
    def inner(config: Mine) -> None: ...

    made = module.Config()
    for configs, main, message in (
        ([], module.train, "the first argument must be a list of configs"),
        ({"name": "g"}, module.train, "the first argument must be a list of configs"),
        ([3], module.train, r"configs\[0\] is of type int, not a chz object or a dataclass"),
        ([module.Config], module.train, r"configs\[0\] is of type type, not a chz object"),
        ([made, module.Config()], module.train, r"configs\[1\] equals configs\[0\]"),
        (
            [module.Config(extra=object())],
            module.train,
            r"configs\[0\].extra is of type object, which a grid",
        ),
        ([made], inner, "main must be a function at the top level of a module"),
        ([made], module.Config, "main must be a function at the top level of a module"),
    ):
        with pytest.raises(UsageError, match=message):
            sweeper.launch(configs, "sweeps", main=main)
    run_mine.__module__ = "__main__"
    with pytest.raises(UsageError, match="is defined in the program that launches"):
        sweeper.launch([Mine()], "sweeps", main=run_mine)
    with pytest.raises(UsageError, match="a list of configs needs main=FUNCTION"):
        sweeper.launch([made], "sweeps")
