"""How agents are started, and their records (what agents do: tests/e2e/test_agent_start.py)."""

import json
import subprocess
import threading
from pathlib import Path

import pytest

from sweeper.agents.skill import SKILLS, skill_text
from sweeper.agents.start import prompts, session
from sweeper.agents.start.clis import CLIS, Setting, find_cli
from sweeper.agents.start.places import Room, Sandbox
from sweeper.agents.start.relay import Folder, frame, unpack
from sweeper.agents.start.transcript import (
    Session,
    Transcript,
    read_output,
    read_prompt,
    read_session,
    read_sessions,
)
from sweeper.cli import main
from sweeper.errors import StoreError
from sweeper.store.local import LocalStore
from sweeper.testing import Fault, Faults, FaultyStore

SECRET = "sesame-0123456789"
SETTING = Setting("m-1", ["python3", "/sweeper/bridge.py"], "/sweeper/mcp.json", "/p.md", True)


def test_known_programs_get_the_model_and_the_tools():
    claude = CLIS["claude"].argv(SETTING)
    assert claude[:2] == ["claude", "--print"] and claude[claude.index("--model") + 1] == "m-1"
    assert claude[claude.index("--mcp-config") + 1] == "/sweeper/mcp.json"
    codex = CLIS["codex"].argv(SETTING)
    assert codex[:2] == ["codex", "exec"] and codex[-1] == "-"
    assert 'mcp_servers.sweeper.args=["/sweeper/bridge.py"]' in codex
    free = "--dangerously-skip-permissions", "--dangerously-bypass-approvals-and-sandbox"
    assert free[0] in claude and free[1] in codex
    here = SETTING._replace(isolated=False)  # without isolation, no free pass and fewer tools
    assert not {*free} & {*CLIS["claude"].argv(here), *CLIS["codex"].argv(here)}
    argv = CLIS["claude"].argv(here)
    assert "acceptEdits" in argv and "Bash" not in argv[argv.index("--tools") + 1].split(",")
    assert "workspace-write" in CLIS["codex"].argv(here)


def test_a_program_gets_the_address_of_its_service():
    given = {"ANTHROPIC_BASE_URL": "http://127.0.0.1:1", "ANTHROPIC_OTHER": "x"}
    claude = CLIS["claude"].environment(given)
    assert claude["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:1" and "ANTHROPIC_OTHER" not in claude
    assert "ANTHROPIC_BASE_URL" not in CLIS["claude"].environment({})


def test_another_program_gets_the_placeholders_it_names():
    cli = find_cli("my-agent --llm={model} 'a b' {mcp} {prompt}")
    words = ["my-agent", "--llm=m-1", "a b", "/sweeper/mcp.json", "/p.md"]
    assert (cli.name, cli.argv(SETTING), cli.secrets) == ("my-agent", words, ())


def test_a_transcript_has_no_secret_wherever_it_is_cut(tmp_path):
    store = LocalStore(str(tmp_path))
    made = Transcript(store, "a", [SECRET])
    first = Session("a", "claude", "m", "local", "2026-01-01T00:00:00Z")
    made.create(first, f"my key is {SECRET}")
    data = f"begin {SECRET} end\n".encode() * 20_000
    for start in range(0, len(data), 997):
        made.add(data[start : start + 997])
        made.flush()
    made.end_output()
    made.add(f"again {SECRET[:5]}".encode())
    made.end_output()
    made.update(first._replace(state="finished", code=0))
    written = b"".join(read_output(store, "a")).decode()
    assert written == "begin *** end\n" * 20_000 + f"again {SECRET[:5]}"
    assert len(list(store.names(".agents-sessions/a/transcript"))) >= 2
    assert read_prompt(store, "a") == "my key is ***"
    assert read_sessions(store) == [first._replace(state="finished", code=0)]
    assert read_session(store, "a").state == "finished"


def test_every_agent_is_told_its_limits_and_where_to_begin():
    text = prompts.whole_prompt("# Task\n", "/w", 2.5, "runs=6")
    assert text.startswith("# Task\n") and "You have 2.5 hours" in text and "use: runs=6" in text
    about = " ".join(text.split())
    assert "Begin with the literature, then take the recipe that is closest" in about
    assert "/w/.claude/skills/sweeper-research/SKILL.md" in about
    assert "only plan and read" in prompts.whole_prompt("x", "/w", 1, "")


def test_every_prompt_follows_the_template(capsys):
    names = prompts.prompt_names()
    assert names == ["template", "aime", "arithmetic", "gsm8k", "instruction-following", "mbpp"]
    lines = [prompts.shipped_prompt(name).splitlines() for name in names]
    headings = [[line for line in text if line.startswith("## ")] for text in lines]
    assert headings == [headings[0]] * len(names)
    assert main(["agent", "prompts"]) == 0
    assert "gsm8k" in capsys.readouterr().out
    assert main(["agent", "prompts", "mbpp"]) == 0
    assert capsys.readouterr().out == prompts.shipped_prompt("mbpp")


def test_skills_are_installed_without_replacing_changed_files(tmp_path):
    assert session.prepare(str(tmp_path)) == session.prepare(str(tmp_path)) == []
    path = tmp_path
    for place in session.SKILL_FOLDERS:
        for name in SKILLS:
            path = tmp_path / place / name / "SKILL.md"
            assert path.read_text() == skill_text(name)
            assert f"name: {name}\n" in path.read_text().split("---")[1]
    path.write_text("mine")
    (notice,) = session.prepare(str(tmp_path))
    assert (
        "differs from the file of this version of sweeper, and is not replaced" in notice
        and path.read_text() == "mine"
    )


PODMAN = ["--in", "podman", "--image", "an-image"]
WRONG: list[tuple[list[str], int, str]] = [
    (["--prompt", "nothing"], 2, "no prompt 'nothing': choose from template, aime"),
    (["--prompt", "gone.md"], 2, "--prompt gone.md: no such file"),
    (["--prompt", "empty.md"], 2, "--prompt empty.md is empty"),
    (["--prompt", "template.md"], 2, "is the unchanged template: fill it in"),
    (["--agent", "a 'b"], 2, "--agent a 'b: No closing quotation"),
    (["--agent", ""], 2, "--agent is empty"),
    ([*PODMAN, "--agent", "claude"], 6,
     "claude needs a key: export ANTHROPIC_API_KEY or CLAUDE_CODE_OAUTH_TOKEN"),
    ([*PODMAN, "--agent", "codex"], 6, "codex needs a key: export CODEX_API_KEY"),
    (["--in", "local", "--network", "none"], 2, "--network requires --in podman"),
    (["--in", "podman"], 2, "--in podman needs --image"),
    (["--in", "modal", "--image", "i", "--hours", "30"], 2, "--hours is too large: Modal ends"),
    (["--budget", "dollars=1"], 2, "--budget dollars=1"),
    (["--hours", "0"], 2, "--hours must be above 0"),
    (["--restarts", "-1"], 2, "--restarts 0 or more"),
    (["--name", "a/b"], 2, "--name a/b: use letters"),
    (["--secret", "NO_SUCH"], 6, "--secret NO_SUCH is not set"),
    (["--secret", "SHORT"], 2, "it cannot be masked in the transcript"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "code", "message"), WRONG)
def test_wrong_options_of_agent_start_cost_one_line(
    words, code, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHORT", "abc")
    for name in ("ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN", "CODEX_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "podman").write_text("#!/bin/sh\n")
    (tmp_path / "podman").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (tmp_path / "empty.md").write_text(" \n")
    (tmp_path / "template.md").write_text(prompts.shipped_prompt("template"))
    given = ["--model", "m", "--prompt", "gsm8k", "--agent", "true", "--in", "local"]
    assert main(["agent", "start", *given, *words]) == code
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and message in lines[0]
    assert not (tmp_path / "agents").exists() and not (tmp_path / "sweeps").exists()


def test_the_tool_configuration_has_the_common_format(tmp_path):
    """Claude Code and other CLIs read it."""
    start = session.Start(
        *("a", "m", find_cli("true"), Sandbox("local"), "task", str(tmp_path)),
        *(str(tmp_path / "root"), "", {}, 1.0, 0),
    )
    with session.prepared_room(start, "the prompt") as (room, setting):
        document = json.loads(Path(setting.mcp).read_text())
        command = {"command": setting.bridge[0], "args": [*setting.bridge[1:]]}
        assert document == {"mcpServers": {"sweeper": {**command, "alwaysLoad": True}}}
        assert Path(setting.prompt).read_text() == "the prompt"
        private = Path(room.folder).parent  # other users must not reach the tool server
        assert private.stat().st_mode & 0o777 == 0o700
        assert Path(room.folder).stat().st_mode & 0o777 == 0o700
    assert not private.exists()


def test_files_of_a_sandbox_stay_within_the_agents_folder(tmp_path):
    """Both sides send the files that they wrote, not those that they received."""
    outside = tmp_path / "outside"
    outside.write_text("mine")
    top = tmp_path / "work"
    top.mkdir()
    (top / "link").symlink_to(outside)
    (top / "a.yaml").write_text("one")
    folder = Folder(str(top))
    assert folder.changed() == [("a.yaml", b"one")] and folder.changed() == []
    for name in ("../outside", str(outside), "link", "..", "."):
        folder.write(name, b"theirs")
    assert outside.read_text() == "mine" and folder.changed() == []
    folder.write("deep/b.yaml", b"two")
    assert (top / "deep" / "b.yaml").read_text() == "two" and folder.changed() == []
    (top / "deep" / "b.yaml").write_text("three")
    assert folder.changed() == [("deep/b.yaml", b"three")]
    (top / ".venv").mkdir()
    with open(top / "large", "wb") as large:
        large.truncate(10_000_001)
    assert folder.changed() == folder.changed() == []
    assert folder.notices == [
        b"sweeper: .venv is not copied: a folder of that name\n",
        b"sweeper: large is not copied: above 10 MB\n",
    ]
    head = {"kind": "put", "data": "AP8=", "name": "x"}
    assert unpack(frame("put", b"\x00\xff", name="x")) == (head, b"\x00\xff")


def test_a_store_that_fails_for_a_while_loses_nothing_of_a_transcript(tmp_path):
    """The agent continues meanwhile."""
    fails = [True]
    faults = Faults(lambda _, call: Fault.FAIL if fails[0] and "transcript" in call else None)
    store = LocalStore(str(tmp_path))
    made = Transcript(FaultyStore(store, faults), "a", [])
    data = b"a line\n" * 50_000
    for start in range(0, len(data), 9973):
        made.add(data[start : start + 9973])
        made.flush()
    with pytest.raises(StoreError):
        made.flush(now=True)
    assert faults.struck
    fails[0] = False
    made.add(b"the end")
    made.end_output()
    assert b"".join(read_output(store, "a")) == data + b"the end"
    fails[0] = True  # the end is retried as well
    answers = threading.Timer(0.2, fails.__setitem__, (0, False))
    answers.start()
    made.add(b"!")
    made.end_output()
    answers.join()
    assert b"".join(read_output(store, "a")) == data + b"the end!"


def test_a_container_gets_folders_of_any_name_and_is_removed_after_a_kill(tmp_path, monkeypatch):
    """The cleaner, which outlives this process, removes it."""
    (tmp_path / "podman").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n')
    (tmp_path / "podman").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    work = tmp_path / "a:b"
    work.mkdir()
    room = Room(Sandbox("podman", "an-image"), str(work))
    room.start(["true"], {}, {}, subprocess.DEVNULL).communicate()
    room.cleaner.stdin.close()  # as when this process ends
    room.cleaner.wait(60)
    run, removal = (tmp_path / "calls").read_text().splitlines()
    assert f'--mount type=bind,"src={work}",dst=/work' in run
    name = run.split("--name ")[1].split()[0]
    assert removal == f"rm -f -i -t 0 {name}"
    assert not Path(room.folder).exists()
    room.close()
