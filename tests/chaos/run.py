#!/usr/bin/env python3
"""Chaos runs: the built program under load and faults, then checked by check.py from files alone.

    run.py [--store sqlite|postgres|both] [--minutes M] [--jobs N] [--seed S] [--only FAULT]… [--kill-every SECONDS] [--long]
           [--all-faults] [--claims N] [--claimers N] [--keep]          (./dev chaos …; docs/chaos.md)

      --minutes   duration of the faults, both stores together (default 5); --jobs: until that many jobs were created and run,
                  and at least the minutes
      --only      this fault only; may be given several times; `none`: only the kills
      --kill-every  interval of the kills (default 1 s; 0: never)
      --all-faults  a fault that is skipped, because something it needs is missing, is a failure
      --claims    jobs that many workers claim concurrently, on PostgreSQL, after the faults (2000 and 32; 0: none)
      --long      every chain is recomputed and every job verified, not a sample; and 200 workers claim, too
      --keep      keeps the folders

AETHERIS_BIN names the program. The seed is printed first, the command that repeats the run last. Exits with 1 if a guarantee was
violated. The seed determines the jobs, the behaviour of the shop for each request, and the order of the faults; not their times.
"""
import argparse
import concurrent.futures
import json
import os
import random
import shlex
import subprocess
import sys
import threading
import time

import check
import claims
import faults
import files
from client import ACK, send_request, quoted
from world import HERE, PostgresWorld, SqliteWorld

OPEN = ("queued", "running", "waiting", "parked")
JOBS_PER_S = 40   # without --jobs
DRAIN_S = 240.0   # how long the remaining work may take after the repair; 10 s more per 1,000 jobs
VERIFIED = 1500   # jobs that are verified without --long
MANY_CLAIMERS = 200
LOOK_S = 1.0      # how often the operator lists unknown outcomes during the faults
MAY_FAIL = ["exit_1", "rejected"]


def print_line(text):
    print(text, flush=True)


class Operator:
    """Resolves unknown outcomes from the journal of the shop once each call has settled, and resumes jobs that are worn_out.

    During the faults it resolves at `resolvable_at`; afterwards it resolves whatever is left.
    """

    def __init__(self, world):
        self.world = world
        self.ledger = files.Lines(world.folder / "ledger.ndjson")
        self.number = 1_000_000_000
        self.answered = 0
        self.resumed = 0
        self.in_time = 0  # resolved during the faults, and acknowledged
        self.faulty = threading.Event()
        self.thread = threading.Thread(target=self.answer_at_once, daemon=True)

    def start(self):
        self.faulty.set()
        self.thread.start()

    def end(self):
        if self.faulty.is_set():
            self.faulty.clear()
            self.thread.join()

    def answer_at_once(self):
        """Resolves each unknown outcome at the time from which `not_happened` is accepted, during any fault."""
        known = {}  # (job, key, try) → (time, unknown outcome)
        looks = 0.0
        while self.faulty.is_set():
            if time.monotonic() >= looks:
                looks = time.monotonic() + LOOK_S
                answer = send_request(self.random_url(), "GET", "/api/jobs?in_doubt=true&limit=100")
                for view in answer.body["jobs"] if answer.end == ACK else []:
                    for doubt in view["in_doubt"]:
                        if doubt["resolvable_at"]:
                            known.setdefault((view["id"], doubt["idempotency_key"], doubt["try"]),
                                             (check.seconds(doubt["resolvable_at"]), doubt))
            due = [name for name, (instant, _) in known.items() if instant <= time.time()]
            acted = self.journal() if due else {}  # read when all of them have settled
            for name in due:
                if self.answer(name[0], known.pop(name)[1], acted, self.random_url()):
                    self.in_time += 1
            time.sleep(max(0.001, min([LOOK_S / 4, *(instant - time.time() for instant, _ in known.values())])))

    def random_url(self):
        return random.choice(self.world.creators).url

    def journal(self):
        acted = {line["key"]: line["body"] for line in files.read(self.world.folder / "shop.ndjson")
                 if line["did"] == "acted"}
        try:
            for line in (self.world.folder / "prints.txt").read_text().splitlines():
                acted[line.split()[0]] = ""
        except FileNotFoundError:
            pass
        return acted

    def answer_all(self, jobs):
        """Resolves the calls of these jobs that can be resolved now."""
        views = []
        for job in jobs:
            answer = send_request(self.world.creators[0].url, "GET", f"/api/jobs/{quoted(job)}")
            if answer.end == ACK:
                views.append(answer.body)
        acted = None
        for view in views:
            # Its process was killed twice within its slice.
            if (view["parked"] or {}).get("reason") == "worn_out":
                self.resumed += self.request("resume", view["id"], view["id"], {}).end == ACK
            for doubt in view["in_doubt"]:
                if doubt["resolvable_at"] and check.seconds(doubt["resolvable_at"]) > time.time() - 0.2:
                    continue
                acted = self.journal() if acted is None else acted  # read after the last of them had settled
                self.answered += self.answer(view["id"], doubt, acted, self.world.creators[0].url)

    def answer(self, job, doubt, acted, url):
        """Whether it was acknowledged."""
        happened = doubt["external_key"] in acted
        body = {"idempotency_key": doubt["idempotency_key"], "try": doubt["try"],
                "resolution": "happened" if happened else "not_happened", "note": "by the shop's journal"}
        if happened:
            body["result"] = acted[doubt["external_key"]]
        return self.request("resolve", doubt["idempotency_key"], job, body, url, happened=happened).end == ACK

    def request(self, op, key, job, body, url=None, **more):
        """One request to a job, with its lines in the ledger."""
        self.number += 1
        self.ledger.write({"i": self.number, "op": op, "key": key, "job": job, **more, "t": time.time()})
        answer = send_request(url or self.world.creators[0].url, "POST", f"/api/jobs/{quoted(job)}/{op}", body)
        self.ledger.write({"i": self.number, "end": answer.end, "status": answer.status, "code": answer.code, "t": time.time()})
        return answer


def listed(url, status=None):
    """[(id, status)], page by page."""
    found, cursor = [], ""
    while True:
        answer = send_request(url, "GET", f"/api/jobs?limit=1000{f'&status={status}' if status else ''}{cursor}", timeout=60)
        if answer.end != ACK:
            raise RuntimeError(f"the jobs cannot be listed: {answer.status} {answer.body or answer.why}")
        found += [(job["id"], job["status"]) for job in answer.body["jobs"]]
        if not answer.body["next_cursor"]:
            return found
        cursor = f"&cursor={quoted(answer.body['next_cursor'])}"


def export(world, every):
    """Writes every log as a line of export.ndjson, from processes that have read it from the store."""
    jobs = listed(world.creators[0].url)
    chosen = set(random.Random(world.seed).sample([j for j, _ in jobs], min(VERIFIED, len(jobs))))

    def one(n, job, status):
        url = world.creators[n % len(world.creators)].url
        events, line = [], {"job": job, "status": status}
        while True:
            answer = send_request(url, "GET", f"/api/jobs/{quoted(job)}/events?limit=1000&after={len(events)}", timeout=60)
            if answer.end != ACK:
                raise RuntimeError(f"the events of {job} cannot be read: {answer.status} {answer.body or answer.why}")
            if not answer.body["events"]:
                break
            events += answer.body["events"]
            if len(answer.body["events"]) < 1000:
                break
        line["events"] = events
        if every or job in chosen:
            answer = send_request(url, "GET", f"/api/jobs/{quoted(job)}/verify", timeout=60)
            line["verify"] = answer.end == ACK and answer.body["ok"]
        return json.dumps(line, separators=(",", ":"))
    with open(world.folder / "export.ndjson", "w") as file, concurrent.futures.ThreadPoolExecutor(6) as pool:
        for line in pool.map(one, range(len(jobs)), *zip(*jobs) if jobs else ([], [])):
            file.write(line + "\n")


def drain(world, operator, jobs):
    """Until every job has ended, or the time is over."""
    give_up = time.monotonic() + DRAIN_S + jobs / 100
    while time.monotonic() < give_up:
        left = {status: listed(world.creators[0].url, status) for status in OPEN}
        if not any(left.values()):
            break
        operator.answer_all([job for status in ("parked", "waiting") for job, _ in left[status]])
        time.sleep(0.5)


def ensure_running(world, server, *words):
    if not server.alive():
        server.start(words=words)
        if not server.ready():
            world.violation("start", f"{server.name} does not start any longer")


def stop_server(world, server):
    if server.alive() and not server.stop():
        world.violation("stop", f"{server.name} did not shut down in order: {server.process.returncode}")


def check_server_works(world, server):
    """Checks that jobs run when the server is the only process that runs jobs."""
    ensure_running(world, server, *([] if not server.creates_jobs else ["--workers", "16"]))
    creator = server if server.creates_jobs else world.creators[0]
    if creator is not server:
        ensure_running(world, creator, "--workers", "0")
    for n in range(5):
        answer = send_request(creator.url, "POST", "/api/jobs?wait=20s", {"agent": "fan", "input": {"n": n, "list": [1, 2, 3, 4]}}, timeout=40)
        if answer.end != ACK or answer.body["status"] != "completed":
            world.violation("well_again", f"after the repair a job of {server.name} is {answer.status} "
                                          f"{str(answer.body)[:300]}")
    for one in {server, creator}:
        stop_server(world, one)


def start_load(world, options, minutes, jobs):
    return subprocess.Popen([sys.executable, HERE / "load.py", "--urls", world.folder / "urls", "--ledger",
                             world.folder / "ledger.ndjson", "--seed", str(options.seed), "--jobs", str(jobs), "--seconds",
                             str(0 if options.jobs else minutes * 60)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            text=True)


def run_faults(world, generator, deck, minutes, is_load_pending):
    """Runs the faults of the deck in random order until the time is over and the load is done. Returns their names."""
    began = time.monotonic()
    done, turn = [], []
    while time.monotonic() < began + minutes * 60 or is_load_pending():
        if not turn:
            turn = generator.sample(deck, len(deck)) if deck else [None]
        fault = turn.pop()
        # A stop takes as long as a lease: in a run shorter than three leases it is used at most once.
        if fault is None or (fault.name == "stop" and "stop" in done and minutes * 60 < 3 * world.lease_s):
            time.sleep(1)
            continue
        world.note("fault", name=fault.name)
        try:
            fault.run()
            done.append(fault.name)
            world.count("faults")
        except TimeoutError as late:
            world.note("fault_skipped", name=fault.name, why=str(late))
        time.sleep(generator.uniform(0.1, 1.0))
    return done


def repair(world):
    """Ends the faults: the shop answers normally, and every process runs."""
    send_request(world.shop_url, "POST", "/control", {"calm": True})
    world.heal()
    for server in world.servers:
        if not server.ready(5):
            raise RuntimeError(f"{server.name} does not work after the repair: "
                               f"{server.err.read_text(errors='replace')[-600:]}")


def restart_servers(world):
    """Each server restarts from the store, and runs jobs alone."""
    for server in world.servers:
        server.busy = True
        stop_server(world, server)
    for server in world.servers:
        check_server_works(world, server)
    for server in world.servers:
        ensure_running(world, server)
        server.busy = False


def one_store(kind, options, minutes):
    world = (SqliteWorld if kind == "sqlite" else PostgresWorld)(options.seed)
    generator = random.Random(f"faults {options.seed} {kind}")
    load = killer = operator = None
    crashed = True
    try:
        world.start()
        deck = [fault(world, generator, options.long) for fault in faults.ALL
                if kind in fault.stores and (not options.only or fault.name in options.only)]
        skipped = [f"{fault.name} (no {fault.missing()})" for fault in deck if fault.missing()]
        deck = [fault for fault in deck if not fault.missing()]
        jobs = options.jobs or int(minutes * 60 * JOBS_PER_S)
        load = start_load(world, options, minutes, jobs)
        operator = Operator(world)
        operator.start()
        began = time.monotonic()
        if options.kill_every:
            killer = faults.Killer(world, generator, options.kill_every)
        done = run_faults(world, generator, deck, minutes, lambda: options.jobs and load.poll() is None)
        if killer:
            killer.end()
            killer = None
        operator.end()
        repair(world)
        healed = time.time()
        faulty_s = time.monotonic() - began
        load.stdin.close()
        outcomes = load.stdout.read().strip()
        load.wait()
        drain(world, operator, jobs)
        drained = time.time() - healed
        restart_servers(world)
        export(world, options.long)
        (world.folder / "meta.json").write_text(json.dumps({
            "store": kind, "seed": options.seed, "healed": healed, "exported": time.time(), "lease_s": world.lease_s, "may_fail": MAY_FAIL}))
        checker = check.Checker(world.folder, options.long)
        checker.run()
        crashed = False
        if options.all_faults:
            world.violations += [("skipped", name) for name in skipped]
        return report(world, checker, outcomes, operator, faulty_s, drained, done, skipped)
    finally:
        if killer:
            killer.end()
        if operator:
            operator.end()
        if load and load.poll() is None:
            load.kill()
            load.wait()
        keep = options.keep or crashed or bool(world.violations)
        world.end(keep)
        if keep:
            print_line(f"kept: {world.folder}")


def all_claim(options, claimers):
    """Whether no job was leased to two workers."""
    holders, took, violations = claims.run(claimers, options.claims, options.seed, export)
    for kind, text in violations[:25]:
        print_line(f"  VIOLATION {kind}: {text}")
    print_line(f"chaos claims: {'BROKEN' if violations else 'ok'}: claimers {claimers} of which {holders} got work, jobs "
               f"{options.claims} in {took:.0f} s, double claims and other violations {len(violations)}")
    return not violations


def report(world, checker, outcomes, operator, faulty_s, drained, done, skipped):
    """Prints the verdict line and its details."""
    world.violations += checker.violations
    found = checker.verdict()
    counts = world.counts
    print_line(f"  {world.kind}: {faulty_s:.0f} s of faults ({', '.join(f'{name} {done.count(name)}' for name in sorted(set(done)))})")
    print_line(f"  requests: {outcomes}; {found.get('acknowledged', 0)} acknowledged; {operator.in_time} unknown outcomes resolved "
        f"at once and {operator.answered} after the faults; {operator.resumed} worn-out jobs resumed")
    print_line("  " + ", ".join(f"{name} {counts[name]}" for name in sorted(counts)))
    print_line("  " + ", ".join(f"{name} {value}" for name, value in sorted(found.items()) if name != "recovery_s"))
    print_line(f"  all jobs had ended {drained:.1f} s after the repair; seconds until an attempt of a dead process was taken over: {found['recovery_s']}")
    for kind, text in world.violations[:25]:
        print_line(f"  VIOLATION {kind}: {text}")
    for name in skipped:
        print_line(f"  skipped: {name}")
    bad = bool(world.violations)
    print_line(f"chaos {world.kind}: {'BROKEN' if bad else 'ok'}: jobs {found.get('jobs', 0)} effects {found.get('effects', 0)} "
        f"kills {counts.get('kills', 0)} restarts {counts.get('restarts', 0)} duplicates {found['duplicates']} lost {found['lost']} "
        f"unresolved {found['unresolved']} violations {len(world.violations)} skipped {len(skipped)}")
    return not bad


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--store", choices=["sqlite", "postgres", "both"], default="both")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--seed", default=str(random.SystemRandom().randrange(1, 10**9)))
    parser.add_argument("--only", action="append", default=[], choices=["none", *(fault.name for fault in faults.ALL)])
    parser.add_argument("--all-faults", action="store_true")
    parser.add_argument("--claimers", type=int, default=32)
    parser.add_argument("--claims", type=int, default=2000)
    parser.add_argument("--kill-every", type=float, default=1.0)
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    print_line(f"SEED {options.seed}")
    stores = ["sqlite", "postgres"] if options.store == "both" else [options.store]
    ok = True
    for kind in stores:
        ok = one_store(kind, options, options.minutes / len(stores)) and ok
    if "postgres" in stores and options.claims and not options.only:
        for claimers in [options.claimers, *([MANY_CLAIMERS] if options.long else [])]:
            ok = all_claim(options, claimers) and ok
    words = [f"--store {options.store}", f"--minutes {options.minutes:g}", f"--seed {options.seed}",
             f"--kill-every {options.kill_every:g}", *(f"--only {name}" for name in options.only)]
    words += [f"--jobs {options.jobs}"] * bool(options.jobs) + ["--long"] * options.long + ["--all-faults"] * options.all_faults
    binary = os.environ.get("AETHERIS_BIN")
    print_line(f"repeat: {f'AETHERIS_BIN={shlex.quote(binary)} ' if binary else ''}./dev chaos {' '.join(words)}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
