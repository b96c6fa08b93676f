// Values that a routine records instead of reading a clock or chance, and durations.
import { createHash, randomBytes } from "node:crypto";
import { InvalidInput } from "./errors.ts";

const DAY_MS = 86_400_000;
const DURATION_MAX_MS = 36_500 * DAY_MS;
const UNITS: Record<string, number> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: DAY_MS };

/** The random numbers of one scope of a job, which follow from the job's seed. */
export class RandomNumbers {
  private readonly prefix: Buffer;
  private drawn = 0;
  private block: Buffer = Buffer.alloc(0);

  /** `seed`: 64 hex digits. */
  constructor(seed: string, scope: string) {
    const name = Buffer.from(scope);
    const length = Buffer.alloc(8);
    length.writeBigUInt64BE(BigInt(name.length));
    this.prefix = Buffer.concat([Buffer.from("aetheris.random.v1"), Buffer.from(seed, "hex"), length, name]);
  }

  /** In [0, 1), of 53 bits. */
  next(): number {
    const group = this.drawn % 4;
    if (group === 0) {
      const number = Buffer.alloc(8);
      number.writeBigUInt64BE(BigInt(Math.floor(this.drawn / 4)));
      this.block = createHash("sha256").update(this.prefix).update(number).digest();
    }
    this.drawn++;
    return Number(this.block.readBigUInt64BE(group * 8) >> 11n) * 2 ** -53;
  }
}

export function newSeed(): string {
  return randomBytes(32).toString("hex");
}

/** The form in which a time is recorded. */
export function timeValue(ms: number): { ms: number; time: string } {
  return { ms, time: new Date(ms).toISOString().replace("Z", "000Z") };
}

/** Milliseconds of a recorded time, or of the text of one; undefined: it is none. */
export function timeOf(value: unknown): number | undefined {
  if (value !== null && typeof value === "object" && "time" in value) return timeOf(value.time);
  if (typeof value !== "string") return undefined;
  const ms = Date.parse(value);
  return Number.isNaN(ms) ? undefined : ms;
}

/**
 * Milliseconds of a duration: a number of milliseconds, or a text such as `500ms`, `30s`, `5m`, `24h`, `7d`. Throws
 * InvalidInput: it is none, is negative, or has more than 36500 days.
 */
export function durationMs(duration: string | number): number {
  let ms: number;
  if (typeof duration === "number") {
    ms = Math.ceil(duration);
  } else {
    const found = /^(\d+)(ms|s|m|h|d)$/.exec(duration);
    if (!found) throw new InvalidInput(`"${duration}" is not a duration; write for example 500ms, 30s, 5m, 24h or 7d`);
    ms = Number(found[1]) * (UNITS[found[2] as string] as number);
  }
  if (!(ms >= 0 && ms <= DURATION_MAX_MS)) throw new InvalidInput(`a duration is 0 to 36500d, not ${duration}`);
  return ms;
}
