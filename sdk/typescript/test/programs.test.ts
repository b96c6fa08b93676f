// Random programs by seed: joins, races, maps, closed scopes, loops, values and waits, whose branches share a variable
// that every request contains. Crashes come at random moments. A new routine makes the same requests again, and the log
// of a job gives the same end whenever it is replayed.
//
// AETHERIS_SEED=N repeats one seed; AETHERIS_PROGRAMS=N runs N of them.
import { createHash } from "node:crypto";
import { test } from "node:test";
import assert from "node:assert/strict";
import type { Ctx } from "../src/api.ts";
import { agent as makeAgent } from "../src/definitions.ts";
import { ToolFailed } from "../src/errors.ts";
import { canonical, toJson, type Json } from "../src/json.ts";
import type { AdvanceMessage, Perform, ServerMessage } from "../src/protocol.ts";
import { Routine } from "../src/routine.ts";
import { Engine } from "./support/engine.ts";
import { Dice, Host, macrotask } from "./support/harness.ts";

type Act =
  | "run"
  | "call"
  | "wait"
  | "cancel"
  | "value"
  | "patch"
  | "emit"
  | "all"
  | "race"
  | "ctx_race"
  | "map"
  | "scope"
  | "loop";
interface Statement {
  act: Act;
  name: string;
  kind: number;
  blocks: Statement[][];
}

class Maker {
  private readonly dice: Dice;
  private requests = 0;
  private scopes = 0;
  constructor(dice: Dice) {
    this.dice = dice;
  }
  block(depth: number): Statement[] {
    const block: Statement[] = [];
    for (let n = 1 + this.dice.below(3); n > 0 && this.requests < 16; n--) block.push(this.statement(depth));
    return block;
  }
  private statement(depth: number): Statement {
    const { dice } = this;
    const n = dice.below(depth === 0 ? 13 : 23);
    const made: Statement = { act: "run", name: `n${dice.below(2)}`, kind: dice.below(4), blocks: [] };
    if (n < 6) made.act = "run";
    else if (n < 8) made.act = "call";
    else if (n === 8) made.act = "wait";
    else if (n === 9) made.act = "cancel";
    else if (n === 10) made.act = "value";
    else if (n === 11) made.act = "patch";
    else if (n === 12) made.act = "emit";
    else {
      made.act = (["all", "all", "race", "ctx_race", "map", "map", "scope", "scope", "loop", "all"] as const)[
        n - 13
      ] as Act;
      const isScope = made.act === "scope" || made.act === "loop";
      // A closed scope is used once, and so is a map of closed scopes.
      const isOnce = isScope || (made.act === "map" && made.kind === 0);
      made.name = isOnce ? `s${++this.scopes}` : `b${dice.below(2)}`;
      const branches = isScope || made.act === "map" ? 1 : 2 + dice.below(2);
      for (let i = 0; i < branches; i++) made.blocks.push(this.block(depth - 1));
    }
    if (made.act === "run" || made.act === "call" || made.act === "wait" || made.act === "cancel") this.requests++;
    return made;
  }
}

interface Variable {
  x: string;
}
const mixed = (x: string, by: Json): string =>
  createHash("sha256")
    .update(`${x} ${canonical(by)}`)
    .digest("hex")
    .slice(0, 12);

// In a closed scope `local` is a variable of the scope, and the others are only read.
async function runBlock(ctx: Ctx, block: Statement[], shared: Variable, outer: Variable[]): Promise<Json> {
  for (const statement of block) shared.x = mixed(shared.x, await runStatement(ctx, statement, shared, outer));
  return shared.x;
}

async function outcomeOf(made: Promise<Json | void>): Promise<Json> {
  try {
    return (await made) ?? null;
  } catch (error) {
    if (error instanceof ToolFailed) return { failed: error.code };
    throw error;
  }
}

async function runStatement(
  ctx: Ctx,
  { act, name, kind, blocks }: Statement,
  shared: Variable,
  outer: Variable[],
): Promise<Json> {
  const args = { x: shared.x, outer: outer.map((one) => one.x) };
  const inner = (block: Statement[], at: Ctx): Promise<Json> => runBlock(at, block, shared, outer);
  const closed = (block: Statement[], at: Ctx): Promise<Json> =>
    runBlock(at, block, { x: "local" }, [...outer, shared]);
  switch (act) {
    case "run":
      return outcomeOf(
        ctx.run(name, (["read", "idempotent", "at_most_once", "read"] as const)[kind] as "read", args, (given) =>
          mixed("run", given),
        ),
      );
    case "call":
      return outcomeOf(ctx.call("look", args, { name }));
    case "wait":
      if (kind === 0) return outcomeOf(ctx.sleep("20s", { name }));
      if (kind === 1) return outcomeOf(ctx.receive("c", { name }));
      return outcomeOf(ctx.wait({ type: "signal", name, expires: "60s", on_expire: "continue" }));
    case "cancel": {
      const isCall = ctx.random() < 0.7;
      const made = isCall
        ? kind % 2 === 0
          ? ctx.call<Json>("look", args, { name })
          : ctx.run<object, Json>(name, kind === 1 ? "read" : "idempotent", args, () => kind)
        : ctx.wait<Json>({ type: "signal", name });
      if (ctx.random() < 0.8) await outcomeOf(ctx.run(`c${name}`, "read", args, () => kind));
      made.cancel();
      return outcomeOf(made);
    }
    case "value":
      return kind === 0
        ? ctx.now().getTime()
        : kind === 1
          ? ctx.random()
          : kind === 2
            ? ctx.uuid()
            : ({ random: ctx.random(), now: ctx.now() } as unknown as Json);
    case "patch":
      return ctx.patched(`p${kind % 2}`);
    case "emit":
      ctx.emit(name, args);
      return null;
    case "all":
      return Promise.all(blocks.map((block) => inner(block, ctx)));
    case "race":
      return Promise.race(blocks.map((block) => inner(block, ctx)));
    case "ctx_race": {
      const { won, value } = await ctx.race(
        name,
        Object.fromEntries(blocks.map((block, i) => [`r${i}`, (at: Ctx) => inner(block, at)])),
        { losers: kind === 0 ? "go_on" : "cancel" },
      );
      return { won: String(won), value: value ?? null };
    }
    case "map": {
      const fold = kind === 0;
      return ctx.map(name, [1, 2, 3], (at) => (fold ? closed : inner)(blocks[0] as Statement[], at), {
        parallel: 1 + (kind % 3),
        fold,
      });
    }
    case "scope":
      return ctx.scope(name, (at) => closed(blocks[0] as Statement[], at), { fold: true });
    case "loop":
      return ctx.loop(name, { x: "begin" }, async (at, state, i) => {
        const next = { x: "begin" };
        next.x = state.x;
        await runBlock(at, blocks[0] as Statement[], next, [...outer, shared]);
        return i < kind % 3 ? { next } : { done: next.x };
      });
  }
}

// One job: messages and ends of functions come in random order, and the routine crashes at random moments.
class Simulation {
  readonly engine: Engine;
  readonly dice: Dice;
  private readonly agent;
  private host = new Host();
  private routine!: Routine;
  private toEngine: AdvanceMessage[] = [];
  private toWorker: ServerMessage[] = [];
  private functions: { permit: Perform; routine: Routine }[] = [];
  private seen = 0;
  crashes = 0;
  isQuiet = false; // no outcome comes

  constructor(dice: Dice, program: Statement[]) {
    this.dice = dice;
    this.engine = new Engine({ admits: () => !dice.oneIn(4), records: () => dice.oneIn(2) });
    this.agent = makeAgent("agent", {}, (ctx) => runBlock(ctx, program, { x: "x" }, []));
    this.crash();
  }

  crash(): void {
    this.routine?.drop("crash");
    this.host = new Host();
    this.seen = 0;
    this.toEngine = [];
    this.toWorker = [];
    this.functions = [];
    this.crashes++;
    this.routine = new Routine(this.engine.start(), this.agent, this.host);
    this.routine.begin();
  }

  /** To the end of the job. */
  async run(crashOneIn: number): Promise<void> {
    for (let steps = 0; this.engine.end === undefined; steps++) {
      assert.ok(
        steps < 5_000,
        `the job does not end: ${[...this.engine.log.values()].map(({ position, ended }) => `${position} ${ended}`)}`,
      );
      if (this.dice.oneIn(3)) await macrotask();
      this.collect();
      assert.equal(this.host.diverged, undefined, JSON.stringify(this.host.diverged));
      if (crashOneIn > 0 && this.crashes < 40 && this.dice.oneIn(crashOneIn)) this.crash();
      else await this.act();
    }
  }

  private collect(): void {
    for (; this.seen < this.host.sent.length; this.seen++) {
      // Through JSON, as on the wire.
      this.toEngine.push(JSON.parse(JSON.stringify(this.host.sent[this.seen])) as AdvanceMessage);
    }
  }

  private async act(): Promise<void> {
    const { dice, engine } = this;
    const choice = dice.below(6);
    if (choice < 2 && this.toEngine.length > 0) {
      engine.receive(this.toEngine.shift() as AdvanceMessage);
    } else if (choice === 2 && this.toWorker.length > 0) {
      const message = this.toWorker.shift() as ServerMessage;
      if (message.type === "deliver") this.routine.deliver(message.outcomes);
      if (message.type === "abandon") this.cutOff(message.call);
      if (message.type === "perform") this.functions.push({ permit: message, routine: this.routine });
    } else if (choice === 3 && !this.isQuiet && this.functions.length > 0) {
      const [{ permit, routine }] = this.functions.splice(dice.below(this.functions.length), 1) as [
        { permit: Perform; routine: Routine },
      ];
      await this.endFunction(permit, routine);
    } else if (choice === 4 && !this.isQuiet) {
      const open = engine.open().filter((request) => !request.tool?.startsWith("run:"));
      if (open.length > 0) this.finish(dice.pick(open).position);
    } else if (dice.oneIn(2)) {
      engine.retryAll();
    } else {
      engine.admitAll();
    }
    this.toWorker.push(...engine.outbox);
    engine.outbox = [];
  }

  // A function that only reads is cut off, or ends before that.
  private cutOff(call: number): void {
    const at = this.functions.findIndex(({ permit }) => permit.call === call);
    if (at < 0 || this.dice.oneIn(2)) return;
    const [{ permit }] = this.functions.splice(at, 1) as [{ permit: Perform; routine: Routine }];
    const position = permit.position as string;
    if (!this.engine.at(position).ended) this.engine.fail(position, { code: "abandoned", message: "cut off" });
  }

  private finish(position: string): void {
    const request = this.engine.at(position);
    if (request.wait?.type === "timer") this.engine.succeed(position, null);
    else if (request.wait && this.dice.oneIn(3)) this.engine.finish(position, { timed_out: true });
    else if (this.dice.oneIn(4)) this.engine.fail(position, { code: "http_503", message: "no" });
    else this.engine.succeed(position, { answer: this.dice.below(100) });
  }

  private async endFunction(permit: Perform, routine: Routine): Promise<void> {
    const position = permit.position as string;
    const found = routine.functionAt(position);
    if (found === undefined || this.engine.at(position).ended) return;
    if (this.dice.oneIn(6)) return this.engine.backOff(position);
    if (this.dice.oneIn(5)) return this.engine.fail(position, { code: "exception", message: "it failed" });
    const result = toJson(await found.fn(permit.arguments as never, {} as never), "the result");
    if (!routine.onSuccess(permit.call, position, { result })) this.engine.succeed(position, result);
  }
}

const text = (engine: Engine): string => JSON.stringify([engine.record(), engine.end]);

async function runSeed(seed: number): Promise<{ crashes: number; requests: number; cancelled: number }> {
  const dice = new Dice(seed);
  const program = new Maker(dice).block(3);
  const simulation = new Simulation(dice, program);
  await simulation.run(12);
  const { engine } = simulation;
  const { end, crashes } = { end: engine.end, crashes: simulation.crashes };
  const cancelled = engine.cancelled.filter((position) => engine.at(position).kind !== "wait").length;
  assert.equal(end?.exception, undefined, JSON.stringify(end));
  const log = text(engine);
  // The log alone gives the same end, as long as nothing new comes.
  engine.end = undefined;
  simulation.isQuiet = true;
  simulation.crash();
  await simulation.run(0);
  assert.equal(text(engine), log);
  return { crashes, requests: engine.log.size, cancelled };
}

const repeated = process.env["AETHERIS_SEED"];
const first = repeated === undefined ? 1 : Number(repeated);
const count = repeated !== undefined ? 1 : Number(process.env["AETHERIS_PROGRAMS"] ?? 300);

test(`programs: ${count} random programs go on after crashes, and their logs give the same end`, async (t) => {
  const total = { crashes: 0, requests: 0, cancelled: 0 };
  for (let seed = first; seed < first + count; seed++) {
    try {
      const { crashes, requests, cancelled } = await runSeed(seed);
      total.crashes += crashes;
      total.requests += requests;
      total.cancelled += cancelled;
    } catch (error) {
      console.error(`SEED ${seed}\nrepeat: AETHERIS_SEED=${seed} npm test`);
      throw error;
    }
  }
  if (repeated === undefined)
    assert.ok(
      total.crashes > count && total.requests > 2 * count && total.cancelled > count / 4,
      JSON.stringify(total),
    );
  t.diagnostic(`${total.requests} requests, ${total.crashes} crashes, ${total.cancelled} cancelled calls`);
});
