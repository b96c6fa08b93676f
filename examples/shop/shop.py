#!/usr/bin/env python3
"""A small shop with its payment desk: the downstream of the demo and the chaos tests.

It is a separate process with a journal: every request that it receives and every effect that takes
place is one line, on disk (fsync) before the response is sent. `table.py` reads the journal and shows
what arrived and what took effect. So the proof that nothing happened twice does not depend on the runtime.

    python3 shop.py --port 9000 --journal shop.journal
    listening 127.0.0.1:9000

What it sells (JSON in, JSON out):

    GET  /orders/ID                     an order, always the same for the same ID
    GET  /stock/SKU                     how many there are
    POST /charges  /refunds  /shipments  /labels
                                        IDEMPOTENT: the first request of an Idempotency-Key takes
                                        effect, every later one gets the first one's answer
    POST /mail  /gift-cards             NOT IDEMPOTENT: every request takes effect. A request
                                        that is sent twice sends two letters
    POST /flaky                         idempotent; responds 503 to the first {"failures": 2} requests
                                        of a key, then works
    GET  /charges?key=K                 {"charge": …} or {"charge": null}: did this key take effect?
                                        The same for /refunds /shipments /labels /mail /gift-cards
    GET  /charges/ID                    one of them, with an ETag that changes when it changes
    POST /v1/chat/completions           a model in the form of a provider: {"model", "messages"}. Equal
                                        messages get equal answers; every request is a line of the
                                        journal and costs tokens, and changes nothing

How to make it misbehave:

    POST /control  {"route": "POST /charges", "at": "after", "delay_ms": 2000, "times": 1}

    at        "before" or "after" the effect (default "after")
    delay_ms  waits that long
    fail      answers with this status (true = 503)
    hang      never answers
    drop      closes the connection without an answer
    times     how many requests of that route (default: all that come)

    Rules queue up: the oldest one with times left is used. {"reset": true} forgets them all,
    {"change": "/charges/ID"} changes that charge as another client would. The environment's
    SHOP_CONTROL holds a JSON array of rules for the start. GET /control shows them.

    SHOP_TOKEN  if set, every POST but /control needs it in `Authorization` ("Bearer " is optional)

Its state is rebuilt from its journal at the start: kill -9 loses nothing that was answered.
GET /journal is the journal as JSON, GET /health responds when it runs.
"""

import argparse
import hashlib
import http.server
import json
import os
import re
import signal
import sys
import threading
import time
import urllib.parse

# What each route promises. `prefix` begins the ids of what it makes, `name` is what it makes.
IDEMPOTENT, AT_MOST_ONCE, READ = "idempotent", "at_most_once", "read"
MAKES = {
    "charges": {"policy": IDEMPOTENT, "prefix": "ch", "name": "charge"},
    "refunds": {"policy": IDEMPOTENT, "prefix": "re", "name": "refund"},
    "shipments": {"policy": IDEMPOTENT, "prefix": "sh", "name": "shipment"},
    "labels": {"policy": IDEMPOTENT, "prefix": "la", "name": "label"},
    "flaky": {"policy": IDEMPOTENT, "prefix": "fl", "name": "flaky"},
    "mail": {"policy": AT_MOST_ONCE, "prefix": "ma", "name": "mail"},
    "gift-cards": {"policy": AT_MOST_ONCE, "prefix": "gi", "name": "gift_card"},
}
MODEL = ["v1", "chat", "completions"]
BODY_MAX = 1 << 20
CUSTOMERS = ["Ada Byron", "Grace Hopper", "Edsger Dijkstra", "Barbara Liskov", "Leslie Lamport",
             "Nancy Lynch", "Jim Gray", "Radia Perlman"]
GOODS = [("TEA-1", 9), ("MUG-2", 14), ("LAMP-3", 39), ("CHAIR-4", 120), ("BOOK-5", 24), ("PEN-6", 3)]


def order(order_id):
    """An order made from nothing but its id, so that two readings never differ."""
    seed = hashlib.sha256(order_id.encode()).digest()
    items = []
    for i in range(1 + seed[0] % 3):
        sku, price = GOODS[(seed[1] + i) % len(GOODS)]
        items.append({"sku": sku, "qty": 1 + seed[2 + i] % 3, "price": price})
    name = CUSTOMERS[seed[9] % len(CUSTOMERS)]
    return {
        "id": order_id,
        "customer": {"name": name, "email": name.lower().replace(" ", ".") + "@example.com"},
        "items": items,
        "total": sum(item["qty"] * item["price"] for item in items),
    }


def stock(sku):
    return {"sku": sku, "available": hashlib.sha256(sku.encode()).digest()[0] % 50}


def completion(body, number):
    """The answer of the model to these messages: always the same, except for its id."""
    messages = body["messages"]
    last = str(messages[-1]["content"])
    text = f"Dear customer, {last[:1].lower()}{last[1:]}" if len(messages) == 1 else f"{len(messages)} messages: {last}"
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    words = text.split()
    cut = limit is not None and len(words) > limit
    if cut:
        text = " ".join(words[:limit])
    prompt, answer = sum(len(str(m["content"]).split()) for m in messages), len(text.split())
    return {
        "id": f"chatcmpl-{number:06d}", "object": "chat.completion", "model": f"{body['model']}-2026-11-01",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text, "refusal": None},
                     "finish_reason": "length" if cut else "stop"}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer},
    }


class Journal:
    """Lines of JSON, each on disk before `write` returns. Numbered from 1 without a gap."""

    def __init__(self, path):
        self.lines = []
        self.file = open(path, "a+b", buffering=0)
        self.file.seek(0)
        data = self.file.read()
        whole = data.rfind(b"\n") + 1
        self.file.truncate(whole)  # a line that a kill cut in two was never answered
        for line in data[:whole].splitlines():
            self.lines.append(json.loads(line))

    def write(self, kind, **fields):
        entry = {"n": len(self.lines) + 1, "t": round(time.time(), 6), "kind": kind, **fields}
        self.file.write(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
        os.fsync(self.file.fileno())
        self.lines.append(entry)
        return entry


class Shop:
    """What exists, and what took effect. Everything that changes it goes through the journal."""

    def __init__(self, journal):
        self.lock = threading.Lock()
        self.journal = journal
        self.things = {}  # (collection, id) -> thing
        self.by_key = {}  # (collection, idempotency key) -> thing as first answered
        self.applied = {}   # (collection, idempotency key) -> body of the request that took effect
        self.seen = {}    # (collection, idempotency key) -> how many requests arrived
        for entry in journal.lines:
            self.take_in(entry)

    def take_in(self, entry):
        """One journal line becomes state. Nothing else does: a restart is the same as no restart."""
        if entry["kind"] == "arrival":
            where = (collection_of(entry["route"]), entry["idempotency_key"])
            self.seen[where] = self.seen.get(where, 0) + 1
        elif entry["kind"] == "effect":
            thing, collection = entry["answer"], collection_of(entry["route"])
            self.things[collection, thing["id"]] = dict(thing)
            if entry["idempotency_key"]:
                self.by_key.setdefault((collection, entry["idempotency_key"]), thing)
                self.applied.setdefault((collection, entry["idempotency_key"]), entry["body"])
            refunded = self.things.get(("charges", str(entry["body"].get("charge"))))
            if collection == "refunds" and refunded:
                refunded["status"] = "refunded"
                new_version(refunded)
        elif entry["kind"] == "change":
            new_version(self.things[entry["collection"], entry["id"]])

    def write(self, kind, **fields):
        """REQUIRES: the lock."""
        entry = self.journal.write(kind, **fields)
        self.take_in(entry)
        return entry

    def arrive(self, **request):
        """Notes a request. Returns its journal line, and how many of its key came before it."""
        with self.lock:
            where = (collection_of(request["route"]), request["idempotency_key"])
            before = self.seen.get(where, 0)
            return self.write("arrival", **request), before

    def refuse(self, arrival, status):
        """Notes that a request was turned away without any effect."""
        with self.lock:
            self.write("refused", route=arrival["route"], policy=arrival["policy"],
                       idempotency_key=arrival["idempotency_key"], arrival=arrival["n"],
                       status=status)

    def make(self, collection, arrival, address):
        """The effect. Returns (thing, whether this very request brought it about)."""
        made, key = MAKES[collection], arrival["idempotency_key"]
        with self.lock:
            if made["policy"] == IDEMPOTENT and (collection, key) in self.by_key:
                return self.by_key[collection, key], False
            thing_id = f"{made['prefix']}_{len(self.journal.lines) + 1:06d}"
            thing = {**arrival["body"], "id": thing_id, "status": "done", "version": 1,
                     "etag": etag(thing_id, 1), "url": f"http://{address}/{collection}/{thing_id}"}
            self.write("effect", route=arrival["route"], policy=made["policy"],
                       idempotency_key=key, invocation_id=arrival["invocation_id"],
                       **{"try": arrival["try"]}, arrival=arrival["n"], body=arrival["body"],
                       answer=thing)
            return thing, True


def collection_of(route):
    return route.split("/")[1]


def etag(thing_id, version):
    return f'"{thing_id}-v{version}"'


def new_version(thing):
    thing["version"] += 1
    thing["etag"] = etag(thing["id"], thing["version"])


class Control:
    """The rules by which the shop misbehaves."""

    KEYS = {"route", "at", "delay_ms", "fail", "hang", "drop", "times"}

    def __init__(self):
        self.lock = threading.Lock()
        self.rules = []

    def add(self, rule):
        if not isinstance(rule, dict) or not isinstance(rule.get("route"), str):
            raise ValueError('a rule needs a "route" such as "POST /charges"')
        if unknown := set(rule) - self.KEYS:
            raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
        if rule.get("at", "after") not in ("before", "after"):
            raise ValueError('"at" is "before" or "after"')
        with self.lock:
            self.rules.append({"at": "after", "times": None, **rule})

    def reset(self):
        with self.lock:
            self.rules.clear()

    def take(self, route):
        """The rule for this request, or an empty one."""
        with self.lock:
            for rule in self.rules:
                if rule["route"] == route and rule["times"] != 0:
                    if rule["times"] is not None:
                        rule["times"] -= 1
                    return dict(rule)
        return {}

    def show(self):
        with self.lock:
            return [dict(rule) for rule in self.rules]


class Gone(Exception):
    """The answer will not be sent: the connection is to be closed."""


class Refusal(Exception):
    """An answer with an error status."""

    def __init__(self, status, error, message):
        super().__init__(message)
        self.status, self.body = status, {"error": error, "message": message}


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection. `self.server` holds the shop, the control and the token."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body of an answer leave together

    def do_GET(self):
        self.serve(self.get)

    def do_POST(self):
        self.serve(self.post)

    def serve(self, handle):
        url = urllib.parse.urlsplit(self.path)
        self.parts = [urllib.parse.unquote(part) for part in url.path.split("/")[1:]]
        self.query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        try:
            handle(self.read_body())
        except Refusal as refusal:
            self.answer(refusal.status, refusal.body)
        except Gone:
            self.close_connection = True
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client is gone; the effect remains

    # ---- routes

    def get(self, _body):
        parts = self.parts
        if parts == ["health"]:
            return self.answer(200, {"ok": True})
        if parts == ["journal"]:
            with self.server.shop.lock:
                lines = list(self.server.shop.journal.lines)
            return self.answer(200, {"journal": lines})
        if parts == ["control"]:
            return self.answer(200, {"rules": self.server.control.show()})
        arrival, _ = self.arrive("GET", READ, {})
        rule = self.server.control.take(arrival["route"])
        self.misbehave(rule, rule.get("at"), arrival)
        self.answer(200, self.look_up(parts))

    def look_up(self, parts):
        shop = self.server.shop
        if len(parts) == 2 and parts[0] == "orders":
            if parts[1].startswith("missing") or not re.fullmatch(r"[\w.-]{1,64}", parts[1]):
                raise Refusal(404, "not_found", f"there is no order {parts[1]}")
            return order(parts[1])
        if len(parts) == 2 and parts[0] == "stock":
            return stock(parts[1])
        if parts[0] in MAKES and len(parts) == 1 and "key" in self.query:
            with shop.lock:
                return {MAKES[parts[0]]["name"]: shop.by_key.get((parts[0], self.query["key"]))}
        if parts[0] in MAKES and len(parts) == 2:
            with shop.lock:
                thing = shop.things.get((parts[0], parts[1]))
                if thing:
                    return dict(thing)
            raise Refusal(404, "not_found", f"there is no {'/'.join(parts)}")
        raise Refusal(404, "not_found", f"there is no route GET {self.path}")

    def post(self, body):
        collection = self.parts[0]
        if self.parts == ["control"]:
            return self.change_rules(body)
        if self.parts == MODEL:
            return self.complete(body)
        if len(self.parts) != 1 or collection not in MAKES:
            raise Refusal(404, "not_found", f"there is no route POST {self.path}")
        policy = MAKES[collection]["policy"]
        arrival, before = self.arrive("POST", policy, body)
        if problem := self.problem_with(collection, arrival):
            self.server.shop.refuse(arrival, problem.status)
            raise problem
        rule = self.server.control.take(arrival["route"])
        self.misbehave(rule, "before", arrival)
        if collection == "flaky" and before < body.get("failures", 2):
            raise Refusal(503, "flaky", f"failure {before + 1}, as you asked")
        thing, fresh = self.server.shop.make(collection, arrival, self.server.address)
        self.misbehave(rule, "after", arrival)
        self.answer(201, thing, {} if fresh else {"Idempotent-Replayed": "true"})

    def complete(self, body):
        arrival, _ = self.arrive("POST", READ, body)
        token = self.server.token
        if token and self.headers.get("Authorization", "") != "Bearer " + token:
            return self.answer(401, {"error": {"type": "invalid_request_error", "message": "this is no key of ours"}})
        messages = body.get("messages") if isinstance(body, dict) else None
        good = isinstance(messages, list) and messages and all(isinstance(m, dict) and "content" in m for m in messages)
        if not good or not isinstance(body.get("model"), str):
            return self.answer(400, {"error": {"type": "invalid_request_error", "message": "a model and messages are needed"}})
        rule = self.server.control.take(arrival["route"])
        self.misbehave(rule, rule.get("at"), arrival)
        return self.answer(200, completion(body, arrival["n"]))

    def problem_with(self, collection, arrival):
        """Why this request is turned away, or None."""
        token, key = self.server.token, arrival["idempotency_key"]
        if token and self.headers.get("Authorization", "") not in (token, "Bearer " + token):
            return Refusal(401, "unauthenticated", "the Authorization header does not hold the token")
        if not isinstance(arrival["body"], dict):
            return Refusal(400, "bad_request", "the body must be a JSON object")
        if MAKES[collection]["policy"] != IDEMPOTENT:
            return None
        if not key:
            return Refusal(400, "key_missing", "this route needs the header Idempotency-Key")
        if self.server.shop.applied.get((collection, key), arrival["body"]) != arrival["body"]:
            return Refusal(422, "key_reused", "this Idempotency-Key stands for another request")
        return None

    def change_rules(self, body):
        shop, control = self.server.shop, self.server.control
        try:
            if body.get("reset"):
                control.reset()
            elif "change" in body:
                _, collection, thing_id = body["change"].split("/")
                with shop.lock:
                    if (collection, thing_id) not in shop.things:
                        raise ValueError(f"there is no {body['change']}")
                    shop.write("change", route="POST /control", policy="control",
                               idempotency_key=None, collection=collection, id=thing_id)
            else:
                control.add(body)
        except (ValueError, AttributeError) as error:
            raise Refusal(400, "bad_request", str(error)) from error
        self.answer(200, {"rules": control.show()})

    # ---- plumbing

    def read_body(self):
        try:
            length = int(self.headers.get("Content-Length") or 0)
        except ValueError:
            length = -1
        if not 0 <= length <= BODY_MAX or self.headers.get("Transfer-Encoding"):
            self.close_connection = True
            raise Refusal(413, "bad_request", "a body needs a Content-Length of at most 1 MiB")
        data = self.rfile.read(length)
        if len(data) < length:
            raise Gone  # cut off: it never arrived
        try:
            return json.loads(data) if data else {}
        except ValueError as error:
            raise Refusal(400, "bad_request", f"the body is not JSON: {error}") from error

    def arrive(self, method, policy, body):
        sent = self.headers.get
        number = sent("X-Aetheris-Try", "")
        return self.server.shop.arrive(
            route=f"{method} /{'/'.join(MODEL) if self.parts == MODEL else self.parts[0]}", policy=policy, path=self.path,
            idempotency_key=sent("Idempotency-Key"), invocation_id=sent("X-Aetheris-Invocation-Id"),
            **{"try": int(number) if number.isdigit() else None}, body=body)

    def misbehave(self, rule, at, arrival):
        if not rule or rule["at"] != at:
            return
        time.sleep(rule.get("delay_ms", 0) / 1000)
        if rule.get("hang"):
            self.server.stopping.wait()
            raise Gone
        if rule.get("drop"):
            raise Gone
        if rule.get("fail"):
            status = 503 if rule["fail"] is True else int(rule["fail"])
            if at == "before" and 400 <= status < 500:
                self.server.shop.refuse(arrival, status)
            raise Refusal(status, "as_asked", f"failed {at} the effect, as the rule says")

    def answer(self, status, value, headers=None):
        data = json.dumps(value).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if isinstance(value, dict) and "etag" in value:
            self.send_header("ETag", value["etag"])
        if status == 503:
            self.send_header("Retry-After", "0")
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()

    def log_message(self, *_):
        pass  # the journal has each request


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def __init__(self, port, journal, token=""):
        super().__init__(("127.0.0.1", port), Handler)
        self.address = f"127.0.0.1:{self.server_address[1]}"
        self.shop = Shop(Journal(journal))
        self.control = Control()
        self.token = token
        self.stopping = threading.Event()

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], ConnectionError):  # a killed caller is not an error
            super().handle_error(request, client_address)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0, help="0 (default): a free one")
    parser.add_argument("--journal", default="shop.journal", help="its memory (default %(default)s)")
    options = parser.parse_args()

    server = Server(options.port, options.journal, os.environ.get("SHOP_TOKEN", ""))
    for rule in json.loads(os.environ.get("SHOP_CONTROL") or "[]"):
        server.control.add(rule)

    def stop(*_):
        server.stopping.set()
        threading.Thread(target=server.shutdown, daemon=True).start()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    print(f"listening {server.address}", flush=True)
    server.serve_forever(poll_interval=0.1)


if __name__ == "__main__":
    main()
