// Server: the program as a child of the test, with a store in memory, and its HTTP API.
import { spawn, type ChildProcess } from "node:child_process";
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { delimiter, dirname, join, resolve } from "node:path";
import { AetherisError, ConnectionFailed, InvalidInput } from "../errors.ts";
import { isObject, type Json, type JsonObject } from "../json.ts";

const START_MS = 30_000;
const STOP_MS = 5_000;
const LISTENING = /listening on (http:\/\/\S+)\s/;
const OUTPUT_MAX = 64 << 10; // characters that are kept of what the program prints

/** AETHERIS_BIN, the program of the npm package, or `aetheris` in PATH. Throws InvalidInput: there is none. */
export function findProgram(): string {
  const named = process.env["AETHERIS_BIN"];
  if (named) return named;
  const name = `aetheris-${process.platform}-${process.arch}`;
  try {
    const packages = createRequire(join(process.cwd(), "package.json"));
    return join(dirname(packages.resolve(`${name}/package.json`)), "aetheris");
  } catch {
    // It is not installed as a package.
  }
  for (const folder of (process.env["PATH"] ?? "").split(delimiter)) {
    const path = join(folder || ".", "aetheris");
    if (existsSync(path)) return path;
  }
  throw new InvalidInput(
    `the program aetheris was not found: install ${name}, put it into PATH, or name it in AETHERIS_BIN`,
  );
}

/** How the server knows the models of a test: the text of an agents file, or variables. */
export interface ServerModels {
  file?: string;
  env?: Record<string, string>;
}

export class Server {
  readonly url: string;
  private readonly child: ChildProcess;
  private readonly folder: string;
  private readonly kill: () => void;

  private constructor(url: string, child: ChildProcess, folder: string) {
    this.url = url;
    this.child = child;
    this.folder = folder;
    this.kill = () => child.kill("SIGKILL");
    process.on("exit", this.kill);
  }

  /** Throws ConnectionFailed: it did not start. */
  static async start(
    options: { program?: string | undefined; agents_file?: string | undefined },
    models: ServerModels = {},
  ): Promise<Server> {
    const folder = mkdtempSync(join(tmpdir(), "aetheris-testing-"));
    const files = options.agents_file === undefined ? [] : [resolve(options.agents_file)];
    if (models.file !== undefined) {
      files.push(join(folder, "models.json"));
      writeFileSync(join(folder, "models.json"), models.file);
    }
    // A lease bounds how long a call of a lost worker is unknown.
    const words = ["serve", ...files, "--store", "memory:?clock=virtual", "--listen", "127.0.0.1:0", "--lease", "2s"];
    const kept = Object.entries(process.env).filter(([name]) => !name.startsWith("AETHERIS_"));
    const program = options.program ?? findProgram();
    const child = spawn(program, words, {
      cwd: folder,
      env: { ...Object.fromEntries(kept), ...models.env },
      stdio: ["ignore", "pipe", "pipe"],
    });
    try {
      return new Server(await listening(child, program), child, folder);
    } catch (error) {
      child.kill("SIGKILL");
      rmSync(folder, { recursive: true, force: true });
      throw error;
    }
  }

  async stop(): Promise<void> {
    process.off("exit", this.kill);
    if (this.child.exitCode === null && this.child.signalCode === null) {
      const ended = new Promise((done) => this.child.once("exit", done));
      this.child.kill("SIGTERM");
      const timer = setTimeout(this.kill, STOP_MS);
      await ended;
      clearTimeout(timer);
    }
    for (const stream of [this.child.stdout, this.child.stderr]) stream?.destroy();
    rmSync(this.folder, { recursive: true, force: true });
  }

  /** A request of the API. Throws AetherisError with the code of the answer; ConnectionFailed. */
  async request(method: string, path: string, body?: JsonObject): Promise<JsonObject> {
    let answer: Response;
    try {
      answer = await fetch(`${this.url}${path}`, {
        method,
        ...(body === undefined
          ? {}
          : { body: JSON.stringify(body), headers: { "Content-Type": "application/json" } }),
      });
    } catch (error) {
      throw new ConnectionFailed("unavailable", `the server of the test does not respond: ${String(error)}`);
    }
    const text = await answer.text();
    let parsed: Json = null;
    try {
      parsed = JSON.parse(text) as Json;
    } catch {
      // No JSON: the status says what is known.
    }
    const given = isObject(parsed) ? parsed : {};
    if (answer.status < 400) return given;
    const detail = given["detail"] ?? given["title"] ?? text.slice(0, 200);
    throw new AetherisError(String(given["code"] ?? `http_${answer.status}`), String(detail));
  }
}

function listening(child: ChildProcess, program: string): Promise<string> {
  return new Promise((done, failed) => {
    let output = "";
    const fail = (why: string): void =>
      failed(new ConnectionFailed("unavailable", `${program} ${why}${output ? `:\n${output}` : ""}`));
    const timer = setTimeout(() => fail(`did not listen within ${START_MS} ms`), START_MS);
    child.once("error", (error) => fail(`cannot be started: ${error.message}`));
    child.once("exit", (code, signal) => {
      clearTimeout(timer);
      fail(`ended with ${code ?? signal} before it listened`);
    });
    for (const stream of [child.stdout, child.stderr]) {
      stream?.setEncoding("utf8");
      stream?.on("data", (text: string) => {
        output = (output + text).slice(-OUTPUT_MAX);
        const found = LISTENING.exec(output);
        if (!found) return;
        clearTimeout(timer);
        done(found[1] as string);
      });
    }
  });
}
