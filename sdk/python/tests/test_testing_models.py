"""The models of aetheris.testing, with the real program: AETHERIS_BIN names it; without it these tests are skipped."""
import datetime
import json
import os
import pathlib
import tempfile
import unittest
import urllib.error
import urllib.request

from aetheris import Failure, agent, testing
from aetheris.testing_models import ModelServer

HAS_PROGRAM = os.path.exists(os.environ.get("AETHERIS_BIN", ""))
CITY = {"type": "object", "additionalProperties": False, "required": ["city"], "properties": {"city": {"type": "string"}}}
PROVIDER = "https://api.openai.com/v1/chat/completions"


@agent("writer", uses=["model:main"])
async def writer(ctx, input):
    text = await ctx.model("main").text(f"Write about {input['topic']}")
    return [text, (await ctx.model("main").json("Which city?", CITY))["city"]]


@agent("sync_writer", uses=["model:main"])
def sync_writer(ctx, input):
    return ctx.model("main").text("one")


@agent("client")
async def client(ctx, input):
    answers = []
    for text in ("one", "two"):
        body = json.dumps({"model": "gpt-4.1", "stream": input.get("stream", False),
                           "messages": [{"role": "user", "content": text}]})
        answer = await ctx.fetch(PROVIDER, method="POST", body=body, effect="read",
                                 headers={"content-type": "application/json", "authorization": "Bearer none"})
        assert answer.url == PROVIDER
        answers.append(answer.text())
    return answers


@agent("caller", uses=["model:main"])
async def caller(ctx, input):
    return await ctx.model("main").generate({"messages": [{"role": "user", "content": "Pay 43 back"}]})


def started(models):
    return testing.start([writer, sync_writer, client, caller], models=models)


@unittest.skipUnless(HAS_PROGRAM, "AETHERIS_BIN does not name the program")
class Models(unittest.TestCase):
    def test_a_function_answers_and_the_calls_are_listed(self):
        requests = []

        async def main(request):
            requests.append(request)
            return {"json": {"city": "Zürich"}} if request.schema else f"About bees — {'long ' * 20}"
        with started({"main": main}) as t:
            job = t.job(writer, {"topic": "bees"})
            self.assertEqual(job.result(), [f"About bees — {'long ' * 20}", "Zürich"])
            first, second = t.calls("model:main")
            self.assertEqual(first.arguments["messages"], [{"role": "user", "content": "Write about bees"}])
            self.assertEqual((first.job, first.try_, first.error), (job.id, 1, None))
            self.assertIn("About bees", first.result["content"])
            self.assertNotEqual(first.key, second.key)
            self.assertEqual((requests[1].schema, requests[0].job), (CITY, job.id))

    def test_a_list_has_the_answers_of_each_job_and_failures_are_tried_again(self):
        with started({"main": [{"status": 429, "message": "slow down", "retry_after": 30}, "A",
                               {"json": {"city": "Bern"}}]}) as t:
            began = t.now()
            for topic in ("one", "two"):
                self.assertEqual(t.job(writer, {"topic": topic}).result(), ["A", "Bern"])
            self.assertGreaterEqual(t.now() - began, datetime.timedelta(seconds=30))
            self.assertEqual([(call.try_, (call.error or {}).get("code"))
                              for call in t.calls("model:main") if call.job == "writer-1"],
                             [(1, "http_429"), (2, None), (1, None)])

    def test_clients_that_were_given_ctx_fetch_are_answered_streams_too(self):
        with started({"main": ["sync"], "gpt-4.1": lambda call: f"answer to {call.messages[0]['content']}"}) as t:
            texts = [json.loads(body)["choices"][0]["message"]["content"] for body in t.job(client).result()]
            self.assertEqual(texts, ["answer to one", "answer to two"])
            streamed = t.job(client, {"stream": True}).result()[0]
            self.assertRegex(streamed, r'^data: .*"delta"')
            self.assertTrue(streamed.endswith("data: [DONE]\n\n"))
            self.assertEqual([call.job for call in t.calls("model:gpt-4.1")],
                             ["client-1", "client-1", "client-2", "client-2"])
            self.assertEqual(t.job(sync_writer).result(), "sync")

    def test_clients_of_messages_are_answered(self):
        @agent("claude")
        async def claude(ctx, input):
            texts = []
            for stream in (False, True):
                body = {"model": "claude", "max_tokens": 9, "stream": stream,
                        "messages": [{"role": "user", "content": f"stream: {stream}"}]}
                answer = await ctx.fetch("https://api.anthropic.com/v1/messages", method="POST", body=json.dumps(body), effect="read")
                texts.append(answer.text())
            return texts

        def model(call):
            return {"text": call.messages[0]["content"], "tool_calls": [{"name": "pay", "arguments": {"order": "43"}, "id": "t1"}]}
        with testing.start([claude], models={"claude": model}) as t:
            whole, streamed = t.job(claude).result()
            self.assertEqual([json.loads(whole)[name] for name in ("content", "stop_reason")], [
                [{"type": "text", "text": "stream: False"}, {"type": "tool_use", "id": "t1", "name": "pay", "input": {"order": "43"}}],
                "tool_use"])
            events = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: ")]
            self.assertEqual([event["type"] for event in events], [
                "message_start", *["content_block_start", "content_block_delta", "content_block_stop"] * 2, "message_delta",
                "message_stop"])
            self.assertEqual(events[2]["delta"], {"type": "text_delta", "text": "stream: True"})

    def test_clients_of_responses_are_answered(self):
        @agent
        async def gpt(ctx, input):
            texts = []
            for stream, given in ((False, "Pay 43"), (True, [{"role": "user", "content": "And 44?"}])):
                body = {"model": "gpt", "input": given, "stream": stream}
                answer = await ctx.fetch("https://api.openai.com/v1/responses", method="POST", body=json.dumps(body), effect="read")
                texts.append(answer.text())
            return texts

        def model(call):
            return {"text": call.messages[0]["content"], "tool_calls": [{"name": "pay", "arguments": {"order": "43"}, "id": "t1"}],
                    "usage": {"prompt_tokens": 7, "completion_tokens": 2}}
        with testing.start([gpt], models={"gpt": model}) as t:
            whole, streamed = t.job(gpt).result()
            whole = json.loads(whole)
            self.assertEqual((whole["status"], whole["usage"]["total_tokens"]), ("completed", 9))
            message, called = whole["output"]
            self.assertEqual(message["content"], [{"type": "output_text", "text": "Pay 43", "annotations": [], "logprobs": []}])
            self.assertEqual((called["type"], called["call_id"], called["arguments"]), ("function_call", "t1", '{"order": "43"}'))
            events = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: ")]
            self.assertEqual([event["type"].removeprefix("response.") for event in events], [
                "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.done",
                "content_part.done", "output_item.done", "output_item.added", "function_call_arguments.delta",
                "function_call_arguments.done", "output_item.done", "completed"])
            self.assertEqual([event["sequence_number"] for event in events], list(range(13)))
            self.assertEqual([one["type"] for one in events[-1]["response"]["output"]], ["message", "function_call"])

    def test_it_calls_tools_refuses_and_states_its_use_of_tokens(self):
        with started({"main": [{"tool_calls": [{"name": "pay", "arguments": {"order": "43"}, "id": "call_1"}],
                                "usage": {"prompt_tokens": 700, "completion_tokens": 30}}]}) as t:
            made = json.dumps(t.job(caller).result())
            self.assertIn('"pay"', made)
            self.assertIn("700", made)
        with started({"main": [{"refusal": "I do not pay."}]}) as t:
            self.assertIn("I do not pay.", json.dumps(t.job(caller).result()))

    def test_the_models_of_an_agents_file_whose_addresses_are_in_a_variable(self):
        main = 'provider: anthropic, base_url: "${ env.TEST_MODEL_URL }", model: claude-sonnet-4-5'
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "agents.yaml"
            path.write_text(f"aetheris: 1\nmodels: {{ main: {{ {main} }} }}\n")
            models = {"claude-sonnet-4-5": lambda call: {"json": {"city": "Bern"}} if call.schema else "A — long, in pieces."}
            with testing.start([writer], models=models, models_url="TEST_MODEL_URL", agents_file=str(path)) as t:
                self.assertEqual(t.job(writer, {"topic": "bees"}).result(), ["A — long, in pieces.", "Bern"])
                self.assertEqual(len(t.calls("model:claude-sonnet-4-5")), 2)

    def test_what_the_test_states_wrongly_fails_the_job_with_a_reason(self):
        def throws(call):
            raise ValueError("no such question")
        for model, reason in ((["only one"], "has 1 answers for a job, and writer-1 makes another call"),
                              (throws, "no such question"), (lambda call: 7, "an answer is a text")):
            with started({"main": model}) as t:
                with self.assertRaisesRegex(Failure, reason):
                    t.job(writer, {"topic": "bees"}).result()
                self.assertEqual(t.calls("model:main")[-1].error["code"], "http_400")


@unittest.skipUnless(HAS_PROGRAM, "AETHERIS_BIN does not name the program")
class AsyncModels(unittest.IsolatedAsyncioTestCase):
    async def test_the_same_in_coroutines(self):
        async with await testing.start_async([writer], models={"main": ["A", {"json": {"city": "Bern"}}]}) as t:
            self.assertEqual(await (await t.job(writer, {"topic": "bees"})).result(), ["A", "Bern"])
            self.assertEqual(len(t.calls("model:main")), 2)


class Repeated(unittest.TestCase):
    def test_a_call_that_is_repeated_with_its_key_gets_its_answer_again(self):
        server = ModelServer({"main": ["first", {"status": 503}, "second"]}, lambda call: lambda end: None)
        self.addCleanup(server.close)

        def answer(key):
            request = urllib.request.Request(f"{server.url}/chat/completions", b'{"model": "main"}',
                                             {"idempotency-key": f"aetheris:{key}:0"})
            try:
                with urllib.request.urlopen(request) as made:
                    return json.load(made)["choices"][0]["message"]["content"]
            except urllib.error.HTTPError as error:
                return error.code
        self.assertEqual([answer(f"job-1:{key}") for key in ("one", "one", "two", "two", "two", "one", "three")],
                         ["first", "first", 503, "second", "second", "first", 400])
        for job in ("job-2", "order:1", "order:2"):
            self.assertEqual(answer(f"{job}:one"), "first")  # another job has its own


if __name__ == "__main__":
    unittest.main()
