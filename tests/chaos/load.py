#!/usr/bin/env python3
"""The clients of a chaos run: they create jobs, answer and cancel them, and record every response.

The intent of a request is a durable line of the ledger before it is sent, then its end: `ack`, `refused` (nothing was changed) or
`unknown` (it may have happened). A request without a response is repeated under the same key until it is answered, as a client
should. A few creations are sent only once, so that a rejection can be checked.

    load.py --urls FILE --ledger FILE --seed N --jobs N --seconds S [--threads N]
      --urls      a file with one server address per line; reread from time to time
      --seconds   the period over which the jobs are created
Ends when everything is answered, or when its input ends: then it starts nothing new and repeats requests for at most a minute.
Lines: {i, op, key, url, t, …} before, {i, end, status, code, job, t} after; `i` joins them.
"""
import argparse
import collections
import heapq
import itertools
import os
import pathlib
import random
import sys
import threading
import time

import agents
from client import ACK, REFUSED, send_request, quoted
from files import Lines

LAST_S = 60.0      # how long requests are repeated after the end
BACKLOG_MAX = 150  # queued jobs: above this number no more are created


class Load:
    def __init__(self, options):
        self.options = options
        self.ledger = Lines(options.ledger)
        self.random = random.Random(f"load {options.seed}")
        self.numbers = itertools.count(1)
        self.lock = threading.Condition()
        self.due = []        # (when, tie, what to do)
        self.active = 0
        self.no_more = False  # nothing new is started
        self.ended = None     # when the input ended
        self.outcomes = collections.Counter()
        self.read_urls()

    def read_urls(self):
        self.urls = pathlib.Path(self.options.urls).read_text().split()

    def url(self):
        return random.choice(self.urls)

    def later(self, seconds, what):
        with self.lock:
            heapq.heappush(self.due, (time.monotonic() + seconds, next(self.numbers), what))
            self.lock.notify()

    # ---------------------------------------------------------------- asking

    def intend(self, op, key, **more):
        number = next(self.numbers)
        self.ledger.write({"i": number, "op": op, "key": key, "t": time.time(), **more})
        return number

    def once(self, number, method, path, body, headers=None, url=None):
        """One request of an intent, and its line."""
        answer = send_request(url or self.url(), method, path, body, headers)
        line = {"i": number, "end": answer.end, "status": answer.status, "code": answer.code, "t": time.time()}
        if answer.end == ACK and isinstance(answer.body, dict):
            line.update({k: answer.body[k] for k in ("id", "duplicate") if k in answer.body})
        self.ledger.write(line)
        self.outcomes[answer.end] += 1
        return answer

    def until_answered(self, number, method, path, body, headers=None, then=None, again=lambda answer: False, tries=0):
        """Repeats a request until it is acknowledged, or rejected permanently."""
        answer = self.once(number, method, path, body, headers)
        final = answer.end == ACK or (answer.end == REFUSED and 400 <= answer.status < 500 and not again(answer))
        if not final:
            if self.ended is None or time.monotonic() < self.ended + LAST_S:
                self.later(min(2.0, 0.05 * 2 ** min(tries, 5)) * random.uniform(0.5, 1),
                           lambda: self.until_answered(number, method, path, body, headers, then, again, tries + 1))
        elif then and answer.end == ACK:
            then(answer)

    # ---------------------------------------------------------------- jobs

    def create(self, n):
        generator = random.Random(f"{self.options.seed} {n}")
        agent = generator.choices(list(agents.SHARES), list(agents.SHARES.values()))[0]
        body = {"agent": agent, "input": {"n": n, **({"list": agents.FAN} if agent == "fan" else {})}, "labels": {"n": str(n)}}
        key = f"key-{n}"
        headers = {"Idempotency-Key": key}
        if agent == "five" and generator.random() < 0.02:
            number = self.intend("create", key, agent=agent, once=True)
            self.once(number, "POST", "/api/jobs", body, headers)
            return
        number = self.intend("create", key, agent=agent)
        if generator.random() < 0.03:  # an impatient client: the same request concurrently, perhaps to another server
            self.later(0, lambda: self.until_answered(number, "POST", "/api/jobs", body, headers))

        def made(answer):
            job = answer.body["id"]
            if generator.random() < 0.04:
                self.later(generator.uniform(0, 3), lambda: self.record_events(job))
            if agent == "asks":
                self.later(generator.uniform(0, 2), lambda: self.signal(job, n))
            if agent == "approves":
                self.later(generator.uniform(0, 1), lambda: self.approve(job, generator.random() < 0.8))
                self.later(generator.uniform(0, 1), lambda: self.approve(job, True, "approval/"))
            if agent == "cancels":
                self.later(generator.uniform(0, 2), lambda: self.cancel(job))
        self.until_answered(number, "POST", "/api/jobs", body, headers, made)

    def record_events(self, job):
        """Records events that were read; they must still be in the log at the end."""
        answer = send_request(self.url(), "GET", f"/api/jobs/{quoted(job)}/events?limit=10000")
        if answer.end == ACK and answer.body["events"]:
            last = answer.body["events"][-1]
            self.ledger.write({"i": next(self.numbers), "op": "saw", "key": job, "job": job, "seq": last["seq"],
                               "hash": last["hash"], "t": time.time()})

    def signal(self, job, n):
        body = {"correlation_key": f"go-{job}", "payload": {"n": n}, "message_id": f"m-{n}", "buffer": True}
        number = self.intend("signal", f"go-{job}", job=job, message_id=f"m-{n}")
        self.until_answered(number, "POST", f"/api/jobs/{quoted(job)}/signal", body)

    def approve(self, job, yes, prefix="sure-", tries=0):
        """Waits until the job has a question, then answers it."""
        answer = send_request(self.url(), "GET", f"/api/jobs/{quoted(job)}")
        view = answer.body if answer.end == ACK else {}
        wait = next((w for w in view.get("waits", []) if w["correlation_key"].startswith(prefix)), None)
        if wait is None:
            if view.get("status") not in ("completed", "failed", "cancelled") and (
                    self.ended is None or time.monotonic() < self.ended + LAST_S):
                self.later(min(2.0, 0.2 * 1.5 ** tries), lambda: self.approve(job, yes, prefix, tries + 1))
            return
        request = wait["command"].split()[-1]
        decision = "approve" if yes else "reject"
        number = self.intend("approve", wait["correlation_key"], job=job, decision=decision)
        self.until_answered(number, "POST", f"/api/approvals/{quoted(request)}", {"decision": decision})

    def cancel(self, job):
        number = self.intend("cancel", job, job=job)
        self.until_answered(number, "POST", f"/api/jobs/{quoted(job)}/cancel", {"reason": "chaos"})

    # ---------------------------------------------------------------- the run

    def work(self):
        while True:
            with self.lock:
                while True:
                    if self.due and self.due[0][0] <= time.monotonic():
                        what = heapq.heappop(self.due)[2]
                        self.active += 1
                        break
                    if self.no_more and not self.due and not self.active:
                        self.lock.notify_all()
                        return
                    self.lock.wait(min(0.2, max(0.0, self.due[0][0] - time.monotonic())) if self.due else 0.2)
            try:
                what()
            finally:
                with self.lock:
                    self.active -= 1
                    self.lock.notify_all()

    def too_many(self):
        answer = send_request(self.url(), "GET", f"/api/jobs?status=queued&limit={BACKLOG_MAX}", timeout=3)
        return answer.end == ACK and len(answer.body["jobs"]) >= BACKLOG_MAX

    def run(self):
        threads = [threading.Thread(target=self.work) for _ in range(self.options.threads)]
        for thread in threads:
            thread.start()
        threading.Thread(target=self.wait_for_stdin, daemon=True).start()
        began, pace = time.monotonic(), self.options.seconds / max(1, self.options.jobs)
        waits = 0.0
        for n in range(1, self.options.jobs + 1):
            if self.ended is not None:
                break
            while (wait := began + waits + n * pace - time.monotonic()) > 0 and self.ended is None:
                time.sleep(min(wait, 0.2))
            if n % 50 == 0:
                self.read_urls()
                while self.ended is None and self.too_many():
                    time.sleep(0.3)
                    waits += 0.3
            self.later(0, lambda n=n: self.create(n))
            while len(self.due) > 200 and self.ended is None:
                time.sleep(0.05)
        with self.lock:
            self.no_more = True
            self.lock.notify_all()
        for thread in threads:
            thread.join()
        print(" ".join(f"{name} {count}" for name, count in sorted(self.outcomes.items())), flush=True)

    def wait_for_stdin(self):
        sys.stdin.buffer.read()
        self.ended = time.monotonic()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--urls", required=True)
    parser.add_argument("--ledger", required=True)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--jobs", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--threads", type=int, default=12)
    Load(parser.parse_args()).run()
    os._exit(0)  # a thread still waits for the end of the input


if __name__ == "__main__":
    main()
