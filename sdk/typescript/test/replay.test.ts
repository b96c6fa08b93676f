// What a routine does with its record, and with mistakes of its author.
import { describe, test } from "node:test";
import assert from "node:assert/strict";
import { agent, current, Failure, InvalidInput, tool, type Ctx } from "../src/index.ts";
import { canonical, toJson } from "../src/json.ts";
import { Positions } from "../src/positions.ts";
import { positions, until } from "./support/checks.ts";
import { runJob, TestJob } from "./support/harness.ts";

describe("mistakes", () => {
  const circular: Record<string, unknown> = {};
  circular["self"] = circular;
  for (const [what, value, message] of [
    ["NaN", NaN, /args\.x is NaN|\.x is NaN/],
    ["a BigInt", 1n, /bigint/],
    ["a cycle", circular, /contains itself/],
    ["an unsafe integer", 2 ** 53, /beyond 2\^53-1/],
    ["half of a surrogate pair", "\ud800", /surrogate/],
    ["a Map", new Map(), /Map/],
    ["a function", () => 1, /function/],
    ["a symbol", Symbol("x"), /symbol/],
    ["a promise", Promise.resolve(1), /await it/],
  ] as const) {
    test(`${what} in arguments is input_invalid at that line, and nothing is requested`, async () => {
      const job = await runJob(async (ctx: Ctx) => {
        try {
          ctx.call("x", { x: value as never });
        } catch (error) {
          assert.ok(error instanceof InvalidInput);
          assert.equal(error.code, "input_invalid");
          assert.match(error.message, message);
          assert.match(String(error.stack), /replay\.test\.ts/);
          return "thrown";
        }
        return "made";
      });
      assert.deepEqual([job.result, positions(job)], ["thrown", []]);
    });
  }

  test("1e300 is JSON; undefined vanishes, a Date becomes a text, -0 is 0", () => {
    assert.equal(
      canonical(toJson({ b: [undefined, 1e300, -0], a: undefined, c: new Date(0) }, "x")),
      '{"b":[null,1e+300,0],"c":"1970-01-01T00:00:00.000Z"}',
    );
    assert.equal(canonical({ b: 1, a: { "\u20ac": 1, "\r": 2 } }), '{"a":{"\\r":2,"€":1},"b":1}');
  });

  test("names, keys, effects, durations and channels are checked", async () => {
    const mistakes: ((ctx: Ctx) => unknown)[] = [
      (ctx) => ctx.run("", "read", () => 1),
      (ctx) => ctx.run("a b", "read", () => 1),
      (ctx) => ctx.run("a/b", "read", () => 1),
      (ctx) => ctx.run("a", "write" as never, () => 1),
      (ctx) => ctx.run("a", "read", {} as never),
      (ctx) => ctx.call("a", [] as never),
      (ctx) => ctx.run("a", "read", () => 1, { key: "#1" }),
      (ctx) => ctx.sleep("soon"),
      (ctx) => ctx.until("never"),
      (ctx) => ctx.receive(""),
      (ctx) => ctx.wait({ type: "timer" as never }),
      (ctx) => ctx.emit("a b", 1),
      (ctx) => ctx.patched(""),
      (ctx) => ctx.emit("a", "x".repeat(300_000)),
      (ctx) => ctx.map("m", [1], () => 1, { parallel: 0 }),
      (ctx) => ctx.race("r", {}),
      (ctx) => ctx.race("r", { "a/b": () => 1 }),
      (ctx) => [ctx.run("k", "read", () => 1, { key: "k" }), ctx.run("k", "read", () => 1, { key: "k" })],
      (ctx) => [ctx.scope("f", () => 1, { fold: true }), ctx.scope("f", () => 1, { fold: true })],
    ];
    const job = await runJob((ctx: Ctx) => {
      for (const mistake of mistakes) assert.throws(() => mistake(ctx), InvalidInput, mistake.toString());
    });
    assert.equal(job.engine.end?.exception, undefined, JSON.stringify(job.engine.end));
    assert.throws(() => agent("", {}, async () => 1), InvalidInput);
    for (const name of ["run:x", "a.b", "1a", "x".repeat(65)]) {
      assert.throws(() => tool(name, {}, () => 1), { code: "input_invalid", message: /is not a name of a tool: it has/ });
      assert.throws(() => agent(name, {}, async () => 1), InvalidInput);
    }
  });

  test("an exception parks the job with its stack; so does a result that is not JSON", async () => {
    const thrown = await runJob(() => {
      throw new TypeError("x is not a function");
    });
    const { name, message, stack } = thrown.engine.end?.exception ?? {};
    assert.deepEqual([name, message], ["TypeError", "x is not a function"]);
    assert.match(String(stack), /replay\.test\.ts/);
    assert.match(
      String(((await runJob(() => NaN)).result as { exception: string }).exception),
      /result of the agent "agent" is NaN/,
    );
  });

  test("a Failure fails the job", async () => {
    const job = await runJob(() => {
      throw new Failure("out_of_stock", "none left");
    });
    assert.deepEqual(job.engine.end, { failure: { code: "out_of_stock", message: "none left" } });
  });

  test("ctx in a function ends the routine", async () => {
    const job = await runJob((ctx: Ctx) => ctx.run("a", "read", () => ctx.run("b", "read", () => 1)));
    assert.match(String((job.result as { exception: string }).exception), /inside of a function/);
  });

  test("positions are limited, and counts are by name, key and content", () => {
    const made = new Positions();
    assert.deepEqual(
      [made.next("s", "a", { content: "00ff" }), made.next("s", "a", { content: "00ff" }), made.next("s", "a")],
      ["s/a~00ff", "s/a~00ff#2", "s/a"],
    );
    assert.throws(() => made.next("x".repeat(500), "name-name-name"), InvalidInput);
    assert.throws(() => made.next(Array(17).fill("s").join("/"), "a"), InvalidInput);
  });
});

describe("replay", () => {
  test("a changed argument, a removed request and an early end are found", async () => {
    let version = 1;
    const body = async (ctx: Ctx): Promise<unknown> => {
      if (version === 3) return "end";
      if (version !== 2) await ctx.call("look", { amount: version === 4 ? 40.5 : 40 });
      await ctx.receive("c");
      return null;
    };
    const job = new TestJob(body, { other_work_ms: 30 });
    await job.run();
    job.engine.succeed("look", 1);
    await job.run();
    const findings = [];
    for (version of [2, 3, 4]) {
      job.restart();
      await until(job, () => job.host.diverged !== undefined);
      const { finding, position, where } = job.host.diverged ?? {};
      findings.push([finding, position, where === undefined]);
    }
    assert.deepEqual(findings, [
      ["missing", "look", true],
      ["ended", "look", true],
      ["arguments", "look", false],
    ]);
    version = 1;
    job.restart();
    await job.run();
    assert.equal(job.host.diverged, undefined);
  });

  test("other work between requests is awaited: an import, a file, a timer", async () => {
    const job = await runJob(
      async (ctx: Ctx) => {
        await new Promise((resolve) => setTimeout(resolve, 20));
        const one = await ctx.run("one", "read", () => 1);
        await import("node:fs/promises").then((fs) => fs.readFile(new URL(import.meta.url)));
        return [one, await ctx.call("two")];
      },
      () => {},
      { other_work_ms: 10_000 },
    );
    assert.equal(job.engine.settled, false, "the job is not stalled");
    await until(job, () => job.engine.log.has("two"));
    job.engine.succeed("two", 2);
    await job.run();
    assert.deepEqual(job.result, [1, 2]);
    job.engine.end = undefined;
    job.restart();
    await until(job, () => job.engine.end !== undefined);
    assert.deepEqual(job.result, [1, 2]);
  });

  test("with an erased blind arguments are not compared", async () => {
    let amount = 1;
    const job = new TestJob((ctx: Ctx) => ctx.call("x", { amount: amount++ }), { blind_erased: true });
    await job.run();
    job.restart();
    await job.run();
    job.engine.succeed("x", "ok");
    await job.run();
    assert.equal(job.result, "ok");
  });

  test("a request that was recorded without its call is requested again", async () => {
    const job = new TestJob((ctx: Ctx) => ctx.call("x", { a: 1 }));
    await job.run();
    delete job.engine.at("x").arguments_hash;
    const start = job.engine.start();
    job.routine.drop("test");
    job.host.sent.length = 0;
    job.begin(start);
    await job.host.settled();
    assert.deepEqual(
      job.host.sent[0]?.requests?.map(({ position }) => position),
      ["x"],
    );
    job.routine.drop("test");
  });

  test("replaying is true until the frontier; log is silent, signal is aborted when the routine is dropped", async () => {
    const seen: boolean[] = [];
    let signal: AbortSignal | undefined;
    const job = new TestJob(async (ctx: Ctx) => {
      signal = ctx.signal;
      seen.push(ctx.replaying);
      ctx.log.info("begun", { n: 1 });
      await ctx.receive("a");
      seen.push(ctx.replaying);
      await ctx.receive("b");
    });
    await job.run();
    assert.deepEqual(job.host.logged, ['info begun {"n":1}']);
    job.engine.succeed("receive", null);
    await job.run();
    const first = signal;
    job.restart();
    await job.run();
    assert.deepEqual(
      [seen, job.host.logged, first?.aborted, signal?.aborted],
      [[false, false, true, true], [], true, false],
    );
    job.routine.drop("test");
  });

  test("a dropped routine goes no further, whatever its code awaits", async () => {
    const seen: string[] = [];
    const job = new TestJob(async (ctx: Ctx) => {
      try {
        await ctx.receive("a");
      } finally {
        seen.push("finally");
      }
    });
    await job.run();
    job.routine.drop("suspended");
    job.routine.deliver([{ position: "receive", result: 1 }]);
    await job.host.settled();
    assert.deepEqual(seen, []);
  });

  test("current() is the ctx of the scope, and undefined in a function", async () => {
    assert.equal(current(), undefined);
    const job = await runJob(async (ctx: Ctx) => {
      const isInFunction = await ctx.run("f", "read", () => current() === undefined);
      const inner = await ctx.scope("s", async (at) => current() === at);
      return [current() === ctx, isInFunction, inner];
    });
    assert.deepEqual(job.result, [true, true, true]);
  });
});
