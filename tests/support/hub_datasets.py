"""Writes small data sets with the names and formats of the hub's, for programs that load them by
name on a machine without a network.

    python tests/support/hub_datasets.py FOLDER

A program started in FOLDER finds them, because `datasets.load_dataset("openai/gsm8k")` prefers an
existing folder `openai/gsm8k`. The contents are generated, the same every time.
"""

import json
import random
import sys
from pathlib import Path

SEED = 20261121
LETTERS = "abcd"
NAMES = ("Ada", "Ben", "Cleo", "Dan")
CARD = """---
configs:
- config_name: {config}
  data_files:
  - split: train
    path: train.jsonl
  - split: test
    path: test.jsonl
---
Made up by hub_datasets.py; not the hub's.
"""


def chats(count: int, draw: random.Random) -> list[dict[str, object]]:
    """Return conversations like HuggingFaceH4/no_robots. The task is to write a word backwards."""
    rows: list[dict[str, object]] = []
    for number in range(count):
        word = "".join(draw.choices(LETTERS, k=3))
        question, answer = f"Write {word} backwards.", word[::-1]
        rows.append(
            {
                "prompt": question,
                "prompt_id": f"{number:06d}",
                "messages": [
                    {"content": question, "role": "user"},
                    {"content": answer, "role": "assistant"},
                ],
                "category": "Rewrite",
            }
        )
    return rows


def problems(count: int, draw: random.Random) -> list[dict[str, object]]:
    """Return word problems like openai/gsm8k, whose answers end in `#### number`."""
    rows: list[dict[str, object]] = []
    for _ in range(count):
        name, first, more = draw.choice(NAMES), draw.randint(1, 9), draw.randint(1, 9)
        rows.append(
            {
                "question": f"{name} has {first} apples and gets {more} more. How many are there?",
                "answer": f"{first} + {more} = {first + more}\n#### {first + more}",
            }
        )
    return rows


def preferences(count: int, draw: random.Random) -> list[dict[str, object]]:
    """Return pairs of conversations like Anthropic/hh-rlhf that differ in their last answer: a word
    written backwards, or not."""
    rows: list[dict[str, object]] = []
    for chat in chats(count, draw):
        word = str(chat["prompt"]).split()[1]
        prompt = f"\n\nHuman: {chat['prompt']}\n\nAssistant:"
        rows.append({"chosen": f"{prompt} {word[::-1]}", "rejected": f"{prompt} no, {word}{word}"})
    return rows


def questions(count: int, draw: random.Random) -> list[dict[str, object]]:
    """Return questions like zwhe99/DeepMath-103K; only the questions are used here."""
    return [
        {"question": row["question"], "final_answer": str(row["answer"]).rpartition(" ")[2]}
        for row in problems(count, draw)
    ]


def main(folder: Path) -> None:
    """Write the sets into `folder`, replacing existing files."""
    draw = random.Random(SEED)
    for name, config, make in (
        ("HuggingFaceH4/no_robots", "default", chats),
        ("openai/gsm8k", "main", problems),
        ("Anthropic/hh-rlhf", "default", preferences),
        ("zwhe99/DeepMath-103K", "default", questions),
    ):
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "README.md").write_text(CARD.format(config=config))
        for split, count in (("train", 320), ("test", 128)):
            lines = [json.dumps(row) + "\n" for row in make(count, draw)]
            (place / f"{split}.jsonl").write_text("".join(lines))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
