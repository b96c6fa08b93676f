"""A model of the engine for one job of code: it records advances and outcomes as src/engine/code does, checks that they
can be recorded, and makes the record from which a new routine is run."""
import json

from aetheris.canonical import blinded_hash
from aetheris.positions import is_inside

SCOPES = ("scope", "turn")


def turn_before(position):
    """The position of the turn before this one; None: it is the first."""
    loop, number = position.rsplit("/", 1)
    return f"{loop}/{int(number) - 1}" if int(number) > 0 else None


class Refused(Exception):
    pass


class Engine:
    blind = "5f0c2b7a94d1e86338a1c97fd2406be5"

    def __init__(self, agent="agent", input=None, blind_erased=False, admits=lambda request: True):
        """`admits(request)`: is it admitted now? The others wait until `admit_all`."""
        self.agent, self.input, self.blind_erased, self.admits = agent, input, blind_erased, admits
        self.log = {}  # requests by position, in the order of their starts
        self.outcomes = []  # in log order
        self.positions = set()  # of outcomes that state theirs
        self.values = {}
        self.emitted = {}
        self.emitted_values = []
        self.performed = []
        self.end = None
        self.settled = True
        self.advances = 0
        self.cancelled = []
        self.outbox = []
        self._wanted = []
        self._routine = 0
        self._calls = 0
        self._call_positions = {}  # of this routine's permits

    def start(self, now="2026-01-01T00:00:00.000000Z"):
        """A new routine: the one before is gone, and what it requested and was not admitted with it."""
        self._routine += 1
        self._wanted = []
        self.outbox = []
        self._call_positions = {}
        start = {"type": "start", "routine": self._routine, "agent": self.agent, "input": self.input, "now": now,
                 "job": {"id": "job-1", "agent": self.agent, "labels": {"team": "a"},
                         "created_at": "2026-01-01T00:00:00.000000Z"},
                 "steps": {"decision": "0123456789abcdef", "path": "0/0"},
                 "blind": "" if self.blind_erased else self.blind, "record": json.loads(json.dumps(self.record()))}
        if self.blind_erased:
            start["blind_erased"] = True
        return start

    def record(self):
        ended = [position for position in self.outcomes if self.log[position]["kind"] in SCOPES]
        replaced = {turn_before(position) for position in ended if self.log[position]["kind"] == "turn"}

        def is_folded(position):
            return position in replaced or any(is_inside(position, scope) for scope in ended)
        requests = []
        for request in self.log.values():
            if not is_folded(request["position"]):
                made = {name: request[name] for name in ("position", "kind", "delivered", "tool", "arguments_hash")
                        if name in request}
                if "wait" in request:
                    made["wait"] = request["wait"]["type"]
                requests.append(made)
        deliveries = [None] * len(self.outcomes)
        free = 0
        for position in self.outcomes:
            request = self.log[position]
            at = request.get("position_of_outcome")
            if at is None:
                while free in self.positions:
                    free += 1
                at, free = free, free + 1
            deliveries[at] = request["outcome"]
        given = []
        for outcome in deliveries:
            if not is_folded(outcome["position"]):
                given.append(outcome)
            elif given and "passed_over" in given[-1]:
                given[-1]["passed_over"] += 1
            else:
                given.append({"passed_over": 1})
        return {"requests": requests, "deliveries": given, "values": self.values, "emitted": self.emitted}

    # ---------------------------------------------------------------- from the routine

    def receive(self, message):
        if message["routine"] != self._routine:
            raise Refused("an advance of a routine that is gone")
        if self.end is not None and message.get("end"):
            raise Refused("the routine ended before")
        self.advances += 1
        for function in message.get("functions", []):
            position = self._call_positions.get(function["call"])
            if position is None:
                raise Refused(f"no call {function['call']}")
            self._add_outcome({"position": position, "kind": "tool", "result": function["result"]},
                              function["delivered"])
        for item in message.get("items", []):
            self._receive_item(item)
        for request in message.get("requests", []):
            known = self.log.get(request["position"])
            if known and (known["ended"] or known["kind"] != request["kind"] or "call" in known):
                raise Refused(f"{request['position']} was requested before")
            if request["delivered"] > len(self.outcomes):
                raise Refused(f"{request['delivered']} outcomes are counted; the log has {len(self.outcomes)}")
            self._wanted.append(request)
        self.settled = message.get("settled", True)
        if message.get("end"):
            self.end = message["end"]
        for position in message.get("cancelled", []):
            self._cancel(position)
        self._admit(self.admits)
        # The permits of requests that the log has already: their function is stated again.
        for request in list(self.log.values()):
            if not request["ended"] and request.get("tool", "").startswith("run:") and "arguments" in request \
                    and self._call_positions.get(request.get("call")) != request["position"]:
                self._permit(request)

    def _receive_item(self, item):
        kind = item["kind"]
        if kind == "value":
            if item["name"] in self.values:
                raise Refused(f"the value {item['name']} was recorded before")
            self.values[item["name"]] = item["value"]
        elif kind == "scope_begun":
            kind = "turn" if item.get("turn") else "scope"
            before = turn_before(item["position"]) if kind == "turn" else None
            if before is not None and not self.log.get(before, {}).get("ended"):
                raise Refused(f"{item['position']} begins before {before} ended")
            self._add_request({"position": item["position"], "kind": kind, "delivered": item["delivered"]})
        elif kind == "scope_ended":
            for request in self.log.values():
                if is_inside(request["position"], item["position"]) and not request["ended"]:
                    raise Refused(f"{item['position']} ended before {request['position']}")
            outcome = {"position": item["position"], "kind": self.log[item["position"]]["kind"]}
            outcome.update({name: item[name] for name in ("result", "failure") if name in item})
            self._add_outcome(outcome, item["delivered"])
        else:
            self.emitted[item["scope"]] = self.emitted.get(item["scope"], 0) + 1
            self.emitted_values.append(item)

    def admit_all(self):
        self._admit(lambda request: True)

    def _admit(self, admits):
        if self.end is not None:
            return
        wanted, self._wanted = self._wanted, []
        for request in wanted:
            if not admits(request):
                self._wanted.append(request)
                continue
            made = self._add_request(request)
            if made.get("tool", "").startswith("run:"):
                self._permit(made)

    def _add_request(self, request):
        position = request["position"]
        for scope in self.outcomes:
            if self.log[scope]["kind"] in SCOPES and is_inside(position, scope):
                raise Refused(f"{position} is inside of a scope that has ended")
        if request["delivered"] > len(self.outcomes):
            raise Refused(f"{request['delivered']} outcomes are counted; the log has {len(self.outcomes)}")
        if position in self.log:
            raise Refused(f"{position} was requested before")
        made = {name: request[name] for name in ("position", "kind", "delivered", "tool", "wait") if name in request}
        made["ended"] = False
        if "arguments" in request:
            made["arguments"] = request["arguments"]
            made["arguments_hash"] = blinded_hash("" if self.blind_erased else self.blind, request["arguments"])
        self.log[position] = made
        return made

    def _add_outcome(self, outcome, delivered):
        request = self.at(outcome["position"])
        if request["ended"]:
            raise Refused(f"{outcome['position']} has an outcome")
        if delivered is not None:
            if delivered > len(self.outcomes) or delivered in self.positions:
                raise Refused(f"another outcome was delivered as number {delivered}")
            if delivered != len(self.outcomes):
                self.positions.add(delivered)
                request["position_of_outcome"] = delivered
        request["ended"] = True
        request["outcome"] = outcome
        self.outcomes.append(outcome["position"])

    def _permit(self, request):
        self._calls += 1
        position = request["position"]
        attempt = 1 + sum(one["position"] == position for one in self.performed)
        request["call"] = self._calls
        self._call_positions[self._calls] = position
        self.performed.append({"position": position, "try": attempt, "arguments": request["arguments"]})
        self.outbox.append({
            "type": "perform", "call": self._calls, "tool": request["tool"], "job": "job-1", "routine": self._routine,
            "position": position, "arguments": json.loads(json.dumps(request["arguments"])), "try": attempt,
            "key": f"aetheris:job-1:{position}:0", "execution_key": f"key-{position}",
            "invocation": f"invocation-{position}", "send_within_ms": 10_000, "timeout_ms": 30_000})

    # ---------------------------------------------------------------- from the world

    def open(self):
        """Requests without an outcome."""
        return [one for one in self.log.values() if not one["ended"] and one["kind"] not in SCOPES]

    def at(self, position):
        assert position in self.log, f'there is no request "{position}" among {", ".join(self.log)}'
        return self.log[position]

    def finish(self, position, **outcome):
        """The outcome of a request that no advance has."""
        whole = {"position": position, "kind": self.at(position)["kind"], **outcome}
        self._add_outcome(whole, None)
        self.outbox.append({"type": "deliver", "routine": self._routine, "outcomes": [json.loads(json.dumps(whole))]})

    def succeed(self, position, result):
        self.finish(position, result=result)

    def fail(self, position, code, message=""):
        self.finish(position, failure={"code": code, "message": message})

    def _cancel(self, position):
        self.cancelled.append(position)
        wanted = next((one for one in self._wanted if one["position"] == position), None)
        if wanted is not None:  # it was not admitted yet: it is, and fails at once, since every request has an outcome
            self._wanted.remove(wanted)
            if position not in self.log:
                self._add_request(wanted)
        request = self.log.get(position)
        # An open try of a function is awaited.
        is_withdrawn = request and not request["ended"] and (request["kind"] == "wait" or "call" not in request)
        if is_withdrawn:
            self.fail(position, "cancelled", "the code cancelled it")
