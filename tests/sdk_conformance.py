#!/usr/bin/env python3
"""Each SDK against sdk/conformance: all scenarios undisturbed, one with each fault at each frame, and a share of all
other faults that follows from the commit.

Prints `ok NAME` or `not ok NAME` for each SDK. AETHERIS_SEED chooses another share; AETHERIS_SLOW_TESTS=1 runs shares of
12 minutes. `--full` runs each fault at each frame.
  sdk_conformance.py [WORDS] [--full]   only tests whose name contains WORDS
"""
import contextlib
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import types

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import oracles  # noqa: E402
from shared.home import Skip, run_tests, until  # noqa: E402
from shared.program import ROOT, TESTING_BIN  # noqa: E402

SUITE = ROOT / "sdk/conformance"
IS_FULL = "--full" in sys.argv[1:]
MINUTES = 12.0 if os.environ.get("AETHERIS_SLOW_TESTS") else 0.4  # of the share of an SDK
MINUTES_OF_KIND = 8.0 if IS_FULL else MINUTES / 4  # of a further kind of agents
EXAMPLE = "tools_of_the_worker"  # a small one, of calls of each class
# What the library has no means for (sdk/conformance/README.md, `needs`).
CPP_LACKS = "race,first,fetch,branches,later_wait,open_scope,invalid,script_fails"
TESTS = []


def test(function):
    TESTS.append(function)
    return function


def seed():
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return os.environ.get("AETHERIS_SEED") or head.stdout.strip() or "1"


FAULTS = ["--full"] if IS_FULL else ["--whole", EXAMPLE, "--share", seed(), "--minutes", MINUTES]
FAULTS_OF_KIND = ["--share", seed(), "--minutes", MINUTES_OF_KIND]


def run_suite(*words, **env):
    done = subprocess.run([sys.executable, SUITE / "run.py", "--program", TESTING_BIN, "--parallel", "6", *map(str, words)],
                          capture_output=True, text=True, timeout=5400 if IS_FULL else 60 * MINUTES + 900, env={**os.environ, **env})
    failed = done.stdout[done.stdout.find("not ok"):] if "not ok" in done.stdout else done.stdout
    assert done.returncode == 0, f"exit code {done.returncode}\n{failed[:8000]}\n{done.stdout[-300:]}{done.stderr[-3000:]}"
    print("# " + done.stdout.splitlines()[-1], flush=True)


def conformance():
    """The runner and its scenarios, as modules."""
    sys.path.insert(0, str(SUITE))
    import run  # pylint: disable=import-outside-toplevel
    return run, run.scenarios


@test
def a_run_that_is_killed_leaves_no_process():
    def processes(below):
        """The ids of the processes whose folder is there."""
        found = []
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.readlink(entry / "cwd").startswith(below):
                    found.append(int(entry.name))
        return found
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.Popen([sys.executable, SUITE / "run.py", "--program", TESTING_BIN, "--parallel", "2", "--worker",
                                f"{sys.executable} -m aetheris {SUITE / 'agents/script.py'}", "--full"], stdout=subprocess.DEVNULL,
                               env={**os.environ, "TMPDIR": folder, "PYTHONPATH": str(ROOT / "sdk/python")})
        try:
            until(lambda: len(processes(folder)) >= 4)  # a server and a worker of each world
        finally:
            run.kill()
            run.wait()
        until(lambda: not processes(folder))


@test
def a_run_that_tests_nothing_fails():
    run, _ = conformance()

    def suite_of(act):
        suite = run.Suite(types.SimpleNamespace(parallel=2, keep=False, library=None))
        with contextlib.redirect_stdout(io.StringIO()):
            act(suite)
        suite.shop.close()
        return suite

    def judged(disturbed, not_reached, is_wanted):
        def act(suite):
            suite.disturbed, suite.not_reached = disturbed, not_reached
            suite.judge_faults(is_wanted)
        return len(suite_of(act).failures)
    assert [judged(*one) for one in ((0, 0, True), (0, 0, False), (8, 4, True), (8, 5, True), (1, 1, True), (40, 10, True),
                                     (40, 11, True))] == [1, 0, 0, 1, 1, 0, 1]

    def fail(*_):
        raise OSError("of the runner")

    def act(suite):
        suite.run_one = fail
        suite.run_all([(None, None)])
    assert suite_of(act).failures == ["the runner"]


@test
def only_a_lost_performer_leaves_an_outcome_unknown():
    run, scenarios = conformance()
    made = {tool: scenarios.Scenario({"name": "n", "program": {"op": "call", "tool": tool}, "expect": {}}, scenarios.FOLDER)
            for tool in ("worker_once", "server_once", "worker_idempotent")}
    for fault, wanted in (("kill_server_after@2:in", ["server_once"]), ("kill_server_before@1:out", ["server_once"]),
                          ("freeze_server@1:in", []), ("late@1:out", []), ("cut_after@1:in", []),
                          ("kill_worker_after@2:in", ["worker_once", "server_once"]),
                          ("kill_both_before@2:in", ["worker_once", "server_once"]),
                          ("freeze_worker@2:in", ["worker_once", "server_once"]),
                          ("kill_after@3:commit", ["worker_once", "server_once"])):
        found = [tool for tool, one in made.items() if one.may_be_in_doubt(run.Fault.parse(fault))]
        assert found == wanted, (fault, found)


@test
def typescript():
    worker = f"{oracles.node()} {ROOT}/sdk/typescript/src/worker_main.ts {SUITE}/agents/script.ts"
    run_suite("--sdk", "typescript", "--worker", worker, *FAULTS)


@test
def python():
    script = SUITE / "agents/script.py"
    if not script.exists():
        raise Skip("there is no agent script in Python")
    python = ["--sdk", "python", "--worker", f"{sys.executable} -m aetheris {script}"]
    packages = {"PYTHONPATH": str(ROOT / "sdk/python")}
    run_suite(*python, *FAULTS, **packages)
    run_suite(*python, "--kind", "host", *FAULTS_OF_KIND, **packages)
    run_suite(*python, "--kind", "sync", "--lacks", "branches,first", *FAULTS_OF_KIND, **packages)


@test
def cpp():
    build = ROOT / "build/release"
    if not (build / "libaetheris.a").exists():
        raise Skip("build/release has no libaetheris.a: ./dev build-preset release --target aetheris_library")
    with tempfile.TemporaryDirectory() as folder:
        prefix, made = pathlib.Path(folder, "prefix"), pathlib.Path(folder, "build")
        for words in (["cmake", "--install", build, "--component", "library", "--prefix", prefix],
                      ["cmake", "-S", SUITE / "agents", "-B", made, f"-DCMAKE_PREFIX_PATH={prefix}",
                       "-DCMAKE_CXX_COMPILER=g++"],
                      ["cmake", "--build", made]):
            done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
            assert done.returncode == 0, (words, done.stdout[-3000:], done.stderr[-3000:])
        run_suite("--sdk", "cpp", "--library", made / "script", "--lacks", CPP_LACKS, *FAULTS)


if __name__ == "__main__":
    sys.exit(run_tests("sdk conformance", TESTS, " ".join(word for word in sys.argv[1:] if word != "--full")))
