"""The ctx of the code that runs, carried through its awaits and threads."""
import contextvars
from typing import TYPE_CHECKING, Any, Optional, Union

if TYPE_CHECKING:
    from .context import Ctx
    from .sync import SyncCtx


class InFunction:
    """Marks code of a function, which performs one call and makes no requests."""
    routine: Any = None
    closed: Any = None


IN_FUNCTION = InFunction()
here: "contextvars.ContextVar[Any]" = contextvars.ContextVar("aetheris_ctx", default=None)


def current() -> "Optional[Union[Ctx, SyncCtx]]":
    """The `ctx` of the code that calls, for libraries that cannot be given one. None: outside of an agent, or inside of
    a function."""
    ctx = here.get()
    return None if ctx is IN_FUNCTION else ctx
