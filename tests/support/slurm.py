"""A real, private Slurm on loopback: slurmctld, slurmd, munged; no systemd, no control groups.

    python tests/support/slurm.py [--accounting] COMMAND ...    # with SLURM_CONF set for it

Debian: slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins (`make slurm`); for `sacct`
slurmdbd slurm-wlm-mysql-plugin mariadb-server-core mariadb-client-core (`make sacct`). Everything
is started by path and ended by process id. Nodes are n0, n1, ...; partitions `main` (of all nodes,
the default) and `urgent`, which preempts it.
"""

import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

SBIN = ("/usr/sbin", "/usr/local/sbin", "/sbin")
DAEMONS = ("slurmctld", "slurmd", "munged")
CONFIG = """
ClusterName=sweepertest
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={top}/munge/munge.sock,cred_expire=5
StateSaveLocation={top}/state
SlurmdSpoolDir={top}/spool/%n
SlurmctldPidFile={top}/slurmctld.pid
SlurmdPidFile={top}/slurmd-%n.pid
SlurmctldLogFile={top}/log/slurmctld.log
SlurmdLogFile={top}/log/slurmd-%n.log
PlugStackConfig=/dev/null
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout={dead_after}
InactiveLimit=0
KillWait={kill_wait}
MinJobAge={remembered}
MaxArraySize={array}
MaxJobCount=30000
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,sched_min_interval=50000,bf_interval=2,batch_sched_delay=0
PriorityType=priority/basic
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
JobRequeue=1
GetEnvTimeout=0
"""
ACCOUNTING = """
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={top}/munge/munge.sock
AccountingStoreFlags=job_comment
"""
DATABASE = """
AuthType=auth/munge
AuthInfo=socket={top}/munge/munge.sock
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser={user}
LogFile={top}/log/slurmdbd.log
PidFile={top}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={storage}
StorageUser=root
StorageLoc=slurm_acct
"""


def missing(*names: str) -> list[str]:
    """Return which of these programs are not installed; by default those that a cluster needs."""
    return [name for name in names or (*DAEMONS, "sbatch", "squeue") if _path(name) is None]


def _path(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), *SBIN)))


def free_ports(count: int) -> list[int]:
    """Return ports below the kernel's ephemeral range: in that range another process could take
    one before its daemon binds it."""
    sockets: list[socket.socket] = []
    ports: list[int] = []
    try:
        for port in random.sample(range(10_000, 30_000), 1_000):
            sockets.append(socket.socket())
            with suppress(OSError):  # it is taken
                sockets[-1].bind(("127.0.0.1", port))
                ports.append(port)
            if len(ports) == count:
                return ports
        raise OSError(f"there are no {count} free ports")
    finally:
        for listener in sockets:
            listener.close()


def until(condition: Callable[[], object], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(0.02)


class Cluster:
    """A cluster in its own folder, which is removed with it. `environment` has the variables that
    Slurm's commands need to find it."""

    def __init__(
        self,
        nodes: int = 4,
        cpus: int = 4,
        *,
        array: int = 1001,
        remembered: int = 3600,
        dead_after: int = 60,
        kill_wait: int = 2,
        accounting: bool = False,
        more: str = "",
    ) -> None:
        # Sockets are here; their paths have at most 107 characters.
        self.top = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
        self.user = pwd.getpwuid(os.getuid()).pw_name
        self.nodes, self.cpus, self.accounting, self._more = nodes, cpus, accounting, more
        self._settings = {
            "array": array, "remembered": remembered, "dead_after": dead_after,
            "kill_wait": kill_wait,
        }  # fmt: skip
        self.config = self.top / "slurm.conf"
        self.environment = {**os.environ, "SLURM_CONF": str(self.config)}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Cluster":
        try:
            self._configure()
            self._start_munge()
            if self.accounting:
                self._start_accounting()
            self.start_controller(fresh=True)
            for number in range(self.nodes):
                self.start_node(number)
            self.until_idle()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End jobs and daemons, and remove the folder."""
        # A slurmstepd is not a child of this process, and jobs are its children. They are ended
        # first, because otherwise they wait for a controller that is gone.
        self.end_jobs()
        for name in sorted(self.processes, key=lambda name: (name == "munged", name)):
            self.kill(name)
        self.end_jobs()
        shutil.rmtree(self.top, ignore_errors=True)

    def end_jobs(self, node: str | None = None) -> None:
        """Send SIGKILL to every slurmstepd (of a node) and its descendants."""
        steps = self.steps(node)
        tree = [child for step in steps for child in _children(step)]
        for process in [*steps, *tree]:
            with suppress(psutil.Error):
                process.kill()

    def steps(self, node: str | None = None) -> list[psutil.Process]:
        """Return the slurmstepd processes of this cluster, or of one of its nodes."""
        processes: list[psutil.Process] = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.name() == "slurmstepd" and self._owns(process, node):
                    processes.append(process)
        return processes

    def _owns(self, process: psutil.Process, node: str | None) -> bool:
        """Recognize a process by its log file, because its title has overwritten its
        environment."""
        start = str(self.top / "log" / f"slurmd-{node or ''}")
        return any(file.path.startswith(start) for file in process.open_files())

    def _configure(self) -> None:
        for name in ("munge", "state", "spool", "log"):
            (self.top / name).mkdir()
        self.top.chmod(0o755)
        (self.top / "munge").chmod(0o755)
        key = self.top / "munge" / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        host = socket.gethostname().split(".")[0]
        port, *ports = free_ports(1 + self.nodes)
        text = CONFIG.format(top=self.top, host=host, user=self.user, port=port, **self._settings)
        for number, its in enumerate(ports):
            text += (
                f"NodeName=n{number} NodeAddr=127.0.0.1 NodeHostname={host} Port={its} "
                f"CPUs={self.cpus} RealMemory=1000 State=UNKNOWN\n"
            )
        # The cached login environment for `--export=NONE`, which slurmd reads instead of running a
        # user's `.profile` for every job.
        cache = self.top / "state" / "env_cache"
        cache.mkdir()
        given = {
            "HOME": str(Path.home()),
            "USER": self.user,
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
        }
        given["PATH"] = "/usr/local/bin:/usr/bin:/bin"
        (cache / self.user).write_text("".join(f"{key}={value}\n" for key, value in given.items()))
        common = "Nodes=ALL MaxTime=INFINITE State=UP LLN=YES"
        text += f"PartitionName=main {common} Default=YES PriorityTier=1 GraceTime=10\n"
        text += f"PartitionName=urgent {common} PriorityTier=10 PreemptMode=OFF\n"
        if not self.accounting:
            text += "AccountingStorageType=accounting_storage/none\n"
        self.config.write_text(text + self._more)

    def _spawn(self, name: str, *argv: str) -> None:
        path = _path(argv[0])
        assert path is not None, f"no {argv[0]} here"
        setpriv = shutil.which("setpriv")  # a daemon ends with its test, even if that is killed
        first = [setpriv, "--pdeathsig", "KILL"] if setpriv else []
        with (self.top / "log" / f"{name}.out").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*first, path, *argv[1:]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                start_new_session=True,
            )

    def _start_munge(self) -> None:
        munge = self.top / "munge"
        files = [f"--{what}-file={munge}/munge.{what}" for what in ("key", "pid", "log", "seed")]
        options = ["-F", "--force", f"--socket={munge}/munge.sock", "--num-threads=2"]
        self._spawn("munged", "munged", *options, *files)
        until((munge / "munge.sock").exists, 10, "munged")

    def _start_accounting(self) -> None:
        """Start MariaDB and slurmdbd, so that `sacct` answers."""
        port, storage = free_ports(2)
        data = self.top / "mariadb"
        subprocess.run(
            ["mariadb-install-db", f"--datadir={data}", f"--user={self.user}",
             "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"],
            check=True, capture_output=True,
        )  # fmt: skip
        self._spawn(
            "mariadbd", "mariadbd", "--no-defaults", f"--datadir={data}",
            f"--socket={self.top}/mariadb.sock", f"--port={storage}", "--bind-address=127.0.0.1",
            f"--user={self.user}", f"--pid-file={self.top}/mariadb.pid",
            "--innodb-buffer-pool-size=64M", "--innodb-flush-log-at-trx-commit=0",
            "--innodb-lock-wait-timeout=900",
        )  # fmt: skip
        until(lambda: _listens(storage), 60, "mariadbd")
        path = self.top / "slurmdbd.conf"
        path.write_text(DATABASE.format(top=self.top, port=port, user=self.user, storage=storage))
        path.chmod(0o600)
        with self.config.open("a") as file:
            file.write(ACCOUNTING.format(top=self.top, port=port))
        self._spawn("slurmdbd", "slurmdbd", "-D")
        until(lambda: _listens(port), 60, "slurmdbd")
        self.run("sacctmgr", "-i", "add", "cluster", "sweepertest")

    def start_controller(self, *, fresh: bool = False) -> None:
        """Start slurmctld, from its saved state or `fresh`."""
        options = ["-i"] if fresh else []
        self._spawn("slurmctld", "slurmctld", "-D", "-f", str(self.config), *options)

    def start_node(self, number: int) -> None:
        (self.top / "spool" / f"n{number}").mkdir(exist_ok=True)
        self._spawn(f"n{number}", "slurmd", "-D", "-N", f"n{number}", "-f", str(self.config))

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Signal a daemon (`slurmctld`, `n0`, ...) and wait for its end."""
        process = self.processes.pop(name)
        process.send_signal(number)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill_node(self, number: int) -> None:
        """Simulate a power failure: kill the node's slurmd and jobs."""
        self.kill(f"n{number}")
        self.end_jobs(f"n{number}")

    def run(self, *argv: str, check: bool = True) -> str:
        """Return the output of one of Slurm's commands."""
        done = subprocess.run(
            argv, env=self.environment, capture_output=True, text=True, check=False, timeout=60
        )
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(argv)}: {done.stderr}")
        return done.stdout

    def until_idle(self) -> None:
        """Wait until every node is available."""

        def idle() -> bool:
            out = self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%N %T", check=False)
            return sum(line.endswith(" idle") for line in out.splitlines()) >= self.nodes

        until(idle, 60, f"nodes idle (see {self.top}/log)")


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def main(arguments: list[str]) -> int:
    accounting = arguments[:1] == ["--accounting"]
    begun = time.monotonic()
    with Cluster(accounting=accounting) as cluster:
        took = time.monotonic() - begun
        print(f"SLURM_CONF={cluster.config}, {took:.1f} s to start", file=sys.stderr)
        command = arguments[1:] if accounting else arguments
        return subprocess.run(command, env=cluster.environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
