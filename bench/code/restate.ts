// What the row `code-ts` is compared with: the same work as a service of Restate, with its SDK.
import * as restate from "@restatedev/restate-sdk";

const text = "x".repeat(180);

const bench = restate.service({
  name: "bench",
  handlers: {
    run: async (ctx: restate.Context, input: { steps: number }) => {
      let last = 0;
      for (let n = 0; n < input.steps; n++) {
        const made = await ctx.run("step", () => ({ n, text }));
        last = made.n;
      }
      return { last };
    },
  },
});

restate.serve({ services: [bench], port: Number(process.env["BENCH_PORT"]) }).then((port) => console.log(`port ${port}`));
