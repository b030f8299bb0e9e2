"""Sandboxed shells for commands of a model, and what hostile commands cannot do to the machine."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from harness.real import until
from support import podman as podmans

from sweeper import sandbox
from sweeper.sandbox import Died, Limits, Made, NotThere, Result, open_environment
from sweeper.sandbox.bubblewrap import below
from sweeper.sweep.process import began

pytestmark = pytest.mark.e2e

LACKING = sandbox.missing("bubblewrap")
needs_bubblewrap = pytest.mark.skipif(LACKING is not None, reason=str(LACKING))
KINDS = [pytest.param("bubblewrap", marks=needs_bubblewrap), "process"]
SMALL = Limits(memory_mb=200, storage_mb=32, processes=48, files=3000)
SOON = 60.0
"""Seconds for commands that end soon by themselves."""
SECRET = "tml-" + "s3cr3t" * 4


@pytest.fixture
def opened():
    made = []

    def start(kind="bubblewrap", limits=SMALL, **options):
        made.append(open_environment(kind, Made(limits=limits, **options), unsafe=True))
        made[-1].start()
        return made[-1]

    yield start
    for place in made:
        place.stop()


@pytest.mark.parametrize("kind", KINDS)
def test_a_shell_keeps_its_state(opened, kind):
    place = opened(kind, env={"COLOUR": "blue"})
    assert place.exec("x=5; f() { echo f$1; }; mkdir d; cd d", SOON) == Result(0, b"")
    assert place.exec("echo $x $COLOUR; f 1; basename $PWD; false", SOON).text == "5 blue\nf1\nd\n"
    assert place.exec("(exit 7)", SOON) == Result(7, b"")
    assert place.exec("cat; echo to-stderr >&2", SOON) == Result(0, b"to-stderr\n")
    # 4 s are enough for `echo` even on a busy machine.
    ended = place.exec("echo a; sleep 600 & sleep 600", 4)
    assert (ended.code, ended.ended, ended.output) == (None, "timeout", b"a\n")
    assert place.exec("echo [$x]; basename $PWD", SOON).text == "[]\napp\n"
    assert place.exec("echo bye; exit 3", SOON) == Result(None, b"bye\n", 0, "shell")
    assert place.exec("echo 'a' \"b\" $(echo c); if", SOON).code == 2
    assert place.exec("seq 100000", SOON, keep=20).output == b"1\n2\n3\n4\n5\n99\n100000\n"


@pytest.mark.parametrize("kind", KINDS)
def test_files_go_in_and_come_out(opened, kind):
    place = opened(kind)
    big = os.urandom(300_000)
    place.put({"/app/run.sh": b"#!/bin/bash\necho ran $PWD", "/tests/deep/er/data": big})
    assert place.exec("./run.sh", SOON).text.startswith("ran /")
    assert place.get("/tests/deep/er/data") == big
    assert place.get("/tests/deep/er/data", 10) == big[:10]
    assert place.get("/no/such") is None
    assert place.get("/tests") is None
    place.exec("mkfifo /app/pipe 2>/dev/null || mkfifo pipe", SOON)
    assert place.get("/app/pipe") is None
    place.exec("y=1; sleep 60 & echo() { :; }", SOON)
    place.reset()
    assert place.exec("echo [$y]; jobs", SOON).text == "[]\n"


@pytest.mark.parametrize("kind", KINDS)
def test_what_killed_processes_still_write_is_not_output_of_the_next_command(opened, kind):
    place = opened(kind)
    writers = "for i in 1 2 3 4; do (while :; do printf '%065536d' 1; done) & done; wait"
    for _ in range(20):
        assert place.exec(writers, 0.05).ended == "timeout"
        assert place.exec("echo well", SOON) == Result(0, b"well\n")


@pytest.mark.parametrize("kind", KINDS)
def test_an_environment_has_the_requested_cpus(opened, kind):
    ours = len(os.sched_getaffinity(0))
    for cpus, seen in ((None, ours), (1, 1), (ours + 5, ours)):
        place = opened(kind, limits=replace(SMALL, cpus=cpus))
        assert place.exec("nproc", SOON).text == f"{seen}\n"


def test_no_isolation_needs_consent():
    with pytest.raises(NotThere, match="unsafe: true"):
        open_environment("process", Made())


# Command, seconds, and patterns that its output must and must not match.
HOSTILE = [
    (":(){ :|:& };:", 1.0, "", ""),
    ("perl -e 'fork while 1'", 0.5, "", ""),
    ("while :; do (sleep 60 &) ; done", 0.5, "", ""),
    ("ulimit -u 100000 || ulimit -d unlimited && echo over", SOON, "not permitted", "over"),
    ("dd if=/dev/zero of=/tmp/x bs=1M count=100; rm -f /tmp/x", SOON, "No space left", ""),
    ("head -c 100M /dev/zero >/dev/shm/x; rm -f /dev/shm/x", SOON, "No space left", ""),
    ("fallocate -l 1T /app/x; echo done; rm -f /app/x", SOON, "done", ""),
    ("echo x >/dev/x", SOON, "Read-only", ""),
    ("for i in {1..9}; do touch {1..99}$i; done; echo many; rm -f *", SOON, "many", ""),
    ("yes", 2, "y\ny\n", ""),
    ("head -c 200000000 /dev/zero | tr '\\0' x", SOON, "xxxx", "\n"),
    ("cat /dev/urandom", 0.3, "", ""),
    ("printf '\\033]0;title\\007\\033[2J\\033c'", SOON, "\x1b]0;title", ""),
    ("printf '\\0abcdef123456 0\\0\\0'; echo after", SOON, "after", ""),
    ("cat /etc/shadow; cat /root/.bashrc /home/*/*", SOON, "No such file", "root:\\*"),
    ("cat $HOST_FILE", SOON, "No such file", SECRET),
    ("env; cat /proc/1/environ /proc/$$/environ /proc/*/environ", SOON, "TERM", SECRET),
    ("tr '\\0' ' ' </proc/1/cmdline; cat /proc/[0-9]*/cmdline", 2, "", SECRET),
    ("ls /proc | grep -c '^[0-9]'", SOON, "^[0-9]\n$", ""),
    ("exec 3<>/dev/tcp/127.0.0.1/$PORT && cat <&3", 2, "", SECRET),
    ("timeout 1 bash -c 'echo >/dev/tcp/1.1.1.1/53' || echo unreachable", SOON, "unreachable", ""),
    ("cat /proc/net/dev | grep -vc lo:", SOON, "^2\n", ""),
    ("kill -9 1; kill -TERM 1; kill -HUP 1; kill -STOP 1; kill -USR2 1; echo on", SOON, "on", ""),
    ("kill -USR1 1; sleep 1", 3, "", ""),
    ("kill -9 -1; echo on", 3, "", ""),
    ("kill -9 $$", 3, "", ""),
    ("exec /bin/echo gone", SOON, "gone", ""),
    ("trap '' TERM INT HUP QUIT; while :; do :; done", 0.3, "", ""),
    ("printf() { :; }; eval() { :; }; builtin() { :; }; exec() { :; }", 0.5, "", ""),
    ("setsid nohup sleep 60 >/dev/null 2>&1 & disown; echo started", SOON, "started", ""),
    ("echo b >/proc/sysrq-trigger; echo x >/proc/sys/kernel/core_pattern", 2, "", ""),
    ("mount -t tmpfs none /mnt || mount --bind /tmp /usr", SOON, "mount", ""),
    ("mount -o remount,rw /usr; touch /usr/bin/evil && echo written", 2, "", "written"),
    ("unshare -Ur id || unshare -m true", SOON, "unshare", "uid="),
    ("nsenter -t 1 -m -p true || echo refused", SOON, "refused", ""),
    ("mknod /tmp/sda b 8 0 || echo refused", SOON, "refused", ""),
    ("chroot / id || echo refused", SOON, "refused", "uid="),
    ("su -c id nobody; sudo id; echo refused", SOON, "refused", "uid=65534"),
    ("dmesg | head -1; insmod /x.ko; echo refused", SOON, "refused", "Linux version"),
    ("echo x >/dev/tty", SOON, "No such device", ""),
    ("head -c 900M /dev/zero | tail", 5, "", ""),
    ("for i in 1 2 3 4 5; do head -c 100M /dev/zero | tail & done; wait", 5, "", ""),
    ("cat <&10; cat <&255; read -r -u 10 -t 0.2 x", 1, "", ""),
    ("echo x >/proc/1/fd/1; cat </proc/1/fd/0 >/dev/null & sleep 0.1; kill %1", 2, "", ""),
]


@needs_bubblewrap
def test_hostile_commands_do_no_harm(opened, tmp_path, monkeypatch, request):
    """Each ends in time, sees no secret, and leaves a working environment."""
    monkeypatch.setenv("TINKER_API_KEY", SECRET)
    private = tmp_path / "private"
    private.write_text(SECRET)
    listener = socket.create_server(("127.0.0.1", 0))
    request.addfinalizer(listener.close)
    variables = {"HOST_FILE": str(private), "PORT": str(listener.getsockname()[1])}
    names = set(os.listdir("/usr/bin"))
    place = opened(env=variables)
    assert len(HOSTILE) >= 40
    for command, seconds, must, never in HOSTILE:
        began = time.monotonic()
        outcome = place.exec(command, seconds)
        place.reset()
        after = place.exec("echo well", SOON)
        assert after == Result(0, b"well\n"), command
        assert re.search(must, outcome.text), (command, outcome)
        assert not never or not re.search(never, outcome.text), (command, outcome)
        assert SECRET not in outcome.text, command
        assert len(outcome.output) <= 65_536
        # A loose bound; the benchmark measures the time.
        assert time.monotonic() - began < 2 * SOON, command
    listener.settimeout(0)
    with pytest.raises(BlockingIOError):
        listener.accept()
    assert private.read_text() == SECRET
    assert set(os.listdir("/usr/bin")) == names


@needs_bubblewrap
def test_a_root_of_its_own_lies_below_what_is_written(opened, tmp_path):
    """The next environment finds the root unchanged. The root's folder may be private."""
    root = tmp_path / "rootfs"
    programs = ["bash", "cat", "chmod", "env", "head", "ls", "mkdir", "rm", "tar", "touch"]
    paths = podmans.copy_with_libraries(root, programs)
    (root / "srv").mkdir()
    (root / "srv" / "data").write_text("of the root\n")
    (root / "etc").mkdir()
    tmp_path.chmod(0o700)
    if os.geteuid() == 0:
        with pytest.raises(NotThere, match="chown -R 65534"):
            opened(root=str(root))
        subprocess.run(["chown", "-R", "65534:65534", str(root)], check=True)
    path = {"PATH": ":".join(dict.fromkeys(os.path.dirname(path) for path in paths))}
    for _ in range(2):
        place = opened(root=str(root), workdir="/srv", env=path)
        assert place.exec("cat data; ls /usr/share", SOON).text.startswith("of the root\nls: ")
        assert place.exec("rm data && touch new /etc/x && ls", SOON).text == "new\n"
        place.put({"/srv/big": b"x" * 1000})
        full = place.exec("head -c 100M /dev/zero >big2; rm -f big2", SOON)
        assert "No space left" in full.text
        place.stop()
    assert sorted(os.listdir(root / "srv")) == ["data"]


@needs_bubblewrap
def test_processes_that_take_too_much_together_are_ended(opened):
    """Limits per process do not bound their sum."""
    place = opened()
    hog = "perl -e '$x = q(x) x 90_000_000; sleep 60' &"
    assert place.exec(f"{hog} {hog} {hog} wait", SOON).ended == "memory"
    assert place.exec("perl -e '$x = q(x) x 900_000_000' || echo refused", SOON).text.endswith(
        "refused\n"
    )
    outcome = place.exec("mkdir f; cd f; seq 1 90000 | xargs touch; sleep 60", SOON)
    assert outcome.ended == "files"
    assert place.exec("rm -rf /app/f; echo well", SOON).text == "well\n"


@needs_bubblewrap
def test_nothing_of_an_environment_stays(opened):
    others = set(below(os.getpid()))
    place = opened()
    place.exec("setsid sleep 1000 & sleep 1000 & echo started", SOON)
    children = [pid for pid in below(os.getpid()) if pid not in others]
    assert len(children) >= 4
    place.stop()
    _gone(children)
    with pytest.raises(Died):
        place.exec("true", 1)
    place.stop()


@pytest.mark.parametrize("idle", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_environments_end_with_their_owner(kind, idle, tmp_path):
    """After SIGKILL of the owner, no process and no folder is left, busy or idle."""
    script = (
        "import sys, time\n"
        "from sweeper.sandbox import Made, open_environment\n"
        "place = open_environment(sys.argv[1], Made(), unsafe=True)\n"
        "place.start()\n"
        "place.exec('sleep 1000 & setsid sleep 1000 & touch left', 60)\n"
        "print('up', flush=True)\n"
        "time.sleep(1000) if sys.argv[2] == 'True' else place.exec('sleep 1000', 1000)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, kind, str(idle)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    ) as process:
        assert process.stdout.readline() == "up\n"
        children = list(below(process.pid))
        assert len(children) >= 4
        process.send_signal(signal.SIGKILL)
        process.wait()
    _gone(children)
    assert not list(tmp_path.iterdir())


def _gone(pids: list[int]) -> None:
    until(lambda: not any(map(began, pids)))


@needs_bubblewrap
def test_a_killed_environment_raises(opened):
    others = set(below(os.getpid()))
    place = opened()
    children = [pid for pid in below(os.getpid()) if pid not in others]
    os.kill(min(children), signal.SIGKILL)
    _gone(children)
    with pytest.raises(Died):
        place.exec("echo here", SOON)


@needs_bubblewrap
def test_an_environment_that_is_killed_at_its_start_raises_at_once(monkeypatch):
    """Even if a process that it had started still holds its pipes open."""
    place = open_environment("bubblewrap", Made(limits=SMALL))
    half = ["sh", "-c", "sleep 1000 & echo half a start >&2; kill -9 $$"]
    pipe, made = subprocess.PIPE, []

    def spawn(info):
        made.append(
            subprocess.Popen(half, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
        )
        made[-1].wait()
        return made[-1]

    monkeypatch.setattr(place, "_spawn", spawn)
    try:
        with pytest.raises(Died, match="half a start"):
            place.start()
    finally:
        place.stop()
        os.killpg(made[-1].pid, signal.SIGKILL)


@needs_bubblewrap
def test_bubblewrap_may_be_anywhere_on_the_path(opened, tmp_path, monkeypatch):
    """Episodes must start the program that `doctor` and a plan found."""
    real = shutil.which("bwrap")
    programs = tmp_path / "programs"
    programs.mkdir()
    for folder in {os.path.dirname(shutil.which(name)) for name in ("bwrap", "sh", "unshare")}:
        for name in os.listdir(folder):
            if name != "bwrap" and not (programs / name).exists():
                (programs / name).symlink_to(f"{folder}/{name}")
    monkeypatch.setenv("PATH", str(programs))
    assert "bwrap is not installed" in sandbox.missing("bubblewrap")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    began = elsewhere / "began"
    began.touch()
    program = elsewhere / "bwrap"
    program.write_text(f'#!/bin/sh\necho x >>{began}\nexec {real} "$@"\n')
    program.chmod(0o755)
    began.chmod(0o666)
    monkeypatch.setenv("PATH", f"{elsewhere}:{programs}")
    if os.geteuid() == 0:  # bubblewrap then runs as the user nobody
        for folder in (tmp_path, *list(tmp_path.parents)[:-2]):
            folder.chmod(folder.stat().st_mode | 0o55)
    assert sandbox.missing("bubblewrap") is None
    place = opened("bubblewrap")
    assert place.exec("echo in; command -v bwrap", SOON).text.startswith("in\n")
    assert began.read_text() == "x\nx\n"
