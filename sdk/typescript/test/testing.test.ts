// aetheris/testing with the real program: AETHERIS_BIN names it; without it these tests are skipped.
import { after, before, describe, test } from "node:test";
import assert from "node:assert/strict";
import { existsSync, writeFileSync, mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { agent, AetherisError, Failure, InvalidInput, NotDone, tool, type Json } from "../src/index.ts";
import * as testing from "../src/testing.ts";

const program = process.env["AETHERIS_BIN"];
const skip = program !== undefined && existsSync(program) ? false : "AETHERIS_BIN does not name the program";

const payBack = tool("pay_back", { effect: "at_most_once", timeout: "10s" }, ({ amount }: { amount: number }) => ({
  id: `re_${amount}`,
}));
const refund = agent("refund", { uses: ["get_order"] }, async (ctx, input: { order: string }) => {
  const order = await ctx.call<{ total: number }>("get_order", { id: input.order });
  if (order.total > 20) await ctx.approval(`Refund ${order.total}?`, { wait_key: "approve", expires: "2d" });
  const paid = await ctx.call(payBack, { amount: order.total });
  await ctx.sleep("3d");
  await ctx.run("mail", "idempotent", { to: "ada" }, () => null);
  return { refund: paid.id };
});
const sleeps = agent("sleeps", {}, async (ctx, input: { times: number }) => {
  const begun = ctx.now();
  for (let i = 0; i < input.times; i++) await ctx.sleep("1d");
  return { days: Math.round((ctx.now().getTime() - begun.getTime()) / 86_400_000) };
});
const signalled = agent("signalled", {}, async (ctx) => {
  const got = await ctx.wait({ type: "signal", wait_key: "go", expires: "1d", on_expire: "continue" });
  return { got: got ?? null };
});
const fails = agent("fails", {}, async (_ctx, input: { how: string }) => {
  if (input.how === "failure") throw new Failure("no_money", "the account is empty");
  throw new TypeError("a bug");
});
const steps = agent("steps", {}, async (ctx, input: { n: number }) => {
  const done: Json[] = [];
  for (let i = 0; i < input.n; i++) done.push(await ctx.run("step", "idempotent", { i }, ({ i: it }) => it));
  await ctx.sleep("1h");
  return { done, random: typeof ctx.random(), uuid: ctx.uuid().length };
});
const once = agent("once", {}, async (ctx) => ctx.call(payBack, { amount: 1 }));
const agents = [refund, sleeps, signalled, fails, steps, once];

describe("a test of agents", { skip }, () => {
  let t: testing.Testing;
  before(async () => {
    t = await testing.start({
      agents,
      tools: { get_order: ({ id }: { id: string }) => ({ total: Number(id) }), pay_back: payBack },
    });
  });
  after(() => t.close());

  test("a job waits for an approval, then sleeps, then ends", async () => {
    const job = t.job(refund, { order: "29" });
    await t.until(job, "waiting");
    assert.equal(t.calls("pay_back").length, 0);
    await t.approve(job);
    const began = await t.now();
    assert.deepEqual(await job.result(), { refund: "re_29" });
    assert.ok((await t.now()).getTime() - began.getTime() >= 3 * 86_400_000);
    const [paid] = t.calls("pay_back");
    assert.deepEqual([paid?.arguments, paid?.result, paid?.effect, paid?.try], [
      { amount: 29 },
      { id: "re_29" },
      "at_most_once",
      1,
    ]);
    assert.match(paid?.key ?? "", /^aetheris:refund-/);
    assert.equal(t.calls("mail").length, 1, "a function of ctx.run, by its position");
    assert.ok((await job.events()).length > 10);
  });

  test("a rejection, and an approval that expires", async () => {
    const rejected = t.job("refund", { order: "30" });
    await t.reject(rejected, { note: "no" });
    await assert.rejects(rejected.result(), (error: AetherisError) => error.code === "rejected");
    const expired = t.job("refund", { order: "31" }, { id: "expired" });
    await t.until(expired, "waiting");
    await t.skip("2d");
    await t.until(expired, "failed");
    assert.match(JSON.stringify(await expired.view()), /wait_expired/);
  });

  test("the time of a job is that of the clock", async () => {
    const began = Date.now();
    assert.deepEqual(await t.job(sleeps, { times: 20 }).result(), { days: 20 });
    assert.ok(Date.now() - began < 20_000);
  });

  test("skip lets all happen that is due meanwhile", async () => {
    const job = t.job(sleeps, { times: 5 });
    await t.until(job, "waiting");
    await t.skip("3d");
    assert.equal(await job.status(), "waiting");
    await t.skip("3d");
    await t.until(job, "completed");
  });

  test("signals, before a wait and not at all", async () => {
    const job = t.job(signalled);
    await t.signal(job, "go", { n: 1 });
    assert.deepEqual(await job.result(), { got: { n: 1 } });
    const other = t.job(signalled);
    assert.equal(((await other.result()) as { got: Json }).got, null, "its expiry is due");
  });

  test("a result that does not come is explained", async () => {
    await assert.rejects(
      t.job(fails, { how: "failure" }).result(),
      (error: Failure) => error instanceof Failure && error.code === "no_money",
    );
    await assert.rejects(
      t.job(fails, { how: "bug" }).result(),
      (error: AetherisError) => error.code === "routine_failed" && /a bug/.test(error.message),
    );
    await assert.rejects(t.job("nobody").result(), /nobody/);
    await assert.rejects(t.until(t.job(once), "parked"), /did not become parked/);
    await assert.rejects(t.approve(t.job(once)), /no open request/);
  });

  test("a job that waits for somebody does not wait for ever", async () => {
    const asks = await testing.start({
      agents: [agent("asks", {}, (ctx) => ctx.wait({ type: "signal", wait_key: "go" }))],
    });
    try {
      await assert.rejects(asks.job("asks").result(), (error: AetherisError) => error.code === "waiting");
    } finally {
      await asks.close();
    }
  });

  test("the job ends as without crashes wherever the worker ends", async () => {
    const report = await testing.crashEverywhere(() => t.job(steps, { n: 3 }));
    assert.ok(report.crashes >= 8, JSON.stringify(report));
    assert.equal(report.in_doubt, 0);
    const keys = t.calls("step").filter(({ job }) => job === "steps-1").map(({ key }) => key);
    assert.equal(new Set(keys).size, keys.length);
  });

  test("an at_most_once function is not called again", async () => {
    const report = await testing.crashEverywhere(() => t.job(once));
    assert.ok(report.crashes >= 2 && report.in_doubt >= 1, JSON.stringify(report));
  });

  test("steps and their results, and a failure of a function that is tried again", async () => {
    let tries = 0;
    const flaky = tool("flaky", { effect: "read", retry: { max_attempts: 3, retry_on: ["busy"], initial_backoff: "1h", max_backoff: "2h" } }, () => {
      if (++tries < 3) throw new NotDone("busy", "later", { retryable: true });
      return tries;
    });
    const own = await testing.start({ agents: [agent("tries", {}, (ctx) => ctx.call(flaky, {}))], tools: [flaky] });
    try {
      const began = await own.now();
      assert.equal(await own.job("tries").result(), 3);
      assert.deepEqual(own.calls("flaky").map(({ error, try: one }) => [one, error?.code]), [
        [1, "busy"],
        [2, "busy"],
        [3, undefined],
      ]);
      assert.ok((await own.now()).getTime() - began.getTime() > 60_000);
    } finally {
      await own.close();
    }
  });
});

describe("crashEverywhere", { skip }, () => {
  test("finds code whose result depends on the run", async () => {
    let runs = 0;
    const t = await testing.start({
      agents: [
        agent("drifts", {}, async (ctx) => {
          const at = ++runs; // not recorded
          await ctx.run("one", "read", () => 1);
          return at;
        }),
      ],
    });
    try {
      await assert.rejects(
        testing.crashEverywhere(() => t.job("drifts")),
        (error: AetherisError) => error.code === "crash_changed_result",
      );
    } finally {
      await t.close();
    }
  });
});

describe("start", { skip }, () => {
  test("refuses what it cannot use", async () => {
    await assert.rejects(testing.start({ agents: [once], tools: { other: payBack } }), InvalidInput);
    await assert.rejects(testing.start({ agents: [once], program: "/bin/false" }), /ended with 1/);
    await assert.rejects(testing.start({ agents: [once], program: "/nowhere" }), /cannot be started/);
    await assert.rejects(
      testing.start({ agents: [agent("uses", { uses: ["missing"] }, () => null)] }),
      (error: InvalidInput) => /missing/.test(error.message),
    );
  });

  test("uses an agents file", async () => {
    const path = join(mkdtempSync(join(tmpdir(), "aetheris-test-")), "agents.yaml");
    writeFileSync(path, "aetheris: 1\ntools: { price: { effect: read, command: [echo, '7'] } }\n");
    const t = await testing.start({
      agents: [agent("asks", { uses: ["price"] }, (ctx) => ctx.call("price", {}))],
      agents_file: path,
    });
    try {
      assert.equal(String(await t.job("asks").result()).trim(), "7");
      await delay(0);
    } finally {
      await t.close();
    }
  });
});
