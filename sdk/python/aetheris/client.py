"""Client: creates jobs and answers them over the HTTP API of a server (docs/api.md)."""
import http.client
import json
import os
import socket
import time
import urllib.parse
from typing import Any, Dict, List, Mapping, Optional

from .canonical import to_json
from .errors import AetherisError, ConnectionFailed, Failure

TIMEOUT_S = 60.0
_WAIT_S = 30.0
_DELAY_MAX_S = 1.0
ENDED = ("completed", "failed", "cancelled")


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Client:
    """`url`: the server's address; default AETHERIS_URL. `socket`: its Unix socket; default AETHERIS_SOCKET, without a
    URL. `api_key`: default AETHERIS_API_KEY.

    Every method raises `ConnectionFailed` (`unavailable`: the request may have had an effect; `usage`), and
    `AetherisError` with the code of the server's answer."""

    def __init__(self, url: Optional[str] = None, *, socket: Optional[str] = None,
                 api_key: Optional[str] = None) -> None:
        url = url or (None if socket else os.environ.get("AETHERIS_URL"))
        self._socket = socket or (None if url else os.environ.get("AETHERIS_SOCKET"))
        self._url = urllib.parse.urlsplit(url or "http://127.0.0.1:7070")
        self._api_key = api_key or os.environ.get("AETHERIS_API_KEY")
        if not self._socket and (self._url.scheme not in ("http", "https") or not self._url.hostname):
            raise ConnectionFailed("usage", f'the address begins with http:// or https://, not "{url}"')

    # ---------------------------------------------------------------- jobs

    def create(self, agent: str, input: Any = None, *, idempotency_key: Optional[str] = None, id: Optional[str] = None,
               labels: Optional[Mapping[str, str]] = None, wait_s: float = 0) -> Dict[str, Any]:
        """Creates a job, and returns it. With the same `idempotency_key` there is one job, however often it is created.
        `wait_s`: waits this long until it ends or blocks."""
        job: Dict[str, Any] = {"agent": agent, "input": to_json(input, "the input")}
        for name, value in (("idempotency_key", idempotency_key), ("id", id), ("labels", labels)):
            if value is not None:
                job[name] = value
        created: Dict[str, Any] = self.request("POST", "/api/jobs", job, wait_s=wait_s)
        return created

    def run(self, agent: str, input: Any = None, *, idempotency_key: Optional[str] = None, id: Optional[str] = None,
            labels: Optional[Mapping[str, str]] = None) -> Any:
        """Creates a job, waits for its end, and returns its result. Raises `Failure`: it failed, or was cancelled."""
        job = self.create(agent, input, idempotency_key=idempotency_key, id=id, labels=labels, wait_s=_WAIT_S)
        delay_s = 0.05
        while job["status"] not in ENDED:
            time.sleep(delay_s)
            delay_s = min(2 * delay_s, _DELAY_MAX_S)
            job = self.job(job["id"])
        if job["status"] == "completed":
            return job.get("result")
        error = job.get("error") or {}
        raise Failure(error.get("code", job["status"]), error.get("message", f"job {job['id']} was {job['status']}"))

    def job(self, id: str) -> Dict[str, Any]:
        """A job: its `status`, `result`, `error`, `parked`, …"""
        found: Dict[str, Any] = self.request("GET", f"/api/jobs/{_quoted(id)}")
        return found

    def cancel(self, id: str, *, reason: Optional[str] = None) -> Any:
        return self._act(id, "cancel", reason=reason)

    def pause(self, id: str, *, reason: Optional[str] = None) -> Any:
        return self._act(id, "pause", reason=reason)

    def resume(self, id: str, *, reason: Optional[str] = None) -> Any:
        return self._act(id, "resume", reason=reason)

    # ---------------------------------------------------------------- answers

    def signal(self, id: str, wait_key: str, payload: Any = None, *, type: str = "signal",
               message_id: Optional[str] = None) -> Any:
        """Answers a wait for a signal or webhook of a job. With the same `message_id` it is answered once."""
        return self._act(id, "signal", correlation_key=wait_key, wait_type=type,
                         payload=to_json(payload, "the payload"), message_id=message_id)

    def message(self, id: str, channel: str, payload: Any = None, *, message_id: Optional[str] = None) -> Any:
        """Sends a message on a channel of a job, for its `ctx.receive`."""
        return self._act(id, "message", channel=channel, payload=to_json(payload, "the payload"), message_id=message_id)

    def requests(self, job: Optional[str] = None) -> List[Dict[str, Any]]:
        """What operators are asked for: approvals, human waits, …"""
        query = f"?job={_quoted(job)}" if job else ""
        found: List[Dict[str, Any]] = self.request("GET", f"/api/requests{query}")["requests"]
        return found

    def approve(self, request: str, *, note: Optional[str] = None, arguments: Any = None) -> Any:
        """Approves a request, by its id."""
        return self._decide(request, "approve", note, arguments)

    def reject(self, request: str, *, note: Optional[str] = None) -> Any:
        """Rejects a request, by its id."""
        return self._decide(request, "reject", note, None)

    def _decide(self, request: str, decision: str, note: Optional[str], arguments: Any) -> Any:
        body = {"decision": decision, "note": note, "arguments": arguments}
        return self.request("POST", f"/api/approvals/{_quoted(request)}", _stated(body))

    def _act(self, id: str, action: str, **body: Any) -> Any:
        return self.request("POST", f"/api/jobs/{_quoted(id)}/{action}", _stated(body, keep=("payload",)))

    # ---------------------------------------------------------------- requests

    def request(self, method: str, path: str, body: Any = None, *, wait_s: float = 0) -> Any:
        """A request of the API, and the JSON of its answer."""
        if wait_s > 0:
            path += f"{'&' if '?' in path else '?'}wait={int(wait_s * 1000)}ms"
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        connection = self._connection(TIMEOUT_S + wait_s)
        try:
            connection.request(method, path, None if body is None else json.dumps(body).encode(), headers)
            answer = connection.getresponse()
            status, text = answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            where = self._socket or self._url.geturl()
            raise ConnectionFailed("unavailable", f"{where}: {error!r}. Is the server running?") from None
        finally:
            connection.close()
        try:
            parsed = json.loads(text) if text else None
        except ValueError:
            parsed = None
        if status < 400:
            return parsed
        error_of = parsed if isinstance(parsed, dict) else {}
        error_of = error_of["error"] if isinstance(error_of.get("error"), dict) else error_of
        raise AetherisError(str(error_of.get("code", f"http_{status}")),
                            str(error_of.get("detail") or error_of.get("message") or f"the server answered {status}"))

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        if self._socket:
            return _UnixConnection(self._socket, timeout)
        kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
        return kind(self._url.hostname or "", self._url.port, timeout=timeout)


def _quoted(text: str) -> str:
    return urllib.parse.quote(text, safe="")


def _stated(body: Dict[str, Any], keep: Any = ()) -> Dict[str, Any]:
    return {name: value for name, value in body.items() if value is not None or name in keep}
