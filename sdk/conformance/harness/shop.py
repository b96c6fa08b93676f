"""Shop: the HTTP server outside of worker and server, whose journal shows what was performed (README.md)."""
import collections
import http.server
import json
import threading
import time

# One performance: the idempotency key, the number of the try, the label of the operation and its value.
Performance = collections.namedtuple("Performance", "key try_no label value")

HELD_MAX = 5.0  # seconds; a fault can make the condition of a hold impossible


def job_of(key):
    """The job of a key `aetheris:JOB:STEP:…`."""
    return key.split(":")[1] if key and key.startswith("aetheris:") else None


class Shop:
    """Threads: any."""

    def __init__(self):
        self.lock = threading.Lock()
        self.by_job = collections.defaultdict(list)
        self.held = {}  # (job, label): an Event, until which performances are not answered
        shop = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self):
                shop.answer(self)

            do_GET = do_PUT = do_DELETE = do_POST

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, request, client_address):
                pass  # a client that was killed

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def performances(self, job):
        with self.lock:
            return list(self.by_job[job])

    def add(self, key, try_no, label, value):
        with self.lock:
            self.by_job[job_of(key)].append(Performance(key, try_no, label, value))

    def hold(self, job, labels):
        """Performances with these labels are answered after `release`."""
        with self.lock:
            self.held.update({(job, label): threading.Event() for label in labels})

    def release(self, job, label):
        with self.lock:
            self.held[job, label].set()

    def until_released(self, key, label):
        with self.lock:
            event = self.held.get((job_of(key), label))
        if event is not None:
            event.wait(HELD_MAX)

    def answer(self, request):
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        status, value = self.answer_of(request, json.loads(body) if body else None)
        data = json.dumps(value).encode()
        request.send_response(status)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)

    def answer_of(self, request, body):
        path, key = request.path, request.headers.get("Idempotency-Key")
        if path == "/perform":
            self.add(body["key"], body["try"], body["label"], body["value"])
            self.until_released(body["key"], body["label"])
            return 200, {}
        if path == "/tool":
            return self.tool(body, key, int(request.headers.get("X-Aetheris-Try") or 1))
        if path.startswith("/fetch/"):
            if key is not None:
                self.add(key, None, f"fetch:{request.command}:{path}", body)
            return 200, {"method": request.command, "path": path, "body": body}
        if path.startswith("/status/"):
            return int(path.rsplit("/", 1)[1]), {}
        if path == "/v1/chat/completions":
            last = body["messages"][-1]["content"]
            text = json.dumps({"echo": last}) if "response_format" in body else f"echo: {last}"
            return 200, {"id": "c", "object": "chat.completion", "created": 0, "model": body["model"],
                         "choices": [{"index": 0, "finish_reason": "stop",
                                      "message": {"role": "assistant", "content": text}}],
                         "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}
        return 404, {"error": path}

    def tool(self, body, key, try_no):
        """A tool of the agents file. It behaves as `perform` of a worker does, as far as HTTP can."""
        self.add(key, try_no, body["label"], body["value"])
        self.until_released(key, body["label"])
        does = body["does"]
        act = does[min(try_no, len(does)) - 1]
        time.sleep(act.get("slow_ms", 0) / 1000)
        if "fail" in act:
            return (503 if act.get("retryable") else 422), {"error": act["fail"]}
        if "throw" in act:
            return 500, {"error": act["throw"]}
        return 200, act.get("result", body["value"])
