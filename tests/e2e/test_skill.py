"""Each command in the skill's text works in a new folder."""

import re
import shlex
from pathlib import Path

import pytest
from support.typed import Typed

from sweeper.agents.skill import NAME, skill_text
from sweeper.engine import lifecycle

pytestmark = pytest.mark.e2e

BLOCK = re.compile(r"```bash\n(.*?)```", re.DOTALL)
QUICK = ["--backend", "local", "learning_rate=[1e-3,3e-3]", "seeds=1"]
"""Arguments added to each launch, for fewer runs."""


def commands(skill: str = NAME) -> list[list[str]]:
    blocks = BLOCK.findall(skill_text(skill))
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    return [shlex.split(line) for line in lines if line]


def test_each_command_works(tmp_path: Path, engine: lifecycle.EngineInfo) -> None:
    typed = Typed(tmp_path, SWEEPER_HOME=engine.home)

    def run(*words: str) -> str:
        return typed.complete(*words).stdout

    verbs: list[str] = []
    outputs: dict[str, str] = {}
    for name, verb, *rest in commands():
        assert name == "sweeper"
        verbs.append(verb)
        outputs[verb] = run(verb, *rest, *(QUICK if verb == "launch" else []))
    assert verbs[:4] == ["doctor", "init", "plan", "launch"]
    assert {"alarms", "logs", "ls", "sql", "analyze", "note"} <= {*verbs}
    assert "notes: " in outputs["analyze"] and (tmp_path / "notes" / "sft.md").is_file()
    assert "too short to compare" in outputs["note"]
    for name, verb, *rest in commands("sweeper-debug"):
        assert name == "sweeper"
        run(verb, *rest)
    assert "wrote" in run("agent", "skill", "--install", "skills")
    debug = (tmp_path / "skills" / "sweeper-debug" / "SKILL.md").read_text()
    assert debug == skill_text("sweeper-debug") == run("agent", "skill", "debug")
    assert (
        (tmp_path / "skills" / NAME / "SKILL.md").read_text()
        == skill_text()
        == run("agent", "skill")
    )
    assert "already" in run("agent", "skill", "--install", "skills")
