"""An agent for the package harbor that executes given commands, chosen by the trial's number."""

import json
from typing import Any

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment
from harbor.models.agent.context import AgentContext


class Scripted(BaseAgent):
    """`commands`: a list of commands per trial of each task, by the last part of its name."""

    @staticmethod
    def name() -> str:
        return "scripted"

    def version(self) -> str:
        return "1"

    def __init__(self, logs_dir: Any, commands: dict[str, list[list[str]]], **more: Any) -> None:
        super().__init__(logs_dir=logs_dir, **more)
        trial = logs_dir.parent.name  # sweeper-door__3-0
        task, _, number = trial.partition("__")
        self._commands = commands[task.rpartition("-")[2]][int(number.partition("-")[0])]

    async def setup(self, environment: BaseEnvironment) -> None:
        pass

    async def run(
        self, instruction: str, environment: BaseEnvironment, context: AgentContext
    ) -> None:
        steps: list[dict[str, Any]] = [{"step_id": 1, "source": "user", "message": instruction}]
        for command in self._commands:
            result = await environment.exec(command, timeout_sec=20)
            step = {"step_id": len(steps) + 1, "source": "agent", "message": command}
            steps.append(step | {"observation": {"results": [{"content": result.stdout}]}})
        trajectory = {"schema_version": "ATIF-v1.6", "session_id": "scripted", "steps": steps}
        trajectory["agent"] = {"name": "scripted", "version": "1"}
        (self.logs_dir / "trajectory.json").write_text(json.dumps(trajectory))
