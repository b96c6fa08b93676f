// fetchAs: ctx.fetch with a stated effect, for clients that take a fetch function (OpenAI, Anthropic).
import type { Ctx, Effect } from "../api.ts";

/**
 * A fetch function whose requests all have this effect. Calls of a model change only the bill, so `read` lets the
 * engine repeat them:
 *
 *     new OpenAI({ fetch: fetchAs(ctx, "read"), maxRetries: 0 })
 */
export function fetchAs(
  ctx: Ctx,
  effect: Effect,
): (input: string | URL | globalThis.Request, init?: RequestInit) => Promise<Response> {
  return (input, init) => ctx.fetch(input, { ...init, effect });
}
