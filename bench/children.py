"""The row `children`: one parent whose map creates a child job for each item and waits for all, with few and with many items."""
import time

from processes import Store, memory

AGENTS = """
aetheris: 1
tools:
  fill: { native: fill, effect: idempotent }
agents:
  child:
    plan: [ { id: a, tool: fill, args: { bytes: 200 } } ]
    output: "${ .input.n }"
  parent:
    plan:
      - { id: each, map: "${ [range(.input.children)] }", max_parallel: 256, do: { agent: child, input: { n: "${ .item }" } } }
    output: "${ .steps.each | length }"
"""


def one_parent(kind, children):
    with Store(kind) as store:
        serve = store.serve("--workers", "1000", agents=AGENTS)
        serve.drive("/api/jobs?wait=60s", {"agent": "parent", "input": {"children": 100}}, 1, 1)
        store.await_status("completed", 101, 0.05)
        cpu, began = serve.cpu_ms(), time.time()
        serve.drive("/api/jobs", {"agent": "parent", "input": {"children": children}}, 1, 1)
        store.await_status("completed", 102 + children, 0.1)
        took = store.last_written() - began
        return {"children": children, "seconds": took, "per_second": children / took,
                "cpu_ms": (serve.cpu_ms() - cpu) / children, "memory_most_mb": memory(serve.pid, "VmHWM") / 1e6}


def children(store, options):
    """Each parent has a store of its own. `ratio`: CPU for each child, compared to the first row."""
    many = options.jobs or (2000 if options.quick else 10000)
    few = one_parent(store.kind, many // 10)
    yield few
    more = one_parent(store.kind, many)
    yield {**more, "ratio": more["cpu_ms"] / few["cpu_ms"]}
