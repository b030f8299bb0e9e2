"""A plan that another user recorded runs only after the user has seen it and agreed."""

import io
import json
import os
import stat
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from sweeper.backends import backend_type, registered
from sweeper.backends.base import Backend
from sweeper.cli import main
from sweeper.errors import EnvironmentFailure, UsageError
from sweeper.launcher import launching
from sweeper.planner.plan import plan as planned
from sweeper.sweep import trust
from sweeper.sweep.environment_file import write
from sweeper.sweep.trust import is_ours, refuse, require, sealed

PLAN = {"schema": 1, "name": "s", "runs": [{"id": "a", "config": {"x": 1e-4, "y": float("inf")}}]}


@pytest.fixture(autouse=True)
def identity(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set up a user with an empty home and no identity."""
    monkeypatch.delenv("SWEEPER_IDENTITY", raising=False)
    monkeypatch.setenv("SWEEPER_ROOT", str(tmp_path / "root"))


def _read_back(document: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(document))


def test_a_sealed_plan_is_ours_until_it_is_changed(home: Path) -> None:
    assert not is_ours(PLAN) and not is_ours(PLAN | {"seal": ""}) and not home.exists()
    mine = _read_back(sealed(PLAN))
    assert is_ours(mine)
    assert is_ours(_read_back(sealed(mine)))  # as when it is launched again
    for changed in ({"name": "t"}, {"runs": []}, {"seal": "0" * 64}, {"new": 1}):
        assert not is_ours(mine | changed)
    assert stat.S_IMODE(os.stat(home / "identity").st_mode) == 0o600


def test_another_home_is_another_user_without_the_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = sealed(PLAN)
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "other"))
    assert not is_ours(mine)
    sealed(PLAN)  # this home now has a key
    assert not is_ours(mine)
    monkeypatch.setenv("SWEEPER_IDENTITY", (tmp_path / "home" / "identity").read_text())
    assert is_ours(mine)
    with open(write(str(tmp_path / "s"), {})) as file:
        assert "SWEEPER_IDENTITY" not in json.load(file)  # no run can seal a plan
    monkeypatch.setenv("SWEEPER_IDENTITY", "short")
    with pytest.raises(EnvironmentFailure, match="fewer than 16 characters"):
        is_ours(mine)


def test_agreement_is_remembered_for_one_document() -> None:
    with pytest.raises(UsageError, match="add --trust"):
        require(PLAN, "r/s", refuse)
    questions: list[Any] = []
    require(PLAN, "r/s", lambda lines: questions.append(lines) is None)
    require(PLAN, "r/s", refuse)
    assert len(questions) == 1
    with pytest.raises(UsageError):
        require(PLAN | {"secrets": ["X"]}, "r/s", refuse)


GRID = (
    "name: s\ncommand: ['true', '{x}']\nservice: none\ngrid: {x: [1]}\nlaunch: {backend: local}\n"
)


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a sweep that another home recorded, whose run has failed."""
    (tmp_path / "grid.yaml").write_text(GRID)
    folder = tmp_path / "root" / "s"
    folder.mkdir(parents=True)
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "their-home"))
    plan: Any = sealed(planned(str(tmp_path / "grid.yaml")).document())
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    plan["recipe"]["command"] = ["sh", "-c", "steal\x1b[2J"]
    plan["launch"]["env"] = {"LD_PRELOAD": "theirs.so", "A_TOKEN": "hunter22"}
    (folder / "sweep.json").write_text(json.dumps(plan))
    state = folder / "state" / plan["runs"][0]["id"]
    state.mkdir(parents=True)
    for event in ("intent", "claimed", "failed"):
        (state / f"1.{event}.json").write_text('{"schema": 1}')
    return folder


def _files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("verb", ["retry", "launch"])
def test_a_foreign_plan_is_refused_without_a_terminal(
    theirs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    before = _files(theirs)
    assert main([verb, "s" if verb == "retry" else str(tmp_path / "grid.yaml")]) == 2
    error = capsys.readouterr().err
    assert "executes: sh -c steal" in error.replace("'", "") and "\x1b" not in error
    assert "LD_PRELOAD=theirs.so, A_TOKEN" in error and "hunter22" not in error
    assert error.splitlines()[-1].endswith("add --trust")
    assert _files(theirs) == before


class Typed(io.StringIO):
    """The input or the output of a terminal."""

    def isatty(self) -> bool:
        return True


def _refuse(*_: object) -> Backend:
    raise EnvironmentFailure("local: it is opened")


@pytest.mark.parametrize(
    ("flags", "answer", "code"),
    [(["--trust"], "", 6), ([], "y\n", 6), ([], "n\n", 2), ([], "\n", 2), ([], "", 2)],
)
def test_the_user_agrees_by_flag_or_answer(
    theirs: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], answer: str, code: int
) -> None:
    """After agreement the backend is opened, which fails here."""
    screen = io.StringIO() if flags else Typed()
    monkeypatch.setattr("sys.stdin", Typed(answer))
    monkeypatch.setenv("TERM", "xterm")
    local = backend_type("local")._replace(open=_refuse)
    with redirect_stdout(screen), redirect_stderr(screen), registered(local):
        assert main(["retry", "s", *flags]) == code
    assert ("it is opened" in screen.getvalue()) == (code == 6)
    assert not list(theirs.rglob("*.retry.json"))


def test_an_agreed_launch_makes_the_plan_ours(theirs: Path, tmp_path: Path) -> None:
    grid = str(tmp_path / "grid.yaml")
    request = launching.LaunchRequest(planned(grid), str(tmp_path / "root"))
    launching.launch_plan(request, launching.User(agree=lambda _: True))
    assert is_ours(json.loads((theirs / "sweep.json").read_text()))
    launching.launch(grid, str(tmp_path / "root"))
    assert trust.refuse(()) is False


def test_cancel_does_not_contact_addresses_of_a_foreign_plan(
    theirs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A Ray server would get the user's token."""
    plan = json.loads((theirs / "sweep.json").read_text())
    plan["launch"] |= {"backend": "ray", "ray": {"address": "127.0.0.1:9"}}
    (theirs / "sweep.json").write_text(json.dumps(plan))
    (run,) = (theirs / "state").iterdir()
    (run / "1.failed.json").unlink()  # it is running
    with registered(backend_type("ray")._replace(open=_refuse)):
        assert main(["cancel", "s"]) == 2
    assert "queued jobs at 127.0.0.1:9 are not cancelled" in capsys.readouterr().err
    assert (run / "1.cancel.json").exists()
