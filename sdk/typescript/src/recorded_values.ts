// RecordedValues: what a routine records instead of reading a clock or chance: times, random numbers, ids, patches; and
// what it emits for readers of its job.
import { randomUUID } from "node:crypto";
import { performance } from "node:perf_hooks";
import type { Context } from "./context.ts";
import { InvalidInput } from "./errors.ts";
import { EMITTED_MAX, toJson, type Json } from "./json.ts";
import { isInside, isRequestName, joined, quoted } from "./positions.ts";
import type { Item } from "./protocol.ts";
import type { Replay } from "./replay.ts";
import { scrub } from "./secrets.ts";
import { newSeed, RandomNumbers, timeOf, timeValue } from "./values.ts";

interface ScopeValues {
  times: number;
  uuids: number;
  numbers?: RandomNumbers;
}

/** The routine of the values. */
interface ValuesOwner {
  /** May this Context be used here? */
  mayCall(context: Context): boolean;
  /** Adds it to the next advance. */
  record(item: Item): void;
}

export class RecordedValues {
  private readonly replay: Replay;
  private readonly routine: ValuesOwner;
  private readonly scopeValues = new Map<string, ScopeValues>();
  private readonly patches = new Map<string, boolean>();
  private seed: string | undefined;
  private readonly baseTime: number; // of the store's clock
  private readonly baseClock = performance.now();
  private lastTime = Number.NEGATIVE_INFINITY;

  /** `now`: the time of the store. */
  constructor(now: unknown, replay: Replay, routine: ValuesOwner) {
    this.baseTime = timeOf(now) ?? Date.now();
    this.replay = replay;
    this.routine = routine;
  }

  /** The scope at this position, and those inside of it, begin again. */
  forget(position: string): void {
    for (const name of this.scopeValues.keys()) {
      if (name === position || isInside(name, position)) this.scopeValues.delete(name);
    }
  }

  private valuesOf(context: Context): ScopeValues {
    let values = this.scopeValues.get(context.scope_);
    if (values === undefined) this.scopeValues.set(context.scope_, (values = { times: 0, uuids: 0 }));
    return values;
  }

  private record(name: string, value: Json): void {
    this.routine.record({ kind: "value", name, value });
  }

  now(context: Context): Date {
    const estimated = Math.max(this.lastTime, Math.floor(this.baseTime + performance.now() - this.baseClock));
    if (!this.routine.mayCall(context)) return new Date(estimated);
    const name = `time:${joined(context.scope_, ++this.valuesOf(context).times)}`;
    const recorded = this.replay.value(name);
    if (recorded !== undefined) {
      const at = timeOf(recorded) ?? (Number.isFinite(this.lastTime) ? this.lastTime : this.baseTime); // absent: it was erased
      this.lastTime = Math.max(this.lastTime, at);
      return new Date(at);
    }
    this.lastTime = estimated;
    this.record(name, timeValue(estimated));
    return new Date(estimated);
  }

  random(context: Context): number {
    if (!this.routine.mayCall(context)) return Math.random();
    if (this.seed === undefined) {
      const recorded = this.replay.value("random");
      if (recorded !== undefined) {
        this.seed = typeof recorded === "string" && /^[0-9a-f]{64}$/.test(recorded) ? recorded : "0".repeat(64);
      } else {
        this.seed = newSeed();
        this.record("random", this.seed);
      }
    }
    const values = this.valuesOf(context);
    values.numbers ??= new RandomNumbers(this.seed, context.scope_);
    return values.numbers.next();
  }

  uuid(context: Context): string {
    const uuid = randomUUID();
    if (!this.routine.mayCall(context)) return uuid;
    const name = `uuid:${joined(context.scope_, ++this.valuesOf(context).uuids)}`;
    const recorded = this.replay.value(name);
    if (recorded !== undefined) return typeof recorded === "string" ? recorded : "";
    this.record(name, uuid);
    return uuid;
  }

  patched(context: Context, id: string): boolean {
    if (!isRequestName(id))
      throw new InvalidInput(
        `${quoted(id)} is not an id of a patch: it has 1 to 64 letters, digits, "_", ".", ":" and "-" and no secret`,
      );
    if (!this.routine.mayCall(context)) return false;
    const known = this.patches.get(id);
    if (known !== undefined) return known;
    const recorded = this.replay.value(`patch:${id}`);
    const isPatched = recorded !== undefined ? recorded === true : this.replay.isAtFrontier();
    if (recorded === undefined) this.record(`patch:${id}`, isPatched);
    this.patches.set(id, isPatched);
    return isPatched;
  }

  emit(context: Context, name: string, value: unknown, isPublished: boolean): void {
    if (!isRequestName(name))
      throw new InvalidInput(
        `${quoted(name)} is not a name of an emitted value: it has 1 to 64 letters, digits, "_", ".", ":" and "-" and no secret`,
      );
    const json = scrub(toJson(value, `the emitted value "${name}"`, EMITTED_MAX));
    if (!this.routine.mayCall(context) || this.replay.wasEmitted(context.scope_)) return;
    this.routine.record({ kind: "emitted", scope: context.scope_, name, value: json, published: isPublished });
  }
}
