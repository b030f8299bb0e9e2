"""A recipe that takes a seat at the engine for some seconds: `seat.py LEDGER SECONDS LOG_PATH`.

It uses only the standard library, and starts quickly. It speaks the engine's protocol as the
tinker SDK does: a session, a training client in it, which may have to wait, an end. Once it has
its seat, it writes a row into the ledger.
"""

import json
import os
import sys
import time
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit


class Client:
    """Sends requests to the engine, again if it does not answer."""

    def __init__(self) -> None:
        self.address = urlsplit(os.environ["TINKER_BASE_URL"])
        key = os.environ["TINKER_API_KEY"]
        self.headers = {"x-api-key": key, "content-type": "application/json"}

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        assert self.address.hostname is not None
        for _ in range(60):
            line = HTTPConnection(self.address.hostname, self.address.port, timeout=60)
            try:
                line.request("POST", f"/api/v1/{path}", json.dumps(body), self.headers)
                answer = line.getresponse()
                content = json.loads(answer.read())
                if answer.status not in (200, 408):
                    raise SystemExit(f"{path}: {answer.status}: {content}")
                return answer.status, content
            except (OSError, ValueError):
                time.sleep(0.5)
            finally:
                line.close()
        raise SystemExit("the engine does not answer")


def main(ledger: str, seconds: str, log_path: str) -> int:
    run, attempt = os.environ["SWEEPER_RUN"], os.environ["SWEEPER_ATTEMPT"]
    about = {"root": os.environ["SWEEPER_ROOT"], "run": run, "attempt": attempt}
    client = Client()
    session = client.post("create_session", {"tags": [], "user_metadata": about})[1]["session_id"]
    request = {"session_id": session, "model_seq_id": 0, "base_model": "tiny/qwen3"}
    promised = client.post("create_model", {**request, "lora_config": {"rank": 1}})[1]
    reported = False
    while True:
        status, answer = client.post("retrieve_future", {"request_id": promised["request_id"]})
        if status == 200 and "model_id" in answer:
            break
        if status == 200:
            raise SystemExit(f"no training client: {answer}")
        if answer.get("queue_state_reason") and not reported:  # the SDK's message, without delay
            reason = answer["queue_state_reason"]
            print(f"Model creation for tiny/qwen3 is paused. Reason: {reason}.", flush=True)
            reported = True
        client.post("session_heartbeat", {"session_id": session})
    write(ledger, f"{run} {attempt} 0\n")
    write(os.path.join(log_path, "metrics.jsonl"), '{"step": 0}\n')
    until = time.monotonic() + float(seconds)
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, 8.0))
        client.post("session_heartbeat", {"session_id": session})
    client.post(f"sessions/{session}/finish", {})
    return 0


def job(given: list[str]) -> None:
    """Run `main` as a job of tinker-cookbook's xmux: the first argument is the run's name, the
    others are those of `main`."""
    os.environ |= {"SWEEPER_RUN": given[0], "SWEEPER_ATTEMPT": "1", "SWEEPER_ROOT": "xmux"}
    main(*given[1:])


def write(path: str, line: str) -> None:
    """Append with one write."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(descriptor, line.encode())
    os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
