"""The options of backends, declared once for grids and backends."""

from importlib import import_module
from typing import Annotated, Any, NamedTuple

import pytest

from sweeper.backends import backend_type, every_backend
from sweeper.errors import Damaged
from sweeper.fields.data import from_python
from sweeper.fields.kinds import Duration, Integer, Text, duration_text
from sweeper.fields.nodes import Problems
from sweeper.fields.options import Option, over, read_options, section_of

NAMES = [kind.name for kind in every_backend() if kind.section.fields]


class Options(NamedTuple):
    name: Annotated[str | None, Option(Text(), "Its name.", "lab")] = None
    cpus: Annotated[int, Option(Integer(1, 64), "CPUs.")] = 2
    time_s: Annotated[float, Option(Duration(60), "The limit.")] = 5400.0
    flags: Annotated[tuple[str, ...], Option(Text(), "Flags.", ["--x"])] = ()


def test_a_section_is_made_of_the_types():
    fields = section_of(Options).fields
    assert [*fields] == ["name", "cpus", "time", "flags"]
    assert (fields["time"].default, fields["time"].key) == ("90m", "time_s")
    assert (fields["cpus"].default, fields["name"].default, fields["flags"].default) == (
        2,
        None,
        None,
    )
    assert fields["name"].examples == ("lab",) and fields["flags"].doc == "Flags."


def test_given_options_are_merged_over_others():
    options = read_options(Options, {"cpus": 4, "flags": ["--y"], "overrides": []}, "launch.x")
    assert options == Options(cpus=4, flags=("--y",))
    assert over(options, {"cpus": 8, "name": "b"}) == Options("b", 8, flags=("--y",))
    with pytest.raises(Damaged, match=r"^launch\.x: cpus: should be a number, not \"4\"$"):
        read_options(Options, {"cpus": "4"}, "launch.x")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(120.0, "2m"), (86400.0, "24h"), (604800.0, "7d"), (5400.0, "90m"), (61.0, "61s")],
)
def test_durations_are_written_as_in_a_grid(seconds, text):
    node = from_python(text, "x", Problems())
    assert duration_text(seconds) == text and Duration().read(node, "x", Problems()) == seconds


@pytest.mark.parametrize("name", NAMES)
def test_examples_and_defaults_have_the_types_of_options(name):
    """The kind of each option in the section reads its example or default."""
    kind = backend_type(name)
    options: Any = import_module(f"sweeper.backends.{kind.key}.options").Options
    for field in kind.section:
        problems = Problems()
        shown = field.examples[0] if field.examples else field.default
        value = field.kind.read(from_python(shown, field.name, problems), field.name, problems)
        assert not problems, problems.error()
        given = {"queue": "q", field.key or field.name: value}
        read = getattr(read_options(options, given, "launch"), field.key or field.name)
        expected = tuple(value) if isinstance(value, list) else value  # pyright: ignore
        if isinstance(expected, tuple) and expected and isinstance(expected[0], dict):
            expected = tuple(type(read[0])(**fields) for fields in expected)
        assert read == expected
