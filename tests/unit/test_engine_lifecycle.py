"""The record of an engine: how it is found and stopped."""

import io
import json
import os
import sys

import pytest
from support.answering import answering

from sweeper import paths
from sweeper.commands.checkpoint_names import service_environment
from sweeper.engine import __main__ as engine_verbs
from sweeper.engine import access_token, lifecycle
from sweeper.errors import EngineError, EnvironmentFailure


def test_home_comes_from_the_environment():
    assert paths.home({"SWEEPER_HOME": "/a/b"}) == "/a/b"
    assert paths.home({"XDG_DATA_HOME": "/d"}) == "/d/sweeper"
    assert paths.home({}) == os.path.expanduser("~/.local/share/sweeper")
    assert paths.checkpoints("/h") == "/h/engine/checkpoints"


def test_the_command_names_the_home(tmp_path):
    argv = lifecycle.command(str(tmp_path), 8000)
    assert argv[:5] == [sys.executable, "-P", "-m", "sweeper.engine", "serve"]
    assert argv[-4:] == ["--port", "8000", "--home", str(tmp_path)]
    assert "--home" not in lifecycle.command()


def record(tmp_path, **fields):
    os.makedirs(tmp_path / "engine", exist_ok=True)
    content = {"schema": 1, "url": "http://127.0.0.1:9", "pid": os.getpid(), "started": "t",
               "version": "0", **fields}  # fmt: skip
    with open(lifecycle.record_path(str(tmp_path)), "w") as file:
        json.dump(content, file)


def test_missing_torn_and_stale_records_are_no_engine(tmp_path):
    assert lifecycle.find(str(tmp_path)) is None
    record(tmp_path)
    assert lifecycle.find(str(tmp_path)) is None
    with open(lifecycle.record_path(str(tmp_path)), "w") as file:
        file.write('{"url": "http')
    assert lifecycle.find(str(tmp_path)) is None and lifecycle.stop(str(tmp_path)) is False


@pytest.fixture
def impostor():
    """Serve another program at the recorded address, which answers healthz with `answer`."""
    answer = {}

    with answering(lambda _: (200, answer)) as url:
        yield url, answer


def test_only_the_engine_of_this_home_and_record_is_found(tmp_path, impostor):
    url, answer = impostor
    record(tmp_path, url=url)
    assert lifecycle.find(str(tmp_path)) is None
    same = {"service": lifecycle.SERVICE, "home": str(tmp_path), "pid": os.getpid(), "started": "t"}
    for key in same:
        answer.clear()
        answer.update({**same, key: "other"})
        assert lifecycle.find(str(tmp_path)) is None, key
        assert lifecycle.stop(str(tmp_path)) is False
    answer.update(same)
    assert lifecycle.find(str(tmp_path)).url == url


def test_an_impostor_without_the_token_is_not_found(tmp_path, impostor):
    """Another user's program on the port of an engine that died must not get the token."""
    url, answer = impostor
    record(tmp_path, url=url, proves=True)
    access_token.keep(str(tmp_path), access_token.new())
    same = {"service": lifecycle.SERVICE, "home": str(tmp_path), "pid": os.getpid(), "started": "t"}
    for proof in ({}, {"proof": ""}, {"proof": access_token.proof("tml-" + "x" * 40, "c")}):
        answer.clear()
        answer.update(same | proof)
        assert lifecycle.find(str(tmp_path)) is None


def test_a_home_may_be_named_by_a_link(tmp_path, impostor):
    url, answer = impostor
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    record(tmp_path / "real", url=url)
    answer |= {"service": lifecycle.SERVICE, "pid": os.getpid(), "started": "t"}
    answer["home"] = str(tmp_path / "real")
    assert lifecycle.find(str(tmp_path / "link")).url == url


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("flags", "terminal", "answer", "stopped"),
    [
        ([], False, None, False),
        ([], True, "", False),
        ([], True, "y", True),
        (["--force"], False, None, True),
    ],
)
def test_an_engine_that_sweeps_use_is_not_stopped_unasked(
    flags, terminal, answer, stopped, tmp_path, impostor, monkeypatch, capsys
):
    """Its runs would have to wait for another engine. Without a terminal, there is no question."""
    url, says = impostor
    record(tmp_path, url=url)
    says |= {"service": lifecycle.SERVICE, "pid": os.getpid(), "started": "t"}
    says["home"] = str(tmp_path)
    stops = []
    monkeypatch.setattr(lifecycle, "stop", stops.append)
    for stream in ("stdin", "stderr") if terminal else ():
        monkeypatch.setattr(f"sys.{stream}", Screen())
    monkeypatch.setattr("builtins.input", lambda _: answer if terminal else pytest.fail("asked"))
    sweeps = [f"/sweeps/{n}" for n in range(7)]
    code = engine_verbs.main(["stop", "--home", str(tmp_path), *flags], lambda _: sweeps)
    output = capsys.readouterr()
    assert bool(stops) == stopped
    if not flags:
        named = "7 sweeps in progress use the engine: /sweeps/0, /sweeps/1, /sweeps/2, /sweeps/3, "
        named += "/sweeps/4 and 2"
        assert named in (output.out if terminal else output.err)
    assert code == (6 if not stopped and not terminal else 0)


def test_waiting_in_vain_ends_with_the_log(tmp_path):
    with pytest.raises(EngineError, match="it wrote no"):
        lifecycle.wait(str(tmp_path), timeout=0)
    record(tmp_path)
    with open(lifecycle.log_path(str(tmp_path)), "w") as file:
        file.write("one\ncannot listen on port 80\n")
    with pytest.raises(EngineError, match=r"one \| cannot listen on port 80"):
        lifecycle.wait(str(tmp_path), timeout=0)


def test_a_sweeps_own_service_is_asked_whatever_the_environment_leads_to(tmp_path, monkeypatch):
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path))
    monkeypatch.setenv("TINKER_BASE_URL", "https://elsewhere.example.org")
    monkeypatch.setenv("TINKER_API_KEY", "key")
    assert service_environment() == {}
    with pytest.raises(EnvironmentFailure, match="no engine is running"):
        service_environment("local")
    assert service_environment("tinker")["TINKER_API_KEY"] == "key"
