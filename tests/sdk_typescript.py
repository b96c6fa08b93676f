#!/usr/bin/env python3
"""The TypeScript SDK: its own tests, and jobs of a server whose worker and server are killed.

Prints `ok NAME` or `not ok NAME` for each test. tests/oracles provides Node; the packages that only the checks of the SDK
need are installed below build/ from its lock file.
  sdk_typescript.py [WORDS]   only tests whose name contains WORDS
"""
import base64
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "scripts"))
import npm_packages  # noqa: E402
import oracles  # noqa: E402
from shared.code_world import CodeWorld, ends_in_order, kill_at_any_time, waits_for_approval_without_a_worker  # noqa: E402
from shared.home import run_tests, until  # noqa: E402
from shared.program import BIN, ROOT  # noqa: E402
from shared.server import Scripted, test_server  # noqa: E402

SEED = int(os.environ.get("AETHERIS_SEED") or random.SystemRandom().randrange(1 << 31))
SECRET = "correct/horse+battery"
TESTS = []


def test(function):
    TESTS.append(function)
    return function


def passed(folder, tests, **env):
    """Runs tests of the SDK; how many passed."""
    done = subprocess.run([folder / "node_modules/.bin/node", "--test", "--test-reporter=tap", *tests], cwd=folder,
                          capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1", **env}, timeout=1200)
    count = re.search(r"^# pass (\d+)$", done.stdout, re.M)
    assert done.returncode == 0 and count, done.stdout[-6000:] + done.stderr[-2000:]
    return int(count[1])


def typed(folder, *words):
    """Checks types."""
    done = subprocess.run([folder / "node_modules/.bin/tsc", *words], cwd=folder, capture_output=True, text=True,
                          env=npm_packages.environment(folder), timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


@test
def its_types_hold_and_its_own_tests_pass():
    folder = npm_packages.sdk()
    typed(folder, "-p", "tsconfig.json")
    assert passed(folder, sorted(map(str, (folder / "test").glob("*.test.ts")))) > 100


@test
def its_api_page_is_that_of_its_declarations():
    done = subprocess.run([ROOT / "scripts/sdk_api.py"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


@test
def clients_and_frameworks_run_in_an_agent():
    """openai, @anthropic-ai/sdk, ai, @langchain/langgraph, @openai/agents: the real packages, a local server."""
    folder = npm_packages.sdk()
    modules = folder / "test/packages/node_modules"
    if not modules.is_symlink():
        source = npm_packages.SDK / "test/packages"
        modules.symlink_to(npm_packages.installed(source, "sdk_typescript_packages") / "node_modules")
    assert passed(folder, [str(modules.parent / "packages.test.ts")], AETHERIS_BIN=str(BIN)) == 8
    # The example with OpenAI's client has the types that it states.
    example = modules.parent / "example"
    example.mkdir(exist_ok=True)
    shutil.copy(ROOT / "examples/code-refund/agent.ts", example)
    (example / "tsconfig.json").write_text(json.dumps({"extends": str(folder / "tsconfig.json"), "include": ["agent.ts"],
                                                      "compilerOptions": {"paths": {"aetheris": [str(folder / "src/index.ts")]}}}))
    typed(folder, "-p", str(example))


@test
def the_code_of_the_docs_has_its_types():
    """All of TypeScript that imports the SDK, with names in place of what is the reader's."""
    own = "declare const bank: any, sendMail: any, sendTheMail: any; type Order = any;\n"
    sdk = npm_packages.sdk()
    names = {"aetheris": "index", "aetheris/testing": "testing", "aetheris/ai-sdk": "wrap/ai_sdk",
             "aetheris/langgraph": "wrap/langgraph", "aetheris/openai-agents": "wrap/openai_agents"}
    options = {"noUnusedLocals": False, "typeRoots": [str(sdk / "node_modules/@types")],
               "paths": {name: [str(sdk / f"src/{file}.ts")] for name, file in names.items()}}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for page in [*sorted((ROOT / "docs").glob("*.md")), npm_packages.SDK / "README.md"]:
            text = page.read_text()
            for block in re.finditer(r"^```ts\n(.*?)^```$", text, re.M | re.S):
                if re.search(r'from "aetheris', block[1]):
                    line = text[:block.start()].count("\n") + 1
                    (folder / f"{page.stem}_{line}.ts").write_text(own + block[1])
        assert len(list(folder.glob("*.ts"))) > 5, list(folder.glob("*.ts"))
        (folder / "package.json").write_text('{"type": "module"}')
        (folder / "tsconfig.json").write_text(json.dumps({"extends": str(sdk / "tsconfig.json"), "compilerOptions": options,
                                                          "include": ["*.ts"]}))
        typed(sdk, "-p", str(folder / "tsconfig.json"))


AGENT = """
import { appendFileSync, existsSync, readFileSync } from "node:fs";
import { agent, tool, Failure } from "SDK/src/index.ts";

const note = (file, text) => appendFileSync(file, text + "\\n");
const lines = (file) => (existsSync(file) ? readFileSync(file, "utf8").split("\\n").slice(0, -1) : []);

// No timeout ends before a lost worker is known to be lost: else the outcome of a call is unknown.
const retry = { max_attempts: 10, retry_on: ["timeout", "worker_lost"] };
export const getOrder = tool("get_order", { effect: "read", retry }, ({ order }) => {
  if (order === "99") throw new Failure("no_order", "there is no order 99");
  return { order, total: 29, items: ["a", "b", "c"] };
});
export const payBack = tool("pay_back", { effect: "idempotent", timeout: "60s", retry }, (args, call) => {
  note("calls.txt", "pay " + call.key);
  if (!lines("payments.txt").includes(call.key)) note("payments.txt", call.key);
  return { payment: call.key };
});

export const refund = agent("refund", {}, async (ctx, input) => {
  const order = await ctx.call(getOrder, { order: input.order });
  const started = ctx.now();
  // The loser is a wait or a call, which may be in flight.
  const pause = () => new Promise((resolve) => setTimeout(resolve, 15));
  await ctx.race("first", {
    check: (c) => c.run("check", "read", pause).catch(() => null),
    timeout: (c) => c.sleep("15ms"),
  });
  const packed = await ctx.map("item", order.items, async (c, item) =>
    c.run("pack", "idempotent", { item }, ({ item }, call) => {
      note("calls.txt", "pack " + call.key);
      return item + ctx.job.id.length;
    }));
  await ctx.sleep("20ms");
  const paid = await ctx.call(payBack, { order: input.order, amount: order.total });
  await ctx.run("mail", "at_most_once", { to: "ada@example.org" }, (args, call) => {
    note("mails.txt", call.key);
    return null;
  });
  if (ctx.now() < started) throw new Error("time went back");
  return { packed, paid: paid.payment.length > 0, id: ctx.uuid().length };
});

// A race whose losers are calls: one is in flight, one waits for room.
const slow = tool("slow", { effect: "idempotent", timeout: "60s" }, async (args, call) => {
  note("calls.txt", "slow " + call.key);
  while (!existsSync("go")) await new Promise((resolve) => setTimeout(resolve, 10));
  return "slow";
});
const never = tool("never", { effect: "read" }, () => note("calls.txt", "never") ?? null);
export const tools = [slow, never];
export const chosen = agent("chosen", { parallel: 1 }, async (ctx) => {
  const { won, value } = await ctx.race("first", {
    slow: (c) => c.call(slow, {}),
    never: (c) => c.call(never, {}),
    signal: (c) => c.wait({ type: "signal", wait_key: "go" }),
  });
  ctx.emit("chosen", won);
  return { won, value, after: await ctx.run("after", "read", () => 1) };
});

export const status = agent("status", {}, async (ctx, input) => (await ctx.fetch(input.url)).status);
export const ungranted = agent("ungranted", { uses: ["get_order"] }, (ctx) => ctx.call("echo", {}));
export const unstated = agent("unstated", {}, (ctx) => ctx.call("echo", {}));
export const mistaken = agent("mistaken", {}, () => null.total);

export const spills = agent("spills", {}, async (ctx) => {
  const key = process.env.SHOP_API_KEY;
  ctx.emit("note", { key });
  await ctx.run("say", "read", { key }, (args, call) => {
    note("spilled.txt", args.key + " " + call.secret("SHOP_API_KEY"));
    call.text("the key is " + key);
    return { key: Buffer.from(key).toString("base64") };
  });
  await ctx.wait({ type: "signal", wait_key: "go " + key, expires: "1s", on_expire: "continue" });
  throw new TypeError("the key is " + key);
});

export const waits = agent("waits", {}, async (ctx, input) => {
  const signal = await ctx.wait({ type: "signal", wait_key: "paid/" + input.order });
  return [signal, await ctx.receive("answers"), ctx.job.labels];
});

export const mails = agent("mails", {}, async (ctx) => {
  await ctx.run("mail", "at_most_once", async (call) => {
    note("mails.txt", call.key);
    while (!existsSync("go")) await new Promise((resolve) => setTimeout(resolve, 10));
    return null;
  });
  await ctx.sleep("50ms");
  return await ctx.run("where", "read", () => process.pid);
});

export const greet = agent("greet", {}, async (ctx, input) => {
  const answer = await ctx.approval("Greet " + input.name + "?", { key: "greet", expires: "1h" });
  return { by: answer.by !== undefined };
});
"""


class World(CodeWorld):
    """With a worker of TypeScript."""

    def __init__(self):
        sdk = npm_packages.sdk()
        super().__init__([oracles.node(), sdk / "src/worker_main.ts", "agent.ts"],
                         {"agent.ts": AGENT.replace("SDK", str(sdk))}, {"SHOP_API_KEY": SECRET})


@test
def a_job_runs_functions_of_a_worker_and_verifies():
    with World() as world:
        world.start_both()
        world.create("refund", {"order": "43"}, "refund-43")
        job = world.reaches("refund-43", "completed")
        assert job["result"] == {"id": 36, "packed": ["a9", "b9", "c9"], "paid": True}, (job, world.output())
        assert len(world.lines("payments.txt")) == 1 and len(world.lines("mails.txt")) == 1
        world.verify("refund-43")
        world.create("refund", {"order": "99"}, "refund-99")
        world.reaches("refund-99", "failed")
        assert world.job("refund-99")["error"]["code"] == "no_order", world.job("refund-99")


@test
def an_approval_waits_without_a_worker():
    with World() as world:
        assert waits_for_approval_without_a_worker(world)["status"] == "completed", world.output()


CLIENT = """
import assert from "node:assert/strict";
import { AetherisError, Client, ConnectionFailed, Failure, InvalidInput } from "SDK/src/index.ts";
import { greet, waits } from "./agent.ts";

const { AETHERIS_SOCKET: socket, SERVER_URL: url } = process.env;
for (const client of [new Client({ url }), new Client({ socket }), new Client()]) {
  const key = Math.random().toString(36).slice(2);
  const options = { idempotency_key: key, labels: { shop: "north" } };
  const until = async (status) => {
    const begun = Date.now();
    let job;
    do {
      assert.ok(Date.now() - begun < 60_000, JSON.stringify(job));
      job = await client.create("waits", { order: key }, { ...options, wait: "1s" });
    } while (job.status !== status);
    return job;
  };
  const job = await until("waiting");
  await client.signal(job.id, "paid/" + key, { amount: 29 }, { message_id: "m1" });
  await client.message(job.id, "answers", undefined);
  assert.deepEqual(await client.run(waits, { order: key }, options), [{ amount: 29 }, null, { shop: "north" }]);
  assert.deepEqual((await client.job(job.id)).result, [{ amount: 29 }, null, { shop: "north" }]);

  const other = await client.create(greet, { name: "Ada" }, { id: "greet-" + key });
  let asked = [];
  while (asked.length === 0) asked = await client.requests(other.id);
  assert.match(JSON.stringify(asked), /Greet Ada\\?/);
  await client.reject(asked[0].id, { note: "no" });
  await assert.rejects(client.run("greet", { name: "Ada" }, { id: other.id }), { code: "rejected" });

  const approved = await client.create(greet, { name: "Bob" });
  for (asked = []; asked.length === 0;) asked = await client.requests(approved.id);
  await client.approve(asked[0].id, { note: "ok" });

  const open = await client.create("waits", { order: "-" });
  await client.pause(open.id, { reason: "a test" });
  await client.resume(open.id);
  await assert.rejects(client.run("waits", { order: "-" }, { idempotency_key: key + 2, timeout: "300ms" }),
    (error) => error instanceof AetherisError && error.code === "timeout" && /waiting|queued|running/.test(error.message));
  await client.cancel(open.id, { reason: "not needed" });
  await assert.rejects(client.pause(open.id), { code: "job_terminal" });
  await assert.rejects(client.run("mistaken", {}, { id: key + 3, timeout: "1s" }), { code: "timeout" }); // it is parked
  await assert.rejects(client.run("refund", { order: "99" }), (error) => error instanceof Failure && error.code === "no_order");
  await assert.rejects(client.job("a/../b?c"), { code: "not_found" });
  await assert.rejects(client.create("nobody", {}), { code: "not_found" });
  await assert.rejects(client.create("waits", { order: NaN }), InvalidInput);
}
await assert.rejects(new Client({ url: "http://127.0.0.1:1" }).job("a"), (error) => error instanceof ConnectionFailed
  && error.code === "unavailable" && error.message.startsWith("http://127.0.0.1:1: "));
assert.throws(() => new Client({ url: "127.0.0.1:1" }), { code: "usage" });
console.log("ok");
process.exit(0);
"""


@test
def a_client_creates_answers_and_ends_jobs():
    with World() as world:
        world.start_both()
        world.create("greet", {"name": "Ada"}, "greet-1")  # the agents are known
        (world.folder / "client.ts").write_text(CLIENT.replace("SDK", str(npm_packages.sdk())))
        done = subprocess.run([oracles.node(), "client.ts"], cwd=world.folder, capture_output=True, text=True, timeout=120,
                              env={**world.env, "SERVER_URL": f"http://{world.address}",
                                   "AETHERIS_SOCKET": str(world.folder / ".aetheris/aetheris.sock")})
        assert done.stdout == "ok\n", (done.stdout, done.stderr, world.output())


@test
def a_client_sends_its_key_and_gives_up_after_its_timeout():
    seen = []

    class Answers(Scripted):
        def do_GET(self):
            seen.append(self.headers["authorization"])
            if self.path.endswith("/slow"):
                return time.sleep(2.5)
            body = b"{}" if self.path.endswith("/fine") else b"no JSON"
            self.send_head(size=len(body))
            self.wfile.write(body)
    with test_server(Answers) as url:
        code = """
          const { Client } = await import(process.argv[1]);
          const client = new Client({ url: process.argv[2], api_key: "aek_x", timeout: "2s" });
          const codes = [];
          for (const id of ["fine", "text", "slow"])
            codes.push(await client.job(id).then(() => "ok", (error) => error.code + " " + /within 2000 ms/.test(error.message)));
          console.log(JSON.stringify(codes));
        """
        done = subprocess.run([oracles.node(), "--input-type=module", "-e", code, str(npm_packages.sdk() / "src/index.ts"),
                               url], capture_output=True, text=True, timeout=60)
    assert done.stdout and json.loads(done.stdout) == ["ok", "unavailable false", "unavailable true"], done
    assert seen == ["Bearer aek_x"] * 3, seen


@test
def calls_that_lost_a_race_are_withdrawn_or_awaited():
    with World() as world:
        world.start_both()
        world.create("chosen", {}, "chosen-1")
        until(lambda: world.lines("calls.txt"))
        code, out, error = world.command("signal", "chosen-1", "go", '"now"')
        assert code == 0, (out, error)

        def outcomes():
            events = world.events("chosen-1")
            positions = {event["payload"]["step_id"]: event["payload"]["position"] for event in events
                         if event["type"] == "node_started" and "position" in event["payload"]}
            return {positions[event["payload"]["step_id"]]: event["payload"].get("error", {}).get("code")
                    for event in events if event["type"] == "node_finished" and event["payload"]["step_id"] in positions}
        until(lambda: "first/never/never" in outcomes())
        assert outcomes() == {"first/signal/signal": None, "first/never/never": "cancelled"}, outcomes()
        assert world.job("chosen-1")["status"] == "running"  # an effect of `slow` must be known
        (world.folder / "go").touch()
        world.reaches("chosen-1", "completed")
        assert world.job("chosen-1")["result"] == {"after": 1, "value": "now", "won": "signal"}, world.output()
        assert outcomes()["first/slow/slow"] is None, outcomes()
        assert [line.split()[0] for line in world.lines("calls.txt")] == ["slow"], world.lines("calls.txt")
        world.verify("chosen-1")


@test
def a_read_by_http_is_tried_again_by_the_engine():
    statuses = [429, 503, 200]

    class Answers(Scripted):
        def do_GET(self):
            self.send_head(statuses.pop(0), size=0)
    with World() as world, test_server(Answers) as url:
        world.start_both()
        world.create("status", {"url": f"{url}/"}, "status-1")
        world.reaches("status-1", "completed")
        assert world.job("status-1")["result"] == 200 and statuses == [], (statuses, world.output())


@test
def a_policy_that_denies_http_denies_what_code_sends():
    """The rule that docs/agents-file.md shows."""
    rule, = re.findall(r"^  - (.* when: .* action: deny, .*)$", (ROOT / "docs/agents-file.md").read_text().split("## Code agents")[1], re.M)
    with World() as world:
        (world.folder / "policies.yaml").write_text(f"aetheris: 1\npolicies:\n  - {rule}\n")
        world.options = ["--policies", "policies.yaml"]
        world.start_both()
        world.create("status", {"url": f"http://{world.address}/api/health"}, "status-1")
        assert world.reaches("status-1", "failed", "completed")["error"]["code"] == "denied", (world.job("status-1"), world.output())
        world.create("refund", {"order": "43"}, "refund-43")  # its functions have no `url`
        world.reaches("refund-43", "completed")


@test
def the_worker_reports_mistakes_with_job_and_place():
    with World() as world:
        world.start_both()
        for agent in ("ungranted", "unstated", "mistaken"):
            world.create(agent, None, f"{agent}-1")
        world.reaches("ungranted-1", "failed")
        error = world.job("ungranted-1")["error"]
        assert error["code"] == "tool_not_granted" and "`uses`" in error["message"], error
        world.reaches("unstated-1", "parked")
        until(lambda: "job unstated-1 (agent unstated): the server refused a request" in world.output())
        assert "Add it to `uses` of the agent" in world.output(), world.output()
        world.reaches("mistaken-1", "parked")
        until(lambda: "job mistaken-1 (agent mistaken): an exception ended the code" in world.output())
        assert re.search(r"TypeError: .*'total'.*\n +at .*agent\.ts:\d+", world.output()), world.output()


@test
def a_secret_of_the_worker_is_not_in_the_store():
    with World() as world:
        world.start_both()
        world.create("spills", None, "spills-1")
        world.reaches("spills-1", "parked")
        assert world.lines("spilled.txt") == [f"{SECRET} {SECRET}"], world.lines("spilled.txt")
        code, out, error = world.command("events", "spills-1")
        assert code == 0 and out.count("[secret SHOP_API_KEY]") >= 5, (out, error)
        world.server.terminate()
        world.server.wait()
        forms = [SECRET.encode(), base64.b64encode(SECRET.encode())]
        files = [path for path in (world.folder / ".aetheris").rglob("*") if path.is_file()]
        assert any(b"spills-1" in path.read_bytes() for path in files), files
        assert not [path for path in files for form in forms if form in path.read_bytes()]


@test
def a_worker_that_ends_finishes_its_function_and_the_job_continues_elsewhere():
    with World() as world:
        world.start_both()
        ends_in_order(world, "mails", "mails-1")


@test
def killed_at_any_time_effects_happen_once():
    choice = random.Random(SEED)
    repeat = f"AETHERIS_SEED={SEED} tests/sdk_typescript.py killed"
    for victims in ("worker", "server", "both"):
        with World() as world:
            world.start_both()
            kill_at_any_time(world, lambda n: ("refund", {"order": f"order-{n}"}, f"refund-{n}"), victims, choice,
                             lambda result: result["paid"], repeat)


if __name__ == "__main__":
    sys.exit(run_tests("sdk typescript", TESTS, " ".join(sys.argv[1:])))
