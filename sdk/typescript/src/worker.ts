// Worker: a process's connection to the server, its routines and its functions.
//
// All routines share one macrotask: each that was delivered something has settled by then, makes its advance and is
// given the next outcome. What they and the functions send in it is one frame.
import { randomBytes } from "node:crypto";
import { hostname } from "node:os";
import { isOffer, type AnyAgent, type AnyTool } from "./definitions.ts";
import { ConnectionFailed, InvalidInput } from "./errors.ts";
import { Functions } from "./functions.ts";
import { isObject, toJson, type JsonObject } from "./json.ts";
import {
  PROTOCOL,
  type AdvanceMessage,
  type CodeRecord,
  type DivergedMessage,
  type FunctionEnd,
  type Hello,
  type ServerMessage,
  type Start,
  type Welcome,
  type WorkerMessage,
} from "./protocol.ts";
import { Routine, OTHER_WORK_MS, type RoutineHost } from "./routine.ts";
import { Session, type Moment } from "./session.ts";

export const SDK_VERSION = "0.1.0";
const GRACE_MS = 30_000;
/** The server refused the worker: a retry does not help. */
const FINAL = new Set(["unauthorized", "forbidden", "unsupported", "usage"]);

export interface ServeOptions {
  /** The server's Unix socket. Default: AETHERIS_SOCKET. */
  socket?: string;
  /** The server's address, `http://` or `https://`. Default: AETHERIS_URL, else http://127.0.0.1:7070. */
  url?: string;
  /** Default: AETHERIS_API_KEY. */
  api_key?: string;
  /** Routines and calls at a time. Default: 256 each. */
  capacity?: { routines?: number; calls?: number };
  /** Called with what the worker reports; the default writes to stderr. */
  log?: (level: "info" | "warn" | "error", message: string) => void;
  /** How long code may do work that is not a request before a recorded request counts as missing. Default: 10 s. */
  other_work_ms?: number;
}

/** A record whose last part has not come. */
interface Loading {
  start: Start;
  record: CodeRecord;
  delivered: Extract<ServerMessage, { type: "deliver" }>[];
}

export class Worker implements RoutineHost {
  /** Resolves when the worker has stopped; rejects with `ConnectionFailed` if the server refused it. */
  readonly closed: Promise<void>;
  private readonly agents = new Map<string, AnyAgent>(); // by name and version
  private readonly tools = new Map<string, AnyTool>();
  private readonly options: ServeOptions;
  private readonly session: Session;
  private readonly functions: Functions;
  private readonly routines = new Map<number, Routine>();
  private readonly loading = new Map<number, Loading>();
  private readonly name = `${hostname()}:${process.pid}:${randomBytes(4).toString("hex")}`;
  private scheduled: Routine[] = [];
  private immediate: NodeJS.Immediate | undefined;
  private isStopping = false;
  private isSessionGone = false; // while its routines are dropped
  private lastTrouble = "";
  private onRoutinesChanged: (() => void) | undefined;
  private resolveClosed!: () => void;
  private rejectClosed!: (error: Error) => void;

  /** Use `serve`. */
  constructor(offers: (AnyAgent | AnyTool)[], options: ServeOptions) {
    this.options = options;
    for (const offer of offers) {
      const key = offer.kind === "agent" ? agentKey(offer.name, versionOf(offer)) : offer.name;
      const known: Map<string, unknown> = offer.kind === "agent" ? this.agents : this.tools;
      if (known.has(key)) throw new InvalidInput(`the ${offer.kind} "${key}" is offered twice`);
      known.set(key, offer);
    }
    if (this.agents.size + this.tools.size === 0)
      throw new InvalidInput("serve was given no agent and no tool; export agent(…) or tool(…)");
    this.closed = new Promise((resolve, reject) => {
      this.resolveClosed = resolve;
      this.rejectClosed = reject;
    });
    this.closed.catch(() => {});
    this.functions = new Functions({
      send: (message) => this.sendMessage(message),
      routine: (number) => this.routines.get(number),
      tool: (name) => this.tools.get(name),
    });
    this.session = new Session(
      {
        socket: options.socket ?? (options.url === undefined ? process.env["AETHERIS_SOCKET"] : undefined),
        url: options.url ?? process.env["AETHERIS_URL"] ?? "http://127.0.0.1:7070",
        api_key: options.api_key ?? process.env["AETHERIS_API_KEY"],
      },
      {
        hello: () => this.hello(),
        onSession: (welcome, isNew) => this.onSession(welcome, isNew),
        onMessage: (message, sentAt) => this.onMessage(message, sentAt),
        onTooLarge: (message) => this.onTooLarge(message),
        onTrouble: (error) => this.onTrouble(error),
      },
    );
    this.session.start();
  }

  /**
   * Stops in order: no further routine is started here; functions that run are awaited for `grace_ms` (30 s), then
   * cut off; their ends are sent. Jobs continue in other workers.
   */
  async stop(grace_ms = GRACE_MS): Promise<void> {
    if (this.isStopping) return this.closed.catch(() => {});
    this.isStopping = true;
    if (this.session.isOpen) {
      this.sendMessage({ type: "drain" });
      await within(grace_ms, this.whenIdle());
      this.functions.abandonAll();
    }
    await new Promise((resolve) => setImmediate(resolve));
    this.flush();
    await this.finish();
    this.resolveClosed();
  }

  private async whenIdle(): Promise<void> {
    await this.functions.whenIdle();
    while (this.routines.size > 0 || this.functions.running > 0) {
      await new Promise<void>((resolve) => (this.onRoutinesChanged = resolve));
      await this.functions.whenIdle();
    }
  }

  private async finish(): Promise<void> {
    this.dropRoutines("the worker stops");
    clearImmediate(this.immediate);
    this.immediate = undefined;
    this.isStopping = true;
    this.session.flush();
    await this.session.close();
  }

  // ---------------------------------------------------------------- for routines

  schedule(routine: Routine): void {
    if (routine.isScheduled) return;
    routine.isScheduled = true;
    this.scheduled.push(routine);
    this.wake();
  }

  send(message: AdvanceMessage | DivergedMessage): void {
    if (message.type === "diverged") {
      const at = message.where === undefined ? "" : ` (${message.where})`;
      this.log(
        "error",
        `routine ${message.routine} diverged from its log at "${message.position}": ${message.finding}${at}. Its job parks. See: aetheris trace`,
      );
      this.forget(message.routine);
    }
    this.sendMessage(message);
  }

  endCall(call: number, end: FunctionEnd): void {
    if (!this.isSessionGone) this.sendMessage({ type: "ended", call, ...end });
  }

  log(level: string, message: string): void {
    const known = level === "error" || level === "warn" ? level : "info";
    if (this.options.log) this.options.log(known, message);
    else process.stderr.write(`aetheris: ${level}: ${message}\n`);
  }

  // ---------------------------------------------------------------- the loop

  private wake(): void {
    this.immediate ??= setImmediate(() => this.turn());
  }

  private turn(): void {
    this.immediate = undefined;
    const routines = this.scheduled;
    this.scheduled = [];
    for (const routine of routines) routine.step();
    this.flush();
  }

  private sendMessage(message: WorkerMessage): void {
    this.session.add(message);
    this.wake();
  }

  private flush(): void {
    this.session.flush();
  }

  // ---------------------------------------------------------------- the session

  private hello(): Hello {
    const left = this.functions.left(this.session.acknowledgedAt);
    return {
      protocol: PROTOCOL,
      sdk: `typescript/${SDK_VERSION}`,
      worker: this.name,
      agents: [...this.agents.values()].map(offerOf),
      tools: [...this.tools.values()].map(offerOf),
      capacity: { routines: this.options.capacity?.routines ?? 256, calls: this.options.capacity?.calls ?? 256 },
      ...(left.length > 0 ? { left } : {}),
    };
  }

  private onSession(welcome: Welcome, isNew: boolean): void {
    this.lastTrouble = "";
    for (const { name, version, faults } of welcome.agents ?? []) {
      if (faults !== undefined)
        this.log(
          "error",
          `the server does not take the agent "${name}"${version ? ` ${version}` : ""}: ${JSON.stringify(faults)}`,
        );
    }
    if (!isNew) return;
    this.log("info", `connected as ${this.name}, session ${welcome.session}`);
    this.isSessionGone = true;
    this.functions.onSessionGone();
    this.dropRoutines("its session is gone");
    this.isSessionGone = false;
    for (const message of this.functions.lateEnds()) this.sendMessage(message);
    if (this.isStopping) this.sendMessage({ type: "drain" });
  }

  private onTrouble(error: ConnectionFailed): void {
    if (FINAL.has(error.code)) {
      this.log("error", error.message);
      if (this.isStopping) return;
      void this.finish().then(() => this.rejectClosed(error));
      return;
    }
    if (error.message !== this.lastTrouble) this.log("warn", `not connected: ${error.message}. Trying again`);
    this.lastTrouble = error.message;
  }

  private onTooLarge(message: WorkerMessage): void {
    if (message.type === "ended") {
      const why = { code: "tool_output_invalid", message: "the result is larger than a frame of 32 MiB" };
      return this.sendMessage({ type: "ended", call: message.call, unknown: why });
    }
    if (message.type !== "advance")
      return this.log("error", `a message of type ${message.type} is larger than a frame and was not sent`);
    for (const { call, result } of message.functions ?? []) this.sendMessage({ type: "ended", call, result });
    this.lose(
      message.routine,
      "payload_too_large",
      "what the routine requested at a time is larger than a frame of 32 MiB",
    );
  }

  private onMessage(message: ServerMessage, sentAt: Moment): void {
    switch (message.type) {
      case "start":
        return this.onStart(message);
      case "record": {
        const loading = this.loading.get(message.routine);
        if (loading === undefined) return;
        addPart(loading.record, message.record);
        if (!message.more) this.onLoaded(loading);
        return;
      }
      case "deliver": {
        const loading = this.loading.get(message.routine);
        if (loading) loading.delivered.push(message);
        else this.routines.get(message.routine)?.deliver(message.outcomes);
        return;
      }
      case "perform":
        return this.functions.perform(message, sentAt);
      case "abandon":
        return this.functions.abandon(message.call);
      case "stop":
        if (message.reason === "refused")
          this.log(
            "error",
            `the server refused routine ${message.routine}: it broke a rule of the protocol. Update the SDK`,
          );
        return this.forget(message.routine, message.reason);
      case "closing":
        return this.log("info", `the server stops within ${message.within_ms} ms`);
      case "error":
        return this.log("error", `the server reports ${message.code}: ${message.message}`);
      default:
        return; // of a later version
    }
  }

  // ---------------------------------------------------------------- routines

  private onStart(start: Start): void {
    const record: CodeRecord = { requests: [], deliveries: [], values: {}, emitted: {} };
    const loading: Loading = { start, record, delivered: [] };
    addPart(record, start.record);
    this.loading.set(start.routine, loading);
    if (!start.more) this.onLoaded(loading);
  }

  // A routine could begin with the first part. It begins with the last one, so no request of it has to wait.
  private onLoaded({ start, record, delivered }: Loading): void {
    const { routine: number } = start;
    this.loading.delete(number);
    const agent = this.agents.get(agentKey(start.agent, start.version));
    if (agent === undefined)
      return this.lose(
        number,
        "not_found",
        `this worker does not offer the agent "${start.agent}"${start.version ? ` ${start.version}` : ""}`,
      );
    let routine: Routine;
    try {
      routine = new Routine({ ...start, record }, agent, this, this.options.other_work_ms ?? OTHER_WORK_MS);
    } catch (error) {
      return this.lose(number, "log_corrupt", String(error));
    }
    this.routines.set(number, routine);
    for (const message of delivered) routine.deliver(message.outcomes);
    routine.begin();
  }

  private lose(number: number, code: string, message: string): void {
    this.log("error", `routine ${number}: ${message}`);
    this.forget(number, "lost");
    this.sendMessage({ type: "lost", routine: number, code, message });
  }

  private forget(number: number, reason = "diverged"): void {
    this.loading.delete(number);
    const routine = this.routines.get(number);
    this.routines.delete(number);
    routine?.drop(reason);
    this.onRoutinesChanged?.();
  }

  private dropRoutines(reason: string): void {
    this.loading.clear();
    for (const number of [...this.routines.keys()]) this.forget(number, reason);
    this.scheduled = [];
  }
}

function agentKey(name: string, version: string | undefined): string {
  return version === undefined || version === "" ? name : `${name} ${version}`;
}

function versionOf(agent: AnyAgent): string | undefined {
  return agent.definition.version ?? process.env["AETHERIS_VERSION"];
}

function offerOf(offer: AnyAgent | AnyTool): JsonObject {
  const definition = toJson(offer.definition, `the definition of "${offer.name}"`);
  const made: JsonObject = { name: offer.name, ...(isObject(definition) ? definition : {}) };
  if (offer.kind === "tool") {
    made["effect"] ??= "at_most_once";
    return made;
  }
  made["language"] = "typescript";
  const version = versionOf(offer);
  if (version !== undefined) made["version"] = version;
  return made;
}

function addPart(record: CodeRecord, part: Partial<CodeRecord> | undefined): void {
  for (const request of part?.requests ?? []) record.requests.push(request);
  for (const outcome of part?.deliveries ?? []) record.deliveries.push(outcome);
  Object.assign(record.values, part?.values);
  Object.assign(record.emitted, part?.emitted);
}

async function within(ms: number, work: Promise<void>): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  await Promise.race([work, new Promise<void>((resolve) => (timer = setTimeout(resolve, ms)))]);
  clearTimeout(timer);
}

/**
 * Offers agents and tools to the server, and connects for as long as the process lives: after a lost connection with a
 * back-off of 50 ms to 5 s. The last argument may be options.
 *
 * Throws `InvalidInput`: nothing is offered, or a name twice.
 */
export function serve(...what: (AnyAgent | AnyTool | ServeOptions)[]): Worker {
  const offers = what.filter(isOffer);
  const options: ServeOptions[] = what.filter((one): one is ServeOptions => !isOffer(one));
  return new Worker(offers, options[0] ?? {});
}
