"""An agent without a model, for `sweeper agent start`: it runs a study with sweeper's tools. If the
first line of its prompt contains `hang`, it hangs after the launch; `fail`: its first start fails.

    python3 mcp_agent.py MCP_JSON MODEL
"""

# Standard library only: it also runs in a container.
import json
import os
import subprocess
import sys
import time

GRID = """\
recipe: sft
service: local
base: {model_name: tiny/qwen3, task: sorting, max_steps: 2, eval_every: 2}
grid: {learning_rate: [1e-3, 3e-2]}
seeds: 2
metric: {name: test/nll, goal: minimize}
launch: {backend: local, max_parallel: 2}
"""


class Tools:
    """A client of the server in a configuration file, over stdio."""

    def __init__(self, path: str) -> None:
        with open(path) as file:
            server = json.load(file)["mcpServers"]["sweeper"]
        self._server = subprocess.Popen(
            [server["command"], *server["args"]], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._number = 0
        client = {"name": "scripted", "version": "1"}
        self._ask("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=client)
        self._send({"method": "notifications/initialized"})

    def _send(self, message: dict) -> None:
        self._server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self._server.stdin.flush()

    def _ask(self, method: str, **params: object) -> dict:
        self._number += 1
        self._send({"id": self._number, "method": method, "params": params})
        while True:
            answer = json.loads(self._server.stdout.readline())
            if answer.get("id") == self._number:
                return answer["result"]

    def call(self, tool: str, **given: object) -> dict:
        result = self._ask("tools/call", name=tool, arguments=given)
        if result.get("isError"):
            return {"error": result["content"][0]["text"]}
        return result["structuredContent"]


def say(what: str, **more: object) -> None:
    print(json.dumps({"what": what, **more}), flush=True)


def main() -> int:
    prompt = sys.stdin.read()
    say("begun", model=sys.argv[2], again="You were started before" in prompt)
    say("environment", names=sorted(os.environ), secret=os.environ.get("THEIR_KEY", ""))
    with open(".claude/skills/sweeper-research/SKILL.md") as file:
        say("skill", title=file.read().split("\n# ")[1].split("\n")[0])
    tools = Tools(sys.argv[1])
    with open("study.yaml", "w") as file:
        file.write(GRID)
    if "fail" in prompt.split("\n")[0] and "You were started before" not in prompt:
        return 3
    say("power", seeds=tools.call("power", cells=2, lead=3.0)["seeds_for_lead"])
    planned = tools.call("plan", grid="study.yaml")
    say("plan", runs=planned["runs_to_start"], left=planned["budget_left"])
    started = tools.call("launch", grid="study.yaml", why="which rate")
    say("launch", **{key: started.get(key) for key in ("launched", "budget_left", "error")})
    say("beyond", error=tools.call("launch", grid="study.yaml", overrides=["seeds=50"])["error"])
    if "hang" in prompt.split("\n")[0]:
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
        say("hangs")
        time.sleep(1000)
    now = tools.call("wait", sweep="study", seconds=60)
    while now["at_work"]:
        now = tools.call("wait", sweep="study", seconds=60, changed=now["changed"])
    verdict = tools.call("verdict", sweep="study")
    say("verdict", states=now["states"], kind=verdict["kind"], best=verdict["best"])
    tools.call("note", target="study", text="the study is over")
    with open("report.md", "w") as file:
        file.write("# Study\n")
    return 0


sys.exit(main())
