// Context: the calls of an agent's code as requests of its routine.
import type {
  Answer,
  Branches,
  Child,
  Ctx,
  Done,
  Duration,
  Effect,
  Logger,
  MapOptions,
  Model,
  ModelRequest,
  RaceResult,
  Recipient,
  Request,
  RequestOptions,
  StartOptions,
  Turn,
  WaitOptions,
} from "./api.ts";
import { mapItems, raceBranches, repeat } from "./branches.ts";
import type { AnyAgent, AnyTool } from "./definitions.ts";
import { InvalidInput } from "./errors.ts";
import { fetchRecorded, type FetchInit } from "./fetch.ts";
import { isObject, toJson, type Json, type JsonObject } from "./json.ts";
import { storage } from "./current.ts";
import { childTool, SEND } from "./job_tools.ts";
import type { Kind, NewWait } from "./protocol.ts";
import { asRequest, converted, neverSettles, type Branch, type ClosedScope, type RunFunction } from "./request.ts";
import type { Routine } from "./routine.ts";
import { durationMs } from "./values.ts";

const KEY_BYTES_MAX = 256; // of the key of a wait, and of a channel
const EFFECTS: readonly string[] = ["read", "idempotent", "at_most_once"];

export function argumentsOf(args: unknown, tool: string): JsonObject {
  const json = toJson(args === undefined ? {} : args, `the arguments of "${tool}"`);
  if (!isObject(json)) throw new InvalidInput(`the arguments of "${tool}" must be an object`);
  return json;
}

function waitText(text: string | undefined, what: string): string | undefined {
  if (text === undefined) return undefined;
  if (typeof text !== "string" || text === "" || Buffer.byteLength(text) > KEY_BYTES_MAX || !text.isWellFormed()) {
    throw new InvalidInput(`${what} has 1 to ${KEY_BYTES_MAX} bytes of text`);
  }
  return text;
}

export class Context implements Ctx {
  readonly scope_: string; // "" or "items/2"
  readonly closed: ClosedScope | undefined;
  readonly branch: Branch;
  readonly routine: Routine;
  readonly job: Ctx["job"];
  readonly log: Logger;
  readonly fetch: Ctx["fetch"];

  constructor(routine: Routine, scope: string, closed: ClosedScope | undefined, branch: Branch) {
    this.routine = routine;
    this.scope_ = scope;
    this.closed = closed;
    this.branch = branch;
    const { id, agent, labels, created_at } = routine.start.job;
    this.job = { id, agent, labels: { ...labels }, created_at: new Date(created_at) };
    const write = (level: string) => (message: string, fields?: Record<string, unknown>) => {
      routine.log(level, fields === undefined ? message : `${message} ${JSON.stringify(fields)}`);
    };
    this.log = { debug: write("debug"), info: write("info"), warn: write("warn"), error: write("error") };
    // Libraries call it without `this`.
    this.fetch = (input, init) => this.fetchRecorded(input, init as FetchInit);
  }

  private fetchRecorded(input: string | URL | globalThis.Request, init: FetchInit | undefined): Promise<Response> {
    return fetchRecorded(this, input, init);
  }

  get replaying(): boolean {
    return this.routine.isReplaying;
  }

  get signal(): AbortSignal {
    return this.routine.signal;
  }

  // ---------------------------------------------------------------- calls

  run(name: string, effect: Effect, ...rest: unknown[]): Request<never> {
    const hasArgs = typeof rest[0] !== "function";
    const args = argumentsOf(hasArgs ? rest[0] : {}, name);
    const fn = rest[hasArgs ? 1 : 0];
    const options = (rest[hasArgs ? 2 : 1] ?? {}) as RequestOptions;
    if (typeof fn !== "function") throw new InvalidInput(`ctx.run("${name}", effect, args, fn): fn must be a function`);
    if (!EFFECTS.includes(effect)) {
      throw new InvalidInput(
        `ctx.run("${name}"): the effect is read, idempotent or at_most_once, not "${String(effect)}"`,
      );
    }
    const perform: RunFunction = hasArgs ? (given, call) => fn(given, call) : (_, call) => fn(call);
    return this.stated(name, effect, args, perform, options);
  }

  /** A call of a function that is stated with it. */
  stated<T>(
    name: string,
    effect: Effect,
    args: JsonObject,
    fn: RunFunction,
    options: RequestOptions,
    byContent = false,
  ): Request<T> {
    return this.routine.request(this, name, options, { kind: "tool", tool: `run:${effect}`, args, fn, byContent });
  }

  call(tool: AnyTool | string, args?: unknown, options: RequestOptions = {}): Request<never> {
    const name = typeof tool === "string" ? tool : tool.name;
    return this.requestCall("tool", name, args, options);
  }

  private requestCall<T>(kind: Kind, tool: string, args: unknown, options: RequestOptions): Request<T> {
    if (typeof tool !== "string" || tool === "") throw new InvalidInput("a call names its tool");
    return this.routine.request(this, tool, options, { kind, tool, args: argumentsOf(args, tool) });
  }

  start(agent: AnyAgent | string, input?: unknown, options: StartOptions = {}): Child<never> {
    const name = typeof agent === "string" ? agent : agent.name;
    if (typeof name !== "string" || name === "") throw new InvalidInput("ctx.start names an agent");
    const { detached = false, ...requestOptions } = options;
    const tool = childTool(name, detached);
    const args = argumentsOf(input, name);
    const request = this.routine.request<never>(this, name, requestOptions, { kind: "tool", tool, args });
    return Object.defineProperties(request, {
      id: { value: this.routine.childId(request.position), enumerable: true },
      result: { value: () => request },
    }) as Child<never>;
  }

  send(job: string, to: Recipient, payload: Json, options: RequestOptions = {}): Request<void> {
    const { channel, key } = to as { channel?: string; key?: string };
    if (typeof job !== "string" || (channel === undefined) === (key === undefined)) {
      throw new InvalidInput("ctx.send(job, to, payload): job is the id of a job, and to is {channel} or {key}");
    }
    const at = channel === undefined ? { key: waitText(key, "a key") } : { channel: waitText(channel, "a channel") };
    const made = { kind: "tool" as const, tool: SEND, args: argumentsOf({ job, to: at, payload: payload ?? null }, SEND) };
    return converted(this.routine.request(this, "send", options, made), () => {});
  }

  model(name: string): Model {
    const generate = (request: ModelRequest, options: RequestOptions = {}): Request<Answer> =>
      this.requestCall("llm", `model:${name}`, request, options);
    const ask = (prompt: string): ModelRequest => ({ messages: [{ role: "user", content: prompt }] });
    return {
      generate,
      text: (prompt, options) => converted(generate(ask(prompt), options), (answer) => answer.text),
      json: <T = Json>(prompt: string, schema: JsonObject, options?: RequestOptions) =>
        converted(generate({ ...ask(prompt), schema }, options), (answer) => answer.json as T),
    };
  }

  // ---------------------------------------------------------------- waits

  private requestWait<T>(
    name: string,
    wait: NewWait,
    options: RequestOptions,
    whenExpired?: "fail" | "continue",
  ): Request<T> {
    return this.routine.request(this, name, options, {
      kind: "wait",
      tool: wait.type,
      wait,
      ...(whenExpired ? { whenExpired } : {}),
    });
  }

  sleep(duration: Duration, options: RequestOptions = {}): Request<void> {
    return this.requestWait("sleep", { type: "timer", lasts_ms: durationMs(duration) }, options);
  }

  until(time: Date | string, options: RequestOptions = {}): Request<void> {
    const at = new Date(time);
    if (Number.isNaN(at.getTime()) || at.getUTCFullYear() < 0 || at.getUTCFullYear() > 9999) {
      throw new InvalidInput(
        `ctx.until: "${String(time)}" is not a time; give a Date or a text such as 2026-01-31T12:00:00Z`,
      );
    }
    return this.requestWait("until", { type: "timer", due_at: at.toISOString().replace("Z", "000Z") }, options);
  }

  wait<T = Json>(wait: WaitOptions): Request<T> {
    const { type, wait_key, expires, on_expire, answer, question, data } = wait;
    if (type !== "signal" && type !== "webhook" && type !== "human") {
      throw new InvalidInput(`ctx.wait: the type is signal, webhook or human, not "${String(type)}"`);
    }
    const made: NewWait = { type };
    const key = waitText(wait_key, "the key of a wait");
    if (key !== undefined) made.key = key;
    if (expires !== undefined) made.expires_ms = durationMs(expires);
    if (type === "human" && answer === "data") made.accepts_data = true;
    if (type === "human" && question !== undefined) made.question = toJson(question, "the question") as string;
    if (type === "human" && data !== undefined) made.data = toJson(data, "the data of the question");
    return this.requestWait(type, made, wait, on_expire ?? "fail");
  }

  approval(
    question: string,
    options: RequestOptions & { data?: Json; wait_key?: string; expires?: Duration } = {},
  ): Request<{ decision: "approve"; by?: string; note?: string }> {
    return this.wait({ name: "approval", ...options, type: "human", question });
  }

  receive<T = Json>(channel: string, options: RequestOptions & { expires?: Duration } = {}): Request<T> {
    const wait: NewWait = { type: "message", channel: waitText(channel, "a channel") ?? "" };
    if (options.expires !== undefined) wait.expires_ms = durationMs(options.expires);
    return this.requestWait("receive", wait, options);
  }

  // ---------------------------------------------------------------- scopes

  /** A Context for a part of the code: a branch, an item, a scope that is not closed. */
  inner(scope: string): Context {
    return new Context(this.routine, scope, this.closed, { parent: this.branch, isStopped: false });
  }

  /** Runs code with this Context as the current one. */
  async enter<R>(fn: (ctx: Ctx) => R | Promise<R>): Promise<R> {
    return await storage.run({ ctx: this, routine: this.routine, closed: this.closed }, () => fn(this));
  }

  scope<R>(name: string, fn: (ctx: Ctx) => R | Promise<R>, options: { fold?: boolean } = {}): Promise<R> {
    if (options.fold) return this.routine.closedScope<R>(this, name, undefined, fn);
    if (!this.routine.mayCall(this)) return neverSettles();
    const result = this.inner(this.routine.openScope(this, name)).enter(fn);
    return asRequest(result, name, () => {});
  }

  map<T, R>(
    name: string,
    items: readonly T[],
    fn: (ctx: Ctx, item: T, index: number) => R | Promise<R>,
    options: MapOptions = {},
  ): Promise<R[]> {
    return mapItems(this, name, items, fn, options);
  }

  race<B extends Branches>(
    name: string,
    branches: B,
    options: { losers?: "cancel" | "go_on" } = {},
  ): Promise<RaceResult<B>> {
    return raceBranches(this, name, branches, options.losers ?? "cancel");
  }

  loop<S, T extends Turn<S>>(
    name: string,
    state: S,
    fn: (ctx: Ctx, state: S, index: number) => Promise<T>,
  ): Promise<Done<T>> {
    return repeat(this, name, state, fn);
  }

  // ---------------------------------------------------------------- values

  now(): Date {
    return this.routine.values.now(this);
  }
  random(): number {
    return this.routine.values.random(this);
  }
  uuid(): string {
    return this.routine.values.uuid(this);
  }
  patched(id: string): boolean {
    return this.routine.values.patched(this, id);
  }
  emit(name: string, value: Json): void {
    this.routine.values.emit(this, name, value, false);
  }
  publish(name: string, value: Json): void {
    this.routine.values.emit(this, name, value, true);
  }
}
