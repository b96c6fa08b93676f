#!/usr/bin/env python3
"""A downstream that acts late, with kill -9 and an immediate restart: each at_most_once call takes effect at most once.

The downstream accepts a request and acts up to timeout + grace/2 later, whatever happens to the client. The calls are made over
HTTP, by a program (curl) and by an MCP server on stdio. A probe or an operator resolves unknown outcomes; the operator reports
`not_happened` as early as it is accepted.

Prints `ok NAME` or `not ok NAME` for each test. tests/shared/program.py finds the program.
  settles.py [--calls N] [WORDS]   N calls for each store (default 36)

With AETHERIS_SLOW_TESTS=1 also 1,000 calls of each of KINDS for each store. src/app/native_late_test.cc tests native functions,
because no native function of the program has a downstream.
"""
import calendar
import collections
import http.client
import http.server
import json
import math
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from shared.home import expect, home, run_tests, until  # noqa: E402

TESTS = []
CALLS = 36
SLOW_CALLS = 1000  # of each kind
SLOW = os.environ.get("AETHERIS_SLOW_TESTS") == "1"
KILLS = 6
TIMEOUT_S, GRACE_S = 0.8, 1.0
ACTS_WITHIN_S = TIMEOUT_S + GRACE_S / 2
KINDS = ["http_probe", "http_person", "program_probe", "program_person", "mcp_probe", "mcp_person"]

FIND = '  find: { http: { method: GET, url: "${ env.SHOP }/find/${ .args.key }" }, effect: read, timeout: 5s }'
REACHED = {
    "http": 'http: { method: POST, url: "${ env.SHOP }/act/${ .args.key }" }',
    "program": 'command: ["curl", "-s", "--noproxy", "*", "-X", "POST", "${ env.SHOP }/act/${ .args.key }"]',
    "mcp": 'mcp: { command: SERVER, env: { SHOP: "${ env.SHOP }" } }',
}
POLICY = {
    "probe": 'on_in_doubt: probe\n    probe: { tool: find, args: { key: "${ .args.key }" }, happened: "${ .result.found }" }',
    "person": "on_in_doubt: park",
}


def test(function):
    TESTS.append(function)
    return function


class Shop(http.server.ThreadingHTTPServer):
    """Acts on every request, each after its own delay, also if the client disconnects."""
    request_queue_size = 1024
    daemon_threads = True

    def __init__(self, seed, delay=None):
        super().__init__(("127.0.0.1", 0), ShopRequest)
        self.delay = delay  # None: drawn for each request
        self.lock = threading.Lock()
        self.generator = random.Random(seed)
        self.effects = collections.Counter()
        self.requests = collections.Counter()
        self.under_way = 0
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_):
        pass  # the client was killed

    def act(self, key):
        with self.lock:
            self.requests[key] += 1
            self.under_way += 1
            delay = self.generator.choice([0, self.generator.uniform(0, ACTS_WITHIN_S), ACTS_WITHIN_S])
            delay = delay if self.delay is None else self.delay
        time.sleep(delay)
        with self.lock:
            self.effects[key] += 1
            self.under_way -= 1

    def found(self, key):
        with self.lock:
            return {"key": key} if self.effects[key] else None


class ShopRequest(http.server.BaseHTTPRequestHandler):
    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer({"found": self.server.found(self.path.rsplit("/", 1)[1])})

    def do_POST(self):
        key = self.path.rsplit("/", 1)[1]
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.server.act(key)
        self.answer({"key": key})

    def log_message(self, *_):
        pass


def serve_mcp(shop):
    """An MCP server on stdio whose tool `act` makes a request to the shop. It answers out of order."""
    lock = threading.Lock()

    def reply(message):
        with lock:
            print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

    def act(number, key):
        request = urllib.request.Request(f"{shop}/act/{key}", data=b"", method="POST")
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
            text = answer.read().decode()
        reply({"id": number, "result": {"content": [{"type": "text", "text": text}]}})

    for line in sys.stdin:
        message = json.loads(line)
        number, method = message.get("id"), message.get("method")
        if method == "initialize":
            reply({"id": number, "result": {"protocolVersion": message["params"]["protocolVersion"],
                                            "capabilities": {"tools": {}}, "serverInfo": {"name": "shop", "version": "1"}}})
        elif method == "tools/list":
            schema = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}
            reply({"id": number, "result": {"tools": [{"name": "act", "inputSchema": schema}]}})
        elif method == "tools/call":
            threading.Thread(target=act, args=(number, message["params"]["arguments"]["key"])).start()
        elif number is not None:
            reply({"id": number, "error": {"code": -32601, "message": "no such method"}})


def agents_file(grace_s):
    """An agent for each of KINDS, which makes one call."""
    server = json.dumps([sys.executable, "-B", str(pathlib.Path(__file__).resolve()), "--mcp"])
    tools, agents = [FIND], []
    for kind in KINDS:
        reached, answered_by = kind.split("_")
        tools += [f"  {kind}:", "    " + REACHED[reached].replace("SERVER", server), "    effect: at_most_once",
                  f"    timeout: {int(TIMEOUT_S * 1000)}ms", f"    grace: {int(grace_s * 1000)}ms", "    " + POLICY[answered_by]]
        tool = kind + ".act" if reached == "mcp" else kind
        agents += [f"  {kind}:", f'    plan: [ {{ id: act, tool: {tool}, args: {{ key: "${{ .job.id }}" }} }} ]']
    return "\n".join(["aetheris: 1", "tools:", *tools, "agents:", *agents]) + "\n"


class Service:
    """`aetheris serve` on one store; its processes are killed."""

    def __init__(self, h, shop, env, grace_s=GRACE_S):
        self.h, self.env = h, {"SHOP": shop.url, **env}
        (h.path / "agents.yaml").write_text(agents_file(grace_s))
        self.log = open(h.path / "serve.log", "ab")
        self.start()

    def start(self):
        words = ["serve", "agents.yaml", "--listen", "127.0.0.1:0", "--json", "--lease", "2s"]
        self.process = subprocess.Popen([self.h.program, *words], cwd=self.h.path, env={**self.h.env, **self.env},
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.h.started.append(self.process)
        line = self.process.stdout.readline()
        assert line, (self.h.path / "serve.log").read_text()
        self.address = urllib.parse.urlsplit(json.loads(line)["listening"]).netloc

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()

    def request(self, method, path, body=None):
        """(status, value); (0, None): the server was killed meanwhile."""
        try:
            connection = http.client.HTTPConnection(self.address, timeout=30)
            connection.request(method, path, None if body is None else json.dumps(body),
                               {"Content-Type": "application/json"})
            answer = connection.getresponse()
            value = json.loads(answer.read())
            connection.close()
            return answer.status, value
        except (OSError, http.client.HTTPException, ValueError):
            return 0, None

    def doubts(self, job):
        """The calls of the job whose outcome is unknown; none while the server starts."""
        status, answer = self.request("GET", f"/api/jobs/{job}")
        return answer["in_doubt"] if status == 200 else []


def seconds(text):
    whole, part = text.rstrip("Z").split(".")
    return calendar.timegm(time.strptime(whole, "%Y-%m-%dT%H:%M:%S")) + float("0." + part)


class Operator(threading.Thread):
    """Resolves each unknown outcome with the state of the shop. Never waits for `resolvable_at`."""

    def __init__(self, service, shop):
        super().__init__(daemon=True)
        self.service, self.shop, self.stopping, self.faults = service, shop, False, []
        self.refused = self.accepted = 0

    def run(self):
        while not self.stopping:
            status, page = self.service.request("GET", "/api/jobs?in_doubt=true&limit=100")
            for job in page["jobs"] if status == 200 else []:
                for doubt in job["in_doubt"]:
                    self.resolve(job["id"], doubt)
            time.sleep(0.1)

    def resolve(self, job, doubt):
        body = {"idempotency_key": doubt["idempotency_key"], "resolution": "not_happened"}
        if found := self.shop.found(job):
            body.update(resolution="happened", result=found)
        status, answer = self.service.request("POST", f"/api/jobs/{job}/resolve", body)
        if body["resolution"] == "happened" or status == 0:
            return
        if status in (200, 202):
            self.accepted += 1
            if time.time() < seconds(doubt["resolvable_at"]) - 0.01:
                self.faults.append(f"{job}: accepted before {doubt['resolvable_at']}")
        elif answer["code"] == "not_settled":
            self.refused += 1
            if doubt["resolvable_at"] not in json.dumps(answer):
                self.faults.append(f"{job}: resolvable_at is {doubt['resolvable_at']}, refused with {answer}")


def at_most_once(env, calls, kinds=KINDS):
    seed = int(os.environ.get("SETTLES_SEED", random.randrange(1 << 32)))
    generator, shop = random.Random(seed), Shop(seed)
    with home() as h:
        service = Service(h, shop, env)
        operator = Operator(service, shop)
        operator.start()
        jobs = {f"j{n}": kinds[n % len(kinds)] for n in range(calls)}
        left = list(jobs)
        try:
            for kill in range(KILLS):
                for _ in range(-(-len(left) // (KILLS - kill))):
                    job = left.pop(0)
                    status, answer = service.request("POST", "/api/jobs", {"agent": jobs[job], "id": job})
                    assert status == 201, answer
                time.sleep(generator.uniform(0.05, 1.2))
                service.kill()
                service.start()
            persons = [kind for kind in kinds if kind.endswith("_person")]

            def refused_once():
                """Without a kill there is a second between the timeout and the settling of a call; one more job for each try."""
                if not operator.refused and len(jobs) < calls + 20:
                    job = f"j{len(jobs)}"
                    jobs[job] = persons[len(jobs) % len(persons)]
                    assert service.request("POST", "/api/jobs", {"agent": jobs[job], "id": job})[0] == 201
                    time.sleep(TIMEOUT_S + GRACE_S)
                return operator.refused
            if persons:
                until(refused_once, 60 + calls)
            ended = set()

            def all_ended():
                for job in jobs:
                    if job not in ended and service.request("GET", f"/api/jobs/{job}")[1]["status"] in ("completed", "failed"):
                        ended.add(job)
                time.sleep(0.2)
                return len(ended) == len(jobs)
            until(all_ended, 60 + calls)
            until(lambda: shop.under_way == 0)
            operator.stopping = True
            operator.join()
            wrong = {job: (jobs[job], n) for job, n in shop.effects.items() if n > 1}
            assert not wrong, f"seed {seed}: took effect more than once: {wrong}"
            for job, kind in jobs.items():
                seen = service.request("GET", f"/api/jobs/{job}")[1]
                assert seen["status"] == "completed", f"seed {seed}: {kind} {job}: {seen['error']}"
                assert shop.effects[job] == 1, f"seed {seed}: {kind} {job} is completed without an effect"
                assert service.request("GET", f"/api/jobs/{job}/verify")[1]["ok"], f"{kind} {job}"
            assert not operator.faults, f"seed {seed}: {operator.faults[:5]}"
            service.process.send_signal(signal.SIGTERM)
            service.process.wait()
        finally:
            operator.stopping = True
            shop.shutdown()


def on_every_kind(new_store):
    at_most_once(new_store(), CALLS)
    for kind in KINDS if SLOW else []:
        at_most_once(new_store(), SLOW_CALLS, [kind])


@test
def on_sqlite_a_late_downstream_executes_each_call_at_most_once():
    on_every_kind(dict)


@test
def on_postgres_a_late_downstream_executes_each_call_at_most_once():
    from shared.postgres_server import Postgres
    server = Postgres()
    try:
        on_every_kind(lambda: {"AETHERIS_STORE": server.database()})
    finally:
        server.end()


@test
def the_earliest_time_for_not_happened_does_not_move_with_restarts():
    """`not_happened` is accepted from one time on, which no restart moves; `job` and the error show the same time."""
    shop = Shop(1, delay=30)
    with home() as h:
        grace_s = 60.0
        service = Service(h, shop, {}, grace_s)
        assert service.request("POST", "/api/jobs", {"agent": "http_person", "id": "j"})[0] == 201
        until(lambda: shop.requests["j"] == 1)
        service.kill()
        began = time.time()
        seen = []
        for _ in range(3):
            service.start()
            doubt = until(lambda: service.doubts("j"))[0]
            seen.append(doubt["resolvable_at"])
            status, answer = service.request("POST", "/api/jobs/j/resolve", {"idempotency_key": doubt["idempotency_key"],
                                                                             "resolution": "not_happened"})
            assert (status, answer["code"]) == (409, "not_settled") and seen[0] in json.dumps(answer), answer
            service.kill()
        assert len(set(seen)) == 1, seen
        settled_from = seconds(seen[0]) - TIMEOUT_S - grace_s
        assert began <= settled_from < began + 9, "it counts from the first opening after the kill"
        answer = expect(h.run("job", "j"), 0)
        shown = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(math.ceil(seconds(seen[0]))))
        assert f"accepted after {shown}" in answer.out, answer
        shop.shutdown()


@test
def a_complete_500_response_settles_its_call():
    class Broken(ShopRequest):
        def do_POST(self):
            self.send_response(int(self.path.rsplit("/", 1)[1]))
            self.send_header("Content-Length", "0")
            self.end_headers()

    shop = Shop(1)
    shop.RequestHandlerClass = Broken
    with home() as h:
        service = Service(h, shop, {})
        for status, settles in (("500", True), ("503", False)):
            assert service.request("POST", "/api/jobs", {"agent": "http_person", "id": status})[0] == 201
            doubt = until(lambda: service.doubts(status))[0]
            assert doubt["reason"] == f"http_{status}", doubt
            answer, reply = service.request("POST", f"/api/jobs/{status}/resolve",
                                            {"idempotency_key": doubt["idempotency_key"], "resolution": "not_happened"})
            assert (answer in (200, 202)) == settles, (status, answer, reply)
        service.kill()
        shop.shutdown()


if __name__ == "__main__":
    if sys.argv[1:] == ["--mcp"]:
        sys.exit(serve_mcp(os.environ["SHOP"]))
    WORDS = sys.argv[1:]
    if "--calls" in WORDS:
        at = WORDS.index("--calls")
        CALLS = int(WORDS[at + 1])
        del WORDS[at:at + 2]
    sys.exit(run_tests("settles", TESTS, " ".join(WORDS)))
