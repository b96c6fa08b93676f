// Each primitive of ctx: what it requests, what it gives, how it fails; and that a new routine is given the same.
import { describe, test } from "node:test";
import assert from "node:assert/strict";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import {
  agent,
  current,
  Failure,
  InvalidInput,
  Rejected,
  ToolFailed,
  WaitExpired,
  tool,
  type Ctx,
  type Json,
} from "../src/index.ts";
import { blindedHash, canonical, toJson } from "../src/json.ts";
import { Positions } from "../src/positions.ts";
import { durationMs, RandomNumbers, timeValue } from "../src/values.ts";
import { runJob, TestJob } from "./support/harness.ts";

/** The job again, from its log: the same end, and nothing else is requested. */
async function replayed(job: TestJob): Promise<void> {
  const { result, engine } = job;
  const log = JSON.stringify(engine.record());
  engine.end = undefined;
  job.restart();
  await job.run();
  assert.deepEqual(job.result, result);
  assert.equal(JSON.stringify(engine.record()), log);
}

/** Runs the job until something outside of it has happened. */
async function until(job: TestJob, isDone: () => boolean): Promise<void> {
  for (const end = Date.now() + 10_000; !isDone() && Date.now() < end;) {
    await new Promise((resolve) => setTimeout(resolve, 5));
    await job.run();
  }
}

const positions = (job: TestJob): string[] => [...job.engine.log.keys()];

describe("calls", () => {
  test("run performs its function with the recorded arguments", async () => {
    const job = await runJob((ctx: Ctx) =>
      ctx.run("add", "read", { a: 1, b: 2 }, ({ a, b }, call) => ({ sum: a + b, key: call.key })),
    );
    assert.deepEqual(job.result, { sum: 3, key: "aetheris:job-1:add:0" });
    assert.deepEqual([job.engine.at("add").tool, job.engine.at("add").arguments], ["run:read", { a: 1, b: 2 }]);
    await replayed(job);
    assert.equal(job.engine.performed.length, 1, "the function is not performed again");
  });

  test("run without arguments", async () => {
    const job = await runJob((ctx: Ctx) => ctx.run("one", "idempotent", () => 1));
    assert.deepEqual([job.result, job.engine.at("one").arguments], [1, {}]);
  });

  test("call names a tool, or has one", async () => {
    const price = tool("price", { effect: "read" }, ({ id }: { id: string }) => id.length);
    const job = await runJob(
      async (ctx: Ctx) => [await ctx.call(price, { id: "abc" }), await ctx.call("other")],
      (one) => one.engine.succeed("price", 3),
    );
    job.engine.succeed("other", "x");
    await job.run();
    assert.deepEqual(job.result, [3, "x"]);
    assert.deepEqual(job.engine.at("price").arguments, { id: "abc" });
  });

  test("a call can be stricter than the policy of its tool", async () => {
    const job = new TestJob((ctx: Ctx) =>
      ctx.call("pay", { amount: 1 }, { timeout: "5s", retry: { max_attempts: 2 }, on_in_doubt: "park" }),
    );
    await job.run();
    assert.deepEqual(job.host.sent[0]?.requests?.[0]?.options, {
      timeout: "5s",
      retry: { max_attempts: 2 },
      on_in_doubt: "park",
    });
    job.routine.drop("test");
  });

  test("a model: generate, text and json", async () => {
    const job = new TestJob(async (ctx: Ctx) => {
      const model = ctx.model("main");
      return [
        await model.text("hi"),
        (await model.generate({ messages: [{ role: "user", content: "x" }] })).text,
        await model.json("n?", { type: "number" }),
      ];
    });
    for (const position of ["model:main", "model:main#2", "model:main#3"]) {
      await job.run();
      job.engine.succeed(position, { text: position, finish_reason: "stop", model: "m", usage: {}, json: 7 });
    }
    await job.run();
    assert.deepEqual(job.result, ["model:main", "model:main#2", 7]);
    const { kind, tool: name, arguments: args } = job.engine.at("model:main");
    assert.deepEqual([kind, name, args], ["llm", "model:main", { messages: [{ role: "user", content: "hi" }] }]);
    assert.deepEqual(job.engine.at("model:main#3").arguments?.["schema"], { type: "number" });
    await replayed(job);
  });

  test("a call that failed for good throws ToolFailed with its code, tool and position", async () => {
    const job = await runJob(
      async (ctx: Ctx) => {
        try {
          return await ctx.call("pay", { amount: 1 });
        } catch (error) {
          assert.ok(error instanceof ToolFailed);
          return [error.code, error.message, error.tool, error.position];
        }
      },
      (one) => one.engine.fail("pay", { code: "http_402", message: "no money" }),
    );
    assert.deepEqual(job.result, ["http_402", "no money", "pay", "pay"]);
    await replayed(job);
  });

  test("a failure that nothing catches is the job's, also as the cause of another error", async () => {
    const job = await runJob(
      async (ctx: Ctx) => {
        await ctx.call("pay").catch((error: unknown) => {
          throw new Error("wrapped", { cause: error });
        });
      },
      (one) => one.engine.fail("pay", { code: "http_402", message: "no" }),
    );
    assert.deepEqual(job.engine.end?.failure, { code: "http_402", message: "no" });
  });

  test("what a function returns is a copy, live as in a replay", async () => {
    const shared = { list: [1], at: new Date(0), nothing: undefined };
    const job = await runJob(async (ctx: Ctx) => {
      const result = (await ctx.run("make", "read", () => shared as never)) as Record<string, unknown>;
      shared.list.push(2);
      (result["list"] as number[]).push(3);
      return result;
    });
    assert.deepEqual(job.result, { list: [1, 3], at: "1970-01-01T00:00:00.000Z" });
    assert.deepEqual(job.engine.at("make").outcome?.result, { list: [1], at: "1970-01-01T00:00:00.000Z" });
  });

  test("arguments are taken when they are given", async () => {
    const job = await runJob(async (ctx: Ctx) => {
      const args = { list: [1] };
      const made = ctx.run("use", "read", args, ({ list }) => list.length);
      args.list.push(2);
      return made;
    });
    assert.equal(job.result, 1);
  });
});

describe("waits", () => {
  test("sleep, until, wait, receive", async () => {
    const job = new TestJob(async (ctx: Ctx) => {
      await ctx.sleep("5m");
      await ctx.until("2026-05-01T00:00:00Z");
      const signal = await ctx.wait<Json>({ type: "signal", wait_key: "order/1", expires: "1d" });
      return [signal, await ctx.receive("mail", { expires: 1500 })];
    });
    await job.run();
    assert.deepEqual(job.engine.at("sleep").wait, { type: "timer", lasts_ms: 300_000 });
    job.engine.succeed("sleep", null);
    await job.run();
    assert.deepEqual(job.engine.at("until").wait, { type: "timer", due_at: "2026-05-01T00:00:00.000000Z" });
    job.engine.succeed("until", null);
    await job.run();
    assert.deepEqual(job.engine.at("signal").wait, { type: "signal", key: "order/1", expires_ms: 86_400_000 });
    job.engine.succeed("signal", { ok: true });
    await job.run();
    assert.deepEqual(job.engine.at("receive").wait, { type: "message", channel: "mail", expires_ms: 1500 });
    job.engine.succeed("receive", "hello");
    await job.run();
    assert.deepEqual(job.result, [{ ok: true }, "hello"]);
    await replayed(job);
  });

  test("an approval: yes, no, and none in time", async () => {
    const job = await runJob(
      async (ctx: Ctx) => {
        const answers = await Promise.allSettled(
          ["a", "b", "c"].map((key) => ctx.approval(`pay ${key}?`, { key, data: { key }, expires: "1h" })),
        );
        return answers.map((answer) =>
          answer.status === "fulfilled"
            ? answer.value.by
            : [answer.reason.constructor.name, answer.reason.code, answer.reason.note ?? null],
        );
      },
      ({ engine }) => {
        engine.succeed("approval@a", { by: "ada" });
        engine.finish("approval@b", { rejected: true, result: { note: "too much" } });
        engine.finish("approval@c", { timed_out: true });
      },
    );
    assert.deepEqual(job.engine.at("approval@a").wait, {
      type: "human",
      question: "pay a?",
      data: { key: "a" },
      expires_ms: 3_600_000,
    });
    assert.deepEqual(job.result, ["ada", ["Rejected", "rejected", "too much"], ["WaitExpired", "wait_expired", null]]);
    assert.ok(Rejected.prototype instanceof ToolFailed && WaitExpired.prototype instanceof ToolFailed);
    await replayed(job);
  });

  test("on_expire: continue gives null", async () => {
    const job = await runJob(
      (ctx: Ctx) => ctx.wait({ type: "human", answer: "data", on_expire: "continue", expires: "1h" }),
      ({ engine }) => engine.finish("human", { timed_out: true }),
    );
    assert.deepEqual([job.result, job.engine.at("human").wait?.accepts_data], [null, true]);
  });

  test("cancel closes a wait, and rejects at once", async () => {
    const job = await runJob(async (ctx: Ctx) => {
      const wait = ctx.receive("c");
      await ctx.run("step", "read", () => 1);
      wait.cancel("not needed");
      return wait.catch((error: ToolFailed) => [error.code, error.position]);
    });
    assert.deepEqual([job.result, job.engine.cancelledWaits], [["cancelled", "receive"], ["receive"]]);
    await replayed(job);
  });

  test("a request that is cancelled in its own advance is not made", async () => {
    const job = await runJob(async (ctx: Ctx) => {
      const abort = new AbortController();
      ctx.call("look", {}, { signal: abort.signal }).catch(() => {});
      abort.abort();
      await ctx.run("step", "read", () => 1);
      return "done";
    });
    assert.deepEqual(positions(job), ["step"]);
  });
});

describe("scopes and branches", () => {
  test("names are counted in their scope, keys replace the count", async () => {
    const job = await runJob(async (ctx: Ctx) => {
      const step = (at: Ctx): Promise<number> => at.run("a", "read", () => 1);
      await step(ctx);
      await step(ctx);
      await ctx.run("a", "read", () => 1, { key: "k" });
      await ctx.run("a", "read", () => 1, { name: "b" });
      await ctx.scope("in", async (inner) => {
        await step(inner);
        await inner.scope("deep", step);
      });
    });
    assert.deepEqual(positions(job), ["a", "a#2", "a@k", "b", "in/a", "in/deep/a"]);
    await replayed(job);
  });

  test("map: some at a time, results in order", async () => {
    let [running, most] = [0, 0];
    const job = await runJob((ctx: Ctx) =>
      ctx.map(
        "items",
        [3, 1, 2, 5],
        async (inner, item, i) => {
          most = Math.max(most, ++running);
          await inner.run("step", "read", { item }, () => null);
          running--;
          return item * 10 + i;
        },
        { parallel: 2 },
      ),
    );
    assert.deepEqual([job.result, most], [[30, 11, 22, 53], 2]);
    assert.deepEqual(positions(job), ["items/0/step", "items/1/step", "items/2/step", "items/3/step"]);
    await replayed(job);
  });

  test("map: the first failure ends it and closes the waits of the others; or failures are collected", async () => {
    const body =
      (options: object) =>
      (ctx: Ctx): Promise<unknown> =>
        ctx.map(
          "items",
          ["ok", "bad", "ok"],
          async (inner, item) => {
            if (item === "bad") throw new Failure("bad_item", "no");
            return (await inner.receive("c")) as Json;
          },
          options,
        );
    const failed = await runJob(body({}));
    assert.deepEqual([failed.result, failed.engine.cancelledWaits], [{ failure: "bad_item" }, []]);
    const collected = await runJob(body({ on_error: "collect" }), ({ engine }) => {
      engine.succeed("items/0/receive", 1);
      engine.succeed("items/2/receive", 2);
    });
    assert.deepEqual(collected.result, [1, { error: { code: "bad_item", message: "no" } }, 2]);
    await replayed(collected);
  });

  test("race: the first branch wins, the others never go on and their waits are closed", async () => {
    const seen: string[] = [];
    const job = await runJob(
      async (ctx: Ctx) => {
        const { won, value } = await ctx.race("first", {
          answer: async (inner) => {
            try {
              return await inner.receive<string>("c");
            } finally {
              seen.push("answer");
            }
          },
          timeout: async (inner) => {
            await inner.sleep("10s");
            return "late";
          },
        });
        await ctx.run("after", "read", () => 1);
        return [won, value];
      },
      ({ engine }) => engine.succeed("first/timeout/sleep", null),
    );
    assert.deepEqual(
      [job.result, job.engine.cancelledWaits, seen],
      [["timeout", "late"], ["first/answer/receive"], []],
    );
    await replayed(job);
  });

  test("race: with go_on the losers continue", async () => {
    const job = await runJob(
      async (ctx: Ctx) => {
        const seen: string[] = [];
        await ctx.race(
          "first",
          {
            a: async (inner) => void seen.push(await inner.call<string>("a")),
            b: async (inner) => void seen.push(await inner.call<string>("b")),
          },
          { losers: "go_on" },
        );
        await ctx.call("c");
        return seen;
      },
      ({ engine }) => {
        engine.succeed("first/a/a", "a");
        engine.succeed("first/b/b", "b");
      },
    );
    job.engine.succeed("c", null);
    await job.run();
    assert.deepEqual(job.result, ["a", "b"]);
    await replayed(job);
  });

  test("plain Promise.race and Promise.all are durable", async () => {
    const job = await runJob(
      async (ctx: Ctx) => {
        const first = await Promise.race([ctx.call("a"), ctx.call("b")]);
        return [first, ...(await Promise.all([ctx.call("c"), ctx.call("d")]))];
      },
      ({ engine }) => engine.succeed("b", "b"),
    );
    job.engine.succeed("d", "d");
    job.engine.succeed("a", "a");
    job.engine.succeed("c", "c");
    await job.run();
    assert.deepEqual(job.result, ["b", "c", "d"]);
    await replayed(job);
  });

  test("a closed scope runs once, and its waits are closed at its end", async () => {
    let runs = 0;
    const job = await runJob(async (ctx: Ctx) => {
      const value = await ctx.scope(
        "closed",
        async (inner) => {
          runs++;
          inner.receive("c");
          return { n: await inner.run("step", "read", () => 7), gone: undefined };
        },
        { fold: true },
      );
      await ctx.receive("after");
      return value;
    });
    assert.deepEqual([runs, job.engine.cancelledWaits], [1, ["closed/receive"]]);
    job.restart();
    await job.run();
    job.engine.succeed("receive", null);
    await job.run();
    assert.deepEqual([runs, job.result], [1, { n: 7 }]);
  });

  test("a closed scope: a failure is its result, an exception ends the code although it is caught", async () => {
    const failed = await runJob((ctx: Ctx) =>
      ctx
        .scope(
          "s",
          async () => {
            throw new Failure("empty", "nothing");
          },
          { fold: true },
        )
        .catch((error: Failure) => [error.constructor.name, error.code]),
    );
    assert.deepEqual(failed.result, ["Failure", "empty"]);
    await replayed(failed);
    const thrown = await runJob((ctx: Ctx) =>
      ctx
        .scope(
          "s",
          async () => {
            throw new TypeError("boom");
          },
          { fold: true },
        )
        .catch(() => "caught"),
    );
    assert.deepEqual(thrown.result, { exception: "boom" });
  });

  test("inside of a closed scope only its own ctx can be used", async () => {
    const job = await runJob((ctx: Ctx) => ctx.scope("s", () => ctx.run("x", "read", () => 1), { fold: true }));
    assert.match(String((job.result as { exception: string }).exception), /ctx of another scope/);
  });

  test("the closed scope of a loser ends with its requests", async () => {
    const job = await runJob(
      (ctx: Ctx) =>
        ctx.scope(
          "outer",
          async (outer) => {
            const { won } = await outer.race("first", {
              scope: (inner) => inner.scope("closed", (in2) => in2.call("ask"), { fold: true }),
              timeout: async (inner) => {
                await inner.sleep("10s");
                return null;
              },
            });
            return won;
          },
          { fold: true },
        ),
      ({ engine }) => engine.succeed("outer/first/timeout/sleep", null),
    );
    assert.equal(job.result, undefined, "the outer scope has a request without an outcome");
    job.engine.succeed("outer/first/scope/closed/ask", 1);
    await job.run();
    assert.equal(job.result, "timeout");
    assert.equal(job.engine.at("outer/first/scope/closed").outcome?.failure?.code, "evicted");
    await replayed(job);
  });

  test("a loop runs its last turn again, and no earlier one", async () => {
    const turns: number[] = [];
    const job = new TestJob((ctx: Ctx) =>
      ctx.loop("count", { sum: 0 }, async (inner, state, i) => {
        turns.push(i);
        const message = await inner.receive<number>("numbers");
        return message < 0 ? { done: state.sum } : { next: { sum: state.sum + message } };
      }),
    );
    for (const [i, n] of [5, 6, 7].entries()) {
      await job.run();
      job.engine.succeed(`count/${i}/receive`, n);
    }
    await job.run();
    turns.length = 0;
    job.restart();
    await job.run();
    assert.deepEqual(turns, [3]);
    job.engine.succeed("count/3/receive", -1);
    await job.run();
    assert.equal(job.result, 18);
  });

  test("a map of closed scopes", async () => {
    const job = await runJob((ctx: Ctx) =>
      ctx.map("m", [1, 2], (inner, n) => inner.run("x", "read", { n }, (args) => args.n * 2), { fold: true }),
    );
    assert.deepEqual(
      [job.result, positions(job)],
      [
        [2, 4],
        ["m/0", "m/1", "m/0/x", "m/1/x"],
      ],
    );
    await replayed(job);
  });
});

describe("values", () => {
  test("times, random numbers, UUIDs and patches are recorded, emitted values counted", async () => {
    const job = await runJob(
      async (ctx: Ctx) => {
        const before = [ctx.now().getTime(), ctx.random(), ctx.uuid(), ctx.patched("new")];
        await ctx.sleep(1);
        const after = await ctx.scope("s", async (inner) => [inner.now().getTime(), inner.random(), inner.uuid()]);
        ctx.emit("progress", { n: 1 });
        ctx.publish("state", "x");
        return [...before, ...after];
      },
      ({ engine }) => engine.succeed("sleep", null),
    );
    const { values } = job.engine;
    assert.deepEqual(Object.keys(values).sort(), ["patch:new", "random", "time:1", "time:s/1", "uuid:1", "uuid:s/1"]);
    assert.match(String((values["time:1"] as { time: string }).time), /^2026-01-01T00:00:0\d\.\d{3}000Z$/);
    assert.match(String(values["uuid:1"]), /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab]/);
    assert.deepEqual(
      job.engine.emittedValues.map(({ name, published }) => [name, published]),
      [
        ["progress", false],
        ["state", true],
      ],
    );
    await replayed(job);
    assert.equal(job.engine.emittedValues.length, 2);
  });

  test("patched is false in a job that had passed there before the change", async () => {
    let isNew = false;
    const body = async (ctx: Ctx): Promise<string> => {
      if (isNew && ctx.patched("change")) return "new";
      await ctx.receive("c");
      return "old";
    };
    const job = new TestJob(body);
    await job.run();
    isNew = true;
    job.restart();
    await job.run();
    job.engine.succeed("receive", null);
    await job.run();
    assert.deepEqual([job.result, job.engine.values["patch:change"]], ["old", false]);
    assert.equal((await runJob(body)).result, "new");
  });

  test("now never goes back, also after a replay by an earlier clock", async () => {
    const times: number[] = [];
    const job = await runJob(async (ctx: Ctx) => {
      times.push(ctx.now().getTime());
      await ctx.receive("c");
      times.push(ctx.now().getTime());
    });
    job.restart("2025-01-01T00:00:00.000000Z");
    await job.run();
    job.engine.succeed("receive", null);
    await job.run();
    assert.ok((times[2] as number) >= (times[1] as number) && times[1] === times[0]);
  });

  test("random numbers follow from the seed and the scope", () => {
    // The vectors of src/routines/native/values_test.cc.
    const seed = Buffer.from(Array.from({ length: 32 }, (_, i) => i)).toString("hex");
    const numbers = new RandomNumbers(seed, "");
    assert.deepEqual(
      Array.from({ length: 5 }, () => numbers.next()),
      [0.14950620718581786, 0.35737630187891156, 0.6931980806143985, 0.3648589788718952, 0.657061631035728],
    );
    assert.equal(new RandomNumbers(seed, "items/2").next(), 0.3477456845182786);
  });

  test("durations and times", () => {
    assert.deepEqual(
      ["500ms", "30s", "5m", "24h", "7d"].map(durationMs),
      [500, 30_000, 300_000, 86_400_000, 604_800_000],
    );
    assert.deepEqual(timeValue(1767225600000), { ms: 1767225600000, time: "2026-01-01T00:00:00.000000Z" });
    for (const bad of ["", "1", "-1s", "1y", -1, NaN, "36501d"]) assert.throws(() => durationMs(bad), InvalidInput);
  });
});

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
          assert.match(String(error.stack), /primitives\.test\.ts/);
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
    assert.throws(() => tool("run:x", {}, () => 1), InvalidInput);
  });

  test("an exception parks the job with its stack; so does a result that is not JSON", async () => {
    const thrown = await runJob(() => {
      throw new TypeError("x is not a function");
    });
    const { name, message, stack } = thrown.engine.end?.exception ?? {};
    assert.deepEqual([name, message], ["TypeError", "x is not a function"]);
    assert.match(String(stack), /primitives\.test\.ts/);
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

describe("fetch", () => {
  async function withServer(
    use: (url: string, seen: { method: string; headers: Record<string, unknown>; body: string }[]) => Promise<void>,
  ): Promise<void> {
    const seen: { method: string; headers: Record<string, unknown>; body: string }[] = [];
    const server: Server = createServer((request, response) => {
      const chunks: Buffer[] = [];
      request.on("data", (chunk: Buffer) => chunks.push(chunk));
      request.on("end", () => {
        seen.push({ method: String(request.method), headers: request.headers, body: Buffer.concat(chunks).toString() });
        if (request.url === "/moved") response.writeHead(303, { location: "/ok" }).end();
        else if (request.url === "/bytes") response.end(Buffer.from([0xff, 0x00]));
        else
          response
            .writeHead(request.url === "/500" ? 500 : 200, { "content-type": "application/json", "set-cookie": "a=b" })
            .end(JSON.stringify({ n: seen.length }));
      });
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    try {
      await use(`http://127.0.0.1:${(server.address() as AddressInfo).port}`, seen);
    } finally {
      server.closeAllConnections();
      server.close();
    }
  }

  test("requests are recorded by content, without their secrets, and sent once", async () => {
    await withServer(async (url, seen) => {
      const job = await runJob(async (ctx: Ctx) => {
        const headers = { authorization: "Bearer secret", "content-type": "application/json", "x-other": "1" };
        const post = (n: number): Promise<Response> =>
          ctx.fetch(`${url}/ok`, { method: "POST", headers, body: JSON.stringify({ n }) });
        const [a, b, c] = await Promise.all([post(1), post(1), post(2)]);
        const got = await ctx.fetch(`${url}/500`);
        return [
          a.status,
          await a.json(),
          (await b.json()).n,
          c.headers.get("set-cookie"),
          got.ok,
          got.url === `${url}/500`,
        ];
      });
      assert.deepEqual(job.result, [200, { n: 1 }, 2, null, false, true]);
      const made = [...job.engine.log.values()];
      const host = new URL(url).host;
      const args = {
        method: "POST",
        url: `${url}/ok`,
        headers: { "content-type": "application/json" },
        body: '{"n":1}',
      };
      assert.deepEqual(made[0]?.arguments, args);
      const hash = blindedHash(job.engine.blind, args).slice(0, 16);
      assert.deepEqual(
        made.slice(0, 2).map(({ position, tool: name }) => [position, name]),
        [
          [`POST:${host}~${hash}`, "run:at_most_once"],
          [`POST:${host}~${hash}#2`, "run:at_most_once"],
        ],
      );
      assert.equal(made[3]?.tool, "run:read");
      assert.ok(!JSON.stringify(job.engine.record()).includes("secret"));
      assert.equal(seen[0]?.headers["authorization"], "Bearer secret");
      assert.equal(seen[0]?.headers["x-other"], "1");
      assert.equal(seen[0]?.headers["idempotency-key"], `aetheris:job-1:${made[0]?.position}:0`);
      assert.equal(seen[3]?.headers["idempotency-key"], undefined);
      await replayed(job);
      assert.equal(seen.length, 4);
    });
  });

  test("bytes, forms and redirects", async () => {
    await withServer(async (url, seen) => {
      const job = await runJob(async (ctx: Ctx) => {
        const bytes = new Uint8Array(await (await ctx.fetch(`${url}/bytes`)).arrayBuffer());
        const form = new FormData();
        form.set("a", "b");
        await ctx.fetch(`${url}/ok`, { method: "POST", body: form, name: "form" });
        const moved = await ctx.fetch(`${url}/moved`, {
          method: "POST",
          body: new URLSearchParams({ x: "1" }),
          effect: "idempotent",
        });
        return [[...bytes], moved.status];
      });
      assert.deepEqual(job.result, [[255, 0], 200]);
      assert.match(String(seen[1]?.body), /^--aetheris-boundary\r\nContent-Disposition: form-data; name="a"/);
      assert.deepEqual(
        seen.slice(2).map(({ method, body }) => [method, body]),
        [
          ["POST", "x=1"],
          ["GET", ""],
        ],
      );
      assert.ok(job.engine.log.has("form"));
      await replayed(job);
    });
  });

  test("a stream, a bad URL and a password in the URL are input_invalid; a refused connection is a definite failure", async () => {
    let closed = "";
    await withServer(async (url) => void (closed = url));
    const job = await runJob(async (ctx: Ctx) => {
      const ends = await Promise.allSettled([
        ctx.fetch("http://127.0.0.1:1/", { method: "POST", body: new ReadableStream(), duplex: "half" } as RequestInit),
        ctx.fetch("/x"),
        ctx.fetch("ftp://x/"),
        ctx.fetch("http://a:b@x/"),
        ctx.fetch(closed),
      ]);
      return ends.map((end) => (end as PromiseRejectedResult).reason.code as string);
    });
    assert.deepEqual(job.result, ["input_invalid", "input_invalid", "input_invalid", "input_invalid", "connect"]);
  });
});
