"""Hosts reached by a real sshd on loopback, each in a separate process namespace: killing a host
kills all its processes at once, like a power cut. They share this machine's files."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

SSHD = "/usr/sbin/sshd"


def missing() -> str | None:
    """Return what is missing here; None if nothing is."""
    if not os.access(SSHD, os.X_OK) or shutil.which("ssh") is None:
        return "no sshd here: `make sshd` installs it"
    space = ["unshare", "--pid", "--fork", "--mount-proc", "true"]
    if shutil.which("unshare") is None or subprocess.run(space, check=False).returncode:
        return "no process namespaces here"
    return None


class SshHost:
    """A machine called `name`, on a free port."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name, self.folder = name, folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        os.makedirs("/run/sshd", exist_ok=True)  # for sshd's privilege separation
        settings = {
            "Port": self.port,
            "ListenAddress": "127.0.0.1",
            "HostKey": folder / "host_key",
            "AuthorizedKeysFile": folder / "user_key.pub",
            "PidFile": folder / f"{name}.pid",
            "StrictModes": "no",
            "UsePAM": "no",
            "PasswordAuthentication": "no",
            "MaxStartups": "100",
            "MaxSessions": "100",
            # Then bash does not read ~/.bashrc: a power cut there could leave a user's lock.
            "SetEnv": "SHLVL=2",
        }
        text = "".join(f"{key} {value}\n" for key, value in settings.items())
        (folder / f"{name}.conf").write_text(text)

    def start(self) -> None:
        """Switch the machine on."""
        command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._process = subprocess.Popen(
            [*command, SSHD, "-D", "-e", "-f", str(self.folder / f"{self.name}.conf")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert time.monotonic() < deadline, "sshd does not listen"
                time.sleep(0.05)

    def cut(self) -> None:
        """Cut its power: every process ends at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def drop(self) -> None:
        """End the open connections. The processes that they have started continue."""
        assert self._process is not None
        below = psutil.Process(self._process.pid).children(recursive=True)
        servers = [process for process in below if _is_sshd(process)]
        for process in servers[1:]:  # the first is the daemon
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


class SshHosts:
    """Hosts by their names, and a configuration of ssh that reaches them."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for key in ("host_key", "user_key"):
            path = str(folder / key)
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
        self.hosts = {name: SshHost(folder, name) for name in names}
        self.config = folder / "config"
        self.config.write_text("".join(map(self._entry, self.hosts.values())))
        for host in self.hosts.values():
            host.start()

    def _entry(self, host: SshHost) -> str:
        return (
            f"Host {host.name}\n  HostName 127.0.0.1\n  Port {host.port}\n  User root\n"
            f"  IdentityFile {self.folder}/user_key\n  IdentitiesOnly yes\n"
            "  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n"
        )

    def options(self, slots: int = 60) -> dict[str, object]:
        """Return `launch.ssh` for these hosts."""
        hosts = [{"host": name, "slots": slots} for name in self.hosts]
        place = str(self.folder / "records")
        return {"hosts": hosts, "shared": True, "config": str(self.config), "folder": place}

    @contextlib.contextmanager
    def unplugged(self, *names: str) -> Iterator[None]:
        """Make these hosts unreachable: open connections end, and new ones are refused."""
        before = self.config.read_text()
        text = before
        for name in names or self.hosts:
            text = text.replace(f"Port {self.hosts[name].port}\n", "Port 1\n")
        self.config.write_text(text)
        for name in names or self.hosts:
            self.hosts[name].drop()
        yield
        self.config.write_text(before)

    def close(self) -> None:
        for host in self.hosts.values():
            host.cut()


def _is_sshd(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.name() == "sshd"
    return False
