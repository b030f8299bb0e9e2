"""Every verb that answers or acts has `--json`, and a wrong option shows the usage of its verb."""

import csv
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import written
from support.verbs import ask

from sweeper.cli import main
from sweeper.commands import PARENTS, VERBS, load, parts


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SWEEPER_ROOT", str(tmp_path / "root"))
    monkeypatch.chdir(tmp_path)
    sweep = written.Written(tmp_path / "root", "s", {"lr": [1, 2]})
    for rate in (1, 2):
        sweep.run({"lr": rate}, 0, [{"step": 0, "test/nll": float(rate), "x": "=1+1"}])
    sweep.save()
    return tmp_path / "root"


def test_the_skill_names_the_verbs_without_json():
    from argparse import ArgumentParser

    from sweeper.agents.skill import skill_text

    def has(verb: str) -> bool:
        parser = ArgumentParser(conflict_handler="resolve")
        if verb == "engine":  # it parses its own command line
            return False
        for name in parts(verb).values() if verb in PARENTS else (verb,):
            load(name).add_arguments(parser)
        return "--json" in parser.format_help()

    without = {verb for verb in VERBS if " " not in verb and not has(verb)}
    sentence = skill_text().partition("takes `--json` (")[2].partition(")")[0]
    assert {word.strip("`,") for word in sentence.split()} & set(VERBS) == without


def test_verbs_that_steer_answer_with_one_object(root, capsys):
    paused = {"schema": 1, "sweep": "s", "launcher": False, "started": False, "changed": True}
    assert ask(capsys, "pause", "s") == paused | {"runs": False}
    assert ask(capsys, "parallel", "s", "3")["jobs"] == 3
    assert ask(capsys, "stop", "s")["changed"] is False
    assert ask(capsys, "resume", "s")["sweep"] == "s"
    status = ask(capsys, "retry", "s")
    assert [run["state"] for run in status["runs"]] == ["succeeded"] * 2
    assert ask(capsys, "sweep", "rename", "s", "t") == {"schema": 1, "sweep": "t", "was": "s"}
    assert main(["sweep", "delete", "t", "--json"]) == 2  # a question would not be JSON
    assert ask(capsys, "sweep", "delete", "t", "--yes")["runs"] == 2
    assert not (root / "t").exists()


def test_launch_answers_with_the_state_of_its_sweep(tmp_path, capsys):
    (tmp_path / "g.yaml").write_text(
        "command: [sh, -c, 'true {x}']\ngrid: {x: [1, 2]}\nlaunch: {backend: local}\n"
    )
    document = ask(capsys, "launch", "g.yaml", "--wait")
    assert document["schema"] == 1 and document["sweep"] == "g"
    assert [run["state"] for run in document["runs"]] == ["succeeded"] * 2


def test_export_writes_into_a_pipe_and_takes_the_format_of_the_suffix(tmp_path, capsys):
    for options in ([], ["--out", "-"], ["--format", "csv", "--out", "-"]):
        capsys.readouterr()
        assert main(["export", "s", *options]) == 0
        rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
        assert rows[0][:3] == ["run", "sweep", "root"] and len(rows) == 3
    assert not Path("-").exists()
    assert main(["export", "s", "--out", "x.csv"]) == 0
    assert Path("x.csv").read_text().startswith('"run","sweep","root"')
    assert main(["export", "s", "--out", "x.parquet"]) == 0
    assert Path("x.parquet").read_bytes()[:4] == b"PAR1"
    document = ask(capsys, "export", "s", "--out", "y.csv")
    assert document == {
        **{"schema": 1, "format": "csv", "out": "y.csv", "runs": 2, "rows": 2},
        "problems": [],
    }
    capsys.readouterr()
    assert main(["export", "s", "--out", "x.txt"]) == 2
    assert "choose --format csv or --format parquet" in capsys.readouterr().err


def test_a_reader_of_an_export_may_leave_early(root):
    command = [sys.executable, "-m", "sweeper", "export", "s", "--root", str(root)]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")
