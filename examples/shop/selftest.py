#!/usr/bin/env python3
"""Tests of the shop and of its table: `python3 selftest.py`. Other tests rely on the journal of the shop."""

import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent


class Shop:
    """A running shop and its journal, which is kept after the shop ends."""

    def __init__(self, journal, port=0, **environment):
        self.journal = journal
        self.process = subprocess.Popen(
            [sys.executable, HERE / "shop.py", "--port", str(port), "--journal", journal],
            stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})
        words = self.process.stdout.readline().split()
        assert words[0] == "listening", words
        self.port = int(words[1].split(":")[1])

    def call(self, method, path, body=None, key=None, timeout=10, **headers):
        """(status, answer)"""
        if key is not None:
            headers["Idempotency-Key"] = key
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {k.replace("_", "-"): v for k, v in headers.items()})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def end(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(how)
        self.process.stdout.close()
        return self.process.wait(10)


class ShopTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.journal = os.path.join(self.folder.name, "shop.journal")
        self.shop = Shop(self.journal)

    def tearDown(self):
        self.shop.end()
        self.folder.cleanup()

    def lines(self, kind):
        with open(self.journal, encoding="utf-8") as file:
            return [e for e in map(json.loads, file) if e["kind"] == kind]

    def table(self):
        """(exit code, rows)"""
        done = subprocess.run([sys.executable, HERE / "table.py", self.journal, "--json"],
                              capture_output=True, text=True, check=False)
        return done.returncode, json.loads(done.stdout)["effects"]

    def test_the_model_repeats_its_answer_and_journals_each_request(self):
        body = {"model": "small", "messages": [{"role": "user", "content": "Thank you for the order"}]}
        first = self.shop.call("POST", "/v1/chat/completions", body, key="k")
        second = self.shop.call("POST", "/v1/chat/completions", body, key="k")
        self.assertEqual(first[0], 200)
        self.assertEqual(first[1]["choices"], second[1]["choices"])
        self.assertEqual(first[1]["choices"][0]["message"]["content"], "Dear customer, thank you for the order")
        self.assertEqual(first[1]["usage"], {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12})
        self.assertNotEqual(first[1]["id"], second[1]["id"])
        short = self.shop.call("POST", "/v1/chat/completions", {**body, "max_tokens": 2}, key="m")[1]["choices"][0]
        self.assertEqual((short["message"]["content"], short["finish_reason"]), ("Dear customer,", "length"))
        self.assertEqual(self.shop.call("POST", "/v1/chat/completions", {"model": "small"})[0], 400)
        lines = self.shop.call("GET", "/journal")[1]["journal"]
        arrivals = [line for line in lines if line["route"] == "POST /v1/chat/completions"]
        self.assertEqual([line["kind"] for line in arrivals], ["arrival"] * 4)
        self.assertEqual({line["policy"] for line in arrivals}, {"read"})

    def test_an_order_is_the_same_on_every_read(self):
        first = self.shop.call("GET", "/orders/42")
        self.assertEqual(first, self.shop.call("GET", "/orders/42"))
        self.assertEqual(first[1]["total"], sum(i["qty"] * i["price"] for i in first[1]["items"]))
        self.assertEqual(self.shop.call("GET", "/orders/missing-1")[0], 404)
        self.assertEqual(self.shop.call("GET", "/stock/TEA-1")[1]["sku"], "TEA-1")

    def test_a_key_takes_effect_once_and_gets_the_same_answer(self):
        first = self.shop.call("POST", "/charges", {"amount": 5}, key="k1")
        again = self.shop.call("POST", "/charges", {"amount": 5}, key="k1")
        other = self.shop.call("POST", "/charges", {"amount": 5}, key="k2")
        self.assertEqual(first, again)
        self.assertNotEqual(first[1]["id"], other[1]["id"])
        self.assertEqual(self.shop.call("POST", "/charges", {"amount": 6}, key="k1")[0], 422)
        self.assertEqual(self.shop.call("POST", "/charges", {"amount": 6})[0], 400)
        self.assertEqual(len(self.lines("effect")), 2)
        self.assertEqual(self.table()[0], 0)

    def test_concurrent_requests_with_one_key_take_effect_once(self):
        answers = []
        def ask():
            answers.append(self.shop.call("POST", "/shipments", {"sku": "TEA-1"}, key="same")[1]["id"])
        threads = [threading.Thread(target=ask) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(answers), 16)
        self.assertEqual(len(set(answers)), 1)
        self.assertEqual(len(self.lines("effect")), 1)

    def test_mail_sent_twice_is_reported_as_repeated(self):
        self.shop.call("POST", "/mail", {"to": "ada"}, key="m1")
        self.assertEqual(self.table()[0], 0)
        self.shop.call("POST", "/mail", {"to": "ada"}, key="m1")
        code, rows = self.table()
        self.assertEqual((code, rows[0]["result"], rows[0]["effects"]), (1, "REPEATED", 2))

    def test_mail_that_arrived_twice_without_effect_is_reported_as_repeated(self):
        for _ in range(2):
            self.shop.call("POST", "/control", {"route": "POST /mail", "at": "before", "fail": 500, "times": 1})
            self.assertEqual(self.shop.call("POST", "/mail", {}, key="m1")[0], 500)
        code, rows = self.table()
        self.assertEqual((code, rows[0]["arrived"], rows[0]["effects"]), (1, 2, 0))

    def test_rejected_mail_may_be_sent_again(self):
        self.shop.call("POST", "/control", {"route": "POST /mail", "at": "before", "fail": 429, "times": 1})
        self.assertEqual(self.shop.call("POST", "/mail", {}, key="m1")[0], 429)
        self.assertEqual(self.shop.call("POST", "/mail", {}, key="m1")[0], 201)
        code, rows = self.table()
        self.assertEqual((code, rows[0]["result"], rows[0]["refused"]), (0, "once", 1))

    def test_an_effect_can_be_queried_by_key(self):
        self.assertEqual(self.shop.call("GET", "/charges?key=k%3A1"), (200, {"charge": None}))
        charge = self.shop.call("POST", "/charges", {"amount": 5}, key="k:1")[1]
        self.assertEqual(self.shop.call("GET", "/charges?key=k%3A1"), (200, {"charge": charge}))

    def test_a_flaky_route_fails_the_requested_number_of_times_per_key(self):
        for key in ("a", "b"):
            answers = [self.shop.call("POST", "/flaky", {"failures": 2}, key=key)[0] for _ in range(4)]
            self.assertEqual(answers, [503, 503, 201, 201])
        self.assertEqual(len(self.lines("effect")), 2)

    def test_the_journal_records_invocation_and_try(self):
        self.shop.call("POST", "/charges", {}, key="k", X_Aetheris_Invocation_Id="ab12", X_Aetheris_Try="3")
        for kind in ("arrival", "effect"):
            line = self.lines(kind)[0]
            self.assertEqual((line["idempotency_key"], line["invocation_id"], line["try"]), ("k", "ab12", 3))

    def test_a_failure_after_the_effect_keeps_the_effect(self):
        self.shop.call("POST", "/control", {"route": "POST /charges", "fail": True, "times": 1})
        self.assertEqual(self.shop.call("POST", "/charges", {}, key="k")[0], 503)
        self.assertEqual(self.shop.call("POST", "/charges", {}, key="k")[0], 201)
        self.assertEqual(len(self.lines("effect")), 1)

    def test_requests_can_be_dropped_or_left_hanging(self):
        for at, effects in (("before", 0), ("after", 1)):
            self.shop.call("POST", "/control", {"route": "POST /mail", "at": at, "drop": True, "times": 1})
            with self.assertRaises((http.client.HTTPException, ConnectionError)):
                self.shop.call("POST", "/mail", {}, key=at)
            self.assertEqual(len(self.lines("effect")), effects)
        self.shop.call("POST", "/control", {"route": "GET /stock", "hang": True, "at": "before"})
        with self.assertRaises(socket.timeout):
            self.shop.call("GET", "/stock/TEA-1", timeout=0.2)
        self.shop.call("POST", "/control", {"reset": True})
        self.assertEqual(self.shop.call("GET", "/stock/TEA-1")[0], 200)

    def test_a_delay_separates_effect_and_answer(self):
        self.shop.call("POST", "/control", {"route": "POST /charges", "delay_ms": 60000, "times": 1})
        with self.assertRaises(socket.timeout):
            self.shop.call("POST", "/charges", {}, key="k", timeout=0.3)
        self.assertEqual(len(self.lines("effect")), 1)

    def test_a_restarted_shop_recovers_its_state_from_the_journal(self):
        charge = self.shop.call("POST", "/charges", {"amount": 5}, key="k1")
        self.shop.call("POST", "/refunds", {"charge": charge[1]["id"]}, key="r1")
        self.shop.call("POST", "/flaky", {"failures": 2}, key="f1")
        changed = self.shop.call("GET", "/charges/" + charge[1]["id"])
        self.assertEqual((changed[1]["version"], changed[1]["status"]), (2, "refunded"))
        self.shop.end(signal.SIGKILL)
        with open(self.journal, "ab") as file:
            file.write(b'{"n":99,"kind":"eff')  # cut in two by the kill
        self.shop = Shop(self.journal, self.shop.port)
        self.assertEqual(self.shop.call("POST", "/charges", {"amount": 5}, key="k1"), charge)
        self.assertEqual(self.shop.call("GET", "/charges/" + charge[1]["id"]), changed)
        self.assertEqual(self.shop.call("POST", "/flaky", {"failures": 2}, key="f1")[0], 503)
        self.assertEqual(self.shop.call("POST", "/flaky", {"failures": 2}, key="f1")[0], 201)
        numbers = [line["n"] for line in self.shop.call("GET", "/journal")[1]["journal"]]
        self.assertEqual(numbers, list(range(1, len(numbers) + 1)))

    def test_a_charge_can_be_changed_externally(self):
        charge = self.shop.call("POST", "/charges", {}, key="k")[1]
        path = "/charges/" + charge["id"]
        self.assertEqual(self.shop.call("POST", "/control", {"change": path})[0], 200)
        self.assertNotEqual(self.shop.call("GET", path)[1]["etag"], charge["etag"])
        self.assertEqual(self.shop.call("POST", "/control", {"change": "/charges/none"})[0], 400)

    def test_a_token_is_required_and_never_journaled(self):
        self.shop.end()
        self.shop = Shop(self.journal, SHOP_TOKEN="hunter22")
        self.assertEqual(self.shop.call("POST", "/charges", {}, key="k")[0], 401)
        for header in ("hunter22", "Bearer hunter22"):
            self.assertEqual(self.shop.call("POST", "/charges", {}, key="k", Authorization=header)[0], 201)
        self.assertNotIn("hunter22", pathlib.Path(self.journal).read_text(encoding="utf-8"))

    def test_invalid_requests_are_rejected(self):
        self.assertEqual(self.shop.call("GET", "/nowhere")[0], 404)
        self.assertEqual(self.shop.call("POST", "/nowhere", {})[0], 404)
        self.assertEqual(self.shop.call("POST", "/charges", [1], key="k")[0], 400)
        for rule in ({}, {"route": "POST /mail", "at": "never"}, {"route": "POST /mail", "x": 1}, [1]):
            self.assertEqual(self.shop.call("POST", "/control", rule)[0], 400)

    def test_sigterm_ends_the_shop_while_a_request_hangs(self):
        self.shop.call("POST", "/control", {"route": "GET /stock", "hang": True, "at": "before"})
        with self.assertRaises(socket.timeout):
            self.shop.call("GET", "/stock/TEA-1", timeout=0.1)
        began = time.monotonic()
        self.assertEqual(self.shop.end(), 0)
        self.assertLess(time.monotonic() - began, 5)

    def test_the_table_summarizes_effects_and_reads(self):
        self.shop.call("POST", "/charges", {}, key="aetheris:01890000-0000-7000-8000-000000000000:0123456789abcdef:01")
        self.shop.call("GET", "/orders/1")
        done = subprocess.run([sys.executable, HERE / "table.py", self.journal],
                              capture_output=True, text=True, check=False)
        self.assertIn("effects: 1 requested, 1 applied, 0 duplicated; reads: 1", done.stdout)
        self.assertIn("once", done.stdout)
        self.assertEqual(subprocess.run([sys.executable, HERE / "table.py", "/nowhere"], check=False,
                                        stderr=subprocess.DEVNULL).returncode, 2)


if __name__ == "__main__":
    unittest.main()
