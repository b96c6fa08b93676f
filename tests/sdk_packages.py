#!/usr/bin/env python3
"""The TypeScript SDK with the real clients and frameworks, a real server and the scripted model of examples/model-server:
jobs whose worker is killed, and answers that are streams.

Prints `ok NAME` or `not ok NAME` for each test. tests/oracles provides Node; the packages are installed below build/.
  sdk_packages.py [WORDS]   only tests whose name contains WORDS
"""
import json
import os
import pathlib
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "scripts"))
import npm_packages  # noqa: E402
import oracles  # noqa: E402
from shared.code_world import CodeWorld  # noqa: E402
from shared.home import run_tests, until  # noqa: E402
from shared.program import ROOT  # noqa: E402

TESTS = []
SLOW = "This answer takes its time: one, two, three, four, five."


def test(function):
    TESTS.append(function)
    return function


class World(CodeWorld):
    """With a worker of the agents of sdk/typescript/test/packages, and a model server."""

    def __init__(self):
        sdk = npm_packages.sdk()
        modules = sdk / "test/packages/node_modules"
        if not modules.is_symlink():
            source = npm_packages.SDK / "test/packages"
            modules.symlink_to(npm_packages.installed(source, "sdk_typescript_packages") / "node_modules")
        super().__init__([oracles.node(), sdk / "src/worker_main.ts", modules.parent / "agents.ts"], {})
        self.journal = self.folder / "model.journal"
        self.model = subprocess.Popen([oracles.node(), ROOT / "examples/model-server/server.mjs", "--journal", self.journal],
                                      stdout=subprocess.PIPE, text=True)
        self.model_url = self.model.stdout.readline().split()[-1]

    def __exit__(self, *more):
        self.model.kill()
        self.model.wait()
        super().__exit__(*more)

    def begins(self, agent, name, prompt="", model="chat"):
        self.create(agent, {"url": self.model_url, "prompt": prompt, "model": model}, name)

    def answers(self):
        """How many requests the model server had."""
        return len(self.lines("model.journal"))

    def ended(self, name, result):
        job = self.reaches(name, "completed", "failed", "parked")
        assert job.get("result") == result, (job, self.output())
        self.verify(name)

    def events(self, name, kind):
        code, out, error = self.command("events", name)
        assert code == 0, (out, error)
        return [event["payload"] for event in json.loads(out)["events"] if event["type"] == kind]


RESULTS = {
    "openai": ["Answer 1 to: openai one", "Answer 1 to: openai two"],
    "anthropic": ["Answer 1 to: anthropic one", "Answer 1 to: anthropic two"],
    "ai_sdk": ["It is written down.", "It is written down."],
    "langgraph": ["Answer 1 to: langgraph one", "yes", "Answer 1 to: langgraph two"],
    "openai_agents": "It is written down.",
}


@test
def a_killed_worker_of_each_client_and_framework_continues_its_job():
    with World() as world:
        world.start_server()
        world.start_worker()
        for agent in RESULTS:
            world.begins(agent, agent)
        for agent in RESULTS:
            world.reaches(agent, "waiting")
        before = world.answers()
        assert before == 6 and world.lines("calls.txt") == ["ai_sdk milk"], (before, world.lines("calls.txt"))
        world.kill_worker()
        world.start_worker()
        for agent in ("openai", "anthropic", "ai_sdk"):
            assert world.command("signal", agent, "go", "1")[0] == 0
        for agent in ("langgraph", "openai_agents"):
            request, = world.request(f"/api/requests?job={agent}")["requests"]
            key = request["detail"]["correlation_key"]
            answer = {"correlation_key": key, "wait_type": "human", "payload": "yes"} if agent == "langgraph" else \
                {"correlation_key": key, "wait_type": "human", "payload": {"decision": "approve"}}
            assert world.request(f"/api/jobs/{agent}/signal", answer) is not None, request
        for agent, result in RESULTS.items():
            world.ended(agent, result)
        assert sorted(world.lines("calls.txt")) == ["ai_sdk bread", "ai_sdk milk", "openai_agents cheese"]
        assert world.answers() == 12, world.answers()  # none was requested twice


@test
def a_stream_reaches_the_code_while_it_comes():
    with World() as world:
        world.start_server()
        world.start_worker()
        world.begins("streams", "streams-1", "slow")
        world.ended("streams-1", [SLOW, SLOW])
        for name in ("openai", "anthropic"):
            lines = [line.split(" ", 2) for line in world.lines("calls.txt") if line.startswith(name)]
            pieces, end, after = lines[:-2], lines[-2], lines[-1]
            assert end[2] == "the end" and after[2] == "after the first piece", lines
            assert "".join(piece[2] for piece in pieces).replace(" ", "") == SLOW.replace(" ", ""), lines
            assert int(end[1]) - int(pieces[0][1]) > 1000, lines  # not in one piece
        assert world.answers() == 2
        results = [one.get("result") for one in world.events("streams-1", "tool_invocation_finished")]
        bodies = [one["body"] for one in results if one is not None and "partial" not in one]
        assert len(bodies) == 2 and all("data: " in body for body in bodies), results


@test
def a_worker_that_is_killed_in_a_stream_leaves_nothing_of_it():
    with World() as world:
        world.start_server()
        world.start_worker()
        world.begins("streams", "streams-1", "slow")
        until(lambda: len(world.lines("calls.txt")) > 2)
        world.kill_worker()
        assert not any("after" in line for line in world.lines("calls.txt")), world.lines("calls.txt")
        assert world.events("streams-1", "tool_invocation_finished") == []
        world.start_worker()
        world.ended("streams-1", [SLOW, SLOW])
        assert world.answers() == 3


@test
def a_stream_that_breaks_is_recorded_as_far_as_it_was_given():
    with World() as world:
        world.start_server()
        world.start_worker()
        world.begins("broken", "broken-1", "cut", "storm")
        world.reaches("broken-1", "waiting")
        before = world.answers()
        world.kill_worker()
        world.start_worker()
        assert world.command("signal", "broken-1", "go", "1")[0] == 0
        job = world.reaches("broken-1", "completed", "failed", "parked")
        assert job["status"] == "completed" and job["result"]["error"] == "reset" and job["result"]["text"], (job, world.output())
        assert world.answers() == before == 1  # it is not tried again
        finished, = world.events("broken-1", "tool_invocation_finished")
        assert finished["result"]["partial"]["code"] == "reset", finished
        world.verify("broken-1")


if __name__ == "__main__":
    sys.exit(run_tests("sdk packages", TESTS, " ".join(sys.argv[1:])))
