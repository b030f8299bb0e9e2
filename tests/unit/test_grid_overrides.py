"""The command line's changes to a grid."""

import enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweeper.errors import GridError
from sweeper.grid import grid_from_mapping, parse_grid
from sweeper.grid.overrides import flow
from sweeper.planner.plan import plan

GRID = {
    "name": "o", "command": ["true"], "base": {"a": 1, "opt": {"lr": 1, "wd": 2}, "gone": None},
    "grid": {"b": [1, 2], "c": [1, 2]}, "zip": [{"d": [1, 2], "e": [3, 4]}],
}  # fmt: skip


def configs(*overrides, grid=GRID):
    return [run.config for run in plan(grid, overrides).runs]


def test_a_value_replaces_a_base_value_or_an_axis():
    resolved = configs("a=5", "b=7", "d=0")
    assert len(resolved) == 4 and {(c["a"], c["b"], c["d"]) for c in resolved} == {(5, 7, 0)}
    assert sorted((c["c"], c["e"]) for c in resolved) == [(1, 3), (1, 4), (2, 3), (2, 4)]


def test_a_list_sets_an_axis():
    assert sorted({c["b"] for c in configs("b=[3,4,5]")}) == [3, 4, 5]
    assert sorted({c["a"] for c in configs("a=[3,4]")}) == [3, 4]
    assert list(plan(GRID, ["b=[3]", "new=[1,2]"]).axes) == ["b", "c", "d", "e", "new"]


def test_an_axis_of_a_zip_stays_in_it():
    planned = plan(GRID, ["d=[8,9]"])
    assert sorted({(run.config["d"], run.config["e"]) for run in planned.runs}) == [(8, 3), (9, 4)]
    assert list(planned.axes) == ["b", "c", "d", "e"]
    assert {(c["d"], c["e"]) for c in configs("e=[5,6]", "d=[8,9]")} == {(8, 5), (9, 6)}
    # If it is alone in its block, or its whole zip is replaced, it is like any other axis.
    assert {(c["d"], c.get("e")) for c in configs("~e", "d=[9]")} == {(9, None)}
    nested = {**GRID, "zip": [{"o.p": [1, 2], "o.q": [3, 4]}]}
    assert {(c["o.p"], c.get("o.q")) for c in configs("o=[{p: 5}]", grid=nested)} == {(5, None)}
    with pytest.raises(GridError) as caught:
        plan(GRID, ["d=[9]"])
    assert caught.value.problems == (
        "override 'd=[9]': axis 'd' is zipped with e, so it takes 2 values, not 1",
    )
    two = {**GRID, "zip": [{"o.p": [1, 2], "x": [3, 4]}, {"o.q": [1, 2], "y": [3, 4]}]}
    with pytest.raises(GridError, match="axis 'o' would replace axes of several blocks"):
        plan(two, ["o=[{p: 5}, {p: 6}]"])


def test_a_tilde_drops():
    resolved = configs("~b", "~d", "~opt", "~gone")
    assert all(not {"b", "d", "opt.lr", "opt.wd", "gone"} & c.keys() for c in resolved)
    assert len(resolved) == 4


def test_included_cells_lose_what_an_override_takes_over():
    grid = {**GRID, "grid": {}, "zip": [], "include": [{"a": 2, "w": 3}, {"a": 4, "x": 5}]}

    def included(override):
        return [tuple(c.get(key) for key in "awx") for c in configs(override, grid=grid)]

    assert included("~a") == [(None, 3, None), (None, None, 5)]
    assert included("~w") == [(2, None, None), (4, None, 5)]
    # The names of cells contain only their own values.
    assert [run.cell for run in plan(grid, ["a=9"]).runs] == ["w=3", "x=5"]


def test_a_nested_value_is_reached_by_dots_and_replaced_as_a_whole():
    assert {(c["opt.lr"], c["opt.wd"]) for c in configs("opt.lr=9")} == {(9, 2)}
    assert {(c["opt.lr"], c.get("opt.wd")) for c in configs("opt={lr: 9}")} == {(9, None)}
    assert {c["opt"] for c in configs("opt=null")} == {None}
    assert {c["gone.x"] for c in configs("gone.x=1")} == {1}
    assert all("gone" not in c for c in configs("gone.x=1"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((f"a={text}", text) for text in ("no", "", "#x: y", "--flag", "x=y", "*x", "!x", " 1")),
        ("a=1e-4", 0.0001),
        ("a=null", None),
        ("a='1'", "1"),
        ('a="1\\n"', "1\n"),
        ("a=$(touch pwn);", "$(touch pwn);"),
        ("a=[[1, 2]]", [1, 2]),
        ("a={}", {}),
    ],
)
def test_values_are_read_as_written(text, value):
    assert {repr(c["a"]) for c in configs(text)} == {repr(value)}


def test_the_seeds_of_a_grid_can_be_changed():
    grid = {**GRID, "seeds": 2}
    assert {run.seed for run in plan(grid, ["seed=[7,8,9]"]).runs} == {7, 8, 9}
    assert {run.seed for run in plan(grid, ["seed=4"]).runs} == {4}
    assert {run.seed for run in plan(grid, ["~seed"]).runs} == {None}


def test_seeds_is_the_section_unless_the_grid_has_such_a_key():
    def seeds(text, **more):
        return [run.seed for run in plan({"name": "o", "command": ["true"], **more}, [text]).runs]

    assert seeds("seeds=2") == seeds("seeds=2", seeds=[5, 6, 7]) == [0, 1]
    assert seeds("seeds=[11,12]", seeds=1) == [11, 12] and seeds("~seeds", seeds=3) == [None]
    field = {"seeds": {"field": "s", "values": 1}}
    for text, name in (("seeds=[4]", "s"), ("seeds={field: t, values: [4]}", "t")):
        (run,) = plan({"name": "o", "command": ["true"], **field}, [text]).runs
        assert (run.seed, run.config) == (4, {name: 4})
    for keys in ({"base": {"seeds": 1}}, {"grid": {"seeds": [1]}}, {"include": [{"seeds": 1}]}):
        (run,) = plan({"name": "o", "command": ["true"], **keys}, ["seeds=3"]).runs
        assert (run.seed, run.config) == (None, {"seeds": 3})
    for text, message in (
        ("seeds=0", "seeds must be 1 to 10000, not 0"),
        ("seeds=few", "seeds is a string; it takes a count or a list of integers"),
        ("~seeds", "no 'seeds' to drop"),
    ):
        with pytest.raises(GridError) as caught:
            seeds(text)
        assert caught.value.problems == (f"override {text!r}: {message}",)


def test_how_runs_are_executed_can_be_changed():
    launch = plan(GRID, ["launch.backend=local", "launch.max_parallel=2"]).launch
    assert (launch.backend, launch.max_parallel) == ("local", 2)
    with pytest.raises(GridError) as caught:
        plan(GRID, ["launch.max_parallel=0", "launch.backnd=x"])
    assert sorted(caught.value.problems, reverse=True) == [
        "override 'launch.max_parallel=0': launch.max_parallel must be 1 to 1000000, not 0",
        "override 'launch.backnd=x': unknown key 'backnd' in launch; did you mean 'backend'?",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a", "write key=value, 'key=[a,b]' for an axis, or ~key"),
        ("~a=1", "write key=value, 'key=[a,b]' for an axis, or ~key"),
        ("=1", "'' cannot name a field"),
        ("a@=b", "'a@' cannot name a field"),
        ("...a=b", "'...a' cannot name a field"),
        ("a=[1,", "not YAML: expected the node content, but found '<stream end>'"),
        ("a=[]", "axis 'a' has no values"),
        ("~gon", "no 'gon' to drop; did you mean 'gone'?"),
        ("~launch.timeot", "no launch.timeot to drop; did you mean 'timeout'?"),
        ("~launch.retries", "no launch.retries to drop"),
        ("~launch", "write launch.<key>=value, or ~launch.<key>"),
        ("a=x\x00", "the character U+0000 cannot be passed to a run"),
    ],
)
def test_a_wrong_override_is_named(text, message):
    with pytest.raises(GridError) as caught:
        plan({**GRID, "launch": {"timeout": "5m"}}, [text])
    (problem,) = caught.value.problems
    assert problem.startswith(f"override {text!r}: {message}".replace("\\", "\\"))


def test_what_only_included_cells_have_can_be_dropped():
    grid = {**GRID, "grid": {}, "zip": [], "include": [{"warmup": 1}, {"x": 2}]}
    assert [c.get("warmup") for c in configs("~warmup", grid=grid)] == [None, None]
    assert plan({**GRID, "launch": {"timeout": "5m"}}, ["~launch.timeout"]).launch.timeout_s is None


def test_a_string_is_one_override(tmp_path):
    assert plan(GRID, "a=31").runs == plan(GRID, ["a=31"]).runs
    (tmp_path / "g.yaml").write_text("command: ['true']\n")
    planned = plan(tmp_path / "g.yaml", "a=31")
    assert (planned.runs[0].config, planned.overrides) == ({"a": 31}, ("a=31",))


def test_twice_the_same_key_is_a_mistake():
    with pytest.raises(GridError, match="override 'a=2': 'a' is overridden twice"):
        plan(GRID, ["a=1", "a=2"])


def test_a_mapping_of_overrides_is_kept_as_text_that_means_the_same():
    overrides = {"a": "x: y", "b": [1, 0.5], "c": True, "new": float("inf"), "opt.lr": None}
    first = plan(GRID, overrides)
    assert first.overrides == ('a="x: y"', "b=[1, 0.5]", "c=true", "new=.inf", "opt.lr=null")
    assert plan(GRID, first.overrides).runs == first.runs


NASTY = "\x7f\x80\x85\x9f\u2028\u2029\ufeff\ufffe\uffff\r\n\t \x1b\U0001f600\U0010ffff"
characters = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
texts = characters | st.text(NASTY, max_size=8)
data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def read_back(value):
    return parse_grid(f"recipe: r\ngrid: {{x: [{flow(value)}]}}", "g.yaml").blocks[0].axes["x"][0]


@given(data)
def test_flow_is_yaml_that_reads_back_the_same(value):
    if "${" not in str(value):
        assert repr(read_back(value).value) == repr(value)


def test_flow_is_yaml_that_reads_back_the_same_for_the_worst():
    value = {NASTY: [NASTY, "é", {"k" * 5000: "v" * 5000}, -0.0, 1e300, 10**299], "? a: #": "- x"}
    assert repr(read_back(value).value) == repr(value) and "\U0001f600" in flow(value)
    mapping = {"name": "n", "recipe": "r", "base": {"x": [value]}}
    assert grid_from_mapping(mapping).base["x"].value == [value]
    planned = plan({"name": "n", "command": ["true"]}, {"x": NASTY, "y": {"z": NASTY}})
    assert planned.runs[0].config == {"x": NASTY, "y.z": NASTY}


def test_the_text_of_an_enum_is_its_value():
    kind = enum.Enum("Kind", {"A": "a"}, type=str)
    grid = grid_from_mapping({"name": "n", "recipe": "r", "base": {"x": kind.A}})
    assert grid.base["x"].value == "a"
