// A model of the engine for one job of code: it records advances and outcomes as src/engine/code does, checks that they
// can be recorded, and makes the record from which a new routine is run.
import { blindedHash, type Json, type JsonObject } from "../../src/json.ts";
import { isInside } from "../../src/positions.ts";
import type {
  AdvanceMessage,
  CodeRecord,
  FailureText,
  Kind,
  NewRequest,
  NewWait,
  Outcome,
  RoutineEnd,
  ServerMessage,
  Start,
} from "../../src/protocol.ts";

export interface LoggedRequest {
  position: string;
  kind: Kind;
  tool?: string;
  arguments?: JsonObject;
  arguments_hash?: string;
  wait?: NewWait;
  delivered: number;
  ended: boolean;
  isSent: boolean; // a call that is in flight, or may be
  isBackingOff?: boolean; // its next try comes later
  call?: number; // of the permit that was given last
  outcome?: Outcome;
  positionOfOutcome?: number;
}

export class Refused extends Error {}

export interface EngineOptions {
  agent?: string;
  input?: Json;
  blind_erased?: boolean;
  /** A request that is admitted now. The others wait until `admitAll`. */
  admits?: (request: NewRequest) => boolean;
  /** A call that is not admitted now, and is recorded without its arguments: it waits for an approval. */
  records?: (request: NewRequest) => boolean;
}

function isScope(kind: string): boolean {
  return kind === "scope" || kind === "turn";
}

/** The position of the turn before this one; undefined: it is the first. */
function turnBefore(position: string): string | undefined {
  const slash = position.lastIndexOf("/");
  const number = Number(position.slice(slash + 1));
  return number === 0 ? undefined : `${position.slice(0, slash)}/${number - 1}`;
}

export class Engine {
  readonly blind = "5f0c2b7a94d1e86338a1c97fd2406be5";
  readonly log = new Map<string, LoggedRequest>(); // in the order of their starts
  readonly outcomes: string[] = []; // in log order
  readonly positions = new Set<number>(); // of outcomes that state theirs
  readonly values: Record<string, Json> = {};
  readonly emitted: Record<string, number> = {};
  readonly emittedValues: { scope: string; name: string; value: Json; published: boolean }[] = [];
  readonly performed: { position: string; try: number; arguments: Json }[] = [];
  end: RoutineEnd | undefined;
  settled = true;
  advances = 0;
  cancelled: string[] = []; // positions of requests that the code does not need, in the order of the cancels
  private isLive = false; // the routine has been at the frontier
  private notNeeded = new Set<string>(); // of this routine
  private readonly options: EngineOptions;
  private wanted: NewRequest[] = [];
  private routine = 0;
  private calls = 0;
  private readonly callPositions = new Map<number, string>(); // of this routine's permits
  outbox: ServerMessage[] = [];

  constructor(options: EngineOptions = {}) {
    this.options = options;
  }

  /** A new routine: the one before is gone, and what it requested and was not admitted with it. */
  start(now = "2026-01-01T00:00:00.000000Z"): Start {
    this.routine++;
    this.wanted = [];
    this.outbox = [];
    this.isLive = false;
    this.notNeeded.clear();
    this.callPositions.clear();
    return {
      type: "start",
      routine: this.routine,
      job: {
        id: "job-1",
        agent: this.options.agent ?? "agent",
        labels: { team: "a" },
        created_at: "2026-01-01T00:00:00.000000Z",
      },
      steps: { decision: "0123456789abcdef", path: "0/0" },
      agent: this.options.agent ?? "agent",
      input: this.options.input ?? null,
      now,
      blind: this.options.blind_erased ? "" : this.blind,
      ...(this.options.blind_erased ? { blind_erased: true } : {}),
      record: JSON.parse(JSON.stringify(this.record())) as CodeRecord,
    };
  }

  /** Inside of a scope that has ended, or a turn before the last one of its loop that has ended. */
  private isFolded(position: string): boolean {
    return this.outcomes.some((ended) => {
      if (!isScope(this.at(ended).kind)) return false;
      if (isInside(position, ended)) return true;
      return this.at(ended).kind === "turn" && position === turnBefore(ended);
    });
  }

  record(): CodeRecord {
    const record: CodeRecord = { requests: [], deliveries: [], values: this.values, emitted: this.emitted };
    for (const { position, kind, tool, arguments_hash, wait, delivered } of this.log.values()) {
      if (this.isFolded(position)) continue;
      record.requests.push({
        position,
        kind,
        delivered,
        ...(tool ? { tool } : {}),
        ...(arguments_hash ? { arguments_hash } : {}),
        ...(wait ? { wait: wait.type } : {}),
      });
    }
    let free = 0;
    const inOrder: Outcome[] = [];
    for (const position of this.outcomes) {
      const request = this.at(position);
      let at = request.positionOfOutcome;
      if (at === undefined) {
        while (this.positions.has(free)) free++;
        at = free++;
      }
      inOrder[at] = request.outcome as Outcome;
    }
    for (const outcome of inOrder) {
      const last = record.deliveries.at(-1);
      if (!this.isFolded(outcome.position)) record.deliveries.push(outcome);
      else if (last?.passed_over !== undefined) last.passed_over++;
      else record.deliveries.push({ passed_over: 1 } as Outcome);
    }
    return record;
  }

  // ---------------------------------------------------------------- from the routine

  receive(message: AdvanceMessage): void {
    if (message.routine !== this.routine) throw new Refused("an advance of a routine that is gone");
    if (this.end !== undefined && message.end !== undefined) throw new Refused("the routine ended before");
    this.advances++;
    for (const { call, result, delivered } of message.functions ?? []) {
      const position = this.callPositions.get(call);
      if (position === undefined) throw new Refused(`no call ${call}`);
      this.addOutcome({ position, kind: "tool", result }, delivered);
    }
    for (const item of message.items ?? []) {
      switch (item.kind) {
        case "value":
          if (item.name in this.values) throw new Refused(`the value ${item.name} was recorded before`);
          this.values[item.name] = item.value;
          break;
        case "scope_begun":
          if (item.turn) this.checkTurn(item.position);
          this.addRequest({ position: item.position, kind: item.turn ? "turn" : "scope", delivered: item.delivered });
          break;
        case "scope_ended": {
          for (const request of this.log.values()) {
            if (isInside(request.position, item.position) && !request.ended)
              throw new Refused(`${item.position} ended before ${request.position}`);
          }
          this.addOutcome(
            {
              position: item.position,
              kind: this.at(item.position).kind,
              ...(item.failure ? { failure: item.failure } : { result: item.result ?? null }),
            },
            item.delivered,
          );
          break;
        }
        case "emitted":
          this.emitted[item.scope] = (this.emitted[item.scope] ?? 0) + 1;
          this.emittedValues.push(item);
          break;
      }
    }
    for (const request of message.requests ?? []) {
      const known = this.log.get(request.position);
      if (known && (known.ended || known.kind !== request.kind || known.kind === "wait" || known.arguments))
        throw new Refused(`${request.position} was requested before`);
      if (request.delivered > this.outcomes.length)
        throw new Refused(`${request.delivered} outcomes are counted; the log has ${this.outcomes.length}`);
      this.wanted.push(request);
    }
    this.settled = message.settled !== false;
    if (message.end) this.end = message.end;
    this.isLive = true;
    for (const position of message.cancelled ?? []) this.cancel(position);
    this.admit(this.options.admits ?? (() => true));
    this.permitStated();
  }

  admitAll(): void {
    this.admit(() => true);
  }

  /** The next tries of calls that back off. */
  retryAll(): void {
    for (const request of this.log.values()) delete request.isBackingOff;
    if (this.isLive) this.permitStated();
  }

  // The permits of requests that the log has already: their function is stated again.
  private permitStated(): void {
    for (const request of this.log.values()) {
      const isStated = request.tool?.startsWith("run:") && request.arguments && !request.isBackingOff;
      if (!request.ended && isStated && !this.isPermitted(request)) this.permit(request);
    }
  }

  private admit(admits: (request: NewRequest) => boolean): void {
    if (this.end !== undefined) return;
    this.wanted = this.wanted.filter((request) => {
      const known = this.log.get(request.position);
      if (!admits(request)) {
        if (request.kind !== "wait" && !known && this.options.records?.(request)) this.addRequest(request);
        return true;
      }
      const made = known ?? this.addRequest(request);
      if (request.arguments) {
        made.arguments = request.arguments;
        made.arguments_hash = blindedHash(this.options.blind_erased ? "" : this.blind, request.arguments);
        made.isSent = true;
      }
      if (made.tool?.startsWith("run:")) this.permit(made);
      return false;
    });
  }

  // The turn before it has ended, and it is the first with its number.
  private checkTurn(position: string): void {
    const before = turnBefore(position);
    if (before !== undefined && !this.log.get(before)?.ended) throw new Refused(`${position} begins before ${before} ended`);
  }

  private addRequest(request: NewRequest): LoggedRequest {
    const { position, kind, delivered, tool, wait } = request;
    for (const scope of this.outcomes) {
      if (isScope(this.at(scope).kind) && isInside(position, scope))
        throw new Refused(`${position} is inside of a scope that has ended`);
    }
    if (delivered > this.outcomes.length)
      throw new Refused(`${delivered} outcomes are counted; the log has ${this.outcomes.length}`);
    if (this.log.has(position)) throw new Refused(`${position} was requested before`);
    const made: LoggedRequest = { position, kind, delivered, ended: false, isSent: false };
    if (tool) made.tool = tool;
    if (wait) made.wait = wait;
    this.log.set(position, made);
    return made;
  }

  private addOutcome(outcome: Outcome, delivered: number | undefined): void {
    const request = this.at(outcome.position);
    if (request.ended) throw new Refused(`${outcome.position} has an outcome`);
    if (delivered !== undefined && delivered !== this.outcomes.length) {
      if (delivered > this.outcomes.length || this.positions.has(delivered))
        throw new Refused(`another outcome was delivered as number ${delivered}`);
      this.positions.add(delivered);
      request.positionOfOutcome = delivered;
    } else if (delivered !== undefined && this.positions.has(delivered)) {
      throw new Refused(`another outcome was delivered as number ${delivered}`);
    }
    request.ended = true;
    request.outcome = outcome;
    this.outcomes.push(outcome.position);
  }

  private permit(request: LoggedRequest): void {
    const call = ++this.calls;
    const attempt = 1 + this.performed.filter((one) => one.position === request.position).length;
    request.call = call;
    request.isSent = true;
    this.callPositions.set(call, request.position);
    this.performed.push({ position: request.position, try: attempt, arguments: request.arguments ?? {} });
    this.outbox.push({
      type: "perform",
      call,
      tool: request.tool as string,
      job: "job-1",
      routine: this.routine,
      position: request.position,
      arguments: JSON.parse(JSON.stringify(request.arguments)) as Json,
      try: attempt,
      key: `aetheris:job-1:${request.position}:0`,
      execution_key: `key-${request.position}`,
      invocation: `invocation-${request.position}`,
      send_within_ms: 10_000,
      timeout_ms: 30_000,
    });
  }

  private isPermitted(request: LoggedRequest): boolean {
    return request.call !== undefined && this.callPositions.get(request.call) === request.position;
  }

  // ---------------------------------------------------------------- from the world

  /** Requests to which an outcome can come. */
  open(): LoggedRequest[] {
    return [...this.log.values()].filter(
      (request) => !request.ended && !isScope(request.kind) && (request.kind === "wait" || request.isSent),
    );
  }

  at(position: string): LoggedRequest {
    const request = this.log.get(position);
    if (request === undefined)
      throw new Error(`there is no request "${position}" among ${[...this.log.keys()].join(", ")}`);
    return request;
  }

  /** The outcome of a request that no advance has. */
  finish(position: string, outcome: Omit<Outcome, "position">): void {
    const request = this.at(position);
    const whole: Outcome = { position, kind: request.kind, ...outcome };
    this.addOutcome(whole, undefined);
    this.outbox.push({
      type: "deliver",
      routine: this.routine,
      outcomes: [JSON.parse(JSON.stringify(whole)) as Outcome],
    });
  }

  succeed(position: string, result: Json): void {
    this.finish(position, { result });
  }

  fail(position: string, failure: FailureText): void {
    this.finish(position, { failure });
  }

  positionOfCall(call: number): string | undefined {
    return this.callPositions.get(call);
  }

  /** A try failed; the next one comes with `retryAll`, unless the code does not need the call any more. */
  backOff(position: string): void {
    if (this.notNeeded.has(position)) return this.fail(position, { code: "connect", message: "no further try" });
    Object.assign(this.at(position), { isSent: false, isBackingOff: true, call: undefined });
  }

  // Every request has an outcome. A wait is closed, a call that was not sent is withdrawn. A call that was sent is
  // awaited, and cut off if it only reads.
  private cancel(position: string): void {
    this.cancelled.push(position);
    this.notNeeded.add(position);
    const wanted = this.wanted.find((request) => request.position === position);
    this.wanted = this.wanted.filter((request) => request !== wanted);
    if (wanted && !this.log.has(position)) this.addRequest(wanted);
    const request = this.at(position);
    if (request.ended) return;
    if (request.kind === "wait" || !request.isSent)
      this.fail(position, { code: "cancelled", message: "the code cancelled it" });
    else if (request.tool === "run:read" && this.isPermitted(request))
      this.outbox.push({ type: "abandon", call: request.call as number });
  }
}
