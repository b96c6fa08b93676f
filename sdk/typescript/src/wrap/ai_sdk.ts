// Vercel AI SDK: calls of a model and of tools as requests of an agent.
import type { Ctx, Effect } from "../api.ts";
import { InvalidInput, NotDone } from "../errors.ts";
import { toJson, type Json, type JsonObject } from "../json.ts";

// The parts of LanguageModelMiddleware that are used, so that the package is not needed to compile.
/* eslint-disable @typescript-eslint/no-explicit-any */
type Any = any;
interface Wrapped {
  doGenerate: () => PromiseLike<Any>;
  doStream: () => PromiseLike<Any>;
  params: Any;
  model: { provider: string; modelId: string };
}

// Bytes and dates of the SDK's values, as JSON and back.
function pack(value: unknown): unknown {
  if (value instanceof Uint8Array) return { $bytes: Buffer.from(value).toString("base64") };
  if (value instanceof Date) return { $date: value.toISOString() };
  if (value instanceof URL) return { $url: value.href };
  if (value instanceof Error) return { $error: { name: value.name, message: value.message } };
  if (Array.isArray(value)) return value.map(pack);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, member]) => [key, pack(member)]));
}

function unpack(value: Json): unknown {
  if (Array.isArray(value)) return value.map(unpack);
  if (value === null || typeof value !== "object") return value;
  if (typeof value["$bytes"] === "string") return new Uint8Array(Buffer.from(value["$bytes"], "base64"));
  if (typeof value["$date"] === "string") return new Date(value["$date"]);
  if (typeof value["$url"] === "string") return new URL(value["$url"]);
  const error = value["$error"] as { name?: string; message?: string } | undefined;
  if (error) return Object.assign(new Error(error.message), { name: error.name });
  return Object.fromEntries(Object.entries(value).map(([key, member]) => [key, unpack(member)]));
}

function streamOf(parts: unknown[]): ReadableStream<unknown> {
  return new ReadableStream({
    start(controller) {
      for (const part of parts) controller.enqueue(part);
      controller.close();
    },
  });
}

function argumentsOf(params: Any): JsonObject {
  // Headers may hold secrets, and an abort signal is not a value.
  const { headers: _headers, abortSignal: _signal, ...rest } = params as Record<string, unknown>;
  return toJson(pack(rest), "the request of the model") as JsonObject;
}

// A call of a model that a provider refused for now is tried again by the engine, as the retry of `run:read` states.
async function tried<T>(effect: Effect, call: () => PromiseLike<T>): Promise<T> {
  try {
    return await call();
  } catch (error) {
    const { statusCode, isRetryable, message } = error as { statusCode?: number; isRetryable?: boolean; message?: string };
    if (effect !== "read" || isRetryable !== true || message === undefined) throw error;
    throw new NotDone(statusCode === undefined ? "reset" : `http_${statusCode}`, message, { retryable: true });
  }
}

/**
 * Middleware for `wrapLanguageModel` that records each call of the model: a later routine is given the recorded answer.
 * Calls of a model are `read` unless `effect` states otherwise. A stream is read to its end, recorded, and given in one
 * piece. Use it with `maxRetries: 0`: the engine retries.
 *
 *     const model = wrapLanguageModel({ model: openai("gpt-5-mini"), middleware: durable(ctx) });
 *     await generateText({ model, prompt, maxRetries: 0 });
 */
export function durable(
  ctx: Ctx,
  options: { effect?: Effect; name?: string } = {},
): {
  readonly specificationVersion: Any;
  wrapGenerate(wrapped: Wrapped): Promise<Any>;
  wrapStream(wrapped: Wrapped): Promise<Any>;
} {
  const effect = options.effect ?? "read";
  const nameOf = (wrapped: Wrapped): string =>
    (options.name ?? `model:${wrapped.model.modelId}`).replace(/[^A-Za-z0-9_.:-]/g, "_").slice(0, 64);
  return {
    // Of the versions that the SDK knows: what is used is the same in all.
    specificationVersion: "v4",
    async wrapGenerate(wrapped) {
      const result = await ctx.run(nameOf(wrapped), effect, argumentsOf(wrapped.params), async () =>
        toJson(pack(await tried(effect, wrapped.doGenerate)), "the answer of the model"),
      );
      return unpack(result as Json);
    },
    async wrapStream(wrapped) {
      const parts = await ctx.run(nameOf(wrapped), effect, argumentsOf(wrapped.params), async (_, call) => {
        const { stream } = await tried(effect, wrapped.doStream);
        const read: unknown[] = [];
        for await (const part of stream as AsyncIterable<Any>) {
          if (part.type === "text-delta" && typeof part.delta === "string") call.text(part.delta);
          read.push(part);
        }
        return toJson(pack(read), "the answer of the model");
      });
      return { stream: streamOf(unpack(parts as Json) as unknown[]) };
    },
  };
}

/**
 * Tools of the AI SDK whose `execute` is recorded. `effects` states for each what a repetition does. A tool without
 * `execute` is left as it is. Throws `InvalidInput`: an effect is missing.
 */
export function durableTools<T extends Record<string, Any>>(
  ctx: Ctx,
  tools: T,
  effects: { [K in keyof T]?: Effect },
): T {
  return Object.fromEntries(
    Object.entries(tools).map(([name, tool]) => {
      if (typeof tool.execute !== "function") return [name, tool];
      const effect = effects[name];
      if (effect === undefined)
        throw new InvalidInput(
          `durableTools: effects has no entry for "${name}"; state read, idempotent or at_most_once`,
        );
      const execute = (input: Any, callOptions: Any): Promise<unknown> =>
        ctx.run(name, effect, { input: toJson(input, `the input of "${name}"`) }, async ({ input: given }) =>
          toJson(await tool.execute(given, callOptions), `the result of "${name}"`),
        );
      return [name, { ...tool, execute }];
    }),
  ) as T;
}
