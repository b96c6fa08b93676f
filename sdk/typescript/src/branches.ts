// map, race and loop: branches of a routine, each in a scope of its own.
//
// They are pure over what is delivered: nothing of them is recorded but what their branches request.
import type { Branches, Ctx, Done, MapOptions, RaceResult, Turn } from "./api.ts";
import type { Context } from "./context.ts";
import { failureIn, InvalidInput } from "./errors.ts";
import { isObject, toJson } from "./json.ts";
import { isRequestName, joined, quoted } from "./positions.ts";
import { asRequest, neverSettles, type Branch } from "./request.ts";

const BRANCHES_MAX = 64; // of a race; items of a map at a time

function quiet<R>(promise: Promise<R>, name: string): Promise<R> {
  return asRequest(promise, name, () => {});
}

export function mapItems<T, R>(
  ctx: Context,
  name: string,
  items: readonly T[],
  fn: (ctx: Ctx, item: T, index: number) => R | Promise<R>,
  options: MapOptions,
): Promise<R[]> {
  const { routine } = ctx;
  if (!routine.mayCall(ctx)) return neverSettles();
  const parallel = options.parallel ?? 8;
  if (!Number.isInteger(parallel) || parallel < 1 || parallel > BRANCHES_MAX) {
    throw new InvalidInput(`ctx.map("${name}"): parallel is 1 to ${BRANCHES_MAX}, not ${String(parallel)}`);
  }
  const scope = options.fold ? "" : routine.openScope(ctx, name);
  const list = [...items];
  const results = new Array<R>(list.length);
  const running = new Map<number, Branch>();
  let next = 0;
  let hasFailed = false;

  const run = (index: number): Promise<R> => {
    const item = list[index] as T;
    // The scope of an item can be stopped from outside of it.
    const outer = ctx.inner(options.fold ? ctx.scope_ : joined(scope, index));
    running.set(index, outer.branch);
    if (options.fold) return routine.closedScope<R>(outer, name, index, (inner) => fn(inner, item, index));
    return outer.enter((inner) => fn(inner, item, index));
  };
  const work = async (): Promise<void> => {
    while (next < list.length && !hasFailed) {
      const index = next++;
      try {
        results[index] = await run(index);
      } catch (error) {
        if (hasFailed) return;
        const failure = failureIn(error);
        if (options.on_error === "collect" && failure) {
          results[index] = { error: { code: failure.code, message: failure.message } } as R;
        } else {
          hasFailed = true;
          routine.stopBranches([...running].filter(([other]) => other !== index).map(([, branch]) => branch));
          throw error;
        }
      }
      running.delete(index);
    }
  };
  const workers = Array.from({ length: Math.min(parallel, list.length) }, work);
  return quiet(
    Promise.all(workers).then(() => results),
    name,
  );
}

export function raceBranches<B extends Branches>(
  ctx: Context,
  name: string,
  branches: B,
  losers: "cancel" | "go_on",
): Promise<RaceResult<B>> {
  const { routine } = ctx;
  if (!routine.mayCall(ctx)) return neverSettles();
  const entries = Object.entries(branches);
  if (entries.length === 0 || entries.length > BRANCHES_MAX)
    throw new InvalidInput(`ctx.race("${name}"): a race has 1 to ${BRANCHES_MAX} branches`);
  for (const [branch] of entries) {
    if (!isRequestName(branch)) {
      throw new InvalidInput(
        `ctx.race("${name}"): the name of a branch has 1 to 64 letters, digits, "_", ".", ":" and "-" and no secret, not ${quoted(branch)}`,
      );
    }
  }
  const scope = routine.openScope(ctx, name);
  const contexts = new Map(entries.map(([branch]) => [branch, ctx.inner(joined(scope, branch))]));
  return quiet(
    new Promise((resolve, reject) => {
      let isDecided = false;
      const decide = (won: string, then: () => void): void => {
        if (isDecided) return;
        isDecided = true;
        if (losers === "cancel") {
          const stopped = [...contexts].filter(([branch]) => branch !== won).map(([, context]) => context.branch);
          routine.stopBranches(stopped);
        }
        then();
      };
      for (const [branch, body] of entries) {
        if (isDecided && losers === "cancel") return; // a branch can end while others begin
        (contexts.get(branch) as Context).enter(body).then(
          (value) => decide(branch, () => resolve({ won: branch, value } as RaceResult<B>)),
          (error: unknown) => decide(branch, () => reject(error)),
        );
      }
    }),
    name,
  );
}

export async function repeatTurns<S, T extends Turn<S>>(
  ctx: Context,
  name: string,
  state: S,
  fn: (ctx: Ctx, state: S, index: number) => Promise<T>,
): Promise<Done<T>> {
  const { routine } = ctx;
  if (!routine.mayCall(ctx)) return neverSettles();
  const { loop, first } = routine.beginLoop(ctx, name);
  let at = state;
  for (let index = first; ; index++) {
    const given = at;
    const end = await routine.turn<{ next: S } | { done: Done<T> }>(ctx, loop, index, async (inner) => {
      const turn: unknown = await fn(inner, given, index);
      if (turn !== null && typeof turn === "object") {
        // What is undefined is null, as everywhere.
        if ("done" in turn) return { done: turn.done ?? null };
        if ("next" in turn) return { next: turn.next ?? null };
      }
      throw new InvalidInput(`ctx.loop("${name}"): a turn returns {next: state} or {done: result}`);
    });
    if (isObject(end) && "done" in end) return end.done as Done<T>;
    at = (end as { next: S }).next;
  }
}

export function repeat<S, T extends Turn<S>>(
  ctx: Context,
  name: string,
  state: S,
  fn: (ctx: Ctx, state: S, index: number) => Promise<T>,
): Promise<Done<T>> {
  const first = toJson(state, `the state of the loop "${name}"`) as S;
  return quiet(repeatTurns(ctx, name, first, fn), name);
}
