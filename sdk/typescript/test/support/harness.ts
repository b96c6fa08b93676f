// Runs one routine against the model of the engine, without a network: each message arrives when the test says so.
import { agent as makeAgent } from "../../src/definitions.ts";
import type { Agent, AgentDefinition, Call, Ctx } from "../../src/api.ts";
import { endOfFunction } from "../../src/functions.ts";
import { fresh, type Json } from "../../src/json.ts";
import { secretOf } from "../../src/secrets.ts";
import type {
  AdvanceMessage,
  DivergedMessage,
  Effect,
  FunctionEnd,
  FunctionFailure,
  Perform,
  ServerMessage,
  Start,
  Usage,
} from "../../src/protocol.ts";
import { Routine, type RoutineHost } from "../../src/routine.ts";
import { Engine, type EngineOptions } from "./engine.ts";

export const macrotask = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

export class Host implements RoutineHost {
  readonly sent: AdvanceMessage[] = [];
  readonly ended: { call: number; end: FunctionEnd }[] = [];
  readonly logged: string[] = [];
  diverged: DivergedMessage | undefined;
  private pending = 0;

  schedule(routine: Routine): void {
    if (routine.isScheduled) return;
    routine.isScheduled = true;
    this.pending++;
    setImmediate(() => {
      this.pending--;
      routine.step();
    });
  }
  send(message: AdvanceMessage | DivergedMessage): void {
    if (message.type === "advance") this.sent.push(message);
    else this.diverged = message;
  }
  endCall(call: number, end: FunctionEnd): void {
    this.ended.push({ call, end });
  }
  log(level: string, message: string): void {
    this.logged.push(`${level} ${message}`);
  }
  offersTool(name: string): boolean {
    return name === "offered";
  }
  /** Resolves when no routine has anything to do. */
  async settled(): Promise<void> {
    do await macrotask();
    while (this.pending > 0);
  }
}

export type JobOptions = EngineOptions & { other_work_ms?: number; definition?: AgentDefinition };

/** A job of one agent: its log, and a routine that runs. */
export class TestJob {
  readonly engine: Engine;
  host = new Host();
  routine!: Routine;
  private readonly agent: Agent;
  private readonly otherWorkMs: number;
  private taken = 0;
  readonly usages: Usage[] = []; // of models, by functions
  readonly failures: ({ try: number } & FunctionFailure)[] = []; // after which another try was made

  constructor(fn: (ctx: Ctx, input: never) => unknown, options: JobOptions = {}) {
    this.engine = new Engine(options);
    this.agent = makeAgent(options.agent ?? "agent", options.definition ?? {}, fn as (ctx: Ctx, input: Json) => Json) as Agent;
    this.otherWorkMs = options.other_work_ms ?? 200;
    this.restart();
  }

  /** A new routine from the record, as after a crash. */
  restart(now?: string): void {
    this.routine?.drop("crash");
    this.host = new Host();
    this.taken = 0;
    this.begin(this.engine.start(now));
  }

  begin(start: Start): void {
    this.routine = new Routine(start, this.agent, this.host, this.otherWorkMs);
    this.routine.begin();
  }

  /** Delivers all messages, performs all functions, until nothing happens any more. */
  async run(): Promise<this> {
    for (;;) {
      await this.host.settled();
      const sent = this.host.sent.slice(this.taken);
      this.taken = this.host.sent.length;
      for (const message of sent) this.engine.receive(message);
      const outbox = this.engine.outbox;
      this.engine.outbox = [];
      for (const message of outbox) await this.give(message);
      if (sent.length === 0 && outbox.length === 0) return this;
    }
  }

  async give(message: ServerMessage): Promise<void> {
    if (message.type === "deliver") return this.routine.deliver(message.outcomes);
    if (message.type === "perform") await this.perform(message);
  }

  /** A function: its success goes to the routine, its failure to the engine. */
  async perform(permit: Perform): Promise<void> {
    const position = permit.position as string;
    const found = this.routine.functionAt(position);
    if (found === undefined) return;
    const call: Call = {
      key: permit.key,
      execution_key: permit.execution_key,
      try: permit.try,
      signal: new AbortController().signal,
      traceparent: "",
      inputs: undefined,
      secret: secretOf,
      progress: () => {},
      text: () => {},
    };
    const effect = permit.tool.slice("run:".length) as Effect;
    const end = await endOfFunction(found.fn, fresh(found.args), call, this.routine, permit.tool, effect);
    if ("result" in end && end.usage !== undefined) this.usages.push(end.usage);
    if ("failure" in end && end.failure.retryable && permit.tool === "run:read" && permit.try < 4) {
      this.failures.push({ try: permit.try, ...end.failure });
      this.engine.backOff(position);
      this.engine.retryAll();
    } else if (!("result" in end)) {
      const { code, message } = "failure" in end ? end.failure : end.unknown;
      this.engine.fail(position, { code, message });
    } else if (!this.routine.onSuccess(permit.call, position, end)) {
      this.engine.succeed(position, end.result);
    }
  }

  get result(): unknown {
    const end = this.engine.end;
    if (this.host.diverged) return { diverged: this.host.diverged.position, finding: this.host.diverged.finding };
    if (end === undefined) return undefined;
    return end.failure
      ? { failure: end.failure.code }
      : end.exception
        ? { exception: end.exception.message }
        : end.result;
  }
}

/** Runs a job to its end, with what the world answers. */
export async function runJob(
  fn: (ctx: Ctx, input: never) => unknown,
  world: (job: TestJob) => void = () => {},
  options: JobOptions = {},
): Promise<TestJob> {
  const job = new TestJob(fn, options);
  await job.run();
  world(job);
  return job.run();
}

/** A generator of random numbers by seed (mulberry32). */
export class Dice {
  private state: number;
  constructor(seed: number) {
    this.state = seed >>> 0;
  }
  below(limit: number): number {
    this.state = (this.state + 0x6d2b79f5) >>> 0;
    let t = this.state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) % limit;
  }
  oneIn(n: number): boolean {
    return this.below(n) === 0;
  }
  pick<T>(list: readonly T[]): T {
    return list[this.below(list.length)] as T;
  }
}
