#!/usr/bin/env python3
"""Measures the cost of Aetheris: rows of figures, with the limit measured in the same run where there is one.

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
import children  # noqa: E402
import code_agents  # noqa: E402
import reads  # noqa: E402
from processes import BENCH, THREADS, Store, memory, until  # noqa: E402


def mean(values):
    return sum(values) / len(values)


# ---------------------------------------------------------------- rows of whole processes

def http(store, options):
    """Jobs of one step submitted to `serve` over persistent connections; then the same with a wait for the end."""
    requests = options.jobs or (500 if options.quick else 10000)
    serve = store.serve()
    jobs = 200
    serve.drive("/api/jobs", {"agent": "one"}, jobs)
    for connections in (1, 16, 64):
        share = max(100, requests // 10) if connections == 1 else requests
        cpu, server_cpu = serve.cpu_ms(), store.server_cpu_ms()
        submitted = serve.drive("/api/jobs", {"agent": "one"}, share, connections)
        jobs += share
        store.await_status("completed", jobs, 0.05)
        figures = {"connections": connections, "submitted_per_second": submitted["per_second"], "answer_p50_ms": submitted["p50_ms"],
                   "answer_p99_ms": submitted["p99_ms"], "cpu_ms": (serve.cpu_ms() - cpu) / share,
                   "server_cpu_ms": (store.server_cpu_ms() - server_cpu) / share}
        waited = serve.drive("/api/jobs?wait=60s", {"agent": "one"}, share, connections)
        jobs += share
        yield {**figures, "ended_per_second": waited["per_second"], "to_end_p50_ms": waited["p50_ms"],
               "to_end_p99_ms": waited["p99_ms"]}


WAVE_JOBS = 4000  # all are declared well within ten seconds; a call that is not sent by then is withdrawn


def recovery(store, options):
    """Every job has completed one step and runs the next when the server is killed; then `serve` is restarted."""
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
    # On a shared store no job is claimed before the lease of the killed process has expired.
    waited = store.first_written_since(again.started) - again.started
    yield {"jobs": jobs, "seconds": took, "listening_after": ready - again.started, "first_after": waited,
           "jobs_per_second": jobs / took, "per_second_from_first": jobs / max(took - waited, 1e-3),
           "memory_most_mb": memory(again.pid, "VmHWM") / 1e6, "held_bytes_each": held / jobs}


def parked(store, options):
    """Waiting jobs: all for the same instant; then other jobs, each for a signal."""
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
    """An idle server, after some work."""
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
    """The slope of the regression line, per step."""
    middle, average = (len(values) - 1) / 2, mean(values)
    spread = sum((i - middle) ** 2 for i in range(len(values)))
    return sum((i - middle) * (v - average) for i, v in enumerate(values)) / spread if spread else 0.0


def load(store, options):
    """A steady load, one row per minute; at the end the growth of memory: the last quarter compared to the second."""
    minutes, rate = options.minutes or (1 if options.quick else 20), 200
    parts = minutes if minutes >= 8 else 8
    length = minutes * 60 / parts
    serve = store.serve()
    rss = []
    for part in range(parts):
        requests = int(rate * length)
        submitted = serve.drive("/api/jobs", {"agent": "one"}, requests, 16, first=part * requests, rate=rate)
        rss.append(serve.rss())
        yield {"minute": (part + 1) * length / 60, "per_second": submitted["per_second"], "answer_p99_ms": submitted["p99_ms"],
               "memory_mb": rss[-1] / 1e6}
    quarter = max(1, parts // 4)
    second, last = mean(rss[quarter:2 * quarter]), mean(rss[-quarter:])
    yield {"minute": minutes, "memory_mb": last / 1e6, "second_quarter_mb": second / 1e6, "last_to_second": last / second}


# name: (description, stores, function); None: aetheris_bench measures it.
BOTH = ("sqlite", "postgres")
AGENTS = ("turns", "thinking")  # they need Node: only with --agents
CODE = ("code-ts", "code-py", "code-cpp", "restate", "resume", "code-loop")  # only with --code
ROWS = {
    "memory": ("durable steps in memory, 10 per job, a native tool that returns ~200 bytes immediately", ("sqlite",), None),
    "sqlite": ("the same on SQLite with fsync; raw: only the writes, on SQLite", ("sqlite",), None),
    "postgres": ("the same on PostgreSQL with fsync; raw: only the set-based write, in pipeline mode", ("postgres",), None),
    "workers": ("queued jobs of 10 steps, run by one and by two processes on one PostgreSQL", ("postgres",), None),
    "claim": ("an idle worker is notified: from a durable job to its durable attempt; then the same for a signal", ("postgres",),
              None),
    "history": ("the cost of a claim with few and with many finished jobs, PostgreSQL", ("postgres",), None),
    "http-tool": ("steps that are HTTP calls to a server in another thread, SQLite", ("sqlite",), None),
    "map": ("a map, one item at a time: the first and the last tenth; then a replay of its log, SQLite",
            ("sqlite",), None),
    "http": ("jobs of one step submitted to `serve`: until the response, and with a wait until the end of the job", BOTH, http),
    "recovery": ("unfinished jobs after kill -9 of the server", BOTH, recovery),
    "parked": ("waiting jobs: memory, and the time until all have resumed", BOTH, parked),
    "reads": ("one large job, page by page and in each view, and health requests meanwhile", BOTH, reads.reads),
    "children": ("one parent that waits for all child jobs of a map, with few and with many", BOTH, children.children),
    "idle": ("an idle server", BOTH, idle),
    "turns": ("loops of 200 turns against a model that answers at once, SQLite (--agents)", ("sqlite",), agents.turns),
    "thinking": ("1,000 loops whose model has not answered yet, SQLite (--agents)", ("sqlite",), agents.thinking),
    "code-ts": ("jobs of 10 steps, functions of a TypeScript worker that return ~200 bytes, SQLite with fsync (--code)",
                ("sqlite",), code_agents.code_ts),
    "code-py": ("the same in Python (--code)", ("sqlite",), code_agents.code_py),
    "code-cpp": ("the same in C++, in the process of the library (--code)", ("sqlite",), code_agents.code_cpp),
    "restate": ("the same with Restate and its TypeScript SDK, its own store (--code; needs npm)", ("sqlite",), code_agents.restate),
    "resume": ("a waiting job whose record a new TypeScript worker replays (--code)", ("sqlite",), code_agents.resume),
    "code-loop": ("a loop of many turns waits; its worker is replaced, then its server killed (--code)", ("sqlite",), code_agents.code_loop),
    "load": ("a steady load of 200 jobs per second (only if selected)", BOTH, load),
}

# row, conditions on its figures, figure, `<=` or `>=`, budget. Budgets are for two cores.
BUDGETS = [
    ("memory", {"in_flight": 1}, "steps_per_second", ">=", 120000),
    ("memory", {"in_flight": 256}, "steps_per_second", ">=", 120000),
    ("sqlite", {"in_flight": 32}, "ratio", ">=", 0.75),
    ("sqlite", {"in_flight": 256}, "ratio", ">=", 0.5),
    ("sqlite", {"in_flight": 256}, "steps_per_second", ">=", 80000),
    ("sqlite", {"in_flight": 256}, "cpu_ms", "<=", 0.02),
    ("sqlite", {"in_flight": 256}, "bytes", "<=", 1000),
    ("postgres", {"in_flight": 256}, "ratio", ">=", 0.45),
    ("postgres", {"in_flight": 256}, "steps_per_second", ">=", 70000),
    ("postgres", {"in_flight": 256}, "cpu_ms", "<=", 0.03),
    ("postgres", {"in_flight": 256}, "table_bytes", "<=", 1000),
    ("http-tool", {}, "steps_per_second", ">=", 15000),
    ("map", {}, "replayed_per_second", ">=", 600000),
    ("claim", {}, "p99_ms", "<=", 50),
    ("signal", {}, "p99_ms", "<=", 50),
    ("history", {}, "ratio", "<=", 2),
    ("map", {}, "ratio", "<=", 1.25),
    ("parked", {"wait": "signal"}, "bytes_each", "<=", 100),
    ("reads", {}, "health_p99_ms", "<=", 20),
    ("reads", {}, "page_p99_ms", "<=", 50),
    ("reads", {}, "wait_ratio", "<=", 1.5),
    ("children", {}, "ratio", "<=", 1.25),
    ("idle", {}, "cpu_percent", "<=", 1),
    ("idle", {"store": "postgres"}, "server_cpu_percent", "<=", 1),
    ("turns", {"jobs": 1}, "late_to_early", "<=", 1.1),
    ("thinking", {}, "kib_each", "<=", 64),
    ("thinking", {}, "more_threads", "<=", 0),
    ("load", {}, "last_to_second", "<=", 1.1),
    ("code-py", {"in_flight": 256}, "steps_per_second", ">=", 9000),
    ("code-loop", {}, "worker_ms", "<=", 50),
    ("code-loop", {}, "server_ms", "<=", 50),
]


class Printer:
    """Prints rows as tables or as JSON; `print_budgets` compares them with the budgets."""

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

    def print_budgets(self):
        for name, such, figure, way, budget in BUDGETS:
            for row in self.rows:
                if row["row"] != name or figure not in row or any(row.get(key) != value for key, value in such.items()):
                    continue
                value = row[figure]
                holds = value <= budget if way == "<=" else value >= budget
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
            raise argparse.ArgumentTypeError(f"must be 1 to {most}")
        return value
    return checked


def parsed(words):
    listed = "".join(f"  {name:10} {what}\n" for name, (what, _, _) in ROWS.items())
    parser = argparse.ArgumentParser(
        prog="./dev bench", formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__.split("\n")[0],
        epilog="rows (default: all except load and the rows of agents):\n" + listed)
    parser.add_argument("rows", nargs="*", metavar="ROW")
    parser.add_argument("--store", choices=[*BOTH, "both"], default="both", help="only rows of this store; a PostgreSQL "
                        "server is started in a temporary folder")
    parser.add_argument("--quick", action="store_true", help="small sizes: a check that the rows work, no valid figures")
    parser.add_argument("--json", action="store_true", help="one line of JSON per row")
    parser.add_argument("--jobs", type=number(100000), help="of http, recovery and parked (10000), thinking (1000)")
    parser.add_argument("--items", type=number(142000), help="of reads: items of the map, of seven events each (20000)")
    parser.add_argument("--minutes", type=number(10000), help="of load (20)")
    parser.add_argument("--agents", action="store_true", help="only the rows of agents with a model; they need Node 22")
    parser.add_argument("--code", action="store_true", help="only the rows of code agents; they need Node 22, and npm")
    parser.add_argument("--long", action="store_true", help="also load")
    options = parser.parse_args(words)
    for name in options.rows:
        if name not in ROWS:
            parser.error(f"unknown row \"{name}\"; rows: {' '.join(ROWS)}")
    return options


def main():
    options = parsed(sys.argv[1:])
    printer = Printer(options.json)
    stores = BOTH if options.store == "both" else (options.store,)
    chosen = CODE if options.code else AGENTS if options.agents else set(ROWS) - {"load", *AGENTS, *CODE}
    wanted = options.rows or [name for name in ROWS if name in chosen]
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
                sys.exit(f"{name}: aetheris_bench exited with {done.returncode}")
            continue
        for kind in mine:
            with Store(kind) as store:
                for figures in how(store, options):
                    printer.row({"row": name, "store": kind, **figures})
    if found := list(code_agents.ratios(printer.rows)):
        printer.title("compared with Restate")
        for figures in found:
            printer.row(figures)
    printer.title("budgets")
    printer.print_budgets()


if __name__ == "__main__":
    main()
