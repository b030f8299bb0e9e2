"""The driver process, `python -m sweeper.backends.ray.driver`. It is the only process of a launcher
that loads Ray (`backends/helper.py`), since Ray ends or blocks a process that has lost the
connection to the head."""

import ipaddress
import json
import os
import socket
import time
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, TypedDict

from sweeper.backends.helper import serve
from sweeper.backends.ray.actor import ENDS, Job
from sweeper.backends.ray.messages import About, Described, Node

if TYPE_CHECKING:
    from google.protobuf.message import Message

_CONNECT_SECONDS, _STOP_SECONDS = 5.0, 10.0
_PENDING = ("DEPENDENCIES_UNREADY", "PENDING_CREATION")


class _Address(TypedDict):
    """The current or last node of an actor."""

    NodeID: str


class _Actor(TypedDict):
    """An actor in Ray's table."""

    Name: str
    State: str
    Address: _Address
    DeathCause: "Message"


class Cluster:
    """A connection to a cluster, for the jobs of one sweep."""

    def __init__(self, address: str, namespace: str) -> None:
        host, _, port = address.rpartition(":")
        if port.isdecimal():  # Without this check Ray would try to connect for a minute.
            with socket.create_connection(
                (host.strip("[]"), int(port)), _CONNECT_SECONDS
            ) as connection:
                if ipaddress.ip_address(connection.getpeername()[0]).is_loopback:
                    # Ray would replace the loopback address by another one, where the head may not
                    # listen.
                    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        self._ray = import_module("ray")
        self._state = import_module("ray._private.state")
        self._namespace = namespace
        self._ray.init(address, namespace=namespace, log_to_driver=False, logging_level="error")
        self._ends = import_module("ray.experimental.internal_kv").internal_kv_get_gcs_client()
        self._job = self._ray.remote(Job)

    def hello(self) -> dict[str, str]:
        """Return the head's address and the version of Ray."""
        return {
            "address": self._ray.get_runtime_context().gcs_address,
            "version": self._ray.__version__,
        }

    def nodes(self) -> list[Node]:
        """Return the live nodes with their total resources."""
        return [
            {"name": node["NodeManagerHostname"], "id": node["NodeID"], "has": node["Resources"],
             "labels": node.get("Labels") or {}}
            for node in self._ray.nodes()
            if node["Alive"]
        ]  # fmt: skip

    def submit(self, jobs: Sequence[Described]) -> None:
        """Create an actor for each job that does not have one yet. Return after Ray has recorded
        the actors. Skip a job if an unfinished actor of an earlier sweep in this folder has the
        same token. If a job was skipped, raise `RuntimeError` after submitting the other jobs."""
        taken = self._at_work()
        waits = ""
        for job in jobs:
            other = taken.get(job["token"], job["name"])
            if other != job["name"]:
                waits = other
                continue
            options = {
                "name": job["name"],
                "namespace": self._namespace,
                "lifetime": "detached",
                "max_restarts": 0,
                **job["options"],
            }
            try:
                self._job.options(**options).remote(
                    job["name"], job["argv"], job["cwd"], job["secrets"]
                )
            except ValueError as error:
                if "already taken" not in str(error) and "already exists" not in str(error):
                    raise
        if waits:
            reason = f"the actor {waits} of an earlier sweep in this folder is still running"
            raise RuntimeError(f"{reason}, and the launcher waits until this actor ends")

    def _at_work(self) -> dict[str, str]:
        """Return {token: name} for the unfinished jobs of all sweeps in this folder."""
        actors = dict[str, str]()
        for actor in self._actors():
            name, prefix = str(actor["Name"]), f"{self._namespace}-"
            if actor["State"] != "DEAD" and name.startswith(prefix):
                actors[name.removeprefix(prefix).partition("-")[2]] = name
        return actors

    def _actors(self) -> Iterable[_Actor]:
        return self._state.actors().values()

    def poll(self, names: Sequence[str]) -> dict[str, About]:
        """Return a description of each job, by name. Jobs that Ray does not know are left out."""
        wanted = set(names)
        answers: dict[str, About] = {}
        for actor in self._actors():
            name = actor["Name"]
            live = actor["State"] != "DEAD"
            if name in wanted and (live or name not in answers):
                answers[name] = _about(actor)
        ends = self._ends.internal_kv_multi_get([name.encode() for name in wanted], ENDS, 10)
        for key, end in ends.items():
            answers.setdefault(key.decode(), {"state": "DEAD"})["end"] = json.loads(end)
        names_of_nodes = {node["NodeID"]: node["NodeManagerHostname"] for node in self._ray.nodes()}
        for about in answers.values():
            about["node"] = names_of_nodes.get(about.get("node"))
        return answers

    def cancel(self, names: Sequence[str]) -> list[str]:
        """Cancel waiting jobs, and signal the workers of running ones. Return the names of jobs
        that got no signal."""
        jobs = self.poll(names)
        calls: dict[object, str] = {}
        not_yet: list[str] = []
        for name, about in jobs.items():
            if about["state"] == "DEAD" or "end" in about:
                continue
            try:
                actor = self._ray.get_actor(name, namespace=self._namespace)
            except ValueError:
                not_yet.append(name)  # The actor is being created, or has just ended.
                continue
            if about["state"] in _PENDING:
                self._ray.kill(actor)
            else:
                calls[actor.stop.remote()] = name
        if calls:
            _, unheard = self._ray.wait(list(calls), num_returns=len(calls), timeout=_STOP_SECONDS)
            not_yet += [calls[reference] for reference in unheard]
        return not_yet

    def forget(self, names: Sequence[str]) -> None:
        """Delete the exit codes and last output of these jobs from Ray's key-value store. First
        wait up to 10 seconds until the actors of ended workers are gone. If an actor is still alive
        then, keep its job's exit code and output."""
        until = time.monotonic() + _STOP_SECONDS
        jobs = self.poll(names)
        while any("end" in about and about["state"] != "DEAD" for about in jobs.values()):
            if time.monotonic() > until:
                break
            time.sleep(0.2)
            jobs = self.poll(names)
        for name, about in jobs.items():
            if "end" in about and about["state"] == "DEAD":
                self._ends.internal_kv_del(name.encode(), False, ENDS)

    def logs(self, name: str) -> list[str]:
        """Return the last output of a job's worker."""
        about = self.poll([name]).get(name)
        if about is not None and "end" in about:
            return about["end"]["tail"]
        if about is None or about["state"] != "ALIVE":
            return []
        actor = self._ray.get_actor(name, namespace=self._namespace)
        return self._ray.get(actor.tail.remote(), timeout=_STOP_SECONDS)


def _about(actor: _Actor) -> About:
    """Convert an actor of Ray's table to a plain description."""
    about: About = {"state": actor["State"], "node": actor["Address"]["NodeID"]}
    cause = actor["DeathCause"]
    context_kind = cause.WhichOneof("context") if actor["State"] == "DEAD" else None
    if context_kind is not None:
        context = getattr(cause, context_kind)
        message = getattr(context, "error_message", "") or getattr(
            context, "formatted_exception_string", ""
        )
        about["death"] = {"kind": context_kind, "message": message[-2000:]}
        if context_kind == "actor_died_error_context":
            about["death"]["reason"] = context.Reason.Name(context.reason)
    return about


if __name__ == "__main__":
    serve(Cluster)
