"""A PostgreSQL server for a test script, with a new database for each test."""
import contextlib
import glob
import itertools
import subprocess
import sys
import urllib.parse

from shared.home import home, run_tests
from shared.program import ROOT

NUMBERS = itertools.count(1)


class Postgres:
    """A private server; `database` creates a new database in it and returns its URL."""

    def __init__(self):
        self.process = subprocess.Popen([ROOT / "scripts/postgres"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)
        self.url = self.process.stdout.readline().strip()
        assert self.url, "no server"
        self.place = urllib.parse.urlsplit(self.url)

    def control(self, word):
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def program(self, name, *words):
        path = sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"))[-1]
        return subprocess.run([path, "-h", self.place.hostname, "-p", str(self.place.port), "-U", "aetheris", *words],
                              check=True, capture_output=True, text=True).stdout

    def database(self):
        name = f"d{next(NUMBERS)}"
        self.program("createdb", name)
        return self.url.rsplit("/", 1)[0] + "/" + name

    def end(self):
        self.process.stdin.close()
        self.process.wait()


_server = None


def running_server():
    """The server of the script that runs."""
    return _server


def run_with_server(area, tests):
    """`run_tests` with a PostgreSQL server for the script. Returns the exit code."""
    global _server
    _server = Postgres()
    try:
        return run_tests(area, tests, " ".join(sys.argv[1:]))
    finally:
        _server.end()


@contextlib.contextmanager
def shared_store():
    """A home, and the environment that names a new database."""
    with home() as h:
        yield h, {"AETHERIS_STORE": running_server().database()}


def sql(env, text):
    return running_server().program("psql", "-d", env["AETHERIS_STORE"].rsplit("/", 1)[1], "-v", "ON_ERROR_STOP=1", "-Atc",
                            "SET search_path = aetheris; " + text)
