// aetheris/testing: runs agents in a test. The server is the real one, with a store in memory whose clock the test
// advances; the agents and tools run in this process (docs/testing-agents.md).
import { isDeepStrictEqual } from "node:util";
import type { Duration, Effect, Tool } from "./api.ts";
import { tool, type AnyAgent, type AnyTool } from "./definitions.ts";
import { AetherisError, Failure, InvalidInput } from "./errors.ts";
import type { Observed } from "./functions.ts";
import type { FunctionEnd } from "./protocol.ts";
import { isObject, toJson, type Json, type JsonObject } from "./json.ts";
import { CrashProxy, type CrashPoint } from "./testing/crash_proxy.ts";
import { ModelServer, type FakeModel } from "./testing/models.ts";
import { Server, type ServerModels } from "./testing/server.ts";
import { warnAboutUnawaited } from "./unawaited.ts";
import { durationMs } from "./values.ts";
import { WorkerProcess } from "./worker.ts";

export type { FakeModel, ModelAnswer, ModelCall, ModelFailure } from "./testing/models.ts";
export { replay, type ReplayedJob, type ReplayOptions, type StoredJobs } from "./testing/replay.ts";

const PATIENCE_MS = 30_000; // of real time
const POLL_MS = 5;
const POLL_MAX_MS = 100;
const ADVANCES_MAX = 100_000; // of the clock, for one result
const STARTED_MS = 30_000;
const ENDED = ["completed", "failed", "cancelled"];

/** A function in place of a tool. It is given the arguments. */
export type FakeTool = (args: never, call: never) => unknown;

export interface StartOptions {
  agents: readonly AnyAgent[];
  /**
   * The tools that the agents call: those of the program, or, by name, functions in their place. A function has the
   * definition of the tool with its name in `tools_of`; else it is idempotent.
   */
  tools?: readonly AnyTool[] | Readonly<Record<string, AnyTool | FakeTool>>;
  /** Tools whose definitions hold for functions of the same name in `tools`. */
  tools_of?: readonly AnyTool[];
  /**
   * The substitutes of models, by name: the models of the server, and those that clients call by
   * `ctx.fetch`. An agent names the first in `uses`, such as `model:main`.
   */
  models?: Readonly<Record<string, FakeModel>>;
  /**
   * The name of a variable, for an agents file whose models have `base_url: "${ env.NAME }"`: the address of `models`. They
   * are then the models of that file, by the name that it gives the provider (`model`).
   */
  models_url?: string;
  /** An agents file with further tools, models and policies. */
  agents_file?: string;
  /** The program. Default: AETHERIS_BIN, the one of the npm package, or `aetheris` in PATH. */
  program?: string;
  /** Called with what the worker reports. Default: nothing is printed. */
  log?: (level: "info" | "warn" | "error", message: string) => void;
}

/** A call that a function of this process performed, or a model of the test. */
export interface CallRecord {
  /** `run:EFFECT` for a function of `ctx.run`; `model:NAME` for a model. */
  readonly tool: string;
  /** Of the request of an agent; undefined: of a plan or a loop, or the call of a model. */
  readonly position: string | undefined;
  readonly job: string | undefined;
  readonly arguments: JsonObject;
  readonly effect: Effect;
  readonly key: string;
  readonly try: number;
  /** How it ended; undefined: it has not. */
  readonly result: Json | undefined;
  readonly error: { code: string; message: string; definite?: boolean } | undefined;
}

export interface JobOptions {
  id?: string;
  labels?: Record<string, string>;
}

/** A job of a test. */
export interface TestJob {
  readonly id: string;
  readonly test: Testing;
  /** The job, as `GET /api/jobs/ID` gives it. */
  view(): Promise<JsonObject>;
  status(): Promise<string>;
  /**
   * Its result. While the job only waits for time, the clock is advanced to the next instant that is due.
   *
   * Throws `Failure`: it failed, or was cancelled; `AetherisError`: it is parked, or waits for an answer.
   */
  result(): Promise<Json>;
  /** The events of its log. */
  events(): Promise<JsonObject[]>;
}

/** Starts a server and a worker for a test. Throws `InvalidInput`, `ConnectionFailed`. */
export async function start(options: StartOptions): Promise<Testing> {
  warnAboutUnawaited(printWarning);
  const offers = [...options.agents, ...toolsOf(options)];
  const calls: CallRecord[] = [];
  const models = options.models && (await ModelServer.start(options.models, (call) => calls.push(call)));
  let made: Testing;
  try {
    const server = await Server.start(options, models && modelsOf(models, options));
    made = new Testing(server, offers, options, calls, models);
  } catch (error) {
    models?.close();
    throw error;
  }
  try {
    await made.connect();
  } catch (error) {
    await made.close();
    throw error;
  }
  return made;
}

function printWarning(warning: string): void {
  process.stderr.write(`aetheris: warn: ${warning}\n`);
}

function modelsOf(models: ModelServer, { models_url }: StartOptions): ServerModels {
  return models_url === undefined ? { file: models.agentsFile() } : { env: { [models_url]: models.url } };
}

function toolsOf({ tools = [], tools_of = [] }: StartOptions): AnyTool[] {
  if (Array.isArray(tools)) return tools as AnyTool[];
  return Object.entries(tools).map(([name, given]) => {
    if (typeof given !== "function") {
      if (given.name !== name) throw new InvalidInput(`the tool "${given.name}" is given under the name "${name}"`);
      return given as AnyTool;
    }
    const definition = tools_of.find((one) => one.name === name)?.definition ?? { effect: "idempotent" as const };
    return tool(name, definition, given as Tool["fn"]) as AnyTool;
  });
}

/** A server with a store in memory, and a worker in this process. Made by `start`. */
export class Testing {
  private readonly server: Server;
  private readonly offers: (AnyAgent | AnyTool)[];
  private readonly options: StartOptions;
  private readonly made: CallRecord[];
  private readonly models: ModelServer | undefined;
  private proxy!: CrashProxy;
  private worker: WorkerProcess | undefined;
  private jobs = 0;
  private onCrash: (() => void) | undefined; // of the newest connection

  /** Use `start`. */
  constructor(
    server: Server,
    offers: (AnyAgent | AnyTool)[],
    options: StartOptions,
    calls: CallRecord[],
    models: ModelServer | undefined,
  ) {
    this.server = server;
    this.offers = offers;
    this.options = options;
    this.made = calls;
    this.models = models;
  }

  /** The address of the server, for its API. */
  get url(): string {
    return this.server.url;
  }

  /** Creates a job. An error of its creation is thrown by what uses the job next. */
  job(agent: string | AnyAgent, input: Json = {}, options: JobOptions = {}): TestJob {
    const name = typeof agent === "string" ? agent : agent.name;
    const id = options.id ?? `${name}-${++this.jobs}`;
    const body: JsonObject = { agent: name, id, input: toJson(input, "the input") };
    if (options.labels !== undefined) body["labels"] = options.labels;
    return new Job(this, id, this.request("POST", "/api/jobs", body));
  }

  /**
   * Waits until the job has this status, or the condition holds for it. Time does not advance. Throws `AetherisError`,
   * `timeout`, after 30 s of real time, or once the job has ended otherwise.
   */
  async until(job: TestJob, wanted: string | ((view: JsonObject) => boolean)): Promise<JsonObject> {
    const holds = typeof wanted === "function" ? wanted : (view: JsonObject) => view["status"] === wanted;
    const until = Date.now() + PATIENCE_MS;
    for (let delay = POLL_MS; ; delay = Math.min(2 * delay, POLL_MAX_MS)) {
      const view = await job.view();
      if (holds(view)) return view;
      if (ENDED.includes(String(view["status"])) || Date.now() > until) {
        const what = typeof wanted === "string" ? `did not become ${wanted}` : "did not become as it was awaited";
        throw new AetherisError("timeout", `job ${job.id} ${what}: ${describe(view)}`);
      }
      await sleep(delay);
    }
  }

  /** Approves the only open request of the job, or the one with this id. Waits until there is one. */
  async approve(job: TestJob, answer: { request?: string; note?: string; arguments?: Json } = {}): Promise<void> {
    await this.decide(job, "approve", answer);
  }

  /** Rejects it. */
  async reject(job: TestJob, answer: { request?: string; note?: string } = {}): Promise<void> {
    await this.decide(job, "reject", answer);
  }

  private async decide(job: TestJob, decision: string, answer: { request?: string } & JsonObject): Promise<void> {
    const { request, ...more } = answer;
    const id = request ?? (await this.openRequest(job));
    await this.request("POST", `/api/approvals/${encodeURIComponent(id)}`, { decision, ...more });
  }

  private async openRequest(job: TestJob): Promise<string> {
    const until = Date.now() + PATIENCE_MS;
    for (let delay = POLL_MS; ; delay = Math.min(2 * delay, POLL_MAX_MS)) {
      const view = await job.view();
      const { requests } = await this.request("GET", `/api/requests?job=${encodeURIComponent(job.id)}`);
      const open = (Array.isArray(requests) ? requests : []) as JsonObject[];
      if (open.length > 1) {
        const ids = open.map(({ id }) => String(id)).join(", ");
        throw new InvalidInput(`job ${job.id} has ${open.length} open requests; name one: ${ids}`);
      }
      if (open[0] !== undefined) return String(open[0]["id"]);
      if (ENDED.includes(String(view["status"])) || Date.now() > until)
        throw new AetherisError("not_found", `job ${job.id} has no open request: ${describe(view)}`);
      await sleep(delay);
    }
  }

  /** Answers a wait for a signal, also before it is open. */
  async signal(job: TestJob, wait_key: string, payload: Json = null): Promise<void> {
    await job.view();
    await this.request("POST", `/api/jobs/${encodeURIComponent(job.id)}/signal`, {
      correlation_key: wait_key,
      payload,
      buffer: true,
    });
  }

  /** Sends a message on a channel. */
  async message(job: TestJob, channel: string, payload: Json = null): Promise<void> {
    await job.view();
    await this.request("POST", `/api/jobs/${encodeURIComponent(job.id)}/message`, { channel, payload });
  }

  async cancel(job: TestJob): Promise<void> {
    await job.view();
    await this.request("POST", `/api/jobs/${encodeURIComponent(job.id)}/cancel`, {});
  }

  /**
   * Advances the clock. All that is due in this time happens in its order: whenever no job runs, the clock goes to the
   * next instant that is due.
   */
  async skip(duration: Duration): Promise<void> {
    await this.request("POST", "/api/clock", { advance: `${durationMs(duration)}ms` });
  }

  /** The time of the server. */
  async now(): Promise<Date> {
    return new Date(String((await this.request("POST", "/api/clock", {}))["now"]));
  }

  /** Advances the clock to the next instant that is due. False: none is. */
  async skipToNext(): Promise<boolean> {
    return (await this.request("POST", "/api/clock", { to_next: true }))["advanced"] === true;
  }

  /**
   * The calls of functions of this process and of its models, in their order: all, those of a tool or of `model:NAME`, or
   * those at a position.
   */
  calls(name?: string): readonly CallRecord[] {
    return this.made.filter((call) => name === undefined || call.tool === name || call.position === name);
  }

  /** A request of the server's API. */
  request(method: string, path: string, body?: JsonObject): Promise<JsonObject> {
    return this.server.request(method, path, body);
  }

  /** Ends the worker and the server; all is lost. */
  async close(): Promise<void> {
    await this.worker?.stop(0);
    this.proxy?.close();
    await this.server.stop();
    this.models?.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  // ---------------------------------------------------------------- its worker

  /** Connects a new worker. For `start` and `crashEverywhere`. */
  async connect(): Promise<void> {
    const proxy = (this.proxy = await CrashProxy.open(this.server.url));
    void proxy.crashed.then(() => this.onCrash?.());
    let refused: string | undefined;
    const worker = (this.worker = new WorkerProcess(this.offers, {
      url: proxy.url,
      log: (level, message) => {
        if (level === "error") refused ??= message;
        this.options.log?.(level, message);
      },
      observe: (call) => this.onCall(call),
      ...(this.models ? { route: this.models.route } : {}),
    }));
    const wanted = new Set(this.offers.filter(({ kind }) => kind === "agent").map(({ name }) => name));
    const until = Date.now() + STARTED_MS;
    for (;;) {
      const { agents } = await this.request("GET", "/api/agents");
      const usable = ((Array.isArray(agents) ? agents : []) as JsonObject[]).filter(({ runs_here }) => runs_here);
      if ([...wanted].every((name) => usable.some((one) => one["name"] === name))) return;
      if (refused !== undefined || Date.now() > until) {
        await worker.stop(0);
        throw new InvalidInput(refused ?? "the server did not accept the agents");
      }
      await sleep(POLL_MS);
    }
  }

  private onCall(observed: Observed): (end: FunctionEnd) => void {
    const record: { -readonly [K in keyof CallRecord]: CallRecord[K] } = {
      ...observed,
      result: undefined,
      error: undefined,
    };
    this.made.push(record);
    return (end) => {
      if ("result" in end) record.result = end.result;
      else record.error = "failure" in end ? end.failure : end.unknown;
    };
  }

  /** Runs `work`, and ends the worker at this frame. How many frames it sent, and whether it was ended. */
  async crashing<T>(
    point: CrashPoint | undefined,
    work: () => Promise<T>,
  ): Promise<{ value: T; frames: number; hasCrashed: boolean }> {
    const proxy = this.proxy;
    proxy.arm(point);
    let hasCrashed = false;
    let again: Promise<void> | undefined;
    this.onCrash = () => {
      hasCrashed = true;
      again = this.replaceWorker();
    };
    const value = await work();
    const { frames } = proxy;
    proxy.arm(undefined);
    await again;
    this.onCrash = undefined;
    return { value, frames, hasCrashed };
  }

  private async replaceWorker(): Promise<void> {
    const old = this.worker;
    this.worker = undefined;
    await old?.stop(0);
    await this.connect();
  }
}

class Job implements TestJob {
  readonly id: string;
  readonly test: Testing;
  private readonly created: Promise<unknown>;

  constructor(test: Testing, id: string, created: Promise<unknown>) {
    this.test = test;
    this.id = id;
    this.created = created;
    created.catch(() => {}); // thrown by what uses the job
  }

  async view(): Promise<JsonObject> {
    await this.created;
    return this.test.request("GET", `/api/jobs/${encodeURIComponent(this.id)}`);
  }

  async status(): Promise<string> {
    return String((await this.view())["status"]);
  }

  async events(): Promise<JsonObject[]> {
    await this.created;
    const { events } = await this.test.request("GET", `/api/jobs/${encodeURIComponent(this.id)}/events?limit=1000000`);
    return events as JsonObject[];
  }

  async result(): Promise<Json> {
    for (let advances = 0; ; ) {
      const view = await this.view();
      const status = String(view["status"]);
      if (status === "completed") return view["result"] ?? null;
      if (status === "failed") {
        const error = isObject(view["error"]) ? view["error"] : {};
        throw new Failure(String(error["code"] ?? "failed"), String(error["message"] ?? "the job failed"));
      }
      if (status === "cancelled") throw new Failure("cancelled", `job ${this.id} was cancelled`);
      if (status === "parked") throw new AetherisError(parkReason(view), `job ${this.id} is parked: ${describe(view)}`);
      if (await this.test.skipToNext()) {
        if (++advances > ADVANCES_MAX) throw new AetherisError("timeout", `job ${this.id} does not end`);
        continue;
      }
      const again = await this.view(); // it may have continued meanwhile
      if (again["status"] !== status || status !== "waiting") continue;
      throw new AetherisError("waiting", `job ${this.id} waits for an answer, and more time does not help: ${describe(again)}`);
    }
  }
}

function parkReason(view: JsonObject): string {
  const parked = view["parked"];
  return isObject(parked) && typeof parked["reason"] === "string" ? parked["reason"] : "parked";
}

/** What is known about a job that does not do what the test expects. */
function describe(view: JsonObject): string {
  const known: JsonObject = {};
  for (const name of ["status", "parked", "exception", "divergence", "error", "waits", "in_doubt"]) {
    const value = view[name];
    if (value !== undefined && value !== null && !(Array.isArray(value) && value.length === 0)) known[name] = value;
  }
  return JSON.stringify(known);
}

const sleep = (ms: number): Promise<void> => new Promise((done) => setTimeout(done, ms));

// ---------------------------------------------------------------- crashes

export interface CrashReport {
  /** How often the worker was ended. */
  crashes: number;
  /** In how many of these the outcome of an at_most_once call stayed unknown, so that an operator must decide. */
  in_doubt: number;
}

/**
 * Runs the job that `make` creates once undisturbed, then once for each frame that the worker sends in it, before and
 * after the frame; each time the worker ends there, and a new one continues the job.
 *
 * Throws `AetherisError`: `crash_changed_result` if the job ends otherwise; `call_repeated` if an at_most_once function
 * is called twice, or a call has another key when it is called again. A job that parks because the outcome of an
 * at_most_once call is unknown has not ended otherwise: that is what this effect promises.
 */
export async function crashEverywhere(make: () => TestJob | Promise<TestJob>): Promise<CrashReport> {
  const report: CrashReport = { crashes: 0, in_doubt: 0 };
  const first = await make(); // it names the test
  const expected = await endOf(first);
  const counted = await runOnce(first.test, make, undefined);
  if (!isDeepStrictEqual(counted.end, expected)) {
    throw new AetherisError(
      "crash_changed_result",
      `two runs without a crash ended with ${JSON.stringify(expected)} and ${JSON.stringify(counted.end)}`,
    );
  }
  for (let frame = 1; frame <= counted.frames; frame++) {
    for (const when of ["before", "after"] as const) {
      const at = `the worker ended ${when} frame ${frame} of ${counted.frames}`;
      const run = await runOnce(first.test, make, { frame, when });
      checkCalls(run.job, at);
      if (!run.hasCrashed) continue;
      report.crashes++;
      if (run.end["code"] === "invocation_in_doubt") report.in_doubt++;
      else if (!isDeepStrictEqual(run.end, expected)) {
        throw new AetherisError(
          "crash_changed_result",
          `${at}: the job ended with ${JSON.stringify(run.end)}, without a crash with ${JSON.stringify(expected)}`,
        );
      }
    }
  }
  return report;
}

interface Run {
  job: TestJob;
  end: JsonObject;
  frames: number;
  hasCrashed: boolean;
}

async function runOnce(
  test: Testing,
  make: () => TestJob | Promise<TestJob>,
  point: CrashPoint | undefined,
): Promise<Run> {
  const { value, ...run } = await test.crashing(point, async () => {
    const job = await make();
    return { job, end: await endOf(job) };
  });
  return { ...value, ...run };
}

async function endOf(job: TestJob): Promise<JsonObject> {
  try {
    return { result: await job.result() };
  } catch (error) {
    if (!(error instanceof AetherisError)) throw error;
    return { code: error.code };
  }
}

function checkCalls(job: TestJob, at: string): void {
  const keys = new Map<string, string>(); // by position
  const performed = new Set<string>(); // keys
  for (const call of job.test.calls()) {
    if (call.job !== job.id) continue;
    const place = call.position ?? call.tool;
    const known = keys.get(place) ?? call.key;
    if (call.position !== undefined && known !== call.key)
      throw new AetherisError("call_repeated", `${at}: the call at ${place} has the keys ${known} and ${call.key}`);
    keys.set(place, call.key);
    if (call.effect === "at_most_once" && performed.has(call.key))
      throw new AetherisError("call_repeated", `${at}: the at_most_once call at ${place} was performed twice`);
    if (!call.error?.definite) performed.add(call.key); // a definite failure had no effect
  }
}
