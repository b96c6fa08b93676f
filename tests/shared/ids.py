"""The keys and hashes of a declared call, computed from its event as docs/data.md describes them: a second implementation."""

import hashlib
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "scripts"))
import verify_vectors  # noqa: E402

SHORT = 16  # hex digits


def canonical(value):
    """RFC 8785, as bytes."""
    return verify_vectors.canonical(verify_vectors.read_json(json.dumps(value))).encode()


def joined(*parts):
    return hashlib.sha256(b"\0".join(part.encode() if isinstance(part, str) else part for part in parts)).hexdigest()


def blinded(blind, content):
    """H(x): SHA-256 for a job without a blind."""
    return hashlib.sha256((b"aetheris.blind.v1" + blind.encode() if blind else b"") + content).hexdigest()


def idempotency_key(job, blind, payload):
    return joined(job, payload["command_id"], payload["tool_name"], canonical(payload["arguments"]),
                  *([blind] if blind else []))


def external_key(job, event):
    """The key of a first try whose arguments the plan determined. In schema 1 it contains the attempt."""
    last = event["attempt_id"] if event["schema"] == 1 else "0"
    return f"aetheris:{job}:{event['payload']['step_id']}:{last}"


def declared(job, blind, event, first):
    """The expected fields of a `tool_invocation_started`, by name. `first`: the external key of the first try, or None."""
    payload = event["payload"]
    key = idempotency_key(job, blind, payload)
    return {
        "arguments_hash": blinded(blind, canonical(payload["arguments"])),
        "idempotency_key": key,
        "invocation_id": joined(job, payload["command_id"], key)[:SHORT],
        "external_key": first or external_key(job, event),
    }
