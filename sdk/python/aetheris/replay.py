"""Replay: the rule by which a routine is run from its record (formal/routine.pml, src/engine/code/replay.h).

  R1  Position p is delivered only when every recorded request with `delivered` <= p was made again. A scope that has
      ended is one request; what is inside of it is counted and passed over. A loop begins with its last turn that ended.
  R2  The frontier: all recorded requests were made and all recorded outcomes delivered. Nothing new is sent before.
  R3  A recorded value is matched by its name. An emitted value is matched by its number.

One Replay belongs to one routine, also after the frontier: it counts what is delivered.
"""
from typing import Any, Dict, List, Optional

Record = Dict[str, Any]
"""{"requests": [...], "deliveries": [...], "values": {...}, "emitted": {...}} (docs/worker-protocol.md)."""


class Replay:
    def __init__(self, record: Record) -> None:
        """Raises ValueError: the record is not one."""
        self.divergence: Optional[Dict[str, Any]] = None  # after a match that is `diverged`
        self.count = 0  # of outcomes that were delivered or passed over
        self._requests: List[Dict[str, Any]] = record["requests"]
        self._deliveries: List[Dict[str, Any]] = record["deliveries"]
        self._values: Dict[str, Any] = record["values"]
        self._recorded_emits: Dict[str, int] = record["emitted"]
        self._emitted: Dict[str, int] = {}
        self._by_position: Dict[str, int] = {}
        self._matched = [False] * len(self._requests)
        self._next = 0  # of the deliveries
        self._unmatched_at: Dict[int, int] = {}  # by `delivered`
        outcomes = sum(one.get("passed_over", 1) for one in self._deliveries)
        for i, request in enumerate(self._requests):
            delivered, position = request["delivered"], request["position"]
            if not 0 <= delivered <= outcomes or position in self._by_position:
                raise ValueError(f'the record is not valid at "{position}"')
            self._by_position[position] = i
            self._unmatched_at[delivered] = self._unmatched_at.get(delivered, 0) + 1
        self._unmatched = len(self._requests)
        self._due = self._unmatched_at.get(0, 0)  # unmatched ones with `delivered` <= the number of outcomes delivered

    def match(self, position: str, kind: str, tool: Optional[str], arguments_hash: Optional[str],
              wait: Optional[str]) -> str:
        """A request of the routine: "new", "recorded" or "diverged". Each position is requested once."""
        index = self._by_position.get(position)
        if index is None:
            return "new"
        recorded = self._requests[index]
        if self._matched[index] or not _is_same(recorded, kind, tool, arguments_hash, wait):
            found = {"kind": kind, "position": position}
            if tool is not None:
                found["tool"] = tool
            if wait is not None:
                found["wait"] = wait
            self.divergence = {"finding": "arguments", "delivered": self.count, "position": position, "found": found}
            return "diverged"
        self._matched[index] = True
        self._unmatched -= 1
        self._unmatched_at[recorded["delivered"]] -= 1
        if recorded["delivered"] <= self.count:
            self._due -= 1
        return "recorded"

    def first_turn(self, loop: str) -> int:
        """The recorded turn of this loop with the lowest number: the last one that ended, or one that is open."""
        turns = [one["position"][len(loop) + 1:] for one in self._requests
                 if one["kind"] == "turn" and one["position"].startswith(loop + "/")]
        return min((int(number) for number in turns if number.isdigit()), default=0)

    def value(self, name: str) -> Any:
        """The recorded value with this name; None: it is new."""
        return self._values.get(name)

    def was_emitted(self, scope: str) -> bool:
        """The routine emits a value in this scope. Is it recorded?"""
        number = self._emitted.get(scope, 0) + 1
        self._emitted[scope] = number
        return number <= self._recorded_emits.get(scope, 0)

    def unmatched_with_prefix(self, prefix: str) -> Optional[str]:
        """The first position that the record has with this prefix and that was not requested yet."""
        for matched, request in zip(self._matched, self._requests):
            if not matched and request["position"].startswith(prefix):
                return str(request["position"])
        return None

    def may_deliver(self) -> bool:
        """May the next recorded outcome be delivered? The routine must have settled."""
        return self._next < len(self._deliveries) and self._due == 0

    def deliver(self) -> Dict[str, Any]:
        """The next recorded outcome, if may_deliver."""
        outcome = self._deliveries[self._next]
        self._next += 1
        passed_over = outcome.get("passed_over")
        before = self.count
        self.count += 1 if passed_over is None else passed_over
        if passed_over is None:
            self._due += self._unmatched_at.get(self.count, 0)
        else:
            self._due += sum(n for delivered, n in self._unmatched_at.items() if before < delivered <= self.count)
        return outcome

    def is_at_frontier(self) -> bool:
        return self._unmatched == 0 and self._next >= len(self._deliveries)

    def find_missing(self, ended: bool) -> Optional[Dict[str, Any]]:
        """The first recorded request that the routine should have made, and has not. It must have settled, or ended."""
        if self._unmatched == 0 or (not ended and self._due == 0):
            return None
        for matched, request in zip(self._matched, self._requests):
            if not matched and (ended or request["delivered"] <= self.count):
                return {"finding": "ended" if ended else "missing", "delivered": self.count,
                        "position": request["position"]}
        return None


def _is_same(recorded: Dict[str, Any], kind: str, tool: Optional[str], arguments_hash: Optional[str],
             wait: Optional[str]) -> bool:
    if kind != recorded["kind"]:
        return False
    if kind == "wait":
        known = recorded.get("wait")  # the type alone, or the wait with its type
        return wait == (known.get("type") if isinstance(known, dict) else known)
    if kind in ("scope", "turn"):
        return True
    # A call that was refused has no recorded arguments.
    known_hash = recorded.get("arguments_hash")
    return tool == recorded.get("tool") and (not known_hash or not arguments_hash or arguments_hash == known_hash)
