#!/usr/bin/env python3
"""The protocols of both providers, against a scripted server that validates requests like the providers.

Plans use Chat Completions and Messages; the journal of the server has every request with its time.
Prints `ok NAME` or `not ok NAME` for each test. tests/shared/program.py finds the program.
  model_providers.py [WORDS]   only tests whose name contains WORDS
"""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
from datetime import datetime

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import oracles  # noqa: E402
from shared.home import run_tests  # noqa: E402
from shared.program import BIN  # noqa: E402

ROOT = oracles.ROOT
SERVER = ROOT / "examples/model-server/server.mjs"
SCENARIOS = [ROOT / f"examples/model-server/scenarios/{name}.json" for name in ("storm", "structured")]
PATHS = {"openai": "/v1/chat/completions", "anthropic": "/v1/messages"}
KEY = "sk-canary-4711-never-shown"
PATIENCE = 60
TALK = {"turns": [{"when": {"prompt": "refuse"}, "refuse": "I do not talk about that."},
                  {"text": "You said: ${/prompt/text}; I was told: ${/system}."}]}
WEATHER = """{ type: object, additionalProperties: false, required: [city, degrees],
                     properties: { city: { type: string }, degrees: { type: number } } }"""
AGENTS = """\
aetheris: 1
models:
  talk: {{ provider: {provider}, base_url: "${{ env.MODELS }}/v1", api_key: "secret:MODEL_KEY", model: talk,
          price: {{ input: 2.5, output: "10.00", cached: {cached} }} }}
  facts: {{ provider: {provider}, base_url: "${{ env.MODELS }}/v1/", api_key: "secret:MODEL_KEY", model: structured,
           price: {{ input: 1000, output: 1000 }} }}
  storm: {{ provider: {provider}, base_url: "${{ env.MODELS }}/v1", api_key: "secret:MODEL_KEY", model: storm,
           retry: {{ max_attempts: 3, initial_backoff: 10ms, retry_on: [connect, reset, 429, 5xx] }} }}
  hasty: {{ provider: {provider}, base_url: "${{ env.MODELS }}/v1", api_key: "secret:MODEL_KEY", model: storm, timeout: 2s,
           retry: {{ max_attempts: 9, initial_backoff: 10ms, retry_on: [timeout] }} }}
  once: {{ provider: {provider}, base_url: "${{ env.MODELS }}/v1", api_key: "secret:MODEL_KEY", model: storm,
          retry: {{ max_attempts: 1 }} }}
  free: {{ provider: {provider}, base_url: "${{ env.MODELS }}/v1", api_key: "secret:MODEL_KEY", model: talk }}
agents:
  talk:
    plan:
      - {{ id: one, llm: {{ model: talk, system: Be brief., prompt: "Tell me about ${{ .input.x }}" }} }}
      - id: two
        needs: [one]
        llm:
          model: talk
          temperature: 0.5
          max_tokens: 100
          messages:
            - {{ role: system, content: Be brief. }}
            - {{ role: user, content: "Tell me about ${{ .input.x }}" }}
            - {{ role: assistant, content: "${{ .steps.one.text }}" }}
            - {{ role: user, content: Go on. }}
            - {{ role: user, content: Please. }}
    output: "${{ .steps.two.text }}"
  look:
    plan:
      - id: see
        llm:
          model: free
          messages:
            - role: user
              content:
                - {{ type: text, text: "What is ${{ .input.x }}?" }}
                - {{ type: image, url: "https://pictures.example/${{ .input.x }}.png" }}
                - {{ type: image, url: "data:image/png;base64,iVBORw0KGgo=" }}
    output: "${{ .steps.see }}"
  facts:
    plan: [ {{ id: read, llm: {{ model: facts, prompt: "${{ .input.x }}", schema: {weather} }} }} ]
    output: "${{ .steps.read }}"
  strictly:
    plan: [ {{ id: read, llm: {{ model: facts, prompt: "${{ .input.x }}", schema: {weather}, repair: false }} }} ]
    output: "${{ .steps.read }}"
  storm: {{ plan: [ {{ id: a, llm: {{ model: storm, prompt: "${{ .input.x }}" }} }} ], output: "${{ .steps.a.text }}" }}
  hasty: {{ plan: [ {{ id: a, llm: {{ model: hasty, prompt: "${{ .input.x }}" }} }} ], output: "${{ .steps.a.text }}" }}
  once: {{ plan: [ {{ id: a, llm: {{ model: once, prompt: "${{ .input.x }}" }} }} ], output: "${{ .steps.a.text }}" }}
  free: {{ plan: [ {{ id: a, llm: {{ model: free, prompt: "${{ .input.x }}" }} }} ], output: "${{ .steps.a }}" }}
"""
TESTS = []


def both(function):
    """The test, once for each provider."""
    for provider in PATHS:
        def run(provider=provider):
            with Desk(provider) as desk:
                function(desk)
        run.__name__ = f"{function.__name__}_{provider}"
        TESTS.append(run)
    return function


class Desk:
    """A folder with an agents file, and a running server."""

    def __init__(self, provider):
        self.provider = provider
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="aetheris-providers-"))
        self.write()
        (self.path / "talk.json").write_text(json.dumps(TALK))
        self.journal = self.path / "requests.jsonl"
        self.server = subprocess.Popen(
            [oracles.node(), SERVER, "--key", KEY, "--journal", self.journal, "--scenario", *SCENARIOS, self.path / "talk.json"],
            stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("AETHERIS_")}
        self.env |= {"MODELS": self.server.stdout.readline().split()[-1], "MODEL_KEY": KEY}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.send_signal(signal.SIGTERM)
        self.server.wait(PATIENCE)
        self.server.stdout.close()
        shown = b"".join(path.read_bytes() for path in self.path.rglob("*") if path.is_file())
        shutil.rmtree(self.path, ignore_errors=True)
        assert KEY.encode() not in shown, "a file contains the key"

    def write(self, cached="0.25"):
        text = AGENTS.format(provider=self.provider, cached=cached, weather=WEATHER)
        (self.path / "agents.yaml").write_text(text)

    def run(self, *words, code=0, **env):
        done = subprocess.run([BIN, *words], cwd=self.path, env={**self.env, **env}, capture_output=True, text=True,
                              timeout=PATIENCE, stdin=subprocess.DEVNULL)
        assert KEY not in done.stdout + done.stderr, "the key was shown"
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def run_agent(self, agent, x, job="j", code=0, **env):
        return self.run("run", "agents.yaml", agent, "--job-id", job, "--input", json.dumps({"x": x}), code=code, **env)

    def job(self, job="j"):
        assert self.run("verify", job, "--json").returncode == 0
        events = json.loads(self.run("events", job, "--json").stdout)["events"]
        return json.loads(self.run("job", job, "--json").stdout), events

    def requests(self):
        return [json.loads(line) for line in self.journal.read_text().splitlines()]


def committed(events):
    return [e["payload"] for e in events if e["type"] == "command_committed"]


def price_of(usage, cached="0.25"):
    """The cost in millionths, rounded once, half up, with integers."""
    read = usage.get("cached_tokens", 0)
    parts = (usage["input_tokens"] - read) * 2_500_000 + read * int(float(cached) * 1e6) + usage["output_tokens"] * 10_000_000
    return (parts + 500_000) // 1_000_000


@both
def a_plan_uses_the_providers_protocol_and_records_one_format(desk):
    result = desk.run_agent("talk", "rain").stdout
    assert result == "You said: Tell me about rain; I was told: Be brief..\n", result
    requests = desk.requests()
    assert [(a["path"], a["model"], a["answer"]) for a in requests] == [(PATHS[desk.provider], "talk", "text")] * 2, requests
    assert len({a["headers"]["idempotency-key"] for a in requests}) == 2, requests
    if desk.provider == "anthropic":
        assert {a["headers"]["anthropic-version"] for a in requests} == {"2023-06-01"}, requests
    assert desk.run_agent("talk", "rain").stdout == result and len(desk.requests()) == 2, "the same job makes no further call"
    job, events = desk.job()
    for one in committed(events):
        assert one["llm_provider"] == desk.provider and one["llm_model"] == "talk", one
    recorded = [e["payload"]["arguments"] for e in events if e["type"] == "tool_invocation_started"]
    assert recorded[0].get("max_tokens") == (4096 if desk.provider == "anthropic" else None), recorded[0]
    assert recorded[1]["max_tokens"] == 100 and len(recorded[1]["messages"]) == 5, recorded[1]
    answers = [e["payload"]["result"] for e in events if e["type"] == "tool_invocation_finished"]
    assert [a["finish_reason"] for a in answers] == ["stop", "stop"], answers


@both
def images_of_a_plan_are_accepted_by_the_provider(desk):
    answer = json.loads(desk.run_agent("look", "cat").stdout)
    assert answer["text"].startswith("You said: What is cat?"), answer
    _, events = desk.job()
    parts = [e["payload"]["arguments"] for e in events if e["type"] == "tool_invocation_started"][0]["messages"][0]["content"]
    assert parts[1] == {"type": "image", "url": "https://pictures.example/cat.png"}, parts


@both
def an_answer_that_violates_its_schema_is_repaired_once_or_fails(desk):
    answer = json.loads(desk.run_agent("facts", "at once, please").stdout)
    assert answer["json"] == {"city": "Oslo", "degrees": 21} and json.loads(answer["text"]) == answer["json"], answer
    assert len(desk.requests()) == 1, "a valid answer is not requested again"
    for number, (prompt, why) in enumerate((("the weather", "is invalid JSON"), ("a wrong shape", "breaks the schema"))):
        name = f"mended-{number}"
        before = len(desk.requests())
        answer = json.loads(desk.run_agent("facts", prompt, name).stdout)
        assert answer["json"] == {"city": "Oslo", "degrees": 21}, answer
        desk.run_agent("facts", prompt, name)
        assert len(desk.requests()) == before + 2, "there was a third call"
        job, events = desk.job(name)
        answers = [e["payload"]["result"] for e in events if e["type"] == "tool_invocation_finished"]
        assert answers[0]["invalid"].startswith(why) and "invalid" not in answers[1], answers
        choices = [e["payload"]["payload"] for e in events if e["type"] == "decision_recorded"]
        assert choices[0]["repair"] == answers[0]["invalid"] and "repair" not in choices[1], choices
        assert [one["turn"] for one in desk.requests()[-2:]] == [1, 2], "the second call continues the conversation of the first"
        costs = [one["usage"]["cost_micros"] for one in committed(events)]
        assert len(costs) == 2 and job["usage"]["cost_micros"] == sum(costs), (job["usage"], costs)
    for number, (agent, prompt, why, times) in enumerate((("facts", "never", "is invalid JSON", 2), ("strictly", "the weather", "is invalid JSON", 1),
                                                          ("facts", "refuse it", "I do not talk about that.", 1))):
        name = f"bad-{number}"
        before = len(desk.requests())
        done = desk.run_agent(agent, prompt, name, code=1)
        assert "tool_output_invalid" in done.stderr and why in done.stderr, done.stderr
        desk.run_agent(agent, prompt, name, code=1)
        assert len(desk.requests()) == before + times, "the call was repeated"
        job, events = desk.job(name)
        assert job["error"]["code"] == "tool_output_invalid", job
        cost = sum(one["usage"]["cost_micros"] for one in committed(events))
        assert job["usage"]["cost_micros"] == cost > 0, (job["usage"], "an unusable answer has a cost")


@both
def the_retry_after_of_a_provider_is_respected(desk):
    assert desk.run_agent("storm", "rate limit").stdout == "Now there is room.\n"
    requests = desk.requests()
    assert [a["answer"] for a in requests] == ["fail 429", "text"], requests
    times = [datetime.fromisoformat(a["time"].replace("Z", "+00:00")) for a in requests]
    assert (times[1] - times[0]).total_seconds() >= 0.95, times
    assert len({a["headers"]["idempotency-key"] for a in requests}) == 1, requests
    job, events = desk.job()
    failed = [e["payload"] for e in events if e["type"] == "tool_invocation_finished"][0]
    assert failed["retry_after_ms"] == 1000 and failed["error"]["code"] == "http_429", failed
    assert job["usage"]["model_calls"] == 2, job["usage"]


@both
def provider_errors_are_retried_only_as_configured(desk):
    for prompt, expected in (("internal error", "Mended."), ("overloaded", "Now there is time."), ("hang up", "Back again.")):
        before = len(desk.requests())
        assert desk.run_agent("storm", prompt, prompt.replace(" ", "-")).stdout == expected + "\n"
        assert len(desk.requests()) == before + 2, (prompt, desk.requests()[before:])
    before = len(desk.requests())
    done = desk.run_agent("storm", "never", "never", code=1)
    assert "http_503" in done.stderr and len(desk.requests()) == before + 3, done.stderr
    before = len(desk.requests())
    done = desk.run_agent("once", "rate limit", "once", code=1)
    assert "http_429" in done.stderr and len(desk.requests()) == before + 1, done.stderr


@both
def a_silent_provider_times_out_and_is_retried(desk):
    assert desk.run_agent("hasty", "silent").stdout == "Sorry, I was away.\n"
    _, events = desk.job()
    outcomes = [e["payload"]["outcome"] for e in events if e["type"] == "tool_invocation_finished"]
    assert outcomes[0] == "timeout" and outcomes[-1] == "success", outcomes
    assert len(desk.requests()) == len(outcomes) and len({a["headers"]["idempotency-key"] for a in desk.requests()}) == 1


@both
def a_refusal_is_an_answer(desk):
    answer = json.loads(desk.run_agent("free", "refuse this").stdout)
    assert answer["text"] == "" and answer["refusal"] == "I do not talk about that.", answer
    assert answer["finish_reason"] == ("refusal" if desk.provider == "anthropic" else "stop"), answer


@both
def answers_are_priced_by_the_plan_and_not_by_a_later_file(desk):
    desk.run_agent("talk", "rain")
    job, events = desk.job()
    costs = [one["usage"]["cost_micros"] for one in committed(events)]
    assert costs == [price_of(one["usage"]) for one in committed(events)] and all(costs), committed(events)
    assert job["usage"]["cost_micros"] == sum(costs) and job["usage"]["unpriced_calls"] == 0, job["usage"]
    trace = desk.run("trace", "j").stdout
    assert f"cost {sum(costs) / 1e6:.6f}".rstrip("0") in trace, trace
    desk.write(cached="2.25")
    again, _ = desk.job()
    assert again["usage"] == job["usage"], "a new price changed the cost of past calls"
    desk.run_agent("free", "rain", "f")
    free, _ = desk.job("f")
    assert free["usage"]["cost_micros"] == 0 and free["usage"]["unpriced_calls"] == 1, free["usage"]


@both
def a_rejected_api_key_is_reported_and_never_shown(desk):
    done = desk.run_agent("free", "rain", code=1, MODEL_KEY="sk-other-0815")
    assert "http_401" in done.stderr and "sk-other" not in done.stdout + done.stderr, done.stderr


if __name__ == "__main__":
    sys.exit(run_tests("model_providers", TESTS, " ".join(sys.argv[1:])))
