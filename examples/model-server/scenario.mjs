// Scenarios: the answers of the scripted model. Reads the files, finds the turn that matches a conversation and fills in
// its templates. Independent of protocols and sockets.
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { basename } from "node:path";

const CALLS_MAX = 64;
const COUNTERS_MAX = 100_000; // conversations whose failures are counted; the oldest is forgotten
const TOKEN_CHARS = 4; // a token is four characters, here
export const FINISHES = ["end", "length", "tool", "filter", "pause", "refusal", "context"];

// An error of a request; each protocol writes it in its own form.
export class Fault extends Error {
  constructor(status, message, { param = null, code = null, type } = {}) {
    super(message);
    Object.assign(this, { status, param, code, type });
  }
}

export const hash = (text) => createHash("sha256").update(text).digest("hex");
export const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

// Characters are code points, so that none is divided.
export const characters = (text) => Array.from(text);
export const tokens = (text) => Math.ceil(characters(text).length / TOKEN_CHARS);
export function pieces(text, size) {
  const all = characters(text);
  const out = [];
  for (let at = 0; at < all.length; at += size) out.push(all.slice(at, at + size).join(""));
  return out;
}

// The name of an offered tool: itself, or the shortest name that ends with it ("fs__read_file" for "read_file").
export function toolNamed(names, wanted) {
  if (names.includes(wanted)) return wanted;
  const longer = names.filter((name) => name.endsWith(wanted) && /[_-]$/.test(name.slice(0, -wanted.length)));
  return longer.sort((a, b) => a.length - b.length)[0] ?? wanted;
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

// The texts within a value, of a result of any form.
function textsIn(value) {
  if (typeof value === "string") return [value];
  return typeof value === "object" && value !== null ? Object.values(value).flatMap(textsIn) : [];
}

// ---- the view of a conversation that templates and conditions read -------------------------------------------------------

function view(conversation) {
  const { messages, offered, system } = conversation;
  const names = new Map();
  const results = Object.create(null);
  const history = Object.create(null);
  let since = { texts: [], words: [], tools: [], role: "assistant" };
  let prompt = null;
  for (const message of messages) {
    if (message.role === "assistant") {
      for (const call of message.calls) names.set(call.id, call.name);
      since = { texts: [], words: [], tools: [], role: "assistant" };
    } else if (message.role === "user") {
      prompt ??= message.text;
      since.texts.push(message.text);
      if (since.role !== "tool") since.role = "user";
    } else {
      const name = names.get(message.id);
      results[name] = parsed(message.text);
      (history[name] ??= []).push(results[name]);
      since.texts.push(message.text);
      since.words.push(...textsIn(results[name]));
      since.tools.push(name);
      since.role = "tool";
    }
  }
  const answers = messages.filter((message) => message.role === "assistant");
  const text = since.texts.join("\n");
  return {
    turn: answers.length + 1,
    system,
    offered,
    prompt: { text: prompt ?? "", json: parsed(prompt ?? ""), match: [] },
    last: { role: since.role, tools: since.tools, text, words: since.words.join("\n"), match: [] },
    results,
    history,
  };
}

// The value at a JSON pointer, or undefined. A tool's name below /results and /history may be its last part.
export function at(document, pointer) {
  let value = document;
  const steps = pointer.split("/").slice(1);
  for (const [index, raw] of steps.entries()) {
    let step = raw.replaceAll("~1", "/").replaceAll("~0", "~");
    if (value === null || typeof value !== "object") return undefined;
    if (index === 1 && ["results", "history"].includes(steps[0])) step = toolNamed(Object.keys(value), step);
    if (!Object.hasOwn(value, step)) return undefined;
    value = value[step];
  }
  return value;
}

const TEMPLATE = /\$\{(\/[^}]*)\}/g;

// A string that is one template becomes its value; a template within a text becomes text. Other values stay the same.
function filled(value, document) {
  if (Array.isArray(value)) return value.map((item) => filled(item, document));
  if (isObject(value))
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, filled(item, document)]));
  if (typeof value !== "string") return value;
  const valueAt = (pointer) => {
    const found = at(document, pointer);
    if (found === undefined) throw new Fault(400, `the scenario reads ${pointer}, which does not exist`);
    return found;
  };
  const whole = /^\$\{(\/[^}]*)\}$/.exec(value);
  if (whole) return valueAt(whole[1]);
  return value.replace(TEMPLATE, (_, pointer) => {
    const found = valueAt(pointer);
    return typeof found === "string" ? found : JSON.stringify(found);
  });
}

const list = (value) => (value === undefined ? [] : Array.isArray(value) ? value : [value]);

// Whether a turn's `when` holds. Stores the matches of the patterns in the document.
function fits(when, document) {
  for (const [key, subject] of [
    ["prompt", document.prompt],
    ["last_text", document.last],
  ]) {
    subject.match = [];
    if (when[key] === undefined) continue;
    const match = new RegExp(when[key], "isu").exec(subject.words ? `${subject.words}\n${subject.text}` : subject.text);
    if (!match) return false;
    subject.match = Array.from(match, (part) => part ?? "");
  }
  const [from, to] = typeof when.turn === "number" ? [when.turn, when.turn] : (when.turn ?? []);
  if (document.turn < (from ?? 1) || document.turn > (to ?? Infinity)) return false;
  if (when.last !== undefined && when.last !== document.last.role) return false;
  if (when.tool !== undefined && !document.last.tools.includes(toolNamed(document.last.tools, when.tool))) return false;
  const isOffered = (name) => document.offered.includes(toolNamed(document.offered, name));
  if (!list(when.offered).every(isOffered)) return false;
  if (list(when.not_offered).some(isOffered)) return false;
  if (!list(when.has).every((pointer) => at(document, pointer) !== undefined)) return false;
  return when.before === undefined || document.turn < Number(filled(when.before, document));
}

// ---- one scenario ------------------------------------------------------------------------------------------------

export class Scenario {
  constructor(value, name) {
    this.turns = value.turns;
    this.name = name;
  }

  // The answer to this conversation: {index, turn, answer, fail, pace_ms, piece, stall_ms}.
  decide(conversation) {
    const document = view(conversation);
    const index = this.turns.findIndex((turn) => fits(turn.when ?? {}, document));
    if (index < 0)
      throw new Fault(
        400,
        `scenario ${this.name} has no answer in turn ${document.turn} to ` +
          `${JSON.stringify(document.last.text.slice(0, 80))}`,
      );
    const turn = this.turns[index];
    const { fail = [], pace_ms, piece, stall_ms = 0 } = turn;
    return {
      index,
      turn: document.turn,
      answer: limited(this.answer(turn, document, conversation), conversation.limits),
      fail: list(fail),
      pace_ms,
      piece,
      stall_ms,
    };
  }

  answer(turn, document, { choice, parallel, thinks }) {
    let calls = list(filled(turn.call, document)).map((call) => ({
      name: toolNamed(document.offered, call.tool),
      json: call.args_text ?? JSON.stringify(objectOf(call.args ?? {})),
      cut: call.cut,
    }));
    if (calls.length > CALLS_MAX) throw new Fault(400, "the scenario makes too many calls");
    if (choice === "none") calls = [];
    if (isObject(choice)) calls = calls.filter((c) => c.name === choice.name);
    if (!parallel) calls = calls.slice(0, 1);
    const refuse = filled(turn.refuse, document) ?? null;
    if ((choice === "any" || isObject(choice)) && !calls.length && !refuse)
      throw new Fault(
        400,
        `tool_choice requires a call, and turn ${document.turn} of scenario ${this.name} makes none`,
      );
    for (const call of calls) if (call.cut !== undefined) call.json = characters(call.json).slice(0, call.cut).join("");
    const mustThink = thinks === "always" && calls.length > 0;
    const isCut = calls.some((call) => call.cut !== undefined);
    const text = asText(filled(turn.text, document));
    return {
      // A client returns thoughts with the call that follows them, so a call is never without one.
      think: list(filled(turn.think ?? (mustThink ? "A call." : []), document))
        .map((part) => (isObject(part) ? part : { text: part }))
        .filter(() => thinks !== "no"),
      text: text ?? (refuse || calls.length ? "" : "No text."),
      calls,
      refuse,
      finish: turn.finish ?? (isCut ? "length" : refuse ? "refusal" : calls.length ? "tool" : "end"),
      stop: null,
    };
  }
}

const asText = (value) => (value === undefined || typeof value === "string" ? value : JSON.stringify(value));

function objectOf(args) {
  const value = typeof args === "string" ? parsed(args) : args;
  if (!isObject(value)) throw new Fault(400, "the arguments in the scenario are not an object");
  return value;
}

// An answer, shortened to the request's limits: stop sequences, then the number of tokens.
function limited(answer, { max = Infinity, stops = [] }) {
  const found = stops
    .map((stop) => ({ stop, at: answer.text.indexOf(stop) }))
    .filter((one) => one.at >= 0)
    .sort((a, b) => a.at - b.at)[0];
  let { text, calls, finish, stop, refuse } = answer;
  if (found) {
    text = text.slice(0, found.at);
    [calls, finish, stop] = [[], "stop", found.stop];
  }
  let left = max;
  const take = (words) => {
    const needs = tokens(words);
    if (needs <= left) {
      left -= needs;
      return words;
    }
    const kept = characters(words)
      .slice(0, left * TOKEN_CHARS)
      .join("");
    left = 0;
    [finish, stop] = ["length", null];
    return kept;
  };
  const think = answer.think.filter(() => left > 0).map((part) => ({ ...part, text: take(part.text) }));
  text = take(text);
  if (refuse) refuse = take(refuse);
  const made = [];
  for (const call of calls) {
    if (left > 0) made.push({ ...call, json: take(call.json) });
    else finish = "length";
  }
  return { think, text, calls: made, refuse, finish, stop };
}

// ---- planned failures ---------------------------------------------------------------------------------

// The number of failures of each conversation: the only state between requests.
export class Failures {
  #counts = new Map();

  // The failure that is due, or undefined.
  next(key, rules) {
    const count = this.#counts.get(key) ?? 0;
    let left = count;
    for (const rule of rules) {
      const times = rule.times ?? 1;
      if (times === "always" || left < times) {
        this.#counts.delete(key);
        this.#counts.set(key, count + 1);
        if (this.#counts.size > COUNTERS_MAX) this.#counts.delete(this.#counts.keys().next().value);
        return rule;
      }
      left -= times;
    }
    return undefined;
  }
}

// ---- reading a file ----------------------------------------------------------------------------------------------

const isText = (value) => typeof value === "string";
const isCount = (value) => Number.isSafeInteger(value) && value >= 0;
const isPattern = (value) => {
  try {
    return isText(value) && Boolean(new RegExp(value, "isu"));
  } catch {
    return false;
  }
};
const oneOrMore = (check) => (value, path) => list(value).length > 0 && list(value).every((item) => check(item, path));
const isPointer = (value) => isText(value) && value.startsWith("/");
const keys = (shape) => (value, path) => checked(value, shape, path) && true;

const WHEN = {
  turn: (value) =>
    (isCount(value) && value > 0) || (Array.isArray(value) && value.length === 2 && value.every(isCount)),
  before: (value) => isCount(value) || isText(value),
  last: (value) => ["user", "tool", "assistant"].includes(value),
  prompt: isPattern,
  last_text: isPattern,
  tool: isText,
  offered: oneOrMore(isText),
  not_offered: oneOrMore(isText),
  has: oneOrMore(isPointer),
};
const FAIL = {
  times: (value) => value === "always" || (isCount(value) && value > 0),
  status: (value) => isCount(value) && value >= 400 && value <= 599,
  retry_after: isCount,
  message: isText,
  close: (value) => value === true,
  cut_after: isCount,
  error_after: isCount,
  garbage_after: isCount,
  stall_ms: isCount,
  stall_after: isCount,
};
const FAIL_KINDS = ["status", "close", "cut_after", "error_after", "garbage_after", "stall_ms"];
const CALL = {
  tool: isText,
  args: (value) => isObject(value) || isText(value),
  args_text: isText,
  cut: isCount,
};
const THINK = { text: isText, redacted: (value) => typeof value === "boolean" };
const TURN = {
  about: isText,
  when: keys(WHEN),
  fail: oneOrMore((rule, path) => checked(rule, FAIL, path) && FAIL_KINDS.some((kind) => rule[kind] !== undefined)),
  think: oneOrMore((part, path) => isText(part) || checked(part, THINK, path)),
  text: (value) => value !== null,
  call: oneOrMore((call, path) => checked(call, CALL, path) && isText(call.tool)),
  refuse: isText,
  finish: (value) => FINISHES.includes(value),
  pace_ms: isCount,
  piece: (value) => isCount(value) && value > 0,
  stall_ms: isCount,
};
const FILE = {
  name: (value) => isText(value) && /^[\w.:-]{1,64}$/.test(value),
  about: isText,
  turns: (value, path) =>
    Array.isArray(value) && value.every((turn, index) => checked(turn, TURN, `${path}[${index}]`)),
};

// Checks a value against a shape; an error names the place.
function checked(value, shape, path) {
  if (!isObject(value)) throw new Error(`${path}: an object is required`);
  for (const [key, item] of Object.entries(value)) {
    const where = path ? `${path}.${key}` : key;
    if (!Object.hasOwn(shape, key)) throw new Error(`${where}: unknown key; the keys are ${Object.keys(shape).join(", ")}`);
    if (!shape[key](item, where)) throw new Error(`${where}: ${JSON.stringify(item)} is not allowed here`);
  }
  return true;
}

// Reads a scenario; its name is the model's name.
export function load(path) {
  try {
    const value = JSON.parse(readFileSync(path, "utf8"));
    checked(value, FILE, "");
    if (!value.turns?.length) throw new Error("turns: at least one is required");
    return new Scenario(value, value.name ?? basename(path, ".json"));
  } catch (error) {
    throw new Error(`${path}: ${error.message}`, { cause: error });
  }
}
