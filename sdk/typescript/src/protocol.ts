// The messages between worker and server (docs/worker-protocol.md).
import type { Json, JsonObject } from "./json.ts";

export const PROTOCOL = 1;
export const SUBPROTOCOL = "aetheris.worker.1";
export const FRAME_MAX = 32 << 20;

/** `turn`: a scope that is a turn of a loop. */
export type Kind = "tool" | "llm" | "wait" | "scope" | "turn";
export type WaitType = "timer" | "signal" | "webhook" | "human" | "message";
/**
 * What a repetition of a call does: `read` nothing; `idempotent` nothing, because the other system recognizes the key;
 * `at_most_once` the same effect again, so a call is not sent again while its outcome is unknown.
 */
export type Effect = "read" | "idempotent" | "at_most_once";

export interface FailureText {
  code: string;
  message: string;
}

/** The outcome of a request, as a routine is given it; or a number of outcomes that are counted and not given. */
export interface Outcome {
  position: string;
  kind?: Kind;
  result?: Json;
  failure?: FailureText;
  timed_out?: boolean;
  rejected?: boolean;
  erased?: boolean;
  passed_over?: number;
}

export interface RecordedRequest {
  position: string;
  kind: Kind;
  tool?: string;
  arguments_hash?: string;
  wait?: WaitType | { type: WaitType };
  delivered: number;
}

/** What a new routine makes again. */
export interface CodeRecord {
  requests: RecordedRequest[];
  deliveries: Outcome[];
  values: Record<string, Json>;
  emitted: Record<string, number>;
}

export interface NewWait {
  type: WaitType;
  key?: string;
  channel?: string;
  lasts_ms?: number;
  due_at?: string;
  expires_ms?: number;
  accepts_data?: boolean;
  question?: string;
  data?: Json;
}

export interface NewRequest {
  position: string;
  kind: Kind;
  delivered: number;
  tool?: string;
  arguments?: JsonObject;
  /** Stricter than the policy of the tool: timeout, retry, on_in_doubt. */
  options?: JsonObject;
  wait?: NewWait;
}

export type Item =
  | { kind: "value"; name: string; value: Json }
  | { kind: "scope_begun"; position: string; delivered: number; turn?: true }
  | { kind: "scope_ended"; position: string; delivered: number; result?: Json; failure?: FailureText }
  | { kind: "emitted"; scope: string; name: string; value: Json; published: boolean };

export interface RoutineEnd {
  result?: Json;
  failure?: FailureText;
  exception?: { name: string; message: string; stack?: string };
}

export interface AdvanceMessage {
  type: "advance";
  routine: number;
  delivered: number;
  functions?: ({ call: number; delivered: number } & Success)[];
  items?: Item[];
  requests?: NewRequest[];
  cancelled?: string[];
  /** False: another advance follows without a further delivery of the server. Absent: true. */
  settled?: boolean;
  end?: RoutineEnd;
}

export interface DivergedMessage {
  type: "diverged";
  routine: number;
  finding: string;
  delivered: number;
  position: string;
  found?: JsonObject;
  where?: string;
}

export interface FunctionFailure extends FailureText {
  definite: boolean;
  retryable?: boolean;
  retry_after_ms?: number;
}

/** What a function used of a model that it called itself. `incomplete`: a count is missing, the total is an estimate. */
export interface Usage {
  model?: string;
  input_tokens?: number;
  output_tokens?: number;
  total_tokens?: number;
  cached_tokens?: number;
  reasoning_tokens?: number;
  incomplete?: true;
}

export interface Success {
  result: Json;
  usage?: Usage;
}

/** How a function ended. */
export type FunctionEnd = Success | { failure: FunctionFailure } | { unknown: FailureText };

export interface CallName {
  job: string;
  invocation: string;
  try: number;
}

export type WorkerMessage =
  | ({ type: "hello" } & Hello)
  | AdvanceMessage
  | DivergedMessage
  | { type: "lost"; routine: number; code: string; message: string }
  | ({ type: "ended"; call: number } & FunctionEnd)
  | ({ type: "late" } & CallName & FunctionEnd)
  | { type: "text"; call: number; at: number; text: string }
  | { type: "progress"; call: number; value: Json }
  | { type: "heartbeat" }
  | { type: "drain" };

export interface Hello {
  protocol: number;
  sdk: string;
  worker: string;
  agents: JsonObject[];
  tools: JsonObject[];
  capacity: { routines: number; calls: number };
  resume?: { session: string; ack: number };
  left?: CallName[];
  left_for_ms?: number;
  connection?: number;
}

export interface Welcome {
  type: "welcome";
  session: string;
  now: string;
  limits: { heartbeat_ms: number; silent_ms: number; resume_ms: number };
  agents?: { name: string; version?: string; faults?: Json }[];
  resumed?: boolean;
}

export interface JobInfo {
  id: string;
  agent: string;
  labels?: Record<string, string>;
  created_at: string;
}

export interface Start {
  type: "start";
  routine: number;
  job: JobInfo;
  /** From what the ids of the requests follow. */
  steps?: { decision: string; path: string };
  agent: string;
  version?: string;
  /** Of another version than the job's. */
  trial?: boolean;
  /** A trial of `preflight`, `replay` or `dev`, which show what it finds. */
  check?: boolean;
  input: Json;
  now: string;
  blind: string;
  blind_erased?: boolean;
  record: Partial<CodeRecord>;
  more?: boolean;
}

export interface Perform {
  type: "perform";
  call: number;
  tool: string;
  job?: string;
  routine?: number;
  position?: string;
  arguments?: Json;
  try: number;
  key: string;
  execution_key: string;
  invocation: string;
  send_within_ms: number;
  timeout_ms: number;
  traceparent?: string;
  inputs?: Json;
}

export type ServerMessage =
  | Welcome
  | Start
  | { type: "record"; routine: number; record: Partial<CodeRecord>; more?: boolean }
  | { type: "deliver"; routine: number; outcomes: Outcome[] }
  | Perform
  | { type: "abandon"; call: number }
  | { type: "stop"; routine: number; reason: string }
  | { type: "closing"; within_ms: number }
  | { type: "error"; code: string; message: string; routine?: number };

export interface Frame<Message> {
  frame: number;
  ack: number;
  messages: Message[];
}
