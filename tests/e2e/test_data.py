"""`sweeper data` shows what a run would train on."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from sweeper.cli import main
from sweeper.recipes.chat import Learned

pytestmark = pytest.mark.e2e

TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"x": {}}}},
}


def asks(number):
    """Return a tool call in OpenAI's form."""
    function = {"name": "add", "arguments": json.dumps({"x": f'{number} "and" 1'})}
    return [{"id": "c1", "type": "function", "function": function}]


TALKS = [
    {"tools": [TOOL], "messages": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": f"add {number}"},
        {"role": "assistant", "content": None, "tool_calls": asks(number), "trainable": shown},
        {"role": "tool", "content": "ok", "tool_call_id": "c1"},
        {"role": "assistant", "content": f"done {number}"},
        {"role": "user", "content": "and again"},
        {"role": "assistant", "content": f"look: {number}", "tool_calls": asks(number)},
        {"role": "tool", "content": "ok"},
        {
            "role": "assistant", "content": f"{number + 2}", "trainable": True,
            "reasoning_content": "that is easy",
        },
    ]}
    for number, shown in enumerate([True, False, True, True, False])
]  # fmt: skip

RECORDING = """
import chz, json, sys, tinker
from sweeper.recipes import sft, service

train = tinker.TrainingClient.forward_backward

def recorded(client, data, loss_fn):
    decode = client.get_tokenizer().decode
    with open(f"{sys.argv[0]}.{learn}.jsonl", "a") as file:
        for datum in data:
            inputs = datum.model_input.to_ints()
            given = datum.loss_fn_inputs
            targets = given["target_tokens"].to_numpy().tolist()
            weights = given["weights"].to_numpy().tolist()
            learned = [token for token, weight in zip(targets, weights) if weight]
            texts = decode(inputs[:1]), decode(inputs[:1] + targets), decode(learned)
            file.write(json.dumps(texts) + "\\n")
    return train(client, data, loss_fn)

tinker.TrainingClient.forward_backward = recorded
config = service.parse_arguments(sft.Config)
for learn in sft.chat.Learned.__args__:
    sft.main(chz.replace(config, train_on_what=learn, log_path=config.log_path + learn))
"""


def grid(
    folder: Path,
    recipe: str,
    service: str = "local",
    launch: Mapping[str, Any] = MappingProxyType({}),
    **base: Any,
) -> str:
    path = folder / "grid.yaml"
    whole = {"recipe": recipe, "name": "looked", "service": service, "base": base}
    path.write_text(json.dumps(whole | {"launch": dict(launch)}))
    return str(path)


def answered(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["data", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_what_is_shown_is_what_reaches_the_service(recipes, tmp_path, capsys):
    """For every `train_on_what`, in conversations with tools, thoughts and marks."""
    data = tmp_path / "talks.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in TALKS))
    base = {"data": str(data), "test_size": 1, "batch_size": 20}
    program = tmp_path / "recording.py"
    program.write_text(RECORDING)
    given = [f"{key}={value}" for key, value in (base | {"base_url": recipes.url}).items()]
    subprocess.run(
        [sys.executable, str(program), *given, "max_steps=1", f"log_path={tmp_path / 'run'}"],
        env=recipes.environment(),
        check=True,
    )
    for learn in Learned.__args__:
        shown = answered(capsys, grid(tmp_path, "sft", **base, train_on_what=learn), "-n", "20")
        lines = Path(f"{program}.{learn}.jsonl").read_text().splitlines()
        trained = {whole: (first, learned) for first, whole, learned in map(json.loads, lines)}
        assert len(shown["examples"]) >= 4
        assert len(trained) == len(shown["examples"])
        for example in shown["examples"]:
            first, learned = trained["".join(text for text, _ in example["parts"])]
            marked = "".join(text for text, is_trained in example["parts"] if is_trained)
            # The first token has no context, so it is not a target.
            assert (marked.removeprefix(first) if learn == "all_tokens" else marked) == learned
            assert "<think>\nthat is easy\n</think>" in marked
            assert marked.count("<tool_call>") in CALLS[learn]


CALLS = {
    "all_assistant_messages": (1, 2), "last_assistant_turn": (1,), "last_assistant_message": (0,),
    "all_tokens": (2,), "customized": (0, 1),
}  # fmt: skip
"""Possible numbers of trained calls in an example; the first call of each talk is marked."""


def test_what_is_left_out_is_counted(tmp_path, capsys):
    data = tmp_path / "talks.jsonl"
    long = {"prompt": "x " * 400, "answer": "y"}
    short = [{"prompt": f"say {number}", "answer": str(number)} for number in range(6)]
    data.write_text("".join(json.dumps(row) + "\n" for row in [long, *short]))
    shown = answered(
        capsys, grid(tmp_path, "sft", data=str(data), test_size=2, max_length=100), "-n", "2"
    )
    assert len(shown["examples"]) == 2
    assert shown["held_out"] == 2
    if len(shown["lengths"]) == 4:
        assert shown["about"] == ["1 of 5 examples left out: longer than max_length=100"]


def test_pairs_are_shown_answer_by_answer_and_questions_without_weights(tmp_path, capsys):
    pairs = answered(capsys, grid(tmp_path, "dpo"), "-n", "1")["examples"]
    assert [pair["title"] for pair in pairs] == ["chosen", "rejected"]
    assert all(pair["trained"] for pair in pairs)
    questions = answered(capsys, grid(tmp_path, "rl"), "-n", "3")["examples"]
    assert len(questions) == 3
    assert not any(question["trained"] for question in questions)


def test_samples_of_a_checkpoint_are_those_of_a_first_step_with_their_rewards(
    recipes, tmp_path, capsys, monkeypatch
):
    task = {"task": "sorting", "length": 2, "letters": 3, "test_size": 2, "group_size": 3}
    task |= {"groups_per_batch": 4, "eval_every": 0}
    first, second = tmp_path / "first", tmp_path / "second"
    recipes.succeed("rl", first, **task, max_steps=2)
    recipes.succeed("rl", second, **task, max_steps=1, load_checkpoint_path=first)
    summaries = recipes.read(second / "iteration_000000" / "train_rollout_summaries.jsonl")
    for key, value in recipes.environment().items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("TINKER_BASE_URL", recipes.url)
    path = grid(tmp_path, "rl", "none", **task, base_url=recipes.url)
    shown = answered(capsys, path, "-n", "3", "--checkpoint", str(first))
    rewards = [sample["reward"] for example in shown["examples"] for sample in example["samples"]]
    assert rewards == [row["total_reward"] for row in summaries[: 3 * 3]]
    assert main(["data", path, "-n", "1", "--checkpoint", str(first)]) == 0
    assert capsys.readouterr().out.count("\n  reward ") == 3
    sft = grid(tmp_path, "sft", "none", base_url=recipes.url)
    assert main(["data", sft, "--checkpoint", str(first)]) == 2
    assert "the recipe sft cannot show samples of a checkpoint" in capsys.readouterr().err


def test_a_recorded_run_shows_its_data(recipes, tmp_path, capsys):
    root = str(tmp_path / "sweeps")
    path = grid(tmp_path, "sft", "none", {"env": recipes.tokenizers}, base_url="http://127.0.0.1:1")
    launch = [sys.executable, "-m", "sweeper", "launch", path, "--root", root]
    subprocess.run([*launch, "--backend", "local", "--wait"], check=False, timeout=120)
    shown = answered(capsys, "looked", "--root", root, "-n", "1")
    assert [part[1] for part in shown["examples"][0]["parts"]] == [False, True]


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["nothing/here"], 5, "nothing"),
        (["GRID", "data=/nowhere.jsonl"], 2, "/nowhere.jsonl: cannot be read"),
        (["GRID", "--run", "other"], 5, "looked: no run 'other'"),
        (["GRID", "-n", "0"], 2, "--examples takes 1 to 100"),
        (["looked", "--run", "x"], 2, "require a grid"),
    ],
)
def test_what_cannot_be_shown_is_one_line(tmp_path, capsys, arguments, code, line):
    path = grid(tmp_path, "sft")
    given = [path if argument == "GRID" else argument for argument in arguments]
    assert main(["data", *given, "--root", str(tmp_path / "sweeps")]) == code
    assert line in capsys.readouterr().err.splitlines()[-1]


def test_a_program_that_is_a_command_has_no_data_to_show(tmp_path, capsys):
    path = tmp_path / "command.yaml"
    path.write_text("name: looked\ncommand: [echo, '{lr}', '{log_path}']\ngrid: {lr: [1, 2]}\n")
    assert main(["data", str(path)]) == 2
    assert "lr=1 runs a command" in capsys.readouterr().err
