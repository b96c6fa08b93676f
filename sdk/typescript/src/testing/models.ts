// ModelServer: the models of a test. A local HTTP server with the protocols Chat Completions, Messages and Responses,
// which gives the answers of the test: to the server, which calls the models of agents, and to clients that were given ctx.fetch.
import { createHash } from "node:crypto";
import { createServer, type IncomingMessage, type Server as HttpServer, type ServerResponse } from "node:http";
import type { Effect } from "../api.ts";
import type { Route } from "../fetch.ts";
import { isObject, toJson, type Json, type JsonObject } from "../json.ts";
import { PROTOCOLS } from "./model_protocols.ts";
import type { Answered, Protocol } from "./protocol.ts";

const BODY_MAX = 64 << 20;
const NAME = /^[A-Za-z_][A-Za-z0-9_-]{0,63}$/; // of a model of an agents file
const CALL_HEADER = "x-aetheris-test-call"; // of a call of ctx.fetch: its job, key and try

/** A request to a model. */
export interface ModelCall {
  /** The conversation so far, as the protocol has it: Chat Completions; Messages or the input of Responses of a client. */
  messages: JsonObject[];
  /** Of the answer, if it is to be JSON. */
  schema: JsonObject | undefined;
  /** All of the request, as the protocol has it. */
  body: JsonObject;
  job: string | undefined;
  key: string;
  try: number;
}

/** An answer of a model: a text, or its parts. `json` is given as text. */
export type ModelAnswer =
  | string
  | {
      text?: string;
      json?: Json;
      tool_calls?: { name: string; arguments?: JsonObject; id?: string }[];
      refusal?: string;
      /** Default: `stop`, or `tool_calls`. */
      finish_reason?: string;
      /** Default: a token for each four characters. */
      usage?: { prompt_tokens: number; completion_tokens: number };
    };

/** A failure of a model: the HTTP status, and after which time in seconds another try is made. */
export interface ModelFailure {
  status: number;
  message?: string;
  retry_after?: number;
}

/**
 * The substitute of a model: a function, or the answers of each job in their order. A call that is repeated with its
 * key after it was answered gets the same answer.
 */
export type FakeModel =
  | ((request: ModelCall) => ModelAnswer | ModelFailure | Promise<ModelAnswer | ModelFailure>)
  | readonly (ModelAnswer | ModelFailure)[];

/** A call that a model of the test answered. */
export interface ModelRecord {
  tool: string;
  position: undefined;
  job: string | undefined;
  arguments: JsonObject;
  effect: Effect;
  key: string;
  try: number;
  result: Json | undefined;
  error: { code: string; message: string } | undefined;
}

interface JobAnswers {
  used: number; // of a list
  byKey: Map<string, ModelAnswer>;
}

export class ModelServer {
  readonly url: string;
  private readonly models: Readonly<Record<string, FakeModel>>;
  private readonly server: HttpServer;
  private readonly onCall: (record: ModelRecord) => void;
  private readonly answers = new Map<string, JobAnswers>(); // of a list: by model and job

  private constructor(
    models: Readonly<Record<string, FakeModel>>,
    server: HttpServer,
    onCall: (record: ModelRecord) => void,
  ) {
    this.models = models;
    this.server = server;
    this.onCall = onCall;
    const address = server.address();
    this.url = `http://127.0.0.1:${typeof address === "object" && address !== null ? address.port : 0}/v1`;
    server.on("request", (request: IncomingMessage, response: ServerResponse) => {
      this.handle(request, response).catch(() => response.destroy());
    });
  }

  /** `onCall`: is called with each call, before it is answered. */
  static async start(
    models: Readonly<Record<string, FakeModel>>,
    onCall: (record: ModelRecord) => void,
  ): Promise<ModelServer> {
    const server = createServer();
    await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
    server.unref();
    return new ModelServer(models, server, onCall);
  }

  /** The agents file that names the models. A name that it does not allow is only one for clients. */
  agentsFile(): string {
    const models: JsonObject = {};
    for (const name of Object.keys(this.models))
      if (NAME.test(name)) models[name] = { provider: "openai", base_url: this.url, model: name };
    return JSON.stringify({ aetheris: 1, models });
  }

  /** The calls of models by clients that were given ctx.fetch come here, too. */
  readonly route: Route = (method, url, call, job) => {
    const protocol = PROTOCOLS.find(({ path }) => new URL(url).pathname.endsWith(path));
    if (method !== "POST" || protocol === undefined) return undefined;
    const headers = { [CALL_HEADER]: JSON.stringify({ job, key: call.key, try: call.try }) };
    return { url: `${this.url}${protocol.path}`, headers };
  };

  close(): void {
    this.server.close();
    this.server.closeAllConnections();
  }

  private async handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const body = await bodyOf(request);
    const protocol = PROTOCOLS.find(({ path }) => request.url === `/v1${path}`);
    if (request.method !== "POST" || protocol === undefined || body === undefined) {
      response.writeHead(404);
      return void response.end("a model of a test answers requests of Chat Completions, Messages and Responses");
    }
    const name = String(body["model"]);
    const call = callOf(request, body, protocol);
    const { stream: _stream, stream_options: _options, ...args } = body;
    const record: ModelRecord = {
      tool: `model:${name}`,
      position: undefined,
      job: call.job,
      arguments: args,
      effect: "read",
      key: call.key,
      try: call.try,
      result: undefined,
      error: undefined,
    };
    this.onCall(record);
    const answer = await this.answerOf(name, call);
    if (isFailure(answer)) {
      record.error = { code: `http_${answer.status}`, message: answer.message ?? "as the test states" };
      return protocol.fail(response, answer.status, record.error.message, answer.retry_after);
    }
    const message = messageOf(answer, call.key);
    record.result = message;
    const usage = usageOf(answer, call.messages, message);
    const reason =
      (typeof answer === "object" ? answer.finish_reason : undefined) ??
      ("tool_calls" in message ? "tool_calls" : "stop");
    protocol.send(response, { body, message, usage, reason });
  }

  // What the test states wrongly is a failure that is not tried again, so that its job shows it.
  private async answerOf(name: string, call: ModelCall): Promise<ModelAnswer | ModelFailure> {
    const model = Object.hasOwn(this.models, name) ? this.models[name] : undefined;
    if (model === undefined) return { status: 404, message: `the test has no model "${name}"` };
    try {
      if (typeof model === "function") return checked(await model(call));
      return this.nextOf(name, model, call);
    } catch (error) {
      return { status: 400, message: `the model "${name}" of the test: ${String(error)}` };
    }
  }

  private nextOf(
    name: string,
    list: readonly (ModelAnswer | ModelFailure)[],
    call: ModelCall,
  ): ModelAnswer | ModelFailure {
    const id = JSON.stringify([name, call.job]);
    const known = this.answers.get(id) ?? { used: 0, byKey: new Map() };
    this.answers.set(id, known);
    const given = known.byKey.get(call.key);
    if (given !== undefined) return given;
    if (known.used === list.length)
      throw new Error(`it has ${list.length} answers for a job, and ${call.job ?? "one"} makes another call`);
    const next = checked(list[known.used++] as ModelAnswer | ModelFailure);
    if (!isFailure(next)) known.byKey.set(call.key, next);
    return next;
  }
}

function checked(answer: unknown): ModelAnswer | ModelFailure {
  if (typeof answer === "string" || (isObject(answer) && !(answer instanceof Error)))
    return answer as ModelAnswer | ModelFailure;
  throw new Error("an answer is a text, or an object with text, json, tool_calls, refusal or status");
}

function isFailure(answer: ModelAnswer | ModelFailure): answer is ModelFailure {
  return typeof answer === "object" && "status" in answer;
}

async function bodyOf(request: IncomingMessage): Promise<JsonObject | undefined> {
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of request as AsyncIterable<Buffer>) {
    size += chunk.length;
    if (size > BODY_MAX) return undefined;
    chunks.push(chunk);
  }
  try {
    const body = JSON.parse(Buffer.concat(chunks).toString("utf8")) as Json;
    return isObject(body) ? body : undefined;
  } catch {
    return undefined;
  }
}

function callOf(request: IncomingMessage, body: JsonObject, protocol: Protocol): ModelCall {
  const header = (name: string): string => String(request.headers[name] ?? "");
  const key = header("idempotency-key");
  const own = header(CALL_HEADER);
  const named = own === "" ? {} : (JSON.parse(own) as { job?: string; key: string; try: number });
  return {
    messages: protocol.messagesOf(body),
    schema: protocol.schemaOf(body),
    body,
    job: /^aetheris:(.+):[^:]+:[^:]+$/.exec(key)?.[1],
    key,
    try: Number(header("x-aetheris-try") || 1),
    ...named,
  };
}

function messageOf(answer: ModelAnswer, key: string): JsonObject {
  if (typeof answer === "string") return { role: "assistant", content: answer };
  const text = answer.text ?? (answer.json === undefined ? null : JSON.stringify(answer.json));
  const message: JsonObject = { role: "assistant", content: text };
  if (answer.refusal !== undefined) message["refusal"] = answer.refusal;
  if (answer.tool_calls === undefined) return message;
  message["tool_calls"] = answer.tool_calls.map(({ name, arguments: args = {}, id }, index) => ({
    id: id ?? `call_${createHash("sha256").update(`${key}/${index}`).digest("hex").slice(0, 24)}`,
    type: "function",
    function: { name, arguments: JSON.stringify(toJson(args, `the arguments of ${name}`)) },
  }));
  return message;
}

function usageOf(answer: ModelAnswer, messages: JsonObject[], message: JsonObject): Answered["usage"] {
  const tokens = (value: Json | undefined): number => Math.ceil(JSON.stringify(value ?? "").length / 4);
  const stated = typeof answer === "object" ? answer.usage : undefined;
  const prompt_tokens = stated?.prompt_tokens ?? tokens(messages);
  const completion_tokens = stated?.completion_tokens ?? tokens(message);
  return { prompt_tokens, completion_tokens };
}
