// OpenAI Agents: `run` inside of an agent. Its client has ctx.fetch; approvals are human waits.
import type { Ctx } from "../api.ts";
import { Rejected } from "../errors.ts";
import { toJson, type Json } from "../json.ts";

/* eslint-disable @typescript-eslint/no-explicit-any */
type Any = any;

/**
 * Runs an agent of the OpenAI Agents SDK, and asks an approver for each of its interruptions (`needsApproval`). `run` is
 * the function of that package, or the method of a Runner. Make its client with `fetch: fetchAs(ctx, "read")` and
 * `maxRetries: 0`, switch its tracing off (it sends by itself), and let its tools use `ctx.run`.
 *
 * Rejects with what the run throws, and with `WaitExpired`.
 */
export async function durableAgentRun(
  ctx: Ctx,
  run: (agent: Any, input: Any, options?: Any) => Promise<Any>,
  agent: unknown,
  input: unknown,
  options: { run?: Record<string, unknown>; expires?: string } = {},
): Promise<Any> {
  let result = await run(agent, input, options.run);
  while (Array.isArray(result.interruptions) && result.interruptions.length > 0) {
    const { state } = result;
    for (const interruption of result.interruptions) {
      const { name, arguments: args } = interruption.rawItem ?? {};
      const data = toJson({ tool: name ?? null, arguments: args ?? null }, "the interruption") as Json;
      try {
        await ctx.approval(`Call ${String(name ?? "the tool")}?`, {
          data,
          ...(options.expires === undefined ? {} : { expires: options.expires }),
        });
        state.approve(interruption);
      } catch (error) {
        if (!(error instanceof Rejected)) throw error;
        state.reject(interruption);
      }
    }
    result = await run(agent, state, options.run);
  }
  return result;
}
