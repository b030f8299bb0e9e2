"""Runs a command with a Ceph cluster on loopback: one monitor, one OSD in memory and the S3
gateway, whose address is in SWEEPER_TEST_CEPH. It ends them all afterwards.

    python tests/support/ceph.py pytest -q tests/contract/test_store.py -k ceph

Debian: ceph-mon ceph-osd radosgw ceph-common. Keys: testing, testing-secret.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import ExitStack
from pathlib import Path

SECONDS = 90
CONFIG = """
[global]
fsid = {fsid}
mon host = v2:127.0.0.1:{monitor}
ms bind msgr1 = false
public network = 127.0.0.0/8
cluster network = 127.0.0.0/8
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
run dir = {top}
admin socket = {top}/$name.asok
log file = {top}/$name.log
pid file =
keyring = {top}/keyring
mon data = {top}/mon
mon allow pool size one = true
mon initial members = a
osd data = {top}/osd
osd objectstore = memstore
memstore device bytes = 1073741824
osd crush chooseleaf type = 0
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 4
osd pool default pg autoscale mode = off
rgw data = {top}
rgw frontends = beast endpoint=127.0.0.1:{gateway}
rgw thread pool size = 64
rgw enable gc threads = false
rgw enable lc threads = false
rgw enable quota threads = false
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Cluster:
    """The daemons, with files in `top`; `stack` ends them."""

    def __init__(self, top: Path, stack: ExitStack) -> None:
        self.top, self.stack = top, stack
        self.gateway, monitor = free_port(), free_port()
        self.fsid, self.monitor = str(uuid.uuid4()), monitor
        self.config = top / "ceph.conf"
        text = CONFIG.format(fsid=self.fsid, monitor=monitor, gateway=self.gateway, top=top)
        self.config.write_text(text)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.gateway}"

    def run(self, *command: str, **options: str) -> str:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env={**os.environ, "CEPH_CONF": str(self.config)},
            check=False,
            **options,
        )
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)}: {done.stderr}")
        return done.stdout

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        log = self.stack.enter_context((self.top / f"{command[0]}.out").open("wb"))
        made = subprocess.Popen([*command, "-f", "-c", str(self.config)], stdout=log, stderr=log)
        self.stack.callback(end, made)
        return made

    def up(self) -> None:
        self._monitor()
        self._storage()
        self.start("radosgw", "-n", "client.admin")
        self.run(
            *("radosgw-admin", "-c", str(self.config), "user", "create", "--uid=t"),
            *("--display-name=t", "--access-key=testing", "--secret-key=testing-secret"),
        )
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            try:
                with socket.create_connection(("127.0.0.1", self.gateway), timeout=5):
                    return
            except OSError:
                time.sleep(0.2)
        raise SystemExit("the gateway does not answer")

    def _monitor(self) -> None:
        keyring, caps = str(self.top / "keyring"), ("mon", "osd", "mgr")
        self.run("ceph-authtool", "--create-keyring", keyring, "--gen-key", "-n", "mon.")
        self.run("ceph-authtool", keyring, "-n", "mon.", "--cap", "mon", "allow *")
        allowed = [word for cap in caps for word in ("--cap", cap, "allow *")]
        self.run("ceph-authtool", keyring, "--gen-key", "-n", "client.admin", *allowed)
        where, monmap = f"[v2:127.0.0.1:{self.monitor}]", str(self.top / "monmap")
        made = ("monmaptool", "--create", "--addv", "a", where, "--fsid", self.fsid, monmap)
        self.run(*made)
        (self.top / "mon").mkdir()
        options = ("--monmap", monmap, "--keyring", keyring, "-c", str(self.config))
        self.run("ceph-mon", "--mkfs", "-i", "a", *options)
        self.start("ceph-mon", "-i", "a")

    def _storage(self) -> None:
        number = self.run("ceph", "-c", str(self.config), "osd", "new", str(self.fsid)).strip()
        (self.top / "osd").mkdir()
        keyring = str(self.top / "osd" / "keyring")
        name = f"osd.{number}"
        self.run("ceph-authtool", "--create-keyring", keyring, "--gen-key", "-n", name)
        self.run(
            *("ceph", "-c", str(self.config), "auth", "add", name, "osd", "allow *"),
            *("mon", "allow profile osd", "-i", keyring),
        )
        options = ("-i", number, "--keyring", keyring, "-c", str(self.config))
        self.run("ceph-osd", "--mkfs", "--osd-uuid", self.fsid, *options)
        self.start("ceph-osd", "-i", number, "--keyring", keyring)


def end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main(command: list[str]) -> int:
    missing = [name for name in ("ceph-mon", "ceph-osd", "radosgw") if not shutil.which(name)]
    if missing:
        raise SystemExit(f"{missing[0]} is not installed: sh .ci/apt-install ceph-mon ceph-osd ...")
    with tempfile.TemporaryDirectory(prefix="ceph-") as top, ExitStack() as stack:
        cluster = Cluster(Path(top), stack)
        cluster.up()
        environment = {**os.environ, "SWEEPER_TEST_CEPH": cluster.address}
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
