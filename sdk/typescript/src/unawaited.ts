// Warnings about requests that the code of an agent made and did not await before it returned: their outcomes are lost,
// and what was not sent is not performed. For `aetheris dev` and the test kit.
//
// The methods of ctx are wrapped, and what they return is watched. To await a promise, or to pass it to Promise.all or
// race, reads its property `constructor`. So a getter of it states that the promise is awaited, and changes no order.
// A warning is printed once for each line of the user's code.
import { callerOf } from "./caller.ts";
import { Context } from "./context.ts";
import { isStopped, type Branch } from "./request.ts";
import { onReturn, type Routine } from "./routine.ts";

// Methods whose first argument is a name, an agent or a tool.
const NAMED = ["run", "call", "start", "scope", "map", "race", "loop"];
const OTHERS = ["send", "fetchRecorded", "sleep", "until", "wait", "approval", "receive"];

interface Watched {
  readonly place: string;
  what: string;
  readonly branch: Branch;
  /** How many outcomes the routine had been given. */
  readonly delivered: number;
  /** Its code may go on without the outcome. */
  isDetached: boolean;
  isAwaited: boolean;
}

type Method = (this: Context, ...args: unknown[]) => unknown;

const unsettled = new WeakMap<Routine, Set<Watched>>();
const known = new WeakMap<object, Watched>();
const printers = new Set<(warning: string) => void>();
const warned = new Set<string>();

/** Watches the agents of this process. `print` is given each warning. */
export function warnAboutUnawaited(print: (warning: string) => void): void {
  const isFirst = printers.size === 0;
  printers.add(print);
  if (!isFirst) return;
  onReturn((routine) => {
    const open = unsettled.get(routine) ?? new Set();
    const made = [...open];
    const { delivered } = routine;
    // What was cancelled just before settles in this turn.
    setImmediate(() => warnAbout(made.filter((one) => open.has(one) && !isStopped(one.branch)), delivered));
  });
  const methods = Context.prototype as unknown as Record<string, Method>;
  for (const name of [...NAMED, ...OTHERS]) wrap(methods, name, (first) => textOf(name, first));
  const model = methods["model"] as Method;
  methods["model"] = function (name) {
    const made = model.call(this, name) as Record<string, Method>;
    for (const method of Object.keys(made)) wrap(made, method, () => `ctx.model("${String(name)}").${method}()`, this);
    return made;
  };
}

function textOf(method: string, first: unknown): string {
  if (!NAMED.includes(method)) return `ctx.${method === "fetchRecorded" ? "fetch" : method}()`;
  const name = typeof first === "string" ? first : (first as { name?: unknown } | undefined)?.name;
  return `ctx.${method}("${String(name)}")`;
}

function wrap(owner: Record<string, Method>, name: string, text: (first: unknown) => string, ctx?: Context): void {
  const original = owner[name] as Method;
  owner[name] = function (...args) {
    const made = original.apply(this, args);
    if (made instanceof Promise) watch(ctx ?? this, made, text(args[0]), args[2]);
    return made;
  };
}

function watch(ctx: Context, made: Promise<unknown>, what: string, options: unknown): void {
  const before = known.get(made);
  if (before !== undefined) {
    before.what = what; // one method calls another
    return;
  }
  const place = callerOf("sdk");
  if (place === undefined) return;
  const isDetached = (options as { detached?: unknown } | undefined)?.detached === true;
  const { branch, routine } = ctx;
  const one: Watched = { place, what, branch, delivered: routine.delivered, isDetached, isAwaited: false };
  const open = unsettled.get(routine) ?? new Set();
  unsettled.set(routine, open.add(one));
  const onSettled = (): void => void open.delete(one);
  made.then(onSettled, onSettled);
  Object.defineProperty(made, "constructor", {
    configurable: true,
    get() {
      one.isAwaited = true;
      return Promise;
    },
  });
  known.set(made, one);
}

function warnAbout(open: Watched[], delivered: number): void {
  const isSent = (one: Watched): boolean => one.delivered < delivered;
  const lost = open.filter((one) => !one.isAwaited && !(one.isDetached && isSent(one)));
  for (const { place, what } of lost)
    warn(place, `${what} was not awaited before the agent returned; its outcome is lost. Add await`);
  if (lost.length > 0) return;
  // Other code awaits them, which nothing awaits.
  for (const { place, what } of open.filter((one) => !isSent(one)))
    warn(place, `${what} was not sent before the agent returned, and is not performed. Await the code that calls it`);
}

function warn(place: string, text: string): void {
  if (warned.has(place)) return;
  warned.add(place);
  for (const print of printers) print(`${place}: ${text}`);
}
