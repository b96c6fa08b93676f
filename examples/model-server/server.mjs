#!/usr/bin/env node
// A scripted model server: serves Chat Completions and Messages over HTTP, with answers from scenario files. Not a model.
import { createHash } from "node:crypto";
import { once } from "node:events";
import { closeSync, fdatasync, openSync, readdirSync, write } from "node:fs";
import { createServer } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { parseArgs, promisify } from "node:util";
import * as chat from "./chat.mjs";
import * as messages from "./messages.mjs";
import { Failures, Fault, isObject, load } from "./scenario.mjs";

const BODY_MAX = 32 * 1024 * 1024;
const BACKLOG = 4096;
const PIECE_CHARS = 4;
const SHIPPED = fileURLToPath(new URL("./scenarios/", import.meta.url));
const HELP = `node server.mjs [--scenario FILE...] [--listen HOST:PORT] [--journal FILE] [--key KEY] [--pace 5ms] [--strict]

A scripted server with the protocols of model providers. It is not a model: scenario files contain its answers.

  --scenario FILE...  scenarios to serve, each under its name as the model (default: all of scenarios/)
  --listen HOST:PORT  the address (default 127.0.0.1:0, a free port); the first line printed shows it
  --journal FILE      one line of JSON per request received, on disk before it is answered
  --key KEY           the only API key that is accepted (default: any)
  --pace TIME         time before each piece of a stream, unless the scenario has its own: 5ms, 1s (default 0ms)
  --strict            also refuse what providers accept: adjacent messages of one role (Messages)
  --help              this text

POST /v1/chat/completions  POST /v1/messages  GET /v1/models  GET /v1/models/NAME
`;

// ---- the journal -------------------------------------------------------------------------------------------------

// Waiting lines are written together; a request is answered after its line is on disk.
class Journal {
  #file;
  #waiting = [];
  #busy = false;

  constructor(path) {
    this.#file = path === undefined ? undefined : openSync(path, "a");
  }

  add(entry) {
    if (this.#file === undefined) return Promise.resolve();
    return new Promise((done) => {
      this.#waiting.push({ line: `${JSON.stringify(entry)}\n`, done });
      if (!this.#busy) this.#flush();
    });
  }

  async #flush() {
    this.#busy = true;
    try {
      while (this.#waiting.length) {
        const batch = this.#waiting.splice(0);
        let bytes = Buffer.from(batch.map((one) => one.line).join(""));
        while (bytes.length) {
          const { bytesWritten } = await promisify(write)(this.#file, bytes);
          bytes = bytes.subarray(bytesWritten);
        }
        await promisify(fdatasync)(this.#file);
        for (const one of batch) one.done();
      }
      this.#busy = false;
    } catch (error) {
      end(1, `the journal cannot be written: ${error.message}`); // a request without its line is never answered
    }
  }

  close() {
    if (this.#file !== undefined) closeSync(this.#file);
  }
}

const NOTED =
  /^(x-)?idempotency-key$|^x-aetheris-|^x-stainless-retry-count$|^x-client-request-id$|^traceparent$|^user-agent$|^anthropic-(version|beta)$/;
const noted = (headers) => Object.fromEntries(Object.entries(headers).filter(([name]) => NOTED.test(name)));

// ---- one request -------------------------------------------------------------------------------------------------

class Desk {
  constructor({ scenarios, journal, key, pace, strict }) {
    Object.assign(this, { scenarios, journal, key, pace, strict });
    this.failures = new Failures();
    this.received = 0;
  }

  async handle(request, response) {
    const path = request.url.split("?")[0];
    const isMessages = path === "/v1/messages" || request.headers["anthropic-version"] !== undefined;
    const protocol = isMessages ? messages : chat;
    const gone = new AbortController();
    response.on("close", () => gone.abort());
    const body = await readBody(request);
    const bytes = body ?? Buffer.alloc(0);
    const sha256 = createHash("sha256").update(bytes).digest("hex");
    const number = ++this.received;
    const visit = {
      request,
      response,
      gone: gone.signal,
      protocol,
      path,
      body,
      requestId: `req_${sha256.slice(0, 16)}${number}`,
    };
    let due;
    try {
      due = this.plan(visit);
    } catch (error) {
      if (!(error instanceof Fault)) throw error;
      due = { kind: `refused ${error.status}`, fault: error };
    }
    await this.journal.add({
      time: new Date().toISOString(),
      number,
      protocol: protocol.name,
      path,
      sha256,
      bytes: bytes.length,
      headers: noted(request.headers),
      model: due.model ?? null,
      conversation: due.conversation ?? null,
      turn: due.turn ?? null,
      stream: due.read?.stream ?? false,
      answer: due.kind,
      ...(due.fault && !due.rule ? { why: due.fault.message } : {}),
    });
    await this.perform(visit, due);
  }

  // The answer that is due to this request; nothing has been sent yet.
  plan({ request, protocol, path, body }) {
    const where = /^\/v1\/models(?:\/([^/]+))?$/.exec(path);
    const posts = path === "/v1/messages" || path === "/v1/chat/completions";
    if (!where && !posts)
      throw new Fault(404, `Unknown request URL: ${request.method} ${path}.`, { code: "unknown_url" });
    protocol.authorize(request.headers, this.key);
    if (request.method !== (posts ? "POST" : "GET"))
      throw new Fault(405, `Not allowed to ${request.method} on ${path}.`, { code: "method_not_supported" });
    if (where) return this.listed(protocol, where[1]);
    if (body === undefined) throw new Fault(413, "Request exceeds the maximum allowed number of bytes.");
    if (!/^application\/json\s*(;|$)/i.test(request.headers["content-type"] ?? ""))
      throw new Fault(
        400,
        `Unsupported content type: '${request.headers["content-type"] ?? ""}'. This API method only accepts 'application/json' requests.`,
      );
    const read = protocol.read(jsonOf(body, protocol), { strict: this.strict });
    const scenario = this.scenarios.get(read.model);
    const about = { read, model: read.model, conversation: read.hash };
    if (!scenario) return { ...about, kind: "refused 404", fault: protocol.noModel(read.model) };
    const plan = scenario.decide(read);
    const rule = this.failures.next(`${plan.index} ${read.hash}`, plan.fail);
    const { calls, refuse } = plan.answer;
    return {
      ...about,
      ...plan,
      rule,
      kind: rule ? `fail ${kindOf(rule)}` : refuse ? "refuse" : calls.length ? "call" : "text",
    };
  }

  listed(protocol, wanted) {
    const names = [...this.scenarios.keys()];
    if (wanted === undefined) return { kind: "models", value: protocol.models(names) };
    const model = decodeURIComponent(wanted);
    if (!this.scenarios.has(model)) throw protocol.noModel(model);
    return { kind: "models", value: protocol.model(model) };
  }

  async perform(visit, due) {
    const { response, gone, protocol, requestId } = visit;
    const wait = (ms) => (ms > 0 ? sleep(ms, undefined, { signal: gone }) : undefined);
    const json = (status, value, extra = {}) => {
      const limited = status === 429;
      response.writeHead(status, {
        "content-type": "application/json",
        ...protocol.headers(requestId, { limited }),
        ...extra,
      });
      response.end(JSON.stringify(value));
    };
    if (due.fault) return json(due.fault.status, protocol.error(due.fault, requestId));
    if (due.value) return json(200, due.value);
    const rule = due.rule ?? {};
    const fault = new Fault(rule.status ?? (protocol === messages ? 529 : 500), rule.message ?? "");
    if (rule.stall_after === undefined) await wait((rule.stall_ms ?? 0) + due.stall_ms);
    if (rule.close) return response.destroy();
    const isWhole = rule.error_after === undefined && rule.cut_after === undefined;
    if ((rule.status !== undefined && isWhole) || (rule.error_after !== undefined && !due.read.stream)) {
      const extra = rule.retry_after === undefined ? {} : { "retry-after": String(rule.retry_after) };
      return json(fault.status, protocol.error(fault, requestId), extra);
    }
    if (!due.read.stream) {
      const text = JSON.stringify(protocol.answer(due.read, due.answer));
      return this.whole(visit, { text, rule, wait });
    }
    return this.stream(visit, { due, rule, fault, wait });
  }

  // An answer in one piece: all of it, half of it, or invalid JSON.
  async whole({ response, protocol, requestId }, { text, rule, wait }) {
    const head = { "content-type": "application/json", ...protocol.headers(requestId) };
    const half = text.slice(0, text.length / 2);
    if (rule.garbage_after !== undefined) {
      response.writeHead(200, head);
      return response.end(half);
    }
    response.writeHead(200, { ...head, "content-length": Buffer.byteLength(text) });
    if (rule.cut_after === undefined && rule.stall_after === undefined) return response.end(text);
    response.write(half);
    if (rule.cut_after !== undefined) return cut(response);
    await wait(rule.stall_ms);
    return response.end(text.slice(half.length));
  }

  async stream({ response, gone, protocol, requestId }, { due, rule, fault, wait }) {
    response.writeHead(200, {
      "content-type": "text/event-stream; charset=utf-8",
      "cache-control": "no-cache",
      ...protocol.headers(requestId),
    });
    const pace = due.pace_ms ?? this.pace;
    const send = async (text) => {
      gone.throwIfAborted();
      if (!response.write(text)) await once(response, "drain", { signal: gone });
    };
    let sent = 0;
    for (const { text, piece, last } of protocol.frames(due.read, due.answer, due.piece ?? PIECE_CHARS)) {
      if (piece || last) {
        // A failure after more pieces than there are happens before the end.
        const isDue = (after) => after !== undefined && (piece ? after === sent : after >= sent);
        if (isDue(rule.cut_after)) return cut(response);
        if (isDue(rule.error_after)) return response.end(protocol.errorFrame(fault, requestId));
        if (isDue(rule.garbage_after)) await send(protocol.garbageFrame());
        if (isDue(rule.stall_after)) await wait(rule.stall_ms);
      }
      if (piece) {
        await wait(pace);
        sent++;
      }
      await send(text);
    }
    return response.end();
  }
}

// Closes a connection in the middle of an answer, after the written part.
const cut = (response) => response.socket?.destroySoon();

function kindOf(rule) {
  if (rule.error_after !== undefined) return "error_after";
  if (rule.cut_after !== undefined) return "cut_after";
  if (rule.garbage_after !== undefined) return "garbage_after";
  if (rule.close) return "close";
  return rule.status === undefined ? "stall" : String(rule.status);
}

// The body, or undefined if it is larger than the limit.
async function readBody(request) {
  const parts = [];
  let size = 0;
  for await (const part of request) {
    size += part.length;
    if (size <= BODY_MAX) parts.push(part);
    else parts.length = 0;
  }
  return size <= BODY_MAX ? Buffer.concat(parts) : undefined;
}

function jsonOf(bytes, protocol) {
  let value;
  try {
    value = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
  } catch (error) {
    throw protocol.notJson(error.message);
  }
  if (!isObject(value)) throw protocol.notJson("an object is required");
  return value;
}

// ---- the program -------------------------------------------------------------------------------------------------

function end(code, message) {
  if (message) console.error(`model-server: ${message}`);
  process.exit(code);
}

function settings(argv) {
  const words = [];
  // One --scenario takes all the files that follow it.
  argv.forEach((word, index) => {
    const isMore =
      index > 1 && !word.startsWith("--") && words.at(-2) === "--scenario" && !argv[index - 1].startsWith("--");
    words.push(...(isMore ? ["--scenario", word] : [word]));
  });
  const text = { type: "string" };
  const options = {
    scenario: { ...text, multiple: true },
    listen: { ...text, default: "127.0.0.1:0" },
    journal: text,
    key: text,
    pace: { ...text, default: "0ms" },
    strict: { type: "boolean", default: false },
    help: { type: "boolean", default: false },
  };
  const { values } = parseArgs({ args: words, options });
  if (values.help) return values;
  const pace = /^(\d+)(ms|s)?$/.exec(values.pace);
  if (!pace) throw new Error(`--pace: "${values.pace}" is not a time such as 5ms or 1s`);
  const listen = /^(?:\[([^\]]+)\]|([^:[\]]+)):(\d{1,5})$/.exec(values.listen);
  if (!listen) throw new Error(`--listen: "${values.listen}" is not an address such as 127.0.0.1:0`);
  return {
    ...values,
    pace: Number(pace[1]) * (pace[2] === "s" ? 1000 : 1),
    host: listen[1] ?? listen[2],
    port: Number(listen[3]),
  };
}

function scenariosOf(files) {
  const shipped = () =>
    readdirSync(SHIPPED)
      .filter((name) => name.endsWith(".json"))
      .sort()
      .map((name) => SHIPPED + name);
  const scenarios = new Map();
  for (const file of files ?? shipped()) {
    const scenario = load(file);
    if (scenarios.has(scenario.name)) throw new Error(`${file}: another scenario has the name ${scenario.name}`);
    scenarios.set(scenario.name, scenario);
  }
  return scenarios;
}

function main() {
  let set, desk, journal;
  try {
    set = settings(process.argv.slice(2));
    if (set.help) return void process.stdout.write(HELP);
    const scenarios = scenariosOf(set.scenario);
    journal = new Journal(set.journal);
    desk = new Desk({ ...set, scenarios, journal });
  } catch (error) {
    return end(2, error.message);
  }
  const server = createServer((request, response) => {
    desk.handle(request, response).catch((error) => {
      // The client closed the connection; any other error is a defect of this program.
      if (error.name === "AbortError" || error.code === "ECONNRESET") return response.destroy();
      console.error(error);
      return end(1);
    });
  });
  server.on("error", (error) => end(1, error.message));
  server.listen({ host: set.host, port: set.port, backlog: BACKLOG }, () => {
    const { address, port, family } = server.address();
    console.log(`listening on http://${family === "IPv6" ? `[${address}]` : address}:${port}`);
  });
  for (const signal of ["SIGTERM", "SIGINT"])
    process.once(signal, () => {
      server.close(() => {
        journal.close();
        end(0);
      });
      server.closeAllConnections();
    });
}

main();
