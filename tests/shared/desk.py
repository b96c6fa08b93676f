"""The base of tests of agents: a folder, a shop (an HTTP service that counts its payments) and the scripted model server."""
import collections
import functools
import http.server
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading

from shared import home
from shared.program import BIN, ROOT

SERVER = ROOT / "examples/model-server/server.mjs"
SCENARIOS = SERVER.parent / "scenarios"
PATIENCE = 120


class Shop(http.server.ThreadingHTTPServer):
    """Returns orders and executes payments. A repeated key gets the first answer and pays nothing."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), ShopRequest)
        self.lock = threading.Lock()
        self.answers = {}  # path: the answer there instead of an order
        self.receipt = lambda body: {"ok": True, "of": body}
        self.on_payment = lambda: None  # called with each effect
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.reset()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def reset(self):
        self.done = {}  # key: answer
        self.paid = []  # (path, body) of each effect
        self.requests = []  # (path, key) of each request
        self.tokens = set()

    @property
    def effects(self):
        """The number of effects, by path."""
        return collections.Counter(path for path, _ in self.paid)

    def handle_error(self, *_):
        pass  # the client was killed

    def close(self):
        self.shutdown()
        self.server_close()


class ShopRequest(http.server.BaseHTTPRequestHandler):
    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        shop = self.server
        with shop.lock:
            shop.requests.append((self.path, None))
        self.answer(shop.answers.get(self.path) or {"id": self.path.rsplit("/", 1)[1], "total": 12})

    def do_POST(self):
        shop = self.server
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        key = self.headers["idempotency-key"]
        with shop.lock:
            shop.requests.append((self.path, key))
            shop.tokens.add(self.headers["authorization"])
            if key not in shop.done:
                shop.paid.append((self.path, body))
                shop.done[key] = shop.receipt(body)
                shop.on_payment()
        self.answer(shop.done[key])

    def log_message(self, *_):
        pass


class Desk:
    """The folder, the shop and a model server that plays `scenarios`. No command may print a text of `secrets`."""
    program = BIN

    def __init__(self, secrets, *scenarios):
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="aetheris-desk-"))
        self.shop, self.secrets = Shop(), secrets
        self.scenarios = [word for path in scenarios for word in ("--scenario", path)]
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("AETHERIS_")}

    def open_models(self, *words):
        """Its URL."""
        words = ["node", SERVER, "--journal", self.path / "requests.jsonl", *self.scenarios, *words]
        self.models = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
        return self.models.stdout.readline().split()[-1]

    def close_models(self):
        self.models.kill()
        self.models.wait()
        self.models.stdout.close()

    def close(self):
        self.close_models()
        self.shop.close()
        shutil.rmtree(self.path, ignore_errors=True)

    def run(self, *words, code=None, **env):
        done = subprocess.run([self.program, *words], cwd=self.path, env={**self.env, **env}, capture_output=True, text=True,
                              timeout=PATIENCE, stdin=subprocess.DEVNULL)
        assert code is None or done.returncode == code, f"{words}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert not any(secret in done.stdout + done.stderr for secret in self.secrets), "a secret was shown"
        return done

    def start(self, agent, given, job, *words, code=None, **env):
        return self.run("run", "agents.yaml", agent, "--job-id", job, *words, "--input", json.dumps(given), code=code, **env)

    def model_requests(self):
        path = self.path / "requests.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def approvals(self):
        return json.loads(self.run("approvals", "--json", code=0).stdout)["approvals"]

    def events(self, job="t"):
        """The events of a job; [] if it does not exist."""
        result = self.run("events", job, "--json")
        return json.loads(result.stdout)["events"] if result.returncode == 0 else []

    def expect_verified(self, job="t", status="completed"):
        body = json.loads(self.run("job", job, "--json", code=0).stdout)
        assert body["status"] == status, body
        self.run("verify", job, code=0)
        return body


def failpoint_hits(done):
    """The failpoints that a traced run reached, each once."""
    return list(dict.fromkeys(re.findall(r"failpoint (\S+@\d+)", done.stderr)))


def exit_at(point):
    return {"AETHERIS_FAILPOINTS": point.replace("@", "=exit@")}


def job_name(*words):
    """A job id made of words, such as a failpoint."""
    return "-".join(map(str, words)).replace("@", "-").replace(".", "-")


def run_tests(area, tests, desk):
    """Runs each test with its own desk. Returns the exit code."""
    def at_desk(test):
        @functools.wraps(test)
        def run():
            own = desk()
            try:
                test(own)
            finally:
                own.close()
        return run

    return home.run_tests(area, [at_desk(test) for test in tests], " ".join(sys.argv[1:]))
