// Functions: performs the calls for which the server gives permits, and remembers how they ended.
//
//   a success of a call of a routine   given to the routine at once; its next advance has it
//   anything else                      sent as `ended`
//   the session is gone                sent as `late` in the next one, for 10 minutes
import type { Call, Tool } from "./api.ts";
import { storage } from "./current.ts";
import { AetherisError, Failure, InvalidInput, NotDone } from "./errors.ts";
import { textOf } from "./ends.ts";
import { routes, type Route } from "./fetch.ts";
import { checkSize, fresh, isObject, toJson, type Json, type JsonObject } from "./json.ts";
import { usages } from "./model_answers.ts";
import { scrub, ScrubbedText, secretOf } from "./secrets.ts";
import { StreamHost, streamHosts } from "./streams.ts";
import type { CallName, Effect, FunctionEnd, Perform, WorkerMessage } from "./protocol.ts";
import type { RunFunction } from "./request.ts";
import type { Routine } from "./routine.ts";
import { elapsedSince, type Moment } from "./session.ts";

/** How long calls and their ends are kept for a server that lost them. */
export const KEPT_MS = 30 * 60_000; // the server keeps lost calls for 10 minutes
const ADVANCE_MS = 15_000; // more than an advance waits for a routine that does other work
const KEPT_BYTES_MAX = 64 << 20; // of the results that are kept
const COMPACT_MIN = 1_000; // calls
const LEFT_MAX = 100_000; // calls of a hello
const PROGRESS_MS = 1_000;
const PROGRESS_MAX = 4096; // bytes of JSON, of one report
const TEXT_MAX = 16 << 20; // bytes of the text of a call
const PIECE_MAX = 1 << 20; // UTF-16 units of a message of text, so that it fits into a frame

export interface FunctionsHost {
  send(message: WorkerMessage): void;
  routine(number: number): Routine | undefined;
  tool(name: string): Tool | undefined;
  /** When the newest frame that the server has acknowledged was sent, by the steady clock. */
  acknowledgedAt(): number;
  /** Is called with each call that is performed, and returns what is called with its end. */
  observe?: ((call: Observed) => (end: FunctionEnd) => void) | undefined;
  /** Where requests of ctx.fetch go. */
  route?: Route | undefined;
}

/** A call that a function performs. */
export interface Observed {
  tool: string;
  position: string | undefined;
  job: string | undefined;
  arguments: JsonObject;
  effect: Effect;
  key: string;
  try: number;
}

interface Kept {
  name: CallName | undefined; // undefined: the job is not known
  call: number;
  isGone: boolean; // its session is
  end: FunctionEnd | undefined;
  isEndStated: boolean; // an end was sent in its session, maybe before the function returned
  endedAt: number;
  bytes: number;
  abort: AbortController;
  streams?: StreamHost;
}

interface Found {
  fn: RunFunction;
  args: JsonObject;
  effect: Effect;
  routine: Routine | undefined;
  /** The server must check the result before the routine gets it. */
  isCheckedFirst: boolean;
}

export class Functions {
  private readonly host: FunctionsHost;
  private readonly calls = new Map<number, Kept>(); // of this session, that run
  private kept: Kept[] = []; // of the last 10 minutes, and all that run
  private keptBytes = 0;
  private active = 0;
  private compactAt = COMPACT_MIN;
  private waiting: (() => void)[] = [];

  constructor(host: FunctionsHost) {
    this.host = host;
  }

  /** How many functions run, also of sessions that are gone. */
  get running(): number {
    return this.active;
  }

  /** Resolves when no function runs. */
  async whenIdle(): Promise<void> {
    while (this.running > 0) await new Promise<void>((resolve) => this.waiting.push(resolve));
  }

  perform(permit: Perform, sentAt: Moment): void {
    const routine = permit.routine === undefined ? undefined : this.host.routine(permit.routine);
    const found = this.find(permit, routine);
    if (found === undefined)
      return this.notSent(
        permit,
        `this worker has no function for "${permit.tool}"${permit.position ? ` at "${permit.position}"` : ""}`,
      );
    if (!(elapsedSince(sentAt) <= permit.send_within_ms))
      return this.notSent(permit, `the permit came later than ${permit.send_within_ms} ms`);
    const isFirstTry = permit.try === 1; // a later one may make an unknown outcome known
    if (isFirstTry && permit.position !== undefined && routine?.hasCancelled(permit.position))
      return this.notSent(permit, "its code does not need it any more");
    const job = permit.job ?? routine?.start.job.id;
    const call: Kept = {
      name: job === undefined ? undefined : { job, invocation: permit.invocation, try: permit.try },
      call: permit.call,
      isGone: false,
      end: undefined,
      isEndStated: false,
      endedAt: 0,
      bytes: 0,
      abort: new AbortController(),
    };
    this.calls.set(permit.call, call);
    this.kept.push(call);
    this.active++;
    void this.run(permit, found, call);
  }

  /** Cuts a call off. What it does later is sent as `late`. */
  abandon(number: number): void {
    const call = this.calls.get(number);
    if (call !== undefined) this.cutOff(call, { unknown: { code: "abandoned", message: "the call was cut off" } });
  }

  /** Cuts off all calls of this session. */
  abandonAll(): void {
    for (const number of [...this.calls.keys()]) this.abandon(number);
  }

  /** The session is gone: its calls end as `late`. */
  onSessionGone(): void {
    for (const call of this.kept) call.isGone = true;
    this.calls.clear();
  }

  /**
   * The calls that this worker received: all that run, and those that ended within `left_for_ms`. The server has the
   * ends of earlier ones.
   */
  left(): { left: CallName[]; left_for_ms: number } {
    this.forgetOld();
    const now = performance.now();
    const named = this.kept.filter((call) => call.name !== undefined);
    const running = named.filter((call) => call.end === undefined);
    const ended = named.filter((call) => call.end !== undefined).sort((a, b) => b.endedAt - a.endedAt);
    const most = Math.max(0, LEFT_MAX - running.length);
    const known = Math.max(this.knownEnds(), now - KEPT_MS, ended[most]?.endedAt ?? 0);
    const listed = [...running, ...ended.filter((call) => call.endedAt > known)];
    return {
      left: listed.map((call) => call.name as CallName),
      left_for_ms: Math.max(0, Math.floor(now - known) - 1),
    };
  }

  /** May the server lack the end of a call? */
  get hasUnreported(): boolean {
    const acknowledged = this.host.acknowledgedAt();
    return this.kept.some((call) => call.end !== undefined && call.endedAt > acknowledged);
  }

  /** How many calls are kept. */
  get keptCount(): number {
    return this.kept.length;
  }

  // The server has the ends of calls that ended before.
  private knownEnds(): number {
    return this.host.acknowledgedAt() - ADVANCE_MS;
  }

  /** The ends that are known of calls of sessions that are gone. */
  lateEnds(): WorkerMessage[] {
    return this.kept.flatMap((call) => (call.isGone && call.end ? lateOf(call, call.end) : []));
  }

  // ---------------------------------------------------------------- one call

  private find(permit: Perform, routine: Routine | undefined): Found | undefined {
    const given = isObject(permit.arguments) ? permit.arguments : undefined;
    if (permit.tool.startsWith("run:")) {
      const stated = permit.position === undefined ? undefined : routine?.functionAt(permit.position);
      return (
        stated && {
          ...stated,
          args: given ?? fresh(stated.args),
          effect: permit.tool.slice(4) as Effect,
          routine,
          isCheckedFirst: false,
        }
      );
    }
    const tool = this.host.tool(permit.tool);
    if (tool === undefined) return undefined;
    const { effect = "at_most_once", result_schema } = tool.definition;
    const requested = permit.position === undefined ? undefined : routine?.argumentsAt(permit.position);
    return {
      fn: tool.fn as unknown as RunFunction,
      args: given ?? fresh(requested ?? {}),
      effect,
      routine,
      isCheckedFirst: result_schema !== undefined,
    };
  }

  private notSent(permit: Perform, message: string): void {
    this.host.send({
      type: "ended",
      call: permit.call,
      failure: { code: "not_sent", message, definite: true, retryable: true },
    });
  }

  private async run(permit: Perform, found: Found, call: Kept): Promise<void> {
    const timer = setTimeout(
      () => {
        this.cutOff(call, {
          unknown: { code: "timeout", message: `the function did not return within ${permit.timeout_ms} ms` },
        });
      },
      Math.min(permit.timeout_ms, 2 ** 31 - 1),
    );
    const output = new Output(permit.call, (message) => {
      if (this.calls.get(permit.call) !== call) return false;
      this.host.send(message);
      return true;
    });
    const given: Call = {
      key: permit.key,
      execution_key: permit.execution_key,
      try: permit.try,
      signal: call.abort.signal,
      traceparent: permit.traceparent ?? "",
      inputs: permit.inputs,
      secret: secretOf,
      progress: (report) => output.progress(report),
      text: (text) => output.text(text),
    };
    const { route } = this.host;
    if (route) routes.set(given, (method, url) => route(method, url, given, call.name?.job));
    const { tool, position, key } = permit;
    const { routine } = found;
    if (routine !== undefined && position !== undefined) {
      call.streams = new StreamHost(permit.call, position, routine);
      streamHosts.set(given, call.streams);
    }
    const { args, effect } = found;
    const observed = { tool, position, job: call.name?.job, arguments: args, effect, key, try: permit.try };
    const onEnd = this.host.observe?.(observed);
    const end = await endOfFunction(found.fn, args, given, found.routine ?? this, tool, effect);
    onEnd?.(end);
    clearTimeout(timer);
    output.end();
    this.onEnd(permit, found, call, end);
  }

  private onEnd(permit: Perform, found: Found, call: Kept, end: FunctionEnd): void {
    this.active--;
    call.end = end;
    call.endedAt = performance.now();
    if ("result" in end) call.bytes = sizeOf(end.result);
    this.keptBytes += call.bytes;
    const isHere = this.calls.get(permit.call) === call;
    if (isHere) this.calls.delete(permit.call);
    if (call.isGone || call.isEndStated) {
      for (const message of lateOf(call, end)) this.host.send(message);
    } else if (isHere) {
      const isGiven =
        "result" in end &&
        !found.isCheckedFirst &&
        found.routine !== undefined &&
        permit.position !== undefined &&
        found.routine.onSuccess(permit.call, permit.position, end);
      if (!isGiven) this.host.send({ type: "ended", call: permit.call, ...end });
    }
    if (this.kept.length > this.compactAt || this.keptBytes > KEPT_BYTES_MAX) this.forgetOld();
    const waiting = this.waiting;
    this.waiting = [];
    for (const resolve of waiting) resolve();
  }

  private cutOff(call: Kept, end: FunctionEnd): void {
    if (call.end !== undefined || call.isEndStated) return;
    const isWithdrawn = call.streams?.withdraw() ?? true;
    if (call.isGone || isWithdrawn) {
      call.isEndStated = true;
      if (this.calls.get(call.call) === call) {
        this.calls.delete(call.call);
        if (!call.isGone) this.host.send({ type: "ended", call: call.call, ...end });
      }
    } // else its function returns what the routine has of the answer
    const unknown = (end as { unknown: { code: string; message: string } }).unknown;
    // Not a Failure: a function that throws it does not know whether there was an effect.
    call.abort.abort(new AetherisError(unknown.code, unknown.message));
  }

  private forgetOld(): void {
    const from = performance.now() - KEPT_MS;
    const known = this.knownEnds();
    this.kept = this.kept.filter((call) => {
      const isKept = call.end === undefined || call.endedAt > (call.isGone ? from : Math.max(from, known));
      if (!isKept) this.keptBytes -= call.bytes;
      return isKept;
    });
    this.compactAt = Math.max(COMPACT_MIN, 2 * this.kept.length);
    for (let i = 0; this.keptBytes > KEPT_BYTES_MAX && i < this.kept.length; i++) {
      const call = this.kept[i] as Kept;
      if (call.bytes === 0) continue;
      this.keptBytes -= call.bytes;
      call.bytes = 0;
      call.end = { unknown: { code: "result_dropped", message: "the result is not kept any more" } };
    }
  }
}

// Progress of a call and pieces of its output, for readers.
class Output {
  private readonly call: number;
  private readonly send: (message: WorkerMessage) => boolean;
  private at = 0; // bytes of text that were sent
  private isFull = false; // a piece did not fit, and no more follows
  private newest: Json | undefined;
  private timer: NodeJS.Timeout | undefined;
  private readonly scrubbed = new ScrubbedText();

  /** `send`: false if the call has ended for the server. */
  constructor(call: number, send: (message: WorkerMessage) => boolean) {
    this.call = call;
    this.send = send;
  }

  text(text: string): void {
    this.sendText(this.scrubbed.feed(String(text).toWellFormed()));
  }

  private sendText(text: string): void {
    for (let from = 0; from < text.length && !this.isFull; ) {
      let to = Math.min(from + PIECE_MAX, text.length);
      if (to < text.length && !text.slice(from, to).isWellFormed()) to--; // both halves of a pair stay together
      const piece = text.slice(from, to);
      from = to;
      const bytes = Buffer.byteLength(piece);
      this.isFull = this.at + bytes > TEXT_MAX;
      if (this.isFull) return;
      if (this.send({ type: "text", call: this.call, at: this.at, text: piece })) this.at += bytes;
    }
  }

  progress(report: Json): void {
    const what = "the report of progress";
    const value = scrub(toJson(report, what, PROGRESS_MAX));
    checkSize(value, what, PROGRESS_MAX); // a name of a secret may be longer than its value
    this.sendProgress(value);
  }

  private sendProgress(value: Json): void {
    if (this.timer !== undefined) {
      this.newest = value;
      return;
    }
    this.send({ type: "progress", call: this.call, value });
    this.timer = setTimeout(() => {
      this.timer = undefined;
      const newest = this.newest;
      this.newest = undefined;
      if (newest !== undefined) this.sendProgress(newest);
    }, PROGRESS_MS);
  }

  end(): void {
    this.sendText(this.scrubbed.end());
    clearTimeout(this.timer);
    this.timer = undefined;
  }
}

function sizeOf(result: Json): number {
  return result !== null && typeof result === "object"
    ? JSON.stringify(result).length
    : typeof result === "string"
      ? result.length
      : 8;
}

/** Performs a call; how it ended. */
export async function endOfFunction(
  fn: RunFunction,
  args: JsonObject,
  call: Call,
  routine: object,
  tool: string,
  effect: Effect,
): Promise<FunctionEnd> {
  try {
    // Code in a function has no ctx.
    const here = { ctx: undefined, routine, closed: undefined };
    const end = endOfResult(await storage.run(here, async () => fn(args, call)), tool, effect);
    const usage = usages.get(call);
    return usage && "result" in end ? { ...end, usage } : end;
  } catch (error) {
    return endOfError(error);
  }
}

function endOfResult(result: unknown, tool: string, effect: Effect): FunctionEnd {
  try {
    return { result: scrub(toJson(result, `the result of "${tool}"`)) };
  } catch (error) {
    if (!(error instanceof InvalidInput)) throw error;
    // It happened, but what it returned cannot be recorded. Of an at_most_once call nothing more is known.
    const text = { code: "tool_output_invalid", message: textOf(error.message) };
    return effect === "at_most_once" ? { unknown: text } : { failure: { ...text, definite: false, retryable: false } };
  }
}

// A Failure states that there was no effect. Of any other error that is not known.
function endOfError(error: unknown): FunctionEnd {
  if (error instanceof Failure) {
    const failure = { code: error.code, message: textOf(error.message), definite: true };
    if (!(error instanceof NotDone)) return { failure };
    const after =
      error.retry_after_ms === undefined ? {} : { retry_after_ms: Math.max(0, Math.round(error.retry_after_ms)) };
    return { failure: { ...failure, retryable: error.retryable, ...after } };
  }
  const isError = error instanceof Error;
  const message = isError
    ? `${error.name}: ${error.message}`
    : `the function threw a value that is not an Error: ${String(error)}`;
  return { unknown: { code: "exception", message: textOf(message) } };
}

function lateOf(call: Kept, end: FunctionEnd): WorkerMessage[] {
  // What is not known adds nothing to what the server knows.
  return call.name === undefined || "unknown" in end ? [] : [{ type: "late", ...call.name, ...end }];
}
