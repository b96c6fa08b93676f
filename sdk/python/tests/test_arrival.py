"""What arrives on the worker's thread while the code of a sync agent runs on its own."""
import collections
import threading
import unittest

from aetheris import agent
from aetheris.routine import Routine

from .support.harness import Host

START = {"routine": 1, "job": {"id": "job-1"}, "input": None, "blind": "ab", "record": {}}


class Arrival(unittest.TestCase):
    def run_until(self, code):
        """The routine of this code after its request "go"."""
        self.host = Host()
        self.addCleanup(self.host.close)
        routine = Routine(START, agent("one")(code), self.host)
        routine.begin()
        self.host.settled(routine)
        routine.deliver([{"position": "go", "kind": "tool", "result": 1}])
        self.host._scheduled.pop(0).step()
        return routine

    def test_a_success_that_comes_while_the_code_returns_is_not_lost(self):
        gate, reads, came = threading.Event(), threading.Event(), threading.Event()

        class Slow(collections.deque):
            def __iter__(self):
                found = list(super().__iter__())
                reads.set()
                came.wait(5)
                return iter(found)

        def code(ctx, input):
            ctx.later.run("a", "read", lambda: 5)
            ctx.call("go")
            gate.wait(5)
            return 2
        routine = self.run_until(code)
        routine._arrived = Slow()
        gate.set()
        reads.wait(0.2)
        self.assertTrue(routine.on_success(7, "a", {"result": 5}))
        came.set()
        self.host.settled(routine)
        self.assertEqual([one["call"] for sent in self.host.sent for one in sent.get("functions", [])], [7])
        self.assertEqual(routine.end, {"result": 2})

    def test_a_success_that_came_before_the_code_diverged_ends_its_call_on_the_thread_of_the_worker(self):
        gate = threading.Event()
        ended_on = []

        def code(ctx, input):
            ctx.later.run("a", "read", lambda: 5)
            ctx.call("go")
            gate.wait(5)
            routine._diverge({"finding": "arguments", "position": "b", "delivered": 1})
        routine = self.run_until(code)
        self.host.end_call = lambda call, end: ended_on.append((call, threading.get_ident()))
        self.assertTrue(routine.on_success(7, "a", {"result": 5}))
        gate.set()
        self.host.settled(routine)
        self.assertEqual(ended_on, [(7, threading.get_ident())])
