"""Runs one routine against the model of the engine, without a network: each message arrives when the test determines it."""
import asyncio
import json
import queue
import threading
import time

from aetheris import Failure
from aetheris.canonical import to_json
from aetheris.current import IN_FUNCTION, here
from aetheris.definitions import Agent
from aetheris.loop import HostLoop
from aetheris.redact import redactor
from aetheris.routine import Routine
from aetheris.sync import Threads

from .engine import Engine


class Host:
    def __init__(self):
        self._loop = None
        self.sent = []
        self.ended = []
        self.logged = []
        self.tools = ()
        self.diverged = None
        self._scheduled = []
        self._posted = queue.Queue()
        self._thread = threading.get_ident()

    @property
    def loop(self):
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop

    def schedule(self, routine):
        if not routine.is_scheduled:
            routine.is_scheduled = True
            self._scheduled.append(routine)

    def send(self, message):
        message = json.loads(json.dumps(message))  # as on the wire
        if message["type"] == "advance":
            self.sent.append(message)
        else:
            self.diverged = message

    def end_call(self, call, end):
        self.ended.append((call, end))

    def log(self, level, message):
        self.logged.append(f"{level} {message}")

    def offers_tool(self, name):
        return name in self.tools

    def post(self, function):
        if threading.get_ident() == self._thread:
            function()
        else:
            self._posted.put(function)

    def settled(self, routine):
        """Returns when the routine has nothing to do."""
        turns = 0
        while True:
            while not self._posted.empty():
                self._posted.get()()
            if self._scheduled:
                turns = 0
                self._scheduled.pop(0).step()
                continue
            runner = routine.runner
            if isinstance(runner, Threads) and runner._running is not None:
                self._wait_for_threads(runner)
            elif isinstance(runner, HostLoop) and turns < 10:
                turns += 1
                self.loop.call_soon(self.loop.stop)
                self.loop.run_forever()
            else:
                return

    def _wait_for_threads(self, runner):
        give_up = time.monotonic() + 20
        while runner._running is not None and self._posted.empty():
            assert time.monotonic() < give_up, "the threads of the routine do not settle"
            time.sleep(0.0001)

    def close(self):
        if self._loop is None:
            return
        for _ in range(3):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()
        self.loop.close()


class TestCall:
    """What a function is given."""
    traceparent = ""
    inputs = None

    def __init__(self, permit, usages):
        self.usages = usages
        self.key, self.execution_key, self.try_ = permit["key"], permit["execution_key"], permit["try"]

    def _note_usage(self, usage):
        self.usages.append(usage)

    def _routed(self, method, url):
        return url, {}


def call_function(permit, request, usages=None):
    """Performs the function of a request, on a thread as a worker does. Its result or its exception. `usages` is given
    what it used of models."""
    ends = []
    usages = [] if usages is None else usages

    def work():
        here.set(IN_FUNCTION)
        try:
            result = request.fn(permit["arguments"], TestCall(permit, usages))
            if hasattr(result, "__await__"):
                async def awaited():
                    return await result
                result = asyncio.run(awaited())
            ends.append((redactor.value(to_json(result, "the result")), None))
        except Exception as error:
            ends.append((None, error))
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return ends[0]


class TestJob:
    """A job of one agent: its log, and a routine that runs."""

    def __init__(self, fn, *, loop="agent", other_work_s=0.2, **options):
        self.engine = Engine(**options)
        self.agent = Agent("agent", {}, fn, loop)
        self.other_work_s = other_work_s
        self.usages = []  # of models, by functions
        self.host = None
        self.routine = None
        self.restart()

    def restart(self, **options):
        """A new routine from the record, as after a crash."""
        self.drop("crash")
        self.begin(self.engine.start(**options))

    def begin(self, start):
        self.host = Host()
        self.taken = 0
        self.routine = Routine(start, self.agent, self.host, self.other_work_s)
        self.routine.begin()

    def drop(self, reason="test"):
        if self.routine is not None:
            self.routine.drop(reason)
            self.host.settled(self.routine)
            self.host.close()
            self.routine = None

    def run(self):
        """Delivers all messages, performs all functions, until nothing happens any more."""
        while True:
            self.host.settled(self.routine)
            sent = self.host.sent[self.taken:]
            self.taken = len(self.host.sent)
            for message in sent:
                self.engine.receive(message)
            outbox, self.engine.outbox = self.engine.outbox, []
            for message in outbox:
                self.give(message)
            if not sent and not outbox:
                return self

    def give(self, message):
        if message["type"] == "deliver":
            self.routine.deliver(message["outcomes"])
        elif message["type"] == "perform":
            self.perform(message)

    def perform(self, permit):
        """A function: its success goes to the routine, its failure to the engine."""
        position = permit["position"]
        request = self.routine.function_at(position)
        if request is None:
            return
        result, error = call_function(permit, request, self.usages)
        if error is not None:
            code = error.code if isinstance(error, Failure) else "exception"
            return self.engine.fail(position, code, f"{type(error).__name__}: {error}")
        if not self.routine.on_success(permit["call"], position, {"result": result}):
            self.engine.succeed(position, result)

    @property
    def result(self):
        end = self.engine.end
        if self.host.diverged:
            return {"diverged": self.host.diverged["position"], "finding": self.host.diverged["finding"]}
        if end is None:
            return None
        if "failure" in end:
            return {"failure": end["failure"]["code"]}
        return {"exception": end["exception"]["message"]} if "exception" in end else end["result"]

    @property
    def positions(self):
        return list(self.engine.log)

    def replayed(self):
        """The job again, from its log: the same end, and nothing else is requested."""
        result, log = self.result, json.dumps(self.engine.record())
        self.engine.end = None
        self.restart()
        self.run()
        assert self.result == result, (self.result, result)
        assert json.dumps(self.engine.record()) == log
        return self


def run_job(fn, world=lambda job: None, **options):
    """Runs a job to its end, with what the world answers."""
    job = TestJob(fn, **options).run()
    world(job)
    return job.run()


class Dice:
    """A generator of random numbers by seed (mulberry32)."""

    def __init__(self, seed):
        self._state = seed & 0xFFFFFFFF

    def below(self, limit):
        self._state = (self._state + 0x6D2B79F5) & 0xFFFFFFFF
        t = self._state
        t = ((t ^ (t >> 15)) * (t | 1)) & 0xFFFFFFFF
        t ^= (t + ((t ^ (t >> 7)) * (t | 61))) & 0xFFFFFFFF
        return ((t ^ (t >> 14)) & 0xFFFFFFFF) % limit

    def one_in(self, n):
        return self.below(n) == 0

    def pick(self, items):
        return items[self.below(len(items))]
