"""Commands as runs: `sweeper run`, and how lines are split into words."""

import re

import pytest

from sweeper import cli
from sweeper.commands import launch
from sweeper.commands.parser import parse
from sweeper.commands.run import NeedsShell, lines_of, split_line
from sweeper.errors import GridError
from sweeper.planner.arguments import planned_by
from sweeper.planner.plan import plan
from sweeper.recipe.command_template import render_command
from sweeper.results.registry import Registry


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("python train.py --lr 1e-4", ["python", "train.py", "--lr", "1e-4"]),
        ("a 'b c' \"d e\" f\\ g", ["a", "b c", "d e", "f g"]),
        ("a '$x | *' \"\\$y\" # | comment", ["a", "$x | *", "$y"]),
        ("a b#c", ["a", "b#c"]),
        ("A=1 B='x y' python x.py", ["env", "A=1", "B=x y", "python", "x.py"]),
        ("a x={log_path} '{1,2}' lr=[1,2] a~b", ["a", "x={log_path}", "{1,2}", "lr=[1,2]", "a~b"]),
        ("# nothing", []),
        ("", []),
    ],
)
def test_lines_are_split_as_by_a_shell(line, words):
    assert split_line(line) == words


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("a | b", "'|'"),
        ("a && b", "'&'"),
        ("a > b", "'>'"),
        ("a $X", "'$'"),
        ('a "x $X"', "'$' in \"x $X\""),
        ("a `b`", "'`'"),
        ("a *.json", "'*'"),
        ("a {1,2}", "'{1,2}'"),
        ("a {1..3}", "'{1..3}'"),
        ("a ~/x", "'~'"),
        ("a x=~/x", "'~'"),
        ("a; b", "';'"),
    ],
)
def test_shell_syntax_is_refused(line, part):
    with pytest.raises(NeedsShell, match=f"^{re.escape(part)} needs a shell$"):
        split_line(line)


@pytest.mark.parametrize("line", ["a 'b", 'a "b', "a \\"])
def test_an_open_quotation_is_refused(line):
    with pytest.raises(NeedsShell, match=r"^not a command: no "):
        split_line(line)


def test_a_backslash_continues_a_line():
    assert list(lines_of("a \\\n  b\nc\n\nd \\")) == [(1, "a    b"), (3, "c"), (4, ""), (5, "d  ")]


def run(capsys, *words, code):
    assert cli.main(["run", *words]) == code
    return capsys.readouterr().err


def test_mistakes_are_one_line_each(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.txt").write_text("true 1\n\ntrue 1 | cat\ntrue 2\ntrue 1\n")
    (tmp_path / "none.txt").write_text("# nothing\n")
    assert run(capsys, "--each", "jobs.txt", code=2).splitlines() == [
        "sweeper: jobs.txt:3: '|' needs a shell: quote it, or write sh -c '...'",
        "jobs.txt:5: the same command as on line 1; use seeds=2",
    ]
    assert run(capsys, "--each", "none.txt", code=2) == (
        "sweeper: none.txt: no command; write one per line\n"
    )
    assert "cannot read no.txt: No such file" in run(capsys, "--each", "no.txt", code=2)
    assert "no command; the command follows --" in run(capsys, code=2)
    for wrong in ("true", "lauch.retries=0", "lr=1"):
        assert f"{wrong!r}: only launch.KEY=VALUE and seeds=N can be set" in run(
            capsys, wrong, "--", "true", code=2
        )
    assert "give either a command or --each" in run(capsys, "--each", "a", "--", "b", code=2)
    assert "-f does not work with --wait" in run(capsys, "-f", "--wait", "--", "true", code=2)
    assert "--name: 'a/b' is not a valid sweep name" in run(
        capsys, "--name", "a/b", "--", "true", code=2
    )
    assert "command: no program 'no-such'" in run(capsys, "--", "no-such", code=2)
    assert "set launch.slurm.KEY=VALUE" in run(
        capsys, "--backend", "slurm", "--gpus", "2", "--", "true", code=2
    )
    assert not (tmp_path / "sweeps").exists()


@pytest.mark.parametrize(
    ("backend", "options"),
    [("local", {}), ("kubernetes", {"kubernetes": {"gpus": 3}}), ("ray", {"ray": {"num_gpus": 3}})],
)
def test_gpus_are_asked_of_the_backend(backend, options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plans = []
    monkeypatch.setattr(launch, "run", lambda given: plans.append(planned_by(given)) or 0)
    more = ["launch.kubernetes.image=a/b"] if backend == "kubernetes" else []
    words = ["--backend", backend, "--gpus", "3", *more, "--", "true"]
    assert cli.main(["run", *words]) == 0
    (planned,) = plans
    assert planned.launch.gpus == (0 if options else 3)
    for name, section in options.items():
        assert section.items() <= planned.launch.options[name].items()


def test_options_of_the_command_need_the_dashes(capsys):
    with pytest.raises(SystemExit):
        cli.main(["run", "python", "train.py", "--lr", "3"])
    assert "; put options of the command after --" in capsys.readouterr().err


def test_words_after_the_dashes_are_the_command():
    arguments = parse(["run", "--name", "n", "seeds=2", "--", "a", "--root", "--", "x=1"])
    assert arguments.command == ["a", "--root", "--", "x=1"]
    assert (arguments.overrides, arguments.name, arguments.root) == (["seeds=2"], "n", None)


def launched(tmp_path, monkeypatch, *words):
    """Launch, and return the commands of the runs as their programs got them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "show.sh").write_text('#!/bin/sh\nprintf "%s|" "$@" > "$SWEEPER_RUN_DIR/words"\n')
    assert cli.main(["run", "--backend", "local", "--root", "sweeps", "--wait", *words]) == 0
    (sweep,) = {run.sweep for run in Registry("sweeps").sweep("t").runs}
    files = sorted((tmp_path / "sweeps" / sweep / "runs").glob("*/words"))
    return sorted(file.read_text().split("|")[:-1] for file in files)


def test_a_command_is_executed_as_typed(tmp_path, monkeypatch):
    words = ["--cfg", '{"a": 1}', "$X *", "{log_path}", "seed={seed}", "{other}"]
    settings = ["--name", "t", "seeds=[7]", "launch.retries=0"]
    (got,) = launched(tmp_path, monkeypatch, *settings, "--", "sh", "show.sh", *words)
    assert got[:3] == words[:3] and got[3].startswith(f"{tmp_path}/sweeps/t/runs/")
    assert got[4:] == ["seed=7", "{other}"]


def test_each_line_is_a_run_whose_id_is_its_own(tmp_path, monkeypatch):
    (tmp_path / "jobs.txt").write_text("sh show.sh 1\nsh show.sh 'a {b}' # x\n")
    first = ["--name", "t", "--each", "jobs.txt"]
    assert launched(tmp_path, monkeypatch, *first) == [["1"], ["a {b}"]]
    (tmp_path / "jobs.txt").write_text("sh show.sh 0\nsh show.sh 'a {b}'\nsh show.sh 1\n")
    assert launched(tmp_path, monkeypatch, *first) == [["0"], ["1"], ["a {b}"]]
    runs = Registry("sweeps").sweep("t").runs
    assert [run.attempts for run in runs] == [1, 1, 1]


def test_sections_of_a_grid_are_options(tmp_path, monkeypatch):
    monkeypatch.setenv("A_KEY", "x")
    options = ["--name", "t", "--secret", "A_KEY", "--wandb", "p", "--service", "none"]
    launched(tmp_path, monkeypatch, *options, "--", "sh", "show.sh")
    from sweeper.store.opening import open_store
    from sweeper.sweep.folder import SweepFolder

    recorded = SweepFolder(open_store("sweeps"), "t").read_plan()
    assert recorded.secrets == ("A_KEY",) and recorded.wandb.project == "p"


def test_a_list_may_become_several_words():
    assert render_command(["a", "{w*}", "x{n}"], {"w": ["b c", 1, True], "n": 2}) == [
        *["a", "b c", "1", "true", "x2"]
    ]
    grid = {"name": "g", "command": ["echo", "{w*}"]}
    assert plan({**grid, "grid": {"w": [["a"], ["b", "c"]]}}).runs[1].config == {"w": ["b", "c"]}
    assert plan({**grid, "base": {"w": []}}).runs
    for wrong in ("a", 3):
        with pytest.raises(GridError, match=r"command: \{w\*\} takes a list of words"):
            plan({**grid, "base": {"w": wrong}})
    with pytest.raises(GridError, match=r"command: \{w\*\} takes a list of words, at least one"):
        plan({**grid, "command": ["{w*}"], "base": {"w": []}})
    with pytest.raises(GridError, match=r"command: no value for \{w\}"):
        plan(grid)
