// Warnings about requests that are not awaited. The methods of ctx are wrapped before anything else uses them.
import { before, describe, test } from "node:test";
import assert from "node:assert/strict";
import { agent, type Ctx } from "../src/index.ts";
import { warnAboutUnawaited } from "../src/unawaited.ts";
import { macrotask, TestJob } from "./support/harness.ts";

const LINE = /^\S*unawaited\.test\.ts:(\d+): /;
const LOST = " was not awaited before the agent returned; its outcome is lost. Add await";
const UNSENT = " was not sent before the agent returned, and is not performed. Await the code that calls it";

describe("a request that is not awaited", () => {
  const warnings: string[] = [];
  before(() => warnAboutUnawaited((warning) => warnings.push(warning)));

  // The warnings of an agent; all of its calls succeed, its waits stay open.
  async function warned(fn: (ctx: Ctx) => unknown, result: unknown = 1): Promise<string[]> {
    const job = await new TestJob(fn).run();
    await macrotask();
    assert.deepEqual(job.result, result);
    return warnings.splice(0).map((line) => line.replace(LINE, ""));
  }
  const one = (): number => 1;

  test("is named with its line, once", async () => {
    const forgets = async (ctx: Ctx) => {
      await ctx.run("first", "read", one);
      void ctx.run("send", "idempotent", one);
      return 1;
    };
    const line = /unawaited\.test\.ts:(\d+)/.exec(new Error().stack as string)?.[1];
    const job = await new TestJob(forgets).run();
    await macrotask();
    assert.equal(job.result, 1);
    assert.deepEqual(warnings.map((text) => text.replace(/^.*\//, "")), [`unawaited.test.ts:${Number(line) - 3}: ctx.run("send")${LOST}`]);
    warnings.length = 0;
    assert.deepEqual(await warned(forgets), []);
  });

  test("is named whatever it requests", async () => {
    const other = agent("other", {}, () => 1);
    const found = await warned((ctx: Ctx) => {
      void ctx.call("pay", {});
      void ctx.start(other, {});
      void ctx.start("apart", {}, { detached: true });
      void ctx.send("job", { channel: "in" }, 1);
      void ctx.model("main").text("Hello");
      void ctx.fetch("http://127.0.0.1:1/");
      void ctx.sleep("1s");
      void ctx.approval("Pay?");
      void ctx.map("all", [1], (c) => c.run("inner", "read", one));
      return 1;
    });
    const what = ['call("pay")', 'start("other")', 'start("apart")', "send()", 'model("main").text()', "fetch()", "sleep()", "approval()", 'map("all")'];
    assert.deepEqual(found, what.map((text) => `ctx.${text}${LOST}`));
  });

  test("is named if code that nothing awaits made it just before", async () => {
    const found = await warned(async (ctx: Ctx) => {
      [1].forEach(async () => {
        await ctx.run("each", "read", one);
      });
      return 1;
    });
    assert.deepEqual(found, [`ctx.run("each")${UNSENT}`]);
  });

  test("is not named if it was awaited, cancelled, lost a race, was sent to a detached job, or has its outcome", async () => {
    const found = await warned(async (ctx: Ctx) => {
      void ctx.run("delivered", "read", one);
      const apart = ctx.start("apart", {}, { detached: true });
      assert.equal(apart.position, "apart");
      const wait = ctx.wait({ type: "signal" });
      await ctx.race("first", { wins: (c) => c.run("wins", "read", one), loses: (c) => c.sleep("1h") });
      await Promise.race([wait, ctx.run("plain", "read", one)]);
      await Promise.all([ctx.run("a", "read", one), ctx.map("m", [1, 2], (c) => c.run("b", "read", one))]);
      await ctx.scope("s", (c) => c.run("c", "read", one), { fold: true });
      await ctx.run("then", "read", one).then((value) => value);
      const sleep = ctx.sleep("1h");
      sleep.cancel();
      ctx.wait({ type: "human" }).cancel("not needed");
      return ctx.run("last", "read", one);
    });
    assert.deepEqual(found, []);
  });

  test("is not named in code that fails", async () => {
    const found = await warned((ctx: Ctx) => {
      void ctx.run("send", "read", one);
      throw new TypeError("broken");
    }, { exception: "broken" });
    assert.deepEqual(found, []);
  });
});
