#!/usr/bin/env python3
"""The C++ library as a user gets it: installed into a folder, found by CMake, linked with examples/library.

Prints `ok NAME` or `not ok NAME` for each test. The release build has the archive (`./dev build-preset release --target
aetheris_library`); without it, the tests are skipped.
  library.py [WORDS]   only tests whose name contains WORDS
"""
import json
import os
import pathlib
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from shared.home import PATIENCE, Skip, run_tests, until  # noqa: E402
from shared.program import ROOT  # noqa: E402

BUILD = ROOT / "build/release"
SEED = int(os.environ.get("AETHERIS_SEED") or random.SystemRandom().randrange(1 << 31))
TESTS = []
ORDERS = {"42": {"email": "ada@example.org", "total": 29}, "43": {"email": "grace@example.org", "total": 180}}


def test(function):
    TESTS.append(function)
    return function


class Example:
    """examples/library, built against an installed library."""
    folder = None

    @classmethod
    def program(cls):
        if cls.folder is None:
            if not (BUILD / "libaetheris.a").exists():
                raise Skip("build/release has no libaetheris.a: ./dev build-preset release --target aetheris_library")
            folder = tempfile.TemporaryDirectory()
            prefix, build = pathlib.Path(folder.name, "prefix"), pathlib.Path(folder.name, "build")
            for words in (["cmake", "--install", BUILD, "--component", "library", "--prefix", prefix],
                          ["cmake", "-S", ROOT / "examples/library", "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}",
                           "-DCMAKE_CXX_COMPILER=g++"],
                          ["cmake", "--build", build]):
                done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
                assert done.returncode == 0, (words, done.stdout, done.stderr)
            cls.folder = folder
        return pathlib.Path(cls.folder.name, "build/refund")


class Shop:
    """A folder with orders, in which the example runs."""

    def __init__(self):
        self.program = Example.program()
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=Example.folder.name))
        (self.folder / "orders.json").write_text(json.dumps(ORDERS))

    def lines(self, name):
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def start(self, *words):
        return subprocess.Popen([self.program, *words], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True)

    def run(self, order):
        process = self.start("run", order)
        out, error = process.communicate(timeout=PATIENCE)
        return process.returncode, out, error


@test
def an_installed_library_has_only_its_own_headers():
    Example.program()
    include = pathlib.Path(Example.folder.name, "prefix/include")
    assert sorted(path.name for path in include.rglob("*.h")) == ["aetheris.h", "testing.h", "value.h"]
    text = "".join(path.read_text() for path in include.rglob("*.h"))
    assert '#include "' not in text.replace('#include "aetheris/', ""), "a header of the source tree"


@test
def the_test_of_the_example_passes():
    Example.program()
    done = subprocess.run([pathlib.Path(Example.folder.name, "build/refund_test")], capture_output=True, text=True,
                          timeout=PATIENCE)
    assert done.returncode == 0 and done.stdout.count("ok ") == 4, done


@test
def the_example_pays_and_mails_once_and_again_prints_the_same_result():
    shop = Shop()
    code, out, error = shop.run("42")
    assert code == 0, (out, error)
    again = shop.run("42")
    assert again == (0, out, ""), again
    assert len(shop.lines("payments.txt")) == 1 and shop.lines("mails.txt") == ["ada@example.org"]
    code, out, error = shop.run("99")
    assert code == 1 and error == "no_order: there is no order 99\n", (code, out, error)


@test
def killed_at_any_time_the_example_pays_and_mails_once():
    choice = random.Random(SEED)
    for round_no in range(6):
        shop = Shop()
        for _ in range(60):
            process = shop.start("run", "42")
            time.sleep(choice.uniform(0.0, 0.12))
            process.kill()
            out, error = process.communicate()
            if process.returncode == 0:
                break
        code, out, error = shop.run("42")
        repeat = f"round {round_no}; AETHERIS_SEED={SEED} tests/library.py killed"
        payments, mails = shop.lines("payments.txt"), shop.lines("mails.txt")
        assert len(payments) == 1, (payments, repeat)
        unknown = code == 1 and error.startswith("job_not_finished:") and "in_doubt" in error
        assert (code == 0 and len(mails) == 1) or (unknown and len(mails) <= 1), (code, out, error, mails, repeat)


@test
def a_served_agent_waits_for_its_approval_and_survives_a_kill():
    shop = Shop()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"

    def request(method, path, body=None):
        made = urllib.request.Request(f"http://{address}{path}", method=method,
                                      data=None if body is None else json.dumps(body).encode(),
                                      headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(made, timeout=PATIENCE) as response:
            return json.load(response)

    def serves():
        try:
            return request("GET", "/api/health")
        except OSError:
            return None

    server = shop.start("serve", address)
    try:
        until(serves)
        job = request("POST", "/api/jobs", {"agent": "refund", "input": {"order": "43"}, "id": "refund-43"})
        assert job["id"] == "refund-43", job
        until(lambda: request("GET", "/api/jobs/refund-43")["status"] == "waiting")
        assert not shop.lines("payments.txt")
        server.kill()
        server.wait()
        server = shop.start("serve", address)
        until(serves)
        approvals = request("GET", "/api/approvals")["approvals"]
        assert len(approvals) == 1, approvals
        request("POST", f"/api/approvals/{approvals[0]['id']}", {"decision": "approve"})
        until(lambda: request("GET", "/api/jobs/refund-43")["status"] == "completed")
        assert len(shop.lines("payments.txt")) == 1 and shop.lines("mails.txt") == ["grace@example.org"]
    finally:
        server.terminate()
        server.communicate(timeout=PATIENCE)


if __name__ == "__main__":
    try:
        code = run_tests("library", TESTS, " ".join(sys.argv[1:]))
    finally:
        if Example.folder is not None:
            shutil.rmtree(Example.folder.name, ignore_errors=True)
    sys.exit(code)
