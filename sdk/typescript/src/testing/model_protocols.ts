// How the models of a test answer: in the form of Chat Completions, of Messages, and of Responses.
import type { ServerResponse } from "node:http";
import type { Json, JsonObject } from "../json.ts";
import {
  callsOf,
  CREATED,
  errorOf,
  failOpenai,
  listOf,
  member,
  pieces,
  sendFailure,
  sendJson,
  type Answered,
  type Protocol,
} from "./protocol.ts";
import { RESPONSES } from "./responses_protocol.ts";

export const PROTOCOLS: readonly Protocol[] = [
  {
    path: "/chat/completions",
    messagesOf: (body) => listOf(body["messages"]),
    schemaOf: (body) => member(body, "response_format", "json_schema", "schema"),
    send: sendChat,
    fail: failOpenai,
  },
  {
    path: "/messages",
    messagesOf: (body) => listOf(body["messages"]),
    schemaOf: (body) => member(body, "output_config", "format", "schema"),
    send: sendMessages,
    fail: (response, status, message, retry_after) =>
      sendFailure(response, status, retry_after, { type: "error", error: errorOf(status, message) }),
  },
  RESPONSES,
];

function sendChat(response: ServerResponse, { body, message, usage, reason }: Answered): void {
  const head = { id: "chatcmpl-test", created: CREATED, model: body["model"] ?? "" };
  const total_tokens = usage.prompt_tokens + usage.completion_tokens;
  if (body["stream"] !== true) {
    const choice = { index: 0, message, logprobs: null, finish_reason: reason };
    const made = { ...head, object: "chat.completion", choices: [choice], usage: { ...usage, total_tokens } };
    return sendJson(response, made);
  }
  response.writeHead(200, { "content-type": "text/event-stream" });
  const event = (more: JsonObject): void =>
    void response.write(`data: ${JSON.stringify({ ...head, object: "chat.completion.chunk", ...more })}\n\n`);
  const delta = (value: JsonObject, finish_reason: string | null = null): void =>
    event({ choices: [{ index: 0, delta: value, logprobs: null, finish_reason }] });
  delta({ role: "assistant", content: message["content"] === null ? null : "" });
  for (const name of ["content", "refusal"]) for (const piece of pieces(message[name])) delta({ [name]: piece });
  callsOf(message).forEach(({ id, type, function: { name, arguments: args } }, index) => {
    delta({ tool_calls: [{ index, id, type, function: { name, arguments: "" } }] });
    for (const piece of pieces(args)) delta({ tool_calls: [{ index, function: { arguments: piece } }] });
  });
  delta({}, reason);
  if (member(body, "stream_options")?.["include_usage"] === true)
    event({ choices: [], usage: { ...usage, total_tokens } });
  response.end("data: [DONE]\n\n");
}

function sendMessages(response: ServerResponse, { body, message, usage, reason }: Answered): void {
  const head = { id: "msg_test", type: "message", role: "assistant", model: body["model"] ?? "", stop_sequence: null };
  const text = message["refusal"] ?? message["content"];
  const reasons: Record<string, string> = { stop: "end_turn", tool_calls: "tool_use", length: "max_tokens" };
  const stop_reason = message["refusal"] === undefined ? (reasons[reason] ?? reason) : "refusal";
  const blocks: { block: JsonObject; begin: JsonObject; deltas: JsonObject[] }[] = [];
  if (typeof text === "string" && text !== "") {
    const deltas = pieces(text).map((piece) => ({ type: "text_delta", text: piece }));
    blocks.push({ block: { type: "text", text }, begin: { type: "text", text: "" }, deltas });
  }
  for (const { id, function: { name, arguments: args } } of callsOf(message)) {
    const block = { type: "tool_use", id, name };
    const deltas = pieces(args).map((piece) => ({ type: "input_json_delta", partial_json: piece }));
    blocks.push({ block: { ...block, input: JSON.parse(args) as Json }, begin: { ...block, input: {} }, deltas });
  }
  const tokens = { input_tokens: usage.prompt_tokens, output_tokens: usage.completion_tokens };
  if (body["stream"] !== true) {
    const content = blocks.map(({ block }) => block);
    return sendJson(response, { ...head, content, stop_reason, usage: tokens });
  }
  response.writeHead(200, { "content-type": "text/event-stream" });
  const event = (type: string, more: JsonObject): void =>
    void response.write(`event: ${type}\ndata: ${JSON.stringify({ type, ...more })}\n\n`);
  event("message_start", {
    message: { ...head, content: [], stop_reason: null, usage: { ...tokens, output_tokens: 0 } },
  });
  blocks.forEach(({ begin, deltas }, index) => {
    event("content_block_start", { index, content_block: begin });
    for (const delta of deltas) event("content_block_delta", { index, delta });
    event("content_block_stop", { index });
  });
  event("message_delta", {
    delta: { stop_reason, stop_sequence: null },
    usage: { output_tokens: usage.completion_tokens },
  });
  event("message_stop", {});
  response.end();
}
