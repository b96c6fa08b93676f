"""Scenarios as data, their run in a world, and the judge of what happened."""
import collections
import json
import pathlib
import time

from harness.proxy import COMMIT
from harness.shop import job_of
from harness.world import Failed

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "scenarios"
MEMBERS = {"name", "about", "agent", "program", "data", "acts", "holds", "expect", "needs", "known"}
EXPECTED = {"status", "result", "disturbed", "error", "parked", "performances", "steps", "outcomes", "commits", "frames",
            "children", "tokens"}
ENDED = ("completed", "failed", "cancelled")
PATIENCE = 60.0
IN_DOUBT = "invocation_in_doubt"


def operations(op):
    """All operations of a program."""
    if isinstance(op, dict):
        if isinstance(op.get("op"), str):
            yield op
        for name, member in op.items():
            if name not in ("does", "value", "schema"):
                yield from operations(member)
    elif isinstance(op, list):
        for item in op:
            yield from operations(item)


class Scenario:
    def __init__(self, raw, path):
        unknown = (set(raw) - MEMBERS) | (set(raw["expect"]) - EXPECTED)
        if unknown:
            raise ValueError(f"{path.name}: {raw.get('name')}: unknown members {sorted(unknown)}")
        self.name, self.program, self.expect = raw["name"], raw["program"], raw["expect"]
        self.agent, self.data = raw.get("agent", "script"), raw.get("data")
        self.acts, self.known = raw.get("acts", []), raw.get("known", {})
        self.holds = raw.get("holds", {})  # label: condition
        self.needs = set(raw.get("needs", [])) | {op["op"] for op in operations(self.program)}
        self.needs |= {self.agent} - {"script"}
        for op in operations(self.program):  # what not every SDK has
            if op["op"] in ("all", "later"):
                inner = op["branches"] if op["op"] == "all" else [op["do"]]
                if any(one["op"] not in ("run", "call", "sleep", "start") for one in inner):
                    self.needs.add("branches" if op["op"] == "all" else "later_wait")
            if op["op"] == "scope" and not op.get("fold"):
                self.needs.add("open_scope")
        self.tools = {op["tool"] for op in operations(self.program) if op["op"] == "call"}
        self.performs = {}  # label: (effect, behaviours by try)
        for op in operations(self.program):
            if op["op"] in ("run", "call"):
                effect = op.get("effect") or op["tool"].split("_")[-1].replace("once", "at_most_once")
                does = op.get("does", {})
                self.performs[op.get("label", op.get("name") if op["op"] == "run" else op["tool"])] = (
                    effect, does if isinstance(does, list) else [does])

    def may_be_in_doubt(self, fault):
        """May the outcome of a call be unknown after this fault? A worker that lives reports how its calls ended."""
        effects = {effect for effect, _ in self.performs.values()}
        if self.loses_performer(fault):
            return "at_most_once" in effects or "fetch" in self.needs
        return fault.action.startswith("kill_server") and "server_once" in self.tools

    @staticmethod
    def loses_performer(fault):
        """Is the process of the functions killed, or frozen for longer than its session lives?"""
        return "worker" in fault.action or "both" in fault.action or fault.direction == COMMIT


def load():
    found = []
    for path in sorted(FOLDER.glob("*.json")):
        raw = json.loads(path.read_text())
        found += [Scenario(one, path) for one in (raw if isinstance(raw, list) else [raw])]
    twice = [name for name, n in collections.Counter(one.name for one in found).items() if n > 1]
    if twice:
        raise ValueError(f"two scenarios have one name: {twice}")
    return found


# ---------------------------------------------------------------- the run


class Run:
    """One job of a scenario. `number` makes its id."""

    def __init__(self, world, scenario, number):
        self.world, self.scenario = world, scenario
        self.job = f"{scenario.name}-{number}"
        self.acts = list(scenario.acts)
        self.holds = dict(scenario.holds)  # that are not released
        self.outcomes = (0, set())  # the newest event that was read, and the positions with an outcome
        self.last = None  # the newest state of the job
        self.waits = {}  # the positions of waits that acts name
        self.frames = {}  # how many mattered, in each direction

    def until_ended(self):
        self.world.shop.hold(self.job, self.holds)
        try:
            self._until_ended()
        finally:
            for label in self.holds:
                self.world.shop.release(self.job, label)

    def input(self):
        return {"program": self.scenario.program, "data": self.scenario.data}

    def _until_ended(self):
        world = self.world
        body = {"agent": self.scenario.agent, "id": self.job, "idempotency_key": self.job,
                "labels": {"suite": "conformance"}, "input": self.input()}
        give_up = time.monotonic() + PATIENCE
        is_created, status, answer = False, None, None
        while True:
            if not is_created:
                status, answer = world.request("POST", "/api/jobs", body)
                # After a restart the server has the agent, and not yet the tools of its worker.
                needs_worker = status == 404 or status == 409 and answer["code"] == "needs_version"
                is_created = status in (200, 201, 202, 409) and not needs_worker
                if not is_created and not needs_worker and status not in (0, 503):
                    raise Failed(f"the job is refused: {status} {answer}")
            else:
                self.last = world.get(f"/api/jobs/{self.job}") or self.last
                if self.last and self.is_over():
                    return
                for label in [one for one, at in self.holds.items() if self.last and self.is_due(at)]:
                    world.shop.release(self.job, label)
                    del self.holds[label]
                if self.last and self.acts and self.is_due(self.acts[0].get("at")) and self.act(self.acts[0]["do"]):
                    self.acts.pop(0)
                    continue
            world.check_processes("the job")
            if time.monotonic() > give_up:
                state = {name: (self.last or {}).get(name) for name in ("status", "parked", "waits", "error", "in_doubt")}
                creation = "" if self.last else f"the answer to its creation was {status} {json.dumps(answer)[:500]}\n"
                raise Failed(f"the job has no end after {PATIENCE:.0f} s: {json.dumps(state)[:1500]}\n"
                             f"{creation}{world.output()}")
            time.sleep(0.01)

    def is_over(self):
        status = self.last["status"]
        if status in ENDED:
            return True
        # A job that was resumed is paused until the request is applied.
        is_parked = status == "parked" and self.last["parked"]["reason"] != "paused"
        return self.is_in_doubt() or (is_parked and not self.acts)

    def is_in_doubt(self):
        """It stands still, since the outcome of a call is not known. With an open wait besides, its status is waiting."""
        return (self.last["status"] == "parked" and self.last["parked"]["reason"] == IN_DOUBT
                or self.last["status"] == "waiting" and len(self.last["in_doubt"]) > 0)

    def wait_at(self, name):
        """The open wait with this position, or of this type: the position of a human wait depends on the SDK."""
        for wait in self.last["waits"]:
            if name in (wait["position"], wait["wait_type"]):
                self.waits[name] = wait["position"]
                return wait
        return None

    def is_due(self, at):
        if not at:
            return True
        (kind, value), = at.items()
        if kind == "wait":
            return self.wait_at(value) is not None
        if kind == "events":
            return self.last["seq"] >= value
        if kind == "performed":
            return any(one.label == value for one in self.world.shop.performances(self.job))
        if kind == "status":
            return self.last["status"] == value
        if kind == "acted":
            return len(self.scenario.acts) - len(self.acts) >= value
        if kind == "outcome":
            return value in self.positions_with_outcome()
        raise Failed(f'an act has an unknown condition "{kind}"')

    def positions_with_outcome(self):
        if self.outcomes[0] < self.last["seq"]:
            self.outcomes = (self.last["seq"], set(outcomes_of(self.world.events(self.job) or [])))
        return self.outcomes[1]

    def act(self, do):
        """True: it is done."""
        world, base = self.world, f"/api/jobs/{self.job}"
        kind = next(iter(do))
        if kind == "sleep_ms":
            time.sleep(do[kind] / 1000)
            return True
        identity = f"{self.job}-{len(self.acts)}"  # a repetition after a lost answer is recognised
        if kind in ("cancel", "pause", "resume"):
            status, answer = world.request("POST", f"{base}/{kind}", {})
        elif kind == "signal":
            status, answer = world.request("POST", f"{base}/signal", {
                "correlation_key": do[kind], "payload": do.get("payload"), "message_id": identity, "buffer": True})
        elif kind == "message":
            status, answer = world.request("POST", f"{base}/message", {
                "channel": do[kind], "payload": do.get("payload"), "message_id": identity})
        elif kind in ("approve", "reject"):
            wait = self.wait_at(do[kind])
            if wait is None:  # an earlier answer was recorded
                return self.last["seq"] > 0 and self.is_answered(do[kind])
            status, answer = world.request("POST", f"/api/approvals/{wait['approval_id']}",
                                           {"decision": kind, "note": do.get("note", "")})
        elif kind == "answer":
            wait = self.wait_at(do[kind])
            if wait is None:
                return self.is_answered(do[kind])
            status, answer = world.request("POST", f"{base}/signal", {
                "correlation_key": wait["correlation_key"], "wait_type": "human", "payload": do.get("payload"),
                "message_id": identity})
        else:
            raise Failed(f'there is no act "{kind}"')
        if status in (0, 503):
            return False
        if status >= 400 and status not in (404, 409):
            raise Failed(f"the act {do} is refused: {status} {answer}")
        return True

    def is_answered(self, position):
        events = self.world.events(self.job) or []
        steps = {e["payload"].get("step_id") for e in events
                 if e["type"] == "node_started" and e["payload"].get("position") == self.waits.get(position, position)}
        return any(e["type"] == "wait_resolved" and e["payload"].get("step_id") in steps for e in events)


def warm_up(world, number):
    """Runs a job whose times do not matter: the first function of a process is slow."""
    call = {"op": "run", "name": "first", "effect": "read"}
    run = Run(world, Scenario({"name": "warm_up", "program": call, "expect": {"status": "completed"}}, FOLDER), number)
    run.until_ended()
    if run.last["status"] != "completed":
        raise Failed(f"a job of one call has the status {run.last['status']}\n{world.output()}")


# ---------------------------------------------------------------- the judge


def positions_of(events):
    return {e["payload"]["step_id"]: e["payload"] for e in events
            if e["type"] == "node_started" and e["payload"].get("position")}


def steps_of(events):
    """The requests of a log, one line each."""
    lines = []
    for payload in positions_of(events).values():
        words = [payload["position"], payload["kind"], payload.get("tool_name") or "-"]
        if "delivered" in payload:
            words.append(f"delivered={payload['delivered']}")
        lines.append(" ".join(words))
    return sorted(lines)


def outcomes_of(events):
    """The positions of the outcomes, in order of delivery."""
    positions = positions_of(events)
    early = {}  # step: its place, of successes of functions
    fixed, free = {}, []
    for event in events:
        payload = event["payload"]
        position = positions.get(payload.get("step_id"), {}).get("position")
        if position is None:
            continue
        is_success = event["type"] == "tool_invocation_finished" and payload.get("outcome") == "success"
        if is_success and payload["step_id"] not in early:
            early[payload["step_id"]] = True
        elif event["type"] != "node_finished" or payload["step_id"] in early:
            continue
        if "delivered" in payload:
            fixed[payload["delivered"]] = position
        else:
            free.append(position)
    order = []
    while fixed or free:
        at = len(order)
        if at in fixed:
            order.append(fixed.pop(at))
        elif free:
            order.append(free.pop(0))
        else:
            return ["there is a hole in the order of delivery"]
    return order


def commits_of(events):
    return len({event["created_at"] for event in events})


def judge(run, fault):
    """What is wrong; nothing: []."""
    scenario, world, job, expect = run.scenario, run.world, run.last, run.scenario.expect
    problems = []
    is_strict = fault is None or fault.action.startswith("cut")
    is_in_doubt = run.is_in_doubt()
    may_be_in_doubt = expect.get("parked") == IN_DOUBT or (fault is not None and scenario.may_be_in_doubt(fault))
    if not (is_in_doubt and may_be_in_doubt):
        found = {"status": job["status"]}
        if "result" in expect and (fault is None or job["result"] not in expect.get("disturbed", [])):
            found["result"] = job["result"]
        if "error" in expect:
            found["error"] = (job["error"] or {}).get("code")
        if "parked" in expect:
            found["parked"] = (job["parked"] or {}).get("reason")
        for name, value in found.items():
            if value != expect[name]:
                problems.append(f"{name} is {json.dumps(value)}, expected {json.dumps(expect[name])}"
                                + (f" (error: {job['error']}, parked: {job['parked']})" if name == "status" else ""))
    if "children" in expect and not is_in_doubt and (job["children"] or {}).get("counts") != expect["children"]:
        problems.append(f"children are {json.dumps(job['children'])}, expected {json.dumps(expect['children'])}")
    problems += performed(run, is_strict, is_in_doubt)
    verified = world.get(f"/api/jobs/{run.job}/verify")
    if not verified or not verified.get("ok"):
        problems.append(f"verify: {json.dumps(verified)[:500]}")
    if fault is None:
        events = world.events(run.job)
        for name, made in (("steps", steps_of), ("outcomes", outcomes_of), ("commits", commits_of)):
            if name in expect and made(events) != expect[name]:
                problems.append(f"{name} are {json.dumps(made(events))}, expected {json.dumps(expect[name])}")
        tokens = job["usage"]["total_tokens"]
        if "tokens" in expect and tokens != expect["tokens"]:
            problems.append(f"the job used {tokens} tokens, expected {expect['tokens']}")
        frames = run.frames
        if "frames" in expect and "out" in frames and frames != expect["frames"]:
            problems.append(f"frames are {json.dumps(frames)}, expected {json.dumps(expect['frames'])}")
    return problems


def performed(run, is_strict, is_in_doubt):
    scenario, problems = run.scenario, []
    by_label = collections.defaultdict(list)
    for one in run.world.shop.performances(run.job):
        by_label[one.label].append(one)
    expected = scenario.expect.get("performances", {})
    if is_strict and "performances" in scenario.expect:
        for label in sorted(set(by_label) | set(expected)):
            n, wanted = len(by_label[label]), expected.get(label, 0)
            low, high = wanted if isinstance(wanted, list) else (wanted, wanted)
            if not low <= n <= high:
                problems.append(f"{label} is performed {n} times, expected {wanted}")
    elif not is_in_doubt and scenario.expect["status"] == "completed":
        for label, wanted in expected.items():
            low = wanted[0] if isinstance(wanted, list) else wanted
            if low > 0 and not by_label[label]:
                problems.append(f"{label} is not performed")
    for label, (effect, does) in scenario.performs.items():
        by_key = collections.defaultdict(list)
        for one in by_label[label]:
            by_key[one.key].append(one)
            if job_of(one.key) != run.job:
                problems.append(f"{label} has the key {one.key}, which is not of this job")
        wanted = expected.get(label)
        if isinstance(wanted, int) and len(by_key) > max(1, wanted):
            problems.append(f"{label} has {len(by_key)} keys, so tries of one call had different ones")
        if effect != "at_most_once":
            continue
        for key, tries in by_key.items():
            maybe_done = [one for one in tries if "fail" not in does[min(one.try_no, len(does)) - 1]]
            if len(maybe_done) > 1:
                problems.append(f"{label} is at_most_once, and is performed {len(maybe_done)} times with the key {key}")
    return problems
