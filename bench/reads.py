"""The row `reads`: one large job is read in each view, and page by page; the latency of health requests meanwhile."""
import http.client
import json
import os
import subprocess
import sys
import time

AGENTS = """
aetheris: 1
tools:
  fill: { native: fill, effect: idempotent }
agents:
  large:
    plan:
      - { id: m, map: "${ [range(.input.items)] }", do: { tool: fill, args: { bytes: 100 } } }
      - { id: n, needs: [m], map: "${ [range(.input.items)] }", do: { tool: fill, args: { bytes: 100 } } }
"""
ITEMS, QUICK_ITEMS = 20000, 500
PAUSE = 0.002  # seconds between two health requests
HEALTH_MIN = 100  # health requests per view
PAGE_READS = 20  # of each page, one after the other
# Each item of a map has seven events: 142,000 of both maps are 1,000,000 events.
PAGES = ("/events?limit=100", "/events?limit=100&order=desc", "/events?limit=100&order=desc&fields=slim",
         "/events?limit=100&after={middle}", "/events?limit=100&step={item}", "/events?limit=100&type=job_completed",
         "/steps?limit=100", "/steps?parent={m}&limit=100", "/steps/{m}", "/timeline?limit=100", "/conversation?limit=100",
         "/replay?at={middle}&fields=summary", "/replay?at={last}&fields=steps", "/transcript?limit=100", "/forks")
VIEWS = ("", "/events?limit=1000000", "/events?class=effect&limit=1000000", "/trace", "/transcript?limit=1000000", "/replay",
         "/verify")


def percentile(values, part):
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


class Health:
    """Health requests over one persistent connection, with their latencies."""

    def __init__(self, address):
        self.connection = http.client.HTTPConnection(address, timeout=120)
        self.took = []

    def request(self):
        began = time.monotonic()
        self.connection.request("GET", "/api/health")
        answer = self.connection.getresponse()
        answer.read()
        if answer.status != 200:
            sys.exit(f"health returned {answer.status}")
        self.took.append((time.monotonic() - began) * 1000)
        time.sleep(PAUSE)


def reader(url, *headers):
    """One read in a separate process; prints the status and the number of bytes."""
    words = [word for header in headers for word in ("-H", header)]
    return subprocess.Popen(["curl", "-sS", "-o", os.devnull, "-w", "%{http_code} %{size_download}", *words, url],
                            stdout=subprocess.PIPE, text=True)


def measure(address, start):
    """Reads until there are enough health requests: (figures of a read, latencies)."""
    health = Health(address)
    reads, seconds, size = 0, 0.0, 0
    while len(health.took) < HEALTH_MIN or reads == 0:
        began = time.monotonic()
        process = start()
        while process.poll() is None:
            health.request()
        status, length = process.communicate()[0].split()
        if status not in ("200", "201"):
            sys.exit(f"a read returned {status}")
        reads, seconds, size = reads + 1, seconds + time.monotonic() - began, int(length)
    return {"read_ms": seconds * 1000 / reads, "mb": size / 1e6}, health.took


def page(address, path):
    """One request over a new connection: milliseconds until the whole answer is read, and the answer."""
    connection = http.client.HTTPConnection(address, timeout=120)
    began = time.monotonic()
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    if answer.status != 200:
        sys.exit(f"{path} returned {answer.status}")
    return (time.monotonic() - began) * 1000, body


def first_step(address, query):
    """The id of the first step of a list."""
    return json.loads(page(address, f"/api/jobs/large/steps?limit=1{query}")[1])["steps"][0]["step_id"]


def reads(store, options):
    """Each page of one job, first of a new process and then again; each view of it, read repeatedly, with health requests
    meanwhile; then a wait for a job of that size."""
    items = options.items or (QUICK_ITEMS if options.quick else ITEMS)
    serve = store.serve(agents=AGENTS)
    address = serve.url.removeprefix("http://")
    body = {"agent": "large", "id": "large", "input": {"items": items // 2}}
    serve.drive("/api/jobs", body, 1, 1)
    store.await_status("completed", 1)
    events = store.query(f"SELECT max(last_seq) FROM {store.log_end_table()}")
    large = first_step(address, "")  # the map m
    names = {"middle": events // 2, "last": events, "m": large, "item": first_step(address, f"&parent={large}")}
    serve.stop()
    serve = store.serve(agents=AGENTS)
    address = serve.url.removeprefix("http://")
    for of in PAGES:
        path = "/api/jobs/large" + of.format(**names)
        first, answer = page(address, path)
        took = [page(address, path)[0] for _ in range(PAGE_READS)]
        yield {"page": of, "events": events, "first_ms": first, "page_p50_ms": percentile(took, 0.5),
               "page_p99_ms": percentile(took, 0.99), "kb": len(answer) / 1e3}
    for view in VIEWS:
        figures, took = measure(address, lambda view=view: reader(f"{serve.url}/api/jobs/large{view}"))
        yield {"view": (view.partition("?")[0] or "/") + (" effects" if "effect" in view else ""), "events": events, **figures,
               "health_p50_ms": percentile(took, 0.5), "health_p99_ms": percentile(took, 0.99)}
    figures, took = measure(address, lambda: reader(f"{serve.url}/api/jobs/large/trace", "Accept-Encoding: gzip"))
    yield {"view": "/trace gzip", "events": events, **figures, "health_p50_ms": percentile(took, 0.5),
           "health_p99_ms": percentile(took, 0.99)}
    # The CPU time of a job with a wait for its end, and of the same job without one.
    used = []
    for query in ("", "?wait=5m"):
        cpu = serve.cpu_ms()
        waiting = subprocess.Popen(["curl", "-sS", "-o", os.devnull, "-d", json.dumps({**body, "id": f"wait{len(used)}"}),
                                    f"{serve.url}/api/jobs{query}"])
        store.await_status("completed", 2 + len(used))
        waiting.wait()
        used.append(serve.cpu_ms() - cpu)
    yield {"view": "wait", "events": events, "cpu_ms": used[1], "cpu_without_ms": used[0], "wait_ratio": used[1] / used[0]}
