// Warnings of `aetheris dev`: code of an agent uses a time, a random value or HTTP that is not recorded.
//
// The functions are wrapped before the user's module is loaded. Their results stay the same. A warning is printed once
// for each line, if the caller is code of the user that runs in an agent: not in a function of `ctx.run` or of a tool,
// and not in a package.
import { createRequire, syncBuiltinESMExports } from "node:module";
import { dirname, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { current } from "./current.ts";

const FRAME = /[\s(]((?:file:\/\/)?\/[^()]+):(\d+):\d+\)?$/;
const DIFFERS = "is not recorded: it differs when the code runs again";
const IS_SENT_AGAIN = "is not recorded: it is sent again whenever the code runs again";

/** Wraps the functions of this process. `print` is given each warning. */
export function warnAboutUnrecorded(print: (warning: string) => void): void {
  const sdk = dirname(fileURLToPath(import.meta.url));
  const warned = new Set<string>();
  const warn = (what: string, why: string, instead: string): void => {
    if (current() === undefined) return;
    const place = callerOf(sdk);
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

// agent.ts:14 of the first frame outside of this package; undefined: it is not code of the user.
function callerOf(sdk: string): string | undefined {
  const lines = (new Error().stack ?? "").split("\n").slice(1);
  for (const line of lines) {
    const found = FRAME.exec(line);
    if (found === null) {
      if (line.includes("at Reflect.") || line.includes("at Object.apply") || line.includes("<anonymous>")) continue;
      return undefined; // of Node
    }
    const path = (found[1] as string).startsWith("file://") ? fileURLToPath(found[1] as string) : (found[1] as string);
    if (path.startsWith(`${sdk}/dev_warnings.`)) continue;
    if (path.startsWith(`${sdk}/`) || path.includes("/node_modules/")) return undefined;
    const short = relative(process.cwd(), path);
    return `${short.startsWith("..") ? path : short}:${found[2]}`;
  }
  return undefined;
}
