"""`sweeper weights`, `chat` and `endpoint`: from the winner to its files and answers."""

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from safetensors.numpy import load_file

pytestmark = pytest.mark.e2e

Run = Any
"""`Taught` of `tests/support/taught.py`."""


def test_the_best_run_of_a_sweep_is_downloaded_with_a_card(taught: Run, tmp_path: Path) -> None:
    target = tmp_path / "winner"
    done = taught("weights", "taught", "--to", str(target), "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["run"] == "taught/lr=1e-2"
    assert facts["checkpoint"] == "final"
    config = json.loads((target / "adapter_config.json").read_text())
    assert config["r"] == 8
    arrays = load_file(target / "adapter_model.safetensors")
    assert arrays and any(array.any() for name, array in arrays.items() if ".lora_B." in name)
    card = (target / "README.md").read_text()
    assert f"base_model: {config['base_model_name_or_path']}" in card
    assert "# taught/lr=1e-2" in card
    assert "| learning_rate | 0.01 |" in card
    assert "- test/nll: " in card
    assert re.search(r"- test/nll of its cell: [\d.]+ \(1 run\); number 1 of 2\n", card)
    assert re.search(r"- verdict on the sweep: \w.+\n", card)
    assert re.search(r"- cost: \d+ tokens, no price known\n", card)
    assert not list(tmp_path.glob("winner.*"))


def test_a_checkpoint_by_name_differs_from_the_final_one(taught: Run, tmp_path: Path) -> None:
    names = {}
    for which in ("final", "000002", "best"):
        target = tmp_path / which
        done = taught("weights", "taught/lr=1e-2", "--which", which, "--to", str(target))
        assert done.returncode == 0, done.stderr
        names[which] = (target / "adapter_model.safetensors").read_bytes()
    assert names["final"] != names["000002"]
    assert names["best"] in (names["final"], names["000002"])


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (("taught", "--to", "."), 2, "exists already"),
        (("taught", "--to", "no/such/folder"), 2, "does not exist"),
        (("taught/lr=1e-2", "--which", "other", "--to", "x"), 5, "no checkpoint 'other'"),
        (("nothing", "--to", "x"), 5, "nothing"),
        (("taught", "--to", "x", "--push", "me/mine"), 2, "--push needs HF_TOKEN"),
        (("taught", "--to", "x", "--format", "peft"), 2, "this command needs tinker-cookbook"),
        (
            ("taught", "--to", "x", "--format", "merged", "--python", "/no/python"),
            2,
            "no interpreter /no/python",
        ),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    taught: Run, tmp_path: Path, arguments: tuple[str, ...], code: int, line: str
) -> None:
    given = [str(tmp_path / a) if before == "--to" else a
             for before, a in zip(("", *arguments), arguments, strict=False)]  # fmt: skip
    done = taught("weights", *given)
    assert done.returncode == code, done.stderr
    assert line in done.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_lines_is_a_conversation(taught: Run) -> None:
    def talk(lines: str) -> Any:
        how = ("--max-tokens", "6", "--temperature", "0", "--system", "sort")
        return taught("chat", "taught", *how, lines=lines)

    done = talk("b a c\nb a c\n/reset\nb a c\n")
    assert done.returncode == 0, done.stderr
    first, _, third = done.stdout.splitlines()
    assert "taught/lr=1e-2, checkpoint final\n" in done.stderr
    assert first == third
    assert re.search(r"\d+ tokens read, \d+ written: no price known, not counted in", done.stderr)
    assert talk("").stdout == ""


@contextmanager
def served(taught: Run, printed: Path, *, kill: bool = False, **more: str) -> Iterator[str]:
    """Serve the best run while the block runs. Yield the address."""
    with printed.open("w") as out:
        process = taught.start("endpoint", "taught", "--max-tokens", "6", out=out, **more)
    try:
        while not (address := printed.read_text().strip()):
            assert process.poll() is None
            time.sleep(0.05)
        yield address
    finally:
        if kill:
            process.kill()
            process.wait(60)
        else:
            process.terminate()
            assert process.wait(60) == 0


@pytest.fixture(scope="module")
def endpoint(taught: Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of an endpoint of the best run. Its key is `k`."""
    printed = tmp_path_factory.mktemp("endpoint") / "out"
    with served(taught, printed, SWEEPER_ENDPOINT_KEY="k") as address:
        yield address


def test_programs_ask_by_openais_protocol(endpoint: str) -> None:
    with httpx.Client(headers={"Authorization": "Bearer k"}, timeout=120.0) as client:
        _ask(client, endpoint)


def _ask(client: httpx.Client, endpoint: str) -> None:
    [model] = client.get(f"{endpoint}/models").json()["data"]
    assert model["id"] == "taught/lr=1e-2"
    parts = [{"type": "text", "text": "b a"}, {"type": "text", "text": " c"}]
    request = {"model": model["id"], "messages": [{"role": "user", "content": parts}], "n": 2}
    whole = client.post(f"{endpoint}/chat/completions", json=request | {"temperature": 0}).json()
    assert whole["object"] == "chat.completion"
    first, second = (choice["message"]["content"] for choice in whole["choices"])
    assert first == second
    assert {choice["finish_reason"] for choice in whole["choices"]} <= {"stop", "length"}
    assert 0 < whole["usage"]["completion_tokens"] <= 12
    streamed = request | {"temperature": 0, "n": 1, "stream": True}
    lines = client.post(f"{endpoint}/chat/completions", json=streamed).text.splitlines()
    events = [line.removeprefix("data: ") for line in lines if line]
    assert events[-1] == "[DONE]"
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events[:-1]]
    assert "".join(delta.get("content", "") for delta in deltas) == first
    text = client.post(f"{endpoint}/completions", json={"prompt": "b", "stop": "zz"}).json()
    assert text["object"] == "text_completion"


@pytest.mark.parametrize(
    ("request_of", "status", "message"),
    [
        ({"messages": []}, 400, "messages must be a list with at least one message"),
        ({"messages": [{"role": "user"}]}, 400, "a message has a role, and a text as content"),
        ({"model": "other"}, 400, "the only model is taught/lr=1e-2"),
        ({"max_tokens": 0}, 400, "max_tokens takes a whole number of at least 1"),
        ({"tools": [{}]}, 400, "tools is not supported"),
        ({"response_format": "json"}, 400, "response_format takes an object"),
        ({"n": 1000}, 400, "n is at most 128"),
        ([], 400, "the body is not a JSON object"),
    ],
)
def test_refusals_have_openais_form(
    endpoint: str, request_of: Any, status: int, message: str
) -> None:
    usual = {"messages": [{"role": "user", "content": "x"}]}
    body = usual | request_of if isinstance(request_of, dict) else request_of
    headers = {"Authorization": "Bearer k"}
    answer = httpx.post(f"{endpoint}/chat/completions", json=body, headers=headers, timeout=120.0)
    error = answer.json()["error"]
    assert (answer.status_code, error["message"]) == (status, message)
    assert error["type"] == "invalid_request_error"
    assert httpx.get(f"{endpoint}/models").status_code == 401


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (("endpoint", "taught", "--host", "0.0.0.0"), 2, "export SWEEPER_ENDPOINT_KEY"),  # noqa: S104
        (("endpoint", "taught", "--port", "70000"), 2, "--port takes 0 to 65535"),
        (("chat", "taught", "--max-tokens", "0"), 2, "--max-tokens takes 1 or more"),
        (("chat", "nothing"), 5, "nothing"),
        (("chat", "taught", "--which", "other"), 5, "no checkpoint 'other'"),
    ],
)
def test_mistakes_of_chats_are_one_line(
    taught: Run, arguments: tuple[str, ...], code: int, line: str
) -> None:
    done = taught(*arguments)
    assert done.returncode == code, done.stderr
    assert line in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_without_a_key_web_pages_are_refused(taught: Run, tmp_path: Path) -> None:
    with served(taught, tmp_path / "out") as address:
        assert httpx.get(f"{address}/models").status_code == 200
        for headers in ({"Origin": "http://a.example"}, {"Host": "a.example"}):
            answer = httpx.get(f"{address}/models", headers=headers)
            assert answer.status_code == 403
            assert "need SWEEPER_ENDPOINT_KEY" in answer.json()["error"]["message"]


def test_an_endpoint_ends_with_a_killed_command(taught: Run, tmp_path: Path) -> None:
    with served(taught, tmp_path / "out", kill=True) as address:
        pass
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            httpx.get(f"{address}/models")
        except httpx.ConnectError:
            return
        time.sleep(0.1)
    raise AssertionError(f"{address} still answers")
