"""`sweeper compare --checkpoints`, against the engine."""

import json

import pytest
from support.typed import Typed

pytestmark = pytest.mark.e2e


def test_two_base_models_on_the_same_prompts(engine, metered, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    rows = [{"prompt": f"{n}+{n}=", "answer": str(2 * n)} for n in range(6)]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    typed = Typed(tmp_path, ("TINKER_", "SWEEPER_"), SWEEPER_HOME=engine.home)
    typed.environment["SWEEPER_ROOT"] = str(tmp_path)

    def compare(*arguments, code=0):
        return typed.complete(
            "compare", "--checkpoints", *arguments, "--max-tokens", "4", code=code
        )

    def samples():
        return sum(session["samples"] for session in metered(engine)["sessions"])

    before = samples()
    page = tmp_path / "page.html"
    given = ("base", "base", "--prompts", str(prompts), "--model", "tiny/teacher")
    done = compare(*given, "--out", str(page), "--full")
    assert done.stderr == ""
    assert "6 items, answered by 2 sides" in done.stdout
    assert "base (2) minus base: +0.000" in done.stdout
    assert "\\n" not in done.stdout
    assert "3+3=" in page.read_text()
    # Only new questions are sampled.
    assert samples() - before == 6
    more = {"prompt": "7+7=", "answer": "14"}
    prompts.write_text(prompts.read_text() + json.dumps(more) + "\n")
    document = json.loads(compare(*given, "--json").stdout)
    assert samples() - before == 7
    assert len(document["items"]) == 7
    assert [side["name"] for side in document["sides"]] == ["base", "base (2)"]

    for arguments, code, message in (
        (
            ("base", "base", "--prompts", str(prompts)),
            2,
            "`base` needs --model, the name of the base model",
        ),
        (("base", "--prompts", str(prompts)), 2, "--checkpoints takes two or more"),
        (("base", "base"), 2, "--checkpoints needs --prompts FILE, a JSONL file of prompts"),
        (("base", "nothing/here", "--prompts", str(prompts)), 5, "no run 'nothing/here'"),
    ):
        failed = compare(*arguments, code=code)
        assert message in failed.stderr and failed.stderr.count("\n") == 1
