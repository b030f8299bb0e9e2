"""`sweeper init --from` makes grids from other programs' files; `expected.json` has their runs."""

import json
import shutil
from pathlib import Path

import pytest

from sweeper.cli import main
from sweeper.errors import GridError
from sweeper.launcher.preview import command
from sweeper.planner.plan import plan

HERE = Path(__file__).parents[1] / "translation"
EXPECTED = json.loads((HERE / "expected.json").read_text())
PROGRAMS = {"hydra_optuna.yaml": ["study.py"]}
FILES = sorted(
    path.name for path in HERE.iterdir() if path.name not in ("expected.json", "hydra_app.py")
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    shutil.copytree(HERE, tmp_path / "files")
    monkeypatch.chdir(tmp_path / "files")
    for name in ("DATA_DIR", "SCRATCH"):
        monkeypatch.setenv(name, f"/{name}")
    return tmp_path / "files"


def translated(name, capsys):
    """Translate a file. Return facts of its grid, and the printed remarks."""
    code = main(["init", *PROGRAMS.get(name, []), "--from", name, "--out", "made.yaml"])
    remarks = [line.removeprefix("sweeper: ") for line in capsys.readouterr().err.splitlines()]
    assert code == 0, remarks
    try:
        planned = plan("made.yaml")
    except GridError as error:
        return {"remarks": remarks, "refused": list(error.problems)}
    commands = [command(planned, run, 1, "LOG") for run in planned.runs]
    for argv in commands:
        argv[0] = argv[0].replace("python3", "python")
    return {
        "name": planned.name,
        "runs": len(commands),
        "first": commands[0],
        "last": commands[-1],
        "metric": None if planned.metric is None else planned.metric.name,
        "backend": planned.launch.backend,
        "max_parallel": planned.launch.max_parallel,
        "remarks": remarks,
    }


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_translated_to_the_expected_runs(name, folder, capsys):
    assert translated(name, capsys) == EXPECTED[name]


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_translated_or_refused_in_one_line(name, folder, capsys):
    lines = (folder / name).read_text().splitlines()
    for number, line in enumerate(lines):
        for instead in ([], [line[: len(line) // 2]], [line, line], [f"{line} '"], ["  x: [1"]):
            damaged = [*lines[:number], *instead, *lines[number + 1 :]]
            (folder / name).write_text("\n".join(damaged))
            given = [*PROGRAMS.get(name, []), "--from", name, "--out", "-"]
            assert main(["init", *given]) in (0, 2), (damaged, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.yaml", "a: 1", "x.yaml: not recognised: expected a sweep of W&B"),
        ("x.yaml", "- a", "x.yaml: not recognised"),
        ("x.yaml", "a: [", "x.yaml:1:5: not YAML"),
        (
            "x.yaml",
            "method: grid\nparameters: {a: {value: 1}}",
            "the file names no program: use `sweeper init PROGRAM",
        ),
        ("x.yaml", "program: a.py\nparameters: {}", "x.yaml: parameters is empty"),
        ("x.yaml", "hydra: {job: {name: x}}", "hydra.sweeper.params gives no values"),
        ("x.yaml", "seml: {executable: a.py}", "no parameters in fixed, grid or random"),
        ("x.sh", "# nothing\necho a", "x.sh: the script has no command"),
        ("x.sh", "python 'a", "x.sh cannot be read: No closing quotation"),
    ],
)
def test_an_untranslatable_file_is_refused_in_one_line(
    name, text, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(text)
    assert main(["init", "--from", name]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert main(["init", "--from", "missing.yaml"]) == 2
    assert "cannot read missing.yaml: No such file" in capsys.readouterr().err


def test_neither_the_source_nor_a_grid_is_overwritten(folder, capsys):
    before = (folder / "wandb_grid.yaml").read_text()
    assert main(["init", "--from", "wandb_grid.yaml"]) == 0
    assert (folder / "wandb_grid.yaml").read_text() == before
    header = "# Translated from wandb_grid.yaml (a W&B sweep)"
    assert header in (folder / "wandb_grid_grid.yaml").read_text()
    assert main(["init", "--from", "wandb_grid.yaml"]) == 2
    assert "wandb_grid_grid.yaml exists already" in capsys.readouterr().err


def test_remarks_are_also_comments_of_the_grid(folder, capsys):
    assert main(["init", "--from", "wandb_bayes.yaml", "--out", "-"]) == 0
    out, err = capsys.readouterr()
    remarks = err.replace("sweeper: ", "").splitlines()
    assert remarks
    for remark in remarks:
        assert f"#   {remark}\n" in out


def test_secrets_are_named_but_not_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_API_KEY", "HF_TOKEN"):
        monkeypatch.setenv(name, "do-not-tell")
    (tmp_path / "x.sh").write_text(
        "export WANDB_API_KEY=do-not-tell\nfor a in 1 2; do python x.py $a $HF_TOKEN; done\n"
    )
    assert main(["init", "--from", "x.sh", "--out", "x.yaml"]) == 0
    text = (tmp_path / "x.yaml").read_text()
    assert "do-not-tell" not in text + capsys.readouterr().err
    assert plan("x.yaml").secrets == ("WANDB_API_KEY", "HF_TOKEN")


def test_most_of_the_thirty_files_plan_without_an_edit():
    planned = [name for name in FILES if "runs" in EXPECTED[name]]
    assert len(FILES) == len(EXPECTED) == 30
    assert len(planned) >= 27


def test_control_characters_are_removed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.sh").write_text(
        "conda activate \x1b[31mred\nfor a in 1 2; do true\x1b[2J; a $a; done\n"
    )
    assert main(["init", "--from", "x.sh", "--out", "x.yaml"]) == 0
    assert "\x1b" not in capsys.readouterr().err + (tmp_path / "x.yaml").read_text()
