// Calls, waits and values of ctx: what each requests, what it gives, how it fails; a new routine is given the same.
import { describe, test } from "node:test";
import assert from "node:assert/strict";
import { Failure, InvalidInput, NotDone, Rejected, ToolFailed, WaitExpired, tool, type Ctx, type Json } from "../src/index.ts";
import { agent } from "../src/definitions.ts";
import { durationMs, timeValue } from "../src/values.ts";
import { positions, replayed } from "./support/checks.ts";
import { runJob, TestJob } from "./support/harness.ts";

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

  test("start requests the tool of the agent, and knows the id of the job", async () => {
    const research = agent("research", {}, (_: Ctx, input: { topic: string }) => input.topic.length);
    const job = new TestJob(async (ctx: Ctx) => {
      const child = ctx.start(research, { topic: "bees" });
      const apart = ctx.start("research", {}, { key: "apart", detached: true });
      const sent: void = await ctx.send(child.id, { channel: "in" }, 7);
      await ctx.send("other", { key: "go" }, null, { name: "go" });
      const length: number = await child.result();
      return [child.id, apart.id, length, (await apart).job, sent === undefined];
    });
    await job.run();
    for (const [position, result] of [
      ["send", { accepted: true }],
      ["go", { accepted: true }],
      ["research", 4],
      ["research@apart", { job: "x" }],
    ] as const) {
      job.engine.succeed(position, result);
      await job.run();
    }
    const child = "54b3e57f-55fb-8e9d-926a-1d03ed35eb04";
    assert.deepEqual(job.result, [child, "124190c9-0f45-86a2-8691-f8b12e6e6d1e", 4, "x", true]);
    assert.deepEqual(
      positions(job).map((position) => [position, job.engine.at(position).tool, job.engine.at(position).arguments]),
      [
        ["research", "agent:research", { topic: "bees" }],
        ["research@apart", "agent:research:detached", {}],
        ["send", "job:send", { job: child, to: { channel: "in" }, payload: 7 }],
        ["go", "job:send", { job: "other", to: { key: "go" }, payload: null }],
      ],
    );
    await replayed(job);
  });

  test("an agent that `uses` does not name is not started, and nothing is sent", async () => {
    const job = new TestJob(
      async (ctx: Ctx) =>
        Promise.all(
          [
            ctx.start("research"),
            ctx.start("research", {}, { detached: true }),
            ctx.send("job", { key: "k" }, 1),
          ].map((made) => (made as Promise<unknown>).catch((error: ToolFailed) => error.message)),
        ),
      { definition: { uses: ["*", "agent:other"] } },
    );
    await job.run();
    assert.deepEqual(
      job.result,
      ["agent:research", "agent:research", "job:send"].map(
        (name) => `the agent "agent" may not call "${name}": add it to \`uses\` of the agent's definition`,
      ),
    );
  });

  test("send has one address", async () => {
    const job = await runJob((ctx: Ctx) => {
      const wrong = [{}, { channel: "c", key: "k" }, { channel: "" }, { wait_key: "k" }];
      for (const to of wrong) assert.throws(() => ctx.send("job", to as { key: string }, 1), InvalidInput);
      assert.throws(() => ctx.start("research", [1]), InvalidInput);
      return wrong.length;
    });
    assert.equal(job.result, 4);
  });

  test("a tool that `uses` does not name is tool_not_granted, and is not requested", async () => {
    const names = ["other", "files.read", "offered", "look"];
    const job = new TestJob(
      async (ctx: Ctx) => {
        for (const name of names) ctx.call(name, {}).catch(() => {});
        const model = ctx.model("big").text("hi");
        const codes = await Promise.all(
          [ctx.call("other"), model].map((made) => made.catch((error: ToolFailed) => [error.code, error.message])),
        );
        ctx.run("one", "read", () => 1);
        return codes;
      },
      { definition: { uses: ["look", "files.*", "model:main"] } },
    );
    await job.run();
    assert.deepEqual(job.result, [
      [
        "tool_not_granted",
        'the agent "agent" may not call "other": add it to `uses` of the agent\'s definition',
      ],
      [
        "tool_not_granted",
        'the agent "agent" may not call "model:big": add it to `uses` of the agent\'s definition',
      ],
    ]);
    assert.deepEqual(
      job.host.sent[0]?.requests?.map(({ position }) => position),
      ["files.read", "offered", "look", "one"],
    );
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
    assert.deepEqual([job.result, job.engine.cancelled], [["cancelled", "receive"], ["receive"]]);
    await replayed(job);
  });

  // Cancels a call once a message has come, and returns what it was given and how many outcomes it counts.
  const cancels = async (ctx: Ctx): Promise<unknown> => {
    const call = ctx.call("buy", { n: 1 });
    await ctx.receive("c");
    call.cancel();
    const code = await call.then(
      () => "none",
      (error: ToolFailed) => error.code,
    );
    return [code, await ctx.receive("d", { name: "end" })];
  };

  test("a cancelled call that was not sent is withdrawn, also if it was not recorded yet", async () => {
    for (const records of [true, false]) {
      const job = new TestJob(cancels, { admits: ({ kind }) => kind === "wait", records: () => records });
      await job.run();
      job.engine.succeed("receive", null);
      await job.run();
      const { engine } = job;
      assert.deepEqual([engine.cancelled, engine.at("buy").outcome?.failure?.code], [["buy"], "cancelled"]);
      assert.equal(engine.at("end").delivered, 1, "the outcome of the call is delivered after the request");
      engine.succeed("end", 7);
      await job.run();
      assert.deepEqual(job.result, ["cancelled", 7]);
      await replayed(job);
    }
  });

  test("a cancelled call that was sent is awaited: its outcome is counted, and not given", async () => {
    const job = new TestJob(cancels);
    await job.run();
    job.engine.succeed("receive", null);
    await job.run();
    assert.deepEqual([job.engine.cancelled, job.engine.at("buy").ended], [["buy"], false]);
    job.engine.succeed("buy", "bought");
    await job.run();
    job.engine.succeed("end", 7);
    await job.run();
    assert.deepEqual([job.result, job.host.sent.at(-1)?.delivered], [["cancelled", 7], 3]);
    await replayed(job);
  });

  test("a call that is cancelled before the frontier is cancelled again by each routine, until it has an outcome", async () => {
    const job = new TestJob(cancels, { admits: ({ kind }) => kind === "wait", records: () => true });
    await job.run();
    job.engine.succeed("receive", null); // the routine is gone before it is given this
    job.restart();
    await job.run();
    assert.deepEqual([job.engine.cancelled, job.engine.at("buy").outcome?.failure?.code], [["buy"], "cancelled"]);
    const sent = new TestJob(cancels);
    await sent.run();
    sent.engine.succeed("receive", null);
    await sent.run();
    sent.restart();
    await sent.run();
    assert.deepEqual(sent.engine.cancelled, ["buy", "buy"]);
    sent.engine.succeed("buy", 1);
    sent.restart();
    await sent.run();
    assert.deepEqual(sent.engine.cancelled, ["buy", "buy"], "it has an outcome");
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

  test("durations and times", () => {
    assert.deepEqual(
      ["500ms", "30s", "5m", "24h", "7d"].map(durationMs),
      [500, 30_000, 300_000, 86_400_000, 604_800_000],
    );
    assert.deepEqual(timeValue(1767225600000), { ms: 1767225600000, time: "2026-01-01T00:00:00.000000Z" });
    for (const bad of ["", "1", "-1s", "1y", -1, NaN, "36501d"]) assert.throws(() => durationMs(bad), InvalidInput);
  });
});

describe("two copies of the package in a process", () => {
  // As a CommonJS library beside an ES module has it.
  const load = <T>(path: string): Promise<T> => import(`${path}?copy`) as Promise<T>;

  test("a Failure of the other copy is a failure, of an agent as of a function", async () => {
    const other = await load<typeof import("../src/errors.ts")>("../src/errors.ts");
    assert.notEqual(other.Failure, Failure);
    const failed = await runJob(() => {
      throw new other.Failure("empty", "nothing");
    });
    assert.deepEqual(failed.result, { failure: "empty" });
    const caught = await runJob((ctx: Ctx) =>
      ctx
        .run("x", "read", () => {
          throw new other.NotDone("busy", "later");
        })
        .catch((error) => [error.code, error instanceof other.ToolFailed, error instanceof other.Failure]),
    );
    assert.deepEqual(caught.result, ["busy", true, false]);
  });

  test("instanceof holds across copies, and for classes of the user", async () => {
    const other = await load<typeof import("../src/errors.ts")>("../src/errors.ts");
    class Empty extends Failure {}
    const errors = [new other.NotDone("a", "b"), new Empty("a", "b"), new other.Rejected("t", "p", ""), new Error("x")];
    assert.deepEqual(
      errors.map((error) => [Failure, NotDone, ToolFailed, Rejected, Empty].map((type) => error instanceof type)),
      [
        [true, true, false, false, false],
        [true, false, false, false, true],
        [false, false, true, true, false],
        [false, false, false, false, false],
      ],
    );
  });

  test("agents and the current ctx are those of the process", async () => {
    const definitions = await load<typeof import("../src/definitions.ts")>("../src/definitions.ts");
    assert.equal(definitions.isOffer(agent("a", {}, () => 1)), true);
    assert.equal(definitions.isOffer({ kind: "agent", name: "a", fn: () => 1 }), false);
    const { current } = await load<typeof import("../src/current.ts")>("../src/current.ts");
    const job = await runJob((ctx: Ctx) => current() === ctx);
    assert.equal(job.result, true);
  });
});
