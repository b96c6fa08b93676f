// Answers of model APIs to ctx.fetch: the tokens that they count, and the text of their streams.
//
// Known are Chat Completions, Responses and Messages, by the path of the request and the form of the answer.
import type { Call } from "./api.ts";
import { isObject, type Json, type JsonObject } from "./json.ts";
import type { Usage } from "./protocol.ts";

const PATHS = /\/(chat\/completions|responses|messages)$/;
const MODEL_MAX = 256; // bytes of a name
const BYTES_OF_TOKEN = 3; // as budgets of the server estimate

/** What the calls used of models. */
export const usages = new WeakMap<Call, Usage>();

/** Reads the answer to a request to a model API. */
export class ModelAnswer {
  private readonly model: string | undefined; // as the request names it
  private readonly requestBytes: number;
  private line = ""; // the begin of the next line of a stream
  private isKnown: boolean | undefined; // undefined: no event has come
  private held = ""; // the stream until then
  private textBytes = 0; // of the answer
  private counts: Usage = {};

  private constructor(body: string) {
    const { model } = parsed(body) ?? {};
    const isName = typeof model === "string" && model !== "" && Buffer.byteLength(model) <= MODEL_MAX;
    this.model = isName ? model.toWellFormed() : undefined;
    this.requestBytes = Buffer.byteLength(body);
  }

  /** undefined: the request is not one to a model API. */
  static of(args: JsonObject): ModelAnswer | undefined {
    if (args["method"] !== "POST" || typeof args["body"] !== "string") return undefined;
    return PATHS.test(String(args["url"]).split("?", 1)[0] as string) ? new ModelAnswer(args["body"]) : undefined;
  }

  /** A whole answer. */
  read(body: string): void {
    const answer = parsed(body);
    if (answer === undefined) return;
    this.isKnown = isAnswer(answer);
    this.textBytes = Buffer.byteLength(body);
    this.count(answer["usage"], true);
  }

  /** The next piece of a stream. Returns the text in it for readers: of another stream than a model's, all. */
  feed(piece: string): string {
    if (this.isKnown === false) return piece;
    if (this.isKnown === undefined) this.held += piece;
    const lines = (this.line + piece).split(/\r\n|\n|\r/);
    this.line = lines.pop() as string;
    return this.readLines(lines);
  }

  /** The stream has ended. Returns the rest of its text. */
  end(): string {
    const { line } = this;
    this.line = "";
    const text = this.readLines([line]);
    return this.isKnown === undefined ? this.held : text;
  }

  private readLines(lines: string[]): string {
    let text = "";
    for (const line of lines) {
      const event = line.startsWith("data:") ? parsed(line.slice(5)) : undefined;
      if (event === undefined) continue;
      this.isKnown ??= isEvent(event);
      if (!this.isKnown) {
        const held = this.held;
        this.held = this.line = "";
        return held;
      }
      this.held = "";
      text += this.onEvent(event);
    }
    return text;
  }

  /** undefined: it is not the answer of a model. */
  usage(): Usage | undefined {
    if (!this.isKnown) return undefined;
    const { input_tokens, output_tokens } = this.counts;
    const usage: Usage = { ...this.counts, ...(this.model === undefined ? {} : { model: this.model }) };
    if (input_tokens !== undefined && output_tokens !== undefined) return usage;
    const input = input_tokens ?? Math.ceil(this.requestBytes / BYTES_OF_TOKEN);
    const output = output_tokens ?? Math.ceil(this.textBytes / BYTES_OF_TOKEN);
    return { ...usage, incomplete: true, total_tokens: Math.max(usage.total_tokens ?? 0, clamped(input + output)) };
  }

  private onEvent(event: JsonObject): string {
    const type = event["type"];
    if (typeof type !== "string") return this.onChunk(event);
    if (type === "response.output_text.delta") return this.textOf(event["delta"]);
    const delta = event["delta"];
    if (type === "content_block_delta" && isObject(delta)) {
      const text = this.textOf(delta["text"]);
      this.textOf(delta["thinking"]);
      this.textOf(delta["partial_json"]);
      return text;
    }
    if (type === "message_start" && isObject(event["message"])) this.count(event["message"]["usage"], false);
    if (type === "message_delta") this.count(event["usage"], true);
    if (type.startsWith("response.") && isObject(event["response"])) this.count(event["response"]["usage"], true);
    if (type === "response.function_call_arguments.delta") this.textOf(delta);
    return "";
  }

  // Of Chat Completions.
  private onChunk(event: JsonObject): string {
    this.count(event["usage"], true);
    let text = "";
    for (const choice of Array.isArray(event["choices"]) ? event["choices"] : []) {
      const delta = isObject(choice) ? choice["delta"] : undefined;
      if (!isObject(delta)) continue;
      const content = this.textOf(delta["content"]);
      if ((choice as JsonObject)["index"] === 0) text += content;
      for (const call of Array.isArray(delta["tool_calls"]) ? delta["tool_calls"] : [])
        if (isObject(call) && isObject(call["function"])) this.textOf(call["function"]["arguments"]);
    }
    return text;
  }

  private textOf(text: Json | undefined): string {
    if (typeof text !== "string") return "";
    this.textBytes += Buffer.byteLength(text);
    return text;
  }

  // Later counts of an answer replace earlier ones. `isFinal`: its output is counted.
  private count(usage: Json | undefined, isFinal: boolean): void {
    if (!isObject(usage)) return;
    const inside = (name: string, member: string): number | undefined => {
      const details = usage[name];
      return isObject(details) ? numberOf(details[member]) : undefined;
    };
    const read = numberOf(usage["cache_read_input_tokens"]);
    const input = numberOf(usage["prompt_tokens"] ?? usage["input_tokens"]);
    const counts: Usage = {
      ...(input === undefined
        ? {}
        : { input_tokens: clamped(input + (read ?? 0) + (numberOf(usage["cache_creation_input_tokens"]) ?? 0)) }),
      ...named("output_tokens", isFinal ? numberOf(usage["completion_tokens"] ?? usage["output_tokens"]) : undefined),
      ...named("total_tokens", numberOf(usage["total_tokens"])),
      ...named(
        "cached_tokens",
        read ?? inside("prompt_tokens_details", "cached_tokens") ?? inside("input_tokens_details", "cached_tokens"),
      ),
      ...named(
        "reasoning_tokens",
        inside("completion_tokens_details", "reasoning_tokens") ?? inside("output_tokens_details", "reasoning_tokens"),
      ),
    };
    this.counts = { ...this.counts, ...counts };
  }
}

function named(name: keyof Usage, count: number | undefined): Usage {
  return count === undefined ? {} : { [name]: count };
}

function numberOf(count: Json | undefined): number | undefined {
  return Number.isSafeInteger(count) && (count as number) >= 0 ? (count as number) : undefined;
}

function clamped(sum: number): number {
  return Math.min(sum, Number.MAX_SAFE_INTEGER);
}

function parsed(text: string): JsonObject | undefined {
  try {
    const value = JSON.parse(text) as Json;
    return isObject(value) ? value : undefined;
  } catch {
    return undefined;
  }
}

function isAnswer(answer: JsonObject): boolean {
  if (answer["type"] === "message") return Array.isArray(answer["content"]);
  if (answer["object"] === "response") return Array.isArray(answer["output"]);
  return Array.isArray(answer["choices"]);
}

function isEvent(event: JsonObject): boolean {
  const type = event["type"];
  if (typeof type === "string") return type === "message_start" || type.startsWith("response.");
  return Array.isArray(event["choices"]);
}
