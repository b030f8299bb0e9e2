"""`launch.modal`: what a grid may say of Modal, its mistakes, the sandbox that it becomes."""

import re
from typing import Any

import pytest

from sweeper.backends.base import JobSpec
from sweeper.backends.modal.options import Options
from sweeper.backends.modal.spec import Names, spec
from sweeper.errors import GridError
from sweeper.fields.options import read_options
from sweeper.grid import parse_grid

WHOLE = """{image: 'registry/sweeper@sha256:00', app: sweeps, environment: research,
  python: python3,
  cpus: 0.5, memory: 4096, region: [us-east, eu], cloud: aws, timeout: 2h,
  secrets: {TINKER_API_KEY: tinker, WANDB_API_KEY: keys, OTHER: keys},
  overrides: [{if: {x: [1]}, memory: 8192}]}"""
RIGHT = [WHOLE, "{}", "null", "{image: sweeper}"]
WRONG = [
    "[image]",
    "{imge: sweeper}",
    "{image: 'a b'}",
    "{app: 'my app'}",
    "{app: ''}",
    "{environment: a/b}",
    "{python: ''}",
    "{cpus: 0}",
    "{cpus: 500m}",
    "{memory: 4GiB}",
    "{memory: 64}",
    "{region: us-east}",
    "{region: []}",
    "{region: [US East]}",
    "{cloud: [aws]}",
    "{timeout: 30 s}",
    "{timeout: week}",
    "{gpus: 1}",
    "{secrets: [TINKER_API_KEY]}",
    "{secrets: {TINKER_API_KEY: tml-the-value}}",
    "{secrets: {TINKER_API_KEY: as-the-token}}",
    "{secrets: {1A: tinker}}",
]


def _grid(section: str) -> str:
    return f"recipe: r\ngrid: {{x: [1, 2]}}\nlaunch: {{modal: {section}}}"


@pytest.mark.parametrize("section", RIGHT)
def test_both_take_it(grid_readers: Any, section: str) -> None:
    grid_readers.take(_grid(section))


@pytest.mark.parametrize("section", WRONG)
def test_both_refuse_it(grid_readers: Any, section: str) -> None:
    error = grid_readers.refuse(_grid(section))
    assert re.match(r"g\.yaml:3:\d+: ", error)
    assert "tml-the-value" not in error and "as-the-token" not in error


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("{timeout: 25h}", "a sandbox lasts at most 24h"),
        (
            "{overrides: [{if: {x: [1]}, app: other}]}",
            "app must be the same for all runs of a sweep",
        ),
        ("{overrides: [{if: {x: [1]}, image: other}]}", "image must be the same for all runs"),
    ],
)
def test_what_only_the_reader_refuses(section: str, message: str) -> None:
    with pytest.raises(GridError, match=message):
        parse_grid(_grid(section), "g.yaml")


def test_what_is_given_arrives() -> None:
    options = parse_grid(_grid(WHOLE), "g.yaml").launch.options["modal"]
    job = JobSpec("0123456789ab-a1", "x=1, y", ["python", "-m", "x"], "/", {})
    whole = read_options(Options, options, "launch.modal")
    made = spec(job, whole, Names("s", "/nowhere/s"))
    assert len(made["name"]) <= 63
    assert made["name"].endswith(job.token)
    assert made["tags"]["run"] == "x_1__y"
    assert {key: value for key, value in made.items() if key not in ("name", "tags")} == {
        "args": ["python", "-m", "x"],
        "image": "registry/sweeper@sha256:00",
        "secrets": ["keys", "tinker"],
        "timeout": 7200,
        "cpu": 0.5,
        "memory": 4096,
        "region": ["us-east", "eu"],
        "cloud": "aws",
    }
