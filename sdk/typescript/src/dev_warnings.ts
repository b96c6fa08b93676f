// Warnings of `aetheris dev`: code of an agent uses a time, a random value or HTTP that is not recorded.
//
// The functions are wrapped before the user's module is loaded. Their results stay the same. A warning is printed once
// for each line, if the caller is code of the user that runs in an agent: not in a function of `ctx.run` or of a tool,
// and not in a package.
import { createRequire, syncBuiltinESMExports } from "node:module";
import { callerOf } from "./caller.ts";
import { current } from "./current.ts";

const OF_SDK = ["caller", "dev_warnings"];
const DIFFERS = "is not recorded: it differs when the code runs again";
const IS_SENT_AGAIN = "is not recorded: it is sent again whenever the code runs again";

/** Wraps the functions of this process. `print` is given each warning. */
export function warnAboutUnrecorded(print: (warning: string) => void): void {
  const warned = new Set<string>();
  const warn = (what: string, why: string, instead: string): void => {
    if (current() === undefined) return;
    const place = callerOf(OF_SDK);
    if (place === undefined || warned.has(`${place} ${what}`)) return;
    warned.add(`${place} ${what}`);
    print(`${place}: ${what} ${why}. Use ${instead}`);
  };
  const wrap = (owner: object, name: string, what: string, why: string, instead: string): void => {
    const holder = owner as Record<string, (...args: unknown[]) => unknown>;
    const original = holder[name];
    if (typeof original !== "function") return;
    const wrapped = new Proxy(original, {
      apply(target, self, args: unknown[]) {
        warn(what, why, instead);
        return Reflect.apply(target, self, args) as unknown;
      },
    });
    Object.defineProperty(holder, name, { ...Object.getOwnPropertyDescriptor(holder, name), value: wrapped });
  };
  const crypto = createRequire(import.meta.url)("node:crypto") as object;
  wrap(Date, "now", "Date.now()", DIFFERS, "ctx.now()");
  wrap(Math, "random", "Math.random()", DIFFERS, "ctx.random()");
  wrap(globalThis.crypto, "randomUUID", "crypto.randomUUID()", DIFFERS, "ctx.uuid()");
  wrap(crypto, "randomUUID", "crypto.randomUUID()", DIFFERS, "ctx.uuid()");
  wrap(globalThis, "fetch", "fetch()", IS_SENT_AGAIN, "ctx.fetch()");
  syncBuiltinESMExports();
  wrapDate(() => warn("new Date()", DIFFERS, "ctx.now()"));
}

function wrapDate(warn: () => void): void {
  const Wrapped: DateConstructor = new Proxy(Date, {
    construct(target, args: unknown[], newTarget) {
      if (args.length === 0) warn();
      return Reflect.construct(target, args, newTarget === Wrapped ? target : newTarget) as Date;
    },
    apply(target, self, args: unknown[]) {
      warn();
      return Reflect.apply(target as () => string, self, args);
    },
  });
  Object.defineProperty(Date.prototype, "constructor", {
    value: Wrapped,
    configurable: true,
    enumerable: false,
    writable: true,
  });
  globalThis.Date = Wrapped;
}
