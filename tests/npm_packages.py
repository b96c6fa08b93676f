#!/usr/bin/env python3
"""The npm packages: installed from their files in an empty folder, without the network, and used as their README states.

Prints `ok NAME` or `not ok NAME` for each test.
  npm_packages.py [WORDS]   only tests whose name contains WORDS
"""
import functools
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "scripts"))
import npm_packages  # noqa: E402
from shared.home import PATIENCE, Skip, run_tests, until  # noqa: E402

TESTS = []


def test(function):
    TESTS.append(function)
    return function


@functools.cache
def environment():
    """With Node, and without what selects another store, server or program."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AETHERIS_")}
    return {**kept, "PATH": npm_packages.environment(npm_packages.sdk())["PATH"], "NO_COLOR": "1"}


@functools.cache
def project():
    """A folder in which the two packages are installed; nothing else is."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="aetheris-npm-"))
    files = npm_packages.build()
    ran("npm", "install", "--offline", "--no-audit", "--no-fund", *files, cwd=folder)
    return folder


def ran(*words, cwd, code=0, **more):
    done = subprocess.run(words, cwd=cwd, env={**environment(), **more}, capture_output=True, text=True,
                          timeout=10 * PATIENCE, stdin=subprocess.DEVNULL)
    assert done.returncode == code, (words, done)
    return done.stdout if code == 0 else done.stderr


@test
def they_install_without_other_packages_and_the_commands_start():
    folder = project()
    names = sorted(path.name for path in (folder / "node_modules").iterdir() if not path.name.startswith("."))
    assert names == ["aetheris", "aetheris-linux-x64"], names
    version = json.loads((npm_packages.SDK / "package.json").read_text())["version"]
    assert json.loads(ran("npx", "aetheris", "version", "--json", cwd=folder))["version"] == version
    assert f'SDK_VERSION = "{version}"' in (npm_packages.SDK / "src/worker.ts").read_text()
    assert "usage: aetheris-worker FILE" in ran("npx", "aetheris-worker", "--help", cwd=folder)
    # Exit codes and signals are the program's.
    ran("npx", "aetheris", "no-such-command", cwd=folder, code=2)
    launcher = subprocess.Popen(["node_modules/.bin/aetheris", "serve", "no.yaml"], cwd=folder, env=environment(),
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert launcher.wait(timeout=PATIENCE) == 2, launcher.stdout.read()


@test
def without_the_package_of_the_platform_the_error_names_it():
    with tempfile.TemporaryDirectory() as name:
        copy = pathlib.Path(name) / "node_modules/aetheris"
        shutil.copytree(project() / "node_modules/aetheris", copy)
        error = ran("node", copy / "dist/launcher.js", "version", cwd=name, code=127)
        assert "the package aetheris-linux-x64 is not installed" in error and "AETHERIS_BIN" in error, error
        named = project() / "node_modules/aetheris-linux-x64/aetheris"
        assert ran("node", copy / "dist/launcher.js", "version", cwd=name, AETHERIS_BIN=str(named)).startswith("aetheris ")


@test
def both_module_systems_load_it_and_share_their_errors():
    folder = project()
    (folder / "both.cjs").write_text("""
const cjs = require("aetheris");
const { durable } = require("aetheris/ai-sdk");
const { durableRun } = require("aetheris/langgraph");
const { durableAgentRun } = require("aetheris/openai-agents");
import("aetheris").then((esm) => {
  console.log(JSON.stringify({
    copies: cjs.Failure !== esm.Failure,
    names: JSON.stringify(Object.keys(cjs).sort()) === JSON.stringify(Object.keys(esm).sort()),
    errors: [new cjs.Failure("a", "b") instanceof esm.Failure, new esm.NotDone("a", "b") instanceof cjs.NotDone],
    wrappers: [durable, durableRun, durableAgentRun].every((one) => typeof one === "function"),
    offered: typeof esm.serve === "function" && cjs.tool("t", {}, () => 1).kind,
  }));
});
""")
    assert json.loads(ran("node", "both.cjs", cwd=folder)) == {
        "copies": True, "names": True, "errors": [True, True], "wrappers": True, "offered": "tool"}


USER = """
import { agent, tool, fetchAs, Failure, ToolFailed, type Ctx, type Json } from "aetheris";
import { durable } from "aetheris/ai-sdk";
import { durableRun } from "aetheris/langgraph";
import { durableAgentRun } from "aetheris/openai-agents";

interface Order { total: number }
export const pay = tool("pay", { effect: "idempotent", timeout: "10s" }, async (args: { amount: number }, call) => {
  call.progress({ key: call.key, secret: call.secret("SHOP_KEY").length });
  return { id: String(args.amount) };
});
export const refund = agent("refund", { version: "1", uses: ["get_order"] }, async (ctx: Ctx, input: { order: string }) => {
  const order = await ctx.call<Order>("get_order", { id: input.order });
  const paid = await ctx.call(pay, { amount: order.total });
  const { won, value } = await ctx.race("first", { a: (c) => c.sleep("1s"), b: (c) => c.receive<string>("c") });
  const text: string = won === "b" ? value : "";
  // @ts-expect-error a tool of the package has types
  ctx.call(pay, { amount: "1" });
  if (text === "") throw new Failure("no", "nothing");
  const data: Json = { id: paid.id, fetch: typeof fetchAs(ctx, "read") };
  return [data, durable(ctx).specificationVersion, typeof durableRun, typeof durableAgentRun, ToolFailed.name];
});
"""


@test
def its_types_resolve_in_both_module_systems():
    folder, modules = project() / "types", npm_packages.sdk() / "node_modules"
    folder.mkdir()
    for name in ("user.mts", "user.cts", "user.ts"):
        (folder / name).write_text(USER)
    for module, resolution in (("node16", "node16"), ("nodenext", "nodenext"), ("esnext", "bundler")):
        ran(modules / ".bin/tsc", "--noEmit", "--strict", "--target", "es2022", "--lib", "es2024,dom", "--module", module,
            "--moduleResolution", resolution, "--types", "node", "--typeRoots", modules / "@types",
            "user.mts", "user.cts", "user.ts", cwd=folder)
    # The types of a CommonJS file are those of the CommonJS form.
    traced = ran(modules / ".bin/tsc", "--noEmit", "--module", "node16", "--types", "node", "--typeRoots", modules / "@types",
                 "--skipLibCheck", "--listFiles", "user.cts", cwd=folder)
    assert re.search(r"aetheris/dist/cjs/index\.d\.ts$", traced, re.M), traced
    assert not re.search(r"aetheris/dist/index\.d\.ts$", traced, re.M), traced


GREET = """
import { agent } from "aetheris";
export const greet = agent("greet", {}, async (ctx, input: { name: string }) =>
  ctx.run("greeting", "read", input, ({ name }) => `Hello, ${name}!`));
"""


def result_of(address):
    """The result of a new job of `greet`; None: the server does not listen yet, or does not know the agent."""
    done = subprocess.run(["curl", "--noproxy", "*", "-s", "-H", "Content-Type: application/json", "-d",
                           '{"agent": "greet", "input": {"name": "Ada"}}', f"http://{address}/api/jobs?wait=30s"],
                          capture_output=True, text=True, timeout=PATIENCE)
    return json.loads(done.stdout).get("result") if done.stdout else None


@test
def an_agent_runs_with_the_installed_commands():
    folder = project() / "run"
    folder.mkdir()
    (folder / "agents.yaml").write_text("""aetheris: 1
tools: { echo: { native: echo, effect: read } }
agents: { echo: { plan: [ { id: e, tool: echo } ] } }
""")
    (folder / "greet.ts").write_text(GREET)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    log = open(folder / "log.txt", "w")
    processes = [subprocess.Popen(["npx", *words], cwd=folder, env=environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                  start_new_session=True)
                 for words in (["aetheris", "serve", "agents.yaml", "--listen", address], ["aetheris-worker", "greet.ts"])]
    try:
        assert until(lambda: result_of(address)) == "Hello, Ada!"
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGTERM)
        for process in processes:
            try:
                process.wait(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise


def child_of(pid):
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else None


def is_running(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@test
def the_program_ends_with_its_launcher():
    folder = project() / "ends"
    folder.mkdir()
    (folder / "agents.yaml").write_text("aetheris: 1\ntools: { echo: { native: echo, effect: read } }\n"
                                        "agents: { echo: { plan: [ { id: e, tool: echo } ] } }\n")
    for sent in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL):
        log = open(folder / "log.txt", "w")
        launcher = subprocess.Popen([project() / "node_modules/.bin/aetheris", "serve", "agents.yaml", "--listen", "127.0.0.1:0"],
                                    cwd=folder, env=environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            until(lambda: "listening on" in (folder / "log.txt").read_text())
            program = child_of(launcher.pid)
            launcher.send_signal(sent)
            launcher.wait(timeout=PATIENCE)
            until(lambda: not is_running(program))
        finally:
            launcher.kill()
            launcher.wait()


@test
def dev_runs_an_agent_and_its_edits():
    folder = project() / "dev"
    folder.mkdir()
    if subprocess.run(["npx", "aetheris", "dev", "--help"], cwd=folder, env=environment(), capture_output=True).returncode:
        raise Skip("the program has no command dev")
    (folder / "greet.ts").write_text(GREET)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    log = open(folder / "log.txt", "w")
    process = subprocess.Popen(["node_modules/.bin/aetheris", "dev", "dev/greet.ts", "--listen", address], cwd=project(),
                               env=environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    try:
        assert until(lambda: result_of(address)) == "Hello, Ada!"
        (folder / "greet.ts").write_text(GREET.replace("Hello", "Good morning"))
        until(lambda: result_of(address) == "Good morning, Ada!")
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(timeout=PATIENCE)
    assert code == 0, (folder / "log.txt").read_text()


# What a person sees before the next command.
WAITS = """
until_ok() { for i in $(seq 300); do if "$@"; then return 0; fi; sleep 0.2; done; echo "not in time: $*"; return 1; }
is_known() { curl -s "$URL/api/agents" | grep -q '"name":"refund"'; }
is() { [ "$(curl -s "$URL/api/jobs/refund-43" | jq -r .status)" = "$1" ]; }
"""


@test
def the_quickstart_of_the_readme_runs_as_written():
    project()  # builds the packages
    text = (npm_packages.SDK / "README.md").read_text().split("## Quickstart")[1].split("\n## ")[0]
    name, code = re.search(r"```ts\n// (\S+)\n(.*?)```", text, re.S).groups()
    commands = re.findall(r"^    \$ (.*(?:\n        .*)*)", text, re.M)
    waits = iter(["is_known", "is waiting", "is_known", "is completed"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    folder = pathlib.Path(tempfile.mkdtemp(prefix="aetheris-quickstart-"))
    (folder / name).write_text(code)
    lines = ["set -euo pipefail -m", f"URL=http://127.0.0.1:{port}", WAITS]
    for line in commands:
        line = line.replace("ROOT", str(npm_packages.ROOT)).replace("7070", port)
        line = line.replace("npm install", "npm install --offline --no-audit --no-fund")
        line = line.replace("aetheris dev", f"aetheris dev --listen 127.0.0.1:{port}")
        lines.append(re.sub(r"&$", f">>{folder}/background.txt 2>\\&1 &", line))
        if re.search(r"-d '\{|^npx aetheris (dev|approve)", line):
            lines.append(f"until_ok {next(waits)}")
    (folder / "quickstart.sh").write_text("\n".join(lines) + "\n")
    shell = subprocess.Popen(["bash", "quickstart.sh"], cwd=folder, env={**environment(), "no_proxy": "*"}, text=True,
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        out, _ = shell.communicate(timeout=5 * PATIENCE)
        background = (folder / "background.txt").read_text()
        assert shell.returncode == 0, (out, background)
        assert "Refund 250 for 43?" in out and "approved" in out and 'result {"refund":"re_43"}' in out, (out, background)
        payments = (folder / "payments.txt").read_text().splitlines()
        assert len(payments) == 1 and payments[0].endswith(" 250") and payments[0] in out, (payments, out)
    finally:
        stop_below(folder)
        shutil.rmtree(folder, ignore_errors=True)


def stop_below(folder):
    """Ends the processes that work in this folder."""
    for process in pathlib.Path("/proc").iterdir():
        try:
            if process.name.isdigit() and pathlib.Path(os.readlink(process / "cwd")) == folder:
                os.kill(int(process.name), signal.SIGTERM)
        except OSError:
            pass  # it has ended, or is another user's


if __name__ == "__main__":
    try:
        code = run_tests("npm packages", TESTS, " ".join(sys.argv[1:]))
    finally:
        if project.cache_info().currsize:
            shutil.rmtree(project(), ignore_errors=True)
    sys.exit(code)
