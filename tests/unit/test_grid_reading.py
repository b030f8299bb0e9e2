"""What a grid may contain, and the exact message for each mistake."""

import math

import pytest

from sweeper.errors import GridError
from sweeper.fields.nodes import MAX_BYTES, MAX_DEPTH, MAX_NODES
from sweeper.grid import grid_from_mapping, load_grid, parse_grid
from sweeper.grid.reading import MAX_AXES
from sweeper.planner.plan import plan
from sweeper.sweep.metric import Metric

WHOLE = """
recipe: pkg.mod:Config
service: tinker
base: {model: a/b, opt: {lr: 1e-4, wd: 010}, none: ~, flag: no, empty: {}}
grid:
  rank: [8, 32]
zip:
  - {data: [add, copy], length: [64, 128]}
exclude: [{rank: 8, data: add}]
include: [{rank: 64}]
seeds: {field: shuffle, values: [3, 5]}
metric: {name: test/nll, goal: minimize, at: best}
secrets: [WANDB_API_KEY]
launch: {backend: local, max_parallel: 3, retries: 2, timeout: 1h30m, window: "{rank}",
         python: py, cwd: .., env: {A: "1", B: 2}, resume: never, lease: 50, grace: 1.5s,
         log_path_field: out, sync: 10, priority: 2, warm: false, requirements: needs.txt}
"""


def values(settings):
    return {key: setting.value for key, setting in settings.items()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("at: {mean_of_last: 5}", {"at": "mean_of_last=5"}),
        ("noise: {from: [a, b, a]}", {"noise": "from=a,b"}),
        ("noise: own, failed: worst", {"noise": "own", "failed": "worst"}),
    ],
)
def test_what_runs_are_judged_by(text, expected):
    grid = parse_grid(f"recipe: r\nmetric: {{name: m, goal: minimize, {text}}}", "g.yaml")
    assert grid.metric == Metric("m", "minimize", **expected)


def test_a_grid_with_everything():
    grid = parse_grid(WHOLE, "grids/w.yaml")
    assert (grid.name, grid.recipe, grid.command) == ("w", "pkg.mod:Config", None)
    assert values(grid.base) == {
        "model": "a/b", "opt.lr": 0.0001, "opt.wd": 10, "none": None, "flag": "no", "empty": {},
    }  # fmt: skip
    axes = [{k: [s.value for s in v] for k, v in block.axes.items()} for block in grid.blocks]
    assert axes == [{"rank": [8, 32]}, {"data": ["add", "copy"], "length": [64, 128]}]
    assert [values(rule) for rule in grid.exclude] == [{"rank": 8, "data": "add"}]
    assert [values(entry) for entry in grid.include] == [{"rank": 64}]
    assert (grid.seeds.field, grid.seeds.values) == ("shuffle", (3, 5))
    assert grid.metric == Metric("test/nll", "minimize", "best")
    assert grid.secrets == ("TINKER_API_KEY", "WANDB_API_KEY")
    assert grid.launch.document() == {
        "backend": "local", "max_parallel": 3, "retries": 2, "timeout_s": 5400.0, "python": "py",
        "cwd": "..", "env": {"A": "1", "B": "2"}, "resume": "never", "lease_s": 50.0,
        "grace_s": 1.5, "log_path_field": "out", "metrics_dir": None, "window": "{rank}",
        "sync_s": 10.0, "priority": 2.0, "warm": False, "requirements": "needs.txt", "gpus": 0,
        "window_panes": None, "per_gpu": 1,
    }  # fmt: skip
    assert str(grid.base["opt.wd"].place) == "grids/w.yaml:4:40"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 0.0001),
        ("1E5", 100000.0),
        (".5", 0.5),
        ("1.", 1.0),
        ("no", "no"),
        ("on", "on"),
        ("Yes", "Yes"),
        ("010", 10),
        ("0o10", 8),
        ("0x1F", 31),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("0b1", "0b1"),
        ("-.inf", -math.inf),
        ("2021-01-01", "2021-01-01"),
        ("null", None),
        ("'1'", "1"),
        ('"no\\n"', "no\n"),
        ("true", True),
        ("tRue", "tRue"),
        ("=", "="),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text, value):
    value_read = parse_grid(f"recipe: r\nbase: {{x: {text}}}", "g.yaml").base["x"].value
    assert value_read == value and type(value_read) is type(value)


MISTAKES = {
    "": " the grid is empty; it needs at least a recipe",
    "- a": "1:1: a grid is a mapping, not a list",
    "nam: x\nrecipe: r": "1:1: unknown key 'nam'; did you mean 'name'?",
    "base: {}": "1:1: a grid needs a recipe, or a command",
    "recipe: [a]": "1:9: recipe is a list; it takes a string",
    "command: a b": "1:10: command is a string; it takes a list such as [python, train.py, "
        "'--lr={lr}']",
    "command: []": "1:10: command is an empty list",
    "command: [a, 0.5]": "1:14: command: a number in the list; quote it",
    "name: ../x\nrecipe: r": "1:7: name: '../x' is not a valid sweep name (letters, digits, '.', "
        "'_' and '-', a letter or digit first, at most 100)",
    "recipe: ''": "1:9: recipe is empty",
    "stages: {a: {recipe: r, seeds: {race: 3..10}, metric: {name: m, goal: minimize}}}":
        "1:32: stages.a.seeds.race: a stage cannot have a race: write seeds: 3",
    "recipe: !!python/name:os.system x": "1:9: tag tag:yaml.org,2002:python/name:os.system: a "
        "grid has no tags",
    "%YAML 1.1\n---\nrecipe: r": "2:1: a grid must be YAML 1.2",
    "recipe: *a": "1:9: alias *a without an anchor &a before it",
    "recipe: a: b": "1:10: not YAML: mapping values are not allowed here",
}  # fmt: skip
MISTAKES_AFTER_RECIPE = {
    "command: [a]": "2:1: a grid has both a recipe and a command: remove one",
    "service: locl": "2:10: service: 'locl' is not one of local, tinker, none; did you mean "
        "'local'?",
    "base: [1]": "2:7: base is a list; it takes a mapping",
    "base: {a@: x}": "2:8: base: 'a@' cannot name a field (letters, digits, _ and -, with dots "
        "between the parts)",
    "base: {a...b: x}": "2:8: base: 'a...b' cannot name a field (letters, digits, _ and -, with "
        "dots between the parts)",
    "base: {<<: {}}": "2:8: base: merge keys (<<) are not part of YAML 1.2",
    "base: {a: 1, a: 2}": "2:14: key 'a' given twice (first on line 2)",
    "base: {a: {b: 1}, a.b: 2}": "2:19: base: 'a.b' is given twice",
    "base: {a: 1, a.b: 2}": "2:14: base: 'a.b' is given twice, also as 'a'",
    "base: {1: 2}": "2:8: key 1: keys are strings; quote it",
    "base: {x: 'a${y'}": "2:11: 'x': '${y' is not a reference like ${key}; write $${ for the text "
        "${",
    "base: {x: [{y: '${a b}'}]}": "2:16: 'x': '${a b}' is neither a key nor arithmetic like ${a "
        "// 2}: invalid syntax; write $${ for the text ${",
    "exclude: [{x: '${y}'}]": "2:15: exclude takes values, not references",
    'base: {x: "a\\0"}': "2:11: the character U+0000 cannot be passed to a run",
    'base: {x: "\\ud800"}': "2:11: the character U+D800 cannot be passed to a run",
    "base: {x: \x07}": "2:11: character U+0007 is not allowed in YAML: write \\u0007, in double "
        "quotes",
    "base: {x: a\u2028b}": "2:12: character U+2028 is not allowed in YAML: write \\u2028, in "
        "double quotes",
    "base: {x: 'a\u2029b'}": "2:13: character U+2029 is not allowed in YAML: write \\u2029, in "
        "double quotes",
    'base: {x: "a\x85b"}': "2:13: character U+0085 is not allowed in YAML: write \\u0085, in "
        "double quotes",
    "base: {x: \x00}": "2:11: character U+0000 is not allowed in YAML",
    "service: ''": "2:10: service is empty",
    "grid: {lr: 0.1}":
        "2:12: axis 'lr' is a number; it takes a list (a single value belongs in base)",
    "grid: {lr: []}": "2:8: axis 'lr' has no values",
    "grid: {lr: [1, 2, 1.0]}": "2:19: axis 'lr' has the value 1 twice (first at 2:13)",
    "grid: {a: [1]}\nzip: [{a: [2]}]": "3:12: axis 'a' is given twice",
    "grid: {a.b: [1], a: [2]}": "2:22: axes 'a.b' and 'a' overlap",
    "zip: [{a: [1], b: [1, 2]}]": "2:7: zipped axes need equally many values: a has 1, b has 2",
    "zip: {a: [1]}": "2:6: zip is a mapping; it takes a list of mappings of axes",
    "include: 3": "2:10: include is an integer; it takes a list of mappings",
    "exclude: [{}]": "2:11: exclude has an empty mapping",
    "seeds: 0": "2:8: seeds must be 1 to 10000, not 0",
    "seeds: true": "2:8: seeds is a boolean; it takes a count or a list of integers",
    "seeds: [1, 1]": "2:12: seed 1 is given twice",
    "seeds: [1.5]": "2:9: a seed is an integer, not a number",
    "seeds: {field: s}": "2:8: seeds needs `values: 3`, `values: [11, 12]` or `race: 3..10`",
    "seeds: {race: 3}": "2:15: seeds.race is an integer; it takes the fewest and the most seeds "
        "of a cell, such as 3..10",
    "seeds: {race: 3-10}": "2:15: seeds.race is '3-10'; it takes the fewest and the most seeds of "
        "a cell, such as 3..10",
    "seeds: {race: 5..3}": "2:15: seeds.race: 5..3: the second number must be larger",
    "seeds: {race: 1..3}": "2:15: seeds.race: a cell needs 2 seeds or more to show its noise",
    "seeds: {race: 3..10001}": "2:15: seeds.race: at most 10000 seeds, not 10001",
    "seeds: {race: 3..10, values: 3}\nmetric: {name: m, goal: minimize}":
        "2:15: seeds.race: give values or race, not both",
    "seeds: {race: 3..10}": "2:8: seeds.race needs a metric (its name and goal) to judge cells by",
    "seeds: {race: 3..10}\nmetric: {name: m, goal: minimize, by: k}":
        "2:8: seeds.race looks for one best cell, but metric.by for one per k: give every cell "
        "the same number of seeds, as in seeds: 3",
    "metric: {name: m}": "2:9: metric needs a goal",
    "metric: {name: m, goal: maximize, at: {mean_of_last: 0}}": "2:54: metric.at.mean_of_last must "
        "be 1 to 1000, not 0",
    "metric: {name: m, goal: maximize, at: 5}": "2:39: metric.at is an integer; it takes auto, "
        "last, best or {mean_of_last: ...}",
    "metric: {name: m, goal: maximize, noise: {form: [a]}}": "2:43: unknown key 'form' in "
        "metric.noise; did you mean 'from'?",
    "metric: {name: m, goal: minimise}": "2:25: metric.goal: 'minimise' is not one of minimize, "
        "maximize; did you mean 'minimize'?",
    "secrets: [A=hunter2]": "2:11: secrets takes names only; values come from the environment",
    "secrets: [A]\nlaunch: {env: {A: x}}": "3:9: A is in both secrets and launch.env: remove one",
    "launch: {max_paralel: 1}": "2:10: unknown key 'max_paralel' in launch; did you mean "
        "'max_parallel'?",
    "launch: {max_parallel: 0}": "2:24: launch.max_parallel must be 1 to 1000000, not 0",
    "launch: {timeout: 2x}": "2:19: launch.timeout takes a duration such as 90s, 30m, 2h or 1h30m",
    "launch: {lease: -1}": "2:17: launch.lease takes a duration such as 90s, 30m, 2h or 1h30m",
    "launch: {env: {A-B: x}}": "2:16: launch.env: 'A-B' cannot name a variable",
    "launch: {env: {A: yes, B: true}}": "2:27: launch.env.B is a boolean; quote it to make it a "
        "string",
    "launch: {env: {SWEEPER_RUN: x}}": "2:16: launch.env: SWEEPER_RUN is set by sweeper",
    "launch: {resume: allways}": "2:18: launch.resume: 'allways' is not one of auto, always, "
        "never; did you mean 'always'?",
    "service: tinker\nlaunch: {env: {TINKER_API_KEY: x}}": "3:9: TINKER_API_KEY is in both "
        "secrets and launch.env: remove one",
    "---\nrecipe: s": "2:1: a grid must be one YAML document",
    "base: &a {b: *a}": "2:14: alias *a is inside the value that it names",
    "grid:\n\tlr: [1]": "3:1: not YAML: found character '\\t' that cannot start any token while "
        "scanning for the next token",
    "grid: {lr: [1, 2}": "2:17: not YAML: expected ',' or ']', but got '}' while parsing a flow "
        "sequence",
    "base: {x: " + "9" * 400 + "}": "2:11: an integer of 400 digits; at most 300 are allowed",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [*MISTAKES.items(), *((f"recipe: r\n{t}", m) for t, m in MISTAKES_AFTER_RECIPE.items())],
    ids=repr,
)
def test_a_mistake_is_one_line_that_says_where(text, message):
    with pytest.raises(GridError) as caught:
        parse_grid(text, "g.yaml")
    assert list(caught.value.problems) == [f"g.yaml:{message}"] and caught.value.exit_code == 2


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file():
    text = "recipe: r\nseeds: 0\ngrid: {a: 1, b: []}\nlaunch: {timeout: x, retries: -1}\nrandom: 1"
    with pytest.raises(GridError) as caught:
        parse_grid(text, "g.yaml")
    assert [problem[:11].rstrip(":") for problem in caught.value.problems] == [
        "g.yaml:2:8", "g.yaml:3:11", "g.yaml:3:14", "g.yaml:4:19", "g.yaml:4:31", "g.yaml:5:9",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "recipe: r\nbase: {x: " + "[" * 500, "recipe: r\nbase: " + "{a: " * 500,
        "x" * (MAX_BYTES + 1),
        "recipe: r\ngrid: {" + ", ".join(f"k{i}: [1]" for i in range(MAX_AXES + 1)) + "}",
        "- " * 100_000, "? " * 50_000, "%YAML x\n---\na", '"\\UFFFFFFFF"', "a: &a", "\ufeff\ufeff",
    ],
)  # fmt: skip
def test_a_hostile_text_is_refused_with_one_short_line(text):
    with pytest.raises(GridError) as caught:
        parse_grid(text, "g.yaml")
    assert all(len(problem) < 300 and "\n" not in problem for problem in caught.value.problems)
    assert caught.value.problems[0].startswith("g.yaml:")


def test_limits_stand_in_the_message():
    def message(text):
        with pytest.raises(GridError) as caught:
            parse_grid(text, "g.yaml")
        return caught.value.problems[0]

    assert str(MAX_BYTES) in message("#" * (MAX_BYTES + 1))
    assert str(MAX_DEPTH) in message("a: " + "[" * 50)
    assert str(MAX_NODES) in message("a: &a [" + "x," * 1000 + "]\nb: [" + "*a," * 51 + "]")


# 2 ** 16 values, a little more than are allowed: without the limit, the test fails quickly.
LEVELS = 16


def test_aliases_that_explode_are_refused():
    lines = [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, LEVELS)]
    with pytest.raises(GridError) as caught:
        parse_grid(
            "\n".join(["recipe: r", "base:", " a0: &a0 [x, x]", *map(" {}".format, lines)]),
            "g.yaml",
        )
    assert caught.value.problems[0].endswith(
        f": more than {MAX_NODES} values, aliases counted in full"
    )


def test_python_data_that_explodes_is_refused():
    shared: list = ["x", "x"]
    for _ in range(1, LEVELS):
        shared = [shared, shared]
    for overrides, base in (({}, {"x": shared}), ({"x": shared}, {})):
        with pytest.raises(GridError) as caught:
            grid_from_mapping({"name": "n", "recipe": "r", "base": base}, overrides)
        assert len(caught.value.problems) == 1
        assert f"]: more than {MAX_NODES} values, shared ones" in caught.value.problems[0]
    keys = {f"k{n}": 0 for n in range(MAX_NODES // 2)}
    with pytest.raises(GridError, match=f"more than {MAX_NODES} values"):
        grid_from_mapping({"name": "n", "recipe": "r", "base": {"x": keys}})


def test_depth_counts_through_aliases():
    half = MAX_DEPTH // 2

    def nested(depth):
        lines = ["recipe: r", f"base: {{a: &a {'[' * half}{']' * half},"]
        return "\n".join([*lines, f"  b: {'[' * depth}*a{']' * depth}}}"])

    assert str(parse_grid(nested(half - 1), "g.yaml").base["b"].value).count("[") == MAX_DEPTH - 1
    for depth in (half, MAX_DEPTH - 3):
        with pytest.raises(GridError, match=f"g.yaml:3:[0-9]+: nested more than {MAX_DEPTH} deep"):
            parse_grid(nested(depth), "g.yaml")


@pytest.mark.parametrize(
    ("text", "value"),
    [('"a\\u2028b"', "a\u2028b"), ('"\\u2029"', "\u2029"), ('"\\u0085 \\x7f"', "\x85 \x7f"),
     ('"\\N\\L\\P"', "\x85\u2028\u2029"), ('"\\ufeff"', "\ufeff"), ('"😀"', "😀")],
)  # fmt: skip
def test_escaped_characters_arrive(text, value):
    assert parse_grid(f"recipe: r\nbase: {{x: {text}}}", "g.yaml").base["x"].value == value
    assert parse_grid("recipe: r", "g.yaml", [f"x={text}"]).fixed["x"].value == value
    # On the command line, unquoted text is taken literally.
    assert parse_grid("recipe: r", "g.yaml", [f"x=a{value}"]).fixed["x"].value == f"a{value}"


def test_as_deep_as_allowed_is_read():
    depth = MAX_DEPTH - 1
    grid = parse_grid(f"recipe: r\nbase: {{x: {'[' * depth}{']' * depth}}}", "g.yaml")
    assert str(grid.base["x"].value) == "[" * depth + "]" * depth


def test_aliases_stand_for_what_they_name():
    grid = parse_grid("recipe: r\nbase: {a: &v [1, 2], b: *v}\ngrid: {c: *v}", "g.yaml")
    assert values(grid.base) == {"a": [1, 2], "b": [1, 2]}
    assert [s.value for s in grid.blocks[0].axes["c"]] == [1, 2]


def test_a_file_is_read_with_its_errors(tmp_path):
    path = tmp_path / "my.yaml"
    path.write_bytes(b"\xef\xbb\xbfrecipe: r\n")
    assert load_grid(str(path)).name == "my"
    path.write_bytes(b"recipe: r\nbase: {a: '\xff'}\n")
    with pytest.raises(GridError, match=r"my\.yaml:2:12: not UTF-8"):
        load_grid(str(path))
    with pytest.raises(GridError, match="none: No such file or directory"):
        load_grid("none")
    with pytest.raises(GridError, match="Is a directory"):
        load_grid(str(tmp_path))
    (tmp_path / "a b.yaml").write_text("recipe: r\n")
    with pytest.raises(GridError, match="the file's name 'a b' cannot name a sweep: add a name"):
        load_grid(str(tmp_path / "a b.yaml"))


def test_a_mapping_is_the_same_grid():
    import numpy as np

    grid = grid_from_mapping(
        {
            "name": "m",
            "recipe": "r",
            "base": {"opt": {"lr": np.float64(0.5)}, "n": np.int64(3)},
            "grid": {"rank": (8, 32)},
        }
    )
    assert values(grid.base) == {"opt.lr": 0.5, "n": 3}
    assert [s.value for s in grid.blocks[0].axes["rank"]] == [8, 32]
    assert parse_grid(grid.text, "m.yaml").blocks[0].size == 2


def test_mistakes_in_a_mapping_are_told_by_their_path():
    cycle: list = []
    cycle.append(cycle)
    with pytest.raises(GridError) as caught:
        grid_from_mapping({"base": {"f": print, "k": {1: 2}, "s": "\ud800", "c": cycle}})
    assert [p.replace("[0]", "") for p in caught.value.problems] == [
        "base.f: builtin_function_or_method is not data: use strings, numbers, lists, mappings",
        "base.k: key 1 is not a string",
        "base.s: the character U+D800 cannot be passed to a run",
        "base.c: nested more than 32 deep",
    ]
    with pytest.raises(GridError) as caught:
        grid_from_mapping({"recipe": "r"})
    assert caught.value.problems == ("grid: a grid from Python needs a name",)


def test_a_lease_is_longer_than_a_worker_s_beat():
    from sweeper.grid.launch import MIN_LEASE_SECONDS
    from sweeper.worker.main import BEAT_SECONDS

    assert MIN_LEASE_SECONDS >= 3 * BEAT_SECONDS
    text = "recipe: x\nlaunch: {lease: 1s}\n"
    with pytest.raises(GridError, match=r"grid.yaml:2:17: launch.lease must be at least 15s"):
        parse_grid(text, "grid.yaml")


@pytest.mark.parametrize(
    "folder", ["run", "{log_path}", "{log_path}/..", "{log_path}/a/../b", "/x"]
)
def test_a_metrics_dir_lies_in_the_run_s_own_folder(folder):
    with pytest.raises(GridError) as caught:
        parse_grid(f"recipe: r\nlaunch: {{metrics_dir: '{folder}'}}", "g.yaml")
    assert caught.value.problems == (
        (
            "g.yaml:2:23: launch.metrics_dir: write a folder inside the run's own, like "
            "'{log_path}/run'"
        ),
    )


def test_an_address_without_a_grid_is_named_once():
    with pytest.raises(GridError) as raised:
        plan("s3://x.yaml")
    assert raised.value.problems == ("s3://x.yaml names no bucket: write s3://BUCKET/x.yaml",)
    with pytest.raises(GridError) as raised:
        plan("memory://bucket/x.yaml")
    assert raised.value.problems == ("memory://bucket/x.yaml: no such file",)
