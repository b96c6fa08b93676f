// Replay: the rule by which a routine is run from its record (formal/routine.pml, src/engine/code/replay.h).
//
//   R1  Position p is delivered only when every recorded request with `delivered` <= p was made again. A scope that
//       has ended is one request; what is inside of it is counted and passed over. A loop begins with its last turn
//       that ended.
//   R2  The frontier: all recorded requests were made and all recorded outcomes delivered. Nothing new is sent before.
//   R3  A recorded value is matched by its name. An emitted value is matched by its number.
//
// One Replay belongs to one routine, also after the frontier: it counts what is delivered.
import type { Json, JsonObject } from "./json.ts";
import type { CodeRecord, Kind, Outcome, RecordedRequest, WaitType } from "./protocol.ts";

export interface MadeRequest {
  position: string;
  kind: Kind;
  tool?: string | undefined;
  arguments_hash?: string | undefined;
  wait?: WaitType | undefined;
}

export interface Divergence {
  finding: "arguments" | "missing" | "ended";
  delivered: number;
  position: string;
  found?: JsonObject;
}

function textOf(made: MadeRequest): JsonObject {
  const found: JsonObject = { kind: made.kind, position: made.position };
  if (made.tool !== undefined) found["tool"] = made.tool;
  if (made.wait !== undefined) found["wait"] = made.wait;
  return found;
}

function isSame(made: MadeRequest, recorded: RecordedRequest): boolean {
  if (made.kind !== recorded.kind) return false;
  if (made.kind === "wait") {
    // The type alone, or the wait with its type.
    const wait = typeof recorded.wait === "string" ? recorded.wait : recorded.wait?.type;
    return made.wait === wait;
  }
  if (made.kind === "scope" || made.kind === "turn") return true;
  // A call that was refused has no recorded arguments.
  return (
    made.tool === recorded.tool &&
    (!recorded.arguments_hash || !made.arguments_hash || made.arguments_hash === recorded.arguments_hash)
  );
}

export class Replay {
  /** After a match that is `diverged`. */
  divergence: Divergence | undefined;
  private readonly record: CodeRecord;
  private readonly byPosition = new Map<string, number>();
  private readonly matched: boolean[];
  private readonly unmatchedAt = new Map<number, number>(); // by `delivered`
  private unmatched: number;
  private due: number; // unmatched ones with `delivered` <= the number of outcomes delivered
  private next = 0; // of record.deliveries
  private count = 0;
  private readonly emitted = new Map<string, number>();

  /** Throws Error: the record is not one. */
  constructor(record: CodeRecord) {
    this.record = record;
    this.matched = record.requests.map(() => false);
    const outcomes = record.deliveries.reduce((sum, outcome) => sum + (outcome.passed_over ?? 1), 0);
    record.requests.forEach((request, i) => {
      if (
        !(request.delivered >= 0 && request.delivered <= outcomes) ||
        this.byPosition.has(request.position)
      ) {
        throw new Error(`the record is not valid at "${request.position}"`);
      }
      this.byPosition.set(request.position, i);
      this.unmatchedAt.set(request.delivered, (this.unmatchedAt.get(request.delivered) ?? 0) + 1);
    });
    this.unmatched = record.requests.length;
    this.due = this.unmatchedAt.get(0) ?? 0;
  }

  /** A request of the routine. Each position is requested once. */
  match(made: MadeRequest): "new" | "recorded" | "diverged" {
    const index = this.byPosition.get(made.position);
    if (index === undefined) return "new";
    const recorded = this.record.requests[index] as RecordedRequest;
    if (this.matched[index] || !isSame(made, recorded)) {
      this.divergence = {
        finding: "arguments",
        delivered: this.count,
        position: recorded.position,
        found: textOf(made),
      };
      return "diverged";
    }
    this.matched[index] = true;
    this.unmatched--;
    this.unmatchedAt.set(recorded.delivered, (this.unmatchedAt.get(recorded.delivered) ?? 0) - 1);
    if (recorded.delivered <= this.count) this.due--;
    return "recorded";
  }

  /** The recorded value with this name; undefined: it is new. */
  value(name: string): Json | undefined {
    return Object.hasOwn(this.record.values, name) ? this.record.values[name] : undefined;
  }

  /** The routine emits a value in this scope. Is it recorded? */
  wasEmitted(scope: string): boolean {
    const recorded = Object.hasOwn(this.record.emitted, scope) ? (this.record.emitted[scope] as number) : 0;
    const number = (this.emitted.get(scope) ?? 0) + 1;
    this.emitted.set(scope, number);
    return number <= recorded;
  }

  /** The recorded turn of this loop with the lowest number: the last one that ended, or one that is open. */
  firstTurn(loop: string): number {
    const turns = this.record.requests
      .filter((request) => request.kind === "turn" && request.position.startsWith(`${loop}/`))
      .map((request) => request.position.slice(loop.length + 1))
      .filter((number) => /^[0-9]+$/.test(number));
    return turns.length === 0 ? 0 : Math.min(...turns.map(Number));
  }

  /** The first position that the record has with this prefix and that was not requested yet. */
  unmatchedWithPrefix(prefix: string): string | undefined {
    const found = this.record.requests.find((request, i) => !this.matched[i] && request.position.startsWith(prefix));
    return found?.position;
  }

  /** May the next recorded outcome be delivered? The routine must have settled. */
  mayDeliver(): boolean {
    return this.next < this.record.deliveries.length && this.due === 0;
  }

  /** The next recorded outcome, if mayDeliver. */
  deliver(): Outcome {
    const next = this.record.deliveries[this.next++] as Outcome;
    const before = this.count;
    this.count += next.passed_over ?? 1;
    if (next.passed_over === undefined) this.due += this.unmatchedAt.get(this.count) ?? 0;
    else {
      for (const [delivered, requests] of this.unmatchedAt) {
        if (delivered > before && delivered <= this.count) this.due += requests;
      }
    }
    return next;
  }

  isAtFrontier(): boolean {
    return this.next >= this.record.deliveries.length && this.unmatched === 0;
  }

  /** An outcome that is not in the record was delivered. */
  countDelivery(): void {
    this.count++;
  }

  /** How many outcomes were delivered or passed over. */
  delivered(): number {
    return this.count;
  }

  /** The first recorded request that the routine should have made, and has not. It must have settled, or ended. */
  findMissing(ended: boolean): Divergence | undefined {
    if (this.unmatched === 0 || (!ended && this.due === 0)) return undefined;
    const i = this.record.requests.findIndex(
      (request, at) => !this.matched[at] && (ended || request.delivered <= this.count),
    );
    const request = this.record.requests[i];
    if (request === undefined) return undefined;
    return { finding: ended ? "ended" : "missing", delivered: this.count, position: request.position };
  }
}
