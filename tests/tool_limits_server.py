#!/usr/bin/env python3
"""What a program of a tool can do to its server: real servers, and tools that attack them.

Prints `ok NAME` or `not ok NAME` for each test.
As root, the servers run as another user (tests/shared/attacks.py). tests/shared/program.py finds the program.
  tool_limits_server.py [WORDS]   only tests whose name contains WORDS
"""
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys

from shared.attacks import (AGENTS, ATTACK, as_user, attack, is_forbidden, no_key_was_created, pending_payment,
    run_or_skip, serving_as_user, socket_path)
from shared.home import Skip, expect, home, until
from shared.server import Server

TESTS = []


def test(function):
    TESTS.append(function)
    return function


@test
def a_tool_can_neither_approve_its_payment_nor_create_a_key_on_the_socket():
    with serving_as_user() as s:
        decision = pending_payment(s)
        result = attack(s, {"on_socket": [socket_path(s), decision]})["on_socket"]
        for name, answer in result.items():
            assert is_forbidden(answer), (name, answer)
        assert not (s.h.path / "paid.txt").exists()
        assert no_key_was_created(s)
        # The same request of an operator is accepted.
        expect(s.h.run("approve", decision, "--store", f"sqlite:{s.h.store}"), 0)
        until(lambda: (s.h.path / "paid.txt").exists())


@test
def a_detached_process_of_a_tool_is_still_treated_as_a_tool():
    with serving_as_user() as s:
        result = attack(s, {"detached": [socket_path(s), str(s.h.path / "said.json")]})["detached"]
        assert is_forbidden(result), result
        assert no_key_was_created(s)


@test
def a_tool_cannot_create_a_key_over_tcp_in_a_store_without_keys():
    with serving_as_user() as s:
        result = attack(s, {"on_tcp": [s.address]})["on_tcp"]
        for name, answer in result.items():
            assert is_forbidden(answer), (name, answer)
        assert no_key_was_created(s)
        status, made = s.post("/api/keys", {"role": "admin"})
        assert status == 201, made
        # A request with a key is accepted, also from a tool.
        result = attack_with_key(s, made["key"])
        assert result[0] == 401, result


def expect_refused_over_tcp(s, attacks):
    (result,) = attack(s, attacks).values()
    assert result.pop("unshared", 0) == 0, result
    for name, answer in result.items():
        assert is_forbidden(answer), (name, answer)
    assert no_key_was_created(s)


@test
def a_tool_cannot_create_a_key_over_tcp_from_a_thread_with_its_own_file_table():
    with serving_as_user() as s:
        expect_refused_over_tcp(s, {"on_tcp_from_hidden_thread": [s.address]})


@test
def a_tool_cannot_create_a_key_over_tcp_after_its_main_thread_has_exited():
    with serving_as_user() as s:
        expect_refused_over_tcp(s, {"after_the_main_thread": [s.address, str(s.h.path / "said.json")]})


@test
def a_socket_that_no_process_has_open_is_treated_as_that_of_a_tool():
    with serving_as_user(", sandbox: none") as s:  # so that the tool can stop the server for a moment
        expect_refused_over_tcp(s, {"in_flight": [s.address]})


# Sends a request from a thread with its own file table, in a process whose main thread continues or exits.
THREAD = """
import ctypes, http.client, os, sys, threading
libc = ctypes.CDLL(None)
def work():
    assert libc.unshare(0x400) == 0
    connection = http.client.HTTPConnection(sys.argv[1], timeout=20)
    connection.request("GET", "/api/jobs")
    print(connection.getresponse().status, flush=True)
    os._exit(0)
threading.Thread(target=work).start()
if sys.argv[2] == "ends":
    libc.syscall({"x86_64": 60}.get(os.uname().machine, 93), 0)
"""


@test
def other_programs_of_the_servers_user_are_accepted_over_tcp():
    with serving_as_user() as s:
        attack(s, {"variables": []})
        url = f"http://{s.address}/api/jobs"
        clients = {"aetheris": [s.h.program, "jobs"],
                   "thread": [sys.executable, "-c", THREAD, s.address, "stays"],
                   "ended": [sys.executable, "-c", THREAD, s.address, "ends"]}
        if shutil.which("curl"):
            clients["curl"] = ["curl", "--silent", "--show-error", "--fail", url]
        for name, words in clients.items():
            done = subprocess.run([*as_user(), *words], env={**s.h.env, **s.env}, cwd=s.h.path, capture_output=True,
                                  text=True, timeout=60, start_new_session=True)
            # The list names the job's agent. Digits of its times and ids may look like a status.
            assert done.returncode == 0, (name, done)
            assert done.stdout.strip() == "200" or "attacks" in done.stdout, (name, done)


@test
def a_client_that_disconnects_before_it_is_checked_delays_no_other():
    with serving_as_user() as s:
        request = b"POST /api/keys HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
        for _ in range(20):
            with socket.create_connection(s.address.split(":"), 20) as gone:
                gone.sendall(request)
        assert s.get("/api/health")[0] == 200


def attack_with_key(s, key):
    status, job = s.request("POST", "/api/jobs?wait=60s", {"agent": "attacks", "input": {"on_tcp": [s.address]}},
                            {"Authorization": "Bearer " + key})
    assert (status, job["status"]) == (201, "completed"), job
    return job["result"]["on_tcp"]["jobs"]


@test
def a_tool_can_neither_create_a_key_nor_approve_with_the_command_line():
    with serving_as_user() as s:
        decision = pending_payment(s)
        store = "sqlite:" + str(s.h.path / ".aetheris/aetheris.db")
        result = attack(s, {"commands": [s.h.program, store, decision]})["commands"]
        for name, (code, text) in result.items():
            assert code != 0 and "forbidden" in text, (name, code, text)
        assert not (s.h.path / "paid.txt").exists()
        assert no_key_was_created(s)


@test
def a_tool_cannot_read_environment_memory_or_files_of_server_and_supervisor():
    with serving_as_user() as s:
        result = attack(s, {"of_processes": []})["of_processes"]
        assert len(result) == 6, result
        for name, found in result.items():
            assert found.startswith("refused"), (name, found)


@test
def a_tool_gets_only_its_own_files_and_variables():
    with serving_as_user() as s:
        result = attack(s, {"files": [], "variables": []})
        assert result["files"] == [0, 1, 2, 3, 4], result  # 3: reports · 4: the listing itself
        assert "SECRET_OF_THE_SERVER" not in result["variables"], result
    with serving_as_user(", env_allow: [SECRET_OF_THE_SERVER]") as s:
        assert "SECRET_OF_THE_SERVER" in attack(s, {"variables": []})["variables"]


@test
def a_process_that_outlives_its_supervisor_is_refused_and_killed():
    with serving_as_user(", sandbox: none") as s:
        out, here = s.h.path / "said.json", s.h.path / "here"
        attack(s, {"send_after_supervisor": [socket_path(s), str(out), str(here)]}, status="parked")
        pid = int(here.read_text())
        until(lambda: not pathlib.Path(f"/proc/{pid}").exists())
        assert not out.exists() or is_forbidden(json.loads(out.read_text())), out.read_text()
        assert no_key_was_created(s)
        assert s.get("/api/health")[0] == 200


@test
def a_tool_of_another_server_can_neither_approve_a_payment_nor_create_a_key():
    with serving_as_user() as other, serving_as_user() as s:
        decision = pending_payment(s)
        store = "sqlite:" + str(s.h.path / ".aetheris/aetheris.db")
        tried = attack(other, {"on_socket": [socket_path(s), decision], "on_tcp": [s.address, decision],
                               "detached": [socket_path(s), str(other.h.path / "said.json")],
                               "on_tcp_from_hidden_thread": [s.address], "commands": [s.h.program, store, decision]})
        for name, (code, text) in tried.pop("commands").items():
            assert code != 0 and "forbidden" in text, (name, code, text)
        assert tried["on_tcp_from_hidden_thread"].pop("unshared") == 0, tried
        assert is_forbidden(tried.pop("detached")), tried
        for attempt, result in tried.items():
            for name, answer in result.items():
                assert is_forbidden(answer), (attempt, name, answer)
        assert not (s.h.path / "paid.txt").exists()
        assert no_key_was_created(s)


@test
def a_process_that_outlives_its_supervisor_is_refused_by_another_server():
    with serving_as_user(", sandbox: none") as other, serving_as_user() as s:
        out = other.h.path / "said.json"
        attack(other, {"send_to_other_server": [socket_path(s), s.address, str(out)]}, status="parked")
        for name, answer in json.loads(out.read_text()).items():
            assert is_forbidden(answer), (name, answer)
        assert no_key_was_created(s)


@test
def a_tool_of_a_server_that_runs_as_root_cannot_read_its_processes():
    if os.geteuid() != 0:
        raise Skip("this is about a server that runs as root")
    for more in ("", ", sandbox: none"):
        with home() as h:
            (h.path / "agents.yaml").write_text(AGENTS % more)
            (h.path / "attack.py").write_text(ATTACK)
            s = Server(h)
            result = attack(s, {"of_processes": []})["of_processes"]
            assert len(result) == 6, result
            for name, found in result.items():
                assert found.startswith("refused"), (more, name, found)
            result = expect(s.stop(), 0)
            assert "running as root" in result.err, result


if __name__ == "__main__":
    sys.exit(run_or_skip("tool_limits_server", TESTS))
