"""ctx.fetch, ctx.urlopen and ctx.httpx, against a local server; and Client."""
import http.server
import json
import threading
import unittest
import urllib.error
import urllib.request

from aetheris import AetherisError, Client, ConnectionFailed, Failure, InvalidInput, ToolFailed

from .support.harness import run_job

try:
    import httpx
except ImportError:
    httpx = None


class Handler(http.server.BaseHTTPRequestHandler):
    seen = []

    def do_GET(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.seen.append((self.command, self.path, dict(self.headers), body))
        if self.path == "/moved":
            return self.answer(302, b"", Location="/text")
        if self.path.startswith("/moved/"):
            status, _, to = self.path[len("/moved/"):].partition("/")
            return self.answer(int(status), b"", Location=f"/{to}" if to else self.path)
        if self.path == "/away":
            return self.answer(307, b"", Location="http://127.0.0.1:9/")
        if self.path == "/busy":
            return self.answer(429, b"", **{"Retry-After": "2"})
        if self.path == "/chat/completions":
            return self.answer(200, b'data: {"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":2}}',
                               **{"Content-Type": "text/event-stream"})
        if self.path == "/bytes":
            return self.answer(200, bytes(range(256)), **{"Content-Type": "application/octet-stream"})
        if self.path.startswith("/api/"):
            return self.api(body)
        self.answer(404 if self.path == "/missing" else 200,
                    json.dumps({"path": self.path, "body": body.decode()}).encode(), **{"Content-Type": "application/json", "Set-Cookie": "secret"})

    do_POST = do_PUT = do_GET

    def api(self, body):
        if self.path.startswith("/api/jobs/lost"):
            return self.answer(404, b'{"code": "not_found", "detail": "there is no job lost"}')
        job = {"id": "j", "status": "failed", "error": {"code": "no_money", "message": "empty"}} if b"fails" in body else \
            {"id": "j", "status": "completed", "result": 7}
        self.answer(200, json.dumps({"requests": []} if self.path.startswith("/api/requests") else job).encode())

    def answer(self, status, body, **headers):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Http(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        cls.url = f"http://127.0.0.1:{cls.server.server_port}"
        threading.Thread(target=cls.server.serve_forever, daemon=True).start()

    @classmethod
    def tearDownClass(cls):
        cls.server.shutdown()
        cls.server.server_close()

    def setUp(self):
        Handler.seen.clear()

    def test_fetch_records_the_request_by_its_content(self):
        async def code(ctx, input):
            got = await ctx.fetch(self.url + "/text", headers={"Authorization": "Bearer x", "Accept": "a/b"})
            put = await ctx.fetch(self.url + "/put", method="PUT", body="ü", effect="idempotent")
            raw = await ctx.fetch(self.url + "/bytes")
            moved = await ctx.fetch(self.url + "/moved", redirect="manual")
            missing = await ctx.fetch(self.url + "/missing", name="missing")
            return [got.status, got.json()["path"], put.json()["body"], len(raw.body), moved.status,
                    moved.headers["location"], missing.status, "set-cookie" in got.headers]
        job = run_job(code)
        self.assertEqual(job.result, [200, "/text", "ü", 256, 302, "/text", 404, False])
        first, second = list(job.engine.log.values())[:2]
        self.assertRegex(first["position"], r"^GET:127\.0\.0\.1:\d+~[0-9a-f]{16}$")
        self.assertEqual((first["tool"], second["tool"]), ("run:read", "run:idempotent"))
        self.assertEqual(first["arguments"], {"method": "GET", "url": self.url + "/text", "headers": {"accept": "a/b"}})
        headers = [{name.lower(): value for name, value in seen[2].items()} for seen in Handler.seen]
        self.assertEqual((headers[0]["authorization"], "idempotency-key" in headers[0]), ("Bearer x", False))
        self.assertRegex(headers[1]["idempotency-key"], "^aetheris:job-1:")
        count = len(Handler.seen)
        job.replayed()
        self.assertEqual(len(Handler.seen), count, "a replay sends nothing")

    def test_the_tokens_of_a_model_are_counted_also_by_the_last_line_of_a_stream_that_has_no_end(self):
        async def code(ctx, input):
            return (await ctx.fetch(self.url + "/chat/completions", method="POST", body='{"model":"m"}')).status
        job = run_job(code)
        self.assertEqual(job.result, 200)
        self.assertEqual(job.usages, [{"model": "m", "input_tokens": 12, "output_tokens": 2}])

    def test_redirects_are_followed_within_the_request(self):
        async def code(ctx, input):
            got = await ctx.fetch(self.url + "/moved")
            answers = [got.status, got.url, got.json()["path"]]
            for status in (303, 308):
                put = await ctx.fetch(f"{self.url}/moved/{status}/put", method="PUT", body="ü")
                answers.append(put.json()["body"])
            return answers
        job = run_job(code)
        self.assertEqual(job.result, [200, self.url + "/text", "/text", "", "ü"])
        self.assertEqual(len(job.engine.log), 3)
        self.assertEqual([(seen[0], seen[1]) for seen in Handler.seen], [
            ("GET", "/moved"), ("GET", "/text"), ("PUT", "/moved/303/put"), ("GET", "/put"), ("PUT", "/moved/308/put"),
            ("PUT", "/put")])
        keys = [dict(seen[2]).get("Idempotency-Key") for seen in Handler.seen]
        self.assertEqual((keys[:2], keys[2] == keys[3]), ([None, None], True))

    def test_redirect_is_follow_manual_or_error(self):
        cases = [(redirect, method) for redirect in ("follow", "manual", "error") for method in ("GET", "POST")]

        async def code(ctx, input):
            ends = []
            for redirect, method in [*cases, ("never", "GET")]:
                try:
                    ends.append((await ctx.fetch(self.url + "/moved", method=method, redirect=redirect)).status)
                except AetherisError as error:
                    ends.append(error.code)
            return ends

        def sync(ctx, input):
            ends = []
            for redirect, method in [*cases, ("never", "GET")]:
                try:
                    ends.append(ctx.fetch(self.url + "/moved", method=method, redirect=redirect).status)
                except AetherisError as error:
                    ends.append(error.code)
            return ends
        for agent in (code, sync):
            Handler.seen.clear()
            job = run_job(agent)
            self.assertEqual(job.result, [200, 200, 302, 302, "http_302", "http_302", "input_invalid"])
            self.assertEqual(sum(seen[1] == "/moved" for seen in Handler.seen), 6, "each is sent once")
            job.replayed()

    def test_a_redirect_that_leads_nowhere_of_a_request_with_an_effect_has_an_unknown_outcome(self):
        codes = []

        async def code(ctx, input):
            for path, method in (("/away", "GET"), ("/away", "POST"), ("/moved/302/", "GET"), ("/moved/307/", "POST")):
                try:
                    await ctx.fetch(self.url + path, method=method)
                except ToolFailed as error:
                    codes.append(error.code)
        run_job(code)
        self.assertEqual(codes, ["connect", "exception", "reset", "exception"])

    def test_a_connection_that_is_refused_had_no_effect(self):
        async def code(ctx, input):
            try:
                await ctx.fetch("http://127.0.0.1:9/", method="POST")
            except ToolFailed as error:
                return error.code
        self.assertEqual(run_job(code).result, "connect")

    def test_a_read_that_is_refused_for_now_is_tried_again_by_the_engine(self):
        async def code(ctx, input):
            try:
                await ctx.fetch(self.url + "/busy")
            except ToolFailed as error:
                return [error.code, str(error)]
        self.assertEqual(run_job(code).result, ["http_429", f"NotDone: {self.url[7:]} answered 429"])
        posts = run_job(lambda ctx, input: ctx.fetch(self.url + "/busy", method="POST").status)
        self.assertEqual(posts.result, 429)

    def test_urlopen_follows_redirects_and_raises_HTTPError(self):
        def code(ctx, input):
            with ctx.urlopen(self.url + "/moved") as answer:
                text = json.load(answer)["path"]
            posted = ctx.urlopen(urllib.request.Request(self.url + "/post", b"a=1", {"X-A": "b"}), effect="idempotent")
            try:
                ctx.urlopen(self.url + "/missing")
            except urllib.error.HTTPError as error:
                return [text, json.load(posted)["body"], posted.status, error.code, json.load(error)["path"]]
        job = run_job(code)
        self.assertEqual(job.result, ["/text", "a=1", 200, 404, "/missing"])
        job.replayed()

    @unittest.skipUnless(httpx, "httpx is not installed")
    def test_httpx_runs_on_the_agent_loop(self):
        async def code(ctx, input):
            async with httpx.AsyncClient(transport=ctx.httpx(), follow_redirects=True) as client:
                got = await client.get(self.url + "/moved", params={})
                many = [one.json()["path"] for one in await __import__("asyncio").gather(
                    *[client.get(f"{self.url}/{n}") for n in range(3)])]
            async with httpx.AsyncClient(transport=ctx.httpx("idempotent"), base_url=self.url) as client:
                posted = await client.post("/post", json={"a": 1})
            return [got.status_code, str(got.url), many, posted.json()["path"], posted.request.method]
        job = run_job(code)
        self.assertEqual(job.result, [200, self.url + "/text", ["/0", "/1", "/2"], "/post", "POST"])
        self.assertEqual(list(job.engine.log.values())[-1]["tool"], "run:idempotent")
        job.replayed()

    @unittest.skipIf(httpx, "httpx is installed")
    def test_httpx_that_is_missing_is_an_error_with_what_to_do(self):
        async def code(ctx, input):
            try:
                ctx.httpx()
            except InvalidInput as error:
                return [error.code, str(error)]
        self.assertEqual(run_job(code).result, ["unsupported", "ctx.httpx() needs the package httpx; ctx.fetch needs no "
                                                               "package"])

    def test_a_client_runs_jobs_and_raises_their_failures(self):
        client = Client(self.url, api_key="key")
        self.assertEqual(client.run("sums", {"a": 1}, idempotency_key="k", labels={"x": "y"}), 7)
        method, path, headers, body = Handler.seen[0]
        self.assertEqual((method, path), ("POST", "/api/jobs?wait=30000ms"))
        self.assertEqual(json.loads(body), {"agent": "sums", "input": {"a": 1}, "idempotency_key": "k", "labels": {"x": "y"}})
        self.assertEqual(headers["Authorization"], "Bearer key")
        with self.assertRaises(Failure) as caught:
            client.run("fails")
        self.assertEqual((caught.exception.code, str(caught.exception)), ("no_money", "empty"))
        with self.assertRaises(AetherisError) as caught:
            client.job("lost")
        self.assertEqual((caught.exception.code, str(caught.exception)), ("not_found", "there is no job lost"))

    def test_a_client_without_a_server_is_unavailable(self):
        for client, code in ((lambda: Client("http://127.0.0.1:9"), "unavailable"),
                             (lambda: Client(socket="/nowhere"), "unavailable"), (lambda: Client("ftp://x"), "usage")):
            with self.assertRaises(ConnectionFailed) as caught:
                client().job("x")
            self.assertEqual(caught.exception.code, code)
