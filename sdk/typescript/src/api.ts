// The interfaces that agents and tools see.
import type { Json, JsonObject } from "./json.ts";
import type { Effect } from "./protocol.ts";
export type { Effect } from "./protocol.ts";

/** Milliseconds, or a text such as `500ms`, `30s`, `5m`, `24h`, `7d`. At most 36500d. */
export type Duration = string | number;

/**
 * A request of an agent: a promise of its outcome.
 *
 * It rejects with `ToolFailed` (or `Rejected`, `WaitExpired`, `Cancelled`). It never settles if its routine was
 * dropped, or if its branch lost a race. A rejection that you do not handle does not end the process.
 */
export interface Request<T> extends Promise<T> {
  /** Its name in the log, for example `items/2/charge#2`. */
  readonly position: string;
  /**
   * The outcome is not needed any more: the promise rejects with `Cancelled`. A wait is closed. A call is not stopped;
   * its outcome is recorded and not given.
   */
  cancel(reason?: string): void;
}

/** What a function is given about the call that it performs. */
export interface Call {
  /** Repeated by every try of the call: use it as the idempotency key of the other system. */
  readonly key: string;
  /** Names this call in the log. */
  readonly execution_key: string;
  /** 1, 2, 3, … */
  readonly try: number;
  /** Aborted when the call has ended before the function returned: at its timeout, or when it is cut off. */
  readonly signal: AbortSignal;
  /** The W3C trace context; empty: there is none. */
  readonly traceparent: string;
  /** Answers to what an earlier try asked for. */
  readonly inputs: Json | undefined;
  /** Reports progress to readers, at most once a second; of several reports the newest. Not recorded. */
  progress(report: Json): void;
  /** A piece of output for readers. Not recorded. */
  text(text: string): void;
}

export interface RequestOptions {
  /** Names the request in its scope instead of the count of its name. 1 to 128 characters; used once in a scope. */
  key?: string;
  /** The name of the request; the default is that of the tool, `model:NAME`, `sleep`, `receive`, … */
  name?: string;
  /** Of a call: stricter than the policy of its tool. */
  timeout?: string;
  retry?: Pick<Retry, "max_attempts" | "initial_backoff" | "max_backoff">;
  on_in_doubt?: "resend" | "probe" | "park" | "fail";
  /** Cancels the request when it is aborted. Abort it only because of what `ctx` delivered. */
  signal?: AbortSignal;
}

export interface Retry {
  max_attempts?: number;
  initial_backoff?: string;
  max_backoff?: string;
  multiplier?: number;
  retry_on?: string[];
}

/** The policy of a tool, with the names and defaults of the agents file. */
export interface ToolDefinition {
  /** What a repeated call does. Default: `at_most_once`. */
  effect?: Effect;
  description?: string;
  timeout?: string;
  grace?: string;
  retry?: Retry;
  on_in_doubt?: "resend" | "probe" | "park" | "fail";
  probe?: Json;
  dedupe_window?: string;
  args_schema?: JsonObject;
  /** The server checks it: the result reaches the agent after its commit, not before. */
  result_schema?: JsonObject;
  approval?: "required";
  capabilities?: string[];
  changes?: Json;
  verify?: Json;
  compensate?: Json;
  definite_failures?: string[];
  output_max?: number;
  heartbeat_timeout?: string;
}

export interface AgentDefinition {
  /** Jobs stay with the version under which they were created. Default: AETHERIS_VERSION, else none. */
  version?: string;
  description?: string;
  /** The tools and models that the agent may call: names, `NAME.*`, `model:NAME`. */
  uses?: string[];
  input_schema?: JsonObject;
  output_schema?: JsonObject;
  /** Calls of one job at a time: 1 to 1024. */
  parallel?: number;
  on_exception?: "park" | "fail";
}

export interface Tool<A = Json, R = Json> {
  readonly kind: "tool";
  readonly name: string;
  readonly definition: ToolDefinition;
  readonly fn: (args: A, call: Call) => R | Promise<R>;
}

export interface Agent<I = Json, R = Json> {
  readonly kind: "agent";
  readonly name: string;
  readonly definition: AgentDefinition;
  readonly fn: (ctx: Ctx, input: I) => R | Promise<R>;
}

export interface Message {
  role: "system" | "user" | "assistant" | "tool";
  content: Json;
  [key: string]: Json;
}

export interface ModelRequest {
  messages: Message[];
  temperature?: number;
  max_tokens?: number;
  schema?: JsonObject;
  [key: string]: Json | undefined;
}

/** The answer of a model, in the form that is the same for all providers (docs/models.md). */
export interface Answer {
  text: string;
  finish_reason: string;
  model: string;
  usage: JsonObject;
  json?: Json;
  refusal?: string;
  blocks?: Json[];
  tool_calls?: Json[];
}

export interface Model {
  /** Calls the model with a request. */
  generate(request: ModelRequest, options?: RequestOptions): Request<Answer>;
  /** The text of the answer to one message. */
  text(prompt: string, options?: RequestOptions): Request<string>;
  /** The answer to one message as JSON of this schema. The server checks it, and repeats the call once if it is not. */
  json<T = Json>(prompt: string, schema: JsonObject, options?: RequestOptions): Request<T>;
}

export interface WaitOptions extends RequestOptions {
  type: "signal" | "webhook" | "human";
  /** The key that the answer names. Default: the id of the step. */
  wait_key?: string;
  expires?: Duration;
  /** `fail` (the default): `WaitExpired`. `continue`: the result is null. */
  on_expire?: "fail" | "continue";
  /** Of a human wait: a decision (yes or no; the default), or any data. */
  answer?: "decision" | "data";
  /** Of a human wait: what the approver is shown. */
  question?: string;
  data?: Json;
}

export interface Logger {
  debug(message: string, fields?: Record<string, unknown>): void;
  info(message: string, fields?: Record<string, unknown>): void;
  warn(message: string, fields?: Record<string, unknown>): void;
  error(message: string, fields?: Record<string, unknown>): void;
}

/** What a turn of a loop returns. */
export type Turn<S> = { next: S } | { done: unknown };
/** The result of a loop with such turns. */
export type Done<T> = T extends { done: infer R } ? R : never;

/** The branches of a race, by name. */
export type Branches = Record<string, (ctx: Ctx) => unknown>;

/** Which branch won, and what it returned. */
export type RaceResult<B extends Branches> = {
  [K in keyof B & string]: { won: K; value: Awaited<ReturnType<B[K]>> };
}[keyof B & string];

export interface MapOptions {
  /** Items at a time: 1 to 64. Default: 8. */
  parallel?: number;
  /**
   * `fail` (the default): the first failure ends the map. `collect`: the result of a failed item is
   * `{error: {code, message}}`.
   */
  on_error?: "fail" | "collect";
  /** Each item is a closed scope (see `scope`). */
  fold?: boolean;
}

/**
 * What an agent's function calls. Every call that reaches outside of the function goes through it and is recorded; the
 * function may run again at any time, and is then given the same outcomes.
 *
 * Types of values are not limited to JSON, since an interface is not assignable to it. All methods throw `InvalidInput`
 * at their line if a value is not JSON, or a name is not allowed.
 */
export interface Ctx {
  readonly job: {
    readonly id: string;
    readonly agent: string;
    readonly labels: Record<string, string>;
    readonly created_at: Date;
  };
  /** The routine repeats what is recorded. For logging only: code that depends on it diverges. */
  readonly replaying: boolean;
  /** Aborted when this routine is dropped. */
  readonly signal: AbortSignal;
  /** Writes to stderr; nothing while `replaying`. */
  readonly log: Logger;

  /**
   * Performs `fn` in this worker, once for each permit of the server. `effect` states what a repetition does. `args`
   * are recorded, compared on replay and shown to who approves; what `fn` only closes over is not. `fn` makes no
   * requests itself. Rejects with `ToolFailed`.
   */
  run<R>(name: string, effect: Effect, fn: (call: Call) => R | Promise<R>, options?: RequestOptions): Request<R>;
  run<A extends object, R>(
    name: string,
    effect: Effect,
    args: A,
    fn: (args: A, call: Call) => R | Promise<R>,
    options?: RequestOptions,
  ): Request<R>;
  /**
   * Calls a tool that the agent may use: one of the agents file, or one that a worker registered. Rejects with
   * `ToolFailed`.
   */
  call<A, R>(tool: Tool<A, R>, args: A, options?: RequestOptions): Request<R>;
  call<R = Json>(tool: string, args?: object, options?: RequestOptions): Request<R>;
  /** A model of the agents file; the server calls it. */
  model(name: string): Model;
  /**
   * HTTP by this worker, recorded. GET and HEAD are `read`; all other methods `at_most_once` unless `effect` states
   * more. A status such as 500 is an answer. The body comes as a whole, at most about 12 MiB. Rejects with
   * `InvalidInput` (the request's body is a stream), `ToolFailed`.
   */
  fetch(
    input: string | URL | globalThis.Request,
    init?: RequestInit & { effect?: Effect; name?: string; key?: string },
  ): Promise<Response>;

  /** Waits by the store's clock. The worker need not run meanwhile. */
  sleep(duration: Duration, options?: RequestOptions): Request<void>;
  until(time: Date | string, options?: RequestOptions): Request<void>;
  /** Waits for a signal, a webhook or a human. Rejects with `Rejected`, `WaitExpired`. */
  wait<T = Json>(wait: WaitOptions): Request<T>;
  /** Waits for an approval. Rejects with `Rejected`, `WaitExpired`. */
  approval(
    question: string,
    options?: RequestOptions & { data?: Json; wait_key?: string; expires?: Duration },
  ): Request<{ by: string; note?: string }>;
  /** The next message of a channel of this job. Rejects with `WaitExpired`. */
  receive<T = Json>(channel: string, options?: RequestOptions & { expires?: Duration }): Request<T>;

  /**
   * A part of the code with names, random numbers and counters of its own. With `fold` it is a closed scope: its result
   * is recorded when it ends, and from then on its body does not run again. So it changes nothing outside of itself,
   * and inside of it only its own `ctx` may be used. Its open waits are closed at its end.
   */
  scope<R>(name: string, fn: (ctx: Ctx) => R | Promise<R>, options?: { fold?: boolean }): Promise<R>;
  /** Runs `fn` for each item, some at a time, each in the scope `name/INDEX`. The results are in order of the items. */
  map<T, R>(
    name: string,
    items: readonly T[],
    fn: (ctx: Ctx, item: T, index: number) => R | Promise<R>,
    options?: MapOptions,
  ): Promise<R[]>;
  /**
   * The first branch that ends, with its result or its error. 1 to 64 branches, each in the scope `name/BRANCH`. The
   * others make no further requests, never continue, and their waits are closed; with `go_on` they continue.
   */
  race<B extends Branches>(
    name: string,
    branches: B,
    options?: { losers?: "cancel" | "go_on" },
  ): Promise<RaceResult<B>>;
  /**
   * Repeats `fn`, each turn a closed scope `name/INDEX`, until it returns `{done}`. `{next}` is the state of the next
   * turn. A later routine runs the last turn only.
   */
  loop<S, T extends Turn<S>>(
    name: string,
    state: S,
    fn: (ctx: Ctx, state: S, index: number) => Promise<T>,
  ): Promise<Done<T>>;

  /** The time, recorded. Never earlier than before. */
  now(): Date;
  /** In [0, 1), the same in every run. */
  random(): number;
  /** Version 4, recorded. */
  uuid(): string;
  /** Is this the code after the change `id`? False in a job that had passed here before the change. */
  patched(id: string): boolean;
  /** A value for readers of the job, at most 256 KiB. No decision reads it. */
  emit(name: string, value: Json): void;
  /** As `emit`; readers of the job see the last value of this name. */
  publish(name: string, value: Json): void;
}
