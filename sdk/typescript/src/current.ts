// The routine and the scope in which code runs, carried through its awaits.
import { AsyncLocalStorage } from "node:async_hooks";
import type { Ctx } from "./api.ts";

export interface Current {
  /** Undefined: inside of a function, which performs one call and makes no requests. */
  ctx: Ctx | undefined;
  routine: object;
  /** The innermost closed scope. */
  closed: object | undefined;
}

// One for the process: a library may have another copy of this package than the worker.
const shared = globalThis as { [key: symbol]: unknown };
const STORAGE = Symbol.for("aetheris.current.1");

export const storage = (shared[STORAGE] ??= new AsyncLocalStorage<Current>()) as AsyncLocalStorage<Current>;

/**
 * The `ctx` of the code that calls, for libraries that cannot be given one. Undefined: outside of an agent, or inside
 * of a function.
 */
export function current(): Ctx | undefined {
  return storage.getStore()?.ctx;
}
