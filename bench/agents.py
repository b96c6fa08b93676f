"""Rows of agents with a model: the cost of a turn in the store and in time, and of a job that waits for its model.

The model is examples/model-server, a process of its own; it needs Node 22, found by processes.node().
"""
import json
import os
import pathlib
import shutil
import sqlite3
import subprocess
import time

from processes import ROOT, memory, node, until

TURNS = 200
WAITING = 1000
STALL_S = 3600  # longer than the row takes; waiting processes are killed at its end
AGENTS = """
aetheris: 1
tools:
  note: { native: echo, effect: idempotent }
models:
  instant: { provider: openai, base_url: "${ env.MODELS }/v1", api_key: "secret:MODEL_KEY", model: instant, timeout: 2h }
  thinks: { provider: openai, base_url: "${ env.MODELS }/v1", api_key: "secret:MODEL_KEY", model: thinks, timeout: 2h }
  speaks: { provider: openai, base_url: "${ env.MODELS }/v1", api_key: "secret:MODEL_KEY", model: speaks, timeout: 2h }
agents:
  turns: { loop: { model: instant, tools: [note], max_turns: 1000 } }
  thinks:
    required_capabilities: [thinks]
    loop: { model: thinks, tools: [note] }
  speaks:
    required_capabilities: [speaks]
    loop: { model: speaks, tools: [note] }
"""


class Models:
    """The scripted model server: `instant` answers at once, `thinks` after an hour, `speaks` stalls in the middle of its
    answer."""

    def __init__(self, folder):
        server = ROOT / "examples/model-server"
        answer = "A sentence that is not at its end. " * 8
        (folder / "thinks.json").write_text(json.dumps({"turns": [{"stall_ms": STALL_S * 1000, "text": answer}]}))
        (folder / "speaks.json").write_text(json.dumps({"turns": [
            {"fail": {"stall_ms": STALL_S * 1000, "stall_after": 40, "times": "always"}, "text": answer}]}))
        self.journal = folder / "requests.jsonl"
        self.process = subprocess.Popen(
            [node(), server / "server.mjs", "--journal", self.journal, "--scenario", server / "scenarios/instant.json",
             folder / "thinks.json", folder / "speaks.json"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().split()[-1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def requests(self):
        """The number of requests so far."""
        lines = self.journal.read_bytes().splitlines() if self.journal.exists() else []
        if rejected := [line for line in lines if b'"refused ' in line]:
            raise SystemExit(f"the model server rejected a request: {rejected[0].decode()}")
        return len(lines)


def serve(store, models, *words):
    os.environ |= {"MODELS": models.url, "MODEL_KEY": "any-key"}
    return store.serve(*words, agents=AGENTS)


def turns(store, options):
    """One job, then 16 in parallel, of 200 turns each: turns per second, and bytes per turn, early and late in the job."""
    many = 40 if options.quick else TURNS
    body = {"agent": "turns", "input": {"message": f"Take {many} turns."}}
    for jobs in (1, 16):
        with Models(pathlib.Path(store.folder)) as models:
            running = serve(store, models)
            before, cpu, earlier = rows(store), running.cpu_ms(), models.requests()
            began = time.monotonic()
            running.drive("/api/jobs", body, jobs, jobs, first=jobs)
            store.await_status("completed", jobs + (1 if jobs > 1 else 0), 0.05)
            seconds = time.monotonic() - began
            taken = models.requests() - earlier
            if taken != jobs * many:
                raise SystemExit(f"expected {jobs * many} turns, got {taken}")
            figures = {"jobs": jobs, "turns": taken, "turns_per_second": taken / seconds, "turn_ms": seconds * 1000 * jobs / taken,
                       "cpu_ms": (running.cpu_ms() - cpu) / taken}
            if jobs == 1:
                sizes = rows(store)[len(before):]
                edge, half = len(sizes) // 20, len(sizes) // 2
                early, late = (sum(part) / len(part) for part in (sizes[edge:half], sizes[half:-edge]))
                figures |= {"turn_bytes": sum(sizes) / taken, "late_to_early": late / early}
            yield figures
            running.stop()


def rows(store):
    """The bytes of each commit, in order."""
    if store.server:
        return []
    with sqlite3.connect(f"file:{store.folder}/aetheris.db?mode=ro", uri=True, timeout=60) as db:
        return [row[0] for row in db.execute("SELECT length(body) FROM commits ORDER BY id")]


def thinking(store, options):
    """Jobs that wait for the first byte of their model's answer, then jobs whose model stalls in the middle of its answer:
    memory per job, and additional threads."""
    jobs, warm, begun = options.jobs or (200 if options.quick else WAITING), 10, 0
    for agent in ("thinks", "speaks"):
        with Models(pathlib.Path(store.folder)) as models:
            before = models.requests()
            running = serve(store, models, "--workers", str(2 * jobs), "--capability", agent)

            def start_jobs(first, count):
                running.drive("/api/jobs", {"agent": agent, "input": {"message": "Think."}}, count, 16, first=first)
                until(lambda: models.requests() - before == first - begun + count, 0.2, "every job has sent a model request")
                time.sleep(2)  # until the part before the stall has arrived

            start_jobs(begun, warm)
            empty, threads = running.rss(), threads_of(running.pid)
            start_jobs(begun + warm, jobs)
            begun += warm + jobs
            running_jobs = store.count("status = 'running'")
            if running_jobs != begun:
                raise SystemExit(f"expected {begun} running jobs, got {running_jobs}")
            yield {"model": agent, "jobs": jobs, "kib_each": (running.rss() - empty) / 1024 / jobs, "memory_mb": memory(running.pid) / 1e6,
                   "more_threads": threads_of(running.pid) - threads}
            running.kill()


def threads_of(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("Threads:"):
            return int(line.split()[1])
    raise RuntimeError(f"no threads of {pid}")
