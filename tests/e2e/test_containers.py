"""Environments in real podman containers, and in `docker`, a script that calls podman."""

import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from harness.real import until
from support import podman as podmans

from sweeper import sandbox
from sweeper.sandbox import Died, Limits, Made, NotThere, open_environment
from sweeper.sandbox.tasks import begin_step, made_of, read_all, set_up, solve, verify

pytestmark = pytest.mark.e2e
TASKS = Path(__file__).parents[2] / "grids" / "terminal"
SMALL = Limits(memory_mb=128, storage_mb=64, processes=48)
PROGRAMS = (
    *("bash", "cat", "cat", "chmod", "cp", "env", "grep", "head", "ls", "mkdir", "rm", "sleep"),
    *("tar", "touch", "true", "wc"),
)
NO_IMAGE = "localhost/sweeper-tests-base"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Yield an image with this machine's shell, in its own store."""
    folder, podman = tmp_path_factory.mktemp("podman"), podmans.podman
    (folder / "bin").mkdir()
    docker = folder / "bin" / "docker"
    docker.write_text('#!/bin/sh\nexec podman "$@"\n')
    docker.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        podmans.configure(folder, patch)
        patch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
        root = folder / "root"
        podmans.copy_programs(root, PROGRAMS)
        packed = subprocess.run(["tar", "-C", str(root), "-c", "."], stdout=-1, check=True).stdout
        (folder / "Dockerfile").write_text(f"FROM {NO_IMAGE}\nRUN true\n")
        try:
            subprocess.run(
                ["podman", "import", "-", NO_IMAGE], input=packed, capture_output=True, check=True
            )
            podman("run", "--rm", "--network", "none", "--ulimit", "nofile=1024:1024",
                   "--ulimit", "nproc=4096:4096", NO_IMAGE, "true")  # fmt: skip
            podman("build", "--tag", "localhost/sweeper-tests-tried", str(folder))
        except subprocess.CalledProcessError as error:
            stderr = error.stderr if isinstance(error.stderr, str) else error.stderr.decode()
            pytest.skip(f"podman can do nothing for this user: {stderr.strip()[-200:]}")
        yield root
        podman("rm", "-f", "-a")
        podman("rmi", "-f", "-a")


@pytest.fixture
def task(base, tmp_path):
    shutil.copytree(TASKS / "door", tmp_path / "door")
    path = tmp_path / "door" / "environment" / "Dockerfile"
    path.write_text(re.sub("(?m)^FROM .*", f"FROM {NO_IMAGE}", path.read_text()))
    return read_all(str(tmp_path / "door"))[0][0]


@pytest.fixture
def opened(base):
    made = []

    def start(made_of_it, kind="podman"):
        made.append(open_environment(kind, made_of_it))
        made[-1].start()
        return made[-1]

    yield start
    for place in made:
        place.stop()
    assert podmans.podman("ps", "-a", "-q") == ""


@pytest.mark.parametrize("kind", ["podman", "docker"])
def test_a_task_in_a_container(opened, task, kind):
    """The image is built once, the shell keeps state, commands time out, only a solution earns."""
    assert sandbox.missing(kind) is None
    place = opened(made_of(task, replace(SMALL, cpus=1)), kind)
    (name,) = podmans.podman("ps", "-q").split()
    limit = podmans.podman("inspect", name, "--format", "{{.HostConfig.NanoCpus}}")
    assert limit.strip() == "1000000000"
    set_up(place, task)
    begin_step(place, task, task.steps[0])
    assert not verify(place, task, task.steps[0]).reward
    assert place.exec("x=5; pwd", 30).text == "/app\n"
    # 10 s are enough for `echo` even on a busy machine.
    ended = place.exec("echo $x; sleep 60 & sleep 60", 10)
    assert (ended.code, ended.ended, ended.output) == (None, "timeout", b"5\n")
    assert place.exec("echo [$x]; cat /proc/net/dev | grep -vc lo:", 30).text == "[]\n2\n"
    solve(place, task, task.steps[0])
    assert verify(place, task, task.steps[0]).reward == 1.0
    place.stop()
    with pytest.raises(Died):
        place.exec("true", 5)


def test_an_episode_of_hostile_commands(opened, task):
    place = opened(made_of(task, SMALL))
    place.exec(":(){ :|:& };:", 1.0)
    place.reset()
    place.exec("kill -9 1; kill -9 -1; kill -USR1 1", 5)
    place.reset()
    place.exec("head -c 900000000 /dev/zero | wc -c & x=$(cat /dev/zero)", 20)
    place.reset()
    assert place.exec("echo well", 30).text == "well\n"


def test_a_prepared_root_is_left_as_it_is(opened, base):
    before = sorted(path.name for path in base.iterdir())
    place = opened(Made(root=str(base), workdir="/srv", limits=SMALL))
    assert place.exec("touch /new /srv/x && pwd", 30).text == "/srv\n"
    place.stop()
    assert sorted(path.name for path in base.iterdir()) == before
    with pytest.raises(NotThere, match="only podman and bubblewrap support a prepared root"):
        opened(Made(root=str(base)), "docker")


def test_a_container_ends_with_its_owner(base, task):
    script = (
        "import sys, time\n"
        "from sweeper.sandbox import open_environment\n"
        "from sweeper.sandbox.tasks import made_of, read_all\n"
        "place = open_environment('podman', made_of(read_all(sys.argv[1])[0][0]))\n"
        "place.start()\n"
        "place.exec('sleep 1000 & sleep 1000 &', 5)\n"
        "print('up', flush=True)\n"
        "time.sleep(1000)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, task.folder], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "up\n"
        assert podmans.podman("ps", "-q") != ""
        process.send_signal(signal.SIGKILL)
    until(lambda: not podmans.podman("ps", "-a", "-q"))


def test_mistakes_are_one_line(base, task, tmp_path, monkeypatch):
    path = Path(task.folder, "environment", "Dockerfile")
    path.write_text(path.read_text() + "RUN echo it goes wrong >&2; exit 7\n")
    with pytest.raises(NotThere, match=r"environment: its image cannot be built: .*7"):
        open_environment("podman", made_of(read_all(task.folder)[0][0])).start()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert sandbox.missing("podman") == ("podman is not installed (Debian: apt-get install podman)")
