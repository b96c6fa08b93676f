// The agents of the rows `code-ts`, `replay` and `resume`: steps that are functions of this process.
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
