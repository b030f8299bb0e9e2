"""Fixtures for several kinds of tests."""

import gc
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sweeper.engine import lifecycle


def _forget_the_users_aws() -> None:
    """Remove the user's AWS profile, keys, machine role and proxy, before anything that reads them
    is imported: tests use a fake AWS on this machine."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ["AWS_CONFIG_FILE"] = os.environ["AWS_SHARED_CREDENTIALS_FILE"] = os.devnull
    os.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    for name in ("NO_PROXY", "no_proxy"):
        given = os.environ.get(name)
        os.environ[name] = ",".join([*([given] if given else []), "127.0.0.1", "localhost"])


def _same_wherever_started() -> Path:
    """Reset state inherited from a shell, a script or a service: ignored signals (a script's `make
    test &` ignores SIGINT, `nohup` SIGHUP), a umask, variables and files of sweeper's users.
    Returns the folder that replaces HOME and the folder of tmux's sockets."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            # This process still ignores the signals; programs that it starts get the default.
            signal.signal(number, lambda *_: None)
    os.umask(0o022)
    # gRPC's handlers abort one in a hundred children forked from a process with its threads.
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"
    for name in [name for name in os.environ if name.startswith(("SWEEPER_", "TINKER_", "WANDB_"))]:
        if not name.startswith("SWEEPER_TEST_"):
            del os.environ[name]
    if _IS_WORKER:
        return Path(os.environ["HOME"])
    folder = Path(tempfile.mkdtemp(prefix="swt-"))  # short: a socket's path has at most 107 bytes
    os.environ["HOME"] = os.environ["TMUX_TMPDIR"] = str(folder)
    os.environ.pop("TMUX", None)
    return folder


_forget_the_users_aws()
_IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ
"""Whether this is a worker of pytest-xdist: its parent process makes and removes the folder."""
_PLACE = _same_wherever_started()


def pytest_unconfigure() -> None:
    """Remove the folder that replaces HOME."""
    if not _IS_WORKER:
        shutil.rmtree(_PLACE, ignore_errors=True)


def pytest_collection_finish() -> None:
    """Freeze existing objects: scanning them in garbage collections takes 10 % of the time."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def collector() -> Iterator[Any]:
    """Yield an OpenTelemetry collector that answers with `code` and keeps what it receives."""
    from support.collectors import collecting

    with collecting() as server:
        yield server


@pytest.fixture(scope="session")
def metered() -> Callable[[lifecycle.EngineInfo], dict[str, Any]]:
    """Return a function that asks an engine for its meter until it answers, as a busy engine may
    not at first."""

    def ask(engine: lifecycle.EngineInfo) -> dict[str, Any]:
        deadline = time.monotonic() + 120
        while (report := lifecycle.meter(engine)) is None:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        return report

    return ask


@pytest.fixture(scope="session")
def certificate() -> tuple[bytes, bytes]:
    """Return a key for 127.0.0.1 and its self-signed certificate, both PEM."""
    from support import certificates

    return certificates.made()


@pytest.fixture
def receiver() -> Iterator[Any]:
    """Yield a web server that receives messages: `.url`, `.taken`, `.faults`, `.hold`."""
    from support.receivers import receiving

    with receiving() as made:
        yield made


@pytest.fixture(scope="session")
def moto_server() -> Iterator[tuple[str, int]]:
    """Yield the address of moto's S3 over HTTP, and the id of its process."""
    from support.moto_server import serving

    with serving() as server:
        yield server


@pytest.fixture(scope="session")
def moto(moto_server: tuple[str, int]) -> str:
    """Return the address of moto's S3."""
    return moto_server[0]


def _use_s3(monkeypatch: pytest.MonkeyPatch, address: str, key: str, secret: str) -> str:
    """Point this process and its children at an S3; return a root in a new bucket."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    import s3fs

    bucket = f"test-{uuid.uuid4().hex[:12]}"
    s3fs.S3FileSystem(skip_instance_cache=True).mkdir(bucket)
    return f"s3://{bucket}/some/prefix"


@pytest.fixture
def s3_root(moto: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a root on moto's S3, configured by environment variables."""
    return _use_s3(monkeypatch, moto, "testing", "testing-secret")


@pytest.fixture
def ceph_root(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a root on the S3 of a Ceph cluster, which `make ceph` starts."""
    address = _started("SWEEPER_TEST_CEPH", "no Ceph: `make ceph` starts one")
    return _use_s3(monkeypatch, address, "testing", "testing-secret")


@pytest.fixture
def gs_root(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a root on the emulated Google Cloud Storage that `tests/support/clouds.py` starts."""
    without = "no emulated Google Cloud Storage: tests/support/clouds.py starts one"
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", _started("SWEEPER_TEST_GS", without))
    return _new_bucket("gs", "gcsfs")


@pytest.fixture
def az_root(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a root on the emulated Azure Blob Storage that `tests/support/clouds.py` starts."""
    without = "no emulated Azure Blob Storage: tests/support/clouds.py starts one"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", _started("SWEEPER_TEST_AZ", without))
    return _new_bucket("az", "adlfs")


def _started(variable: str, without: str) -> str:
    """Return how to reach a server, from the variable that its `make` target or script sets."""
    address = os.environ.get(variable)
    if address is None:
        pytest.skip(without)
    return address


def _new_bucket(scheme: str, package: str) -> str:
    """Return a root in a new bucket, made by the client that the environment configures."""
    import fsspec

    pytest.importorskip(package)
    bucket = f"test-{uuid.uuid4().hex[:12]}"
    fsspec.filesystem(scheme, skip_instance_cache=True).mkdir(bucket)
    return f"{scheme}://{bucket}/some/prefix"


@pytest.fixture(scope="session")
def slurm_support() -> ModuleType:
    """Return `tests/support/slurm.py`, with `Cluster(nodes, cpus)`; skip the test without Slurm."""
    from support import slurm as module

    missing = module.missing()
    if missing:
        pytest.skip(f"no Slurm here ({', '.join(missing)}): `make slurm` gets it")
    return module


@pytest.fixture(scope="session")
def slurm_cluster(slurm_support: ModuleType) -> Iterator[Any]:
    """Yield a real Slurm with four nodes of eight CPUs on loopback, for the whole session."""
    with slurm_support.Cluster(nodes=4, cpus=8) as cluster:
        yield cluster


@pytest.fixture
def slurm(slurm_cluster: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return the same cluster, configured for this process and its children, without any user's
    configuration."""
    monkeypatch.setenv("SLURM_CONF", str(slurm_cluster.config))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return slurm_cluster


@pytest.fixture
def tmux_socket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the socket's name of a tmux server for one test; skip the test without tmux."""
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed: `make tmux` gets it")
    name = f"sweeper-test-{uuid.uuid4().hex[:8]}"
    monkeypatch.setenv("SWEEPER_TMUX_SOCKET", name)
    yield name
    subprocess.run(["tmux", "-L", name, "kill-server"], capture_output=True, check=False)


@pytest.fixture
def ssh_hosts(tmp_path: Path) -> Iterator[Any]:
    """Yield two hosts, `a` and `b`, of a real sshd on loopback: see `tests/support/ssh.py`."""
    from support import ssh

    if (why := ssh.missing()) is not None:
        pytest.skip(why)
    hosts = ssh.SshHosts(tmp_path / "ssh", "a", "b")
    yield hosts
    hosts.close()


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lifecycle.EngineInfo]:
    """Yield an engine with its own home on a free port, for the whole session: `.url`, `.home`."""
    home = str(tmp_path_factory.mktemp("engine-home"))
    with subprocess.Popen(
        lifecycle.command(home), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield lifecycle.wait(home, timeout=60)
        finally:
            process.terminate()


@pytest.fixture(scope="session")
def batch_emulation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Yield AWS Batch emulated by moto and real processes, for the whole session: see
    `tests/support/batch.py`."""
    from support.batch import Batch

    with Batch(tmp_path_factory.mktemp("batch")) as batch:
        yield batch


@pytest.fixture
def batch(batch_emulation: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Yield the same emulation in its initial state, configured for this process and its children.
    `.root` is an S3 root in a new bucket."""
    keys = batch_emulation.environment
    batch_emulation.root = _use_s3(
        monkeypatch,
        batch_emulation.url,
        keys["AWS_ACCESS_KEY_ID"],
        keys["AWS_SECRET_ACCESS_KEY"],
    )
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    batch_emulation.requests.clear()
    yield batch_emulation
    batch_emulation.recover()


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """Yield a Ray cluster for the whole session."""
    from support import ray_cluster as support

    if support.missing():
        pytest.skip("no Ray here: `make ray` makes an environment that has it")
    with support.Cluster() as cluster:
        yield cluster


@pytest.fixture
def ray(ray_cluster: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return the same cluster, with access for this process and its children."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.setenv(name, ray_cluster.environment[name])
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return ray_cluster


@pytest.fixture(scope="session")
def kubernetes_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Yield a stand-in for Kubernetes with real processes, for the whole session."""
    from support.kubernetes import Kubernetes

    with Kubernetes(tmp_path_factory.mktemp("kubernetes")) as cluster:
        yield cluster


@pytest.fixture
def kube(kubernetes_cluster: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Yield this stand-in in its initial state, configured for this process and its children."""
    monkeypatch.setenv("KUBECONFIG", str(kubernetes_cluster.config))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    yield kubernetes_cluster
    kubernetes_cluster.clear()


@pytest.fixture(scope="session")
def modal_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Yield a stand-in for Modal with real processes, for the whole session."""
    from support.modal import Modal

    with Modal(tmp_path_factory.mktemp("modal")) as service:
        yield service


@pytest.fixture
def modal(modal_service: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Yield this stand-in in its initial state, configured for this process and its children."""
    for name in [name for name in os.environ if name.startswith("MODAL_")]:
        monkeypatch.delenv(name)
    for name, value in modal_service.environment_of_launchers.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    yield modal_service
    modal_service.recover()


@pytest.fixture(scope="session")
def beaker_service(
    certificate: tuple[bytes, bytes], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """Yield a stand-in for Beaker with real processes, for the whole session: gRPC reads a
    process's trusted roots only once."""
    from support.beaker import Beaker

    with Beaker(tmp_path_factory.mktemp("beaker"), certificate) as service:
        roots = "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"
        os.environ[roots] = service.environment_of_launchers[roots]
        yield service
        del os.environ[roots]


@pytest.fixture
def beaker(beaker_service: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Yield this stand-in in its initial state, configured for this process and its children."""
    monkeypatch.delenv("BEAKER_TOKEN", raising=False)
    for name, value in beaker_service.environment_of_launchers.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    yield beaker_service
    beaker_service.recover()
