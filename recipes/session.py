"""Training by order: a run whose steps a client requests one after the other. An order is a file
that is created once, and the run answers it with another file."""

# <root>/<sweep>/session/<run>/orders/000001.json    written by the client: what to do
#                              answers/000001.json   written by the run: the result
#                              progress.json         the run's current state
#
# A checkpoint's record names the order during which it was made. A run that was stopped or killed
# resumes from its last checkpoint and repeats the orders since then: answered orders keep their
# answers, and refused ones are skipped. So no order is lost or applied twice.
#
# {"kind": "train", "steps": 3, "data": [...]}    steps, on the session's data if none are given
# {"kind": "sample", "prompts", "count", "max_tokens", "temperature", "seed"}
# {"kind": "save", "name"}    {"kind": "load", "path"}    {"kind": "finish"}

import json
import os
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from . import chat, data_files, rundir, samplers, service, tasks
from .rewards import JudgeFailed
from .trainer import Diverged, Trainer

if TYPE_CHECKING:
    import tinker

_LOOK_SECONDS = 0.1
_MOST_ROWS = 20
_REWARD = "env/all/reward/total"


class Refused(service.RecipeError):
    """Raised if an order (a request of a session's client) cannot be executed."""


class Orders:
    """The files of a session: a client's orders, the run's answers, and the run's progress."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        for part in ("orders", "answers"):
            os.makedirs(os.path.join(folder, part), exist_ok=True)

    def order(self, number: int) -> dict[str, Any] | None:
        """Return the order `number`; None if the client has not written it yet."""
        return self._read(f"orders/{number:06d}.json")

    def answer(self, number: int) -> dict[str, Any] | None:
        """Return the answer to the order `number`; None if the run has not written it yet."""
        return self._read(f"answers/{number:06d}.json")

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            with open(os.path.join(self._folder, name), encoding="utf-8") as file:
                return json.load(file)
        except FileNotFoundError:
            return None

    def put_answer(self, number: int, answer: Mapping[str, Any]) -> None:
        """Write the answer to an order. An existing answer is kept."""
        if self.answer(number) is None:
            self._write(f"answers/{number:06d}.json", {"order": number, **answer})

    def put_progress(self, **state: Any) -> None:
        """Write the run's current state to progress.json."""
        self._write("progress.json", state)

    def _write(self, name: str, document: Mapping[str, Any]) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        text = json.dumps({"schema": 1, "time": now, **document})
        rundir.replace_file(os.path.join(self._folder, name), text.encode())


def session_folder(environment: Mapping[str, str]) -> str:
    """Return the folder of this run's session. Raises RecipeError if `environment` lacks a variable
    that a worker sets for its recipe.
    """
    try:
        parts = [environment[f"SWEEPER_{name}"] for name in ("ROOT", "SWEEP", "RUN")]
    except KeyError:
        raise service.RecipeError(
            "a session cannot be started by hand: start it with the tools of `sweeper agent mcp`"
        ) from None
    return os.path.join(parts[0], parts[1], "session", parts[2])


class Session(Trainer):
    """The loop of a session: waits for orders and executes them, until an order says to finish."""

    advance: Callable[[int], None]
    """The recipe's method that saves a checkpoint if one is due, and then runs a step."""

    def train_steps(self) -> int:
        """Execute orders. A run without orders for `idle_minutes` finishes by itself."""
        self.orders = Orders(session_folder(os.environ))
        last = self.run.last_state or {}
        self.number, self.step = int(last.get("order", 1)), self.run.start_step
        self.begun = int(last.get("order_begun", self.step))
        self.saved_at, self.last_row = self.step, dict[str, Any]()
        self.begin()
        last_order = time.monotonic()
        self.report(None)
        while self.stop.signum is None:
            order = self.orders.order(self.number)
            if order is None:
                if time.monotonic() - last_order > 60 * self.config.idle_minutes:
                    print(
                        f"finished: no order for {self.config.idle_minutes:g} minutes", flush=True
                    )
                    break
                time.sleep(_LOOK_SECONDS)
                continue
            if order["kind"] == "finish":
                break
            self.carry_out(order)
            if self.stop.signum is None:
                self.number += 1
                self.begun, last_order = self.step, time.monotonic()
                self.report(None)
        return self.step

    @abstractmethod
    def begin(self) -> None:
        """Prepare to train and sample with the current weights."""

    @abstractmethod
    def take(self, conversations: Sequence[tasks.Conversation] | None) -> None:
        """Set the data of the next steps. None means the data in the session's configuration."""

    @abstractmethod
    def sampler_now(self) -> Any:
        """Return a future of a client that samples with the current weights."""

    def report(self, order: Mapping[str, Any] | None, done: int = 0) -> None:
        """Write progress.json: the current `order`, if any, and how many of its steps are done."""
        doing = None if order is None else order["kind"]
        steps = 0 if order is None else order.get("steps", 0)
        shown = {key: self.last_row[key] for key in self.shown if key in self.last_row}
        now = {"order": self.number, "doing": doing, "done": done, "steps": steps}
        self.orders.put_progress(**now, step=self.step, metrics=shown, pid=os.getpid())

    def carry_out(self, order: Mapping[str, Any]) -> None:
        """Execute an order and write its answer. A resumed run also executes answered orders, to
        restore the weights. It skips answered orders that only sample or that have failed."""
        before = self.orders.answer(self.number)
        if before is not None and ("error" in before or order["kind"] == "sample"):
            return
        handlers: dict[str, Callable[[Mapping[str, Any]], dict[str, Any] | None]] = {
            "train": self.do_train,
            "sample": self.do_sample,
            "save": self.do_save,
            "load": self.do_load,
        }
        self.report(order, self.step - self.begun)
        try:
            if order["kind"] not in handlers:
                raise Refused(
                    f"{order['kind']!r} is not an order: use {', '.join(handlers)} or finish"
                )
            result = handlers[order["kind"]](order)
        except Refused as error:
            result = {"error": str(error)}
        except (Diverged, JudgeFailed) as error:  # the next start skips this order
            back = "the session restarts from its last checkpoint, without this order"
            self.orders.put_answer(self.number, {"error": f"{error}; {back}"})
            raise
        if result is not None:
            self.orders.put_answer(self.number, {"step": self.step, **result})

    def do_train(self, order: Mapping[str, Any]) -> dict[str, Any] | None:
        """Train the steps of an order and return the answer; None if a signal stops the training.
        A resumed run trains only the order's steps after the checkpoint."""
        last = self.begun + order["steps"]
        if last > self.config.max_steps:
            remaining = self.config.max_steps - self.begun
            raise Refused(
                f"max_steps={self.config.max_steps} leaves {remaining} steps. For more, begin a "
                "session with a larger max_steps from a checkpoint of this session"
            )
        self.take(self.conversations(order.get("data")))
        while self.step < last:
            if self.stop.signum is not None:
                return None
            self.advance(self.step)
            self.step += 1
            self.report(order, self.step - self.begun)
            self.save_by_itself()
        rows = [row for row in self.run.read_metrics() if self.begun <= row["step"] < last]
        columns = ("step", *self.shown)
        shown = [{key: row[key] for key in columns if key in row} for row in rows[-_MOST_ROWS:]]
        return {"steps": last - self.begun, "rows": shown, "metrics": rows[-1] if rows else {}}

    def conversations(self, data: Sequence[Any] | None) -> list[tasks.Conversation] | None:
        """Parse `data`, the conversations that a client sent with an order. Return None if there
        are none. Raises `Refused` for invalid data."""
        if not data:
            return None
        try:
            return [_conversation(values, f"data[{n}]") for n, values in enumerate(data)]
        except service.RecipeError as error:
            raise Refused(str(error)) from None

    def save_by_itself(self) -> None:
        """Save a checkpoint if at least `checkpoint_steps` steps are unsaved and the last reward
        is not below `checkpoint_reward`. If `checkpoint_steps` is 0, do nothing."""
        config = self.config
        threshold = config.checkpoint_reward
        good = threshold is None or self.last_row.get(_REWARD, threshold) >= threshold
        if (
            config.checkpoint_steps
            and self.step - self.saved_at >= config.checkpoint_steps
            and good
        ):
            self.record(self.step, self.save(self.step))

    def do_sample(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Sample answers with the current weights."""
        import tinker

        default_seed = samplers.seed_of(f"order/{self.config.seed}/{self.number}")
        seed = order.get("seed")
        sampler = self.wait(self.sampler_now())
        requests: list[Any] = []
        for text in order["prompts"]:
            tokens, end = chat.render_prompt(self.tokenizer, [{"role": "user", "content": text}])
            params = tinker.SamplingParams(
                max_tokens=order["max_tokens"],
                temperature=order["temperature"],
                seed=default_seed if seed is None else seed,
                stop=[end],
            )
            prompt = tinker.ModelInput.from_ints(tokens)
            requests.append(sampler.sample(prompt, order["count"], params))
        return {"samples": [[self.plain(s) for s in self.wait(r).sequences] for r in requests]}

    def plain(self, sequence: "tinker.SampledSequence") -> dict[str, Any]:
        """Return a JSON object with the text of a sampled answer, and whether the answer ended."""
        text = self.tokenizer.decode(sequence.tokens, skip_special_tokens=True).strip()
        return {"text": text, "ended": sequence.stop_reason == "stop"}

    def do_save(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Save a permanent checkpoint, both for further training and for sampling."""
        name = order["name"]
        state = self.training.save_state(name)
        sampler = self.training.save_weights_for_sampler(name)
        paths = {"state_path": self.wait(state).path, "sampler_path": self.wait(sampler).path}
        self.run.record_checkpoint({"name": name, "batch": self.step, **paths} | self.marks)
        self.saved_at = self.step
        return {"checkpoint": name, **paths}

    def do_load(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Load other weights with their optimizer state. The step number does not change."""
        client = self.connection.client
        try:
            request = client.create_training_client_from_state_with_optimizer(
                order["path"], user_metadata=self.about
            )
            self.training = self.wait(request)
        except Exception as error:
            cause = service.service_error(error)
            if cause is None:
                raise
            reason = " ".join(str(cause).split())[:500]
            raise Refused(f"these weights cannot be loaded: {reason}") from None
        self.begin()
        return {"loaded": order["path"]}

    def finish(self, step: int) -> None:
        """Finish the run (see `Trainer.finish`), then answer the order `finish`. The answer is
        written even if no client has sent this order."""
        super().finish(step)
        last = self.run.last_record or {}
        paths = {key: last[key] for key in ("state_path", "sampler_path") if key in last}
        result = {"finished": True, "step": step, "metrics": self.last_row, **paths}
        self.orders.put_answer(self.number, result)

    def record(
        self, step: int, saved: "tinker.APIFuture[tinker.types.SaveWeightsResponse]"
    ) -> None:
        """See `Trainer.record`."""
        super().record(step, saved)
        self.saved_at = step

    def is_saved(self, step: int) -> bool:
        """Return whether the run started at this step, or saved its last checkpoint at this step.
        If an order has loaded other weights since then, the result is still True, because a resumed
        run loads the weights again."""
        return step == self.saved_at

    def save_due(self, step: int) -> bool:
        """Return whether a checkpoint is due and does not exist yet."""
        return super().save_due(step) and not self.is_saved(step)

    def log(self, step: int, metrics: dict[str, Any]) -> None:
        """Log the metrics of a step, and keep them in `last_row`."""
        self.last_row = {"step": step, **metrics}
        super().log(step, metrics)

    @property
    def marks(self) -> dict[str, Any]:
        """The values of `Trainer.marks`, the number of the current order, and the step at which the
        order began."""
        return super().marks | {"order": self.number, "order_begun": self.begun}


def _conversation(values: Any, where: str) -> tasks.Conversation:
    """Parse one conversation that a client sent with an order. Raises RecipeError for an invalid
    conversation or an unknown key."""
    row = data_files.Row(values, where)
    messages = tasks.conversation(row)
    if unused := row.unused():
        raise row.wrong(f'"{unused[0]}" is not used: leave it out')
    return messages
