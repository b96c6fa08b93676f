#!/usr/bin/env python3
"""What Aetheris costs: rows of figures, each beside the limit that was measured in the same run, where there is one.

  ./dev bench [ROW…] [--store sqlite|postgres|both] [--quick] [--json] [--jobs N] [--minutes N]
"""
import argparse
import datetime
import json
import os
import subprocess
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import agents  # noqa: E402
import reads  # noqa: E402
from processes import BENCH, THREADS, Store, memory, until  # noqa: E402


def mean(values):
    return sum(values) / len(values)


# ---------------------------------------------------------------- rows of whole processes

def http(store, options):
    """Jobs of one step asked of `serve`, over connections that are kept; then such that are waited for."""
    requests = options.jobs or (500 if options.quick else 10000)
    serve = store.serve()
    jobs = 200
    serve.drive("/api/jobs", {"agent": "one"}, jobs)
    for connections in (1, 16, 64):
        share = max(100, requests // 10) if connections == 1 else requests
        cpu, server_cpu = serve.cpu_ms(), store.server_cpu_ms()
        asked = serve.drive("/api/jobs", {"agent": "one"}, share, connections)
        jobs += share
        store.await_status("completed", jobs, 0.05)
        figures = {"connections": connections, "submitted_per_second": asked["per_second"], "answer_p50_ms": asked["p50_ms"],
                   "answer_p99_ms": asked["p99_ms"], "cpu_ms": (serve.cpu_ms() - cpu) / share,
                   "server_cpu_ms": (store.server_cpu_ms() - server_cpu) / share}
        waited = serve.drive("/api/jobs?wait=60s", {"agent": "one"}, share, connections)
        jobs += share
        yield {**figures, "ended_per_second": waited["per_second"], "to_end_p50_ms": waited["p50_ms"],
               "to_end_p99_ms": waited["p99_ms"]}


WAVE_JOBS = 4000  # a call that is not sent within ten seconds is withdrawn: so many are declared well before


def recovery(store, options):
    """Every job has done one step and runs the next when all is killed; then `serve` starts again."""
    jobs = options.jobs or (1000 if options.quick else 10000)
    waves = range(-(-jobs // WAVE_JOBS))
    held = 0
    for wave in waves:
        ours = min(WAVE_JOBS, jobs - wave * WAVE_JOBS)
        serve = store.serve("--workers", "100000", begins=wave)
        empty = memory(serve.pid)
        serve.drive("/api/jobs", {"agent": f"blocks_{wave}"}, THREADS)
        until(lambda: serve.counter('aetheris_tool_invocations_total{tool="block"}') == THREADS, 0.1, "every thread is blocked")
        serve.drive("/api/jobs", {"agent": f"two_{wave}"}, ours, 64)
        until(lambda: serve.counter('aetheris_tool_invocations_total{tool="late"}') >= ours, 0.1, "every job runs its second step")
        held += memory(serve.pid) - empty
        serve.kill()
    again = store.serve(ends=waves)
    ready = time.time()
    store.await_status("completed", jobs)
    took = store.last_written() - again.started
    # On a shared store nobody takes a job before the lease of the dead has run out.
    waited = store.first_written_since(again.started) - again.started
    yield {"jobs": jobs, "seconds": took, "listening_after": ready - again.started, "first_after": waited,
           "jobs_per_second": jobs / took, "per_second_from_first": jobs / max(took - waited, 1e-3),
           "memory_most_mb": memory(again.pid, "VmHWM") / 1e6, "held_bytes_each": held / jobs}


def parked(store, options):
    """Jobs that wait: for one instant, then, others, each for a signal."""
    jobs = options.jobs or (1000 if options.quick else 10000)
    serve = store.serve()
    time.sleep(1)
    empty = serve.rss()
    due = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=5 + jobs / 700)
    at = due.replace(microsecond=0)
    serve.drive("/api/jobs", {"agent": "sleeps", "input": {"at": at.strftime("%Y-%m-%dT%H:%M:%SZ")}}, jobs, 64)
    store.await_status("waiting", jobs)
    left = at.timestamp() - time.time()
    if left < 0.2:
        sys.exit("the jobs were not parked in time")
    made = serve.rss()
    store.await_status("completed", jobs)
    took = store.last_written() - at.timestamp()
    yield {"wait": "timer", "jobs": jobs, "empty_mb": empty / 1e6, "parked_mb": made / 1e6, "bytes_each": (made - empty) / jobs,
           "wake_seconds": took, "woken_per_second": jobs / took}

    serve.drive("/api/jobs", {"agent": "asks", "id": "asks-{n}"}, jobs, 64)
    store.await_status("waiting", jobs)
    serve.stop()
    serve = store.serve()
    time.sleep(2)
    fresh = serve.rss()
    began = time.time()
    sent = serve.drive("/api/jobs/asks-{n}/signal", {"correlation_key": "go", "payload": 1}, jobs, 64)
    store.await_status("completed", 2 * jobs)
    took = store.last_written() - began
    yield {"wait": "signal", "jobs": jobs, "empty_mb": empty / 1e6, "parked_mb": fresh / 1e6, "bytes_each": (fresh - empty) / jobs,
           "wake_seconds": took, "woken_per_second": jobs / took, "signal_p50_ms": sent["p50_ms"],
           "signal_p99_ms": sent["p99_ms"]}


def idle(store, options):
    """A server that has worked, and has nothing to do."""
    seconds = 5 if options.quick else 30
    serve = store.serve()
    serve.drive("/api/jobs?wait=60s", {"agent": "one"}, 500)
    time.sleep(6)
    cpu, server_cpu, began = serve.cpu_ms(), store.server_cpu_ms(), time.monotonic()
    rss = []
    while time.monotonic() < began + seconds:
        rss.append(serve.rss())
        time.sleep(1)
    took = (time.monotonic() - began) * 1000
    yield {"seconds": took / 1000, "cpu_percent": 100 * (serve.cpu_ms() - cpu) / took,
           "server_cpu_percent": 100 * (store.server_cpu_ms() - server_cpu) / took, "memory_mb": mean(rss) / 1e6,
           "slope_kb_per_minute": slope(rss) * 60 / 1e3}


def slope(values):
    """Per step of the best line through them."""
    middle, average = (len(values) - 1) / 2, mean(values)
    spread = sum((i - middle) ** 2 for i in range(len(values)))
    return sum((i - middle) * (v - average) for i, v in enumerate(values)) / spread if spread else 0.0


def load(store, options):
    """A steady load, by the minute; at the end, whether memory grew: the last quarter against the second."""
    minutes, rate = options.minutes or (1 if options.quick else 20), 200
    parts = minutes if minutes >= 8 else 8
    length = minutes * 60 / parts
    serve = store.serve()
    rss = []
    for part in range(parts):
        requests = int(rate * length)
        asked = serve.drive("/api/jobs", {"agent": "one"}, requests, 16, first=part * requests, rate=rate)
        rss.append(serve.rss())
        yield {"minute": (part + 1) * length / 60, "per_second": asked["per_second"], "answer_p99_ms": asked["p99_ms"],
               "memory_mb": rss[-1] / 1e6}
    quarter = max(1, parts // 4)
    second, last = mean(rss[quarter:2 * quarter]), mean(rss[-quarter:])
    yield {"minute": minutes, "memory_mb": last / 1e6, "second_quarter_mb": second / 1e6, "last_to_second": last / second}


# name: what it measures, its stores how; None = aetheris_bench does.
BOTH = ("sqlite", "postgres")
AGENTS = ("turns", "thinking")  # they need Node: only when asked for
ROWS = {
    "memory": ("durable steps in memory, 10 a job, a native tool that returns ~200 bytes at once", ("sqlite",), None),
    "sqlite": ("the same on SQLite, fsynced; raw: the bare writes on SQLite", ("sqlite",), None),
    "postgres": ("the same on PostgreSQL, fsync on; raw: the bare set-based write in pipeline mode", ("postgres",), None),
    "workers": ("queued jobs of 10 steps, run by so many processes on one PostgreSQL", ("postgres",), None),
    "claim": ("an idle worker is told: from a job being durable until its attempt is; then the same of a signal", ("postgres",),
              None),
    "history": ("what a claim costs among so many finished jobs, PostgreSQL", ("postgres",), None),
    "http-tool": ("steps that are HTTP calls to a server in another thread, SQLite", ("sqlite",), None),
    "map": ("a map, one item at a time: does the last tenth cost what the first did; then its log is replayed, SQLite",
            ("sqlite",), None),
    "http": ("jobs of one step asked of `serve`: the answer, and (waited for) the end of the job", BOTH, http),
    "recovery": ("unfinished jobs after kill -9 of everything", BOTH, recovery),
    "parked": ("jobs that wait: memory, and how fast all are woken", BOTH, parked),
    "reads": ("health while one large job is read in every way", BOTH, reads.reads),
    "idle": ("a server with nothing to do", BOTH, idle),
    "turns": ("loops of 200 turns against a model that answers at once, SQLite (--agents)", ("sqlite",), agents.turns),
    "thinking": ("1,000 loops whose model has not answered yet, SQLite (--agents)", ("sqlite",), agents.thinking),
    "load": ("a steady load of 200 jobs a second (only when it is asked for)", BOTH, load),
}

# row (as it is said), what must hold of it, figure, `<=` or `>=`, budget. Budgets are for two cores.
BUDGETS = [
    ("sqlite", {"in_flight": 256}, "steps_per_second", ">=", 60000),
    ("sqlite", {"in_flight": 256}, "cpu_ms", "<=", 0.03),
    ("sqlite", {"in_flight": 256}, "ratio", ">=", 0.35),
    ("sqlite", {"in_flight": 1}, "p50_ms", "<=", 0.2),
    ("sqlite", {"in_flight": 256}, "bytes", "<=", 1000),
    ("postgres", {"in_flight": 256}, "steps_per_second", ">=", 30000),
    ("postgres", {"in_flight": 256}, "cpu_ms", "<=", 0.06),
    ("postgres", {"in_flight": 256}, "table_bytes", "<=", 1000),
    ("claim", {}, "p99_ms", "<=", 50),
    ("signal", {}, "p99_ms", "<=", 50),
    ("history", {}, "ratio", "<=", 2),
    ("map", {}, "ratio", "<=", 1.25),
    ("parked", {"wait": "signal"}, "bytes_each", "<=", 100),
    ("reads", {}, "health_p99_ms", "<=", 20),
    ("reads", {}, "wait_ratio", "<=", 1.5),
    ("idle", {}, "cpu_percent", "<=", 1),
    ("idle", {"store": "postgres"}, "server_cpu_percent", "<=", 1),
    ("turns", {"jobs": 1}, "late_to_early", "<=", 1.1),
    ("thinking", {}, "kib_each", "<=", 64),
    ("thinking", {}, "more_threads", "<=", 0),
    ("load", {}, "last_to_second", "<=", 1.1),
]


class Printer:
    """Rows as tables, or as JSON; `over` says which budgets were held."""

    def __init__(self, as_json):
        self.as_json = as_json
        self.columns = None
        self.rows = []

    def title(self, text):
        self.columns = None
        if not self.as_json:
            print(f"\n{text}")

    def row(self, figures):
        self.rows.append(figures)
        if self.as_json:
            print(json.dumps(figures), flush=True)
            return
        columns = list(figures)
        if columns != self.columns:
            self.columns = columns
            print("  ".join(f"{name:>8}" for name in columns))
        print("  ".join(f"{text(value):>{max(8, len(name))}}" for name, value in figures.items()), flush=True)

    def over(self):
        met = True
        for name, such, figure, way, budget in BUDGETS:
            for row in self.rows:
                if row["row"] != name or figure not in row or any(row.get(key) != value for key, value in such.items()):
                    continue
                value = row[figure]
                holds = value <= budget if way == "<=" else value >= budget
                met = met and holds
                where = " ".join([name, *([row["store"]] if "store" in row else []), *(f"{k} {v}" for k, v in such.items())])
                if self.as_json:
                    print(json.dumps({"row": "budget", "of": where, "figure": figure, "way": way, "budget": budget,
                                      "is": value, "held": holds}))
                else:
                    print(f"{'held  ' if holds else 'MISSED'}  {where}: {figure} {text(value)}, budget {way} {budget}")


def text(value):
    if isinstance(value, str):
        return value
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def number(most):
    def checked(word):
        value = int(word)
        if not 1 <= value <= most:
            raise argparse.ArgumentTypeError(f"is 1 to {most}")
        return value
    return checked


def parsed(words):
    listed = "".join(f"  {name:10} {what}\n" for name, (what, _, _) in ROWS.items())
    parser = argparse.ArgumentParser(
        prog="./dev bench", formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__.split("\n")[0],
        epilog="rows (all but load and those of agents when none is named):\n" + listed)
    parser.add_argument("rows", nargs="*", metavar="ROW")
    parser.add_argument("--store", choices=[*BOTH, "both"], default="both", help="only what concerns this store; a PostgreSQL "
                        "server is started in a temporary folder")
    parser.add_argument("--quick", action="store_true", help="less of everything; says only whether it works")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each row")
    parser.add_argument("--jobs", type=number(100000), help="of http, recovery and parked (10000), thinking (1000)")
    parser.add_argument("--minutes", type=number(10000), help="of load (20)")
    parser.add_argument("--agents", action="store_true", help="only the rows of agents that a model leads; they need Node 22")
    parser.add_argument("--long", action="store_true", help="load, too")
    options = parser.parse_args(words)
    for name in options.rows:
        if name not in ROWS:
            parser.error(f"there is no row \"{name}\": {' '.join(ROWS)}")
    return options


def main():
    options = parsed(sys.argv[1:])
    printer = Printer(options.json)
    stores = BOTH if options.store == "both" else (options.store,)
    wanted = options.rows or [name for name in ROWS if name != "load" and (name in AGENTS) == options.agents]
    if options.long and "load" not in wanted:
        wanted.append("load")
    for name, (what, has, how) in ROWS.items():
        mine = [store for store in has if store in stores]
        if name not in wanted or not mine:
            continue
        printer.title(what)
        if how is None:
            done = subprocess.Popen([BENCH, name, *(["--quick"] if options.quick else [])], stdout=subprocess.PIPE, text=True)
            for line in done.stdout:
                printer.row(json.loads(line))
            if done.wait() != 0:
                sys.exit(f"{name}: aetheris_bench ended with {done.returncode}")
            continue
        for kind in mine:
            with Store(kind) as store:
                for figures in how(store, options):
                    printer.row({"row": name, "store": kind, **figures})
    printer.title("budgets")
    printer.over()


if __name__ == "__main__":
    main()
