"""RecordedValues: what a routine records instead of reading a clock or chance: times, random numbers, ids, patches; and
what it emits for readers of its job."""
import time
import uuid
from typing import TYPE_CHECKING, Any, Dict, Optional

from .canonical import EMITTED_MAX, to_json
from .positions import check_name, is_inside, joined
from .redact import redactor
from .values import RandomNumbers, ms_of, new_seed, steady, time_value

if TYPE_CHECKING:
    from .replay import Replay
    from .routine import Routine


class ScopeValues:
    __slots__ = ("times", "uuids", "numbers")

    def __init__(self) -> None:
        self.times = 0
        self.uuids = 0
        self.numbers: Optional[RandomNumbers] = None


class RecordedValues:
    def __init__(self, routine: "Routine", replay: "Replay") -> None:
        self._routine = routine
        self._replay = replay
        self._scope_values: Dict[str, ScopeValues] = {}
        self._patches: Dict[str, bool] = {}
        self._seed: Optional[str] = None
        self._base_ms = ms_of(routine.start.get("now")) or time.time() * 1000  # of the store's clock
        self._base_clock = steady()
        self._last_ms = 0

    def forget(self, position: str) -> None:
        """The scope at this position, and those inside of it, are not used any more."""
        for name in [one for one in self._scope_values if one == position or is_inside(one, position)]:
            del self._scope_values[name]

    def _values_of(self, ctx: Any) -> ScopeValues:
        values = self._scope_values.get(ctx.scope_name)
        if values is None:
            values = self._scope_values[ctx.scope_name] = ScopeValues()
        return values

    def _record(self, name: str, value: Any) -> None:
        self._routine.record({"kind": "value", "name": name, "value": value})

    def now(self, ctx: Any) -> int:
        """Milliseconds since 1970. Never earlier than before."""
        self._routine.check_call(ctx)
        values = self._values_of(ctx)
        values.times += 1
        name = f"time:{joined(ctx.scope_name, values.times)}"
        recorded = self._replay.value(name)
        if recorded is not None:
            at = ms_of(recorded)
            ms = round(at) if at is not None else self._last_ms or int(self._base_ms)  # None: it was erased
            self._last_ms = max(self._last_ms, ms)
        else:
            ms = self._last_ms = max(self._last_ms, int(self._base_ms + (steady() - self._base_clock) * 1000))
            self._record(name, time_value(ms))
        self._routine.runner.advance_time(ms)
        return ms

    def random(self, ctx: Any) -> float:
        self._routine.check_call(ctx)
        if self._seed is None:
            recorded = self._replay.value("random")
            if recorded is None:
                self._seed = new_seed()
                self._record("random", self._seed)
            else:
                self._seed = recorded if isinstance(recorded, str) and len(recorded) == 64 else "0" * 64
        values = self._values_of(ctx)
        if values.numbers is None:
            values.numbers = RandomNumbers(self._seed, ctx.scope_name)
        return values.numbers.next()

    def uuid(self, ctx: Any) -> uuid.UUID:
        self._routine.check_call(ctx)
        values = self._values_of(ctx)
        values.uuids += 1
        name = f"uuid:{joined(ctx.scope_name, values.uuids)}"
        recorded = self._replay.value(name)
        if recorded is not None:
            return uuid.UUID(recorded) if isinstance(recorded, str) else uuid.UUID(int=0)  # erased
        made = uuid.uuid4()
        self._record(name, str(made))
        return made

    def patched(self, ctx: Any, patch: str) -> bool:
        check_name(patch, "a patch")
        self._routine.check_call(ctx)
        known = self._patches.get(patch)
        if known is not None:
            return known
        recorded = self._replay.value(f"patch:{patch}")
        is_patched = self._replay.is_at_frontier() if recorded is None else recorded is True
        if recorded is None:
            self._record(f"patch:{patch}", is_patched)
        self._patches[patch] = is_patched
        return is_patched

    def emit(self, ctx: Any, name: str, value: Any, is_published: bool) -> None:
        check_name(name, "an emitted value")
        copied = redactor.value(to_json(value, f'the emitted value "{name}"', EMITTED_MAX))
        self._routine.check_call(ctx)
        if not self._replay.was_emitted(ctx.scope_name):
            self._routine.record({"kind": "emitted", "scope": ctx.scope_name, "name": name, "value": copied,
                                  "published": is_published})
