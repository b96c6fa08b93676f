// What the protocols of the models of a test have in common.
import type { ServerResponse } from "node:http";
import { isObject, type Json, type JsonObject } from "../json.ts";

const PIECE = 16; // characters of a piece of a stream
export const CREATED = 1767225600; // the same in every answer

export interface Answered {
  /** Of the request. */
  body: JsonObject;
  /** As Chat Completions has it: `content`, `refusal`, `tool_calls`. */
  message: JsonObject;
  usage: { prompt_tokens: number; completion_tokens: number };
  /** As Chat Completions has it. */
  reason: string;
}

export interface Protocol {
  /** The end of its path. */
  path: string;
  /** The conversation of a request. */
  messagesOf(body: JsonObject): JsonObject[];
  /** Of the answer, if it is to be JSON. */
  schemaOf(body: JsonObject): JsonObject | undefined;
  send(response: ServerResponse, answered: Answered): void;
  fail(response: ServerResponse, status: number, message: string, retry_after: number | undefined): void;
}

export interface ToolCall {
  id: string;
  type: string;
  function: { name: string; arguments: string };
}

export function member(value: JsonObject, ...names: string[]): JsonObject | undefined {
  let at: Json | undefined = value;
  for (const name of names) at = isObject(at) ? at[name] : undefined;
  return isObject(at) ? at : undefined;
}

export function errorOf(status: number, message: string): JsonObject {
  return { type: status >= 500 ? "server_error" : "invalid_request_error", message };
}

export function sendFailure(response: ServerResponse, status: number, retry_after: number | undefined, body: JsonObject): void {
  const after = retry_after === undefined ? {} : { "retry-after": String(retry_after) };
  response.writeHead(status, { "content-type": "application/json", ...after });
  response.end(JSON.stringify(body));
}

export function sendJson(response: ServerResponse, body: JsonObject): void {
  response.writeHead(200, { "content-type": "application/json" });
  response.end(JSON.stringify(body));
}

export function callsOf(message: JsonObject): ToolCall[] {
  return (message["tool_calls"] ?? []) as unknown as ToolCall[];
}

// In whole characters.
export function pieces(text: Json | undefined): string[] {
  if (typeof text !== "string") return [];
  const characters = [...text];
  const made: string[] = [];
  for (let at = 0; at < characters.length; at += PIECE) made.push(characters.slice(at, at + PIECE).join(""));
  return made;
}

/** Of an error in the form of OpenAI. */
export function failOpenai(response: ServerResponse, status: number, message: string, retry_after: number | undefined): void {
  sendFailure(response, status, retry_after, { error: { ...errorOf(status, message), param: null, code: null } });
}

export function listOf(value: Json | undefined): JsonObject[] {
  return (Array.isArray(value) ? value : []) as JsonObject[];
}
