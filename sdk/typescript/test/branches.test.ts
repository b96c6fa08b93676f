// Scopes, maps, races and loops, and that a new routine is given the same.
import { describe, test } from "node:test";
import assert from "node:assert/strict";
import { Failure, type Ctx, type Json } from "../src/index.ts";
import { positions, replayed } from "./support/checks.ts";
import { runJob, TestJob } from "./support/harness.ts";

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
    assert.deepEqual([failed.result, failed.engine.cancelled], [{ failure: "bad_item" }, []]);
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
      [job.result, job.engine.cancelled, seen],
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
    assert.deepEqual([runs, job.engine.cancelled], [1, ["closed/receive"]]);
    job.restart();
    await job.run();
    job.engine.succeed("receive", null);
    await job.run();
    assert.deepEqual([runs, job.result], [1, { n: 7 }]);
  });

  test("a closed scope whose wait was not sent when it ends, ends once", async () => {
    const job = await runJob(async (ctx: Ctx) => {
      const value = await ctx.scope(
        "closed",
        async (inner) => {
          inner.receive("c");
          return 1;
        },
        { fold: true },
      );
      return [value, await ctx.run("after", "read", () => 2)];
    });
    assert.deepEqual(job.result, [1, 2]);
    await replayed(job);
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
    assert.deepEqual(job.engine.cancelled, ["outer/first/scope/closed/ask"]);
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
