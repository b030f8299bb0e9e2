"""Captured tokens that cannot be read (stores of tinker-cookbook: tests/e2e)."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support import written

from sweeper.cli import main


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWEEPER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SWEEPER_ROOT", str(tmp_path / "root"))
    sweep = written.Written(tmp_path / "root", "s", {"lr": [1]})
    run = sweep.run({"lr": 1}, 0, [{"step": 0, "x": 1.0}])
    sweep.save()
    made = tmp_path / "root/s/runs" / f"{run}.1" / "capture"
    made.mkdir()
    return made


def call(tokens: Any, **scope: Any) -> str:
    sample = {"tokens": tokens, "logprobs": [-0.5], "stop_reason": "length"}
    return json.dumps({"scope": scope, "seq_id": 1, "prompt_tokens": [1, 2], "samples": [sample]})


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert main(["rollouts", "s", "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)["rollouts"]


@pytest.mark.parametrize(
    ("database", "message"),
    [(b"no database at all, but long enough to be read" * 9, "file is not a database"),
     (b"", "no such table: wire_rows")],
)  # fmt: skip
def test_a_damaged_store_costs_one_line(folder, database, message, capsys):
    (folder / "capture.sqlite").write_bytes(database)
    assert main(["rollouts", "s"]) == 5
    errors = capsys.readouterr().err.splitlines()
    place = folder / "capture.sqlite"
    assert f"{place}: damaged, or not a capture store ({message})" in errors[0]
    assert errors[1:] == ["sweeper: s/lr=1,seed=0 has recorded no rollout summaries"]
    assert not list(folder.glob("capture.sqlite-*"))


def test_values_of_any_kind_are_shown_or_left_out(folder, capsys):
    lines = [
        call([7], iteration=3, group_idx=0, traj_idx=0, split="train"),
        call([8], iteration=3, group_idx=[1], traj_idx={"a": 1}, split=["x"]),
        call("12", iteration="three"),
        json.dumps({"scope": 5, "samples": [3, None]}),
        '{"torn": ',
    ]
    (folder / "sample.jsonl").write_text("\n".join(lines))
    first, *others = shown(capsys, "--name", "train")
    assert others == []
    assert first["tokens"] == [{"prompt_tokens": [1, 2], "sampled_tokens": [7], "logprobs": [-0.5]}]
    assert (first["iteration"], first["stop/max_tokens"], first["logprob"]) == (3, 1.0, -0.5)
    assert len(shown(capsys, "--limit", "0")) == 5
    assert main(["rollouts", "s", "--export", "-"]) == 0
    steps = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [step.get("sampled_tokens") for step in steps].count(None) == 3


def test_a_store_that_its_daemon_has_open_is_read_too(folder, capsys):
    names = "cursor split iteration group_idx traj_idx purpose seq_id policy_version"
    columns = [*names.split(), "prompt_tokens", "sampled_tokens", "logprobs", "metadata"]
    with closing(sqlite3.connect(folder / "capture.sqlite")) as daemon:
        daemon.execute("PRAGMA journal_mode=WAL")
        daemon.execute(f"CREATE TABLE wire_rows ({', '.join(columns)})")
        insert = f"INSERT INTO wire_rows VALUES ({', '.join('?' * len(columns))})"  # noqa: S608
        for place in range(2):
            row = [place, "train", 0, 0, place, None, place, None, "[1]", f"[{place}]", "[-1.0]"]
            daemon.execute(insert, [*row, '{"stop_reason": "stop"}'])
            daemon.commit()
            sessions = shown(capsys)
            assert [session["tokens"][0]["sampled_tokens"] for session in sessions] == [
                [n] for n in range(place + 1)
            ]
