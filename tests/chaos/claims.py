"""Many processes claim concurrently: no job is ever leased to two."""
import random
import threading
import time

import check
import files
from client import ACK, send_request
from world import PostgresWorld


def run(claimers, jobs, seed, export):
    """(workers that got work, seconds, violations) when that many workers start at the same time with that many queued jobs."""
    world = PostgresWorld(f"claims {seed}", creators=1, workers=claimers)
    try:
        world.open_store()
        send_request(world.shop_url, "POST", "/control", {"calm": True})
        clerk, *workers = world.servers
        clerk.start(words=["--workers", "0"])
        assert clerk.ready()
        made, lock = iter(range(jobs)), threading.Lock()

        def make():
            while True:
                with lock:
                    n = next(made, None)
                if n is None:
                    return
                answer = send_request(clerk.url, "POST", "/api/jobs", {"agent": "sleeps" if n % 10 == 0 else "five", "input": {"n": n}},
                                      {"Idempotency-Key": f"claim-{n}"})
                assert answer.end == ACK, answer.body
        makers = [threading.Thread(target=make) for _ in range(8)]
        for thread in makers:
            thread.start()
        for thread in makers:
            thread.join()
        began = time.monotonic()
        # More capacity than jobs: each worker may lease as many jobs as it can get.
        for server in workers:
            server.start(words=["--workers", str(random.Random(f"{seed} {server.number}").choice([1, 4, 16]))])
        while time.monotonic() < began + 300:
            if not any(send_request(clerk.url, "GET", f"/api/jobs?status={status}&limit=1", timeout=30).body.get("jobs")
                       for status in ("queued", "running", "waiting")):
                break
            time.sleep(0.2)
        took = time.monotonic() - began
        export(world, False)
        violations, exported, holders = [], 0, set()
        for line in files.read(world.folder / "export.ndjson"):
            exported += 1
            job = check.Job(line)
            violations += job.problems
            running = [event["payload"] for event in job.raw if event["type"] == "job_running"]
            wanted = 1 + sum(event["type"] == "job_waiting" for event in job.raw)  # each wait releases the job
            if len(running) != wanted:
                violations.append(("claims", f"{job.id} was claimed {len(running)} times, not {wanted}"))
            if len({entry["epoch"] for entry in running}) != len(running):
                violations.append(("claims", f"{job.id}: two claims of one epoch"))
            holders |= {entry["worker_id"] for entry in running}
            if job.end != "completed":
                violations.append(("claims", f"{job.id} is {line['status']}"))
        arrived = [(entry["key"], entry["try"]) for entry in files.read(world.folder / "shop.ndjson") if entry["key"]]
        if len(arrived) != len(set(arrived)):
            violations.append(("duplicate", "a call arrived twice"))
        if exported != jobs:
            violations.append(("lost", f"{exported} jobs instead of {jobs}"))
        return len(holders), took, violations
    finally:
        world.end(False)
