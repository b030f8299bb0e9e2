"""The engine's requests, without HTTP: a JSON body in, a JSON document out. Slow work becomes a
job, and the client gets a promise with which it fetches the result."""

import contextlib
import itertools
import logging
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from sweeper.engine import losses, operations, optimizer, wire
from sweeper.engine.checkpoints import Vault, parse
from sweeper.engine.errors import Busy, RequestError, Unknown
from sweeper.engine.exports import Tickets
from sweeper.engine.limits import Limits
from sweeper.engine.meter import Meter
from sweeper.engine.models import Models
from sweeper.engine.prefixes import Prefixes
from sweeper.engine.recorded import Records
from sweeper.engine.scheduler import Admission, Lane, Promises, Reply, Scheduler, failure
from sweeper.engine.state import Adapter, Registry, Run, Sampler, Session

log = logging.getLogger("sweeper.engine")

Body = dict[str, Any]
_SWEEP_SECONDS, _PURGE_SECONDS = 10.0, 300.0
_UNSUPPORTED = ("prompt_alt_tokens_k",)
_TARGETS = "target_prompt_logprobs"
# A client sends a heartbeat every 10 s. After this time without one, a session loses its seat,
# because its client has probably been killed.
_SEAT_SECONDS = 35.0
# The SDK tries for 5 minutes to send a request, and then continues with the next number.
_MISSING_SECONDS = 600.0


def _owner(name: str, kind: str) -> str:
    """Return the id of a session. `name` is the id of one of its runs or samplers."""
    return name.rpartition(f":{kind}:")[0]


def _check_optimizer(body: Body) -> None:
    config: Body = body.get("optimizer_config") or {}
    if (kind := config.get("type", "adamw")) != "adamw":
        raise RequestError(f"optimizer {kind!r} is not supported here; use adamw")


def _save_request(
    body: Body, kind: str, name: str, *, overwrite: bool = True
) -> operations.SaveRequest:
    return operations.SaveRequest(
        kind, name, overwrite, body.get("ttl_seconds"), body.get("user_metadata")
    )


class Service:
    """The handlers of all client requests, except listings (`listing`)."""

    def __init__(
        self,
        models: Models,
        vault: Vault,
        spill: str,
        threads: int = 1,
        limits: Limits = Limits(),  # noqa: B008 -- a tuple
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Delete the contents of `spill`, a directory for idle samplers."""
        self.models, self.vault = models, vault
        self.scheduler = Scheduler(threads)
        self.promises = Promises()
        self.prefixes = Prefixes()
        self.registry = Registry(
            spill, self.scheduler.close, lambda adapter: self.prefixes.forget(adapter.serial)
        )
        self.meter = Meter()
        self.limits = limits
        self._admission = Admission(self.promises, self.scheduler, self.meter, limits)
        self._misc = Lane(ordered=False)
        self._clients = itertools.count(1)
        self._records = Records(clock)
        self.tickets = Tickets()
        self._clock = clock
        self._swept, self._purged = clock(), -_PURGE_SECONDS
        self._sweeping = threading.Lock()

    def _promise(
        self, name: str, lane: Lane, job: Callable[[], Reply], sequence: int | None = None
    ) -> str:
        """Queue a job, and create the promise `name` of its result. If the promise exists already,
        queue nothing, because the client has repeated a request. Return `name`."""
        future = self.promises.create(name)
        if future is not None:
            self.scheduler.submit(lane, future, job, sequence)
        return name

    def _for_run(self, body: Body, job: Callable[[Run], Reply]) -> Body:
        run, sequence = self._run(body["model_id"]), body.get("seq_id")
        return self._queue_for(run, sequence, lambda: job(run))

    def _queue_for(self, run: Run, sequence: object, job: Callable[[], Reply]) -> Body:
        if sequence is not None and not isinstance(sequence, int):
            raise RequestError(f"seq_id is {sequence!r}; it must be a whole number")
        label = uuid.uuid4().hex if sequence is None else sequence
        name = self._promise(f"{run.id}:{label}", run.lane, job, sequence)
        return {"request_id": name, "model_id": run.id}

    def refuse(self, body: Body, message: str) -> None:
        """Mark a rejected request as done, so that requests with higher sequence numbers do not
        wait for it. Does nothing if the request has no sequence number."""
        name, sequence = body.get("model_id"), body.get("seq_id")
        if not isinstance(name, str) or not isinstance(sequence, int):
            return
        with contextlib.suppress(Unknown):
            promised = self._queue_for(self._run(name), sequence, lambda: failure(message, "user"))
            self.promises.fetched(promised["request_id"])  # the result will not be fetched

    def _run(self, name: str) -> Run:
        run = self.registry.run(name)
        self.registry.session(_owner(name, "train"))  # a client that sends requests counts as alive
        return run

    def sweep(self) -> None:
        """Free memory and files that are no longer needed. May be called often; acts at most every
        10 s."""
        now = self._clock()
        if now - self._swept < _SWEEP_SECONDS or not self._sweeping.acquire(blocking=False):
            return
        try:
            self._swept = now
            self.promises.sweep()
            self._records.sweep()
            for session in self.registry.sweep():
                self._ended(session)
                log.info("session %s has ended: its client sent no heartbeat for too long", session)
            for run in self.registry.runs():
                self.scheduler.pass_over(run.lane, _MISSING_SECONDS)
            alive = {session.id for session in self.registry.sessions()}
            self._admission.keep(alive - set(self.registry.idle_sessions(_SEAT_SECONDS)))
            if now - self._purged > _PURGE_SECONDS:
                self._purged = now
                self.scheduler.submit(self._misc, Future(), self._purge)
        finally:
            self._sweeping.release()

    def _purge(self) -> Reply:
        for place in self.vault.purge():
            log.info("%s has expired", place)
        return Reply({})

    def _ended(self, session: str) -> None:
        self._admission.ended(session)
        self.meter.end(session)
        self._records.end(session)

    def _seated(self, session: str, name: str, job: Callable[[], Reply]) -> Body:
        self._admission.training_client(session, f"{name}:0", self._misc, job)
        return {"request_id": f"{name}:0", "model_id": name}

    # ---- sessions

    def create_session(self, body: Body) -> Body:
        """Open a session."""
        name = str(uuid.uuid4())
        tags = list(body.get("tags") or [])
        self.registry.add_session(
            Session(name, tags, body.get("user_metadata"), body.get("display_name"))
        )
        self.meter.open(name, tags, body.get("user_metadata"), body.get("display_name"))
        log.info("session %s %s", name, " ".join(tags))
        return {"type": "create_session", "session_id": name}

    def heartbeat(self, body: Body) -> Body:
        """Record that a client is alive."""
        self.registry.session(body["session_id"])
        self.sweep()
        return {"type": "session_heartbeat"}

    def finish_session(self, name: str, body: Body | None = None) -> Body:
        """End a session on its client's request. The session's memory is freed, and its checkpoints
        stay."""
        fields = body or {}
        reason = fields.get("reason") or {"type": "success"}
        status = {"type": "client_finished", "reason": reason, "detail": fields.get("detail")}
        self.registry.end(name, status)
        self._ended(name)
        return {}

    # ---- training clients

    def create_model(self, body: Body) -> Body:
        """Create a training client on a base model."""
        session = self.registry.session(body["session_id"])
        model, config = body["base_model"], operations.lora_config(body.get("lora_config") or {})
        self.models.check(model)
        _check_optimizer(body)
        name = f"{session.id}:train:{body['model_seq_id']}"

        def job() -> Reply:
            run = operations.create(name, self.models.get(model), config, body.get("user_metadata"))
            self.registry.add_run(session.id, run)
            log.info("created training client %s: %s, LoRA rank %d", name, model, config.rank)
            return Reply({"model_id": name, "type": "create_model"})

        return self._seated(session.id, name, job)

    def get_info(self, body: Body) -> Body:
        """Describe a training client. `tokenizer_id` is the path of a local directory."""
        adapter = self._run(body["model_id"]).adapter
        model = adapter.model
        return {
            "type": "get_info",
            "model_id": body["model_id"],
            "is_lora": True,
            "lora_rank": adapter.config.rank,
            "model_name": model.name,
            "model_data": {
                "arch": "decoder",
                "model_name": model.name,
                "tokenizer_id": model.directory,
            },
        }

    def forward_backward(self, raw: bytes) -> Body:
        """Do a forward pass. If the request is not `forward_only`, also do a backward pass."""
        message = wire.parse(raw)
        run = self._run(message.model_id)

        def job() -> Reply:
            request = wire.decode_pass(message)
            data, session = request.data, _owner(run.id, "train")
            if losses.RECORDED in losses.find(request.loss, request.config).needs:
                data = [self._records.completed(session, datum, n) for n, datum in enumerate(data)]
            result = operations.forward_backward(
                run, data, request.loss, request.config, train=request.train
            )
            kind = "trained_tokens" if request.train else "forward_tokens"
            tokens = sum(len(datum.tokens) for datum in data)
            self.meter.bill(session, run.adapter.model.name, **{kind: tokens})
            return Reply(wire.encode_pass(result))

        return self._queue_for(run, message.seq_id or None, job)

    def optim_step(self, body: Body) -> Body:
        """Do an optimizer step with the accumulated gradients."""

        def job(run: Run) -> Reply:
            params = body.get("adam_params")
            if params is None:
                raise RequestError("only AdamW is supported here: pass AdamParams")
            metrics = operations.step(run, optimizer.parse(params))
            self.meter.add(_owner(run.id, "train"), steps=1)
            return Reply({"metrics": metrics})

        return self._for_run(body, job)

    def save_weights(self, body: Body) -> Body:
        """Save weights and optimizer under a name."""

        def job(run: Run) -> Reply:
            name = body.get("path") or f"auto-{body.get('seq_id')}"
            request = _save_request(body, "weights", name, overwrite=bool(body.get("overwrite")))
            place = operations.save(self.vault, run, request)
            log.info("saved %s", place)
            return Reply({"path": str(place), "type": "save_weights"})

        return self._for_run(body, job)

    def save_weights_for_sampler(self, body: Body) -> Body:
        """Save weights under a name. Without a name, create a sampler with a snapshot of the
        weights."""

        def job(run: Run) -> Reply:
            if body.get("kind", "snapshot") != "snapshot":
                raise RequestError(f"samplers of kind {body['kind']!r} are not supported here")
            if body.get("path"):
                request = _save_request(body, "sampler_weights", body["path"])
                place = operations.save(self.vault, run, request)
                return Reply({"path": str(place), "type": "save_weights_for_sampler"})
            session = _owner(run.id, "train")
            name = f"{session}:sample:{body['sampling_session_seq_id']}"
            self._add_sampler(session, name, run.adapter.snapshot(), None)
            return Reply({"sampling_session_id": name, "type": "save_weights_for_sampler"})

        return self._for_run(body, job)

    def save_weights_external(self, body: Body) -> Body:
        """Save the adapter for other programs, under a name."""

        def job(run: Run) -> Reply:
            if body.get("age_encryption_recipients"):
                raise RequestError(
                    "weights cannot be encrypted here: omit age_encryption_recipients"
                )
            request = _save_request(body, "external_weights", body["path"])
            place = operations.save(self.vault, run, request)
            return Reply({"path": str(place), "type": "save_weights_external"})

        return self._for_run(body, job)

    def load_weights(self, body: Body) -> Body:
        """Create a training client from a checkpoint, or load a checkpoint into an existing one."""
        optimizer_too = bool(body.get("optimizer"))
        if not body.get("session_id"):

            def load(run: Run) -> Reply:
                place = parse(body["path"])
                operations.load_into(
                    run, place, self.vault.load(place), optimizer_too=optimizer_too
                )
                return Reply({"path": str(place), "model_id": run.id, "type": "load_weights"})

            return self._for_run(body, load)
        session = self.registry.session(body["session_id"])
        _check_optimizer(body)
        name = f"{session.id}:train:{body['model_seq_id']}"

        def job() -> Reply:
            place = parse(body["path"])
            checkpoint = self.vault.load(place)
            run = operations.restore(
                name,
                self.models.get(body.get("base_model") or checkpoint.base),
                place,
                checkpoint,
                optimizer_too=optimizer_too,
                user_metadata=body.get("user_metadata"),
            )
            self.registry.add_run(session.id, run)
            log.info("created training client %s from %s", name, place)
            return Reply({"path": str(place), "model_id": name, "type": "load_weights"})

        return self._seated(session.id, name, job)

    def unload_model(self, body: Body) -> Body:
        """Remove a training client."""
        name = body["model_id"]
        self.registry.drop_run(name)
        done = Reply({"model_id": name, "type": "unload_model"})
        return {
            "request_id": self._promise(f"{name}:unload", self._misc, lambda: done),
            "model_id": name,
        }

    # ---- samplers

    def _add_sampler(self, session: str, name: str, adapter: Adapter, path: str | None) -> None:
        self.registry.add_sampler(session, Sampler(name, adapter, path, Lane(ordered=False)))

    def create_sampling_session(self, body: Body) -> Future[Reply]:
        """Create a sampler from a checkpoint or a base model."""
        session, path = self.registry.session(body["session_id"]), body.get("model_path")
        name = f"{session.id}:sample:{body['sampling_session_seq_id']}"

        def job() -> Reply:
            if path:
                saved = self.vault.load(parse(path))
                adapter = Adapter(self.models.get(saved.base), saved.config, saved.adapter)
            else:
                model = self.models.get(body.get("base_model") or "")
                adapter = Adapter(model, operations.lora_config({}), {})
            self._add_sampler(session.id, name, adapter, path)
            return Reply({"type": "create_sampling_session", "sampling_session_id": name})

        promise = self.promises.get(self._promise(f"{name}:open", self._misc, job))
        if promise is None:
            raise RequestError(
                "the result of this request was already delivered, and is no longer kept"
            )
        return promise

    def join_sampling_session(self, body: Body) -> Body:
        """Return a new number that identifies this client among the clients of a sampler."""
        self.registry.sampler(body["sampling_session_id"])
        return {"type": "join_sampling_session", "client_counter": next(self._clients)}

    def sample(self, body: Body, *, may_refuse: bool = False) -> Body:
        """Draw sequences. If too many samples are being drawn, the request waits, or raises Busy
        if `may_refuse` is True."""
        if not body.get("sampling_session_id"):
            raise RequestError("sampling needs a sampling session: use a SamplingClient")
        sampler = self.registry.sampler(body["sampling_session_id"])
        session = self.registry.session(_owner(sampler.id, "sample")).id
        n = int(body.get("num_samples", 1))

        label = body.get("seq_id")
        name = f"{sampler.id}:{uuid.uuid4().hex if label is None else label}"
        sequences = [f"{name}:{i}" for i in range(n)]

        def job() -> Reply:
            return self._drawn(session, sampler, body, sequences)

        is_repeated = self.promises.get(name) is not None
        if may_refuse and not is_repeated and self._admission.full():
            raise Busy("too many samples are being drawn at once", 1.0)
        self._admission.sample(name, sampler.lane, job)
        return {"request_id": name, "sample_sequence_ids": sequences}

    def _drawn(self, session: str, sampler: Sampler, body: Body, names: list[str]) -> Reply:
        for key in _UNSUPPORTED:
            if body.get(key):
                raise RequestError(f"{key} is not supported here")
        request = operations.SampleRequest(
            prompt=wire.prompt_tokens(body["prompt"]),
            n=len(names),
            params=body.get("sampling_params") or {},
            prompt_logprobs=bool(body.get("prompt_logprobs")),
            topk_prompt_logprobs=int(body.get("topk_prompt_logprobs") or 0),
            last_n=body.get("prompt_logprobs_last_n"),
            topk_sampled=int(body.get("topk_sample_logprobs") or 0),
            targets=None if (named := body.get(_TARGETS)) is None else wire.decode_targets(named),
        )
        result = operations.sample(sampler.adapter, request, self.prefixes)
        if body.get("record_stability_info"):
            for name, sequence in zip(names, result.sequences, strict=True):
                self._records.add(session, name, len(request.prompt), sequence)
        self.meter.bill(
            session,
            sampler.adapter.model.name,
            samples=len(names),
            prompt_tokens=len(request.prompt),
            cached_tokens=result.reused,
            sampled_tokens=sum(len(sequence.tokens) for sequence in result.sequences),
        )
        return Reply(wire.encode_samples(result, request.targets))

    def cancel(self, body: Body) -> Body:
        """Cancel a request that has not begun. A running request continues."""
        if (future := self.promises.get(body["request_id"])) is not None:
            future.cancel()
        return {}
