// Routine: one running copy of an agent's function, for one job: its requests, its record, what is delivered to it, and
// the advance that it makes (src/routines/native/execution.h is the same in C++).
//
//   a request        matched with the record, or a part of the advance
//   settled          a macrotask has passed since the last delivery. Before the frontier the next recorded outcome is
//                    delivered. After it the advance is sent, then the next outcome that has come is delivered: one at
//                    a time, in the order in which they came.
//   dropped          or diverged, or lost: nothing is delivered, and no request settles any more
//
// What comes: durable outcomes from the server, successes of functions, and results of closed scopes.
import { Advance } from "./advance.ts";
import type { Agent, Ctx, Request, RequestOptions } from "./api.ts";
import { Context } from "./context.ts";
import { storage } from "./current.ts";
import { endOf, exceptionOf, failureText, whereOf } from "./ends.ts";
import { AetherisError, failureIn, InvalidInput, ToolFailed } from "./errors.ts";
import { blindedHash, fresh, toJson, type Json, type JsonObject } from "./json.ts";
import { childJobId, grantOf, grants } from "./job_tools.ts";
import { scrub } from "./secrets.ts";
import { OTHER_WORK_MS, OtherWork } from "./other_work.ts";
import { joined, Positions } from "./positions.ts";
import type {
  AdvanceMessage,
  DivergedMessage,
  FailureText,
  FunctionEnd,
  Item,
  Kind,
  NewRequest,
  NewWait,
  Outcome,
  RoutineEnd,
  Start,
  Success,
} from "./protocol.ts";
import { RecordedValues } from "./recorded_values.ts";
import { Replay, type Divergence } from "./replay.ts";
import {
  asRequest,
  cancelledError,
  isStopped,
  neverSettles,
  policyOf,
  rejected,
  settle,
  type Branch,
  type ClosedScope,
  type Made,
  type OpenRequest,
  type RunFunction,
} from "./request.ts";
import type { BodyStream } from "./streams.ts";

const OPEN_REQUESTS_MAX = 10_000; // of one scope
export interface RoutineHost {
  /** Calls `step` in the next macrotask. */
  schedule(routine: Routine): void;
  send(message: AdvanceMessage | DivergedMessage): void;
  /** The end of a call that no advance has. */
  endCall(call: number, end: FunctionEnd): void;
  log(level: string, message: string): void;
  /** Does this worker offer the tool? */
  offersTool(name: string): boolean;
}

/** Calls this with each routine whose code returns. For warnings. */
export function onReturn(hook: (routine: Routine) => void): void {
  returned = hook;
}
let returned: ((routine: Routine) => void) | undefined;

function isScope(kind: Kind): boolean {
  return kind === "scope" || kind === "turn";
}

type Arrived =
  | { kind: "outcome"; outcome: Outcome }
  | { kind: "success"; call: number; position: string; end: Success }
  | { kind: "stream"; call: number; position: string; stream: BodyStream }
  | { kind: "scope"; scope: ClosedScope };

export class Routine {
  readonly number: number;
  readonly start: Start;
  isScheduled = false;
  private readonly host: RoutineHost;
  private readonly otherWork: OtherWork;
  readonly agent: Agent;
  private readonly replay: Replay;
  readonly values: RecordedValues;
  private readonly endedScopes = new Set<string>(); // of the record
  private readonly withoutCall = new Set<string>(); // recorded requests that wait to be admitted
  private readonly positions = new Positions();
  private readonly open = new Map<string, OpenRequest>(); // without an outcome, by position
  private readonly running = new Set<ClosedScope>(); // closed scopes whose bodies have not returned
  private openOutside = 0; // of them, in no closed scope
  private arrived: Arrived[] = [];
  private advance = new Advance(); // the next one
  private streamed: { call: number; delivered: number } | undefined; // was given, and has not ended
  private hasUnsentAdvance = false;
  private isLive = false; // it has been at the frontier
  private isIdle = false; // it has settled, and its advance was sent
  private isInert = false; // dropped, diverged or lost
  private end: RoutineEnd | undefined;
  private readonly abort = new AbortController();
  private readonly root: Branch = { parent: undefined, isStopped: false };

  /** Throws Error: the record is not one. */
  constructor(start: Start, agent: Agent, host: RoutineHost, otherWorkMs = OTHER_WORK_MS) {
    this.number = start.routine;
    this.start = start;
    this.agent = agent;
    this.host = host;
    this.otherWork = new OtherWork(otherWorkMs);
    const { requests = [], deliveries = [], values = {}, emitted = {} } = start.record;
    for (const request of requests) {
      if ((request.kind === "tool" || request.kind === "llm") && !request.arguments_hash)
        this.withoutCall.add(request.position);
    }
    for (const outcome of deliveries) {
      this.withoutCall.delete(outcome.position);
      if (outcome.kind && isScope(outcome.kind)) this.endedScopes.add(outcome.position);
    }
    this.replay = new Replay({ requests, deliveries, values, emitted });
    this.values = new RecordedValues(start.now, this.replay, {
      mayCall: (context) => this.mayCall(context),
      record: (item) => {
        this.advance.items.push(item);
        this.touch();
      },
    });
  }

  // ---------------------------------------------------------------- for the worker

  begin(): void {
    const ctx = new Context(this, "", undefined, this.root);
    const input = fresh(this.start.input);
    void storage.run({ ctx, routine: this, closed: undefined }, async () => {
      try {
        const result = await this.agent.fn(ctx, input);
        this.finish({ result: scrub(toJson(result, `the result of the agent "${this.agent.name}"`)) });
      } catch (error) {
        this.finish(endOf(error));
      }
    });
    this.touch();
  }

  deliver(outcomes: Outcome[]): void {
    if (this.isInert) return;
    for (const outcome of outcomes) this.arrived.push({ kind: "outcome", outcome });
    this.onArrival();
  }

  /** The function that the code stated with the request at this position; undefined: none, or it has its outcome. */
  functionAt(position: string): { fn: RunFunction; args: JsonObject } | undefined {
    const request = this.open.get(position);
    return this.isInert || request?.fn === undefined ? undefined : { fn: request.fn, args: request.args };
  }

  /** The arguments of the call that was requested at this position. */
  argumentsAt(position: string): JsonObject | undefined {
    return this.open.get(position)?.args;
  }

  /** Does the code not need the outcome of this request any more? */
  hasCancelled(position: string): boolean {
    return this.open.get(position)?.isCancelled ?? false;
  }

  /**
   * Gives the routine the success of a call. False: it has an outcome already, or none is awaited, or the routine is
   * given nothing before the end of a stream: then the server records it, and delivers it afterwards.
   */
  onSuccess(call: number, position: string, end: Success): boolean {
    if (this.streamed?.call === call) {
      this.advance.functions.push({ call, ...end, delivered: this.streamed.delivered });
      this.streamed = undefined;
      this.touch();
      return true;
    }
    if (this.isInert || !this.isLive || !this.open.has(position)) return false;
    if (this.streamed !== undefined) {
      this.withdrawStream(call);
      return false;
    }
    const waiting = this.arrived.findIndex((one) => one.kind === "stream" && one.call === call);
    if (waiting >= 0) this.arrived[waiting] = { kind: "success", call, position, end };
    else this.arrived.push({ kind: "success", call, position, end });
    this.onArrival();
    return true;
  }

  /** Gives the routine the answer of a call while its body comes. Its success follows. */
  onStream(call: number, position: string, stream: BodyStream): void {
    if (this.isInert || !this.isLive || !this.open.has(position)) return;
    this.arrived.push({ kind: "stream", call, position, stream });
    this.onArrival();
  }

  /** The stream has no end, and was not given. */
  withdrawStream(call: number): void {
    this.arrived = this.arrived.filter((one) => one.kind !== "stream" || one.call !== call);
  }

  /** Nothing is sent, and no request settles any more. */
  drop(reason: string): void {
    if (this.isInert) return;
    this.becomeInert(reason);
  }

  get isReplaying(): boolean {
    return !this.replay.isAtFrontier();
  }

  /** How many outcomes it was given. */
  get delivered(): number {
    return this.replay.delivered();
  }

  get signal(): AbortSignal {
    return this.abort.signal;
  }

  log(level: string, message: string): void {
    if (!this.isInert && !this.isReplaying) this.host.log(level, message);
  }

  // ---------------------------------------------------------------- steps: one for each delivery

  /** Called in a macrotask after `schedule`: the code has settled. */
  step(): void {
    this.isScheduled = false;
    if (this.isInert) return;
    if (!this.isLive) {
      if (!this.replayNext()) return;
      this.isLive = true;
      this.hasUnsentAdvance = true;
    }
    if (this.streamed !== undefined) return; // what follows from half an answer is not sent
    if (this.hasUnsentAdvance) this.seal();
    if (!this.giveNext()) this.isIdle = true;
  }

  // Delivers the next recorded outcome. True: the frontier is reached.
  private replayNext(): boolean {
    for (;;) {
      const missing = this.replay.findMissing(this.end !== undefined);
      if (missing !== undefined) {
        if (this.end !== undefined) this.diverge(missing);
        else this.otherWork.wait(() => this.diverge(this.replay.findMissing(false) ?? missing));
        return false;
      }
      this.otherWork.stop();
      if (!this.replay.mayDeliver()) return true;
      const outcome = this.replay.deliver();
      if (outcome.passed_over !== undefined) continue;
      this.complete(outcome.position, outcome);
      this.schedule();
      return false;
    }
  }

  // After the frontier. False: nothing has come.
  private giveNext(): boolean {
    const next = this.arrived.shift();
    if (next === undefined) return false;
    this.isIdle = false;
    this.hasUnsentAdvance = true;
    this.otherWork.renew();
    switch (next.kind) {
      case "outcome":
        this.replay.countDelivery();
        this.complete(next.outcome.position, next.outcome);
        break;
      case "success":
        this.giveSuccess(next.call, next.position, next.end);
        break;
      case "stream":
        this.giveStream(next.call, next.position, next.stream);
        break;
      case "scope":
        this.giveScope(next.scope);
        break;
    }
    this.schedule();
    return true;
  }

  private giveSuccess(call: number, position: string, end: Success): void {
    if (!this.open.has(position)) return this.host.endCall(call, end); // another outcome was delivered first
    this.advance.functions.push({ call, ...end, delivered: this.replay.delivered() });
    this.replay.countDelivery();
    this.complete(position, { position, result: fresh(end.result) });
  }

  // Only to code that awaits it. Else its success is given when it comes.
  // The server records these successes, and delivers them.
  private endArrivedCalls(): void {
    for (const arrived of this.arrived)
      if (arrived.kind === "success") this.host.endCall(arrived.call, arrived.end);
    this.arrived = this.arrived.filter((arrived) => arrived.kind !== "success");
  }

  private giveStream(call: number, position: string, stream: BodyStream): void {
    const request = this.open.get(position);
    if (request === undefined || request.isCancelled || isStopped(request.branch)) return;
    this.streamed = { call, delivered: this.replay.delivered() };
    this.endArrivedCalls();
    stream.isGiven = true;
    this.replay.countDelivery();
    this.complete(position, { position, result: stream as unknown as Json });
  }

  private giveScope(scope: ClosedScope): void {
    const { position } = scope;
    const delivered = this.replay.delivered();
    const ended = scope.failure ? { failure: scope.failure } : { result: scope.result ?? null };
    this.advance.items.push({ kind: "scope_ended", position, delivered, ...ended });
    this.replay.countDelivery();
    // The values and names inside of an ended scope are not used any more.
    this.positions.forgetInside(position);
    this.values.forget(position);
    this.complete(position, {
      position,
      ...(scope.failure ? { failure: scope.failure } : { result: fresh(scope.result ?? null) }),
    });
  }

  // No effect if the request is not open: it has an outcome, or was made in an ended scope.
  private complete(position: string, outcome: Outcome): void {
    const request = this.open.get(position);
    if (request === undefined) return;
    settle(request, outcome);
    this.close(request);
  }

  private close(request: OpenRequest): void {
    this.open.delete(request.position);
    const scope = request.closed;
    if (scope === undefined) this.openOutside--;
    else if (--scope.open === 0 && scope.hasReturned && this.end === undefined)
      this.arrived.push({ kind: "scope", scope });
  }

  private onArrival(): void {
    if (this.isIdle && !this.isScheduled)
      this.giveNext(); // it has settled: no macrotask is needed
    else this.schedule();
  }

  // The code did something. If it has settled before, for example after other work, another advance is sent.
  private touch(): void {
    this.hasUnsentAdvance = true;
    this.schedule();
  }

  private schedule(): void {
    if (!this.isInert) this.host.schedule(this);
  }

  private seal(): void {
    this.otherWork.stop();
    this.hasUnsentAdvance = false;
    const message = this.advance.message(this.number, this.replay.delivered(), (position) => this.open.has(position));
    this.advance = new Advance();
    if (this.arrived.length > 0) {
      message.settled = false;
    } else if (this.doesOtherWork()) {
      const left = this.otherWork.left();
      if (left > 0) {
        message.settled = false;
        this.otherWork.wait(() => this.touch(), left);
      }
    }
    this.host.send(message);
  }

  // Does the code await something that is not a request, for example an import? Then nothing that comes can continue it,
  // and the server would take the job for stalled.
  private doesOtherWork(): boolean {
    if (this.end !== undefined) return false;
    for (const request of this.open.values()) {
      if (!isScope(request.kind) && !request.isCancelled && !isStopped(request.branch)) return false;
    }
    return true;
  }

  // ---------------------------------------------------------------- ends

  private finish(end: RoutineEnd): void {
    if (this.isInert || this.end !== undefined) return;
    this.end = end;
    this.advance.end = end;
    if ("result" in end) returned?.(this);
    this.arrived = this.arrived.filter((arrived) => arrived.kind !== "scope");
    this.touch();
  }

  /** The routine ends with this exception, whatever its code does. */
  endWithException(error: unknown): void {
    this.finish({ exception: exceptionOf(error) });
  }

  private diverge(divergence: Divergence, where?: string): void {
    const message: DivergedMessage = { type: "diverged", routine: this.number, ...divergence };
    if (this.end?.exception) message.found = { exception: { ...this.end.exception } };
    else if (this.end?.failure) message.found = { failure: { ...this.end.failure } };
    if (where !== undefined) message.where = where;
    this.host.send(message);
    this.becomeInert("diverged");
  }

  private becomeInert(reason: string): void {
    this.isInert = true;
    this.otherWork.stop();
    // Successes that were not sent end their calls without the routine.
    for (const { call, delivered: _, ...end } of this.advance.functions) this.host.endCall(call, end);
    this.endArrivedCalls();
    this.advance.functions = [];
    this.streamed = undefined;
    this.arrived = [];
    this.open.clear();
    this.abort.abort(new AetherisError("evicted", `the routine was dropped: ${reason}`));
  }

  // ---------------------------------------------------------------- calls of a Context

  /** May this Context be used here? False: its code must not continue. Throws InvalidInput, and ends the routine. */
  mayCall(context: Context): boolean {
    if (this.isInert || this.end !== undefined || isStopped(context.branch)) return false;
    const here = storage.getStore();
    if (here === undefined || here.routine !== this) return true; // the context of a library
    if (here.ctx === undefined)
      return this.refuseContext(
        "ctx was used inside of a function, which performs one call; return its result and use ctx after it",
      );
    if (here.closed === context.closed) return true;
    return this.refuseContext(
      "the ctx of another scope was used inside of a closed scope; use the ctx that the scope was given",
    );
  }

  private refuseContext(message: string): never {
    const error = new InvalidInput(message, "wrong_context");
    this.endWithException(error);
    throw error;
  }

  request<T>(context: Context, name: string, options: RequestOptions, made: Made): Request<T> {
    if (!this.mayCall(context)) return neverSettles();
    const { signal } = options;
    const isCall = made.kind === "tool" || made.kind === "llm";
    const args = scrub(made.args ?? {}); // as they are recorded; a stated function is given them as they are
    const isCompared = isCall && !this.start.blind_erased;
    const hash = isCompared && (!this.isLive || made.byContent) ? blindedHash(this.start.blind, args) : undefined;
    const position =
      made.byContent && options.key === undefined && options.name === undefined
        ? this.positionByContent(context.scope_, name, hash)
        : this.positions.next(context.scope_, options.name ?? name, { key: options.key });
    if (isCall && !this.isGranted(made.tool)) return rejected(position, this.notGranted(made.tool, position));
    const request = this.addRequest<T>(context, position, { ...made, ...policyOf(isCall, options) }, args, hash);
    if (signal !== undefined) {
      if (signal.aborted) request.cancel(String(signal.reason));
      else signal.addEventListener("abort", () => request.cancel(String(signal.reason)), { once: true });
    }
    return request;
  }

  // `uses` of the definition, if it states any. Without it, the agents file of the server may grant tools.
  private isGranted(tool: string): boolean {
    const { uses } = this.agent.definition;
    return uses === undefined || tool.startsWith("run:") || this.host.offersTool(tool) || grants(uses, tool);
  }

  /** Of the child job that is started at this position; "": unknown. */
  childId(position: string): string {
    const { job, steps } = this.start;
    return steps === undefined || position === "" ? "" : childJobId(job.id, steps, position);
  }

  private notGranted(tool: string, position: string): ToolFailed {
    const message = `the agent "${this.agent.name}" may not call "${grantOf(tool)}": add it to \`uses\` of the agent's definition`;
    return new ToolFailed("tool_not_granted", message, tool, position);
  }

  private positionByContent(scope: string, name: string, hash: string | undefined): string {
    if (hash !== undefined) return this.positions.next(scope, name, { content: hash.slice(0, 16) });
    // The blind is erased, so the hash cannot be computed again: the next of this name that the record has.
    const recorded = this.replay.unmatchedWithPrefix(`${joined(scope, name)}~`);
    return recorded ?? this.positions.next(scope, name, { content: blindedHash("erased", name).slice(0, 16) });
  }

  private addRequest<T>(
    context: Context,
    position: string,
    made: Made,
    args: JsonObject,
    hash: string | undefined,
  ): Request<T> {
    const { closed } = context;
    if ((closed ? closed.open : this.openOutside) >= OPEN_REQUESTS_MAX) {
      throw new InvalidInput(
        `a scope has at most ${OPEN_REQUESTS_MAX} requests without an outcome; await some of them first`,
      );
    }
    const isCall = made.kind === "tool" || made.kind === "llm";
    const match = this.replay.match({
      position,
      kind: made.kind,
      tool: isCall ? made.tool : undefined,
      arguments_hash: hash,
      wait: made.wait?.type,
    });
    if (match === "diverged") {
      this.diverge(this.replay.divergence as Divergence, whereOf(new Error().stack));
      return neverSettles();
    }
    if (isScope(made.kind)) {
      if (match === "new") {
        const begun: Item = { kind: "scope_begun", position, delivered: this.replay.delivered() };
        if (made.kind === "turn") begun.turn = true;
        this.advance.items.push(begun);
      }
    } else if (match === "new" || this.withoutCall.has(position)) {
      const request: NewRequest = { position, kind: made.kind, delivered: this.replay.delivered() };
      if (isCall) Object.assign(request, { tool: made.tool, arguments: args });
      if (made.options) request.options = made.options;
      if (made.wait) request.wait = scrub(made.wait as unknown as JsonObject) as unknown as NewWait;
      this.advance.requests.push(request);
    }
    let resolve!: (value: Json) => void;
    let reject!: (error: Error) => void;
    const promise = new Promise<Json>((onValue, onError) => {
      resolve = onValue;
      reject = onError;
    });
    const open: OpenRequest = {
      position,
      kind: made.kind,
      tool: made.tool,
      fn: made.fn,
      args: made.fn ? (made.args ?? {}) : args,
      closed,
      branch: context.branch,
      whenExpired: made.whenExpired ?? "fail",
      resolve,
      reject,
      isCancelled: false,
    };
    this.open.set(position, open);
    if (closed) closed.open++;
    else this.openOutside++;
    this.touch();
    return asRequest(promise, position, (reason) => {
      if (!this.isInert && this.end === undefined && !isStopped(open.branch) && this.cancelOpen(open))
        reject(cancelledError(open, reason));
    }) as Request<T>;
  }

  // False: it has an outcome, or was cancelled before.
  private cancelOpen(request: OpenRequest): boolean {
    const { position } = request;
    if (request.isCancelled || this.open.get(position) !== request) return false;
    request.isCancelled = true;
    const isUnsent = this.advance.withdraw(position);
    if (isUnsent && !this.withoutCall.has(position)) this.close(request); // as if it had not been made
    else if (request.kind !== "scope") this.advance.cancelled.push(position); // it has an outcome, which is counted
    this.touch();
    return true;
  }

  // ---------------------------------------------------------------- scopes and branches

  /** The scope of a map, a race or a scope that is not closed. */
  openScope(context: Context, name: string): string {
    return this.positions.openScope(context.scope_, name);
  }

  /** A closed scope: runs its body, unless its result is recorded. */
  closedScope<R>(context: Context, name: string, number: number | undefined, body: (ctx: Ctx) => unknown): Promise<R> {
    if (!this.mayCall(context)) return neverSettles();
    return this.runClosed(context, this.positions.closedScope(context.scope_, name, number), "scope", body);
  }

  /** A loop with this name: its position, and the number of the turn with which this routine begins. */
  beginLoop(context: Context, name: string): { loop: string; first: number } {
    const loop = this.positions.loop(context.scope_, name);
    return { loop, first: this.replay.firstTurn(loop) };
  }

  turn<R>(context: Context, loop: string, number: number, body: (ctx: Ctx) => unknown): Promise<R> {
    if (!this.mayCall(context)) return neverSettles();
    return this.runClosed(context, joined(loop, number), "turn", body);
  }

  private runClosed<R>(
    context: Context,
    position: string,
    kind: "scope" | "turn",
    body: (ctx: Ctx) => unknown,
  ): Promise<R> {
    const request = this.addRequest<R>(context, position, { kind, tool: kind }, {}, undefined);
    if (this.isInert || this.endedScopes.has(position)) return request;
    const closed: ClosedScope = {
      position,
      branch: { parent: context.branch, isStopped: false },
      open: 0,
      hasReturned: false,
    };
    const inner = new Context(this, position, closed, closed.branch);
    this.running.add(closed);
    void storage.run({ ctx: inner, routine: this, closed }, async () => {
      try {
        const result = await body(inner);
        this.endScope(closed, { result: scrub(toJson(result, `the result of the scope "${position}"`)) });
      } catch (error) {
        const failure = failureIn(error);
        if (failure) return this.endScope(closed, { failure: failureText(failure) });
        // What a scope returns is recorded. An exception is not a result, so the code ends with it.
        if (!isStopped(closed.branch)) this.endWithException(error);
      }
    });
    return request;
  }

  private endScope(closed: ClosedScope, end: { result: Json } | { failure: FailureText }): void {
    if (this.isInert || this.end !== undefined || closed.hasReturned) return;
    this.running.delete(closed);
    Object.assign(closed, end);
    closed.branch.isStopped = true; // nothing of it continues
    this.endStopped((request) => request.kind === "wait");
    closed.hasReturned = true; // from now on its last outcome ends it
    if (closed.open === 0) this.arrived.push({ kind: "scope", scope: closed });
    this.touch();
  }

  /** Stops these branches: they make no further requests, and their waits are closed. */
  stopBranches(branches: Iterable<Branch>): void {
    if (this.isInert || this.end !== undefined) return;
    for (const branch of branches) branch.isStopped = true;
    this.endStopped((request) => !isScope(request.kind));
  }

  // Cancels these requests of stopped branches. Their closed scopes never return, so they end here.
  private endStopped(isCancelled: (request: OpenRequest) => boolean): void {
    for (const request of [...this.open.values()]) {
      if (isCancelled(request) && isStopped(request.branch)) this.cancelOpen(request);
    }
    for (const closed of [...this.running].reverse()) {
      if (isStopped(closed.branch))
        this.endScope(closed, { failure: { code: "evicted", message: "this branch is not needed any more" } });
    }
  }
}
