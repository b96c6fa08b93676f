// replay: checks whether code fits recorded jobs. The program reads their logs (`aetheris preflight`), and the code runs
// in this process: the worker that the program starts only states where to connect.
import { spawn } from "node:child_process";
import { chmodSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, dirname, join } from "node:path";
import type { AnyAgent, AnyTool } from "../definitions.ts";
import { AetherisError, ConnectionFailed, InvalidInput } from "../errors.ts";
import { isObject, type Json, type JsonObject } from "../json.ts";
import { WorkerProcess } from "../worker.ts";
import { findProgram } from "./server.ts";

const SOCKET = /^aetheris-testing-socket (.+)\n/m;
const STANDBY = '#!/bin/sh\necho "aetheris-testing-socket $AETHERIS_SOCKET"\nexec sleep 86400\n';
const DIVERGED = 6; // exit code
const ERRORS_MAX = 64 << 10; // characters that are kept of what the program prints

/** Jobs of a store or of a server. */
export interface StoredJobs {
  /** As `--store` of the commands: a file, `sqlite:PATH` or `postgres://…`. */
  store?: string;
  /** The server's address; AETHERIS_API_KEY is its key. */
  url?: string;
  /** Default: all jobs of these agents that have not ended. */
  jobs?: readonly string[];
}

/** A job that was checked. */
export interface ReplayedJob {
  job: string;
  /** null: its log cannot be read. */
  agent: string | null;
  verdict: "continues" | "diverges" | "fails" | "not_judged";
  /** Why it is not judged. */
  reason: string | null;
  /** What differs, or the exception. */
  explanation: string | null;
  recorded_requests: number;
}

export interface ReplayOptions {
  /** The program. Default: as for `start`. */
  program?: string;
  /** Called with what the worker reports. Default: nothing is printed. */
  log?: (level: "info" | "warn" | "error", message: string) => void;
}

/**
 * Runs the code of agents against recorded jobs. No tool and no function of `ctx.run` is called. `recorded`: files with
 * the log of a job, as `aetheris events ID --json` and `aetheris prune --archive` write them, folders of them, or
 * patterns with `*` and `?` in their last part; or jobs of a store or a server. `code`: the agents, and the tools that
 * their jobs call. Jobs of other agents are skipped.
 *
 * Throws `AetherisError`: `replay_diverged`, with what differs, if the code of a job makes other requests, ends otherwise
 * or throws, or if the job cannot be judged; `not_found`: there is no job of these agents. Throws `ConnectionFailed`: the
 * program cannot be started; `InvalidInput`.
 */
export async function replay(
  recorded: string | readonly string[] | StoredJobs,
  code: readonly (AnyAgent | AnyTool)[],
  options: ReplayOptions = {},
): Promise<ReplayedJob[]> {
  const agents = code.filter(({ kind }) => kind === "agent").map(({ name }) => name);
  const found = await checked(wordsOf(recorded), recorded, code, options);
  const known = found.filter(({ agent }) => agent === null || agents.includes(agent));
  if (known.length === 0)
    throw new AetherisError("not_found", `there is no recorded job of ${agents.join(", ")} in ${found.length} jobs`);
  const bad = known.filter(({ verdict }) => verdict !== "continues");
  if (bad.length === 0) return known;
  const texts = bad.map(({ job, agent, verdict, reason, explanation }) => {
    const what = verdict === "not_judged" ? `is not judged: ${reason ?? ""}` : `${verdict}:\n${explanation ?? ""}`;
    return `job ${job} (agent ${agent ?? "unknown"}) ${what.trimEnd()}`;
  });
  throw new AetherisError(
    "replay_diverged",
    `${bad.length} of ${known.length} recorded jobs do not fit the code\n${texts.join("\n")}`,
  );
}

function wordsOf(recorded: string | readonly string[] | StoredJobs): string[] {
  if (typeof recorded === "string" || Array.isArray(recorded)) {
    const files = [recorded as string | string[]].flat().flatMap(filesOf);
    if (files.length === 0) throw new InvalidInput("replay was given no path");
    return files.flatMap((path) => ["--archive", path]);
  }
  const { store, jobs } = recorded as StoredJobs;
  return [...(store === undefined ? [] : ["--store", store]), ...(jobs === undefined ? ["--all"] : ["--", ...jobs])];
}

function filesOf(path: string): string[] {
  const name = basename(path);
  if (!/[*?]/.test(name)) return [path];
  const parts = [...name].map((one) =>
    one === "*" ? "[^/]*" : one === "?" ? "[^/]" : one.replace(/[\\^$.+()[\]{}|]/, "\\$&"),
  );
  const pattern = new RegExp(`^${parts.join("")}$`, "u");
  let names: string[] = [];
  try {
    names = readdirSync(dirname(path)).filter((one) => pattern.test(one) && !one.startsWith("."));
  } catch {
    // Reported as a pattern without a file.
  }
  if (names.length === 0) throw new InvalidInput(`no file matches ${path}`);
  return names.sort().map((one) => join(dirname(path), one));
}

async function checked(
  words: string[],
  recorded: string | readonly string[] | StoredJobs,
  code: readonly (AnyAgent | AnyTool)[],
  options: ReplayOptions,
): Promise<ReplayedJob[]> {
  const program = options.program ?? findProgram();
  const url = isObject(recorded) && typeof recorded["url"] === "string" ? { AETHERIS_URL: recorded["url"] } : {};
  const kept = Object.entries(process.env).filter(
    ([name]) => !name.startsWith("AETHERIS_") || ("AETHERIS_URL" in url && name === "AETHERIS_API_KEY"),
  );
  const folder = mkdtempSync(join(tmpdir(), "aetheris-testing-"));
  const standby = join(folder, "worker");
  writeFileSync(standby, STANDBY);
  chmodSync(standby, 0o700);
  const child = spawn(program, ["preflight", "--json", standby, ...words], {
    env: { ...Object.fromEntries(kept), ...url },
    stdio: ["ignore", "pipe", "pipe"],
  });
  let worker: WorkerProcess | undefined;
  let output = "";
  let errors = "";
  child.stdout.setEncoding("utf8").on("data", (text: string) => (output += text));
  child.stderr.setEncoding("utf8").on("data", (text: string) => {
    errors = (errors + text).slice(-ERRORS_MAX);
    const socket = SOCKET.exec(errors)?.[1];
    if (socket !== undefined && worker === undefined)
      worker = new WorkerProcess([...code], { socket, log: options.log ?? (() => {}) });
  });
  try {
    const status = await new Promise<number | null>((done, failed) => {
      child.once("error", (error) =>
        failed(new ConnectionFailed("unavailable", `${program} cannot be started: ${error.message}`)),
      );
      child.once("close", done);
    });
    return resultsOf(status, output, errors);
  } finally {
    child.kill("SIGKILL");
    await worker?.stop(0);
    rmSync(folder, { recursive: true, force: true });
  }
}

function resultsOf(status: number | null, output: string, errors: string): ReplayedJob[] {
  let parsed: Json = null;
  try {
    parsed = JSON.parse(output) as Json;
  } catch {
    // The program did not get that far.
  }
  const answer: JsonObject = isObject(parsed) ? parsed : {};
  if ((status === 0 || status === DIVERGED) && Array.isArray(answer["jobs"]))
    return answer["jobs"] as unknown as ReplayedJob[];
  throw new AetherisError(String(answer["code"] ?? "unavailable"), String(answer["detail"] ?? errors.trimEnd()));
}
