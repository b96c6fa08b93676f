#!/usr/bin/env node
// aetheris-worker FILE: serves the agents and tools that a module exports.
//
//   AETHERIS_SOCKET or AETHERIS_URL   the server
//   AETHERIS_API_KEY                  a key with the role worker or admin
//   AETHERIS_VERSION                  the version of agents that state none
//   AETHERIS_VERBOSE                  not empty: it prints a line for each connection
//   AETHERIS_DEV                      not empty (`aetheris dev`): it warns where an agent uses what is not recorded,
//                                     and where it does not await a request
//   AETHERIS_SUPERVISED               not empty: a command started it, which reports when it is ready
//
// Once it is connected, it prints one line with the server and what it offers. SIGTERM or SIGINT ends it in order within
// 30 s; a second one at once. Exit codes: 0 stopped, 2 usage, 1 all else.
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { isOffer, type AnyAgent, type AnyTool } from "./definitions.ts";
import { warnAboutUnrecorded } from "./dev_warnings.ts";
import { warnAboutUnawaited } from "./unawaited.ts";
import { WorkerProcess } from "./worker.ts";

const USAGE = "usage: aetheris-worker FILE   (a module in .ts .mts .js or .mjs that exports agent(…) and tool(…))\n";

function offersOf(module: Record<string, unknown>): (AnyAgent | AnyTool)[] {
  const found = new Set<AnyAgent | AnyTool>();
  for (const value of Object.values(module)) {
    for (const one of Array.isArray(value) ? value : [value]) if (isOffer(one)) found.add(one);
  }
  return [...found];
}

function fail(code: number, message: string): never {
  process.stderr.write(`aetheris-worker: ${message}\n`);
  process.exit(code);
}

async function main(args: string[]): Promise<void> {
  const [file, ...rest] = args;
  if (file === "--help" || file === "-h") return void process.stdout.write(USAGE);
  if (file === undefined || rest.length > 0) {
    process.stderr.write(USAGE);
    process.exit(2);
  }
  if (process.env["AETHERIS_DEV"]) {
    const print = (warning: string): void => void process.stderr.write(`aetheris: warn: ${warning}\n`);
    warnAboutUnrecorded(print);
    warnAboutUnawaited(print);
  }
  let module: Record<string, unknown>;
  try {
    module = (await import(pathToFileURL(resolve(file)).href)) as Record<string, unknown>;
  } catch (error) {
    const isTypeScript = (error as { code?: string }).code === "ERR_UNKNOWN_FILE_EXTENSION";
    fail(
      1,
      isTypeScript
        ? `${file}: this Node (${process.version}) does not run TypeScript; use Node 22.18 or later, or compile it to .mjs`
        : `${file}: ${error instanceof Error ? error.stack : String(error)}`,
    );
  }
  const offers = offersOf(module);
  if (offers.length === 0)
    fail(
      2,
      `${file} exports no agent and no tool; write: export const NAME = agent("NAME", {}, async (ctx, input) => …)`,
    );

  process.on("unhandledRejection", (error) => {
    process.stderr.write(
      `aetheris-worker: a rejection that nothing handles: ${error instanceof Error ? error.stack : String(error)}\n`,
    );
  });
  const worker = new WorkerProcess(offers, {});
  let signals = 0;
  const onSignal = (): void => {
    if (++signals > 1) process.exit(1);
    void worker.stop();
  };
  process.on("SIGTERM", onSignal);
  process.on("SIGINT", onSignal);
  await worker.closed;
  process.exit(0);
}

main(process.argv.slice(2)).catch((error: unknown) => fail(1, error instanceof Error ? error.message : String(error)));
