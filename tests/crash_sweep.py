#!/usr/bin/env python3
"""kill -9 at every failpoint of the refund example, in fused and split durability: exhaustive, no sampling.

Method: a baseline run with AETHERIS_FAILPOINTS_TRACE=1 lists every hit (NAME@N). For each hit, a job in a new store is killed
there (the failpoint ends the process like kill -9) and started again. It must end like the baseline. If the kill falls between
the durable declaration and the durable record of the at_most_once call, the job parks; the outcome is read from the journal of
the shop and reported with `aetheris resolve`. The journal of the shop decides: no at_most_once call arrived twice, no
idempotent key took effect twice, none is missing.

Then for each request of the job: the shop acts up to 1.2 s after its arrival, and the process is killed between the arrival and
the answer, and restarted immediately.

    AETHERIS_BIN=build/dev/aetheris tests/crash_sweep.py [NAME@N [fused|split]]      # one failpoint
    AETHERIS_BIN=build/dev/aetheris tests/crash_sweep.py arrival@N [fused|split]     # one request
"""

import collections
import concurrent.futures
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

from shared.program import BIN, ROOT

INPUT = '{"order_id": "43", "replacement": "BOOK-5"}'
# The delay between the arrival of a request and its effect when the shop is late.
LATE_MS = {"labels": 300, "flaky": 100, "refunds": 600, "shipments": 1200, "gift-cards": 1200}
SLOW = os.environ.get("AETHERIS_SLOW_TESTS") == "1"


class Failure(Exception):
    pass


def aetheris(arguments, store, shop, failpoints="", trace=False, timeout=60):
    environment = dict(os.environ, SHOP_URL=shop, AETHERIS_STORE=f"sqlite:{store}", NO_COLOR="1")
    environment.pop("AETHERIS_FAILPOINTS", None)
    if failpoints:
        environment["AETHERIS_FAILPOINTS"] = failpoints
    if trace:
        environment["AETHERIS_FAILPOINTS_TRACE"] = "1"
    return subprocess.run([BIN, *arguments], env=environment, capture_output=True, text=True, timeout=timeout,
                          stdin=subprocess.DEVNULL)


def run(agents, job, store, shop, durability, **more):
    return aetheris(["run", agents, "--job-id", job, "--input", INPUT, "--durability", durability, "--json"],
                    store, shop, **more)


def send_request(shop, path):
    with urllib.request.urlopen(shop + path, timeout=10) as answer:
        return json.load(answer)


def outcomes(job, store, shop):
    """The outcomes of the nodes of a job; they must equal those of the baseline."""
    done = aetheris(["events", job, "--json"], store, shop)
    if done.returncode != 0:
        raise Failure(f"events: {done.stderr}")
    found = collections.Counter()
    for event in json.loads(done.stdout)["events"]:
        if event["type"] == "node_finished":
            payload = event["payload"]
            found[(payload["node_id"], payload["result_type"], payload.get("skipped", False))] += 1
    return found


def shape(result):
    """A result without the counters of the shop."""
    return re.sub(r'"([a-z_]+)[-_][0-9a-f]+"', r'"\1"', json.dumps(result, sort_keys=True))


def resolve(job, store, shop):
    seen = json.loads(aetheris(["job", job, "--json"], store, shop).stdout)
    if seen["status"] != "parked" or len(seen["in_doubt"]) != 1:
        raise Failure(f"blocked, but not parked with one unknown outcome: {seen}")
    doubt = seen["in_doubt"][0]
    settles = datetime.datetime.fromisoformat(doubt["resolvable_at"].rstrip("Z") + "+00:00")
    time.sleep(max(0, (settles - datetime.datetime.now(datetime.timezone.utc)).total_seconds()))
    if doubt["tool"] != "give_card":
        raise Failure(f"only the at_most_once call may have an unknown outcome, not {doubt['tool']}")
    made = send_request(shop, f"/gift-cards?key={doubt['external_key']}")
    card = next(iter(made.values()))
    arguments = ["resolve", job, doubt["idempotency_key"]]
    arguments += ["happened", json.dumps(card)] if card else ["not_happened"]
    done = aetheris(arguments, store, shop)
    if done.returncode != 0:
        raise Failure(f"{' '.join(arguments)}: exit {done.returncode}: {done.stderr}")


def arrivals(job, folder):
    """How many requests of this job that change something have reached the shop."""
    text = (folder / "shop.journal").read_text()
    return sum(f"aetheris:{job}:" in line for line in text.splitlines() if '"kind":"arrival"' in line)


def die_at_arrival(number, agents, job, store, shop, durability, folder):
    environment = dict(os.environ, SHOP_URL=shop, AETHERIS_STORE=f"sqlite:{store}", NO_COLOR="1")
    words = [BIN, "run", agents, "--job-id", job, "--input", INPUT, "--durability", durability]
    with subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL) as process:
        give_up = time.monotonic() + 60
        while arrivals(job, folder) < number:
            if process.poll() is not None or time.monotonic() > give_up:
                process.kill()
                raise Failure(f"first run: request {number} did not arrive, exit {process.poll()}")
            time.sleep(0.005)
        process.kill()


def kill_and_recover(point, durability, agents, shop, folder, baseline):
    name = f"{durability}-{point.replace('@', '-')}"
    store, job = folder / f"{name}.db", f"sweep-{name}"
    if point.startswith("arrival@"):
        die_at_arrival(int(point.split("@")[1]), agents, job, store, shop, durability, folder)
    else:
        died = run(agents, job, store, shop, durability, failpoints=point.replace("@", "=exit@"))
        if died.returncode not in (137, 0):
            raise Failure(f"first run: exit {died.returncode}: {died.stderr}")
    parked = False
    for _ in range(4):
        lived = run(agents, job, store, shop, durability)
        if lived.returncode == 0:
            break
        if lived.returncode != 4:
            raise Failure(f"second run: exit {lived.returncode}: {lived.stderr}")
        parked = True
        resolve(job, store, shop)
    else:
        raise Failure("it never ended")
    end = json.loads(lived.stdout)
    if end["status"] != "completed" or shape(end["result"]) != baseline["shape"]:
        raise Failure(f"another outcome: {end['status']} {end['result']}")
    found = outcomes(job, store, shop)
    if found != baseline["outcomes"]:
        raise Failure(f"other outcomes: {found - baseline['outcomes']} instead of {baseline['outcomes'] - found}")
    checked = aetheris(["verify", job], store, shop)
    if checked.returncode != 0:
        raise Failure(f"verify: exit {checked.returncode}: {checked.stdout}{checked.stderr}")
    return parked


def sweep(durability, agents, shop, folder, only, late=False):
    store = folder / f"calm-{durability}.db"
    done = run(agents, f"calm-{durability}", store, shop, durability, trace=True)
    if done.returncode != 0:
        raise Failure(f"the baseline run: exit {done.returncode}: {done.stderr}")
    baseline = {"shape": shape(json.loads(done.stdout)["result"]), "outcomes": outcomes(f"calm-{durability}", store, shop)}
    if late:
        points = [f"arrival@{n + 1}" for n in range(arrivals(f"calm-{durability}", folder))]
    else:
        points = list(dict.fromkeys(re.findall(r"failpoint (\S+@\d+)", done.stderr)))
    if len(points) < (7 if late else 40):
        raise Failure(f"only {len(points)} hits: {points}")
    if only:
        points = [only]
    failures, parked = [], 0
    with concurrent.futures.ThreadPoolExecutor(max_workers=4) as pool:
        jobs = {pool.submit(kill_and_recover, point, durability, agents, shop, folder, baseline): point for point in points}
        for job in concurrent.futures.as_completed(jobs):
            try:
                parked += job.result()
            except (Failure, subprocess.TimeoutExpired, KeyError, ValueError) as problem:
                failures.append(f"{jobs[job]} {durability}: {problem}")
    for failure in failures[:10]:
        print(f"# {failure}\n# repeat: AETHERIS_BIN={BIN} tests/crash_sweep.py {failure.split(':')[0]}")
    print(f"# {durability}: killed at {len(points)} points, {parked} of them left an unknown outcome, {len(failures)} failures")
    return not failures and (only or parked > 0)


def with_shop(agents, temporary, modes, only, late):
    """Sweeps with its own shop, whose journal decides."""
    folder = pathlib.Path(temporary) / ("late" if late else "prompt")
    folder.mkdir()
    journal = folder / "shop.journal"
    rules = [{"route": f"POST /{place}", "at": "before", "delay_ms": delay} for place, delay in LATE_MS.items()]
    shop = subprocess.Popen([sys.executable, str(ROOT / "examples/shop/shop.py"), "--port", "0", "--journal", str(journal)],
                            env=dict(os.environ, SHOP_CONTROL=json.dumps(rules if late else [])),
                            stdout=subprocess.PIPE, text=True)
    ok = True
    try:
        address = "http://" + shop.stdout.readline().split()[1]
        for durability in modes:
            held = False
            try:
                held = sweep(durability, str(agents), address, folder, only, late)
            except Failure as problem:
                print(f"# {problem}")
            verdict = "ok" if held else "not ok"
            if late:
                print(f"{verdict} kill -9 between each late request and its answer gives the same outcome ({durability})", flush=True)
            else:
                print(f"{verdict} kill -9 at every failpoint gives the same outcome ({durability})", flush=True)
            ok = ok and held
        table = subprocess.run([sys.executable, str(ROOT / "examples/shop/table.py"), str(journal)],
                               capture_output=True, text=True)
        if table.returncode != 0:
            print("# " + table.stdout.replace("\n", "\n# "))
        print(f"{'ok' if table.returncode == 0 else 'not ok'} the journal of the shop shows no repeated effect" +
              " when the shop is late" * late, flush=True)
        return ok and table.returncode == 0
    finally:
        shop.kill()
        shop.wait()


def main():
    only = sys.argv[1] if len(sys.argv) > 1 else ""
    modes = sys.argv[2:3] or ["fused", "split"]
    ok = True
    with tempfile.TemporaryDirectory(prefix="aetheris-sweep-") as temporary:
        folder = pathlib.Path(temporary)
        # The example with shorter waits.
        text = (ROOT / "examples/refund.yaml").read_text()
        text = text.replace("for: 1s", "for: 50ms").replace("initial_backoff: 100ms", "initial_backoff: 10ms")
        # A lost gift card call settles soon after the restart.
        long = "an operator reports the outcome\n    timeout: 10s\n"
        assert text.count(long) == 1
        text = text.replace(long, "an operator reports the outcome\n    timeout: 2s\n    grace: 1s\n")
        agents = folder / "refund.yaml"
        agents.write_text(text)
        if not only.startswith("arrival@"):
            ok = with_shop(agents, temporary, modes, only, False)
        if not only or only.startswith("arrival@"):
            ok = with_shop(agents, temporary, modes if SLOW or only else modes[:1], only, True) and ok
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
