// script: the agent of conformance scenarios, which interprets a program with the primitives of the SDK (README.md).
import { agent, tool, Failure, NotDone, ToolFailed } from "../../typescript/src/index.ts";
import type { Call, Child, Ctx, Effect, Json, JsonObject, Request } from "../../typescript/src/index.ts";

const SHOP = process.env["AETHERIS_SHOP"] ?? "";
const OPTIONS = ["key", "name", "timeout", "retry", "on_in_doubt"];

type Op = JsonObject;
type Variables = Map<string, Json>;
/** What the code of a body sees. */
interface Scope {
  ctx: Ctx;
  variables: Variables; // shared by branches
  own: ReadonlyMap<string, Json>; // of the body: item, index, state
  requests: Map<string, Request<Json>>;
}
/** The end of an operation. `isReturned`: of the whole body. */
interface End {
  value: Json;
  isReturned: boolean;
}

// ---------------------------------------------------------------- values

function wrong(message: string): never {
  throw new TypeError(`the program is wrong: ${message}`);
}

function variable(scope: Scope, path: string): Json {
  const [name = "", ...rest] = path.split(".");
  let at: Json | undefined = scope.own.has(name) ? scope.own.get(name) : scope.variables.get(name);
  for (const part of rest) {
    if (Array.isArray(at)) at = at[Number(part)];
    else if (at !== null && typeof at === "object") at = at[part];
    else at = null;
  }
  return structuredClone(at ?? null);
}

function canonical(value: Json): string {
  if (Array.isArray(value)) return `[${value.map(canonical).join()}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const members = Object.keys(value).sort();
  return `{${members.map((name) => `${JSON.stringify(name)}:${canonical(value[name] as Json)}`).join()}}`;
}

function isLess(a: Json, b: Json): boolean {
  if (typeof a === "number" && typeof b === "number") return a < b;
  if (typeof a !== "string" || typeof b !== "string") wrong("$lt needs two numbers or two texts");
  return Buffer.compare(Buffer.from(a), Buffer.from(b)) < 0;
}

function size(value: Json): number {
  if (typeof value === "string") return [...value].length;
  if (value === null || typeof value !== "object") wrong("$len needs a text, a list or an object");
  return Object.keys(value).length;
}

const isTrue = (value: Json): boolean => value !== null && value !== false;

const EXPRESSIONS: Record<string, (given: Json[], scope: Scope) => Json> = {
  $cat: (texts) =>
    texts.map((text) => (["string", "number"].includes(typeof text) ? String(text) : wrong("$cat of a text"))).join(""),
  $add: ([a, b]) => (typeof a === "number" && typeof b === "number" ? a + b : wrong("$add needs two numbers")),
  $len: ([value]) => size(value as Json),
  $eq: ([a, b]) => canonical(a as Json) === canonical(b as Json),
  $lt: ([a, b]) => isLess(a as Json, b as Json),
  $le: ([a, b]) => !isLess(b as Json, a as Json),
  $and: (values) => values.every(isTrue),
  $or: (values) => values.some(isTrue),
  $not: ([value]) => !isTrue(value as Json),
  $append: ([list, item]) => (Array.isArray(list) ? [...list, item as Json] : wrong("$append needs a list")),
};
const UNARY = ["$len", "$not"];

function evaluate(value: Json | undefined, scope: Scope): Json {
  if (value === undefined || value === null || typeof value !== "object") return value ?? null;
  if (Array.isArray(value)) return value.map((item) => evaluate(item, scope));
  const names = Object.keys(value);
  const name = names[0];
  if (names.length !== 1 || name === undefined || !name.startsWith("$"))
    return Object.fromEntries(names.map((member) => [member, evaluate(value[member], scope)]));
  const inner = value[name] as Json;
  if (name === "$quote") return structuredClone(inner);
  if (name === "$var") return variable(scope, String(inner));
  const apply = EXPRESSIONS[name] ?? wrong(`there is no ${name}`);
  if (UNARY.includes(name)) return apply([evaluate(inner, scope)], scope);
  if (!Array.isArray(inner)) wrong(`${name} needs a list`);
  return apply(inner.map((item) => evaluate(item, scope)), scope);
}

// ---------------------------------------------------------------- functions

function until(ms: number | undefined, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const onAbort = (): void => reject(new Error("the call was cut off"));
    if (signal.aborted) return onAbort();
    signal.addEventListener("abort", onAbort, { once: true });
    if (ms === undefined) return;
    setTimeout(() => {
      signal.removeEventListener("abort", onAbort);
      resolve();
    }, ms);
  });
}

async function perform(args: JsonObject, call: Call): Promise<Json> {
  const { label, value, does } = args as { label: string; value: Json; does: JsonObject[] };
  const response = await fetch(`${SHOP}/perform`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ key: call.key, try: call.try, label, value }),
  });
  if (!response.ok) throw new Error(`the shop answered ${response.status}`);
  await response.arrayBuffer();
  const act = does[Math.min(call.try, does.length) - 1] ?? {};
  if (act["slow_ms"] !== undefined) await until(Number(act["slow_ms"]), call.signal);
  if (act["hang"]) await until(undefined, call.signal);
  if (act["fail"] !== undefined) {
    const code = String(act["fail"]);
    const message = String(act["message"] ?? code);
    if (!act["retryable"]) throw new Failure(code, message);
    const after = act["retry_after_ms"] as number | undefined;
    throw new NotDone(code, message, { retryable: true, ...(after === undefined ? {} : { retry_after_ms: after }) });
  }
  if (act["throw"] !== undefined) throw new Error(String(act["throw"]));
  if ("result" in act) return act["result"] as Json;
  return act["invalid"] ? Number.NaN : value;
}

function argumentsOf(op: Op, scope: Scope, label: Json | undefined): JsonObject {
  const does = op["does"];
  return {
    label: op["label"] ?? label ?? null,
    value: evaluate(op["value"], scope),
    does: does === undefined ? [{}] : Array.isArray(does) ? does : [does],
  };
}

// ---------------------------------------------------------------- requests

function picked(op: Op, names: string[]): JsonObject {
  return Object.fromEntries(names.filter((name) => name in op).map((name) => [name, op[name] as Json]));
}

function evaluated(op: Op, scope: Scope, names: string[]): JsonObject {
  return Object.fromEntries(names.filter((name) => name in op).map((name) => [name, evaluate(op[name], scope)]));
}

// Each makes one request.
const REQUESTS: Record<string, (op: Op, scope: Scope) => Request<unknown>> = {
  run: (op, scope) =>
    scope.ctx.run(
      String(op["name"]),
      op["effect"] as Effect,
      argumentsOf(op, scope, op["name"]),
      perform,
      picked(op, OPTIONS.filter((name) => name !== "name")),
    ),
  call: (op, scope) =>
    scope.ctx.call(String(op["tool"]), argumentsOf(op, scope, op["tool"]), picked(op, OPTIONS)),
  model: (op, scope) => {
    const model = scope.ctx.model(String(op["model"]));
    const prompt = String(evaluate(op["prompt"], scope));
    const options = picked(op, OPTIONS);
    return op["schema"] ? model.json(prompt, op["schema"] as JsonObject, options) : model.text(prompt, options);
  },
  sleep: (op, scope) => scope.ctx.sleep(op["for"] as string, picked(op, OPTIONS)),
  until: (op, scope) => scope.ctx.until(String(evaluate(op["at"], scope)), picked(op, OPTIONS)),
  wait: (op, scope) =>
    scope.ctx.wait({
      type: op["type"] as "signal",
      ...evaluated(op, scope, ["wait_key", "data"]),
      ...picked(op, ["expires", "on_expire", "answer", "question", ...OPTIONS]),
    }),
  approval: (op, scope) =>
    scope.ctx.approval(String(evaluate(op["question"], scope)), {
      ...evaluated(op, scope, ["data"]),
      ...(evaluated(op, scope, ["wait_key"]) as { wait_key?: string }),
      ...picked(op, ["expires", ...OPTIONS]),
    }),
  start: (op, scope) =>
    scope.ctx.start(
      String(op["agent"]),
      { program: op["program"] ?? null, data: evaluate(op["data"], scope) },
      picked(op, ["detached", "key", "name"]),
    ),
  send: (op, scope) =>
    scope.ctx.send(
      String(evaluate(op["job"], scope)),
      "channel" in op ? { channel: String(op["channel"]) } : { key: String(op["to_key"]) },
      evaluate(op["value"], scope),
      picked(op, OPTIONS),
    ),
  receive: (op, scope) => scope.ctx.receive(String(op["channel"]), picked(op, ["expires", ...OPTIONS])),
};

function request(op: Op, scope: Scope): Request<Json> {
  const make = REQUESTS[String(op["op"])] ?? wrong(`"${String(op["op"])}" is no request`);
  return make(op, scope) as Request<Json>;
}

async function fetched(op: Op, scope: Scope): Promise<Json> {
  const body = "body" in op ? JSON.stringify(evaluate(op["body"], scope)) : undefined;
  const response = await scope.ctx.fetch(SHOP + String(evaluate(op["path"], scope)), {
    method: String(op["method"] ?? "GET"),
    ...(body === undefined ? {} : { body, headers: { "content-type": "application/json" } }),
    ...picked(op, ["effect", "name", "key"]),
  } as RequestInit);
  const text = await response.text();
  return { status: response.status, body: text === "" ? null : (JSON.parse(text) as Json) };
}

// ---------------------------------------------------------------- operations

const isFailure = (error: unknown): error is Failure | ToolFailed =>
  error instanceof Failure || error instanceof ToolFailed;

/** A body of its own, with the variables that it is given. */
async function body(op: Json | undefined, scope: Scope): Promise<Json> {
  return (await execute(op as Op, scope)).value;
}

/** What the body of a scope sees. A closed one has its own variables. */
function inside(scope: Scope, ctx: Ctx, isClosed: boolean, own: Record<string, Json> = {}): Scope {
  return {
    ctx,
    variables: isClosed ? new Map(structuredClone([...scope.variables])) : scope.variables,
    own: new Map([...scope.own, ...Object.entries(own)]),
    requests: isClosed ? new Map() : scope.requests,
  };
}

function list(op: Op, member: string): Op[] {
  const found = op[member];
  return Array.isArray(found) ? (found as Op[]) : wrong(`"${member}" is a list`);
}

const value = (given: Json): End => ({ value: given, isReturned: false });

const OPERATIONS: Record<string, (op: Op, scope: Scope) => Promise<End> | End> = {
  async seq(op, scope) {
    let last = value(null);
    for (const one of list(op, "do")) {
      last = await execute(one, scope);
      if (last.isReturned) break;
    }
    return last;
  },
  async all(op, scope) {
    return value(await Promise.all(list(op, "branches").map((branch) => body(branch, scope))));
  },
  async first(op, scope) {
    return value(await Promise.race(list(op, "branches").map((branch) => body(branch, scope))));
  },
  async race(op, scope) {
    const branches = Object.entries(op["branches"] as JsonObject).map(
      ([name, branch]) => [name, (ctx: Ctx) => body(branch, inside(scope, ctx, false))] as const,
    );
    const result = await scope.ctx.race(String(op["name"]), Object.fromEntries(branches), picked(op, ["losers"]));
    return value(result as unknown as Json);
  },
  async scope(op, scope) {
    const fold = op["fold"] === true;
    const run = (ctx: Ctx): Promise<Json> => body(op["do"], inside(scope, ctx, fold));
    return value(await scope.ctx.scope(String(op["name"]), run, picked(op, ["fold"])));
  },
  async map(op, scope) {
    const fold = op["fold"] === true;
    const items = evaluate(op["items"], scope) as Json[];
    const [item, index] = [String(op["item"] ?? "item"), String(op["index"] ?? "index")];
    const run = (ctx: Ctx, given: Json, at: number): Promise<Json> =>
      body(op["do"], inside(scope, ctx, fold, { [item]: given, [index]: at }));
    const options = picked(op, ["parallel", "on_error", "fold"]);
    return value(await scope.ctx.map(String(op["name"]), items, run, options));
  },
  async loop(op, scope) {
    const state = evaluate(op["state"], scope);
    const result = await scope.ctx.loop(
      String(op["name"]),
      state,
      async (ctx, given: Json, index) =>
        (await body(op["do"], inside(scope, ctx, true, { state: given, index }))) as { next: Json } | { done: Json },
    );
    return value(result as Json);
  },
  async fetch(op, scope) {
    return value(await fetched(op, scope));
  },
  later(op, scope) {
    scope.requests.set(String(op["request"]), request(op["do"] as Op, scope));
    return value(null);
  },
  async await(op, scope) {
    return value((await named(op, scope)) ?? null);
  },
  cancel(op, scope) {
    named(op, scope).cancel(op["reason"] as string | undefined);
    return value(null);
  },
  child_id: (op, scope) => value((named(op, scope) as Child<Json>).id),
  async try(op, scope) {
    try {
      return await execute(op["do"] as Op, scope);
    } catch (error) {
      if (!isFailure(error)) throw error;
      scope.variables.set(String(op["error"] ?? "error"), { code: error.code, message: error.message });
    }
    return execute(op["catch"] as Op, scope);
  },
  now: (_, scope) => value(scope.ctx.now().getTime()),
  random: (_, scope) => value(scope.ctx.random()),
  uuid: (_, scope) => value(scope.ctx.uuid()),
  patched: (op, scope) => value(scope.ctx.patched(String(op["id"]))),
  emit(op, scope) {
    scope.ctx.emit(String(op["name"]), evaluate(op["value"], scope));
    return value(null);
  },
  publish(op, scope) {
    scope.ctx.publish(String(op["name"]), evaluate(op["value"], scope));
    return value(null);
  },
  throw(op) {
    const message = String(op["message"] ?? op["code"]);
    throw op["exception"] ? new Error(message) : new Failure(String(op["code"]), message);
  },
  return: (op, scope) => ({ value: evaluate(op["value"], scope), isReturned: true }),
  async raw(op) {
    for (let turn = Number(op["turns"] ?? 1); turn > 0; turn--) await undefined;
    return value(null);
  },
  set(op, scope) {
    const given = evaluate(op["value"], scope);
    scope.variables.set(String(op["var"]), given);
    return value(given);
  },
  get: (op, scope) => value(evaluate(op["value"], scope)),
  job_id: (_, scope) => value(scope.ctx.job.id),
  job: (_, scope) => value({ agent: scope.ctx.job.agent, labels: { ...scope.ctx.job.labels } }),
  if(op, scope) {
    const chosen = isTrue(evaluate(op["cond"], scope)) ? op["then"] : op["else"];
    return chosen === undefined ? value(null) : execute(chosen as Op, scope);
  },
};

function named(op: Op, scope: Scope): Request<Json> {
  return scope.requests.get(String(op["request"])) ?? wrong(`there is no request "${String(op["request"])}"`);
}

async function execute(op: Op, scope: Scope): Promise<End> {
  const name = String(op["op"]);
  const operation = OPERATIONS[name];
  const end = operation ? await operation(op, scope) : value((await request(op, scope)) ?? null);
  if (typeof op["as"] === "string") scope.variables.set(op["as"], structuredClone(end.value));
  return end;
}

async function script(ctx: Ctx, input: JsonObject): Promise<Json> {
  const variables = new Map([["input", input["data"] ?? null]]);
  return body(input["program"], { ctx, variables, own: new Map(), requests: new Map() });
}

// ---------------------------------------------------------------- what the worker offers

export const tools = (["read", "idempotent", "once"] as const).map((name) =>
  tool(
    `worker_${name}`,
    {
      effect: name === "once" ? "at_most_once" : name,
      timeout: "10s",
      retry: {
        max_attempts: 3,
        initial_backoff: "10ms",
        retry_on: ["connect", ...(name === "once" ? [] : ["timeout", "worker_lost"]), "busy"],
      },
    },
    perform as (args: Json, call: Call) => Promise<Json>,
  ),
);

const uses = ["worker", "server"].flatMap((by) => ["read", "idempotent", "once"].map((name) => `${by}_${name}`));
const jobs = ["server_child", "agent:script", "agent:nowhere", "job:send"];
const definition = { version: "1", uses: [...uses, "model:main", ...jobs] };
export const agents = [
  agent("script", { ...definition, on_exception: "park" }, script),
  agent("script_fails", { ...definition, on_exception: "fail" }, script),
];
