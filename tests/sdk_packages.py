#!/usr/bin/env python3
"""The TypeScript SDK with the real clients and frameworks, a real server and the scripted model of examples/model-server:
jobs whose worker is killed, and, also of the Python SDK, answers that are streams.

Prints `ok NAME` or `not ok NAME` for each test. tests/oracles provides Node; the packages are installed below build/.
  sdk_packages.py [WORDS]   only tests whose name contains WORDS
"""
import json
import os
import pathlib
import sys
import urllib.request

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "scripts"))
import npm_packages  # noqa: E402
import oracles  # noqa: E402
from shared.code_world import CodeWorld  # noqa: E402
from shared.home import run_tests, until  # noqa: E402
from shared.program import ROOT  # noqa: E402
from shared.python import python_with_httpx  # noqa: E402
from shared.scripted_model import scripted_model  # noqa: E402

TESTS = []
AGENTS_YAML = """
aetheris: 1
models:
  main: { provider: openai, base_url: "https://api.example.com/v1", api_key: "secret:KEY", model: chat, price: { input: 1, output: 2 } }
tools: { echo: { native: echo, effect: read } }
agents: { echo: { plan: [ { id: e, tool: echo } ] } }
"""
SECRET = "correct/horse+battery"
SLOW = "This answer takes its time: one, two, three, four, five."


def test(function):
    TESTS.append(function)
    return function


def typescript():
    """The worker of the agents of sdk/typescript/test/packages, and its environment."""
    sdk = npm_packages.sdk()
    modules = sdk / "test/packages/node_modules"
    if not modules.is_symlink():
        source = npm_packages.SDK / "test/packages"
        modules.symlink_to(npm_packages.installed(source, "sdk_typescript_packages") / "node_modules")
    return [oracles.node(), sdk / "src/worker_main.ts", modules.parent / "agents.ts"], {}


def python():
    """As typescript, of sdk/python."""
    sdk = ROOT / "sdk/python"
    words = [python_with_httpx() or sys.executable, "-m", "aetheris", sdk / "tests/support/stream_agents.py"]
    return words, {"PYTHONPATH": str(sdk), "PYTHONDONTWRITEBYTECODE": "1"}


class World(CodeWorld):
    """With a model server."""

    def __init__(self, worker=typescript, scenario=None):
        """`scenario` of the model server, instead of those of the examples: the model `cut`."""
        words, env = worker()
        files = {} if scenario is None else {"cut.json": json.dumps(scenario)}
        super().__init__(words, {"agents.yaml": AGENTS_YAML, **files}, {"READERS_KEY": SECRET, **env})
        self.journal = self.folder / "model.journal"
        more = [] if scenario is None else ["--scenario", self.folder / "cut.json"]
        self.model = scripted_model("--journal", self.journal, *more)
        self.model_url = self.model.__enter__()

    def __exit__(self, *more):
        self.model.__exit__(None, None, None)
        super().__exit__(*more)

    def begins(self, agent, name, prompt="", model="chat", **more):
        data = {"url": self.model_url, "prompt": prompt, "model": model}
        body = {"agent": agent, "input": data, "id": name, "idempotency_key": name, **more}
        until(lambda: self.request("/api/jobs", body))

    def follow(self, name):
        """The events of the job's stream, until its end, as (name, data)."""
        request = urllib.request.Request(f"http://{self.address}/api/jobs/{name}/events", headers={"Accept": "text/event-stream"})
        kind = None
        with urllib.request.urlopen(request, timeout=60) as stream:
            for line in stream:
                word, _, value = line.decode().rstrip("\n").partition(": ")
                if word == "event":
                    kind = value
                elif word == "data":
                    yield kind, json.loads(value)

    def answers(self):
        """How many requests the model server had."""
        return len(self.lines("model.journal"))

    def ended(self, name, result):
        job = self.reaches(name, "completed", "failed", "parked")
        assert job.get("result") == result, (job, self.output())
        self.verify(name)


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
        world.start_both()
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


def streamed(world, name):
    """Both streams of a job reached its code while they came, and what follows from their first pieces was sent later."""
    world.ended(name, [SLOW, SLOW])
    for dialect in ("openai", "anthropic"):
        lines = [line.split(" ", 2) for line in world.lines("calls.txt") if line.startswith(dialect)]
        pieces, end, after = lines[:-2], lines[-2], lines[-1]
        assert end[2] == "the end" and after[2] == "after the first piece", lines
        assert "".join(piece[2] for piece in pieces).replace(" ", "") == SLOW.replace(" ", ""), lines
        assert int(end[1]) - int(pieces[0][1]) > 1000, lines  # not in one piece
    results = [one["payload"].get("result") for one in world.events(name, "tool_invocation_finished")]
    bodies = [one["body"] for one in results if one is not None and "partial" not in one]
    assert len(bodies) == 2 and all("data: " in body for body in bodies), results


@test
def a_stream_reaches_the_code_while_it_comes():
    agents_of = {typescript: ["streams"], python: ["streams", "streams_sync"]}
    if python_with_httpx():
        agents_of[python] += ["streams_httpx", "streams_host"]
    for worker, agents in agents_of.items():
        with World(worker) as world:
            world.start_both()
            for number, agent in enumerate(agents, 1):
                world.begins(agent, agent, "slow")
                streamed(world, agent)
                assert world.answers() == 2 * number
                (world.folder / "calls.txt").unlink()


@test
def readers_get_the_text_of_a_stream_while_it_comes():
    with World() as world:
        world.start_server()
        world.start_worker()
        world.begins("streams", "streams-1", "slow")
        texts, pieces, is_open = {}, {}, set()
        for kind, data in world.follow("streams-1"):
            call = (data.get("payload") or data).get("invocation_id")
            if kind == "tool_invocation_started":
                is_open.add(call)
            elif kind == "tool_invocation_finished":
                is_open.discard(call)
            elif kind == "said":
                assert call in is_open and data["offset"] == len(texts.get(call, "")), data
                texts[call] = texts.get(call, "") + data["text"]
                pieces[call] = pieces.get(call, 0) + 1
        assert list(texts.values()) == [SLOW, SLOW], texts  # the text of the model, without the frames of its API
        assert min(pieces.values()) > 3, pieces
        world.ended("streams-1", [SLOW, SLOW])
        world.begins("streams", "streams-2", f"secret {SECRET} end")
        code, out, _ = world.command("events", "streams-2", "-f", "--partial-output")
        shown = [json.loads(line)["said"]["text"] for line in out.splitlines() if "said" in line]
        # The first answer may have come before the reader.
        assert code == 0 and "".join(shown).endswith("Answer 1 to: secret [secret READERS_KEY] end"), out[-2000:]
        assert SECRET not in "".join(shown)


def usages(world, name):
    """What the functions of a job used of models."""
    payloads = [event["payload"] for event in world.events(name, "tool_invocation_finished")]
    return [payload["usage"] for payload in payloads if "usage" in payload]


@test
def tokens_and_costs_of_each_client_count_for_the_budget():
    with World() as world:
        world.start_server()
        world.start_worker()
        for agent in ("openai", "anthropic"):
            world.begins(agent, agent, budget={"tokens": 5, "cost": "0.000001"})
            job = world.reaches(agent, "waiting", "parked")
            assert job["usage"]["total_tokens"] > 5 and job["usage"]["cost_micros"] > 0, job["usage"]
            assert job["budget"]["spent"]["tokens"] == job["usage"]["total_tokens"], job["budget"]
            assert world.command("signal", agent, "go", "1")[0] == 0
            job = world.reaches(agent, "parked")
            assert job["parked"]["reason"] == "budget_exceeded", job
        assert world.answers() == 2
        for agent in ("openai", "anthropic"):
            code, out, error = world.command("budget", agent, "--tokens", "1000", "--cost", "1")
            assert code == 0, (out, error)
            world.ended(agent, RESULTS[agent])
        used = usages(world, "openai")
        assert [one["model"] for one in used] == ["chat", "chat"] and all(one["cost_micros"] for one in used), used


@test
def a_stream_without_usage_is_charged_an_estimate():
    with World() as world:
        world.start_server()
        world.start_worker()
        world.begins("streams", "streams-1", "quick", budget={"tokens": 1_000})
        world.ended("streams-1", ["Answer 1 to: quick"] * 2)
        chat, messages = usages(world, "streams-1")
        assert chat["incomplete"] and chat["total_tokens"] > 20 and chat["cost_micros"] == 2 * chat["total_tokens"], chat
        assert messages["output_tokens"] and "incomplete" not in messages, messages
        job = world.job("streams-1")
        total = chat["total_tokens"] + messages["input_tokens"] + messages["output_tokens"]
        assert job["budget"]["spent"]["tokens"] == total, (job["budget"], total)


@test
def a_worker_that_is_killed_in_a_stream_leaves_nothing_of_it():
    for worker, agent in ((typescript, "streams"), (python, "streams")):
        with World(worker) as world:
            world.start_both()
            world.begins(agent, "streams-1", "slow")
            until(lambda: len(world.lines("calls.txt")) > 2)
            world.kill_worker()
            assert not any("after" in line for line in world.lines("calls.txt")), world.lines("calls.txt")
            assert world.events("streams-1", "tool_invocation_finished") == []
            world.start_worker()
            world.ended("streams-1", [SLOW, SLOW])
            assert world.answers() == 3


# After three pieces, which the code has by then.
CUT = {"turns": [{"fail": {"cut_after": 3}, "pace_ms": 150, "text": "This time it is said to the end."}]}


@test
def a_stream_that_breaks_is_recorded_as_far_as_it_was_given():
    for worker, agent in ((typescript, "broken"), (python, "broken"), (python, "broken_sync")):
        with World(worker, CUT) as world:
            world.start_both()
            world.begins(agent, "broken-1", "cut", "cut")
            world.reaches("broken-1", "waiting")
            before = world.answers()
            world.kill_worker()
            world.start_worker()
            assert world.command("signal", "broken-1", "go", "1")[0] == 0
            job = world.reaches("broken-1", "completed", "failed", "parked")
            assert job["status"] == "completed" and job["result"]["error"] == "reset" and job["result"]["text"], (job, world.output())
            assert world.answers() == before == 1  # it is not tried again
            finished, = world.events("broken-1", "tool_invocation_finished")
            assert finished["payload"]["result"]["partial"]["code"] == "reset", finished
            world.verify("broken-1")


if __name__ == "__main__":
    sys.exit(run_tests("sdk packages", TESTS, " ".join(sys.argv[1:])))
