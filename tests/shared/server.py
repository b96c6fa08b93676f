"""`aetheris serve` in a home, with requests to its API; and HTTP servers that a test plays itself."""
import contextlib
import http.client
import http.server
import json
import signal
import threading
import urllib.parse

from shared.home import PATIENCE, home


class Server:
    """`aetheris serve` in a home; `request` sends one request."""

    def __init__(self, h, *words, env=None, prefix=()):
        self.h = h
        self.process = h.start("serve", *(words or ("agents.yaml",)), "--listen", "127.0.0.1:0", "--json", env=env,
                               prefix=prefix)
        line = self.process.stdout.readline()
        assert line, self.h.end(self.process)
        self.url = json.loads(line)["listening"]
        self.address = urllib.parse.urlsplit(self.url).netloc
        self.env = {"AETHERIS_URL": self.url}

    def request(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection(self.address, timeout=PATIENCE)
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, headers or {})
        answer = connection.getresponse()
        raw = answer.read().decode()
        connection.close()
        kind = answer.headers.get("Content-Type", "")
        return answer.status, json.loads(raw) if "json" in kind else raw

    def get(self, path, **more):
        return self.request("GET", path, **more)

    def post(self, path, body, **more):
        return self.request("POST", path, body, **more)

    def status(self, job):
        return self.get(f"/api/jobs/{job}")[1]["status"]

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.h.end(self.process)


@contextlib.contextmanager
def serving(*words, env=None):
    with home() as h:
        yield Server(h, *words, env=env)


class Scripted(http.server.BaseHTTPRequestHandler):
    """The handler of a test's own server: do_GET answers GET and POST."""

    def send_head(self, status=200, kind="application/json", size=None):
        """Reads the request and sends the headers of the answer. Without a size the end of the connection ends the body."""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if size is not None:
            self.send_header("Content-Length", str(size))
        self.end_headers()

    def do_POST(self):
        self.do_GET()

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def test_server(handler):
    """Runs a server of the test. Yields its URL."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


class StderrLines:
    """The lines that a server prints on stderr, read as they arrive."""

    def __init__(self, process):
        self.lines = []
        self.thread = threading.Thread(target=self.read, args=(process.stderr,), daemon=True)
        self.thread.start()

    def read(self, stream):
        for line in stream:
            self.lines.append(line.rstrip("\n"))

    def has(self, text):
        return any(text in line for line in self.lines)
