import json

import pytest

from sweeper.recipes import tasks
from sweeper.recipes.service import RecipeError


def questions(conversations):
    return [conversation[0]["content"] for conversation in conversations]


@pytest.mark.parametrize(
    ("task", "question", "answer"),
    [
        (tasks.addition(2), "12+34=", "46"),
        (tasks.addition(1), "9+9=", "18"),
        (tasks.reversal(3, 4), "reverse abd", "dba"),
        (tasks.sorting(4, 3), "sort cabc", "abcc"),
    ],
)
def test_every_task_asks_each_of_its_problems_once(task, question, answer):
    problems = dict(task.problem(index) for index in range(task.size))
    assert len(problems) == task.size
    assert problems[question] == answer


def test_the_held_out_part_is_fixed_and_disjoint_from_training():
    task = tasks.sorting(5, 6)
    assert tasks.generate(task, 10, 50, 0).test == tasks.generate(task, 300, 50, 0).test
    splits = [tasks.generate(task, 300, 50, seed) for seed in range(3)]
    assert splits[0].test == splits[1].test == splits[2].test
    assert splits[0].train != splits[1].train
    for split in splits:
        assert len(set(questions(split.train))) == 300
        assert not set(questions(split.train)) & set(questions(split.test))


def test_a_small_task_gives_all_it_has():
    split = tasks.generate(tasks.addition(1), train_size=1000, test_size=20, seed=0)
    assert len(split.train) == 80
    assert len(split.test) == 20


def test_a_large_task_needs_no_enumeration():
    split = tasks.generate(tasks.addition(8), train_size=100, test_size=10, seed=0)
    assert len(split.train) == 100


def test_a_task_that_is_all_held_out_is_refused():
    with pytest.raises(RecipeError, match=r"test_size=100 leaves nothing.* has 100 problems"):
        tasks.generate(tasks.addition(1), 10, 100, 0)


def test_each_epoch_passes_over_all_data_in_a_new_order():
    stream = [i for step in range(6) for i in tasks.batch_indices(step, 5, 10, seed=0)]
    epochs = [stream[0:10], stream[10:20], stream[20:30]]
    assert [sorted(epoch) for epoch in epochs] == [list(range(10))] * 3
    assert epochs[0] != epochs[1] != epochs[2]


def test_batches_may_be_larger_than_the_data():
    assert sorted(tasks.batch_indices(0, 6, 3, seed=0)) == [0, 0, 1, 1, 2, 2]


def test_batches_are_a_function_of_seed_and_step():
    forwards = [tasks.batch_indices(step, 7, 50, seed=1) for step in range(40)]
    backwards = [tasks.batch_indices(step, 7, 50, seed=1) for step in reversed(range(40))]
    assert forwards == backwards[::-1]
    assert forwards[0] != tasks.batch_indices(0, 7, 50, seed=2)


def write(path, rows):
    path.write_text("".join(f"{row}\n" for row in rows))
    return str(path)


def chat(question, answer="yes"):
    turns = [("user", question), ("assistant", answer)]
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def test_conversations_are_read_and_split(tmp_path):
    rows = [json.dumps(chat(f"q{i}")) for i in range(10)]
    path = write(tmp_path / "chats.jsonl", [*rows[:5], "", *rows[5:]])
    split = tasks.load(path, 3)
    assert sorted(questions(split.train) + questions(split.test)) == [f"q{i}" for i in range(10)]
    assert len(split.test) == 3
    assert split == tasks.load(path, 3)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "2: not JSON"),
        ("[]", "2: expected"),
        ('{"messages": []}', "2: expected"),
        ('{"messages": [{"role": "user"}]}', "2: expected"),
        (
            '{"messages": [{"role": "user", "content": "q"}]}',
            '2: the last message must have the role "assistant"',
        ),
        ('{"prompt": "q"}', "2: expected"),
        ('{"answer": "a"}', "2: expected"),
        ('{"prompt": "q", "answer": null}', '2: "answer" must be a text'),
        ('{"prompt": "q", "answer": 4}', '2: "answer" must be a text'),
        ('{"prompt": ["q"], "answer": "a"}', '2: "prompt" must be a text'),
        ('{"prompt": "q", "answer": " "}', '2: "answer" is empty'),
        (
            '{"prompt": "q", "answer": "a", "answer": "b"}',
            '2: not JSON: the key "answer" is given twice',
        ),
        ('{"prompt": "q", "answer": "a", "tools": []}', '2: "tools" would not be seen'),
        ('{"prompt": "q", "answer": "a", "weight": 0}', '2: "weight" would have no effect'),
        ('{"prompt": "\\ud83d", "answer": "a"}', '2: "prompt" is not valid text'),
        ('{"Prompt": "q", "answer": "a"}', "2: expected"),
        ('{"prompt": "q", "answer": "a"', "2: not JSON"),
        ('{"prompt": "q", "answer": "a"} {}', "2: not JSON"),
        ('"prompt"', "2: expected"),
        ("null", "2: expected"),
    ],
)
def test_a_malformed_line_is_refused_with_its_number(tmp_path, row, message):
    path = write(tmp_path / "chats.jsonl", [json.dumps(chat("q")), row])
    with pytest.raises(RecipeError, match=f"chats.jsonl:{message}") as caught:
        tasks.load(path, 1)
    assert "\n" not in str(caught.value)


def test_a_row_of_prompt_and_answer_is_a_conversation(tmp_path):
    rows = [{"prompt": f"q{i}", "answer": "yes", "source": "elsewhere"} for i in range(3)]
    split = tasks.load(write(tmp_path / "pairs.jsonl", map(json.dumps, rows)), 1)
    assert sorted(split.train + split.test, key=str) == [
        chat(f"q{i}")["messages"] for i in range(3)
    ]


def call(name, arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


CALL = {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (CALL, "expected messages[2].tool_calls to be a list of"),
        (
            {"role": "assistant", "content": "", "tool_calls": [call("f", "[1]")]},
            "messages[2].tool_calls: the arguments of f are not an object",
        ),
        ({"role": "user", "content": "a", "tool_calls": [call("f", "{}")]}, "only the assistant's"),
        ({"role": "user", "content": "a", "reasoning_content": "b"}, "only the assistant's"),
        ({"role": "assistant", "content": "a", "weight": 0}, 'messages[2] has "weight"'),
        ({"role": "user", "content": "a", "name": "Ada"}, 'messages[2] has "name"'),
        ({"role": "assistant", "content": ""}, "messages[2].content is empty"),
        ({"role": "assistant", "content": None}, "messages[2].content must be a text"),
        ({"role": "user", "content": [{"text": "a"}]}, "messages[2].content must be a text"),
        ({"role": "human", "content": "a"}, 'messages[2] has the role "human": use system'),
        ({"role": 3, "content": "a"}, "messages[2] has the role 3"),
        ({"role": "assistant", "content": "a", "trainable": 0}, "must be true or false"),
        ({"role": "user", "content": "a", "trainable": True}, "only the assistant's messages"),
    ],
)
def test_a_message_is_trained_as_written_or_refused(tmp_path, message, error):
    """No part of a message may be dropped: a model would learn something that was not written."""
    row = chat("q")
    row["messages"] += [message, *chat("again")["messages"]]
    with pytest.raises(RecipeError) as refused:
        tasks.load(write(tmp_path / "chats.jsonl", [json.dumps(chat("q")), json.dumps(row)]), 1)
    assert str(refused.value).startswith(f"{tmp_path}/chats.jsonl:2: ")
    assert error in str(refused.value)


def test_answers_may_be_marked_as_not_trainable(tmp_path):
    row = chat("q")
    row["messages"][1]["trainable"] = False
    row["messages"] += chat("more")["messages"]
    path = write(tmp_path / "chats.jsonl", [json.dumps(row), json.dumps(chat("other"))])
    split = tasks.load(path, 1)
    assert row["messages"] in split.train + split.test
    row["messages"] = row["messages"][:2]
    write(tmp_path / "chats.jsonl", [json.dumps(row), json.dumps(chat("other"))])
    with pytest.raises(RecipeError, match="1: the last message is not trainable"):
        tasks.load(path, 1)


def test_copies_of_held_out_conversations_and_unused_keys_are_reported(tmp_path, capsys):
    rows = [chat(f"q{i % 4}") | {"source": "a", **({"id": i} if i else {})} for i in range(20)]
    path = write(tmp_path / "chats.jsonl", map(json.dumps, rows))
    split = tasks.load(path, 2)
    printed = capsys.readouterr().out
    assert f"{path}: keys that are not used: source, id\n" in printed
    copies = 18 - len(split.train)
    assert copies > 0 and split.train
    assert not set(questions(split.train)) & set(questions(split.test))
    assert f"{copies} of 20 conversations left out: copies of held-out conversations\n" in printed


def test_a_byte_order_mark_is_skipped(tmp_path):
    path = write(tmp_path / "chats.jsonl", [json.dumps(chat(q)) for q in "ab"])
    file = tmp_path / "chats.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert len(tasks.load(path, 1).train) == 1


def test_a_missing_or_undecodable_file_is_refused(tmp_path):
    with pytest.raises(RecipeError, match=r"/gone\.jsonl: cannot be read: No such file"):
        tasks.load(str(tmp_path / "gone.jsonl"), 1)
    (tmp_path / "bytes.jsonl").write_bytes(json.dumps(chat("q")).encode() + b"\n\xff\n")
    with pytest.raises(RecipeError, match=r"bytes\.jsonl:2: not UTF-8 text"):
        tasks.load(str(tmp_path / "bytes.jsonl"), 1)


def test_only_a_newline_ends_a_line_of_conversations(tmp_path):
    path = tmp_path / "data.jsonl"
    texts = [f"a\u2028b\x85c\x0cd {number}" for number in range(3)]
    lines = [json.dumps(chat(text), ensure_ascii=False) + "\n" for text in texts]
    path.write_text("".join(lines), encoding="utf-8", newline="")
    split = tasks.load(str(path), 1)
    assert sorted(questions([*split.train, *split.test])) == texts


def test_tools_and_their_calls_are_part_of_a_conversation(tmp_path):
    calling = {"role": "assistant", "content": None, "tool_calls": [call("f", '{"x": 1}')]}
    row = {"tools": [{"type": "function", "function": {"name": "f"}}], **chat("q")}
    row["messages"] += [calling, {"role": "tool", "content": "2", "tool_call_id": "1"}]
    row["messages"] += chat("more")["messages"]
    path = write(tmp_path / "chats.jsonl", [json.dumps(row), json.dumps(chat("other"))])
    split = tasks.load(path, 1)
    [read] = [conversation for conversation in split.train + split.test if len(conversation) > 2]
    assert read[0]["tools"] == row["tools"]
    assert read[2]["content"] == ""
    assert read[2]["tool_calls"] == [call("f", {"x": 1})]
    row["messages"] = [*chat("q")["messages"][:1], calling]
    write(tmp_path / "chats.jsonl", [json.dumps(row), json.dumps(chat("other"))])
    assert tasks.load(path, 1)
    with pytest.raises(RecipeError, match=r"1: the last message has tool_calls"):
        tasks.load(path, 1, tasks.question)
    row["tools"] = ["f"]
    write(tmp_path / "chats.jsonl", [json.dumps(row)])
    with pytest.raises(RecipeError, match='1: expected "tools" to be a list of'):
        tasks.load(path, 1)
