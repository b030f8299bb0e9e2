"""The JSON Schema of grids accepts and refuses the same grids as the reader."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from sweeper.common import alarm_thresholds as thresholds
from sweeper.fields import nodes
from sweeper.grid import grid_from_mapping, launch, parse_grid
from sweeper.grid.json_schema import grid_schema
from sweeper.sweep.launch_settings import Launch

LAUNCH = [field.name for field in launch.SECTION if field.default is not None]
ROOT = Path(__file__).parents[2]
SCHEMA: Any = grid_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

RIGHT = [
    "recipe: r",
    "name: a.b-c\nrecipe: pkg.mod:Config\nservice: tinker\nmetric: {name: m, goal: maximize}",
    "recipe: r\nmetric: {name: m, goal: minimize, at: {mean_of_last: 5}, failed: drop}",
    "recipe: r\nmetric: {name: m, goal: minimize, noise: {from: [a, b.c]}}",
    "command: [python, x.py, '{lr}', 3]\nbase: {lr: 1, opt: {wd: 2}}\nservice: none",
    "recipe: r\ngrid: {lr: [1e-4, 3e-4], opt.wd: [null, 0]}\nzip: [{a: [1, 1], b: [x, y]}]",
    "recipe: r\nbase:\ngrid:\nseeds:\nlaunch:\nmetric:\nsecrets:\nwhen:\nrandom:\nservice:",
    "recipe: r\nrandom: {samples: 4, seed: 7, axes: {t: {uniform: [0.5, 1]}, w: {choice: [0, a]}, "
    "lr: {log_uniform: [1e-5, 1e-2]}, n: {integers: [1, 9]}, m: {log_integers: [1, 900]}}}",
    "recipe: r\ngrid: {opt: [adam, sgd]}\nwhen: [{if: {opt: adam}, grid: {b2: [0.9, 0.99]}}, {if: "
    "{opt: [sgd]}, base: {m: 0.9}}]",
    "recipe: r\ngrid: {a: [1, 2]}\nexclude: [{a: 1}]\ninclude: [{a: 3, b: 4}]",
    "recipe: r\ngrid: {a: {logspace: [1e-5, 1, 4]}, b: {linspace: [0, 1, 5]}, c: {range: [1, "
    "9]}}\nzip: [{d: {range: [1, 3]}, e: [1, 2]}]",
    "recipe: r\nseeds: 3", "recipe: r\nseeds: [11, -2]",
    "recipe: r\nseeds: {field: shuffle_seed, values: 3}", "recipe: r\nbase: {a: 8, b: '${a}'}",
    "recipe: r\nlaunch: {backend: local, max_parallel: 1, retries: 0, timeout: 1h30m, python: p, "
    "cwd: ., env: {A: '1', B: 2}, resume: never, lease: 15, grace: 1.5s, log_path_field: out.dir, "
    "window: '{a}', sync: 30s}",
    "recipe: r\nlaunch: {slurm: {partition: p, account: 7, qos: q, time: 2h, cpus: 4, mem: 32G, "
    "gres: 'gpu:1', constraint: a&b, extra: [--exclusive, --nice=3], setup: ['module load x'], "
    "requeue: false, signal: 3m, throttle: 16, array: 500, overrides: [{if: {a: [1, 2], b: x}, "
    "mem: 64G, time: 1d}]}}",
    "recipe: r\nlaunch: {slurm: {partition: null, overrides: []}}\nsecrets: [A_KEY, B]",
    "recipe: r\nwandb: {project: p, entity: us, group: g, tags: [a, b c], mode: offline}",
    "recipe: r\nwandb:",
    "recipe: r\nalarms: {spike: off, nan: on, kl: {above: 1}, stalled: {after: 5m, first: 1h}, "
    "no_signal: {steps: 3, below: 0.1}, entropy: null, collapse: {lost: null}, paused: false}",
    "recipe: r\nalarms:\non_alarm:", "recipe: r\non_alarm: {stop: sweep, rules: [nan, divergence]}",
    "recipe: r\nbaseline: {cell: {a: 1}}", "recipe: r\nbaseline: {sweep: other}",
    "order: breadth\nstages: {a: {recipe: r, grid: {x: [1, 2]}, seeds: 2, metric: {name: m, goal: "
    "minimize}}, b: {command: [t], from: {stage: a, take: best}, base: {p: '${a.x}'}}, c: "
    "{recipe: r, from: [{b: each, a: {top: 2}}, {base: true}], baseline: base}}",
    "launch: {backend: slurm}\nstages: {a: {recipe: r, launch: {retries: 1, max_parallel: 2, "
    "timeout: 1h, python: p, cwd: ., env: {A: 1}, resume: never, grace: 5s, window: w, warm: "
    "false, slurm: {mem: 8G}}}}",
    "recipe: r\non_alarm: {run: [notify, '{name}: {message}', 3, '{{}}'], stop: run}",
]  # fmt: skip

WRONG = [
    "- a", "recipe: r\nbaseline: {cell: 3}", "recipe: r\nbaseline: best", "stages: {}",
    "stages: {a: {grid: {x: [1]}}}", "stages: {a: {recipe: r}, from: {recipe: r}}",
    "stages: {a: {recipe: r, launch: {backend: local}}}",
    "stages: {a: {recipe: r, launch: {retries: some}}}",
    "stages: {a: {recipe: r, launch: {aws_batch: {queue: q}}}}",
    "stages: {a: {recipe: r}, b: {recipe: r, from: {stage: a}}}",
    "stages: {a: {recipe: r}, b: {recipe: r, from: []}}",
    "stages: {a: {recipe: r, metric: {name: m}}}", "recipe: r\nstages: {a: {recipe: r}}",
    "order: last\nstages: {a: {recipe: r}}", "base: {}", "recipe: r\ncommand: [a]", "recipe: [a]",
    "recipe: ''", "command: a b", "command: []", "command: [a, 0.5]", "nam: x\nrecipe: r",
    "name: ../x\nrecipe: r", "recipe: r\nservice: locl", "recipe: r\nbase: [1]",
    "recipe: r\nbase: {a@: x}", "recipe: r\ngrid: {lr: 0.1}", "recipe: r\ngrid: {lr: []}",
    "recipe: r\ngrid: {lr: {linspace: [0, 1]}}", "recipe: r\ngrid: {lr: {logspace: [0, 1, 3]}}",
    "recipe: r\ngrid: {lr: {range: [1, 9], linspace: [0, 1, 3]}}",
    "recipe: r\ngrid: {lr: [1, 2, 1.0]}", "recipe: r\ngrid: {lr: null}",
    "recipe: r\ngrid: {'': [1]}", "recipe: r\nzip: {a: [1]}", "recipe: r\nzip: [{a: []}]",
    "recipe: r\nzip: [{}]", "recipe: r\nexclude: {a: 1}", "recipe: r\nexclude: [{}]",
    "recipe: r\ninclude: [3]", "recipe: r\nrandom: {axes: {a: {uniform: [0, 1]}}}",
    "recipe: r\nrandom: {samples: 3}",
    "recipe: r\nrandom: {samples: 0, axes: {a: {uniform: [0, 1]}}}",
    "recipe: r\nrandom: {samples: 3, axes: {}}",
    "recipe: r\nrandom: {samples: 3, axes: {a: [0, 1]}}",
    "recipe: r\nrandom: {samples: 3, axes: {a: {normal: [0, 1]}}}",
    "recipe: r\nrandom: {samples: 3, axes: {a: {uniform: [0, 1], choice: [1]}}}",
    "recipe: r\nrandom: {samples: 3, axes: {a: {uniform: [0]}}}",
    "recipe: r\nrandom: {samples: 3, axes: {a: {integers: [0.5, 2]}}}",
    "recipe: r\nrandom: {samples: 3, axes: {a: {log_uniform: [0, 1]}}}",
    "recipe: r\nrandom: {samples: 3, axes: {a: {choice: []}}}",
    "recipe: r\nrandom: {sample: 3, axes: {a: {choice: [1]}}}",
    "recipe: r\nwhen: {if: {a: 1}, grid: {b: [1]}}",
    "recipe: r\nbase: {a: 1}\nwhen: [{grid: {b: [1]}}]",
    "recipe: r\nbase: {a: 1}\nwhen: [{if: {a: 1}}]",
    "recipe: r\nbase: {a: 1}\nwhen: [{if: {a: []}, grid: {b: [1]}}]",
    "recipe: r\nbase: {a: 1}\nwhen: [{if: {a: 1}, grids: {b: [1]}}]", "recipe: r\nseeds: 0",
    "recipe: r\nseeds: []", "recipe: r\nseeds: [1, 1]", "recipe: r\nseeds: [0.5]",
    "recipe: r\nseeds: x", "recipe: r\nseeds: {field: seed}",
    "recipe: r\nseeds: {field: '0', values: 3}",
    "recipe: r\nmetric: {name: m, goal: minimize, at: {mean_of_last: 0}}",
    "recipe: r\nmetric: {name: m, goal: minimize, at: {mean_of_last: 2, last: 1}}",
    "recipe: r\nmetric: {name: m, goal: minimize, at: {}}",
    "recipe: r\nmetric: {name: m, goal: minimize, noise: {from: []}}",
    "recipe: r\nmetric: {name: m, goal: minimize, noise: {from: [a/b]}}",
    "recipe: r\nmetric: {name: m, goal: minimize, noise: shared}",
    "recipe: r\nmetric: {name: m, goal: minimize, failed: ignore}", "recipe: r\nmetric: {name: m}",
    "recipe: r\nmetric: {goal: minimize}", "recipe: r\nmetric: {name: m, goal: min}",
    "recipe: r\nmetric: {name: m, goal: minimize, at: end}", "recipe: r\nmetric: test/nll",
    "recipe: r\nsecrets: [A=b]", "recipe: r\nsecrets: A", "recipe: r\nlaunch: {max_paralel: 3}",
    "recipe: r\nlaunch: {max_parallel: 0}", "recipe: r\nlaunch: {retries: -1}",
    "recipe: r\nlaunch: {retries: '2'}", "recipe: r\nlaunch: {timeout: 2 hours}",
    "recipe: r\nlaunch: {timeout: ''}", "recipe: r\nlaunch: {timeout: 0}",
    "recipe: r\nlaunch: {backend: Tmux}", "recipe: r\nlaunch: {resume: maybe}",
    "recipe: r\nlaunch: {env: {A: 1.5}}", "recipe: r\nlaunch: {env: {1A: x}}",
    "recipe: r\nlaunch: {env: {SWEEPER_RUN: x}}", "recipe: r\nlaunch: {log_path_field: a b}",
    "recipe: r\nlaunch: [tmux]", "recipe: r\nlaunch: {slurm: gpu}",
    "recipe: r\nlaunch: {slurm: {partitoin: p}}", "recipe: r\nlaunch: {slurm: {partition: a b}}",
    "recipe: r\nlaunch: {slurm: {mem: [4]}}", "recipe: r\nlaunch: {slurm: {cpus: 0}}",
    "recipe: r\nlaunch: {slurm: {requeue: 1}}", "recipe: r\nlaunch: {slurm: {time: 60}}",
    "recipe: r\nlaunch: {slurm: {extra: --exclusive}}",
    "recipe: r\nlaunch: {slurm: {extra: [--time=5]}}",
    "recipe: r\nlaunch: {slurm: {extra: [-J x]}}",
    'recipe: r\nlaunch: {slurm: {extra: ["--nice=3\\n--wrap=x"]}}',
    'recipe: r\nlaunch: {slurm: {setup: ["a\\nb"]}}',
    "recipe: r\nlaunch: {slurm: {overrides: {if: {a: 1}, mem: 4}}}",
    "recipe: r\nlaunch: {slurm: {overrides: [{mem: 4}]}}",
    "recipe: r\nlaunch: {slurm: {overrides: [{if: {a: 1}}]}}",
    "recipe: r\nlaunch: {slurm: {overrides: [{if: {a: 1}, overrides: []}]}}", "recipe: r\nwandb: p",
    "recipe: r\nwandb: {entity: us}", "recipe: r\nwandb: {project: a/b}",
    "recipe: r\nwandb: {project: ' '}", 'recipe: r\nwandb: {project: p, group: "a\\nb"}',
    "recipe: r\nwandb: {project: p, group: ' '}", "recipe: r\nwandb: {project: p, tags: [' ']}",
    "recipe: r\nwandb: {project: p, entity: a b}", "recipe: r\nwandb: {project: p, tags: a}",
    "recipe: r\nwandb: {project: p, tags: ['a,b']}", "recipe: r\nwandb: {project: p, tags: [1]}",
    "recipe: r\nwandb: {project: p, mode: of}", "recipe: r\nwandb: {projekt: p}",
    "recipe: r\nalarms: off", "recipe: r\nalarms: {klt: off}", "recipe: r\nalarms: {kl: 0.5}",
    "recipe: r\nalarms: {nan: {above: 1}}", "recipe: r\nalarms: {kl: {over: 1}}",
    "recipe: r\nalarms: {kl: {above: -1}}", "recipe: r\nalarms: {kl: {above: '1'}}",
    "recipe: r\nalarms: {kl: {steps: 2.5}}", "recipe: r\nalarms: {kl: {steps: 51}}",
    "recipe: r\nalarms: {stalled: {after: soon}}", "recipe: r\non_alarm: {}",
    "recipe: r\non_alarm: {rules: [kl]}", "recipe: r\non_alarm: {stop: all}",
    "recipe: r\non_alarm: {stop: run, rules: []}", "recipe: r\non_alarm: {stop: run, rules: [klt]}",
    "recipe: r\non_alarm: {run: notify}", "recipe: r\non_alarm: {run: []}",
    "recipe: r\non_alarm: {run: [notify, 0.5]}", "recipe: r\non_alarm: {run: [notify, '{who}']}",
    "recipe: r\non_alarm: {run: [notify, '{']}", "recipe: r\nextends: 3",
]  # fmt: skip


def data(text: str) -> object:
    root = nodes.read_yaml(text, "g.yaml", nodes.Problems())
    assert root is not None
    return nodes.plain(root)


def test_the_schema_is_valid():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("text", RIGHT)
def test_reader_and_schema_accept(grid_readers, text):
    grid_readers.take(text)


@pytest.mark.parametrize("text", WRONG)
def test_reader_and_schema_refuse(grid_readers, text):
    grid_readers.refuse(text)


GRIDS = sorted((ROOT / "grids").rglob("*.yaml"))


@pytest.mark.parametrize("path", GRIDS, ids=lambda path: path.name)
def test_every_grid_here_is_right(path):
    VALIDATOR.validate(data(path.read_text()))


def test_a_grid_that_extends_another_may_be_a_part(tmp_path):
    """The other may have what it leaves out; null removes a key."""
    whole = "recipe: r\ngrid: {a: [1, 2], b: [3, 4]}\nmetric: {name: m, goal: minimize}\nseeds: 3"
    part = "extends: whole.yaml\ngrid: {a: null}\nmetric: {at: best}"
    (tmp_path / "whole.yaml").write_text(whole)
    parse_grid(part, str(tmp_path / "part.yaml"))
    VALIDATOR.validate(data(part))


def test_every_field_has_its_words():
    """Editors show them, and `init` writes them."""

    def untold(schema: dict[str, Any], where: str) -> Iterator[str]:
        for name, about in schema.get("properties", {}).items():
            if not about.get("description"):
                yield f"{where}.{name}"
            yield from untold(about, f"{where}.{name}")

    assert list(untold(SCHEMA, "")) == []


def test_the_defaults_are_those_of_a_plan():
    """Read from a grid, they change nothing."""
    written = {field.name: field.default for field in launch.SECTION if field.default is not None}
    assert grid_from_mapping({"name": "n", "recipe": "r", "launch": written}).launch == Launch()
    rules = SCHEMA["properties"]["alarms"]["properties"]
    given = {
        name: {key: about["default"] for key, about in rule["anyOf"][1]["properties"].items()}
        for name, rule in rules.items()
    }
    alarms = grid_from_mapping({"name": "n", "recipe": "r", "alarms": given}).alarms
    assert thresholds.resolve(alarms) == thresholds.resolve()


def _examples() -> Iterator[dict[str, Any]]:
    for option in launch.SECTION:
        yield from ({option.name: example} for example in option.examples)
    for field in launch.backend_fields():
        for option in field.kind.section:  # type: ignore[attr-defined]
            for example in option.examples:
                yield {field.name: {option.name: example}}


@pytest.mark.parametrize("given", list(_examples()), ids=str)
def test_an_example_is_right(given):
    """Without the comment signs, it is a valid part of a grid."""
    options = {"slurm": {"mem": "64G"}, "ray": {"memory": 64}, "kubernetes": {"memory": "64Gi"}}
    options |= {"beaker": {"memory": "64GiB"}, "modal": {"memory": 4096}}
    for name, more in options.items():
        if "overrides" in given.get(name, {}):
            given[name]["overrides"][0] |= more
    grid = {"name": "n", "recipe": "r", "launch": given}
    grid_from_mapping(grid)
    VALIDATOR.validate(grid)


SPARSE: dict[str, Any] = {
    "name": "n", "recipe": "r", "metric": {"name": "m", "goal": "minimize"},
    "random": {"samples": 2, "axes": {"t": {"uniform": [0, 1]}}}, "seeds": {"values": 2},
    "launch": {"retries": 1},
}  # fmt: skip


@pytest.mark.parametrize(
    "path", ["service", "metric.at", "random.seed", "seeds.field", *(f"launch.{k}" for k in LAUNCH)]
)
def test_a_declared_default_is_what_holds_where_nothing_is_written(path):
    about: Any = SCHEMA
    for name in path.split("."):
        about = next(
            schema for schema in (about, *about.get("anyOf", ())) if "properties" in schema
        )
        about = about["properties"][name]
    sparse, written = copy.deepcopy(SPARSE), copy.deepcopy(SPARSE)
    sparse["launch"].pop(path.rpartition(".")[2], None)
    *above, name = path.split(".")
    inner = written
    for schema in above:
        inner = inner[schema]
    inner[name] = about["default"]

    def read(grid: dict[str, Any]) -> Any:
        parsed = grid_from_mapping(grid)
        return parsed.service, parsed.metric, parsed.random, parsed.seeds, parsed.launch

    assert read(written) == read(sparse)
