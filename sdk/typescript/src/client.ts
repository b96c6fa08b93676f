// Client: creates jobs and answers them over the HTTP API of a server (docs/api.md).
import { request as httpRequest, type IncomingMessage } from "node:http";
import { request as httpsRequest } from "node:https";
import { addressOf, type Address } from "./address.ts";
import type { Agent, Duration } from "./api.ts";
import { AetherisError, ConnectionFailed, Failure } from "./errors.ts";
import { isObject, parse, toJson, type Json, type JsonObject } from "./json.ts";
import { durationMs } from "./values.ts";

const TIMEOUT_MS = 60_000;
const WAIT_MS = 30_000; // of the request that creates the job of `run`
const DELAY_MIN_MS = 50;
const DELAY_MAX_MS = 1_000;
const ENDED: readonly string[] = ["completed", "failed", "cancelled"];

/** Where a client finds the server. */
export interface ClientOptions {
  /** The server's Unix socket. */
  socket?: string;
  /**
   * The server's address, `http://` or `https://`. Without `socket` and `url`: AETHERIS_SOCKET, then AETHERIS_URL, then
   * `.aetheris/aetheris.sock` in the current folder or a parent, then http://127.0.0.1:7070.
   */
  url?: string;
  /** Default: AETHERIS_API_KEY. */
  api_key?: string;
  /** How long an answer may take. Default: 60s. */
  timeout?: Duration;
}

/** Of a new job. */
export interface CreateOptions {
  /** With the same key there is one job, however often it is created. */
  idempotency_key?: string;
  /** Default: the server makes one. */
  id?: string;
  labels?: Record<string, string>;
  /** Waits this long until the job ends or blocks; at most 5m. */
  wait?: Duration;
}

/** Of a job whose end is awaited. */
export interface RunOptions extends Omit<CreateOptions, "wait"> {
  /** How long its end is awaited: then `AetherisError` with the code `timeout`, and the job continues. Default: no limit. */
  timeout?: Duration;
}

/** A job, as `GET /api/jobs/{id}` shows it. The page of the API has all members. */
export interface Job {
  id: string;
  status: "queued" | "running" | "waiting" | "parked" | "compensating" | "completed" | "failed" | "cancelled";
  /** Of a job that is completed. */
  result?: Json;
  /** Of a job that failed. */
  error?: { code: string; message: string };
  labels?: Record<string, string>;
  [name: string]: unknown;
}

/** What operators are asked for: an approval, a human wait, a question, a call with an unknown outcome. */
export interface OpenRequest {
  id: string;
  [name: string]: unknown;
}

const TIMER_MAX_MS = 2 ** 31 - 1; // of setTimeout

/**
 * Creates jobs and answers them over the HTTP API. Every method rejects with `ConnectionFailed` (`unavailable`: the
 * request may have had an effect), with `InvalidInput`, and with `AetherisError` with the code of the server's answer.
 *
 * The constructor throws `ConnectionFailed` with the code `usage`: the address is not one.
 */
export class Client {
  private readonly address: () => Address;
  private readonly api_key: string | undefined;
  private readonly timeout_ms: number;

  constructor(options: ClientOptions = {}) {
    this.address = () => addressOf(options);
    this.api_key = options.api_key ?? process.env["AETHERIS_API_KEY"];
    this.timeout_ms = options.timeout === undefined ? TIMEOUT_MS : durationMs(options.timeout);
    const { socket, url } = this.address();
    if (socket === undefined && !/^https?:\/\/[^/]/.test(url))
      throw new ConnectionFailed("usage", `the address begins with http:// or https://, not "${url}"`);
  }

  // ---------------------------------------------------------------- jobs

  /** Creates a job, and gives it. */
  async create(agent: Agent<never, unknown> | string, input: unknown = null, options: CreateOptions = {}): Promise<Job> {
    const { wait, ...more } = options;
    const name = typeof agent === "string" ? agent : agent.name;
    const body = { agent: name, input: toJson(input, "the input"), ...stated(more as Record<string, Json | undefined>) };
    return (await this.request("POST", "/api/jobs", body, wait === undefined ? {} : { wait })) as unknown as Job;
  }

  /**
   * Creates a job, waits for its end, and gives its result. Rejects with `Failure`: it failed, or was cancelled. With an
   * `idempotency_key` it can be repeated after any error.
   */
  run<I extends object, R>(agent: Agent<I, R>, input: I, options?: RunOptions): Promise<Awaited<R>>;
  run<R = Json>(agent: string, input?: unknown, options?: RunOptions): Promise<R>;
  async run(agent: Agent<never, unknown> | string, input?: unknown, options: RunOptions = {}): Promise<unknown> {
    const { timeout, ...create } = options;
    const most = timeout === undefined ? Infinity : durationMs(timeout);
    const begun = performance.now();
    const left = (): number => most - (performance.now() - begun);
    let job = await this.create(agent, input, { ...create, wait: Math.floor(Math.min(WAIT_MS, most)) });
    for (let delay = DELAY_MIN_MS; !ENDED.includes(job.status); delay = Math.min(2 * delay, DELAY_MAX_MS)) {
      if (left() <= 0)
        throw new AetherisError("timeout", `job ${job.id} has not ended within ${String(timeout)}: it is ${job.status}`);
      await new Promise((resolve) => setTimeout(resolve, Math.min(delay, left())));
      job = await this.job(job.id);
    }
    if (job.status === "completed") return job.result ?? null;
    throw new Failure(job.error?.code ?? job.status, job.error?.message ?? `job ${job.id} was ${job.status}`);
  }

  /** A job: its `status`, `result`, `error`, `parked`, … */
  async job(id: string): Promise<Job> {
    return (await this.request("GET", `/api/jobs/${quoted(id)}`)) as unknown as Job;
  }

  /** Cancels a job. */
  cancel(id: string, options: { reason?: string } = {}): Promise<Json> {
    return this.act(id, "cancel", { reason: options.reason });
  }

  /** Pauses a job. */
  pause(id: string, options: { reason?: string } = {}): Promise<Json> {
    return this.act(id, "pause", { reason: options.reason });
  }

  /** Resumes a job that is paused or parked. */
  resume(id: string, options: { reason?: string } = {}): Promise<Json> {
    return this.act(id, "resume", { reason: options.reason });
  }

  // ---------------------------------------------------------------- answers

  /** Answers a wait for a signal or webhook of a job. With the same `message_id` it is answered once. */
  signal(
    id: string,
    wait_key: string,
    payload: unknown = null,
    options: { type?: "signal" | "webhook" | "human"; message_id?: string } = {},
  ): Promise<Json> {
    return this.act(id, "signal", {
      correlation_key: wait_key,
      wait_type: options.type ?? "signal",
      payload: toJson(payload, "the payload"),
      message_id: options.message_id,
    });
  }

  /** Sends a message on a channel of a job, for its `ctx.receive`. With the same `message_id` it is delivered once. */
  message(id: string, channel: string, payload: unknown = null, options: { message_id?: string } = {}): Promise<Json> {
    return this.act(id, "message", {
      channel,
      payload: toJson(payload, "the payload"),
      message_id: options.message_id,
    });
  }

  /** What operators are asked for, of all jobs or of one: approvals, human waits, … */
  async requests(job?: string): Promise<OpenRequest[]> {
    const answer = await this.request("GET", `/api/requests${job === undefined ? "" : `?job=${quoted(job)}`}`);
    return (answer as { requests: Json })["requests"] as unknown as OpenRequest[];
  }

  /** Approves a request, by its id. `arguments`: of the call, instead of those that were requested. */
  approve(request: string, options: { note?: string; arguments?: JsonObject } = {}): Promise<Json> {
    return this.decide(request, "approve", options);
  }

  /** Rejects a request, by its id. */
  reject(request: string, options: { note?: string } = {}): Promise<Json> {
    return this.decide(request, "reject", options);
  }

  private decide(request: string, decision: string, options: { note?: string; arguments?: JsonObject }): Promise<Json> {
    const body = stated({ decision, note: options.note, arguments: options.arguments });
    return this.request("POST", `/api/approvals/${quoted(request)}`, body);
  }

  private act(id: string, action: string, body: Record<string, Json | undefined>): Promise<Json> {
    return this.request("POST", `/api/jobs/${quoted(id)}/${action}`, stated(body));
  }

  // ---------------------------------------------------------------- requests

  /** A request of the API, and the JSON of its answer. `wait`: `?wait` of the routes that have it. */
  async request(method: string, path: string, body?: unknown, options: { wait?: Duration } = {}): Promise<Json> {
    const wait = options.wait === undefined ? 0 : durationMs(options.wait);
    const text = body === undefined ? undefined : JSON.stringify(body);
    const headers: Record<string, string> = { accept: "application/json", connection: "close" };
    if (text !== undefined) headers["content-type"] = "application/json";
    if (this.api_key) headers["authorization"] = `Bearer ${this.api_key}`;
    const to = wait > 0 ? `${path}${path.includes("?") ? "&" : "?"}wait=${wait}ms` : path;
    const { status, text: answer } = await this.exchange(method, to, headers, text, this.timeout_ms + wait);
    let parsed: Json = null;
    try {
      if (answer !== "") parsed = parse(answer);
    } catch {
      if (status < 400) throw this.unavailable(`the answer is not JSON (status ${status})`);
    }
    if (status < 400) return parsed;
    const problem = isObject(parsed) ? parsed : {};
    const message = problem["detail"] ?? problem["message"] ?? `the server answered ${status}`;
    throw new AetherisError(String(problem["code"] ?? `http_${status}`), String(message));
  }

  private exchange(
    method: string,
    path: string,
    headers: Record<string, string>,
    body: string | undefined,
    timeout_ms: number,
  ): Promise<{ status: number; text: string }> {
    const { socket, url } = this.address();
    const { protocol, hostname, port } = new URL(socket === undefined ? url : "http://localhost");
    const where = socket === undefined ? { host: hostname.replace(/^\[|\]$/g, ""), port } : { socketPath: socket };
    const send = protocol === "https:" ? httpsRequest : httpRequest;
    return new Promise((resolve, reject) => {
      const timer = setTimeout(
        () => made.destroy(new Error(`there was no answer within ${timeout_ms} ms`)),
        Math.min(timeout_ms, TIMER_MAX_MS),
      );
      const fail = (error: Error): void => {
        clearTimeout(timer);
        reject(this.unavailable(error.message));
      };
      const made = send({ ...where, method, path, headers, agent: false }, (answer: IncomingMessage) => {
        const parts: Buffer[] = [];
        answer.on("data", (part: Buffer) => parts.push(part));
        answer.on("error", fail);
        answer.on("end", () => {
          clearTimeout(timer);
          resolve({ status: answer.statusCode ?? 0, text: Buffer.concat(parts).toString() });
        });
      });
      made.on("error", fail);
      made.end(body);
    });
  }

  private unavailable(what: string): ConnectionFailed {
    const { socket, url } = this.address();
    return new ConnectionFailed("unavailable", `${socket ?? url}: ${what}. Is the server running?`);
  }
}

// A part of a path or query.
function quoted(text: string): string {
  return encodeURIComponent(text);
}

function stated(body: Record<string, Json | undefined>): JsonObject {
  return Object.fromEntries(Object.entries(body).filter(([, value]) => value !== undefined)) as JsonObject;
}
