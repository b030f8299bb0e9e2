"""What `sweeper plan` says of a grid and of recorded runs."""

import io
import json
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from support import written

from sweeper.backends import options_of
from sweeper.cli import main
from sweeper.commands import plan_text
from sweeper.errors import StoreError
from sweeper.launcher import preview
from sweeper.planner.plan import plan
from sweeper.scheduler.submitter import asked_by
from sweeper.store.documents import encode, strict
from sweeper.store.local import LocalStore
from sweeper.sweep.folder import SweepFolder
from sweeper.sweep.plan import Plan, read
from sweeper.sweep.states import Event
from sweeper.terminal import display_width

GRID = {
    "name": "toys", "command": ["echo", "--lr={lr}", "{log_path}", "{seed}", "{attempt}", "{run}"],
    "base": {"fixed": "x"}, "grid": {"lr": [0.1, 0.2]}, "seeds": 2,
    "launch": {"backend": "local", "env": {"A": "1"}, "retries": 1}, "secrets": ["KEY"],
}  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path))


def happen(store: LocalStore, planned: Plan, run: int, *events: tuple[int, Event]) -> None:
    for attempt, event in events:
        path = SweepFolder(store, planned.name).event(planned.runs[run].id, attempt, event)
        store.create(path, encode({"schema": 1, "reason": "error"}))


def text(planned: Plan, store: LocalStore) -> str:
    return "\n".join(plan_text.short(preview.survey(planned, store)))


def test_a_plan_that_was_never_launched(store):
    planned = plan(GRID)
    lines = text(planned, store).splitlines()
    assert lines[0].startswith("toys: echo --lr={lr} {log_path}")
    assert lines[0].endswith(" on local, service none, at most 8 at once")
    assert lines[2:8] == [
        "key   values", "lr    2       0.1, 0.2", "seed  2       0, 1", "",
        "2 cells x 2 seeds, 4 runs: 4 to start", "",
    ]  # fmt: skip
    assert lines[8].split() == ["run", "id", "state", "launch"]
    assert lines[9].split() == ["lr=0.1,seed=0", planned.runs[0].id, "planned", "start"]
    assert len(lines) == 13
    assert list(Path(store.root).iterdir()) == []  # nothing is written


def test_a_plan_shows_what_is_recorded_already(store):
    planned = plan(GRID | {"seeds": 3})
    done = (1, Event.INTENT), (1, Event.SUBMITTED), (1, Event.CLAIMED)
    happen(store, planned, 0, *done, (1, Event.SUCCEEDED))
    happen(store, planned, 1, *done, (1, Event.FAILED))
    again = (2, Event.INTENT), (2, Event.SUBMITTED), (2, Event.CLAIMED), (2, Event.FAILED)
    happen(store, planned, 2, *done, (1, Event.FAILED), *again)
    happen(store, planned, 3, *done)
    happen(store, planned, 4, (1, Event.INTENT))  # its launcher died before it was submitted
    survey = preview.survey(planned, store)
    assert [preview.attempt for preview in survey.previews] == [0, 2, 0, 0, 1, 1]
    assert preview.counts(survey) == (
        "3 to start (2 of them again), 1 succeeded, 1 failed and left alone, 1 running"
    )
    runs = preview.document(survey)["runs"]
    assert [run["job"] and run["job"]["attempt"] for run in runs] == [None, 2, None, None, 1, 1]
    assert [run["state"] for run in runs[:4]] == ["succeeded", "failed", "failed", "running"]
    assert [(run["attempts"], run["reason"]) for run in runs[1:4]] == [
        (1, "error"),
        (2, "error"),
        (1, None),
    ]


def test_runs_keep_the_names_they_are_known_by(store):
    old = plan(GRID | {"grid": {"lr": [0.1]}})
    store.replace(SweepFolder(store, "toys").plan, encode(old.document() | {"created": "x"}))
    planned = plan(GRID)
    survey = preview.survey(planned, store)
    assert [preview.run.name for preview in survey.previews] == [
        "seed=0", "seed=1", "lr=0.2,seed=0", "lr=0.2,seed=1",
    ]  # fmt: skip
    happen(store, old, 0, (1, Event.INTENT), (1, Event.SUCCEEDED))
    smaller = preview.survey(plan(GRID | {"grid": {"lr": [0.2]}}), store)
    assert smaller.retired == 2
    # `seed=0` is the name of a finished run that the grid no longer has; `seed=1` never started.
    assert smaller.previews[0].run.name == f"seed=0~{smaller.previews[0].run.id[:6]}"
    assert smaller.previews[1].run.name == "seed=1"
    assert "1 run on record is not in this grid" in "\n".join(plan_text.short(smaller))


def test_the_document_says_what_is_submitted(store):
    planned = plan(GRID)
    document = preview.document(preview.survey(planned, store))
    run = document["runs"][1]
    folder = f"{store.root}/toys/runs/{run['id']}.1"
    assert run["job"]["command"] == ["echo", "--lr=0.1", folder, "1", "1", run["id"]]
    assert run["job"]["log_path"] == folder and run["job"]["token"] == f"{run['id']}-a1"
    assert run["job"]["argv"][-2:] == [f"{store.root}/toys", f"{run['id']}-a1"]
    assert document["environment"] == sorted([*preview.GIVEN, "A", "KEY"])
    assert (document["schema"], document["secrets"]) == (1, ["KEY"])
    assert document["recipe"]["command"] == GRID["command"]


def test_full_shows_every_value_as_it_is_given(store):
    planned = plan(GRID | {"base": {"fixed": "a\x1b[31m\u202eb", "small": 1e-20}})
    shown = "\n".join(plan_text.full(preview.survey(planned, store)))
    assert "  small: 1e-20\n" in shown and "\x1b" not in shown
    assert "\u202e" not in shown and "secrets       KEY" in shown
    assert f"log_path      {store.root}/toys/runs/<run id>.<attempt>" in shown
    assert shown.count("\n  lr: 0.2\n") == 2


def test_texts_that_look_like_other_values_are_quoted(store):
    values = [True, "true", None, "null", 1, "1", "a, b", "a b", "", ".nan", float("nan")]
    planned = plan({"name": "g", "command": ["echo", "{x}", "{log_path}"], "grid": {"x": values}})
    shown = text(planned, store)
    assert 'true, "true", null, "null", 1, "1", "a, b", a b, "", ".nan", .nan' in shown
    document = preview.document(preview.survey(planned, store))
    assert strict(document)["axes"]["x"][-2:] == [".nan", "NaN"]  # as in all JSON


def test_axes_are_told_from_the_runs(store):
    """In any section, and with excluded cells."""
    grid = {
        "name": "mixed",
        "command": ["echo", "{opt}"],
        "grid": {"opt": ["adam", "sgd"], "one": [1]},
        "zip": [{"a": [1, 2], "b": ["x", "y"]}],
        "random": {"samples": 20, "axes": {"t": {"uniform": [0.5, 1]}}},
        "when": [{"if": {"opt": "adam"}, "grid": {"beta": [0.9, 0.99]}}],
        "exclude": [{"opt": "sgd", "a": 2}],
    }
    lines = text(plan(grid), store).splitlines()
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in lines[3 : lines.index("", 3)]}
    assert rows["opt"] == ["2", "adam, sgd"] and rows["one"] == ["1", "1"]
    assert rows["b"] == ["2", "x, y"] and rows["beta"] == ["2", "0.9, 0.99 (in 80 of 100 runs)"]
    assert rows["t"][0] == "20"
    low, _, high = rows["t"][1].partition(" to ")
    assert 0.5 <= float(low) < float(high) <= 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise OSError


def test_the_plan_fits_a_terminal(store, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")
    screen = Terminal()
    grid = GRID | {
        "command": ["echo"],
        "grid": {
            "a_rather_long_name_of_a_field": [f"some/long/value-{n}" for n in range(10)],
            "another_rather_long_name": ["an/even/longer/value/漢字漢字漢字漢字漢字漢字", "y"],
        },
    }
    path = tmp_path / "g.json"
    path.write_text(json.dumps(grid))
    with redirect_stdout(screen):
        assert main(["plan", str(path), "--root", str(tmp_path)]) == 0
    lines = screen.getvalue().splitlines()
    assert max(map(display_width, lines)) <= 80
    assert "\x1b" not in screen.getvalue()
    # Both ends of a name are there: the axis, and the seed.
    assert any(line.startswith("a_rather") and ",seed=1 " in line for line in lines)


@pytest.mark.parametrize("width", range(8, 40))
def test_a_cut_text_fits(width):
    for sample in ("x" * 100, "漢" * 50, "ab漢" * 20, "short"):
        cut = plan_text.cut(sample, width)
        assert display_width(cut) <= width
        assert cut == sample or "..." in cut


def test_a_file_is_as_wide_as_it_needs_to_be(capsys, tmp_path):
    path = tmp_path / "g.json"
    path.write_text(json.dumps(GRID | {"grid": {"lr": [n * 60 for n in "abc"]}}))
    assert main(["plan", str(path), "--root", str(tmp_path)]) == 0
    assert ", ".join(n * 60 for n in "abc") in capsys.readouterr().out


def test_warnings_are_on_standard_error(capsys, tmp_path):
    path = tmp_path / "g.json"
    path.write_text(json.dumps(GRID | {"grid": {"lr": [1]}}))
    for flags in ([], ["--full"]):
        assert main(["plan", str(path), "--root", str(tmp_path), *flags]) == 0
        out, err = capsys.readouterr()
        assert "sweeper: warning: " in err and "only one value" in err
        assert "only one value" not in out
    assert main(["plan", str(path), "--root", str(tmp_path), "--json"]) == 0
    out, err = capsys.readouterr()
    assert "only one value" in json.loads(out)["warnings"][0]
    assert err == ""


def test_runs_that_only_give_a_default_are_warned_of(store):
    old = plan(GRID)
    store.replace(SweepFolder(store, "toys").plan, encode(old.document() | {"created": "x"}))
    planned = plan(GRID | {"base": {"fixed": "x", "rank": 8}})
    takes = {"rank": {"type": "int", "default": 8}}
    planned = planned._replace(recipe=planned.recipe._replace(takes=takes), warnings=("first",))
    survey = preview.survey(planned, store)
    warning = (
        "4 runs will train again: the grid now sets rank explicitly, to the recipe's "
        "default, which gives runs new ids"
    )
    assert survey.plan.warnings == ("first", warning)
    assert preview.document(survey)["warnings"] == ["first", warning]
    store.replace(SweepFolder(store, "toys").plan, encode(planned.document() | {"created": "x"}))
    assert preview.survey(planned, store).plan.warnings == ("first",)


def test_what_cannot_work_here_is_told_with_the_other_mistakes(tmp_path, capsys):
    grid = tmp_path / "g.yaml"
    grid.write_text("command: [nowhere-to-be-found, '{a}']\ngrid: {a: [1]}\n")
    assert main(["plan", str(grid)]) == 2
    assert f"{grid}:1:10: command: no program 'nowhere" in capsys.readouterr().err
    grid.write_text("command: [./train.sh]\nlaunch: {backend: lokal}\nseed: 3\n")
    assert main(["plan", str(grid)]) == 2
    stderr = capsys.readouterr().err
    assert f"{grid}:2:19: launch.backend: no backend 'lokal': use aws-batch, " in stderr
    assert "unknown key 'seed'" in stderr
    grid.write_text("command: [./train.sh]\n")
    assert main(["plan", str(grid)]) == 2
    assert f"no program {Path.cwd()}/./train.sh" in capsys.readouterr().err


def test_a_root_that_cannot_be_written_is_told_by_plan(tmp_path, capsys):
    grid = tmp_path / "g.yaml"
    grid.write_text("command: [echo]\n")
    file = tmp_path / "file"
    file.touch()
    for root in ("/proc/nope", str(file / "below")):
        assert main(["plan", str(grid), "--root", root]) == 6
        stderr = capsys.readouterr().err
        assert stderr.startswith(f"sweeper: the root {root}") and stderr.count("\n") == 1
        assert main(["launch", str(grid), "--root", root, "--wait"]) == 6
        assert capsys.readouterr().err == stderr


def test_a_metric_that_earlier_runs_did_not_record(tmp_path):
    earlier = written.Written(tmp_path, "earlier", {"a": [1]})
    earlier.run({"a": 1}, 0, [{"step": 0, "loss": 1.0}, {"step": 1, "test/nll": 2.0}])
    earlier.save()
    store = LocalStore(str(tmp_path))
    recipe = json.loads((tmp_path / "earlier/sweep.json").read_text())["recipe"]["reference"]

    def warnings(name, reference=recipe):
        metric = {"name": name, "goal": "minimize"}
        made = plan({"name": "n", "command": ["echo", "{log_path}"], "metric": metric})
        made = made._replace(recipe=made.recipe._replace(reference=reference))
        return preview.survey(made, store).plan.warnings

    assert warnings("test/nll") == warnings("nothing", "another") == ()
    assert warnings("test/nl") == (
        "metric: runs of earlier did not record 'test/nl'; they recorded loss, test/nll"
        "; did you mean 'test/nll'?",
    )


def test_what_an_earlier_version_has_on_record_of_backends_is_read():
    """It wrote a section for each backend of that time, and none for later ones."""
    document = plan({"name": "g", "command": ["true"]}).document()
    slurm = {"mem": "4G", "time_s": 60.0, "overrides": [{"if": {"x": [1]}, "mem": "8G"}]}
    document["launch"] |= {"backend": "slurm", "slurm": slurm, "aws_batch": {}}
    recorded = read(document, "sweep.json").launch
    assert options_of(recorded, "slurm") == slurm
    assert asked_by(recorded, "slurm", {"x": 1}) == {"mem": "8G", "time_s": 60.0}
    assert recorded.document() == document["launch"]
    document["launch"]["slurm"] = ["4G"]
    with pytest.raises(StoreError, match=r"sweep.json: launch.slurm"):
        read(document, "sweep.json")
