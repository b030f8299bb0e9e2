"""Rollouts exported as traces: one line per step, and spans to an OpenTelemetry collector."""

import json
import subprocess
import sys

import pytest
from support import written

from sweeper.cli import main
from sweeper.errors import UsageError
from sweeper.telemetry.collector import address_of

COLLECTED = "POST /v1/traces"


def episode(task, reward, group, stop="done", turns=3):
    steps = [
        {
            **{"ob_len": 10 * (n + 1), "ac_len": 4, "reward": reward * (n == turns - 1)},
            "metrics": {"seconds": 0.5},
            "logs": {"response": f"ls {n}", "output": "a\n"},
        }
        for n in range(turns)
    ]
    steps[0]["logs"] |= {"item": task, "question": "Do it."}
    steps[1]["metrics"] |= {"stop/max_tokens": 1.0, "parse_error": 1.0}
    about = {"solved": float(reward >= 1), "seconds": 2.0, "ended_at": 1_700_000_000.5}
    return {
        **{"iteration": 0, "group_idx": group, "traj_idx": 0, "tags": ["t", task]},
        **{"total_reward": reward, "trajectory_metrics": about | {f"stop/{stop}": 1.0}},
        "steps": steps,
    }


@pytest.fixture
def sweep(home, tmp_path, monkeypatch):
    sweep = written.Written(tmp_path / "sweeps", "shells", {"rate": [1]}, None)
    run = sweep.run({"rate": 1}, 0, [{"step": 0}])
    folder = sweep.folder / "runs" / f"{run}.1" / "iteration_000000"
    folder.mkdir(parents=True)
    episodes = [episode("a", 1.0, 0), episode("b", 0.25, 1, "max_turns", turns=2)]
    (folder / "train_rollout_summaries.jsonl").write_text(written.dump(episodes))
    sweep.save()
    monkeypatch.setenv("SWEEPER_ROOT", str(tmp_path / "sweeps"))
    return "shells/rate=1,seed=0"


def test_export_writes_one_json_line_per_step(sweep, capsys, tmp_path):
    assert main(["rollouts", sweep, "--export", "-"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2, 0, 1]
    assert [row["labels"] for row in rows] == [
        ["first"],
        ["cut_off", "unreadable"],
        ["last", "stop:done", "solved"],
        ["first"],
        ["last", "cut_off", "unreadable", "stop:max_turns", "unsolved"],
    ]
    assert len({row["trace"] for row in rows}) == 2
    first = rows[0]
    assert (first["sweep"], first["run"], first["name"]) == ("shells", "rate=1,seed=0", "train")
    assert (first["task"], first["reward"], first["solved"], first["turns"]) == ("a", 1.0, True, 3)
    assert (first["asked"], first["said"], first["output"]) == ("Do it.", "ls 0", "a\n")
    assert (first["tokens_read"], first["tokens_written"], first["step_seconds"]) == (10, 4, 0.5)
    # Options that choose rollouts apply to the export, here to a file.
    path = tmp_path / "failed.jsonl"
    assert main(["rollouts", sweep, "--failed", "--export", str(path)]) == 0
    assert {json.loads(line)["task"] for line in path.read_text().splitlines()} == {"b"}
    assert f"wrote 2 steps of 1 trajectory to {path}" in capsys.readouterr().out


def test_spans_are_sent_to_a_collector(sweep, collector, capsys, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=a%20b")
    url = collector.url
    assert main(["rollouts", sweep, "--otlp", url]) == 0
    ((path, headers, body),) = collector.taken
    assert path == COLLECTED
    assert {key.lower(): value for key, value in headers.items()}["x-key"] == "a b"
    (resource,) = body["resourceSpans"]
    assert resource["resource"]["attributes"][0]["value"] == {"stringValue": "sweeper"}
    spans = resource["scopeSpans"][0]["spans"]
    assert [span["name"] for span in spans] == [
        *("episode a", "turn 0", "turn 1", "turn 2"),
        *("episode b", "turn 0", "turn 1"),
    ]
    whole, *turns = spans[:4]
    assert "parentSpanId" not in whole
    assert {turn["parentSpanId"] for turn in turns} == {whole["spanId"]}
    assert {len(span["traceId"]) for span in spans} == {32}
    assert len({span["spanId"] for span in spans}) == 7
    assert int(whole["endTimeUnixNano"]) - int(whole["startTimeUnixNano"]) == 2_000_000_000
    assert int(whole["endTimeUnixNano"]) == 1_700_000_000_500_000_000
    assert turns[0]["startTimeUnixNano"] == whole["startTimeUnixNano"]
    attributes = {attribute["key"]: attribute["value"] for attribute in turns[2]["attributes"]}
    assert attributes["gen_ai.usage.output_tokens"] == {"intValue": "4"}
    labels = [
        value["stringValue"] for value in attributes["sweeper.labels"]["arrayValue"]["values"]
    ]
    assert labels == ["last", "stop:done", "solved"]
    # A second export sends the same spans.
    assert main(["rollouts", sweep, "--otlp", f"{url}/v1/traces"]) == 0
    assert collector.taken[1][2] == body
    collector.code = 503
    assert main(["rollouts", sweep, "--otlp", url]) == 6
    assert f"the collector at {url}/v1/traces answered with status 503" in capsys.readouterr().err


def test_a_malformed_address_or_path_is_refused(sweep, capsys):
    assert main(["rollouts", sweep, "--otlp", "localhost:4318"]) == 2
    assert "--otlp localhost:4318: write http://HOST:4318" in capsys.readouterr().err
    assert main(["rollouts", sweep, "--export", "/no/such/place"]) == 2
    assert "--export /no/such/place: No such file" in capsys.readouterr().err


def test_an_address_with_a_password_is_refused():
    with pytest.raises(UsageError) as refused:
        address_of("http://user:secret@host:4318")
    assert "secret" not in str(refused.value) and "OTEL_EXPORTER_OTLP_HEADERS" in str(refused.value)


def test_a_silent_collector_does_not_keep_a_run_from_ending():
    script = (
        "import socket\n"
        "from sweeper.telemetry import Telemetry, live\n"
        "live._LAST_SECONDS = 0.1\n"
        "held = socket.create_server(('127.0.0.1', 0))\n"
        "telemetry = Telemetry(f'http://127.0.0.1:{held.getsockname()[1]}')\n"
        "for _ in range(60):\n"
        "    telemetry.episodes('train', '{}')\n"
    )
    # Each of the 60 requests waits for 10 seconds.
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
