// JSON values: checked copies, and the canonical text (RFC 8785) that is hashed.
import { createHash } from "node:crypto";
import { InvalidInput } from "./errors.ts";

/** A JSON value. Integers are between -(2^53-1) and 2^53-1; numbers are finite; texts are valid Unicode. */
export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
export type JsonObject = { [key: string]: Json };

/** The largest value, as canonical JSON: 16 MiB. */
export const VALUE_MAX = 16 << 20;
/** The largest value that `emit` and `publish` take: 256 KiB. */
export const EMITTED_MAX = 256 << 10;
const DEPTH_MAX = 90;
const INTEGER_LITERAL_MAX = 1e21; // from here on, the text of a number has an exponent

class Unrecordable extends Error {}

function copy(value: unknown, path: string, depth: number): Json | undefined {
  switch (typeof value) {
    case "string":
      if (!value.isWellFormed()) throw new Unrecordable(`${path} is a text with half of a surrogate pair`);
      return value;
    case "boolean":
      return value;
    case "number":
      if (!Number.isFinite(value)) throw new Unrecordable(`${path} is ${value}; use null or a text`);
      if (Number.isInteger(value) && !Number.isSafeInteger(value) && Math.abs(value) < INTEGER_LITERAL_MAX) {
        throw new Unrecordable(`${path} is an integer beyond 2^53-1; use a text`);
      }
      return value === 0 ? 0 : value;
    case "undefined":
      return undefined;
    case "object":
      break;
    default:
      throw new Unrecordable(`${path} is a ${typeof value}; use a text or a number`);
  }
  if (value === null) return null;
  if (depth >= DEPTH_MAX)
    throw new Unrecordable(`${path} is nested deeper than ${DEPTH_MAX} levels, or contains itself`);
  if (typeof (value as { toJSON?: unknown }).toJSON === "function") {
    if (value instanceof Date && Number.isNaN(value.getTime())) throw new Unrecordable(`${path} is an invalid Date`);
    return copy((value as { toJSON(key: string): unknown }).toJSON(""), path, depth + 1);
  }
  if (value instanceof Number || value instanceof String || value instanceof Boolean) {
    return copy(value.valueOf(), path, depth + 1);
  }
  if (Array.isArray(value)) {
    // As JSON.stringify: what vanishes from an object is null in an array.
    return Array.from(value, (item, i) => copy(item, `${path}[${i}]`, depth + 1) ?? null);
  }
  if (value instanceof Map || value instanceof Set || ArrayBuffer.isView(value) || value instanceof ArrayBuffer) {
    throw new Unrecordable(`${path} is a ${value.constructor.name}; use an array, an object or a text`);
  }
  if (value instanceof Promise) throw new Unrecordable(`${path} is a Promise; await it first`);
  const made: JsonObject = {};
  for (const [key, member] of Object.entries(value)) {
    if (!key.isWellFormed()) throw new Unrecordable(`${path} has a name with half of a surrogate pair`);
    const copied = copy(member, `${path}.${key}`, depth + 1);
    if (copied === undefined) continue;
    if (key === "__proto__") Object.defineProperty(made, key, { value: copied, enumerable: true });
    else made[key] = copied;
  }
  return made;
}

/**
 * A copy of `value` as JSON. Members that are undefined vanish, a Date becomes a text; undefined itself is null.
 * Throws InvalidInput: it has no JSON form, or is too large. `what` names it in the message.
 */
export function toJson(value: unknown, what: string, bytesMax = VALUE_MAX): Json {
  let copied: Json;
  try {
    copied = copy(value, what, 0) ?? null;
  } catch (error) {
    if (error instanceof Unrecordable) throw new InvalidInput(`${error.message}: only JSON can be recorded`);
    throw error;
  }
  checkSize(copied, what, bytesMax);
  return copied;
}

/** Throws InvalidInput: the value has more bytes as JSON. */
export function checkSize(value: Json, what: string, bytesMax: number): void {
  if (!isLonger(value, bytesMax)) return;
  throw new InvalidInput(
    `${what} has more than ${bytesMax >> 10} KiB as JSON; store it elsewhere and pass a reference`,
    "payload_too_large",
  );
}

// Cheap for what is small. A text of n UTF-16 units has at most 6n bytes.
function isLonger(value: Json, bytesMax: number): boolean {
  if (value === null || typeof value !== "object") {
    return (
      typeof value === "string" && value.length * 6 > bytesMax && Buffer.byteLength(JSON.stringify(value)) > bytesMax
    );
  }
  const text = JSON.stringify(value);
  return text.length * 3 > bytesMax && Buffer.byteLength(text) > bytesMax;
}

/** A fresh copy of a JSON value. */
export function fresh<T extends Json>(value: T): T {
  return value !== null && typeof value === "object" ? (JSON.parse(JSON.stringify(value)) as T) : value;
}

/** Freezes a JSON value, all of it. */
export function freeze<T extends Json>(value: T): T {
  if (value !== null && typeof value === "object" && !Object.isFrozen(value)) {
    Object.freeze(value);
    for (const member of Object.values(value)) freeze(member as Json);
  }
  return value;
}

/** The canonical text of a JSON value (RFC 8785): names in order, no spaces. */
export function canonical(value: Json): string {
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  const members = Object.keys(value)
    .sort()
    .map((key) => `${JSON.stringify(key)}:${canonical(value[key] as Json)}`);
  return `{${members.join(",")}}`;
}

/** The hash of arguments, as the log has it, in hex. A job of an earlier version has no blind. */
export function blindedHash(blind: string, value: Json): string {
  const prefix = blind === "" ? "" : `aetheris.blind.v1${blind}`;
  return createHash("sha256")
    .update(prefix + canonical(value))
    .digest("hex");
}

/** Reads JSON from a frame. Throws SyntaxError. */
export function parse(text: string): Json {
  return JSON.parse(text) as Json;
}

export function isObject(value: unknown): value is JsonObject {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}
