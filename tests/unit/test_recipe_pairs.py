import json

import chz
import pytest

from sweeper.recipes import dpo, pairs
from sweeper.recipes.service import RecipeError


def say(role, content):
    return {"role": role, "content": content}


ASKED = [say("user", "sky?")]
PAIR = pairs.Pair(ASKED, "blue", "green")


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "sky?", "chosen": "blue", "rejected": "green"},
        {"prompt": ASKED, "chosen": [say("assistant", "blue")], "rejected": "green"},
        {
            "chosen": [*ASKED, say("assistant", "blue")],
            "rejected": [*ASKED, say("assistant", "green")],
        },
        {
            "prompt": "sky?",
            "chosen": [*ASKED, say("assistant", "blue")],
            "rejected": [*ASKED, say("assistant", "green")],
        },
        {
            "comparison": {
                "prompt_conversation": ASKED,
                "completion_A": [say("assistant", "green")],
                "completion_B": [say("assistant", "blue")],
            },
            "label": "B",
        },
    ],
)
def test_every_shape_of_a_pair_is_read(tmp_path, row):
    path = tmp_path / "pairs.jsonl"
    other = {"prompt": "grass?", "chosen": "green", "rejected": "blue"}
    path.write_text("".join(json.dumps(line) + "\n" for line in (row, other)))
    split = pairs.read_pairs(str(path), 1)
    assert PAIR in split.train + split.test
    assert len(split.train) == len(split.test) == 1


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([], "expected an object"),
        ({"prompt": "a", "chosen": "b"}, 'expected "prompt", "chosen" and "rejected"'),
        ({"prompt": 3, "chosen": "b", "rejected": "c"}, "expected a text or a list of messages"),
        ({"prompt": "a", "chosen": "b", "rejected": 4}, "an answer must be a text or one message"),
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "the two answers are the same"),
        (
            {"prompt": "a", "chosen": [say("user", "b")], "rejected": "c"},
            'an answer must have the role "assistant"',
        ),
        (
            {"chosen": [say("assistant", "b")], "rejected": [say("assistant", "c")]},
            'expected "prompt", or conversations',
        ),
        (
            {
                "chosen": [*ASKED, say("assistant", "b")],
                "rejected": [say("user", "sea?"), say("assistant", "c")],
            },
            "must differ only in their last message",
        ),
        (
            {
                "prompt": "sea?",
                "chosen": [*ASKED, say("assistant", "b")],
                "rejected": [*ASKED, say("assistant", "c")],
            },
            '"prompt" is not the beginning of "chosen" and "rejected"',
        ),
        (
            {"prompt": "a", "chosen": [say("assistant", "b") | {"tool_calls": []}], "rejected": ""},
            'an answer[0] has "tool_calls", which would be lost',
        ),
        (
            {"prompt": [say("gpt", "a")], "chosen": "b", "rejected": "c"},
            'the prompt[0] has the role "gpt"',
        ),
        ({"prompt": "a", "chosen": " ", "rejected": "c"}, "the preferred answer is empty"),
        ({"prompt": "a", "chosen": "b", "rejected": "c", "tools": []}, '"tools" would not be seen'),
        (
            {"comparison": {"prompt_conversation": ASKED, "tools": []}, "label": "Tie"},
            '"tools" would not be seen by the model',
        ),
        ({"comparison": {}, "label": "C"}, 'expected "comparison" and the label'),
    ],
)
def test_what_is_no_pair_is_told_with_its_line(tmp_path, row, message):
    path = tmp_path / "pairs.jsonl"
    good = {"prompt": "sky?", "chosen": "blue", "rejected": "green"}
    path.write_text(f"{json.dumps(good)}\n\n{json.dumps(row)}\n")
    with pytest.raises(RecipeError) as caught:
        pairs.read_pairs(str(path), 1)
    assert str(caught.value).startswith(f"{path}:3: ")
    assert message in str(caught.value)


def test_ties_are_left_out(tmp_path, capsys):
    path = tmp_path / "pairs.jsonl"
    sides = {"prompt_conversation": ASKED, "completion_A": "blue", "completion_B": "green"}
    rows = [{"comparison": sides | {"completion_A": f"{n}"}, "label": "A"} for n in range(3)]
    rows.append({"comparison": sides, "label": "Tie"})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    split = pairs.read_pairs(str(path), 1)
    assert len(split.train) == 2
    assert "ties left out: 1 of 4 comparisons" in capsys.readouterr().out


def test_generated_pairs_differ_in_one_character_and_hold_out_the_same_for_every_seed():
    base = dpo.Config(task="sorting", length=3, letters=5, train_size=50, test_size=10)
    split = pairs.load_pairs(base)
    for pair in [*split.train, *split.test]:
        apart = [a != b for a, b in zip(pair.chosen, pair.rejected, strict=True)]
        assert sum(apart) == 1
        assert pair.chosen == "".join(sorted(pair.prompt[-1]["content"].removeprefix("sort ")))
    other = pairs.load_pairs(chz.replace(base, seed=1))
    assert other.test == split.test
    assert other.train != split.train


def test_a_share_of_pairs_prefers_the_wrong_answer():
    base = dpo.Config(task="sorting", length=3, letters=5, train_size=50, test_size=10)
    right, noisy = (pairs.load_pairs(chz.replace(base, wrong_share=s)) for s in (0.0, 0.2))
    assert noisy.test == right.test
    turned = [
        (a.chosen, a.rejected) == (b.rejected, b.chosen)
        for a, b in zip(right.train, noisy.train, strict=True)
    ]
    assert sum(turned) == 10
