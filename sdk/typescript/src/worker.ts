// Worker: a process's connection to the server, its routines and its functions.
//
// All routines share one macrotask: each that was delivered something has settled by then, makes its advance and is
// given the next outcome. What they and the functions send in it is one frame.
import { randomBytes } from "node:crypto";
import { hostname } from "node:os";
import { addressOf } from "./address.ts";
import type { ServeOptions, Worker } from "./api.ts";
import { isOffer, type AnyAgent, type AnyTool } from "./definitions.ts";
import { ConnectionFailed, InvalidInput } from "./errors.ts";
import { Functions, type FunctionsHost } from "./functions.ts";
import { isObject, toJson, type Json, type JsonObject } from "./json.ts";
import {
  PROTOCOL,
  type AdvanceMessage,
  type CodeRecord,
  type DivergedMessage,
  type FunctionEnd,
  type Hello,
  type RoutineEnd,
  type ServerMessage,
  type Start,
  type Welcome,
  type WorkerMessage,
} from "./protocol.ts";
import { OTHER_WORK_MS } from "./other_work.ts";
import { Routine, type RoutineHost } from "./routine.ts";
import { hideEnvironment, scrub } from "./secrets.ts";
import { Session, type Moment } from "./session.ts";

export const SDK_VERSION = "0.1.0";
const GRACE_MS = 30_000;
/** The server refused the worker: a retry does not help. */
const FINAL = new Set(["unauthorized", "forbidden", "unsupported", "usage"]);
const NAMES_MAX = 20; // of agents or tools in one line
const TROUBLE_MS = 1_000; // a connection that is lost for a shorter time is not reported

/** A record whose last part has not come. */
interface Loading {
  start: Start;
  record: CodeRecord;
  delivered: Extract<ServerMessage, { type: "deliver" }>[];
}

/** `observe`, `route`: for tests. */
export interface WorkerOptions extends ServeOptions {
  observe?: FunctionsHost["observe"];
  route?: FunctionsHost["route"];
}

export class WorkerProcess implements Worker, RoutineHost {
  readonly closed: Promise<void>;
  private readonly agents = new Map<string, AnyAgent>(); // by name and version
  private readonly tools = new Map<string, AnyTool>();
  private readonly options: WorkerOptions;
  private readonly session: Session;
  private readonly functions: Functions;
  private connections = 0; // of this process
  private readonly routines = new Map<number, Routine>();
  private readonly loading = new Map<number, Loading>();
  private readonly name = `${hostname()}:${process.pid}:${randomBytes(4).toString("hex")}`;
  private scheduled: Routine[] = [];
  private immediate: NodeJS.Immediate | undefined;
  private isStopping = false;
  private isSessionGone = false; // while its routines are dropped
  private trouble = ""; // of the connection
  private isTroubleReported = false;
  private troubleTimer: NodeJS.Timeout | undefined;
  private hasConnected = false;
  private refusal: { routine: number; code: string; message: string } | undefined; // the reason of the next `stop`
  private onChanged: (() => void) | undefined; // of the routines or the connection
  private resolveClosed!: () => void;
  private rejectClosed!: (error: Error) => void;

  /** Use `serve`. */
  constructor(offers: (AnyAgent | AnyTool)[], options: WorkerOptions) {
    this.options = options;
    hideEnvironment();
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
      acknowledgedAt: () => this.session.acknowledgedAt,
      observe: options.observe,
      route: options.route,
    });
    this.session = new Session(
      { address: () => addressOf(options), api_key: options.api_key ?? process.env["AETHERIS_API_KEY"] },
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

  async stop(grace_ms = GRACE_MS): Promise<void> {
    if (this.isStopping) return this.closed.catch(() => {});
    this.isStopping = true;
    this.sendMessage({ type: "drain" });
    await within(grace_ms, this.whenDrained());
    this.functions.abandonAll();
    await new Promise((resolve) => setImmediate(resolve));
    this.flush();
    await this.finish();
    this.resolveClosed();
  }

  // Resolves when no function runs, the server has stopped the routines, and it has the ends of calls. While the
  // connection is lost, it may come back for them.
  private async whenDrained(): Promise<void> {
    for (;;) {
      await this.functions.whenIdle();
      if (this.session.isOpen ? this.routines.size === 0 : !this.functions.hasUnreported) return;
      await new Promise<void>((resolve) => (this.onChanged = resolve));
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
    if (message.type === "diverged") this.onDiverged(message);
    else if (message.end?.exception) this.onException(message.routine, message.end.exception);
    this.sendMessage(message);
  }

  private onDiverged({ routine, position, finding, where }: DivergedMessage): void {
    const at = where === undefined ? "" : `, ${where}`;
    const what = {
      arguments: "the code requests something else than the log has",
      missing: "the code does not make a request that the log has",
      ended: "the code ended before a request that the log has",
    }[finding];
    const then = this.isTrial(routine)
      ? "The job keeps its version"
      : `The job parks; "aetheris resume" continues it after the code is corrected. What differs: aetheris divergence ${this.jobOf(routine)}`;
    if (!this.isCheck(routine))
      this.log("error", `${this.nameOf(routine)}: ${what ?? finding}, at "${position}"${at}. ${then}`);
    this.forget(routine);
  }

  private isTrial(routine: number): boolean {
    return this.routines.get(routine)?.start.trial === true;
  }

  // The server shows what it finds.
  private isCheck(routine: number): boolean {
    return this.routines.get(routine)?.start.check === true;
  }

  private onException(routine: number, { name, message, stack }: NonNullable<RoutineEnd["exception"]>): void {
    if (this.isCheck(routine)) return;
    const then = this.isTrial(routine)
      ? "The job keeps its version"
      : this.routines.get(routine)?.agent.definition.on_exception === "fail"
        ? "The job fails"
        : `The job parks. After the code is corrected: aetheris resume ${this.jobOf(routine)}`;
    const text = stack?.includes(message) ? stack : `${name}: ${message}\n${stack ?? ""}`;
    this.log("error", `${this.nameOf(routine)}: an exception ended the code. ${then}\n${text.trimEnd()}`);
  }

  private jobOf(routine: number): string {
    return this.routines.get(routine)?.start.job.id ?? "JOB";
  }

  // job refund-7 (agent refund)
  private nameOf(routine: number): string {
    const start = (this.routines.get(routine) ?? this.loading.get(routine))?.start;
    return start === undefined ? `routine ${routine}` : `job ${start.job.id} (agent ${start.agent})`;
  }

  offersTool(name: string): boolean {
    return this.tools.has(name);
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
    return {
      protocol: PROTOCOL,
      sdk: `typescript/${SDK_VERSION}`,
      worker: this.name,
      agents: [...this.agents.values()].map(offerOf),
      tools: [...this.tools.values()].map(offerOf),
      capacity: { routines: this.options.capacity?.routines ?? 256, calls: this.options.capacity?.calls ?? 256 },
      connection: ++this.connections,
      ...this.functions.left(),
    };
  }

  private onSession(welcome: Welcome, isNew: boolean): void {
    this.onChanged?.();
    this.reportFaults(welcome);
    if (this.isVerbose)
      this.log("info", `connected as ${this.name}, session ${welcome.session}`);
    else if (!this.hasConnected && !process.env["AETHERIS_SUPERVISED"]) this.log("info", this.connectedText(welcome));
    else if (this.isTroubleReported) this.log("info", "connected");
    clearTimeout(this.troubleTimer);
    this.troubleTimer = undefined;
    this.isTroubleReported = false;
    this.hasConnected = true;
    if (!isNew) return;
    this.isSessionGone = true;
    this.functions.onSessionGone();
    this.dropRoutines("its session is gone");
    this.isSessionGone = false;
    for (const message of this.functions.lateEnds()) this.sendMessage(message);
    if (this.isStopping) this.sendMessage({ type: "drain" });
  }

  // connected to http://127.0.0.1:7070; agents: a, b
  private connectedText({ agents = [] }: Welcome): string {
    const { socket, url } = addressOf(this.options);
    const refused = new Set(agents.filter(({ faults }) => faults !== undefined).map(({ name }) => name));
    const taken = new Set([...this.agents.values()].map(({ name }) => name).filter((name) => !refused.has(name)));
    const lists = [listText("agents", [...taken]), listText("tools", [...this.tools.keys()])];
    return [`connected to ${socket ?? url}`, ...lists.filter(Boolean)].join("; ");
  }

  // The faults of a hello are the same for all of its agents.
  private reportFaults({ agents = [] }: Welcome): void {
    const agentsOf = new Map<string, string[]>(); // by fault
    for (const { name, version, faults } of agents) {
      if (faults === undefined) continue;
      for (const fault of Array.isArray(faults) ? faults : [faults]) {
        const text = faultText(fault);
        agentsOf.set(text, [...(agentsOf.get(text) ?? []), version ? `${name} (version ${version})` : name]);
      }
    }
    for (const [fault, names] of agentsOf)
      this.log("error", `the server does not take ${names.join(", ")}: ${fault}`);
  }

  private onTrouble(error: ConnectionFailed): void {
    this.onChanged?.();
    if (FINAL.has(error.code)) {
      this.log("error", error.message);
      if (this.isStopping) return;
      void this.finish().then(() => this.rejectClosed(error));
      return;
    }
    const isNew = error.message !== this.trouble;
    this.trouble = error.message;
    if (this.isTroubleReported ? isNew : !this.hasConnected || this.isVerbose) return this.reportTrouble();
    if (this.isTroubleReported) return;
    this.troubleTimer ??= setTimeout(() => this.reportTrouble(), TROUBLE_MS).unref();
  }

  private get isVerbose(): boolean {
    return this.options.log !== undefined || Boolean(process.env["AETHERIS_VERBOSE"]);
  }

  private reportTrouble(): void {
    if (this.isStopping) return;
    this.isTroubleReported = true;
    this.log("warn", `not connected: ${this.trouble.replace(/[.?]$/, "")}. Trying again`);
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
        if (message.reason === "refused") this.onRefused(message.routine);
        return this.forget(message.routine, message.reason);
      case "closing":
        return this.log("info", `the server stops within ${message.within_ms} ms`);
      case "error":
        if (message.routine === undefined)
          return this.log("error", `the server reports ${message.code}: ${message.message}`);
        this.refusal = { routine: message.routine, code: message.code, message: message.message };
        return;
      default:
        return; // of a later version
    }
  }

  // The error that came before states why.
  private onRefused(routine: number): void {
    const why = this.refusal?.routine === routine ? this.refusal : undefined;
    this.refusal = undefined;
    const help =
      why?.code === "tool_not_granted"
        ? "Add it to `uses` of the agent, in its definition or in the agents file. The plan of this job does not change: cancel it, and create another"
        : "The SDK or the server has an error, or their versions do not match";
    this.log(
      "error",
      `${this.nameOf(routine)}: the server refused a request, and the job parks: ${why ? `${why.code}: ${why.message}` : "it gave no reason"}. ${help}`,
    );
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
    this.loading.delete(number);
    this.routines.set(number, routine);
    for (const message of delivered) routine.deliver(message.outcomes);
    routine.begin();
  }

  private lose(number: number, code: string, message: string): void {
    this.log("error", `${this.nameOf(number)}: ${message}`);
    this.forget(number, "lost");
    this.sendMessage({ type: "lost", routine: number, code, message });
  }

  private forget(number: number, reason = "diverged"): void {
    this.loading.delete(number);
    const routine = this.routines.get(number);
    this.routines.delete(number);
    routine?.drop(reason);
    this.onChanged?.();
  }

  private dropRoutines(reason: string): void {
    this.loading.clear();
    for (const number of [...this.routines.keys()]) this.forget(number, reason);
    this.scheduled = [];
  }
}

// agents: a, b
function listText(kind: string, names: string[]): string {
  if (names.length === 0) return "";
  const more = names.length > NAMES_MAX ? ` and ${names.length - NAMES_MAX} more` : "";
  return `${kind}: ${names.slice(0, NAMES_MAX).join(", ")}${more}`;
}

// tools.pay.timeout: must be a duration [plan_invalid]
function faultText(fault: Json): string {
  if (!isObject(fault) || typeof fault["message"] !== "string") return JSON.stringify(fault);
  const { file, line, column, path, suggestion } = fault;
  const place = line ? [file, line, column].filter(Boolean).join(":") : "";
  const parts = [place, path, fault["message"]].filter(Boolean).join(": ");
  return `${parts}${suggestion ? ` (did you mean ${String(suggestion)}?)` : ""} [${String(fault["code"])}]`;
}

function agentKey(name: string, version: string | undefined): string {
  return version === undefined || version === "" ? name : `${name} ${version}`;
}

function versionOf(agent: AnyAgent): string | undefined {
  return agent.definition.version ?? process.env["AETHERIS_VERSION"];
}

function offerOf(offer: AnyAgent | AnyTool): JsonObject {
  const definition = scrub(toJson(offer.definition, `the definition of "${offer.name}"`));
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
  return new WorkerProcess(offers, options[0] ?? {});
}
