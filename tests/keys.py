#!/usr/bin/env python3
"""API keys: requests to a server with keys of every role, without a key, and with invalid keys.

Prints `ok NAME` or `not ok NAME` for each test. tests/shared/program.py finds the program.
  keys.py [WORDS]   only tests whose name contains WORDS
"""
import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import ssl
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from shared.api_keys import ROLES, bearer, certificate, create_key, serving  # noqa: E402
from shared.home import PATIENCE, expect, home, run_tests, until  # noqa: E402
from shared.server import Server  # noqa: E402

TESTS = []


def test(function):
    TESTS.append(function)
    return function


def code(answer):
    return answer[0], answer[1]["code"] if isinstance(answer[1], dict) and "code" in answer[1] else None


def send_request_from(s, number, method, path, body=None, headers=None):
    """One request from 127.0.0.NUMBER, so that limits per address do not apply."""
    connection = http.client.HTTPConnection(s.address, timeout=PATIENCE, source_address=(f"127.0.0.{number}", 0))
    connection.request(method, path, None if body is None else json.dumps(body), headers or {})
    answer = connection.getresponse()
    raw = answer.read().decode()
    connection.close()
    kind = answer.headers.get("Content-Type", "")
    return answer.status, json.loads(raw) if "json" in kind else raw


def operations(document):
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if method != "parameters":
                yield method.upper(), re.sub(r"{\w+}", "nobody", path), operation


# ---------------------------------------------------------------- authentication

@test
def every_route_accepts_exactly_the_roles_of_its_contract():
    with serving(roles=ROLES) as s:
        _, gone = create_key(s.h, "admin", "--name", "gone")
        revoked, its_id = create_key(s.h, "admin")
        expect(s.h.run("keys", "revoke", its_id), 0)
        expired, _ = create_key(s.h, "admin", "--expires", "1s")
        until(lambda: s.get("/api/jobs", headers=bearer(expired))[0] == 401)
        good = s.keys["admin"]
        bad = {"no key": {}, "revoked": bearer(revoked), "expired": bearer(expired),
               "unknown": bearer("aek_" + "0" * 12 + "_" + "0" * 64),
               "another secret": bearer(good[:-1] + ("0" if good[-1] != "0" else "1")),
               "no scheme": {"Authorization": good}, "basic": {"Authorization": "Basic YTpi"},
               "empty": {"Authorization": ""}, "short": bearer(good[:-1]), "long": bearer(good + "0")}
        document = s.get("/openapi.json", headers=bearer(good))[1]
        seen = 0
        for method, path, operation in operations(document):
            body = {} if method in ("POST", "PUT") else None
            required = operation["security"]
            for name, headers in bad.items():
                answer = send_request_from(s, 2 + seen % 200, method, path, body, headers)
                if required:
                    assert code(answer) == (401, "unauthorized"), (method, path, name, answer)
                else:
                    assert answer[0] == 200, (method, path, name, answer)
            for role in ROLES:
                answer = s.request(method, path, body, bearer(s.keys[role]))
                may = not required or role in required[0]["key"]
                assert (code(answer) == (403, "forbidden")) == (not may), (method, path, role, answer)
                assert answer[0] != 401, (method, path, role, answer)
                if not may:
                    for name in required[0]["key"]:
                        assert name in answer[1]["detail"], answer
                seen += 1
        assert seen >= 5 * 30, seen
        for path in ("/nothing", "/api/keys/x/y", "/api/health/more"):
            assert code(s.get(path)) == (401, "unauthorized"), path
            assert s.get(path, headers=bearer(good))[0] == 404, path


@test
def an_unauthenticated_request_is_answered_with_401_and_www_authenticate():
    with serving() as s:
        connection = http.client.HTTPConnection(s.address, timeout=PATIENCE)
        connection.request("GET", "/api/jobs")
        answer = connection.getresponse()
        assert answer.status == 401 and answer.headers["WWW-Authenticate"] == "Bearer", answer.headers
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert json.loads(answer.read())["code"] == "unauthorized"
        # The connection stays usable.
        connection.request("GET", "/api/jobs", headers=bearer(s.keys["admin"]))
        answer = connection.getresponse()
        assert answer.status == 200 and answer.headers["Cache-Control"] == "no-store"
        connection.close()


@test
def without_a_key_only_health_and_readiness_are_visible():
    with serving(roles=["viewer"]) as s:
        assert s.get("/api/health") == (200, {"status": "ok"})
        assert s.get("/api/ready") == (200, {"status": "ready"})
        assert "store" in s.get("/api/health", headers=bearer(s.keys["viewer"]))[1]


@test
def the_first_key_restricts_a_running_server_and_revoking_the_last_does_not_reopen():
    with home() as h:
        s = Server(h)
        assert s.get("/api/jobs")[0] == 200
        key, key_id = create_key(h, "viewer")
        assert s.get("/api/jobs")[0] == 401, "the server is notified through its socket, immediately"
        assert s.get("/api/jobs", headers=bearer(key))[0] == 200
        expect(h.run("keys", "revoke", key_id), 0)
        assert s.get("/api/jobs", headers=bearer(key))[0] == 401
        assert s.get("/api/jobs")[0] == 401
        expect(h.run("jobs"), 0)  # the socket of the server's user requires no key
        expect(s.stop(), 0)
        again = Server(h)
        assert again.get("/api/jobs")[0] == 401, "a restart does not reopen it either"
        assert "all API keys have expired" in again.process.stderr.readline()


@test
def a_revoked_key_is_rejected_immediately():
    with serving() as s:
        admin = bearer(s.keys["admin"])
        for _ in range(5):
            key, key_id = create_key(s.h, "viewer")
            assert s.get("/api/jobs", headers=bearer(key))[0] == 200
            status, body = s.request("DELETE", "/api/keys/" + key_id, headers=admin)
            assert status == 200 and body["live"] is False, body
            assert s.get("/api/jobs", headers=bearer(key))[0] == 401, "the revoking server applies it immediately"


@test
def a_request_that_ends_its_own_access_receives_its_response():
    with home() as h:
        s = Server(h)
        status, made = s.post("/api/keys", {"role": "admin"})
        assert status == 201 and made["role"] == "admin", (status, made)
        admin = bearer(made["key"])
        assert s.get("/api/jobs")[0] == 401, "the first key restricts access"
        assert s.get("/api/jobs", headers=admin)[0] == 200, "and grants it"
        status, gone = s.request("DELETE", "/api/keys/" + made["id"], headers=admin)
        assert status == 200 and gone["live"] is False, (status, gone)
        assert s.get("/api/jobs", headers=admin)[0] == 401


@test
def a_waiting_job_creation_gets_no_result_after_its_key_is_revoked():
    with serving(roles=["admin"]) as s:
        admin = bearer(s.keys["admin"])
        key, key_id = create_key(s.h, "operator")
        received = {}
        waiting = threading.Thread(target=lambda: received.update(
            answer=s.post("/api/jobs?wait=60s", {"agent": "holds", "id": "a"}, headers=bearer(key))))
        waiting.start()
        until(lambda: s.get("/api/jobs/a", headers=admin)[0] == 200)
        expect(s.h.run("keys", "revoke", key_id), 0)
        time.sleep(1.0)
        s.h.release_hold()
        waiting.join(PATIENCE)
        assert code(received["answer"]) == (504, "unknown_outcome"), received
        until(lambda: s.get("/api/jobs/a", headers=admin)[1]["status"] == "completed")  # the job was created


@test
def an_event_stream_ends_when_its_key_is_revoked():
    with serving() as s:
        key, key_id = create_key(s.h, "viewer")
        admin = bearer(s.keys["admin"])
        s.post("/api/jobs", {"agent": "asks", "id": "a"}, headers=admin)
        until(lambda: s.get("/api/jobs/a", headers=admin)[1]["status"] == "waiting")
        connection = http.client.HTTPConnection(s.address, timeout=PATIENCE)
        connection.request("GET", "/api/jobs/a/events", headers={"Accept": "text/event-stream", **bearer(key)})
        answer = connection.getresponse()
        while b"job_waiting" not in answer.readline():
            pass
        expect(s.h.run("keys", "revoke", key_id), 0)
        time.sleep(1.0)
        s.post("/api/jobs/a/signal", {"correlation_key": "go-a", "payload": "secret"}, headers=admin)
        rest = answer.read()
        assert b"secret" not in rest and b"job_completed" not in rest, rest


@test
def a_waiting_request_gets_no_result_after_its_key_is_revoked():
    with serving() as s:
        key, key_id = create_key(s.h, "viewer")
        admin = bearer(s.keys["admin"])
        s.post("/api/jobs", {"agent": "asks", "id": "a"}, headers=admin)
        until(lambda: s.get("/api/jobs/a", headers=admin)[1]["status"] == "waiting")
        received = {}
        waiting = threading.Thread(target=lambda: received.update(
            answer=s.get("/api/jobs/a/events?after=1000&wait=60s", headers=bearer(key))))
        waiting.start()
        until(lambda: "aetheris_requests_waiting 1\n" in s.get("/metrics", headers=admin)[1])
        expect(s.h.run("keys", "revoke", key_id), 0)
        time.sleep(1.0)
        s.post("/api/jobs/a/signal", {"correlation_key": "go-a", "payload": 1}, headers=admin)
        waiting.join(PATIENCE)
        assert code(received["answer"]) == (401, "unauthorized"), received


def expect_within_a_second(begun):
    """Within the second of docs/security.md, plus a margin for a busy machine."""
    took = time.monotonic() - begun
    assert took < 4, took


@test
def streams_and_waiting_requests_end_within_a_second_of_their_key():
    with serving() as s:
        admin = bearer(s.keys["admin"])
        s.post("/api/jobs", {"agent": "asks", "id": "a"}, headers=admin)
        until(lambda: s.get("/api/jobs/a", headers=admin)[1]["status"] == "waiting")
        seen = s.get("/api/jobs/a", headers=admin)[1]["seq"]
        for ends in ("is revoked", "runs out"):
            key, key_id = create_key(s.h, "operator", *([] if ends == "is revoked" else ["--expires", "3s"]))
            begun = time.monotonic() + (0 if ends == "is revoked" else 3)
            ours, other = [http.client.HTTPConnection(s.address, timeout=PATIENCE) for _ in range(2)]
            for connection, credential, after in ((ours, key, 0), (other, s.keys["admin"], 0)):
                connection.request("GET", f"/api/jobs/a/events?after={after}",
                                   headers={"Accept": "text/event-stream", **bearer(credential)})
            # A stream without events yet, a request that waits for a page, and one that created a job.
            received = {}

            def send_request(name, *words, **more):
                received[name] = s.request(*words, headers=bearer(key), **more), time.monotonic()
            silent = http.client.HTTPConnection(s.address, timeout=PATIENCE)
            silent.request("GET", f"/api/jobs/a/events?after={seen}",
                           headers={"Accept": "text/event-stream", **bearer(key)})
            threads = [threading.Thread(target=send_request, args=("page", "GET", f"/api/jobs/a/events?after={seen}&wait=60s")),
                       threading.Thread(target=send_request, args=("made", "POST", "/api/jobs?wait=60s",
                                                                   {"agent": "holds", "id": ends.replace(" ", "-")}))]
            for thread in threads:
                thread.start()
            stream = ours.getresponse()
            while b"job_waiting" not in stream.readline():
                pass
            until(lambda: s.get("/api/jobs/" + ends.replace(" ", "-"), headers=admin)[0] == 200)
            if ends == "is revoked":
                begun = time.monotonic()
                expect(s.h.run("keys", "revoke", key_id), 0)
            stream.read()
            expect_within_a_second(begun)
            answer = silent.getresponse()
            assert answer.status == 401, answer.status
            answer.read()
            for thread in threads:
                thread.join(PATIENCE)
            expect_within_a_second(begun)
            assert code(received["page"][0]) == (401, "unauthorized"), received
            assert code(received["made"][0]) == (504, "unknown_outcome"), received
            # Other streams continue.
            others = other.getresponse()
            while b"job_waiting" not in others.readline():
                pass
            other.close()
        s.h.release_hold()


@test
def a_malformed_authorization_header_is_answered_with_the_expected_form():
    with serving() as s:
        good = s.keys["admin"]
        for header in (good, "Basic YTpi", "", "Bearer", "Bearer "):
            status, result = s.get("/api/jobs", headers={"Authorization": header})
            assert status == 401 and "`Authorization: Bearer aek_" in result["detail"], (header, result)
        status, result = s.get("/api/jobs", headers=bearer(good[:-1]))
        assert status == 401 and "unknown, expired or revoked" in result["detail"], result


@test
def an_unreadable_tls_file_is_reported_with_its_purpose():
    with home() as h:
        crt, key_file = certificate(h, "one")
        for words, what in (([str(h.path / "no.crt"), key_file], "the TLS certificate"),
                            ([crt, str(h.path / "no.key")], "the TLS key")):
            result = expect(h.run("serve", "agents.yaml", "--tls-cert", words[0], "--tls-key", words[1]), 2)
            assert f"cannot read {what} " in result.err, result


# ---------------------------------------------------------------- recorded names

@test
def records_name_the_key_and_not_the_name_in_the_request():
    with serving(roles=["admin"]) as s:
        key, key_id = create_key(s.h, "operator", "--name", "night shift")
        headers = {**bearer(key), "X-Aetheris-By": "the president"}
        s.post("/api/jobs", {"agent": "asks", "id": "a"}, headers=headers)
        until(lambda: s.get("/api/jobs/a", headers=headers)[1]["status"] == "waiting")
        s.post("/api/jobs/a/signal", {"correlation_key": "go-a", "payload": 1}, headers=headers)
        until(lambda: s.get("/api/jobs/a", headers=headers)[1]["status"] == "completed")
        events = s.get("/api/jobs/a/events", headers=headers)[1]["events"]
        completed = [e["payload"] for e in events if e["type"] == "wait_completed"]
        assert completed[0]["by"] == f"key:{key_id} night shift", completed
        status, made = s.post("/api/keys", {"role": "viewer"}, headers={**bearer(s.keys["admin"]), "X-Aetheris-By": "x"})
        assert status == 201 and made["created_by"].startswith("key:"), made


@test
def an_operator_key_cannot_approve_calls():
    agents = """
aetheris: 1
tools:
  pay: { native: echo, effect: idempotent, approval: required }
agents:
  pays: { plan: [ { id: p, tool: pay, args: { n: 1 } } ] }
"""
    with home() as h:
        (h.path / "agents.yaml").write_text(agents)
        keys = {role: create_key(h, role)[0] for role in ("operator", "approver", "viewer")}
        s = Server(h)
        operator, approver = bearer(keys["operator"]), bearer(keys["approver"])
        s.post("/api/jobs", {"agent": "pays", "id": "j"}, headers=operator)
        until(lambda: s.get("/api/approvals", headers=operator)[1]["approvals"])
        approval = s.get("/api/approvals", headers=operator)[1]["approvals"][0]
        yes = {"decision": "approve"}
        assert code(s.post("/api/approvals/" + approval["id"], yes, headers=operator)) == (403, "forbidden")
        key = s.get("/api/jobs/j", headers=operator)[1]["waits"][0]["correlation_key"]
        for more in ({}, {"wait_type": "human"}, {"buffer": True}):
            answer = s.post("/api/jobs/j/signal", {"correlation_key": key, "payload": yes, **more}, headers=operator)
            assert code(answer) == (403, "forbidden"), answer
        graph = s.get("/api/agents/pays", headers=operator)[1]["plan"]
        graph["tools"]["pay"].pop("approval")
        answer = s.post("/api/jobs/j/plan", {"task_graph": graph}, headers=operator)
        assert code(answer) == (403, "forbidden"), answer
        env = {"AETHERIS_URL": s.url, "AETHERIS_API_KEY": keys["approver"]}
        assert expect(h.run("approve", approval["id"], env=env), 0).out == "approved\n"
        until(lambda: s.get("/api/jobs/j", headers=approver)[1]["status"] == "completed")
        assert code(s.post("/api/jobs", {"agent": "pays"}, headers=approver)) == (403, "forbidden")


# ---------------------------------------------------------------- commands

@test
def commands_send_their_key_to_the_server():
    with serving(roles=["viewer", "operator"]) as s:
        env = {"AETHERIS_URL": s.url, "AETHERIS_API_KEY": s.keys["operator"]}
        assert expect(s.h.run("run", "agents.yaml", "echo", "--input", '{"n": 2}', env=env), 0).json() == {"n": 2}
        file = s.h.path / "key"
        file.write_text(s.keys["viewer"] + "\n")
        file.chmod(0o600)
        env = {"AETHERIS_URL": s.url, "AETHERIS_API_KEY_FILE": str(file)}
        assert len(expect(s.h.run("jobs", "--json", env=env), 0).json()["jobs"]) == 1
        result = expect(s.h.run("run", "agents.yaml", "echo", env=env), 2)
        assert "operator or admin" in result.err and "[forbidden]" in result.err, result
        assert "[forbidden]" in expect(s.h.run("keys", "list", env=env), 2).err
        file.chmod(0o640)
        result = expect(s.h.run("jobs", env=env), 2)
        assert "chmod 600" in result.err and s.keys["viewer"] not in result.err, result
        result = expect(s.h.run("jobs", env={"AETHERIS_URL": s.url}), 2)
        assert "AETHERIS_API_KEY" in result.err and "[unauthorized]" in result.err, result
        for bad in ("hello world", s.keys["viewer"] + "x", s.keys["viewer"] + "\r\nX: y"):
            result = expect(s.h.run("jobs", env={"AETHERIS_URL": s.url, "AETHERIS_API_KEY": bad}), 2)
            assert bad not in result.err and "[usage]" in result.err, result
        expect(s.h.run("jobs", env={"AETHERIS_URL": s.url, "AETHERIS_API_KEY_FILE": "/nowhere"}), 2)


@test
def keys_are_created_listed_and_revoked_by_commands():
    with home() as h:
        made = expect(h.run("keys", "create", "--role", "viewer", "--name", "dash", "--expires", "30d"), 0)
        key = made.out.strip()
        assert key.startswith("aek_") and len(key) == 4 + 12 + 1 + 64 and key not in made.err, made
        key_id = key.split("_")[1]
        assert "Save the key now: it is not shown again" in made.err and key_id in made.err
        assert "now need a key" in made.err and "AETHERIS_API_KEY" in made.err, made
        listed = expect(h.run("keys", "list"), 0).out
        assert key_id in listed and "dash" in listed and key.split("_")[2] not in listed
        one = expect(h.run("keys", "list", "--json"), 0).json()["keys"][0]
        assert set(one) == {"id", "name", "role", "created_at", "created_by", "expires_at", "live"}, one
        expect(h.run("keys", "revoke", key_id), 0)
        expect(h.run("keys", "revoke", key_id), 0)
        expect(h.run("keys", "revoke", "nobody"), 3)
        acts = [e["act"] for e in expect(h.run("audit", "--json"), 0).json()["entries"]]
        assert acts == ["key_created", "key_revoked"], acts
        assert expect(h.run("audit", "--verify"), 0)
        for bad in (["create"], ["create", "--role", "root"], ["create", "x", "--role", "viewer"], ["revoke"],
                    ["list", "--role", "viewer"], ["list", "x"], ["burn"], [],
                    ["create", "--role", "viewer", "--expires", "soon"]):
            expect(h.run("keys", *bad), 2)
        expect(h.run("keys", "list", "--store", "sqlite:none/there.db"), 3)


@test
def the_secret_of_a_key_is_stored_and_printed_nowhere():
    with home() as h:
        key, key_id = create_key(h, "operator")
        secret = key.split("_")[2]
        s = Server(h, "agents.yaml", "-v")
        headers = bearer(key)
        s.post("/api/jobs?wait=30s", {"agent": "echo"}, headers=headers)
        s.get("/api/nothing", headers=headers)
        s.get("/api/jobs?status=" + "x" * 40, headers=headers)
        s.get("/api/jobs", headers={**headers, "Origin": "http://evil.example"})
        env = {"AETHERIS_URL": s.url, "AETHERIS_API_KEY": key}
        follow = h.start("events", "nobody", "-f", env=env)
        h.end(follow)
        s.post("/api/jobs", {"agent": "asks", "id": "a"}, headers=headers)
        follow = h.start("events", "a", "-f", env=env)
        assert follow.stdout.readline()
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                assert secret not in (process / "cmdline").read_bytes().decode("latin-1"), process
        follow.kill()
        for words in (["keys", "list"], ["keys", "list", "--json"], ["audit"], ["inspect"]):
            result = h.run(*words)
            assert secret not in result.out + result.err, result
        end = expect(s.stop(), 0)
        assert secret not in end.out + end.err, end
        files = [f for f in (h.path / ".aetheris").iterdir() if f.is_file()]
        assert files
        for file in files:
            assert secret.encode() not in file.read_bytes(), file


@test
def a_server_prints_store_agents_and_whether_keys_are_required():
    with home() as h:
        for needs in (False, True):
            process = h.start("serve", "agents.yaml", "--listen", "127.0.0.1:0")
            assert process.stdout.readline().startswith("listening on http://127.0.0.1:")
            process.terminate()
            result = expect(h.end(process), 0).err
            assert f"store:    {h.path}/.aetheris/aetheris.db" in result and re.search(r"^agents: +\w+", result, re.M), result
            assert ("API keys: required" if needs else "API keys: not required") in result, result
            create_key(h, "viewer")


# ---------------------------------------------------------------- access from other machines

@test
def remote_access_requires_a_key_and_tls_or_insecure_http():
    with home() as h:
        words = ("serve", "agents.yaml", "--listen", "0.0.0.0:0")
        result = expect(h.run(*words), 2)
        assert "--insecure-http" in result.err, result
        result = expect(h.run(*words, "--insecure-http"), 2)
        assert "keys create" in result.err, result
        dead, dead_id = create_key(h, "admin")
        expect(h.run("keys", "revoke", dead_id), 0)
        expect(h.run(*words, "--insecure-http"), 2)
        key, _ = create_key(h, "admin")
        process = h.start(*words, "--insecure-http", "--json")
        url = json.loads(process.stdout.readline())["listening"]
        port = int(url.rsplit(":", 1)[1])

        def send_request(headers):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
            connection.request("GET", "/api/jobs", headers=headers)
            status = connection.getresponse().status
            connection.close()
            return status
        assert send_request({}) == 401
        assert send_request({"Host": "aetheris.example"}) == 401
        assert send_request({"Host": "aetheris.example", **bearer(key)}) == 200
        assert send_request({"Origin": "http://evil.example", **bearer(key)}) == 403
        process.send_signal(signal.SIGTERM)
        expect(h.end(process), 0)


# ---------------------------------------------------------------- limits

@test
def a_client_above_the_rate_limit_gets_429_with_retry_after():
    with home() as h:
        key, _ = create_key(h, "operator")
        other, _ = create_key(h, "viewer")
        s = Server(h, "agents.yaml", "--rate", "5")
        received = [s.get("/api/jobs", headers=bearer(key)) for _ in range(30)]
        refused = [answer for answer in received if answer[0] == 429]
        assert refused and all(code(answer) == (429, "rate_limited") for answer in refused), received
        assert received[0][0] == 200
        assert s.get("/metrics", headers=bearer(other))[0] == 200, "another key"
        connection = http.client.HTTPConnection(s.address, timeout=PATIENCE)
        after = None
        while after is None:
            connection.request("GET", "/api/jobs", headers=bearer(key))
            answer = connection.getresponse()
            answer.read()
            after = answer.headers["Retry-After"]
        assert int(after) == 1, after
        result = h.run("jobs", env={"AETHERIS_URL": s.url, "AETHERIS_API_KEY": key})
        assert result.code in (0, 7) and ("rate_limited" in result.err) == (result.code == 7), result
        time.sleep(int(after))
        assert s.get("/api/jobs", headers=bearer(key))[0] == 200
        counted = s.get("/metrics", headers=bearer(other))[1]
        assert 'aetheris_rate_limit_rejections_total{type="requests"}' in counted, counted
        for bad in ("-1", "many", "1.5", "10000000"):
            expect(h.run("serve", "agents.yaml", "--rate", bad), 2)


@test
def repeated_invalid_keys_are_rate_limited_without_blocking_others():
    with serving() as s:
        wrong = bearer("aek_" + "0" * 12 + "_" + "0" * 64)
        answers = [s.get("/api/jobs", headers=wrong)[0] for _ in range(40)]
        assert answers[0] == 401 and answers[-1] == 429, answers
        assert s.get("/api/jobs", headers=bearer(s.keys["admin"]))[0] == 200
        assert s.get("/api/jobs")[0] == 401
        counted = s.get("/metrics", headers=bearer(s.keys["admin"]))[1]
        assert 'aetheris_rate_limit_rejections_total{type="failed_keys"}' in counted, counted


@test
def event_streams_are_limited_per_key_and_released():
    with serving(roles=["admin", "viewer"]) as s:
        s.post("/api/jobs", {"agent": "asks", "id": "a"}, headers=bearer(s.keys["admin"]))

        def stream():
            connection = http.client.HTTPConnection(s.address, timeout=PATIENCE)
            connection.request("GET", "/api/jobs/a/events",
                               headers={"Accept": "text/event-stream", **bearer(s.keys["viewer"])})
            return connection, connection.getresponse()
        opened = [stream() for _ in range(64)]
        assert all(answer.status == 200 for _, answer in opened)
        last, refused = stream()
        assert refused.status == 429 and refused.headers["Retry-After"] == "1"
        assert json.loads(refused.read())["code"] == "rate_limited"
        opened[0][1].close()
        opened[0][0].close()
        again = until(lambda: (lambda pair: pair if pair[1].status == 200 else None)(stream()))
        for connection, answer in [*opened[1:], again, (last, refused)]:
            answer.close()
            connection.close()


@test
def waiting_requests_are_limited_per_key_and_released():
    with serving(roles=["admin", "viewer"]) as s:
        s.post("/api/jobs", {"agent": "asks", "id": "a"}, headers=bearer(s.keys["admin"]))
        path = "/api/jobs/a/events?type=progress&wait="
        host, port = s.address.split(":")
        send_request = f"GET {path}60s HTTP/1.1\r\nHost: {s.address}\r\nAuthorization: {bearer(s.keys['viewer'])['Authorization']}\r\n\r\n"
        waiting = []
        for _ in range(256):
            waiting.append(socket.create_connection((host, int(port)), timeout=PATIENCE))
            waiting[-1].sendall(send_request.encode())
        until(lambda: "aetheris_requests_waiting 256" in s.get("/metrics", headers=bearer(s.keys["admin"]))[1])
        status, problem = s.get(f"{path}60s", headers=bearer(s.keys["viewer"]))
        assert (status, problem["code"]) == (429, "rate_limited"), problem
        assert s.get(f"{path}1s", headers=bearer(s.keys["admin"]))[0] == 200, "limits are per key"
        connection = http.client.HTTPConnection(s.address, timeout=PATIENCE)
        connection.request("GET", "/api/jobs/a/events", headers={"Accept": "text/event-stream", **bearer(s.keys["viewer"])})
        assert connection.getresponse().status == 200, "streams have their own limit"
        connection.close()
        for one in waiting:
            one.close()
        until(lambda: s.get(f"{path}1ms", headers=bearer(s.keys["viewer"]))[0] == 200)


# ---------------------------------------------------------------- TLS


def https(s, crt, method, path, body=None, headers=None):
    context = ssl.create_default_context(cafile=crt)
    connection = http.client.HTTPSConnection(s.address, timeout=PATIENCE, context=context)
    connection.request(method, path, None if body is None else json.dumps(body), headers or {})
    answer = connection.getresponse()
    raw = answer.read()
    connection.close()
    return answer.status, json.loads(raw)


@test
def the_api_works_over_tls():
    with home() as h:
        crt, key_file = certificate(h, "one")
        key, _ = create_key(h, "operator")
        s = Server(h, "agents.yaml", "--tls-cert", crt, "--tls-key", key_file)
        assert s.url.startswith("https://127.0.0.1:"), s.url
        headers = bearer(key)
        assert https(s, crt, "GET", "/api/jobs") [0] == 401
        status, job = https(s, crt, "POST", "/api/jobs?wait=30s", {"agent": "echo", "input": {"n": 1}}, headers)
        assert (status, job["result"]) == (201, {"n": 1}), job
        env = {"AETHERIS_URL": s.url, "AETHERIS_API_KEY": key, "AETHERIS_CA_FILE": crt}
        assert expect(h.run("run", "agents.yaml", "echo", "--input", '{"n": 2}', env=env), 0).json() == {"n": 2}
        follow = h.start("events", job["id"], "-f", "--json", env=env)
        assert "job_completed" in expect(h.end(follow), 0).out
        # Another certificate: nothing is sent, in particular no key.
        other, _ = certificate(h, "other")
        result = expect(h.run("jobs", env={**env, "AETHERIS_CA_FILE": other}), 7)
        assert key not in result.err, result
        expect(h.run("jobs", env={**env, "AETHERIS_CA_FILE": "/nowhere"}), 2)
        expect(h.run("jobs", env={**env, "AETHERIS_URL": s.url.replace("https", "http")}), 7)
        # A client without TLS, or one that sends nothing, blocks no other.
        for words in (b"GET /api/jobs HTTP/1.1\r\n\r\n", b""):
            with socket.create_connection(("127.0.0.1", int(s.address.split(":")[1]))) as plain:
                plain.sendall(words)
                assert https(s, crt, "GET", "/api/jobs", None, headers)[0] == 200
        # With TLS, other machines can connect with a key.
        expect(s.stop(), 0)
        process = h.start("serve", "agents.yaml", "--listen", "0.0.0.0:0", "--tls-cert", crt, "--tls-key", key_file, "--json")
        url = json.loads(process.stdout.readline())["listening"]
        assert url.startswith("https://0.0.0.0:"), url
        expect(h.run("jobs", env={**env, "AETHERIS_URL": url.replace("0.0.0.0", "127.0.0.1")}), 0)
        process.send_signal(signal.SIGTERM)
        expect(h.end(process), 0)


@test
def sighup_reloads_the_certificate():
    with home() as h:
        crt, key_file = certificate(h, "one")
        s = Server(h, "agents.yaml", "--tls-cert", crt, "--tls-key", key_file)
        first = (h.path / "one.crt").read_text()
        assert https(s, crt, "GET", "/api/health")[0] == 200
        certificate(h, "one")
        second = (h.path / "one.crt").read_text()

        def shown():
            return ssl.get_server_certificate(("127.0.0.1", int(s.address.split(":")[1])))
        assert ssl.PEM_cert_to_DER_cert(first) == ssl.PEM_cert_to_DER_cert(shown())
        s.process.send_signal(signal.SIGHUP)
        until(lambda: ssl.PEM_cert_to_DER_cert(second) == ssl.PEM_cert_to_DER_cert(shown()))
        (h.path / "one.crt").write_text("nonsense")
        s.process.send_signal(signal.SIGHUP)
        until(lambda: "cannot be reloaded" in s.process.stderr.readline())
        assert ssl.PEM_cert_to_DER_cert(second) == ssl.PEM_cert_to_DER_cert(shown())
        expect(s.stop(), 0)


@test
def certificate_errors_are_reported_with_their_file():
    with home() as h:
        crt, key_file = certificate(h, "one")
        _, other_key = certificate(h, "two")
        nonsense = h.path / "nonsense"
        nonsense.write_text("nonsense")
        nonsense.chmod(0o600)
        for words, named in ((["--tls-cert", crt], "--tls-key"), (["--tls-key", key_file], "--tls-cert"),
                             (["--tls-cert", "/nowhere", "--tls-key", key_file], "/nowhere"),
                             (["--tls-cert", crt, "--tls-key", "/nowhere"], "/nowhere"),
                             (["--tls-cert", str(nonsense), "--tls-key", key_file], str(nonsense)),
                             (["--tls-cert", crt, "--tls-key", str(nonsense)], str(nonsense)),
                             (["--tls-cert", crt, "--tls-key", other_key], "does not match the certificate")):
            result = expect(h.run("serve", "agents.yaml", "--listen", "127.0.0.1:0", *words), 2)
            assert named in result.err and "[usage]" in result.err, result
        os.chmod(key_file, 0o644)
        result = expect(h.run("serve", "agents.yaml", "--listen", "127.0.0.1:0", "--tls-cert", crt, "--tls-key", key_file), 2)
        assert key_file in result.err and "chmod 600" in result.err, result
        assert not h.store.exists(), "no store was created"


if __name__ == "__main__":
    sys.exit(run_tests("keys", TESTS, " ".join(sys.argv[1:])))
