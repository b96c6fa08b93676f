"""API keys for tests: creation, headers, a server with keys, and TLS certificates."""
import contextlib
import subprocess

from shared.home import expect, home
from shared.server import Server

ROLES = ["viewer", "operator", "approver", "worker", "admin"]


def bearer(key):
    return {"Authorization": "Bearer " + key}


def create_key(h, role, *more, env=None):
    """A key, and its id."""
    made = expect(h.run("keys", "create", "--role", role, *more, "--json", env=env), 0).json()
    return made["key"], made["id"]


@contextlib.contextmanager
def serving(*words, roles=("admin",), env=None, files=None):
    """A server whose store has a key of each role before it starts; `files`: additional files of its folder, by name."""
    with home() as h:
        for name, text in (files or {}).items():
            (h.path / name).write_text(text)
        keys = {role: create_key(h, role)[0] for role in roles}
        s = Server(h, *words, env=env)
        s.keys = keys
        yield s


def certificate(h, name, bits="prime256v1"):
    """NAME.crt and NAME.key in the home: a certificate for 127.0.0.1 that signs itself."""
    crt, key = h.path / f"{name}.crt", h.path / f"{name}.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", f"ec_paramgen_curve:{bits}", "-nodes",
                    "-keyout", key, "-out", crt, "-days", "1", "-subj", f"/CN={name}",
                    "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    key.chmod(0o600)
    return str(crt), str(key)
