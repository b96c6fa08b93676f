// aetheris: write durable AI agents as ordinary functions.
export { agent, tool } from "./definitions.ts";
export { serve, SDK_VERSION } from "./worker.ts";
export { Client } from "./client.ts";
export { current } from "./current.ts";
export {
  AetherisError,
  Cancelled,
  ConnectionFailed,
  Failure,
  InvalidInput,
  NotDone,
  Rejected,
  ToolFailed,
  WaitExpired,
} from "./errors.ts";
export type {
  Agent,
  AgentDefinition,
  Answer,
  Branches,
  Done,
  Call,
  Child,
  Ctx,
  Duration,
  Effect,
  Logger,
  MapOptions,
  Message,
  Model,
  ModelRequest,
  RaceResult,
  Recipient,
  Request,
  RequestOptions,
  Retry,
  ServeOptions,
  StartOptions,
  Tool,
  ToolDefinition,
  Turn,
  WaitOptions,
  Worker,
} from "./api.ts";
export type { ClientOptions, CreateOptions, Job, OpenRequest, RunOptions } from "./client.ts";
export type { Json, JsonObject } from "./json.ts";
export { fetchAs } from "./wrap/fetch_as.ts";
