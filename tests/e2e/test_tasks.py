"""`sweeper doctor tasks`: each mistake in a task's folder is one line with its place."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sweeper
from sweeper import sandbox
from sweeper.commands.doctor_tasks import add_arguments
from sweeper.errors import GridError
from sweeper.sandbox.tasks import Choice, documents, read_all
from sweeper.sandbox.tasks.task_checks import check_tasks

pytestmark = pytest.mark.e2e

needs_bubblewrap = pytest.mark.skipif(
    sandbox.missing("bubblewrap") is not None, reason="no bubblewrap here"
)
GOOD = {
    "task.toml": """
schema_version = "1.4"
[task]
name = "ours/greeting"
[agent]
timeout_sec = 60
[verifier]
timeout_sec = 60
[environment]
network_mode = "no-network"
memory_mb = 256
""",
    "instruction.md": "Write the word in /app/word.txt into /app/out.txt.\n",
    "environment/Dockerfile": """
FROM debian:12
WORKDIR /app
ENV WORD=hello OTHER="two words"
COPY data /app/
RUN echo "$WORD" \\
    >word.txt
""",
    "environment/data/readme": "read me\n",
    "solution/solve.sh": "#!/bin/bash\ncp word.txt out.txt\n",
    "tests/test.sh": """#!/bin/bash
r=0
cmp -s out.txt word.txt && [ "$(cat readme)" = "read me" ] && r=1
echo $r >/logs/verifier/reward.txt
""",
}
STEPS = """
[[steps]]
name = "one"
min_reward = 0.5
[[steps]]
name = "%s"
[steps.verifier]
timeout_sec = %s
"""

ONE = {f"steps/one/{path}": GOOD[path] for path in ("instruction.md", "solution/solve.sh")}

# Changed files, and the expected line. `None` removes a file.
BROKEN = {
    "no task.toml": ({"task.toml": None}, "task.toml: no such file"),
    "no TOML": ({"task.toml": "a = 1\nb = ["}, "task.toml:2:1: not TOML: Invalid value"),
    "unknown key": (
        {"task.toml": "[agent]\ntimeout_secs = 3\n"},
        "task.toml:2:1: unknown key 'timeout_secs' in agent; did you mean 'timeout_sec'?",
    ),
    "no number": (
        {"task.toml": '\n[verifier]\ntimeout_sec = "60"\n'},
        "task.toml:3:1: verifier.timeout_sec is a string; it takes a number above 0",
    ),
    "negative": (
        {"task.toml": "[environment]\ncpus = -2\n"},
        "task.toml:2:1: environment.cpus must be 1 to 10000, not -2",
    ),
    "network": (
        {"task.toml": '[environment]\nnetwork_mode = "none"\n'},
        "task.toml:2:1: environment.network_mode: 'none' is not one of public, no-network",
    ),
    "hosts without a list": (
        {"task.toml": '[environment]\nallowed_hosts = ["a.org"]\n'},
        "task.toml:1:1: environment.allowed_hosts is only for network_mode = 'allowlist'",
    ),
    "two sizes": (
        {"task.toml": '[environment]\nmemory = "2G"\nmemory_mb = 512\n'},
        "task.toml:1:1: environment.memory and environment.memory_mb have different values",
    ),
    "no size": (
        {"task.toml": '[environment]\nstorage = "lots"\n'},
        "task.toml:2:1: environment.storage is a string; it takes a size such as '512M' or '2G'",
    ),
    "name": (
        {"task.toml": '[task]\nname = "greeting"\n'},
        "task.toml:1:1: task.name: 'greeting' is not org/name",
    ),
    "Windows": (
        {"task.toml": '[environment]\nos = "windows"\n'},
        "task.toml:1:1: environment.os: windows is not supported",
    ),
    "variable": (
        {"task.toml": '[environment]\nenv = {A = "${NO_SUCH_THING}"}\n'},
        "task.toml:1:1: environment.env.A: the variable NO_SUCH_THING is not set here",
    ),
    "a step twice": (
        {"task.toml": STEPS % ("ONE", 60), **ONE},
        "task.toml:5:1: steps[1].name: another step is named 'ONE'",
    ),
    "a step's value": (
        {"task.toml": STEPS % ("one ", "true"), **ONE},
        "task.toml:8:1: steps[1].verifier.timeout_sec is a boolean",
    ),
    "a step's folder": (
        {"task.toml": STEPS % ("two", 60)},
        "steps/one/instruction.md: no such file",
    ),
    "separate": (
        {"task.toml": '[verifier]\nenvironment_mode = "separate"\n'},
        "task.toml:1:1: verifier.environment_mode: only `shared` is supported here",
    ),
    "no instruction": ({"instruction.md": None}, "instruction.md: no such file"),
    "empty instruction": ({"instruction.md": " \n"}, "instruction.md: is empty"),
    "no tests": ({"tests/test.sh": None}, "tests/test.sh: no such file: the task cannot be judged"),
    "no solution": ({"solution/solve.sh": None}, "solution/solve.sh: no such file"),
    "no interpreter": (
        {"tests/test.sh": "echo 1\n"},
        "tests/test.sh:1:1: must begin with #!",
    ),
    "Windows lines": (
        {"tests/test.sh": "#!/bin/bash\r\necho 1\r\n"},
        "tests/test.sh:1:1: has Windows line endings",
    ),
    "no environment": (
        {"environment/Dockerfile": None},
        "environment/Dockerfile: no such file, no docker_image, and no prepared root",
    ),
    "no instruction of Docker": (
        {"environment/Dockerfile": "FROM x\n\nRUM make\n"},
        "environment/Dockerfile:3:1: 'RUM' is not a Dockerfile instruction",
    ),
    "no file to copy": (
        {"environment/Dockerfile": "FROM x\nCOPY nothing /app/\n"},
        "environment/Dockerfile:2:1: COPY: environment/ has no nothing",
    ),
    "a file outside": (
        {"environment/Dockerfile": "FROM x\nCOPY ../../secret /app/\n"},
        "environment/Dockerfile:2:1: COPY: ../../secret is outside of environment/",
    ),
    "a link outside": ({"tests/link": "-> /etc/passwd"}, "tests/link: is a link to a path"),
}
# Mistakes that only a trial finds.
FAILING = {
    "the build fails": (
        {"environment/Dockerfile": "FROM x\nRUN echo broken; exit 3\n"},
        "environment/Dockerfile:2: fails (exit code 3): broken",
    ),
    "the solution fails": (
        {"solution/solve.sh": "#!/bin/bash\necho oh; false\n"},
        "solution/solve.sh: the solution fails (exit code 1): oh",
    ),
    "the solution does not do": (
        {"solution/solve.sh": "#!/bin/bash\ntrue\n"},
        "solution/solve.sh: the reference solution earns 0, not 1",
    ),
    "nothing is enough": (
        {"tests/test.sh": "#!/bin/bash\necho 1 >/logs/verifier/reward.txt\n"},
        "tests/test.sh: doing nothing earns 1, not less than 1",
    ),
    "no reward": (
        {"tests/test.sh": "#!/bin/bash\ntrue\n"},
        "tests/test.sh: the verifier wrote no /logs/verifier/reward.txt or reward.json",
    ),
    "no number": (
        {"tests/test.sh": "#!/bin/bash\necho nan >/logs/verifier/reward.txt\n"},
        "tests/test.sh: reward.txt is not a finite number",
    ),
    "no JSON": (
        {"tests/test.sh": '#!/bin/bash\necho \'{"a": "1"}\' >/logs/verifier/reward.json\n'},
        "tests/test.sh: reward.json: a is not a number",
    ),
    "too slow": (
        {
            "tests/test.sh": "#!/bin/bash\nsleep 60\n",
            "task.toml": "[verifier]\ntimeout_sec = 0.2\n",
        },
        "tests/test.sh: the verifier took longer than 0.2 s",
    ),
}


def write(folder, files, name=""):
    for path, text in {**GOOD, **files}.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            continue
        if text.startswith("-> "):
            target.symlink_to(text.removeprefix("-> "))
        else:
            target.write_text(text.replace("ours/greeting", f"ours/{name or 'greeting'}"))
    return folder


@pytest.mark.parametrize("wrong", BROKEN)
def test_each_mistake_is_one_line_with_its_place(tmp_path, wrong):
    changed, message = BROKEN[wrong]
    folder = write(tmp_path / "task", changed)
    mistakes = check_tasks(str(folder), None).mistakes
    assert [line for line in mistakes if line.startswith(f"{folder}/{message}")], mistakes
    several = {"a step's folder": 4, "a step's value": 2}
    assert len(mistakes) == several.get(wrong, 1), mistakes


def _declared(section):
    return {field.key or field.name for field in section}


def test_what_is_read_has_each_field():
    nested = {field.name: getattr(field.kind, "section", None) for field in documents.TASK}
    tables = {
        documents.TaskTable: documents.TASK,
        documents.AboutTable: nested["task"],
        documents.AgentTable: nested["agent"],
        documents.VerifierTable: nested["verifier"],
        documents.SolutionTable: nested["solution"],
    }
    for table, section in tables.items():
        assert table.__annotations__.keys() == _declared(section)


@needs_bubblewrap
def test_tasks_are_tried(tmp_path):
    """Mistakes in one task do not prevent the trials of others."""
    write(tmp_path / "good", {}, "good")
    for number, (changed, _) in enumerate(FAILING.values()):
        write(tmp_path / f"task{number}", changed, f"n{number}")
    report = check_tasks(str(tmp_path), "bubblewrap")
    for number, (_, message) in enumerate(FAILING.values()):
        line = f"{tmp_path}/task{number}/{message}"
        assert line in report.mistakes
    assert len(report.mistakes) == len(FAILING)
    good = next(trial for trial in report.tried if trial.task.name == "ours/good")
    assert (good.solved, good.empty) == (1.0, 0.0)


@needs_bubblewrap
def test_a_task_of_several_steps(tmp_path):
    """Each with its own instruction and verifier, in one environment; the rewards are averaged."""
    test = '#!/bin/bash\necho "{\\"a\\": $(test -e %s && echo 1 || echo 0), \\"b\\": 1}"' + (
        " >/logs/verifier/reward.json\n"
    )
    files = {"task.toml": STEPS % ("two", 60)}
    for name in ("one", "two"):
        files |= {
            f"steps/{name}/instruction.md": f"Make {name}.",
            f"steps/{name}/solution/solve.sh": f"#!/bin/bash\ntouch {name}\n",
            f"steps/{name}/tests/test.sh": test % name,
        }
    files |= {"steps/two/workdir/setup.sh": "#!/bin/bash\ntest -e one\n"}
    files |= dict.fromkeys(("instruction.md", "solution/solve.sh", "tests/test.sh"))
    report = check_tasks(str(write(tmp_path / "task", files)), "bubblewrap")
    # Without commands, the first step earns 0.5. That is enough for the second, whose setup fails.
    assert report.mistakes == (f"{tmp_path}/task/steps/two/workdir: fails (exit code 1)",)
    assert report.tried[0].solved == 1.0


@needs_bubblewrap
@pytest.mark.parametrize(("folder", "count"), [("terminal", 3), ("terminal_harder", 10)])
def test_the_tasks_that_come_with_it_can_be_done(folder, count):
    report = check_tasks(str(Path(__file__).parents[2] / "grids" / folder), "bubblewrap")
    assert report.mistakes == ()
    assert [(trial.solved, trial.empty) for trial in report.tried] == [(1.0, 0.0)] * count


def test_a_plan_says_what_this_machine_lacks(tmp_path, monkeypatch):
    """For the recipe, and only if the runs execute on this machine."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy.py").write_text(
        "import chz\n"
        "@chz.chz\n"
        "class Config:\n"
        "    log_path: str\n"
        "    size: int = 1\n"
        "def lacks(values):\n"
        "    return [] if values['size'] == 1 else ['there is no room for', values['size']]\n"
        "def main(config: Config) -> None: ...\n"
        "if __name__ == '__main__':\n"
        "    chz.nested_entrypoint(main)\n"
    )
    grid = {"name": "g", "recipe": "toy.py", "grid": {"size": [1, 2, 3]}}
    with pytest.raises(GridError) as refused:
        sweeper.plan(grid)
    assert refused.value.problems == (
        "recipe: there is no room for",
        "recipe: 2",
        "recipe: 3",
    )
    assert len(sweeper.plan(grid | {"grid": {"size": [1]}}).runs) == 1
    elsewhere = {"launch": {"backend": "slurm"}}
    assert len(sweeper.plan(grid | elsewhere).runs) == 3


def names_of(tmp_path, **choice):
    tasks, mistakes = read_all(str(tmp_path), Choice(**choice))
    return [task.name.removeprefix("ours/") for task in tasks] or list(mistakes)


@pytest.mark.parametrize(
    ("task_ids", "names"),
    [
        ("one", ["one"]),
        ("t*,one", ["one", "three", "two"]),
        ("!t*", ["one"]),
        ("*,!one", ["three", "two"]),
        ("four", ["task_ids: no task in {} is named four: choose from one, three, two"]),
        ("one,!one", ["task_ids=one,!one leaves no task in {}"]),
    ],
)
def test_tasks_by_names_and_globs(tmp_path, task_ids, names):
    for name in ("one", "two", "three"):
        write(tmp_path / name, {}, name)
    assert names_of(tmp_path, task_ids=task_ids) == [name.format(tmp_path) for name in names]


def git(folder, *words):
    given = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    return subprocess.run([*given, *words], check=True, capture_output=True, text=True).stdout


def test_tasks_by_a_registry(tmp_path):
    """From a checkout, at the data set's commit, in Harbor's format and the older one."""
    for name in ("one", "two", "three"):
        write(tmp_path / "sets" / "a" / name, {}, name)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "tasks")
    commit = git(tmp_path, "rev-parse", "HEAD").strip()

    def task(name):
        source = {"git_url": "https://example.org/tasks.git", "git_commit_id": commit}
        return {"name": name, "path": f"sets/a/{name}", **source}

    older = {"github_url": "https://example.org/tasks.git", "dataset_path": "./sets/a"}
    rows = [
        {"name": "a", "version": "1.0", "description": "", "tasks": [task("one"), task("two")]},
        {"name": "a", "version": "2.0", "description": "", "tasks": [task("three")]},
        {"name": "b", "version": "0.1", "commit_hash": commit, **older},
        {"name": "c", "version": "0.1", "task_id_subset": ["two"], "commit_hash": "head", **older},
        {"name": "d", "version": "1", "tasks": [{"name": "out", "path": "../out"}]},
        {"name": "f", "version": "1", "task_id_subset": ["../../../out"], **older},
        {"name": "g", "version": "1", "task_id_subset": "two", **older},
        {"name": "e", "version": "1", "tasks": [task("one") | {"git_commit_id": "f" * 40}]},
    ]
    (tmp_path / "registry.json").write_text(json.dumps(rows))
    assert names_of(tmp_path, dataset="a@1.0") == ["one", "two"]
    assert names_of(tmp_path, dataset="a@1.0", task_ids="t*") == ["two"]
    assert names_of(tmp_path, dataset="a") == ["three"]
    assert names_of(tmp_path, dataset="b@0.1") == ["one", "three", "two"]
    file = tmp_path / "registry.json"
    assert names_of(tmp_path, dataset="c@0.1", registry=str(file)) == ["two"]
    for dataset, why in (
        ("a@3", f"{file} has no dataset a@3: it has a@1.0, a@2.0"),
        ("d", "a registry's path must not lead out of its repository: ../out"),
        ("f", "a registry's path must not lead out of its repository: sets/a/../../../out"),
        ("g", "a registry's task_id_subset must be a list of names, not two"),
        ("e", f"{tmp_path} has no commit {'f' * 40}"),
    ):
        (listed,) = names_of(tmp_path, dataset=dataset)
        assert listed.startswith(why)
    (tmp_path / "sets" / "a" / "one" / "instruction.md").write_text("Something else.")
    (listed,) = names_of(tmp_path, dataset="a@1.0")
    assert listed == (
        f"the tasks in {tmp_path} differ from commit {commit}: "
        f"run git -C {tmp_path} checkout {commit}"
    )
    command = [sys.executable, "-m", "sweeper", "doctor", "tasks", "--read-only", str(tmp_path)]
    done = subprocess.run(
        [*command, "--dataset", "a@2.0"], capture_output=True, text=True, check=False
    )
    assert "1 task read, 0 mistakes" in done.stdout, done.stderr


OLDER = {
    "task.yaml": (
        "instruction: |-\n  Write `hello` into greeting.txt.\n"
        "author_name: somebody\ndifficulty: easy\ntags: [files]\nparser_name: pytest\n"
        "max_agent_timeout_sec: 90.0\nmax_test_timeout_sec: 20\nrun_tests_in_same_shell: false\n"
    ),
    "Dockerfile": "FROM debian:12\nWORKDIR /app\nCOPY start.txt /app/\n",
    "start.txt": "start\n",
    "docker-compose.yaml": "services:\n  client:\n    build:\n      dockerfile: Dockerfile\n",
    "solution.sh": "#!/bin/bash\necho hello >greeting.txt\n",
    "run-tests.sh": "#!/bin/bash\nbash $TEST_DIR/check.sh\n",
    "tests/check.sh": '[ "$(cat greeting.txt)" = hello ] && [ -e start.txt ]\n',
}
"""A task in the older format of Terminal-Bench."""


@pytest.mark.parametrize("kind", [pytest.param("bubblewrap", marks=needs_bubblewrap), "process"])
def test_a_task_in_the_older_format(tmp_path, kind):
    """It works next to tasks in the present format."""
    older = tmp_path / "older"
    for path, text in OLDER.items():
        (older / path).parent.mkdir(parents=True, exist_ok=True)
        (older / path).write_text(text)
    changed = {
        "several": ("docker-compose.yaml", "services: {client: {build: .}, db: {image: x}}\n"),
        "slow": ("task.yaml", "instruction: Go.\nmax_agent_timeout_sec: soon\n"),
        "outside": ("docker-compose.yaml", "services: {client: {build: ../older}}\n"),
    }
    report = check_tasks(str(tmp_path), kind, unsafe=True)
    assert report.mistakes == ()
    ((task, solved, empty),) = report.tried
    assert (task.name, solved, empty) == ("older", 1.0, 0.0)
    assert (task.steps[0].timeout_sec, task.steps[0].verifier.timeout_sec) == (90.0, 20.0)
    assert task.metadata["difficulty"] == "easy"
    for name, (path, text) in changed.items():
        shutil.copytree(older, tmp_path / name)
        (tmp_path / name / path).write_text(text)
    (tmp_path / "several" / "solution.sh").unlink()
    write(tmp_path / "present", {})
    tasks, mistakes = read_all(str(tmp_path))
    assert [task.name for task in tasks] == ["older", "ours/greeting"]
    assert [line.removeprefix(f"{tmp_path}/") for line in mistakes] == [
        "outside/docker-compose.yaml: the build context ../older is outside the task's folder",
        "several/solution.sh: no such file: the task has no reference solution "
        "(solution.yaml is not supported)",
        "several/docker-compose.yaml: has several services, which is not supported",
        "slow/task.yaml:1:1: max_agent_timeout_sec is not a number of seconds",
    ]


def test_the_command_line(tmp_path):
    write(tmp_path / "good", {})
    write(tmp_path / "bad", BROKEN["negative"][0])
    command = [sys.executable, "-m", "sweeper", "tasks", "check", "--read-only", "--json"]
    process = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False)
    assert process.returncode == 2
    document = json.loads(process.stdout)
    assert [task["name"] for task in document["tasks"]] == ["ours/greeting"]
    assert len(document["problems"]) == 1
    missing = subprocess.run([*command, os.devnull], capture_output=True, text=True, check=False)
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)
    assert add_arguments is not None
