// The agents of the rows `code-ts`, `resume` and `code-loop`: steps that are functions of this process.
import { agent } from "../../sdk/typescript/src/index.ts";

const text = "x".repeat(180);

// `steps` functions, one after the other; each returns about 200 bytes.
export const steps = agent("steps", { version: "1" }, async (ctx, input: { steps: number }) => {
  let last = 0;
  for (let n = 0; n < input.steps; n++) {
    const made = await ctx.run("step", "idempotent", { n }, ({ n }) => ({ n, text }));
    last = made.n;
  }
  return { last };
});

// The same, then a wait for the signal `go`.
export const waits = agent("waits", { version: "1" }, async (ctx, input: { steps: number }) => {
  for (let n = 0; n < input.steps; n++) await ctx.run("step", "idempotent", { n }, ({ n }) => ({ n, text }));
  return await ctx.wait({ type: "signal", wait_key: "go" });
});

// A loop of `turns` turns with one function each; its last turn waits for the signals `go` and `again`.
export const turns = agent("turns", { version: "1" }, async (ctx, input: { turns: number }) => {
  return await ctx.loop("turn", 0, async (ctx, n) => {
    if (n < input.turns) {
      await ctx.run("step", "idempotent", { n }, ({ n }) => ({ n, text }));
      return { next: n + 1 };
    }
    await ctx.wait({ type: "signal", wait_key: "go" });
    await ctx.wait({ type: "signal", wait_key: "again" });
    return { done: n };
  });
});
