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
   * The outcome is not needed any more: the promise rejects with `Cancelled`. A wait is closed, a call that was not
   * sent is withdrawn. A call that was sent is awaited by the server, because what it did must be known; a `read` is
   * cut off. The outcome is recorded, and not given.
   */
  cancel(reason?: string): void;
}

/** A child job that `ctx.start` started: a promise of its result. `cancel` cancels the job. */
export interface Child<R> extends Request<R> {
  /** Of its job, known before it is created: `ctx.send` and a result can name it. */
  readonly id: string;
  /** The same as awaiting it. */
  result(): Promise<R>;
}

/** How a child job is started. */
export interface StartOptions {
  /** As of a request. */
  key?: string;
  /** As of a request; the default is the name of the agent. */
  name?: string;
  /** As of a request. */
  signal?: AbortSignal;
  /** Not awaited, and not cancelled with this job: the result is `{job: ID}`, once it is created. */
  detached?: boolean;
}

/** Which wait of another job is sent to: its `receive` of a channel, or its `wait` for a signal with this key. */
export type Recipient = { channel: string } | { key: string };

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
  /**
   * The value of the environment variable NAME, or of the file that NAME_FILE names. It does not leave the worker: in
   * all that is sent it is replaced by `[secret NAME]`. Throws `AetherisError` with the code `secret_missing`.
   */
  secret(name: string): string;
  /**
   * Reports progress to readers, at most once a second; of several reports the newest. Not recorded. Throws
   * InvalidInput: the report has more than 4,096 bytes as JSON.
   */
  progress(report: Json): void;
  /** A piece of output for readers. Not recorded. What follows the first 16 MiB of a call is dropped. */
  text(text: string): void;
}

/** How a request is named, bounded and cancelled. */
export interface RequestOptions {
  /** Names the request in its scope instead of the count of its name. 1 to 128 characters; used once in a scope. */
  key?: string;
  /** The name of the request; the default is that of the tool, `model:NAME`, `sleep`, `receive`, … */
  name?: string;
  /** Of a call: not longer than that of its tool. So are the other two: they are stricter than the tool's. */
  timeout?: string;
  /** Fewer tries, longer delays. */
  retry?: Pick<Retry, "max_attempts" | "initial_backoff" | "max_backoff">;
  /** What follows an unknown outcome: less than the tool's, in this order. */
  on_in_doubt?: "resend" | "probe" | "fail" | "park";
  /** Cancels the request when it is aborted. Abort it only because of what `ctx` delivered. */
  signal?: AbortSignal;
}

/** Which failures of a call are followed by another try, how often and after which time. */
export interface Retry {
  /** Of all tries. Default: 4 of a `read`, else 1. */
  max_attempts?: number;
  /** The delay before the second try. Default: `1s` of a `read`, else `200ms`. */
  initial_backoff?: string;
  /** Default: `1m` of a `read`, else `10s`. */
  max_backoff?: string;
  /** Of each delay, from the one before. Default: 2. */
  multiplier?: number;
  /**
   * Codes of failures: `connect`, `timeout`, `worker_lost`, `exception`, those of your `NotDone`, … Default: `connect`; of
   * a `read` also `timeout`, `reset`, `408`, `429`, `5xx`.
   */
  retry_on?: string[];
}

/** The policy of a tool, with the names and defaults of the agents file. */
export interface ToolDefinition {
  /** What a repeated call does. Default: `at_most_once`. */
  effect?: Effect;
  /** What it does, for the models that may call it. */
  description?: string;
  /** Of each try. Default: `30s`. */
  timeout?: string;
  /** How long after its timeout a call may still have an effect: a probe waits for it. Default: `30s`. */
  grace?: string;
  /** Default: four tries of a `read`, else one. */
  retry?: Retry;
  /**
   * What follows an unknown outcome. `resend` (the default, but for `at_most_once`): it is sent again with the same key,
   * after a crash of the server at once, else as `retry` states. `park` (of `at_most_once`): the job waits for an
   * operator. `probe`: another tool finds out. `fail`: the call fails.
   */
  on_in_doubt?: "resend" | "probe" | "park" | "fail";
  /** `{tool, args, happened}`: how to find out whether a call happened. */
  probe?: Json;
  /** How long the other system remembers a key. Default: `24h`. */
  dedupe_window?: string;
  /** A JSON Schema; the server checks the arguments of each call. */
  args_schema?: JsonObject;
  /** The server checks it: the result reaches the agent after its commit, not before. */
  result_schema?: JsonObject;
  /** Each call waits for an approval. */
  approval?: "required";
  /** Labels for policies. */
  capabilities?: string[];
  /** What a call changes, for `verify`. */
  changes?: Json;
  /** How a change is verified after a recovery. */
  verify?: Json;
  /** `{tool, args}`: the call that undoes a call, if the job fails. */
  compensate?: Json;
  /** Bytes of a result. Default: 1 MiB; at most 16 MiB. */
  output_max?: number | string;
  /** A call that reports no `progress` for this long times out. */
  heartbeat_timeout?: string;
}

/** What the server knows of an agent. An agent of this name in the agents file holds instead. */
export interface AgentDefinition {
  /** Jobs stay with the version under which they were created. Default: AETHERIS_VERSION, else none. */
  version?: string;
  /** For the people who start it, and the models that may call it. */
  description?: string;
  /**
   * The tools and models that the agent may call besides the tools of its worker: names, `NAME.*`, `*`, `model:NAME`;
   * `agent:NAME`, which it may start; `job:send`, for `send`. Another one is rejected with `tool_not_granted`.
   */
  uses?: string[];
  /** A JSON Schema; a job whose input breaks it is not created. */
  input_schema?: JsonObject;
  /** A JSON Schema; a job whose result breaks it fails. */
  output_schema?: JsonObject;
  /** Calls of one job at a time: 1 to 1024. Default: 64. */
  parallel?: number;
  /** What follows an exception that is no failure. Default: `park`. */
  on_exception?: "park" | "fail";
}

/** Made by `tool`. */
export interface Tool<A = Json, R = Json> {
  readonly kind: "tool";
  readonly name: string;
  readonly definition: ToolDefinition;
  readonly fn: (args: A, call: Call) => R | Promise<R>;
}

/** Made by `agent`. */
export interface Agent<I = Json, R = Json> {
  readonly kind: "agent";
  readonly name: string;
  readonly definition: AgentDefinition;
  readonly fn: (ctx: Ctx, input: I) => R | Promise<R>;
}

/** A message of a conversation with a model (docs/models.md). */
export interface Message {
  /** Whose message it is; `tool` is the result of a call. */
  role: "system" | "user" | "assistant" | "tool";
  content: Json;
  [key: string]: Json;
}

/** A request to a model, in the form that is the same for all providers. */
export interface ModelRequest {
  /** The conversation so far. */
  messages: Message[];
  temperature?: number;
  /** Of the answer. */
  max_tokens?: number;
  /** The answer is JSON of this schema, in `json`. */
  schema?: JsonObject;
  [key: string]: Json | undefined;
}

/** The answer of a model, in the form that is the same for all providers (docs/models.md). */
export interface Answer {
  /** Empty: there is none, for example beside calls. */
  text: string;
  /** Why it ended, for example `stop`, `length` or `tool_calls`. */
  finish_reason: string;
  /** The model as the provider names it. */
  model: string;
  /** Tokens. */
  usage: JsonObject;
  /** The answer to a request with a schema. */
  json?: Json;
  /** The model refused to answer. */
  refusal?: string;
  /** The visible thoughts of the model, in the form of the provider. */
  blocks?: Json[];
  /** What the model wants to call. */
  tool_calls?: Json[];
}

/** A model of the agents file. */
export interface Model {
  /** Calls the model with a request. */
  generate(request: ModelRequest, options?: RequestOptions): Request<Answer>;
  /** The text of the answer to one message. */
  text(prompt: string, options?: RequestOptions): Request<string>;
  /** The answer to one message as JSON of this schema. The server checks it, and repeats the call once if it is not. */
  json<T = Json>(prompt: string, schema: JsonObject, options?: RequestOptions): Request<T>;
}

/** A wait for an answer from outside. */
export interface WaitOptions extends RequestOptions {
  /** Who answers: `aetheris signal`, a webhook of another system, or an approver. */
  type: "signal" | "webhook" | "human";
  /** The key that the answer names. Default: the id of the step. */
  wait_key?: string;
  /** After this time `on_expire` decides. Default: never. */
  expires?: Duration;
  /** `fail` (the default): `WaitExpired`. `continue`: the result is null. */
  on_expire?: "fail" | "continue";
  /** Of a human wait: a decision (yes or no; the default), or any data. */
  answer?: "decision" | "data";
  /** Of a human wait: what the approver is shown. */
  question?: string;
  /** What the question is about, at most 64 KiB. */
  data?: Json;
}

/** Writes what the worker reports. */
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

/** How a map runs its items. */
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
  /**
   * Starts a job of another agent, which `uses` names as `agent:NAME`. The job is created once, and is cancelled when
   * this one ends without its result. Rejects with `ToolFailed`, with the code of the child: also `not_found` (there is
   * no such agent), `cancelled`.
   */
  start(agent: Agent<never, unknown> | string, input: object, options: StartOptions & { detached: true }): Child<{ job: string }>;
  start<I extends object, R>(agent: Agent<I, R>, input: I, options?: StartOptions): Child<R>;
  start<R = Json>(agent: string, input?: object, options?: StartOptions): Child<R>;
  /**
   * Sends a message or a signal to another job of the store, once; `uses` names it as `job:send`. What the job does not
   * wait for yet is kept for it. Rejects with `ToolFailed`: `not_found`, `job_terminal` (it has ended), `wait_mismatch`
   * (the wait with this key is not a wait for a signal, or had another answer).
   */
  send(job: string, to: Recipient, payload: Json, options?: RequestOptions): Request<void>;
  /** A model of the agents file; the server calls it. */
  model(name: string): Model;
  /**
   * HTTP by this worker, recorded. GET and HEAD are `read`; all other methods `at_most_once` unless `effect` states
   * more. A `read` that is answered 408, 429 or 5xx, or not at all, is tried again by the engine, four times in all. Any
   * other status is an answer. The body comes as a whole, at most about 12 MiB, unless its type is that of a stream
   * (`text/event-stream`, `application/x-ndjson`, `application/jsonl`): then while it comes. Nothing that the agent
   * requests meanwhile is sent before its end. If it breaks, reading it rejects with `ToolFailed`.
   *
   * `redirect`: `follow` (the default; at most 20, within the call), `manual` (the redirect is the answer), or `error` (it
   * is recorded, and the promise rejects with the code `http_302` or such). Rejects with `InvalidInput` (the request's
   * body is a stream), `ToolFailed`.
   */
  fetch(
    input: string | URL | globalThis.Request,
    init?: RequestInit & { effect?: Effect; name?: string; key?: string },
  ): Promise<Response>;

  /** Waits by the store's clock. The worker need not run meanwhile. */
  sleep(duration: Duration, options?: RequestOptions): Request<void>;
  /** Waits until this time of the store's clock. */
  until(time: Date | string, options?: RequestOptions): Request<void>;
  /** Waits for a signal, a webhook or a human. Rejects with `Rejected`, `WaitExpired`. */
  wait<T = Json>(wait: WaitOptions): Request<T>;
  /** Waits for an approval. `by`: the key of the approver, if the server has keys. Rejects with `Rejected`, `WaitExpired`. */
  approval(
    question: string,
    options?: RequestOptions & { data?: Json; wait_key?: string; expires?: Duration },
  ): Request<{ decision: "approve"; by?: string; note?: string }>;
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

/** How a worker connects. */
export interface ServeOptions {
  /** The server's Unix socket. */
  socket?: string;
  /**
   * The server's address, `http://` or `https://`. Without `socket` and `url`: AETHERIS_SOCKET, then AETHERIS_URL, then
   * `.aetheris/aetheris.sock` in the current folder or a parent, then http://127.0.0.1:7070.
   */
  url?: string;
  /** Default: AETHERIS_API_KEY. */
  api_key?: string;
  /** Routines and calls at a time. Default: 256 each. */
  capacity?: { routines?: number; calls?: number };
  /** Called with what the worker reports; the default writes to stderr. */
  log?: (level: "info" | "warn" | "error", message: string) => void;
  /** How long code may do work that is not a request before a recorded request counts as missing. Default: 10 s. */
  other_work_ms?: number;
}

/** What `serve` returns. */
export interface Worker {
  /** Resolves when the worker has stopped; rejects with `ConnectionFailed` if the server refused it. */
  readonly closed: Promise<void>;
  /**
   * Stops in order: no further routine is started here; functions that run are awaited for `grace_ms` (30 s), then
   * cut off; their ends are sent. Jobs continue in other workers.
   */
  stop(grace_ms?: number): Promise<void>;
}
