// Secrets: values that do not leave the worker. Each is replaced by `[secret NAME]` in all that is sent to the server.
//
// Known are the values of environment variables whose names end in KEY, TOKEN, SECRET or PASSWORD, and those that
// `call.secret` has given. A value is found as it is, escaped for JSON (up to 4 times) or a URL, as hex and as base64.
import { readFileSync } from "node:fs";
import { AetherisError } from "./errors.ts";
import type { Json } from "./json.ts";

const NAMES = /(^|_)(KEY|TOKEN|SECRET|PASSWORD)$/;
const BYTES_MIN = 8; // shorter values are not hidden: that would destroy the text
const NESTED_MAX = 4; // levels of JSON in a text of JSON

const names = new Map<string, string>(); // of the forms
let search: RegExp | undefined;
let longest = 0;

// Inside of a longer base64 the value begins at one of three places. Digits that also depend on its neighbours are left.
function inBase64(value: Buffer, encoding: "base64" | "base64url"): string[] {
  return [0, 1, 2].map((before) => {
    const text = Buffer.concat([Buffer.alloc(before), value]).toString(encoding).replace(/=+$/, "");
    const begin = Math.ceil((before * 8) / 6);
    const end = Math.floor(((before + value.length) * 8) / 6);
    return text.slice(begin, end);
  });
}

// In a text of JSON, in a text in it, and so on. Some encoders write what is not ASCII as \uXXXX.
function inJson(value: string): Set<string> {
  let level = new Set([value]);
  const all = new Set(level);
  for (let depth = 0; depth < NESTED_MAX; depth++) {
    const next = new Set<string>();
    for (const form of level) {
      const escaped = JSON.stringify(form).slice(1, -1);
      next.add(escaped);
      next.add(escaped.replace(/[^ -~]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`));
    }
    for (const form of next) all.add(form);
    level = next;
  }
  return all;
}

/** From now on this value is replaced. */
export function hide(name: string, value: string): void {
  const bytes = Buffer.from(value);
  if (bytes.length < BYTES_MIN) return;
  const hex = bytes.toString("hex");
  const escaped = encodeURIComponent(value.toWellFormed());
  const forms = [...inJson(value), escaped, escaped.replaceAll("%20", "+"), hex];
  forms.push(hex.toUpperCase(), ...inBase64(bytes, "base64"), ...inBase64(bytes, "base64url"));
  const before = names.size;
  for (const form of forms) if (!names.has(form)) names.set(form, name);
  if (names.size === before) return;
  const all = [...names.keys()].sort((a, b) => b.length - a.length);
  longest = all[0]?.length ?? 0;
  search = new RegExp(all.map((form) => form.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|"), "g");
}

/** Hides the values of the environment whose names are those of secrets. */
export function hideEnvironment(): void {
  for (const [name, value] of Object.entries(process.env)) if (value && NAMES.test(name)) hide(name, value);
}

/** The text without secrets. */
export function scrubText(text: string): string {
  return search === undefined ? text : text.replace(search, (form) => `[secret ${names.get(form)}]`);
}

export function hasSecret(text: string): boolean {
  return search !== undefined && text.search(search) >= 0;
}

/** The value without secrets: the same, if it has none. */
export function scrub<T extends Json>(value: T): T {
  return search === undefined ? value : (scrubbed(value) as T);
}

function scrubbed(value: Json): Json {
  if (typeof value === "string") return scrubText(value);
  if (value === null || typeof value !== "object") return value;
  if (Array.isArray(value)) {
    const items = value.map(scrubbed);
    return items.some((item, i) => item !== value[i]) ? items : value;
  }
  let isChanged = false;
  const members = Object.entries(value).map(([name, member]): [string, Json] => {
    const made: [string, Json] = [scrubText(name), scrubbed(member)];
    isChanged ||= made[0] !== name || made[1] !== member;
    return made;
  });
  return isChanged ? (Object.fromEntries(members) as Json) : value;
}

/** Scrubs a text that comes in pieces: all pieces together have no secret. Holds back what may be the begin of one. */
export class ScrubbedText {
  private held = "";

  feed(piece: string): string {
    const text = scrubText(this.held + piece);
    const hold = beginOfForm(text);
    this.held = text.slice(text.length - hold);
    return text.slice(0, text.length - hold);
  }

  end(): string {
    const text = this.held;
    this.held = "";
    return text;
  }
}

// How many characters at the end of the text may be the begin of a form.
function beginOfForm(text: string): number {
  const forms = [...names.keys()];
  for (let size = Math.min(longest - 1, text.length); size > 0; size--) {
    const end = text.slice(text.length - size);
    if (forms.some((form) => form.length > size && form.startsWith(end))) return size;
  }
  return 0;
}

/** The value of a secret, from the environment variable NAME or the file that NAME_FILE names. */
export function secretOf(name: string): string {
  let value = process.env[name];
  const file = process.env[`${name}_FILE`];
  if (!value && file) {
    try {
      value = readFileSync(file, "utf8").replace(/\r?\n$/, "");
    } catch (error) {
      const { code } = error as { code?: string };
      throw new AetherisError("secret_missing", `the file that ${name}_FILE names cannot be read: ${code ?? ""}`);
    }
  }
  if (!value)
    throw new AetherisError(
      "secret_missing",
      `the secret ${name} is not set; set the environment variable ${name}, or ${name}_FILE to a file with it`,
    );
  hide(name, value);
  return value;
}
