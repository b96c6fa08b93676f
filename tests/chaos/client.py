"""One request to a server that may die at any time, and what its end means to the client."""
import http.client
import json
import urllib.parse

ACK, REFUSED, UNKNOWN = "ack", "refused", "unknown"


class Answer:
    """`end`: ack = done or durable; refused = nothing was changed; unknown = it may have happened."""

    def __init__(self, end, status=0, body=None, why=""):
        self.end, self.status, self.body, self.why = end, status, body, why

    @property
    def code(self):
        return self.body.get("code", "") if isinstance(self.body, dict) and self.end != ACK else self.why


def end_of(status, body):
    if 200 <= status < 300:
        return ACK
    # 503 `unavailable` promises that nothing was changed; every other 5xx promises nothing.
    code = body.get("code") if isinstance(body, dict) else None
    return REFUSED if status < 500 or code == "unavailable" else UNKNOWN


def send_request(url, method, path, body=None, headers=None, timeout=10.0):
    place = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=timeout)
    try:
        try:
            connection.connect()
        except OSError as error:
            return Answer(REFUSED, why=type(error).__name__)  # not a byte was sent
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers or {})
            answer = connection.getresponse()
            text = answer.read()
            content = json.loads(text) if "json" in answer.headers.get("Content-Type", "") else text.decode()
        except (OSError, http.client.HTTPException, ValueError) as error:
            return Answer(UNKNOWN, why=type(error).__name__)
        return Answer(end_of(answer.status, content), answer.status, content)
    finally:
        connection.close()


def quoted(text):
    return urllib.parse.quote(text, safe="")
