"""`launch.beaker`: what a grid may say of Beaker, its mistakes, the experiment that it becomes."""

import re
from typing import Any

import pytest

from sweeper.backends.base import JobSpec
from sweeper.backends.beaker.options import Options, merged
from sweeper.backends.beaker.spec import Names, spec
from sweeper.errors import GridError
from sweeper.fields.options import over, read_options
from sweeper.grid import parse_grid

WHOLE = """{image: lab/sweeper, workspace: lab/sweeps, budget: lab/training, python: python3,
  clusters: [lab/a100, 'lab/h100-*'], hostnames: [node-3.lab.org], priority: high,
  min_runtime: 1h, cpus: 0.5, memory: 4GiB, gpus: 2, shared_memory: 10GiB,
  datasets: {/data: lab/prompts}, weka: {/weka/models: models}, timeout: 2h,
  secrets: {TINKER_API_KEY: TINKER_API_KEY}, overrides: [{if: {x: [1]}, memory: 8GiB}]}"""
RIGHT = [
    WHOLE,
    "{}",
    "null",
    "{image: 01JABC}",
    "{docker_image: 'registry/sweeper@sha256:00', preemptible: false}",
    "{image: null, docker_image: sweeper}",
]
WRONG = [
    "[image]",
    "{imge: lab/sweeper}",
    "{image: 'a b'}",
    "{image: a/b/c}",
    "{image: lab/sweeper, docker_image: sweeper}",
    "{docker_image: 'a b'}",
    "{workspace: ''}",
    "{budget: 'lab/post training'}",
    "{clusters: lab/a100}",
    "{clusters: []}",
    "{clusters: [a100]}",
    "{hostnames: ['a b']}",
    "{priority: highest}",
    "{preemptible: sometimes}",
    "{preemptible: false, min_runtime: 1h}",
    "{min_runtime: 30 s}",
    "{cpus: 0}",
    "{cpus: 500m}",
    "{memory: 4 GB}",
    "{memory: 4096}",
    "{gpus: 0}",
    "{shared_memory: 10G}",
    "{datasets: [lab/prompts]}",
    "{datasets: {data: lab/prompts}}",
    "{datasets: {/data: 'lab/a b'}}",
    "{weka: {/weka: lab/models}}",
    "{secrets: [TINKER_API_KEY]}",
    "{secrets: {TINKER_API_KEY: tml-the-value}}",
    "{secrets: {1A: TINKER_API_KEY}}",
    "{timeout: 30 s}",
]


def _grid(section: str) -> str:
    return f"recipe: r\ngrid: {{x: [1, 2]}}\nlaunch: {{beaker: {section}}}"


def _made(section: str, **run: Any) -> dict[str, Any]:
    options = parse_grid(_grid(section), "g.yaml").launch.options["beaker"]
    whole = read_options(Options, options, "launch.beaker")
    argv = ["python", "-c", "$(HOME)", "0123456789ab-a1"]
    job = JobSpec(argv[-1], "x=1", argv, "/", {}, grace_s=44.5)
    return spec(job, over(whole, run, merged), Names("s", "/nowhere/s"))


@pytest.mark.parametrize("section", RIGHT)
def test_both_take_it(grid_readers: Any, section: str) -> None:
    grid_readers.take(_grid(section))


@pytest.mark.parametrize("section", WRONG)
def test_both_refuse_it(grid_readers: Any, section: str) -> None:
    error = grid_readers.refuse(_grid(section))
    assert re.match(r"g\.yaml:3:\d+: ", error)
    assert "tml-the-value" not in error


def test_what_holds_for_a_sweep_is_no_override() -> None:
    with pytest.raises(GridError, match="workspace must be the same for all runs of a sweep"):
        parse_grid(_grid("{overrides: [{if: {x: [1]}, workspace: lab/other}]}"), "g.yaml")


def test_what_is_given_arrives() -> None:
    made = _made(WHOLE)
    (task,) = made["tasks"]
    assert (made["version"], made["budget"]) == ("v2", "lab/training")
    assert made["retry"] == {"allowedTaskRetries": 0}
    assert task["image"] == {"beaker": "lab/sweeper"}
    assert task["command"][2] == "$(HOME)"
    assert task["resources"] == {
        "cpuCount": 0.5,
        "memory": "4GiB",
        "gpuCount": 2,
        "sharedMemory": "10GiB",
    }
    assert task["constraints"] == {
        "cluster": ["lab/a100", "lab/h100-*"],
        "hostname": ["node-3.lab.org"],
    }
    hour = 3600 * 10**9
    assert task["context"] == {"priority": "high", "minRuntime": hour, "autoResume": False}
    assert task["timeout"] == 2 * hour
    assert task["envVars"] == [{"name": "TINKER_API_KEY", "secret": "TINKER_API_KEY"}]
    assert task["datasets"] == [
        {"mountPath": "/data", "source": {"beaker": "lab/prompts"}},
        {"mountPath": "/weka/models", "source": {"weka": "models"}},
    ]


@pytest.mark.parametrize("section", [WHOLE, "{docker_image: sweeper, preemptible: false}"])
def test_the_experiment_is_one_of_beakers(section: str, beaker_support: Any) -> None:
    """By the dataclasses of its own client."""
    made = _made(section)
    assert list(beaker_support.unknown(made)) == []
    made["tasks"][0]["comand"] = made["tasks"][0].pop("command")
    assert list(beaker_support.unknown(made)) == ["spec.tasks[0].comand is not known"]


def test_what_does_not_go_together_takes_the_place_of_the_other() -> None:
    """In an override, and in a grid over the configuration file."""
    (task,) = _made("{image: lab/a, min_runtime: 1h}", docker_image="b", preemptible=False)["tasks"]
    assert task["image"] == {"docker": "b"}
    assert task["context"] == {"preemptible": False}
    (task,) = _made("{docker_image: b, preemptible: false}", min_runtime_s=60.0)["tasks"]
    assert task["image"] == {"docker": "b"}
    assert task["context"] == {"minRuntime": 60 * 10**9, "autoResume": False}
