// A worker with agents and tools, and the scripted server that it connects to: both are new for each test.
import { afterEach, beforeEach } from "node:test";
import { agent, InvalidInput, NotDone, serve, tool, type ServeOptions, type Worker } from "../../src/index.ts";
import type { ServerMessage } from "../../src/protocol.ts";
import { LIMITS, ScriptedServer, welcome, type Connection } from "./server.ts";

export let server: ScriptedServer;
export let worker: Worker | undefined;
export const logged: string[] = [];
export let performed: string[] = [];
export let release: (() => void)[] = [];

const offers = [
  agent("one", { version: "1" }, async (ctx, input: { name: string }) => {
    const greeting = await ctx.run("greet", "idempotent", { name: input.name }, ({ name }, call) => {
      performed.push(call.key);
      return `hello ${name}`;
    });
    const more = await ctx.call<string>("look", { greeting });
    return [greeting, more];
  }),
  agent("waits", {}, async (ctx) => ctx.receive("c")),
  agent("chooses", {}, async (ctx) => {
    await ctx.race("r", { a: (at) => at.call("fails"), b: (at) => at.receive("c") });
    return ctx.receive("d");
  }),
  agent("mistaken", {}, async () => {
    throw new TypeError("x is null");
  }),
  tool("slow", { effect: "at_most_once" }, async (_args, call) => {
    performed.push(call.key);
    call.progress({ percent: 10 });
    call.text("abc");
    call.text("ü");
    call.text("d");
    await new Promise<void>((resolve) => release.push(resolve));
    return { aborted: call.signal.aborted };
  }),
  tool("fails", { effect: "read" }, () => {
    throw new NotDone("busy", "try later", { retryable: true, retry_after_ms: 1500 });
  }),
  tool("stops", { effect: "at_most_once" }, async (_args, call) => {
    await new Promise((_resolve, reject) => call.signal.addEventListener("abort", () => reject(call.signal.reason)));
  }),
  tool("reports", { effect: "read" }, (_args, call) => {
    call.progress("x".repeat(4094));
    try {
      call.progress("x".repeat(4095));
    } catch (error) {
      const { code, stack } = error as InvalidInput;
      return { isInvalid: error instanceof InvalidInput, code, isHere: String(stack).includes("support/wire.ts") };
    }
    return null;
  }),
  tool("writes", { effect: "read" }, (_args, call) => {
    call.text("\u0000".repeat(6 << 20)); // six bytes of JSON each
    call.text("😀".repeat(1));
    call.text("y".repeat(12 << 20));
    call.text("z");
    return null;
  }),
  tool("throws", {}, () => {
    throw new TypeError("x is undefined");
  }),
  tool("no_json", { effect: "idempotent" }, () => 1n as never),
];

export function start(options: ServeOptions = {}): Worker {
  worker = serve(...offers, {
    ...(options.url === undefined ? { socket: server.socket as string } : {}),
    log: (level, message) => logged.push(`${level}: ${message}`),
    ...options,
  });
  return worker;
}

const JOB = { id: "job-1", agent: "one", labels: {}, created_at: "2026-01-01T00:00:00.000000Z" };
export const EMPTY = { requests: [], deliveries: [], values: {}, emitted: {} };
export function startOf(routine: number, more: Record<string, unknown> = {}): ServerMessage {
  return {
    type: "start",
    routine,
    job: JOB,
    agent: "one",
    version: "1",
    input: { name: "Ada" },
    now: "2026-01-01T00:00:00.000000Z",
    blind: "ab",
    blind_erased: false,
    record: EMPTY,
    ...more,
  } as ServerMessage;
}
export function permit(call: number, toolName: string, more: Record<string, unknown> = {}): ServerMessage {
  return {
    type: "perform",
    call,
    tool: toolName,
    job: "job-1",
    try: 1,
    key: `key-${call}`,
    execution_key: "e",
    invocation: `i-${call}`,
    send_within_ms: 10_000,
    timeout_ms: 30_000,
    arguments: {},
    ...more,
  } as ServerMessage;
}

/** A worker with an open session: the server has sent frame 1. */
export async function open(options: ServeOptions = {}, limits = LIMITS): Promise<Connection> {
  start(options);
  const connection = await server.accept();
  await connection.next();
  connection.send(1, 1, welcome("s-1", { limits }));
  return connection;
}

/** Called once by a file of tests. */
export function useServer(): void {
  beforeEach(async () => {
    server = await ScriptedServer.listen();
    logged.length = 0;
    performed = [];
    release = [];
  });
  afterEach(async () => {
    for (const resolve of release) resolve();
    await worker?.stop(0);
    worker = undefined;
    await server.close();
  });
}
