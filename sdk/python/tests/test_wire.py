"""The frames of a worker, against a scripted server."""
import asyncio
import contextlib
import io
import json
import os
import ssl
import subprocess
import tempfile
import time
import unittest
import unittest.mock

from aetheris import functions
from aetheris import ConnectionFailed, InvalidInput, NotDone, Worker, agent, tool

from .support.server import LIMITS, ScriptedServer, welcome

JOB = {"id": "job-1", "agent": "one", "labels": {}, "created_at": "2026-01-01T00:00:00.000000Z"}
EMPTY = {"requests": [], "deliveries": [], "values": {}, "emitted": {}}


def start_of(routine, **more):
    return {"type": "start", "routine": routine, "job": JOB, "agent": "one", "version": "1", "input": {"name": "Ada"},
            "now": "2026-01-01T00:00:00.000000Z", "blind": "ab", "blind_erased": False, "record": EMPTY, **more}


def permit(call, tool_name, **more):
    return {"type": "perform", "call": call, "tool": tool_name, "job": "job-1", "try": 1, "key": f"key-{call}",
            "execution_key": "e", "invocation": f"i-{call}", "send_within_ms": 10_000, "timeout_ms": 30_000,
            "arguments": {}, **more}


def deliver(routine, **outcome):
    return {"type": "deliver", "routine": routine, "outcomes": [outcome]}


class Wire(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.server = await ScriptedServer.listen()
        self.logged, self.performed = [], []
        self.release = asyncio.Event()
        self.worker = None

        @agent("one", version="1")
        async def one(ctx, input):
            def greet(args, call):
                self.performed.append(call.key)
                return f"hello {args.get('name')}"
            greeting = await ctx.run("greet", "idempotent", greet, args={"name": input["name"]})
            return [greeting, await ctx.call("look", {"greeting": greeting})]

        @agent
        async def waits(ctx, input):
            await ctx.receive("c")

        @tool(effect="at_most_once")
        async def slow(args, call):
            self.performed.append(call.key)
            call.progress({"percent": 10})
            for piece in ("abc", "ü", "d"):
                call.text(piece)
            await asyncio.shield(self.release.wait())
            return {"aborted": call.signal.aborted}

        @tool(effect="read")
        async def reports(args, call):
            call.progress("x" * 4094)
            try:
                call.progress("x" * 4095)
            except InvalidInput as error:
                return error.code
            return None

        @tool(effect="read")
        async def writes(args, call):
            for piece in ("y" * 700, "ü" * 200, "z"):
                call.text(piece)

        @tool
        def blocks(args, call):
            call.text("begun")
            call.signal.wait(30)
            return {"aborted": call.signal.aborted}

        @tool(effect="read")
        def fails():
            raise NotDone("busy", "try later", retryable=True, retry_after_ms=1500)

        @tool
        def throws():
            raise TypeError("x is undefined")

        @tool(effect="idempotent")
        def no_json():
            return float("nan")

        @tool(effect="read")
        async def halves(args, call):
            call._note_usage({"model": "m\ud800", "input_tokens": 1, "text": "x" * args["length"]})
            return "done"
        self.offers = [one, waits, slow, reports, writes, blocks, fails, throws, no_json, halves]

    async def asyncTearDown(self):
        self.release.set()
        await self.stop()
        await self.server.close()

    async def stop(self):
        if self.worker is not None:
            await self.worker.stop(0)
            await asyncio.gather(self.running, return_exceptions=True)
            self.worker = None

    def start(self, **options):
        if "url" not in options:
            options = {"socket": self.server.socket, **options}
        self.worker = Worker(*self.offers, log=lambda level, message: self.logged.append(f"{level}: {message}"), **options)
        self.running = asyncio.ensure_future(self.worker.run())

    async def open(self, limits=LIMITS, **options):
        """A worker with an open session: the server has sent frame 1."""
        self.start(**options)
        connection = await self.server.accept()
        await connection.next()
        connection.send(1, 1, welcome("s-1", limits=limits))
        return connection

    async def test_half_of_a_surrogate_pair_in_a_message_is_replaced_and_no_other_message_is_lost(self):
        connection = await self.open()
        for frame, call, length in ((2, 5, 1), (3, 7, 9 << 20)):  # they are sent in one frame; in several
            connection.send(frame, 1, permit(call, "halves", arguments={"length": length}),
                            permit(call + 1, "halves", arguments={"length": 1}))
            ended = [await asyncio.wait_for(connection.message("ended"), 10) for _ in range(2)]
            self.assertEqual([(one["call"], one["result"], one["usage"]["model"]) for one in ended],
                             [(call, "done", "m\ufffd"), (call + 1, "done", "m\ufffd")])

    # ---------------------------------------------------------------- hello

    async def test_the_upgrade_has_the_subprotocol_and_the_key_and_the_first_frame_is_hello(self):
        self.start(api_key="secret", routines=7)
        connection = await self.server.accept()
        self.assertTrue(connection.head.startswith("GET /api/worker HTTP/1.1\r\n"))
        for line in ("Sec-WebSocket-Protocol: aetheris.worker.1", "Authorization: Bearer secret"):
            self.assertIn(f"\r\n{line}\r\n", connection.head)
        self.assertNotIn("Origin", connection.head)
        self.assertNotIn("Extensions", connection.head)
        frame = await connection.next()
        self.assertEqual((frame["frame"], frame["ack"], len(frame["messages"])), (1, 0, 1))
        hello = frame["messages"][0]
        self.assertEqual((hello["type"], hello["protocol"], hello["capacity"]), ("hello", 1, {"routines": 7, "calls": 256}))
        self.assertRegex(hello["sdk"], r"^python/")
        self.assertRegex(hello["worker"], r"^.+:\d+:[0-9a-f]{8}$")
        self.assertEqual(hello["agents"], [{"name": "one", "version": "1", "language": "python"},
                                           {"name": "waits", "language": "python"}])
        self.assertEqual(hello["tools"][0], {"name": "slow", "effect": "at_most_once"})
        self.assertEqual(hello["connection"], 1)
        self.assertEqual(({"resume"} & set(hello), hello["connection"], hello["left"]), (set(), 1, []))

    async def test_over_TCP_and_TLS(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                            "-keyout", "key", "-out", "crt", "-days", "1", "-subj", "/CN=x", "-addext",
                            "subjectAltName=IP:127.0.0.1"], cwd=folder, check=True, capture_output=True)
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(f"{folder}/crt", f"{folder}/key")
            original = ssl.create_default_context
            for kind in (None, tls):
                server = await ScriptedServer.listen("tcp", kind)
                ssl.create_default_context = lambda: original(cafile=f"{folder}/crt")
                try:
                    self.start(url=server.url)
                    connection = await server.accept()
                    self.assertEqual((await connection.next())["frame"], 1)
                    connection.send(1, 1, welcome("s-1"), start_of(1))
                    self.assertEqual((await connection.message())["type"], "advance")
                finally:
                    ssl.create_default_context = original
                    await self.stop()
                    await server.close()

    async def test_a_server_that_refuses_the_worker_ends_it(self):
        for status, code in (("401 Unauthorized", "unauthorized"), ("403 Forbidden", "forbidden"),
                             ("404 Not Found", "unsupported")):
            self.server.refuses_with = status
            self.start()
            with self.assertRaises(ConnectionFailed) as caught:
                await asyncio.wait_for(self.running, 60)
            self.assertEqual(caught.exception.code, code)

    async def test_an_address_that_is_not_a_URL_ends_the_worker_with_usage(self):
        for url in ("nowhere", "ftp://x", "http://x:99999999"):
            self.start(url=url)
            with self.assertRaises(ConnectionFailed) as caught:
                await asyncio.wait_for(self.running, 60)
            self.assertEqual(caught.exception.code, "usage")

    async def test_a_server_that_answers_503_is_tried_again(self):
        self.server.refuses_with = "503 Service Unavailable"
        self.start()
        await asyncio.sleep(0.12)
        self.server.refuses_with = None
        await self.server.accept()
        self.assertRegex("\n".join(self.logged), "not connected: .*503")

    async def test_nothing_or_a_name_twice_is_refused(self):
        self.assertRaises(InvalidInput, Worker)
        self.assertRaises(InvalidInput, Worker, self.offers[0], self.offers[0])

    # ---------------------------------------------------------------- messages

    async def test_a_step_is_one_frame_each_way_the_advance_has_the_success_and_the_next_request(self):
        connection = await self.open()
        connection.send(2, 1, start_of(1))
        self.assertEqual((await connection.next())["messages"], [{
            "type": "advance", "routine": 1, "delivered": 0, "requests": [
                {"position": "greet", "kind": "tool", "delivered": 0, "tool": "run:idempotent",
                 "arguments": {"name": "Ada"}}]}])
        connection.send(3, 2, permit(5, "run:idempotent", routine=1, position="greet", arguments={"name": "Ada"}))
        step = await connection.next()
        self.assertEqual(step["ack"], 3)
        self.assertEqual(step["messages"], [{
            "type": "advance", "routine": 1, "delivered": 1,
            "functions": [{"call": 5, "result": "hello Ada", "delivered": 0}],
            "requests": [{"position": "look", "kind": "tool", "delivered": 1, "tool": "look",
                          "arguments": {"greeting": "hello Ada"}}]}])
        connection.send(4, 3, deliver(1, position="look", kind="tool", result="seen"))
        self.assertEqual((await connection.next())["messages"], [
            {"type": "advance", "routine": 1, "delivered": 2, "end": {"result": ["hello Ada", "seen"]}}])

    async def test_all_routines_of_a_turn_share_a_frame(self):
        connection = await self.open()
        connection.send(2, 1, start_of(1), start_of(2), start_of(3))
        self.assertEqual([one["routine"] for one in (await connection.next())["messages"]], [1, 2, 3])

    async def test_unknown_types_and_fields_are_ignored(self):
        connection = await self.open()
        connection.send(2, 1, {"type": "new_thing", "x": 1}, {"no": "type"}, None, start_of(1, also={"new": True}))
        self.assertEqual((await connection.message())["type"], "advance")
        connection.send(3, 2, {"type": "deliver", "routine": 99, "outcomes": []}, {"type": "abandon", "call": 99},
                        {"type": "stop", "routine": 99, "reason": "suspended"})
        connection.send(4, 2, start_of(2))
        self.assertEqual((await connection.message())["routine"], 2)

    async def test_a_frame_that_came_before_is_ignored_one_that_is_missing_ends_the_connection(self):
        connection = await self.open()
        connection.send(2, 1, start_of(1))
        await connection.message()
        connection.send(2, 1, start_of(1))
        connection.send(1, 1, start_of(9))
        connection.send(3, 2, start_of(2))
        self.assertEqual((await connection.message())["routine"], 2)
        connection.send(5, 2, start_of(3))
        await connection.closed()
        again = await self.server.accept()
        self.assertEqual((await again.next())["messages"][0]["resume"], {"session": "s-1", "ack": 3})

    async def test_a_record_in_parts(self):
        connection = await self.open()
        connection.send(2, 1, start_of(1, more=True, record={**EMPTY, "requests": [
            {"position": "greet", "kind": "tool", "tool": "run:idempotent", "delivered": 0}]}))
        connection.send(3, 1, deliver(1, position="look", kind="tool", result="seen"))
        connection.send(4, 1, {"type": "record", "routine": 1, "more": True, "record": {**EMPTY, "deliveries": [
            {"position": "greet", "kind": "tool", "result": "hi"}]}})
        connection.send(5, 1, {"type": "record", "routine": 1, "record": {**EMPTY, "requests": [
            {"position": "look", "kind": "tool", "tool": "look", "delivered": 1}]}})
        self.assertEqual(await connection.message(), {
            "type": "advance", "routine": 1, "delivered": 1, "settled": False, "requests": [
                {"position": "look", "kind": "tool", "delivered": 1, "tool": "look", "arguments": {"greeting": "hi"}}]})
        self.assertEqual((await connection.message())["end"], {"result": ["hi", "seen"]})

    async def test_an_agent_that_is_not_offered_and_a_record_that_is_none_are_lost(self):
        connection = await self.open()
        connection.send(2, 1, start_of(1, version="2"))
        message = await connection.message()
        self.assertEqual((message["type"], message["routine"], message["code"]), ("lost", 1, "not_found"))
        connection.send(3, 1, start_of(2, record={**EMPTY, "requests": [{"position": "a", "kind": "tool", "delivered": 9}]}))
        message = await connection.message()
        self.assertEqual((message["type"], message["routine"], message["code"]), ("lost", 2, "log_corrupt"))

    async def test_a_routine_that_diverged_states_where_and_is_dropped(self):
        connection = await self.open()
        connection.send(2, 1, start_of(1, record={**EMPTY, "requests": [
            {"position": "greet", "kind": "tool", "tool": "look", "delivered": 0}]}))
        message = await connection.message()
        self.assertEqual({name: message[name] for name in ("type", "routine", "finding", "delivered", "position", "found")}, {
            "type": "diverged", "routine": 1, "finding": "arguments", "delivered": 0, "position": "greet",
            "found": {"kind": "tool", "position": "greet", "tool": "run:idempotent"}})
        self.assertRegex(message["where"], r"test_wire\.py:\d+")
        self.assertRegex("\n".join(self.logged), r'error: job job-1 \(agent one\): the code requests something else than the '
                         r'log has, at "greet", .*test_wire\.py:\d+\)\. The job parks; "aetheris resume" continues it after '
                         r'the code is corrected\. What differs: aetheris divergence job-1')

    async def test_faults_of_a_definition_are_reported_with_their_place(self):
        self.start()
        connection = await self.server.accept()
        await connection.next()
        fault = {"code": "plan_invalid", "message": "must be a duration", "path": "tools.pay.timeout", "file": "a.yaml",
                 "line": 3, "column": 7, "suggestion": "10s"}
        connection.send(1, 1, welcome("s-1", agents=[
            {"name": "one", "version": "1", "faults": [fault, "other"]}, {"name": "waits", "faults": [fault]}]),
            start_of(1))
        await connection.message()
        self.assertEqual([line for line in self.logged if line.startswith("error")], [
            "error: the server does not take one (version 1), waits: a.yaml:3:7: tools.pay.timeout: must be a duration "
            "(did you mean 10s?) [plan_invalid]", 'error: the server does not take one (version 1): "other"'])

    async def test_without_a_log_the_first_connection_is_a_line_and_others_are_after_trouble(self):
        ready = f"aetheris: info: connected to {self.server.socket}; agents: one, waits; tools: "
        verbose, supervised = {"AETHERIS_VERBOSE": "1"}, {"AETHERIS_SUPERVISED": "1"}
        for env, trouble_s, first, then in (({}, 0.0, ready, "aetheris: info: connected\n"), ({}, 1.0, ready, ""),
                                            (verbose, 1.0, "connected as ", "connected as "),
                                            (supervised, 0.0, "", "aetheris: info: connected\n"),
                                            (supervised, 1.0, "", "")):
            with self.subTest(env=env, trouble_s=trouble_s), \
                    contextlib.redirect_stderr(io.StringIO()) as printed, \
                    unittest.mock.patch("aetheris.worker._TROUBLE_S", trouble_s), \
                    unittest.mock.patch.dict(os.environ, env):
                self.server.refuses_with = None
                self.worker = Worker(*self.offers, socket=self.server.socket)
                self.running = asyncio.ensure_future(self.worker.run())
                connection = await self.server.accept()
                await connection.next()
                connection.send(1, 1, welcome("s-1"), start_of(1))
                await connection.message()
                before = printed.getvalue()
                self.assertIn(first, before)
                self.assertEqual(before.count("\n"), 1 if first else 0, before)
                connection.cut()
                again = await self.server.accept()
                await again.next()
                again.send(0, 1, welcome("s-1", resumed=True))
                await again.message()
                after = printed.getvalue()[len(before):]
                self.assertIn(then, after)
                self.assertTrue(then or not after, after)
                await self.stop()

    async def test_a_heartbeat_is_sent_when_nothing_else_is_and_acknowledges(self):
        connection = await self.open({**LIMITS, "heartbeat_ms": 40})
        connection.send(2, 1, {"type": "closing", "within_ms": 5})
        frame = await connection.heartbeat()
        self.assertEqual((frame["ack"], frame["messages"]), (2, [{"type": "heartbeat"}]))

    async def test_a_ping_is_answered_and_a_server_that_is_silent_is_left(self):
        connection = await self.open({"heartbeat_ms": 20, "silent_ms": 80, "resume_ms": 1000})
        connection.raw(0x89, b"x")
        self.assertEqual(await connection.control(), (10, b"x"))
        connection.sends = False  # no pong from now on
        await connection.closed()
        self.assertIn("silent", "\n".join(self.logged))

    async def test_what_is_not_WebSocket_or_not_a_frame_ends_the_connection_and_the_session_is_resumed(self):
        for first, payload in ((0x01, b"{"), (0x82, b"{}"), (0x81, b"[]"), (0x81, b"{"), (0x81, b"\xff"),
                               (0x81, b'{"frame": 2, "ack": "x", "messages": []}'), (0xC1, b"{}")):
            connection = await self.open()
            connection.raw(first, payload)
            await connection.closed()
            again = await self.server.accept()
            self.assertEqual((await again.next())["messages"][0]["resume"]["session"], "s-1")
            await self.stop()

    async def test_messages_of_several_MiB_and_a_frame_in_many_pieces(self):
        connection = await self.open()
        name = "ü" * (1 << 20)
        payload = json.dumps({"frame": 2, "ack": 1, "messages": [start_of(1, input={"name": name})]},
                             ensure_ascii=False).encode()
        whole = bytes((0x81, 127)) + len(payload).to_bytes(8, "big") + payload
        for at in range(0, len(whole), 1 << 18):
            connection.bytes(whole[at:at + (1 << 18)])
            await asyncio.sleep(0)
        message = await connection.message()
        self.assertEqual(message["requests"][0]["arguments"]["name"], name)

    # ---------------------------------------------------------------- calls

    async def test_progress_and_text_are_sent_while_a_function_runs_then_its_end(self):
        connection = await self.open()
        connection.send(2, 1, permit(1, "slow"))
        self.assertEqual([await connection.message() for _ in range(4)], [
            {"type": "progress", "call": 1, "value": {"percent": 10}}, {"type": "text", "call": 1, "at": 0, "text": "abc"},
            {"type": "text", "call": 1, "at": 3, "text": "ü"}, {"type": "text", "call": 1, "at": 5, "text": "d"}])
        self.release.set()
        self.assertEqual(await connection.message(), {"type": "ended", "call": 1, "result": {"aborted": False}})

    async def test_the_limits_of_progress_and_text(self):
        for name, value in (("TEXT_MAX", 1000), ("PIECE_MAX", 64)):  # smaller, for the time of this test
            patch = unittest.mock.patch.object(functions, name, value)
            patch.start()
            self.addCleanup(patch.stop)
        connection = await self.open()
        connection.send(2, 1, permit(1, "reports"), permit(2, "writes"))
        reports, at, ends = [], 0, {}
        while len(ends) < 2:
            message = await connection.message()
            if message["type"] == "progress":
                reports.append(message["value"])
            elif message["type"] == "text":
                self.assertEqual(message["at"], at)
                at += len(message["text"].encode())
            elif message["type"] == "ended":
                ends[message["call"]] = message.get("result")
        self.assertEqual((reports, ends), (["x" * 4094], {1: "payload_too_large", 2: None}))
        self.assertEqual(at, 700 + 2 * 128)

    async def test_a_failure_an_exception_and_a_result_that_is_not_JSON(self):
        connection = await self.open()
        connection.send(2, 1, permit(1, "fails"), permit(2, "throws"), permit(3, "no_json"), permit(4, "unknown"))
        ends = {}
        for _ in range(4):
            end = await connection.message("ended")
            ends[end["call"]] = end
        self.assertEqual(ends[1]["failure"], {"code": "busy", "message": "try later", "definite": True, "retryable": True,
                                              "retry_after_ms": 1500})
        self.assertEqual(ends[2]["unknown"], {"code": "exception", "message": "TypeError: x is undefined"})
        self.assertEqual((ends[3]["failure"]["code"], ends[3]["failure"]["definite"]), ("tool_output_invalid", False))
        self.assertEqual((ends[4]["failure"]["code"], ends[4]["failure"]["definite"]), ("not_sent", True))

    async def test_a_permit_that_comes_too_late_is_not_used(self):
        connection = await self.open()
        connection.send(2, 1, start_of(1))
        await connection.message()
        await asyncio.sleep(0.06)
        # It counts from the frame that the permit acknowledges: the hello, which was sent before.
        connection.send(3, 1, permit(1, "slow", send_within_ms=50))
        self.assertEqual((await connection.message())["failure"]["code"], "not_sent")
        self.assertEqual(self.performed, [])
        connection.send(4, 2, permit(2, "slow", send_within_ms=100_000))
        await connection.message("progress")
        self.assertEqual(self.performed, ["key-2"])

    async def test_a_permit_counts_from_the_frame_that_it_acknowledges_not_from_the_hello(self):
        connection = await self.open()
        await asyncio.sleep(1.5)
        connection.send(2, 1, start_of(1))
        await connection.message()
        connection.send(3, 2, permit(1, "run:idempotent", routine=1, position="greet", send_within_ms=1400))
        self.assertEqual((await connection.message())["delivered"], 1)

    async def test_a_function_that_does_not_return_in_time_ends_as_unknown_and_later_as_late(self):
        connection = await self.open()
        connection.send(2, 1, permit(1, "blocks", timeout_ms=30))
        self.assertEqual((await connection.message("ended"))["unknown"],
                         {"code": "timeout", "message": "the function did not return within 30 ms"})
        self.assertEqual(await connection.message(), {"type": "late", "job": "job-1", "invocation": "i-1", "try": 1,
                                                      "result": {"aborted": True}})

    async def test_a_call_that_is_abandoned_is_cut_off_and_its_task_cancelled(self):
        connection = await self.open()
        connection.send(2, 1, permit(1, "slow"))
        await connection.message("text")
        connection.send(3, 2, {"type": "abandon", "call": 1})
        self.assertEqual((await connection.message("ended"))["unknown"]["code"], "abandoned")
        await asyncio.wait_for(self.worker._functions.when_idle(), 20)

    async def test_the_success_of_a_routine_that_was_dropped_ends_its_call(self):
        connection = await self.open()
        connection.send(2, 1, start_of(1))
        await connection.message()
        connection.send(3, 2, permit(5, "run:idempotent", routine=1, position="greet"),
                        {"type": "stop", "routine": 1, "reason": "suspended"})
        self.assertEqual(await connection.message(), {"type": "ended", "call": 5, "result": "hello None"})

    # ---------------------------------------------------------------- lost connections

    async def test_the_session_is_resumed_and_frames_that_were_not_acknowledged_are_sent_again(self):
        connection = await self.open()
        connection.send(2, 1, start_of(1))
        lost = await connection.next()
        connection.cut()
        again = await self.server.accept()
        greeting = await again.next()
        self.assertEqual((greeting["frame"], greeting["messages"][0]["resume"]), (0, {"session": "s-1", "ack": 2}))
        again.send(0, 1, welcome("s-1", resumed=True))
        self.assertEqual(await again.next(), {**lost, "ack": 2})
        again.send(3, 2, permit(5, "run:idempotent", routine=1, position="greet", arguments={"name": "Ada"}))
        self.assertEqual((await again.next())["frame"], 3)

    async def test_a_frame_is_sent_again_unchanged_with_the_ack_that_it_had(self):
        connection = await self.open()
        connection.send(2, 1, start_of(1))
        lost = await connection.next()
        self.assertEqual(lost["ack"], 2)
        connection.send(3, 1, start_of(2, agent="waits", version=""))
        await connection.next()
        connection.cut()
        again = await self.server.accept()
        self.assertEqual((await again.next())["messages"][0]["resume"]["ack"], 3)
        again.send(0, 1, welcome("s-1", resumed=True))
        self.assertEqual(await again.next(), lost)

    async def test_what_was_acknowledged_is_not_sent_again(self):
        connection = await self.open()
        connection.send(2, 1, start_of(1))
        await connection.next()
        connection.cut()
        again = await self.server.accept()
        await again.next()
        again.send(0, 2, welcome("s-1", resumed=True))
        again.send(3, 2, start_of(2))
        frame = await again.next()
        self.assertEqual((frame["frame"], [one["routine"] for one in frame["messages"]]), (3, [2]))

    async def test_without_a_resume_the_routines_are_gone_and_their_calls_are_left_and_end_late(self):
        connection = await self.open()
        connection.send(2, 1, start_of(1), permit(7, "slow"))
        await connection.message("advance")
        connection.send(3, 2, permit(8, "run:idempotent", routine=1, position="greet", arguments={"name": "Ada"}))
        await connection.message("advance")
        connection.cut()
        again = await self.server.accept()
        self.assertEqual((await again.next())["messages"][0]["left"], [
            {"job": "job-1", "invocation": "i-7", "try": 1}, {"job": "job-1", "invocation": "i-8", "try": 1}])
        again.send(1, 1, welcome("s-2"))
        frame = await again.next()
        self.assertEqual(frame["frame"], 2)
        self.assertEqual(frame["messages"], [{"type": "late", "job": "job-1", "invocation": "i-8", "try": 1,
                                              "result": "hello Ada"}])
        self.release.set()
        self.assertEqual(await again.message(), {"type": "late", "job": "job-1", "invocation": "i-7", "try": 1,
                                                 "result": {"aborted": False}})
        again.send(2, 2, deliver(1, position="look", result=1), start_of(1))
        self.assertEqual((await again.message())["delivered"], 0)

    async def test_the_back_off_begins_with_50_ms_and_grows(self):
        self.start()
        times = []
        for _ in range(5):
            connection = await self.server.accept()
            times.append(time.monotonic())
            connection.cut()
        gaps = [after - before for before, after in zip(times, times[1:])]
        self.assertGreaterEqual(gaps[0], 0.02)
        self.assertGreaterEqual(gaps[3], 0.19)

    async def test_the_connection_is_cut_at_each_frame_of_either_side_before_and_after_it_was_processed(self):
        for side in ("worker", "server"):
            for cut_at in (1, 2, 3, 4):
                for is_processed in (True, False):
                    with self.subTest(side=side, cut_at=cut_at, is_processed=is_processed):
                        await self.run_with_cut(side, cut_at, is_processed)

    async def run_with_cut(self, side, cut_at, is_processed):
        """A server with a session: it keeps its frames, and answers the two steps of the job."""
        kept, advances = [], []
        state = {"sent": 0, "received": 0, "has_cut": False, "connection": None}
        ended = asyncio.get_running_loop().create_future()
        self.performed.clear()

        def write(number, messages):
            connection = state["connection"]
            if side == "server" and number == cut_at and not state["has_cut"]:
                state["has_cut"] = True
                if is_processed:
                    connection.send(number, state["received"], *messages)
                asyncio.get_running_loop().call_later(0.02 if is_processed else 0, connection.cut)
            else:
                connection.send(number, state["received"], *messages)

        def answer(*messages):
            state["sent"] += 1
            kept.append((state["sent"], messages))
            write(state["sent"], messages)

        def process(messages):
            for message in messages:
                if message["type"] == "hello":
                    answer(welcome("s-1"), start_of(1))
                if message["type"] != "advance":
                    continue
                advances.append(message["delivered"])
                if "end" in message and not ended.done():
                    ended.set_result(message["end"])
                for request in message.get("requests", []):
                    if request["position"] == "greet":
                        answer(permit(5, "run:idempotent", routine=1, position="greet", arguments={"name": "Ada"}))
                    else:
                        answer(deliver(1, position="look", kind="tool", result="seen"))

        def on_frame(connection, frame):
            hello = frame["messages"][0] if frame["messages"] else {}
            if hello.get("type") == "hello" and "resume" in hello:
                connection.send(0, state["received"], welcome("s-1", resumed=True))
                for number, messages in kept:
                    if number > hello["resume"]["ack"]:
                        connection.send(number, state["received"], *messages)
                return
            if hello.get("type") == "hello":  # a new session
                state["sent"] = state["received"] = 0
                kept.clear()
            if side == "worker" and frame["frame"] == cut_at and not state["has_cut"]:
                state["has_cut"] = True
                if is_processed:
                    state["received"] = max(state["received"], frame["frame"])
                    process(frame["messages"])
                connection.cut()
            elif frame["frame"] == state["received"] + 1:
                state["received"] += 1
                process(frame["messages"])

        def on_connection(connection):
            state["connection"] = connection
            connection.on_frame = lambda frame: on_frame(connection, frame)
        self.server.on_connection = on_connection
        self.start()
        self.assertEqual(await asyncio.wait_for(ended, 60), {"result": ["hello Ada", "seen"]})
        self.assertEqual((advances, self.performed), ([0, 1, 2], ["key-5"]), "each advance came once")
        await self.stop()

    # ---------------------------------------------------------------- stopping

    async def test_a_run_that_is_cancelled_ends_its_session(self):
        connection = await self.open()
        connection.send(2, 1, start_of(1))
        await connection.message()
        self.running.cancel()
        opcode, payload = await connection.control()
        self.assertEqual((opcode, payload[:2]), (8, (1000).to_bytes(2, "big")))
        await asyncio.gather(self.running, return_exceptions=True)
        self.assertTrue(self.running.cancelled())

    async def test_drain_the_worker_awaits_its_functions_sends_their_ends_and_closes_with_1000(self):
        connection = await self.open()
        connection.send(2, 1, permit(1, "slow"))
        await connection.message("text")
        stopped = asyncio.ensure_future(self.worker.stop(120))
        await connection.message("drain")
        self.release.set()
        self.assertEqual(await connection.message("ended"), {"type": "ended", "call": 1, "result": {"aborted": False}})
        opcode, payload = await connection.control()
        self.assertEqual((opcode, payload[:2]), (8, (1000).to_bytes(2, "big")))
        await asyncio.wait_for(stopped, 60)
        await asyncio.wait_for(self.running, 60)

    async def test_a_stop_while_the_connection_is_lost_awaits_functions_and_reports_their_ends(self):
        for is_resumed in (True, False):
            with self.subTest(is_resumed=is_resumed):
                self.release.clear()
                connection = await self.open()
                connection.send(2, 1, permit(1, "slow"))
                await connection.message("text")
                self.server.refuses_with = "503 Service Unavailable"
                connection.cut()
                while self.worker._session.is_open:
                    await asyncio.sleep(0.001)
                stopped = asyncio.ensure_future(self.worker.stop(120))
                await asyncio.sleep(0.05)
                self.release.set()
                await asyncio.sleep(0.05)
                self.assertFalse(stopped.done())
                self.server.refuses_with = None
                again = await self.server.accept()
                await again.next()
                again.send(*((0, 1, welcome("s-1", resumed=True)) if is_resumed else (1, 1, welcome("s-2"))))
                came = {}
                while not {"drain", "ended" if is_resumed else "late"} <= set(came):
                    message = await again.message()
                    came[message["type"]] = message
                self.assertEqual(came["ended" if is_resumed else "late"]["result"], {"aborted": False})
                await asyncio.wait_for(stopped, 60)
                self.worker = None

    async def test_a_stop_while_the_connection_is_lost_ends_at_once_if_there_is_nothing_to_report(self):
        connection = await self.open()
        connection.send(2, 1, start_of(1))
        await connection.message()
        self.server.refuses_with = "503 Service Unavailable"
        connection.cut()
        while self.worker._session.is_open:
            await asyncio.sleep(0.001)
        await asyncio.wait_for(self.worker.stop(120), 60)

    async def test_drain_what_does_not_end_within_the_grace_period_is_cut_off(self):
        connection = await self.open()
        connection.send(2, 1, permit(1, "slow"), start_of(2, agent="waits", version=""))
        await connection.message("text")
        stopped = asyncio.ensure_future(self.worker.stop(0.03))
        self.assertEqual((await connection.message("ended"))["unknown"]["code"], "abandoned")
        await asyncio.wait_for(stopped, 60)
