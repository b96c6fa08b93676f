// LangGraph: a graph inside of an agent. Its checkpointer may be in memory: a replay builds it again.
import type { Ctx } from "../api.ts";
import { InvalidInput } from "../errors.ts";
import { toJson, type Json } from "../json.ts";

/* eslint-disable @typescript-eslint/no-explicit-any */
type Any = any;

/**
 * Runs a compiled graph, and answers its `interrupt(…)` with a human wait for data. Give its models
 * `configuration: { fetch: fetchAs(ctx, "read") }` and `maxRetries: 0`, and let its tools and nodes use `ctx.run`.
 * `command` makes the input that continues after an interrupt: pass `(resume) => new Command({ resume })`.
 *
 * Rejects with what the graph throws, with `Rejected` and `WaitExpired`, and with `InvalidInput`: the graph was
 * interrupted, and `command` is not given.
 */
export async function durableRun<T = Any>(
  ctx: Ctx,
  graph: { invoke(input: Any, config?: Any): Promise<Any> },
  input: unknown,
  options: { config?: Record<string, unknown>; command?: (resume: Json) => unknown; expires?: string } = {},
): Promise<T> {
  const { configurable, ...config } = (options.config ?? {}) as { configurable?: Record<string, unknown> };
  // The thread is the job's own: two runs in one job need two ids.
  const merged = { ...config, configurable: { thread_id: ctx.job.id, ...configurable } };
  let result = await graph.invoke(input, merged);
  for (;;) {
    const interrupts = result?.__interrupt__ as { value?: unknown }[] | undefined;
    if (!Array.isArray(interrupts) || interrupts.length === 0) return result as T;
    if (options.command === undefined)
      throw new InvalidInput(
        "durableRun: the graph was interrupted; pass command: (resume) => new Command({ resume })",
      );
    const data = toJson(interrupts[0]?.value, "the value of the interrupt");
    const answer = await ctx.wait<Json>({
      type: "human",
      name: "interrupt",
      answer: "data",
      data,
      question: typeof data === "string" ? data : "The graph asks for an answer",
      ...(options.expires === undefined ? {} : { expires: options.expires }),
    });
    result = await graph.invoke(options.command(answer), merged);
  }
}
