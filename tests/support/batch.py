"""Emulates AWS Batch with moto's control plane over HTTP and jobs that run as processes of this
machine.

It uses neither Docker nor Amazon. Behaviour of AWS that moto lacks is implemented here from the
documentation: pages of 100, at most 100 jobs a description, listings of running jobs by default,
the variables of a job, retries by `evaluateOnExit`, SIGTERM before SIGKILL.

    with Batch(folder) as batch:      # batch.url; batch.options() for `launch.aws_batch`
        batch.interrupt(job_id)       # the machine is taken away
        batch.throttle["submitjob"] = 3  # the next 3 such requests are throttled
        batch.lose_replies = 1        # the next job is accepted, but the reply is lost
        batch.late_listings = 1       # the next listing is still empty
        batch.refused["submitjob"] = "why"  # or "AccessDeniedException: why"
        batch.silent = True           # Batch does not answer
        batch.held = True             # nothing starts
        batch.open(False)             # the queue takes no jobs
"""

import fnmatch
import json
import logging
import signal
import subprocess
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from moto.batch import models
from moto.batch.responses import BatchResponse
from moto.core.exceptions import JsonRESTError
from moto.server import ThreadedMotoServer
from support.stand_in import kill, node_variables, start

LOG_GROUP = "/aws/batch/job"
HOST_GONE = "Host EC2 (instance i-0123456789abcdef0) terminated."
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing-secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class TooManyRequests(JsonRESTError):
    code = 429


class Broken(JsonRESTError):
    code = 500


class Batch:
    """The emulation. At most one per process: it changes moto's own classes."""

    def __init__(self, folder: Path, grace: float = 30.0) -> None:
        self.folder, self.grace, self._grace = folder, grace, grace
        self.refused: dict[str, str] = {}
        self.throttle: Counter[str] = Counter()
        self.requests: list[str] = []
        self.secrets: dict[str, str] = {}  # values that AWS would look up, by ARN
        # Wraps a job's command and variables in a container. None: the command runs unchanged.
        self.contain: Callable[[list[str], dict[str, str]], list[str]] | None = None
        self.waiting: list[Any] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        self.answering = threading.local()
        self._saved: list[tuple[Any, str, Any]] = []
        self.recover()

    def __enter__(self) -> "Batch":
        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for every request
        self.server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self.server.start()
        host, port = self.server.get_host_and_port()
        self.url = f"http://{host}:{port}"
        self.environment = CREDENTIALS | {"AWS_ENDPOINT_URL": self.url}
        self._patch()
        self._queue()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                kill(process)
                process.wait()
        for owner, name, value in reversed(self._saved):
            setattr(owner, name, value)
        self.server.stop()

    def client(self, service: str) -> Any:
        """Return a client for the test's own requests."""
        import botocore.session

        keys: dict[str, Any] = {
            "aws_access_key_id": CREDENTIALS["AWS_ACCESS_KEY_ID"],
            "aws_secret_access_key": CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        }
        return botocore.session.Session().create_client(
            service, region_name="us-east-1", endpoint_url=self.url, **keys
        )

    def options(self, **more: Any) -> dict[str, Any]:
        """Return the backend's options for this emulation."""
        import sys

        return {"queue": self.queue, "image": "sweeper", "python": sys.executable} | more

    def jobs(self) -> list[Any]:
        """Return all submitted jobs, also arrays' children, oldest first."""
        return list(self._backend()._jobs.values())

    def interrupt(self, job: str, *, warned: bool = False) -> None:
        """Take the machine of a running job away; `warned`: after a SIGTERM, as spot does."""
        self._backend()._jobs[job].host_gone = "warned" if warned else "at once"

    def recover(self) -> None:
        """Remove all faults."""
        self.lose_replies = self.late_listings = 0
        self.silent = False
        self.grace, self.contain = self._grace, None
        self.throttle.clear()
        self.refused.clear()
        self.open(True)
        self.release()

    def open(self, state: bool) -> None:
        for queue in self._backend()._job_queues.values():
            queue.state = "ENABLED" if state else "DISABLED"

    def release(self) -> None:
        """Start held jobs."""
        self.held, waiting = False, self.waiting
        self.waiting = []
        for job in waiting:
            threading.Thread.start(job)

    def _backend(self) -> Any:
        return models.batch_backends["123456789012"]["us-east-1"]

    def _queue(self) -> None:
        batch = self.client("batch")
        role = self.client("iam").create_role(
            RoleName=f"r-{uuid.uuid4().hex[:8]}", AssumeRolePolicyDocument="{}"
        )
        made = batch.create_compute_environment(
            computeEnvironmentName=f"ce-{uuid.uuid4().hex[:8]}",
            type="UNMANAGED",
            state="ENABLED",
            serviceRole=role["Role"]["Arn"],
        )
        order = [{"order": 1, "computeEnvironment": made["computeEnvironmentArn"]}]
        self.queue = f"queue-{uuid.uuid4().hex[:8]}"
        batch.create_job_queue(
            jobQueueName=self.queue, state="ENABLED", priority=1, computeEnvironmentOrder=order
        )

    def _set(self, owner: Any, name: str, value: Any) -> None:
        self._saved.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def _patch(self) -> None:
        batch = self
        describe, start, terminate = models.Job.describe, models.Job.start, models.Job.terminate

        def run(job: Any) -> None:
            _Execution(batch, job).run()

        def started(job: Any) -> None:
            job.retry = getattr(batch.answering, "retry", None) or {}
            job.host_gone, job.reason = None, None
            if batch.held:
                batch.waiting.append(job)
            else:
                start(job)

        def terminated(job: Any, reason: str) -> None:
            terminate(job, reason)
            for child in job._child_jobs or ():  # moto does not terminate children
                terminated(child, reason)
            if job in batch.waiting:  # a waiting job has no machine to receive a signal
                batch.waiting.remove(job)
                start(job)

        def described(job: Any) -> dict[str, Any]:
            return _completed(job, describe(job))

        container_property = models.Job._get_container_property

        def property_of(job: Any, name: str, default: Any) -> Any:
            if name != "environment":
                return container_property(job, name, default)
            # moto extends the list that it shares between jobs at each call.
            return [*(job.container_overrides or {}).get("environment", ())]

        self._set(models.Job, "_get_container_property", property_of)
        self._set(models.Job, "run", run)
        self._set(models.Job, "start", started)
        self._set(models.Job, "terminate", terminated)
        self._set(models.Job, "describe", described)
        short = models.Job.describe_short
        self._set(models.Job, "describe_short", lambda job: _shortened(job, short(job)))
        names = ("registerjobdefinition", "submitjob", "listjobs", "describejobs", "terminatejob")
        for name in (*names, "describejobqueues", "describejobdefinitions"):
            self._set(BatchResponse, name, self._answering(name, getattr(BatchResponse, name)))

    def _answering(self, name: str, answer: Any) -> Any:
        batch = self

        def answered(response: Any) -> str:
            batch.requests.append(name)
            if batch.silent:
                raise Broken("ServiceUnavailable", "it is away")
            if batch.throttle[name] > 0:
                batch.throttle[name] -= 1
                raise TooManyRequests("TooManyRequestsException", "slow down")
            if name in batch.refused:
                code, colon, why = batch.refused[name].partition("Exception: ")
                error = (f"{code}Exception", why) if colon else ("ClientException", code)
                raise JsonRESTError(*error)
            if name == "submitjob":
                batch.answering.retry = response._get_param("retryStrategy")
                answered = answer(response)
                if batch.lose_replies > 0:
                    batch.lose_replies -= 1
                    raise Broken("ServerException", "the reply was lost")
                return str(answered)
            if name == "describejobs":
                return batch.description(response)
            if name == "listjobs":
                return batch.listing(response, json.loads(answer(response))["jobSummaryList"])
            return str(answer(response))

        return answered

    def description(self, response: Any) -> str:
        ids = response._get_param("jobs") or []
        if len(ids) > 100:
            raise JsonRESTError("ClientException", "at most 100 jobs")
        jobs = self._backend()._jobs
        return json.dumps({"jobs": [jobs[job].describe() for job in ids if job in jobs]})

    def listing(self, response: Any, jobs: list[dict[str, Any]]) -> str:
        if response._get_param("filters") is None:
            wanted = response._get_param("jobStatus") or "RUNNING"
            jobs = [job for job in jobs if job["status"] == wanted]
        else:  # a filter does not apply to children
            jobs = [job for job in jobs if ":" not in job["jobId"]]
        if self.late_listings > 0 and jobs:
            self.late_listings -= 1
            jobs = []
        jobs.sort(key=lambda job: -job["createdAt"])
        start = int(response._get_param("nextToken") or 0)
        most = min(100, int(response._get_param("maxResults") or 100))
        more = {"nextToken": str(start + most)} if start + most < len(jobs) else {}
        return json.dumps({"jobSummaryList": jobs[start : start + most], **more})


def _shortened(job: Any, description: dict[str, Any]) -> dict[str, Any]:
    if job._child_jobs:
        description["arrayProperties"] = {"size": len(job._child_jobs)}
        description["status"] = _of_array(job)
    return description


def _of_array(job: Any) -> str:
    states = {child.status for child in job._child_jobs}
    if states <= {"SUCCEEDED", "FAILED"}:
        return "FAILED" if "FAILED" in states else "SUCCEEDED"
    return "PENDING"


def _completed(job: Any, description: dict[str, Any]) -> dict[str, Any]:
    """Add to a description what moto leaves out."""
    container = description.setdefault("container", {})
    if job.exit_code is not None:
        container["exitCode"] = job.exit_code
    if getattr(job, "reason", None):
        description["statusReason"] = job.reason
    if "index" in job.array_properties:
        description["arrayProperties"] = {"index": job.array_properties["index"]}
    if job._child_jobs:
        description["status"] = _of_array(job)
    return description


class _Execution:
    """A job as its machine sees it."""

    def __init__(self, batch: Batch, job: Any) -> None:
        self.batch, self.job = batch, job

    def run(self) -> None:
        job, number = self.job, 0
        try:
            while True:
                number += 1
                job.status = "RUNNABLE"
                if job.stop:
                    return self._end(None, job.job_stopped_reason)
                job.status = "STARTING"
                code, reason = self._attempt(number)
                if job.stop or not self._again(number, code, reason):
                    return self._end(code, job.job_stopped_reason if job.stop else reason)
        except Exception as error:  # noqa: BLE001  (a thread of moto's: nobody would hear of it)
            return self._end(None, f"the emulation: {error!r}")

    def _end(self, code: int | None, reason: str | None) -> None:
        job = self.job
        job.exit_code, job.reason = code, reason
        job._mark_stopped(success=code == 0 and not job.stop)

    def _again(self, number: int, code: int, reason: str | None) -> bool:
        """Apply `evaluateOnExit`; the first match counts."""
        if code == 0 or number >= self.job.retry.get("attempts", 1):
            return False
        for rule in self.job.retry.get("evaluateOnExit", ()):
            pairs = (("onStatusReason", reason or ""), ("onReason", ""), ("onExitCode", str(code)))
            if all(fnmatch.fnmatchcase(text, rule[key]) for key, text in pairs if key in rule):
                return bool(rule["action"] == "RETRY")
        return True

    def _attempt(self, number: int) -> tuple[int, str | None]:
        batch, job = self.batch, self.job
        folder = batch.folder / "containers" / f"{job.job_id.replace(':', '-')}-{number}"
        (folder / "home").mkdir(parents=True)
        stream = f"{job.job_definition.name}/default/{job.job_id}-{number}"
        command = job._get_container_property("command", [])
        environment = self._environment(number)
        if batch.contain is not None:
            command = batch.contain(command, environment)
        here = node_variables() | {"HOME": str(folder / "home")}
        job.host_gone = None
        job.log_stream_name = stream
        job._log_backend.ensure_log_group(LOG_GROUP)
        job._log_backend.ensure_log_stream(LOG_GROUP, stream)
        job.job_started_at = datetime.now()
        job.status = "RUNNING"  # before the job can report it itself
        try:
            process = start(command, folder, here | environment, subprocess.PIPE)
        except OSError as error:
            return 127, f"CannotStartContainerError: {error}"
        batch.processes.append(process)
        pump = threading.Thread(target=self._ship, args=(process, stream), daemon=True)
        pump.start()
        code, reason = self._attend(process)
        pump.join(5)
        container = {"exitCode": code, "logStreamName": stream}
        job.attempts.append({"container": container, "statusReason": reason})
        return code, reason

    def _environment(self, number: int) -> dict[str, str]:
        job = self.job
        environment = CREDENTIALS | {"AWS_ENDPOINT_URL": self.batch.url}
        properties = job.job_definition.container_properties
        for secret in properties.get("secrets") or ():
            environment[secret["name"]] = self.batch.secrets[secret["valueFrom"]]
        overridden = (job.container_overrides or {}).get("environment") or []
        environment |= {variable["name"]: variable["value"] for variable in overridden}
        environment["AWS_BATCH_JOB_ID"] = job.job_id
        environment["AWS_BATCH_JOB_ATTEMPT"] = str(number)
        if "index" in job.array_properties:
            environment["AWS_BATCH_JOB_ARRAY_INDEX"] = str(job.array_properties["index"])
        return environment

    def _attend(self, process: subprocess.Popen[bytes]) -> tuple[int, str | None]:
        job = self.job
        most = (job.timeout or {}).get("attemptDurationSeconds")
        begun, stopped = time.monotonic(), 0.0
        reason = "Essential container in task exited"
        while process.poll() is None:
            now = time.monotonic()
            if job.host_gone is not None:
                reason = HOST_GONE
            if job.host_gone == "at once":
                kill(process)
            over = most is not None and now > begun + most
            if (job.stop or over or job.host_gone == "warned") and not stopped:
                reason = "Job attempt duration exceeded timeout" if over else reason
                stopped = now
                process.send_signal(signal.SIGTERM)
            if stopped and now > stopped + self.batch.grace:
                kill(process)
            time.sleep(0.02)
        code = process.returncode
        return (code if code >= 0 else 128 - code), reason if code else None

    def _ship(self, process: subprocess.Popen[bytes], stream: str) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                stamp = int(time.time() * 1000)
                event = {"timestamp": stamp, "message": line.decode(errors="replace").rstrip("\n")}
                self.job._log_backend.put_log_events(LOG_GROUP, stream, [event])
