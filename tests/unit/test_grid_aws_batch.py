"""`launch.aws_batch`: what a grid may say of AWS Batch, its mistakes, the defaults."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sweeper.backends.aws_batch import BACKEND
from sweeper.backends.aws_batch.options import RESTARTS, Options, read_options
from sweeper.backends.base import Counter
from sweeper.common.json_values import table_of
from sweeper.errors import GridError, UsageError
from sweeper.grid import parse_grid

SECRET = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:tinker-AbCdEf"
PARAMETER = "arn:aws:ssm:eu-central-1:123456789012:parameter/wandb/key"
WHOLE = (
    "{queue: q, image: '123456789012.dkr.ecr.eu-central-1.amazonaws.com/sweeper:1', role: arn:x, "
    "execution_role: r, vcpus: 0.5, memory: 2048, gpus: 1, timeout: 2h, region: eu-central-1, "
    f"profile: lab, secrets: {{TINKER_API_KEY: '{SECRET}', K: '{PARAMETER}'}}, "
    "tags: {team: post training}, array: 0, retries_on_interruption: 9, python: python3.12}"
)

RIGHT = [
    WHOLE,
    "{}",
    "null",
    "{queue: q}",
    "{queue: 'arn:aws:batch:eu-central-1:1:job-queue/q', job_definition: 'd:3', image: null}",
]
WRONG = [
    "[q]",
    "{quue: q}",
    "{queue: 'a b'}",
    "{queue: 3}",
    "{vcpus: 0}",
    "{vcpus: '1'}",
    "{vcpus: true}",
    "{memory: 2G}",
    "{memory: 1.5}",
    "{gpus: 0}",
    "{timeout: 30 s}",
    "{region: Frankfurt}",
    "{secrets: [TINKER_API_KEY]}",
    "{secrets: {TINKER_API_KEY: tml-the-value}}",
    f"{{secrets: {{1A: '{SECRET}'}}}}",
    "{tags: {'aws:x': y}}",
    "{tags: {'Sweeper:x': y}}",
    "{tags: {a: 3}}",
    "{array: -1}",
    "{retries_on_interruption: 10}",
    "{job_definition: d, image: i}",
    "{job_definition: d, role: r}",
]


def _grid(section: str) -> str:
    return f"recipe: r\nlaunch: {{aws_batch: {section}}}"


@pytest.mark.parametrize("section", RIGHT)
def test_both_take_it(grid_readers: Any, section: str) -> None:
    grid_readers.take(_grid(section))


@pytest.mark.parametrize("section", WRONG)
def test_both_refuse_it(grid_readers: Any, section: str) -> None:
    assert re.match(r"g\.yaml:2:\d+: ", grid_readers.refuse(_grid(section)))


def test_every_option_is_declared() -> None:
    assert {field.key or field.name for field in BACKEND.section} == set(Options._fields)


def test_the_documentation_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[2] / "docs" / "aws-batch.md").read_text()
    grid, config = (text.split(f"```{kind}\n")[1].split("```")[0] for kind in ("yaml", "toml"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "sweeper").mkdir()
    (tmp_path / "sweeper" / "config.toml").write_text(config)
    options = read_options(
        parse_grid(f"recipe: r\n{grid}", "g.yaml").launch.options.get("aws_batch", {})
    )
    assert set(options.secrets) == {"TINKER_API_KEY", "WANDB_API_KEY"}
    table = text.split("| `launch.aws_batch` |")[1].split("\n\n")[0]
    assert all(f"`{key}`" in table for key in BACKEND.section.fields)
    (tmp_path / "sweeper" / "config.toml").write_text(config)
    assert read_options(_options("{}")).queue == "spot"


def test_what_is_given_arrives() -> None:
    launch = parse_grid(_grid(WHOLE), "g.yaml").launch
    given = table_of(launch.document()["aws_batch"])
    options = read_options(given)
    assert {key: getattr(options, key) for key in given} == given
    assert given.keys() == set(options._fields) - {"job_definition"}
    assert (options.queue, options.vcpus, options.timeout_s, options.array) == ("q", 0.5, 7200.0, 0)
    assert options.secrets == {"TINKER_API_KEY": SECRET, "K": PARAMETER}
    capabilities = BACKEND.capabilities(given)
    assert (capabilities.here, capabilities.files, capabilities.python) == (
        False,
        False,
        "python3.12",
    )
    assert (capabilities.secrets, capabilities.restarts) == (
        {"TINKER_API_KEY", "K"},
        Counter(RESTARTS, 1),
    )
    json.dumps(launch.document())


def test_a_value_where_an_arn_belongs_is_not_repeated() -> None:
    with pytest.raises(GridError) as caught:
        parse_grid(_grid("{secrets: {TINKER_API_KEY: tml-hush-hush}}"), "g.yaml")
    assert "TINKER_API_KEY takes the ARN" in str(caught.value)
    assert "hush" not in str(caught.value)


def test_a_number_that_is_too_small_is_said_as_it_is() -> None:
    with pytest.raises(GridError, match=r"vcpus is 0; it takes a number above 0, at most 1024"):
        parse_grid(_grid("{vcpus: 0}"), "g.yaml")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "no queue is given"),
        ({"queue": "q"}, "no image is given.* or job_definition"),
        ({"queue": "q", "image": "i", "job_definition": "d"}, "remove one of them"),
    ],
)
def test_what_is_needed(given: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        BACKEND.capabilities(given)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = tmp_path / "sweeper" / "config.toml"
    path.parent.mkdir()
    return path


def _options(text: str, backend: str = "aws-batch") -> dict[str, object]:
    grid = parse_grid(f"recipe: r\nlaunch: {{backend: {backend}, aws_batch: {text}}}", "g.yaml")
    return dict(grid.launch.options.get("aws_batch", {}))


def test_a_table_that_nobody_reads_is_told(config: Path) -> None:
    config.write_text('[aws_bacth]\nqueue = "spot"\n')
    with pytest.raises(
        GridError, match=r"config.toml: unknown table \[aws_bacth\]; did you mean 'aws_batch'"
    ):
        _options("{memory: 1024}")
    config.write_text("[backend_of_theirs]\nqueue = 1\n")
    assert _options("{memory: 1024}") == {"memory": 1024}


def test_defaults_are_put_on_record(config: Path) -> None:
    config.write_text(
        '[aws_batch]\nqueue = "spot"\nimage = "i"\nrole = "r"\nmemory = 512\ntimeout = "2h"\n'
    )
    assert _options("{memory: 1024}") == {
        "queue": "spot",
        "image": "i",
        "role": "r",
        "memory": 1024,
        "timeout_s": 7200.0,
    }
    # A definition that is named has a role of its own.
    assert _options("{job_definition: d}").keys() == {
        "queue",
        "job_definition",
        "memory",
        "timeout_s",
    }
    assert _options("{memory: 1024}", "tmux") == {"memory": 1024}


def test_a_mistake_in_the_defaults_says_where(config: Path) -> None:
    config.write_text("[aws_batch]\nquue = 'x'\n")
    with pytest.raises(GridError, match=r"config\.toml.*unknown key 'quue' in aws_batch.*'queue'"):
        _options("{}")
    config.write_text("[aws_batch\n")
    with pytest.raises(GridError, match=r"config\.toml: cannot be read"):
        _options("{}")
    assert _options("{}", "local") == {}
