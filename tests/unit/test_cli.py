"""Parsing of the command line."""

import argparse
import re
import shlex
import subprocess
import sys
import warnings

import pytest

from sweeper import cli
from sweeper.commands import FORMER, PARENTS, VERBS, load, ls, of_today
from sweeper.commands.parser import parse
from sweeper.engine.__main__ import EXAMPLES as ENGINE_EXAMPLES
from sweeper.engine.__main__ import parser as engine_parser


def test_overrides_may_stand_behind_flags():
    given = ["launch", "grid.yaml", "a=1", "--wait", "~b", "--backend", "local", "c=[1,2]"]
    arguments = parse(given)
    assert arguments.overrides == ["a=1", "~b", "c=[1,2]"]
    assert (arguments.wait, arguments.backend) == (True, "local")
    assert parse(["cancel", "s", "--state", "failed", "x*"]).runs == ["x*"]


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in ("engine", *PARENTS)])
def test_flags_may_stand_between_the_arguments_of_any_verb(verb):
    """`engine` parses its own command line."""
    declared = argparse.ArgumentParser()
    load(verb).add_arguments(declared)
    words: list[str] = []
    for action in declared._actions:
        if not action.option_strings:
            choices = [*(action.choices or ())]
            word = "1" if action.type is int else f"word{len(words)}"
            words += [choices[0] if choices else word]
            words += [f"word{len(words)}"] * (action.nargs in ("*", "+"))
    flags = [action for action in declared._actions if action.dest == "root"]
    between = ["--root", "r"] if flags else ["--json"]
    if not flags and not any(action.dest == "json" for action in declared._actions):
        between = []
    for action in declared._actions:
        if action.option_strings and action.required:
            between += [action.option_strings[-1], next(iter(action.choices or ("x",)))]
    plain = vars(parse([*verb.split(), *between, *words]))
    for place in range(len(words) + 1):
        given = [*verb.split(), *words[:place], *between, *words[place:]]
        assert vars(parse(given)) == plain


@pytest.mark.parametrize(
    "given",
    [["plan", "g.yaml", "--no-such"], ["plan", "g.yaml", "--json", "-x"], ["best", "s", "x"]],
)
def test_unknown_options_are_refused_with_the_usage(given, capsys):
    with pytest.raises(SystemExit) as stopped:
        parse(given)
    stderr = capsys.readouterr().err
    assert stopped.value.code == 2 and stderr.startswith(f"usage: sweeper {given[0]} ")
    assert f"sweeper {given[0]}: error: unrecognized arguments: {given[-1]}" in stderr


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["doctor", "task"],
         "sweeper doctor: error: no 'task'; see sweeper doctor --help; did you mean 'tasks'?"),
        (["sweep"], "arguments are required: {archive,rename,delete}\n"),
        (["lunch", "g.yaml"], "no verb 'lunch'; see sweeper --help; did you mean 'launch'?"),
        (["launch", "g.yaml", "--max-paralel", "3"],
         "unrecognized arguments: --max-paralel 3; did you mean '--max-parallel'?"),
        (["ls", "--statee=failed"], "--statee=failed; did you mean '--state'?"),
        (["costs", "--price"], "unrecognized arguments: --price; did you mean '--prices'?"),
        (["plan"], "sweeper plan: error: the following arguments are required: GRID\n"),
        (["cancel"], "sweeper cancel: error: the following arguments are required: SWEEP\n"),
    ],
)  # fmt: skip
def test_mistyped_verbs_and_options_get_a_suggestion(given, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        parse(given)
    assert stopped.value.code == 2
    stderr = capsys.readouterr().err
    assert message in stderr
    if given[0] in VERBS:
        assert f"usage: sweeper {given[0]} " in stderr


@pytest.mark.parametrize("orders", ["\x1b]0;T\x07", "\x1b[2J", "\x9b31m", "\u202e", "\ud800", "\r"])
def test_output_of_any_verb_is_sanitised(orders, monkeypatch, capfd):
    """The parser (an unknown argument), a verb, or a Python warning prints."""

    def forgetful(_: object) -> int:
        print(f"a{orders}b")
        sys.stdout.writelines([f"c{orders}\n", "d\te\n"])
        warnings.warn(f"f{orders}", UserWarning, stacklevel=1)
        raise ValueError(orders)

    monkeypatch.setattr(ls, "run", forgetful)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_, **__: print(message, file=sys.stderr)
        assert cli.main(["ls"]) == 1
    with pytest.raises(SystemExit):
        cli.main(["ls", f"--un{orders}known"])
    output = capfd.readouterr()
    assert output.out.startswith("a") and "d\te\n" in output.out and "known" in output.err
    assert "a bug in sweeper: ValueError" in output.err
    assert orders not in output.out + output.err and "\x1b" not in output.out + output.err


def test_help_lists_each_verb_under_a_heading(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    text = capsys.readouterr().out
    assert "usage: sweeper [-h] [--version] [--completion SHELL] VERB ..." in text
    headings = re.split(r"^(\w.*):\n", text, flags=re.MULTILINE)[1:]
    listed = dict(zip(headings[::2], headings[1::2], strict=True))
    for name, entry in VERBS.items():
        line = rf"^  {name} +{re.escape(entry.summary)}$"
        assert bool(re.search(line, listed[entry.heading], re.MULTILINE)) == (" " not in name)


def test_help_of_a_group_without_a_description_has_none() -> None:
    command = [sys.executable, "-m", "sweeper", "sweep", "--help"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "\nactions:\n  {archive," in text


HELP = [*VERBS, *(f"engine {action}" for action in ENGINE_EXAMPLES)]
MOST = 9
"""The most arguments below one title."""


@pytest.mark.parametrize("name", HELP)
def test_help_of_a_verb_has_a_sentence_an_example_and_short_groups(name, capsys, monkeypatch):
    """The examples are also run, after the README's tour (e2e/test_readme.py)."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        cli.main([*name.split(), "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    usage, sentence, *middle, example = text.strip().split("\n\n")
    assert usage.startswith(f"usage: sweeper {name} ")
    assert sentence[0].isupper() and re.findall(r"\.(?=\s|$)", sentence) == ["."]
    assert sentence.endswith(".")
    assert example.startswith("example: ") and f"sweeper {name}" in example
    groups = {part.partition("\n")[0]: part for part in middle if part.splitlines()[1:]}
    groups = {title: part for title, part in groups.items() if title.endswith(":")}
    assert [*groups][-1] == "output:" and "--help" in groups["output:"]
    assert not {"options:", "positional arguments:"} & {*groups}
    for title, part in groups.items():
        arguments = re.findall(r"^ {2}\S", part, re.MULTILINE)
        assert 0 < len(arguments) <= MOST, title


@pytest.mark.parametrize("name", VERBS)
def test_the_example_of_a_verb_can_be_typed(name):
    words = ["sweeper", *name.split()]
    assert shlex.split(VERBS[name].example)[: len(words)] == words
    parse(shlex.split(VERBS[name].example)[1:])


@pytest.mark.parametrize("action", ENGINE_EXAMPLES)
def test_the_example_of_an_action_of_the_engine_can_be_typed(action):
    command = ENGINE_EXAMPLES[action].removeprefix('eval "$(').removesuffix(')"')
    sweeper, engine, *words = shlex.split(command)
    assert (sweeper, engine) == ("sweeper", "engine")
    assert engine_parser().parse_args(words).action == action


def test_options_before_a_second_word_count():
    given = parse(["doctor", "--root", "r", "--json", "notify", "s"])
    assert (given.root, given.json, given.part, given.sweep) == ("r", True, "notify", "s")


@pytest.mark.parametrize(("before", "now"), FORMER.items())
def test_former_names_of_verbs_work_and_say_the_new_one(before, now):
    given, sentence = of_today([*before.split(), "x"])
    assert given == [*now.split(), "x"]
    assert sentence == f"sweeper {before} is now `sweeper {now}`"
    assert of_today(given) == (given, None)
    assert before not in VERBS


def test_former_names_are_mentioned_on_stderr_only(capsys):
    assert cli.main(["prices"]) == 0
    printed = capsys.readouterr()
    assert printed.err == "sweeper: sweeper prices is now `sweeper costs --prices`\n"
    assert printed.out.startswith("model")
    assert cli.main(["prices", "--json"]) == 0
    assert capsys.readouterr().err == ""
