"""aetheris: write durable AI agents as ordinary functions."""
from .canonical import Json
from .client import Client
from .context import Ctx, Done, Next, Race
from .current import current
from .definitions import Agent, Tool, agent, tool
from .errors import (AetherisError, Cancelled, ConnectionFailed, Evicted, Failure, InvalidInput, NotDone, Rejected,
                     ToolFailed, WaitExpired)
from .functions import Call
from .request import Request
from .sync import SyncCtx, SyncRequest
from .worker import SDK_VERSION, Worker, serve

__version__ = SDK_VERSION
__all__ = ["AetherisError", "Agent", "Call", "Cancelled", "Client", "ConnectionFailed", "Ctx", "Done", "Evicted",
           "Failure", "InvalidInput", "Json", "Next", "NotDone", "Race", "Rejected", "Request", "SDK_VERSION",
           "SyncCtx", "SyncRequest", "Tool", "ToolFailed", "WaitExpired", "Worker", "agent", "current", "serve", "tool"]
