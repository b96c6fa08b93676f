// Request: what a routine has requested, and its outcome once it is delivered. ClosedScope, Branch: where it was made.
import type { Call, Request, RequestOptions } from "./api.ts";
import { Cancelled, Failure, Rejected, ToolFailed, WaitExpired } from "./errors.ts";
import { isObject, toJson, type Json, type JsonObject } from "./json.ts";
import type { FailureText, Kind, NewWait, Outcome } from "./protocol.ts";

/** Performs a call of a request that states its function. */
export type RunFunction = (args: JsonObject, call: Call) => unknown;

/** A branch of a map or race. One that is stopped makes no further requests. */
export interface Branch {
  readonly parent: Branch | undefined;
  isStopped: boolean;
}

export function isStopped(branch: Branch | undefined): boolean {
  for (let at = branch; at !== undefined; at = at.parent) if (at.isStopped) return true;
  return false;
}

/** A closed scope whose body runs, or has returned while requests of it have no outcome. */
export interface ClosedScope {
  readonly position: string;
  readonly branch: Branch;
  open: number; // requests directly inside of it
  hasReturned: boolean;
  result?: Json;
  failure?: FailureText;
}

/** A request that the code makes. */
export interface Made {
  kind: Kind;
  tool: string;
  args?: JsonObject;
  fn?: RunFunction;
  wait?: NewWait;
  whenExpired?: "fail" | "continue";
  /** Names the request by the hash of its arguments. */
  byContent?: boolean;
  /** Of a call: stricter than the policy of its tool. */
  options?: JsonObject;
}

export interface OpenRequest {
  readonly position: string;
  readonly kind: Kind;
  readonly tool: string;
  readonly fn: RunFunction | undefined;
  readonly args: JsonObject;
  readonly closed: ClosedScope | undefined;
  readonly branch: Branch;
  readonly whenExpired: "fail" | "continue";
  readonly resolve: (value: Json) => void;
  readonly reject: (error: Error) => void;
  isCancelled: boolean;
}

/** Gives the routine the outcome of its request. */
export function settle(request: OpenRequest, outcome: Outcome): void {
  if (request.isCancelled || isStopped(request.branch)) return;
  const { position, tool } = request;
  if (outcome.failure) {
    const { code, message } = outcome.failure;
    return request.reject(
      request.kind === "scope" || request.kind === "turn" ? new Failure(code, message) : new ToolFailed(code, message, tool, position),
    );
  }
  if (outcome.timed_out && request.whenExpired === "fail") return request.reject(new WaitExpired(tool, position));
  if (outcome.rejected) {
    const note = isObject(outcome.result) ? outcome.result["note"] : undefined;
    return request.reject(new Rejected(tool, position, typeof note === "string" ? note : ""));
  }
  request.resolve(outcome.timed_out ? null : (outcome.result ?? null));
}

export function cancelledError(request: OpenRequest, reason: string | undefined): Cancelled {
  return new Cancelled(request.tool, request.position, reason);
}

/** A promise as a request. A rejection that is not handled is not an error of the process. */
export function asRequest<T>(promise: Promise<T>, position: string, cancel: (reason?: string) => void): Request<T> {
  promise.catch(() => {});
  return Object.defineProperties(promise, {
    position: { value: position, enumerable: true },
    cancel: { value: cancel },
  }) as Request<T>;
}

/** The request of code that must not continue: it never settles. */
export function neverSettles<T>(): Request<T> {
  return asRequest(new Promise<T>(() => {}), "", () => {});
}

/** A request that is not made. */
export function rejected<T>(position: string, error: Error): Request<T> {
  return asRequest(Promise.reject(error), position, () => {});
}

/** The same request with another value. */
export function converted<T, U>(request: Request<T>, convert: (value: T) => U): Request<U> {
  return asRequest(request.then(convert), request.position, (reason) => request.cancel(reason));
}

/** What a call states beside the policy of its tool. */
export function policyOf(isCall: boolean, { timeout, retry, on_in_doubt }: RequestOptions): { options?: JsonObject } {
  if (!isCall || (timeout === undefined && retry === undefined && on_in_doubt === undefined)) return {};
  return { options: toJson({ timeout, retry, on_in_doubt }, "the options of the call") as JsonObject };
}
