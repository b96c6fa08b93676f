// ctx.fetch: HTTP that is recorded. The worker performs it, as a function of the request (tool run:EFFECT).
import type { Call } from "./api.ts";
import type { Context } from "./context.ts";
import { AetherisError, InvalidInput, NotDone, ToolFailed } from "./errors.ts";
import { isObject, VALUE_MAX, type JsonObject } from "./json.ts";
import type { Effect, FailureText } from "./protocol.ts";
import { ModelAnswer, usages } from "./model_answers.ts";
import { neverSettles } from "./request.ts";
import { scrub, ScrubbedText } from "./secrets.ts";
import { BodyStream, streamHosts, type StreamHost } from "./streams.ts";

export type FetchInit = RequestInit & { effect?: Effect; name?: string; key?: string };

/** The headers of a request that are recorded and compared. All others, such as Authorization, are only sent. */
const RECORDED_HEADERS = ["accept", "content-type", "anthropic-beta", "anthropic-version", "openai-beta"];
/** The headers of an answer that are not recorded: they are of the connection, or secret. */
const DROPPED_HEADERS = new Set([
  "connection",
  "content-encoding",
  "content-length",
  "keep-alive",
  "set-cookie",
  "transfer-encoding",
]);
/** The tries of `run:read`. The status of the last one is an answer. */
const READ_TRIES = 4;
/** The types of bodies that the code is given while they come. */
const STREAMED = /^(text\/event-stream|application\/(x-ndjson|jsonl))\s*(;|$)/i;
const STREAM_MAX = VALUE_MAX - (64 << 10); // bytes of JSON, with room for the head
const BOUNDARY = "aetheris-boundary"; // of form data, whose own is random
/** Of these the request was certainly not sent. */
const NOT_SENT = new Set([
  "ECONNREFUSED",
  "ENOTFOUND",
  "EAI_AGAIN",
  "EHOSTUNREACH",
  "ENETUNREACH",
  "UND_ERR_CONNECT_TIMEOUT",
]);

/** Where a request goes instead, with these headers; undefined: where it says. For tests. */
export type Route = (
  method: string,
  url: string,
  call: Call,
  job: string | undefined,
) => { url: string; headers: Record<string, string> } | undefined;

/** The routes of the requests of a call. */
export const routes = new WeakMap<Call, (method: string, url: string) => ReturnType<Route>>();

interface Made {
  method: string;
  url: string;
  headers: Headers;
  body: Uint8Array | string | undefined;
}

export async function fetchRecorded(
  ctx: Context,
  input: string | URL | globalThis.Request,
  init: FetchInit = {},
): Promise<Response> {
  const made = await requestOf(input, init);
  if (init.signal?.aborted) throw init.signal.reason;
  const effect = init.effect ?? (made.method === "GET" || made.method === "HEAD" ? "read" : "at_most_once");
  const args = argumentsOf(made);
  const redirect = init.redirect ?? (input instanceof globalThis.Request ? input.redirect : "follow");
  if (!["follow", "manual", "error"].includes(redirect))
    throw new InvalidInput(`ctx.fetch: redirect is follow, manual or error, not "${redirect}"`);
  const perform = (given: JsonObject, call: Call): Promise<JsonObject> =>
    send(given, made.headers, effect, redirect === "follow", call);
  const options = {
    ...(init.name === undefined ? {} : { name: init.name }),
    ...(init.key === undefined ? {} : { key: init.key }),
    ...(init.signal ? { signal: init.signal } : {}),
  };
  if (!ctx.routine.mayCall(ctx)) return neverSettles();
  const request = ctx.stated<JsonObject>(nameOf(made), effect, args, perform, options, true);
  const failed = ({ code, message }: FailureText): Error =>
    new ToolFailed(code, message, `run:${effect}`, request.position);
  const response = responseOf(await request, failed);
  if (redirect === "error" && isRedirect(response)) {
    const what = `${new URL(made.url).host} answered with a redirect to ${response.headers.get("location")}`;
    throw new ToolFailed(`http_${response.status}`, what, `run:${effect}`, request.position);
  }
  return response;
}

// POST:api.example.com
function nameOf(made: Made): string {
  return `${made.method}:${new URL(made.url).host}`.replace(/[^A-Za-z0-9_.:-]/g, "_").slice(0, 64);
}

async function requestOf(input: string | URL | globalThis.Request, init: FetchInit): Promise<Made> {
  const body = init.body;
  if (body instanceof ReadableStream || (typeof body === "object" && body !== null && Symbol.asyncIterator in body)) {
    throw new InvalidInput(
      "ctx.fetch: the body is a stream, which cannot be sent again; read it first, and pass a text or bytes",
    );
  }
  const isPlain = body === undefined || body === null || typeof body === "string" || body instanceof Uint8Array;
  if (!(input instanceof globalThis.Request) && isPlain) {
    const headers = new Headers(init.headers);
    if (typeof body === "string" && !headers.has("content-type"))
      headers.set("content-type", "text/plain;charset=UTF-8");
    return {
      method: (init.method ?? "GET").toUpperCase(),
      url: checkedUrl(String(input)),
      headers,
      body: body ?? undefined,
    };
  }
  const { effect: _effect, name: _name, key: _key, signal: _signal, ...rest } = init;
  const request = new globalThis.Request(input, rest);
  const bytes = request.body === null ? undefined : new Uint8Array(await request.arrayBuffer());
  return {
    method: request.method.toUpperCase(),
    url: checkedUrl(request.url),
    headers: new Headers(request.headers),
    body: bytes,
  };
}

function checkedUrl(text: string): string {
  let url: URL;
  try {
    url = new URL(text);
  } catch {
    throw new InvalidInput(`ctx.fetch: "${text.slice(0, 200)}" is not an absolute URL`);
  }
  if (url.protocol !== "http:" && url.protocol !== "https:")
    throw new InvalidInput(`ctx.fetch: the URL begins with http:// or https://, not ${url.protocol}`);
  if (url.username !== "" || url.password !== "")
    throw new InvalidInput("ctx.fetch: the URL has a user name or password, which would be recorded; use a header");
  url.hash = "";
  return url.href;
}

function argumentsOf(made: Made): JsonObject {
  const headers: JsonObject = {};
  for (const name of RECORDED_HEADERS) {
    const value = made.headers.get(name);
    if (value !== null) headers[name] = value;
  }
  let body = made.body;
  const boundary = /^multipart\/form-data;.*boundary="?([^";]+)/i.exec(String(headers["content-type"] ?? ""))?.[1];
  if (boundary !== undefined && body !== undefined) {
    headers["content-type"] = `multipart/form-data; boundary=${BOUNDARY}`;
    body = Buffer.from(Buffer.from(body).toString("latin1").replaceAll(boundary, BOUNDARY), "latin1");
  }
  return { method: made.method, url: made.url, headers, ...bodyValue(body) };
}

function bodyValue(body: Uint8Array | string | undefined): JsonObject {
  if (body === undefined) return {};
  if (typeof body === "string") return { body: body.toWellFormed() };
  try {
    return { body: new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(body) };
  } catch {
    return { body_base64: Buffer.from(body).toString("base64") };
  }
}

function bodyOf(value: JsonObject): string | Uint8Array<ArrayBuffer> | null {
  if (typeof value["body"] === "string") return value["body"];
  if (typeof value["body_base64"] === "string") return Uint8Array.from(Buffer.from(value["body_base64"], "base64"));
  return null;
}

// Performs the request once. `args` may differ from what was requested: who approves may edit them.
async function send(
  args: JsonObject,
  allHeaders: Headers,
  effect: Effect,
  follows: boolean,
  call: Call,
): Promise<JsonObject> {
  const headers = new Headers(allHeaders);
  headers.delete("content-length");
  for (const [name, value] of Object.entries(args["headers"] as JsonObject)) headers.set(name, String(value));
  if (effect !== "read" && !headers.has("idempotency-key")) headers.set("idempotency-key", call.key);
  if (call.traceparent !== "" && !headers.has("traceparent")) headers.set("traceparent", call.traceparent);
  const init: RequestInit = { method: String(args["method"]), headers, body: bodyOf(args), signal: call.signal };
  const route = routes.get(call)?.(String(args["method"]), String(args["url"]));
  const url = route?.url ?? String(args["url"]);
  for (const [name, value] of Object.entries(route?.headers ?? {})) headers.set(name, value);
  let response: Response;
  try {
    // Beyond a redirect, a connection that is refused does not mean that nothing happened.
    response = await fetch(url, {
      ...init,
      redirect: follows && effect === "read" ? "follow" : "manual",
    });
  } catch (error) {
    throw failureOf(error, effect) ?? error;
  }
  if (follows && effect !== "read") response = await follow(response, url, init);
  const answerHeaders: JsonObject = {};
  response.headers.forEach((value, name) => {
    if (!DROPPED_HEADERS.has(name)) answerHeaders[name] = value.toWellFormed();
  });
  const head: JsonObject = {
    status: response.status,
    status_text: response.statusText.toWellFormed(),
    url: route ? String(args["url"]) : response.url,
    headers: answerHeaders,
  };
  const host = streamHosts.get(call);
  const type = response.headers.get("content-type") ?? "";
  const answer = response.ok ? ModelAnswer.of(args) : undefined;
  if (host !== undefined && response.ok && response.body && STREAMED.test(type))
    return readStream(response.body, head, effect, call, host, answer);
  let bytes: Uint8Array;
  try {
    bytes = new Uint8Array(await response.arrayBuffer());
  } catch (error) {
    throw failureOf(error, effect) ?? error;
  }
  if (effect === "read" && call.try < READ_TRIES) checkStatus(response);
  const body = bodyValue(bytes);
  if (answer !== undefined && typeof body["body"] === "string") {
    if (STREAMED.test(type)) {
      answer.feed(body["body"]);
      answer.end();
    } else {
      answer.read(body["body"]);
    }
    noteUsage(call, answer);
  }
  return { ...head, ...body };
}

function noteUsage(call: Call, answer: ModelAnswer | undefined): void {
  const usage = answer?.usage();
  if (usage !== undefined) usages.set(call, usage);
}

// Reads a body to its end, and gives the routine its pieces. A stream that breaks before the routine has it is a try
// that failed; later, the result is what the routine was given, and the error.
async function readStream(
  body: ReadableStream<Uint8Array>,
  head: JsonObject,
  effect: Effect,
  call: Call,
  host: StreamHost,
  answer: ModelAnswer | undefined,
): Promise<JsonObject> {
  const stream = new BodyStream(scrub(head) as JsonObject);
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  const scrubbed = new ScrubbedText(); // as the recorded result is
  let text = "";
  let bytes = 0;
  const give = (piece: string): void => {
    if (piece === "") return;
    stream.push(piece);
    if (text === "") host.offer(stream);
    text += piece;
  };
  try {
    for await (const chunk of body) {
      const piece = decoder.decode(chunk, { stream: true });
      bytes += Buffer.byteLength(JSON.stringify(piece));
      if (bytes > STREAM_MAX) throw new AetherisError("payload_too_large", `the answer has more than ${STREAM_MAX} bytes`);
      call.text(answer === undefined ? piece : answer.feed(piece));
      give(scrubbed.feed(piece));
    }
    call.text(answer?.end() ?? "");
    give(scrubbed.feed(decoder.decode()) + scrubbed.end());
  } catch (error) {
    const known = failureOf(error, effect) ?? error;
    if (host.withdraw()) throw known;
    const cause = call.signal.aborted ? (call.signal.reason as unknown) : known;
    const partial =
      cause instanceof AetherisError
        ? { code: cause.code, message: cause.message }
        : { code: "reset", message: `the answer broke off: ${String(cause)}` };
    stream.close(partial);
    noteUsage(call, answer);
    return { ...head, body: text, partial };
  }
  stream.close();
  noteUsage(call, answer);
  return { ...head, body: text };
}

function isRedirect({ status, headers }: Response): boolean {
  return [301, 302, 303, 307, 308].includes(status) && headers.has("location");
}

async function follow(response: Response, url: string, init: RequestInit): Promise<Response> {
  const location = response.headers.get("location");
  if (!isRedirect(response) || location === null) return response;
  await response.arrayBuffer();
  const next = new URL(location, url);
  const headers = new Headers(init.headers);
  if (next.origin !== new URL(url).origin) for (const name of ["authorization", "cookie"]) headers.delete(name);
  const becomesGet = response.status === 303 || (response.status < 303 && init.method === "POST");
  if (!becomesGet) return fetch(next, { ...init, headers, redirect: "follow" });
  headers.delete("content-type");
  return fetch(next, { headers, signal: init.signal ?? null, method: "GET", redirect: "follow" });
}

// The failure that this error of `fetch` states: the request was not sent, or it only reads. Else it is not known whether
// there was an effect.
function failureOf(error: unknown, effect: Effect): NotDone | undefined {
  const { name, cause } = error as { name?: string; cause?: { code?: unknown } };
  const code = typeof cause?.code === "string" ? cause.code : undefined;
  if (code !== undefined && NOT_SENT.has(code))
    return new NotDone("connect", `the connection was not made: ${code}`, { retryable: true });
  if (effect !== "read" || name !== "TypeError") return undefined; // a call that is cut off has another name
  return new NotDone("reset", `there was no complete answer: ${code ?? String(error)}`, { retryable: true });
}

// What only reads is tried again by the engine after these statuses.
function checkStatus({ status, headers, url }: Response): void {
  if (status !== 408 && status !== 429 && status < 500) return;
  const after = headers.get("retry-after") ?? "";
  const seconds = /^\d+$/.test(after) ? Number(after) : (Date.parse(after) - Date.now()) / 1000;
  const wait = seconds > 0 ? { retry_after_ms: seconds * 1000 } : {};
  throw new NotDone(`http_${status}`, `${new URL(url).host} answered ${status}`, { retryable: true, ...wait });
}

function responseOf(result: JsonObject | BodyStream, errorOf: (failure: FailureText) => Error): Response {
  if (result instanceof BodyStream) return madeOf(result.head, result.body(errorOf));
  const { partial } = result;
  if (!isObject(partial)) return madeOf(result, bodyOf(result));
  const stream = new BodyStream(result);
  stream.push(String(result["body"]));
  stream.close(partial as unknown as FailureText);
  return madeOf(result, stream.body(errorOf));
}

function madeOf(result: JsonObject, body: BodyInit | null): Response {
  const status = Number(result["status"]);
  const hasNoBody = [101, 204, 205, 304].includes(status);
  const response = new Response(hasNoBody ? null : body, {
    status,
    statusText: String(result["status_text"] ?? ""),
    headers: result["headers"] as Record<string, string>,
  });
  Object.defineProperty(response, "url", { value: String(result["url"] ?? "") });
  return response;
}
