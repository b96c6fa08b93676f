// Responses of OpenAI, as the models of a test answer them. No state is kept: a request has its whole conversation.
import type { ServerResponse } from "node:http";
import type { JsonObject } from "../json.ts";
import {
  callsOf,
  CREATED,
  failOpenai,
  listOf,
  member,
  pieces,
  sendJson,
  type Answered,
  type Protocol,
} from "./protocol.ts";

export const RESPONSES: Protocol = {
  path: "/responses",
  messagesOf: ({ input }) => (typeof input === "string" ? [{ role: "user", content: input }] : listOf(input)),
  schemaOf: (body) => member(body, "text", "format", "schema"),
  send,
  fail: failOpenai,
};

// Of the reasons of Chat Completions.
const INCOMPLETE: Record<string, string> = { length: "max_output_tokens", content_filter: "content_filter" };

/** An item of the output: as a whole, as it begins, and the events of its parts. */
interface Item {
  whole: JsonObject;
  begin: JsonObject;
  events: JsonObject[];
}

function send(response: ServerResponse, answered: Answered): void {
  const { body, usage, reason } = answered;
  const items = itemsOf(answered);
  const incomplete = INCOMPLETE[reason];
  const whole = {
    ...headOf(body),
    status: incomplete === undefined ? "completed" : "incomplete",
    incomplete_details: incomplete === undefined ? null : { reason: incomplete },
    output: items.map((item) => item.whole),
    usage: {
      input_tokens: usage.prompt_tokens,
      input_tokens_details: { cached_tokens: 0 },
      output_tokens: usage.completion_tokens,
      output_tokens_details: { reasoning_tokens: 0 },
      total_tokens: usage.prompt_tokens + usage.completion_tokens,
    },
  };
  if (body["stream"] !== true) return sendJson(response, whole);
  const begun = { ...headOf(body), status: "in_progress", incomplete_details: null, output: [], usage: null };
  const events: JsonObject[] = [{ type: "response.created", response: begun }, { type: "response.in_progress", response: begun }];
  items.forEach((item, output_index) => {
    events.push({ type: "response.output_item.added", output_index, item: item.begin });
    for (const event of item.events) events.push({ ...event, item_id: item.whole["id"] ?? "", output_index });
    events.push({ type: "response.output_item.done", output_index, item: item.whole });
  });
  events.push({ type: `response.${whole.status}`, response: whole });
  response.writeHead(200, { "content-type": "text/event-stream" });
  events.forEach((event, sequence_number) => {
    response.write(`event: ${String(event["type"])}\ndata: ${JSON.stringify({ ...event, sequence_number })}\n\n`);
  });
  response.end();
}

function headOf(body: JsonObject): JsonObject {
  return {
    id: "resp_test",
    object: "response",
    created_at: CREATED,
    model: body["model"] ?? "",
    error: null,
    instructions: body["instructions"] ?? null,
    metadata: {},
    parallel_tool_calls: true,
    temperature: null,
    tool_choice: body["tool_choice"] ?? "auto",
    tools: body["tools"] ?? [],
    top_p: null,
  };
}

function itemsOf({ message }: Answered): Item[] {
  const items: Item[] = [];
  for (const [name, kind] of [["content", "output_text"], ["refusal", "refusal"]] as const) {
    const text = message[name];
    if (typeof text !== "string" || text === "") continue;
    const part = (of: string): JsonObject =>
      kind === "refusal" ? { type: kind, refusal: of } : { type: kind, text: of, annotations: [], logprobs: [] };
    const head = { type: "message", id: `msg_test_${items.length}`, role: "assistant" };
    const at = { content_index: 0 };
    const more: JsonObject = kind === "refusal" ? {} : { logprobs: [] };
    items.push({
      whole: { ...head, status: "completed", content: [part(text)] },
      begin: { ...head, status: "in_progress", content: [] },
      events: [
        { type: "response.content_part.added", ...at, part: part("") },
        ...pieces(text).map((delta) => ({ type: `response.${kind}.delta`, ...at, delta, ...more })),
        { type: `response.${kind}.done`, ...at, [kind === "refusal" ? kind : "text"]: text, ...more },
        { type: "response.content_part.done", ...at, part: part(text) },
      ],
    });
  }
  for (const { id: call_id, function: { name, arguments: args } } of callsOf(message)) {
    const head = { type: "function_call", id: `fc_test_${items.length}`, call_id, name };
    items.push({
      whole: { ...head, status: "completed", arguments: args },
      begin: { ...head, status: "in_progress", arguments: "" },
      events: [
        ...pieces(args).map((delta) => ({ type: "response.function_call_arguments.delta", delta })),
        { type: "response.function_call_arguments.done", name, arguments: args },
      ],
    });
  }
  return items;
}
