// Anthropic's Messages: reads and validates requests, writes answers, streams and errors.
import { createHmac, timingSafeEqual } from "node:crypto";
import { Fault, hash, isObject, pieces, tokens } from "./scenario.mjs";
import { isClosed } from "./schemas.mjs";

const SIGNING_KEY = "thoughts of a scripted server"; // not a secret: signatures reveal changed thoughts
const CREATED = "2026-01-01T00:00:00Z";
const BREAKPOINTS_MAX = 4;
const MESSAGES_MAX = 100_000;
const THINKING_MIN = 1024;
const NAME = /^[a-zA-Z0-9_-]{1,64}$/;
const ID = /^[a-zA-Z0-9_-]+$/;
const KNOWN = new Set(
  `model messages max_tokens metadata stop_sequences stream system temperature thinking tool_choice tools top_k top_p
  service_tier container context_management output_config inference_geo cache_control`.split(/\s+/),
);
const EFFORTS = ["low", "medium", "high", "xhigh", "max"];

export const name = "messages";

// ---- errors ------------------------------------------------------------------------------------------------------

const refuse = (message) => {
  throw new Fault(400, message);
};

const TYPES = {
  401: "authentication_error",
  402: "billing_error",
  403: "permission_error",
  404: "not_found_error",
  413: "request_too_large",
  429: "rate_limit_error",
  504: "timeout_error",
  529: "overloaded_error",
};
const MESSAGES = {
  429: "This request would exceed your account's rate limit. Please try again later.",
  500: "Internal server error",
  529: "Overloaded",
};

export function error(fault, requestId) {
  const type = TYPES[fault.status] ?? (fault.status >= 500 ? "api_error" : "invalid_request_error");
  const message = fault.message || MESSAGES[fault.status] || "As the scenario requires.";
  return { type: "error", error: { type: fault.type ?? type, message }, request_id: requestId };
}

export const errorFrame = (fault, requestId) => event(error(fault, requestId));
export const garbageFrame = () => 'event: content_block_delta\ndata: {"type":"content_block_\n\n';
export const notJson = (why) => new Fault(400, `The request body is not valid JSON: ${why}`);
export const noModel = (model) => new Fault(404, `model: ${model}`);

export function authorize(headers, key) {
  const sent = headers["x-api-key"] ?? /^Bearer (.+)$/.exec(headers.authorization ?? "")?.[1];
  if (!sent) throw new Fault(401, "x-api-key header is required");
  if (key !== undefined && sent !== key) throw new Fault(401, "invalid x-api-key");
  const version = headers["anthropic-version"];
  if (version === undefined) refuse("anthropic-version: header is required");
  if (!/^\d{4}-\d{2}-\d{2}$/.test(version)) refuse(`anthropic-version: "${version}" is not a valid version`);
}

// ---- thoughts ----------------------------------------------------------------------------------------------------

// A signature covers a thought and its position in its message: a changed, moved or missing one is detected.
function signature(model, { index, total, kind, text }) {
  const words = JSON.stringify([model, index, total, kind, text]);
  return createHmac("sha256", SIGNING_KEY).update(words).digest("base64");
}

const SIGNATURE_CHARS = 44;

function same(one, other) {
  const [a, b] = [Buffer.from(String(one)), Buffer.from(other)];
  return a.length === b.length && timingSafeEqual(a, b);
}

function checkThoughts(blocks, model, where) {
  const thoughts = blocks.filter(isThought);
  for (const [index, block] of thoughts.entries()) {
    const param = `${where}.content.${blocks.indexOf(block)}`;
    const redacted = block.type === "redacted_thinking";
    const text = redacted
      ? Buffer.from(String(block.data ?? "").slice(SIGNATURE_CHARS), "base64").toString()
      : block.thinking;
    const sent = redacted ? String(block.data ?? "").slice(0, SIGNATURE_CHARS) : block.signature;
    const wanted = signature(model, { index, total: thoughts.length, kind: block.type, text });
    if (!redacted && typeof block.thinking !== "string") refuse(`${param}.thinking.thinking: Field required`);
    if (!redacted && sent === undefined) refuse(`${param}.thinking.signature: Field required`);
    if (!same(sent, wanted))
      refuse(`${param}: Invalid \`${redacted ? "data" : "signature"}\` in \`${block.type}\` block`);
  }
}

const isThought = (block) => block.type === "thinking" || block.type === "redacted_thinking";

// ---- requests ----------------------------------------------------------------------------------------------------

const wants = (ok, param, expected) => ok || refuse(`${param}: Input should be ${expected}`);
const STRING = "a valid string";

function within(body, param, low, high) {
  const value = body[param];
  if (value === undefined || value === null) return;
  wants(typeof value === "number", param, "a valid number");
  if (value < low || value > high) refuse(`${param}: range: ${low}..${high}`);
}

const BLOCKS = {
  user: ["text", "image", "document", "search_result", "tool_result"],
  assistant: ["text", "thinking", "redacted_thinking", "tool_use"],
  result: ["text", "image", "document", "search_result"],
};

function checkText(block, param) {
  if (block.text === undefined) refuse(`${param}.text.text: Field required`);
  wants(typeof block.text === "string", `${param}.text.text`, STRING);
  if (!block.text) refuse("messages: text content blocks must be non-empty");
  if (!block.text.trim()) refuse("messages: text content blocks must contain non-whitespace text");
}

// A content as its blocks, each of a type that is allowed.
function blocksOf(content, kind, param) {
  if (typeof content === "string") return content ? [{ type: "text", text: content }] : [];
  wants(Array.isArray(content), `${param}.content`, "a valid list");
  content.forEach((block, index) => {
    const where = `${param}.content.${index}`;
    wants(isObject(block), where, "an object");
    if (block.type === undefined) refuse(`${where}.type: Field required`);
    if (!BLOCKS[kind].includes(block.type))
      refuse(
        `${where}: Input tag '${block.type}' found using 'type' does not match any of the expected tags: ` +
          BLOCKS[kind].map((one) => `'${one}'`).join(", "),
      );
    if (block.type === "text") checkText(block, where);
  });
  return content;
}

const textOf = (blocks) =>
  blocks
    .filter((block) => block.type === "text")
    .map((block) => block.text)
    .join("\n");

function checkCall(block, where) {
  for (const key of ["id", "name", "input"])
    if (block[key] === undefined) refuse(`${where}.tool_use.${key}: Field required`);
  wants(typeof block.id === "string", `${where}.tool_use.id`, STRING);
  if (!ID.test(block.id)) refuse(`${where}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'`);
  wants(isObject(block.input), `${where}.tool_use.input`, "a valid dictionary");
  if (typeof block.name !== "string" || !NAME.test(block.name))
    refuse(`${where}.tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{1,64}$'`);
}

// The results in a user's message, checked against the calls of the message before.
function checkResults(blocks, open, where, before) {
  const given = new Set();
  blocks.forEach((block, index) => {
    if (block.type !== "tool_result") return;
    const param = `${where}.content.${index}`;
    if (block.tool_use_id === undefined) refuse(`${param}.tool_result.tool_use_id: Field required`);
    if (given.has(block.tool_use_id))
      refuse(
        `${param}: each tool_use must have a single result. Found multiple \`tool_result\` blocks with id: ${block.tool_use_id}`,
      );
    if (!open.includes(block.tool_use_id))
      refuse(
        `${param}: unexpected \`tool_use_id\` found in \`tool_result\` blocks: ${block.tool_use_id}. Each ` +
          "`tool_result` block must have a corresponding `tool_use` block in the previous message.",
      );
    if (block.is_error !== undefined)
      wants(typeof block.is_error === "boolean", `${param}.tool_result.is_error`, "a valid boolean");
    given.add(block.tool_use_id);
  });
  // Results come first: a block after text is not a result.
  const first = blocks.findIndex((block) => block.type !== "tool_result");
  const answered = new Set((first < 0 ? blocks : blocks.slice(0, first)).map((block) => block.tool_use_id));
  const lacking = open.filter((id) => !answered.has(id));
  if (lacking.length)
    refuse(
      `${before}: \`tool_use\` ids were found without \`tool_result\` blocks immediately after: ${lacking.join(", ")}. ` +
        "Each `tool_use` block must have a corresponding `tool_result` block in the next message.",
    );
}

// Messages as turns: adjacent messages of one role are one turn, as at the provider.
function turnsOf(messages, strict) {
  const turns = [];
  messages.forEach((message, index) => {
    const where = `messages.${index}`;
    wants(isObject(message), where, "an object");
    if (message.role === undefined) refuse(`${where}.role: Field required`);
    if (message.role === "system")
      refuse(
        'messages: Unexpected role "system". The Messages API accepts a top-level `system` parameter, not "system" as ' +
          "an input message role.",
      );
    if (message.role !== "user" && message.role !== "assistant")
      refuse(`${where}.role: Input should be 'user' or 'assistant'`);
    if (message.content === undefined) refuse(`${where}.content: Field required`);
    for (const key of Object.keys(message))
      if (key !== "role" && key !== "content") refuse(`${where}.${key}: Extra inputs are not permitted`);
    const blocks = blocksOf(message.content, message.role, where);
    if (!blocks.length && !(message.role === "assistant" && index === messages.length - 1))
      refuse(`${where}: all messages must have non-empty content except for the optional final assistant message`);
    const previous = turns.at(-1);
    if (previous?.role !== message.role)
      turns.push({ role: message.role, where, parts: [blocks], blocks: [...blocks] });
    else if (strict) refuse(`${where}: roles must alternate between "user" and "assistant" (--strict)`);
    else {
      previous.blocks.push(...blocks);
      previous.parts.push(blocks);
    }
  });
  if (turns[0].role !== "user") refuse('messages: first message must use the "user" role');
  return turns;
}

function readMessages(body, thinking, strict) {
  const out = [];
  let open = [];
  let before = "";
  const ids = new Set();
  const turns = turnsOf(body.messages, strict);
  for (const { role, where, blocks, parts } of turns) {
    if (role === "assistant") {
      for (const part of parts) checkThoughts(part, body.model, where);
      const calls = blocks.filter((block) => block.type === "tool_use");
      blocks.forEach((block, index) => {
        if (block.type !== "tool_use") return;
        checkCall(block, `${where}.content.${index}`);
        if (ids.has(block.id)) refuse(`${where}.content.${index}: \`tool_use\` ids must be unique`);
        ids.add(block.id);
      });
      open = calls.map((block) => block.id);
      before = where;
      for (const part of parts) {
        const made = part.filter((block) => block.type === "tool_use");
        out.push({ role: "assistant", text: textOf(part), calls: made.map(({ id, name }) => ({ id, name })) });
      }
    } else {
      checkResults(blocks, open, where, before);
      open = [];
      blocks.forEach((block, index) => {
        if (block.type !== "tool_result") return;
        const inner = blocksOf(block.content ?? "", "result", `${where}.content.${index}.tool_result`);
        out.push({ role: "tool", id: block.tool_use_id, text: textOf(inner) });
      });
      if (blocks.some((block) => block.type !== "tool_result")) out.push({ role: "user", text: textOf(blocks) });
    }
  }
  if (open.length) checkResults([], open, "", before);
  checkLast(turns, thinking, body.messages.length - 1);
  return out;
}

function checkLast(turns, thinking, last) {
  const turn = turns.at(-1);
  if (turn.role === "assistant") {
    const block = turn.blocks.at(-1);
    if (block && isThought(block))
      refuse(`messages.${last}: The final block in an assistant message cannot be \`thinking\`.`);
    if (block?.type === "text" && block.text !== block.text.trimEnd())
      refuse("messages: final assistant content cannot end with trailing whitespace");
  }
  if (thinking !== "enabled") return;
  // In a loop over tools the client returns the thoughts of the last answer with its calls.
  const answer = turns.findLast((one) => one.role === "assistant");
  const calls = answer?.blocks.some((block) => block.type === "tool_use");
  if (calls && !isThought(answer.blocks[0]))
    refuse(
      `${answer.where}.content.0.type: Expected \`thinking\` or \`redacted_thinking\`, but found \`${answer.blocks[0].type}\`. ` +
        "When `thinking` is enabled, a final `assistant` message must start with a thinking block (preceeding the " +
        "lastmost set of `tool_use` and `tool_result` blocks).",
    );
}

const notClosed = (param) =>
  refuse(`${param}: For 'object' type, 'additionalProperties' must be explicitly set to false`);

function readTools(tools) {
  wants(Array.isArray(tools), "tools", "a valid list");
  const names = tools.map((tool, index) => {
    const param = `tools.${index}.custom`;
    wants(isObject(tool), `tools.${index}`, "an object");
    if (tool.type !== undefined && tool.type !== null && tool.type !== "custom")
      refuse(`tools.${index}: Input tag '${tool.type}' is a tool of the provider's own, which this server has none of`);
    if (tool.name === undefined) refuse(`${param}.name: Field required`);
    wants(typeof tool.name === "string", `${param}.name`, STRING);
    if (!NAME.test(tool.name)) refuse(`${param}.name: String should match pattern '^[a-zA-Z0-9_-]{1,64}$'`);
    if (tool.description !== undefined) wants(typeof tool.description === "string", `${param}.description`, STRING);
    if (tool.input_schema === undefined) refuse(`${param}.input_schema: Field required`);
    wants(isObject(tool.input_schema), `${param}.input_schema`, "a valid dictionary");
    if (tool.input_schema.type === undefined) refuse(`${param}.input_schema.type: Field required`);
    if (tool.input_schema.type !== "object") refuse(`${param}.input_schema.type: Input should be 'object'`);
    if (tool.strict === true && !isClosed(tool.input_schema)) notClosed(param);
    return tool.name;
  });
  if (new Set(names).size < names.length) refuse("tools: Tool names must be unique.");
  return names;
}

function readChoice(choice, offered) {
  if (choice === undefined || choice === null) return "auto";
  wants(isObject(choice), "tool_choice", "an object");
  if (!["auto", "any", "tool", "none"].includes(choice.type))
    refuse(
      `tool_choice: Input tag '${choice.type}' found using 'type' does not match any of the expected tags: 'auto', 'any', 'tool', 'none'`,
    );
  if (!offered.length && choice.type !== "none") refuse("tool_choice: may only be specified while providing tools");
  if (choice.type !== "tool") return choice.type;
  if (choice.name === undefined) refuse("tool_choice.tool.name: Field required");
  if (!offered.includes(choice.name)) refuse(`Tool '${choice.name}' not found in provided tools`);
  return { name: choice.name };
}

function readThinking(body, choice) {
  const thinking = body.thinking ?? { type: "disabled" };
  wants(isObject(thinking), "thinking", "an object");
  if (!["enabled", "disabled", "adaptive"].includes(thinking.type))
    refuse(
      `thinking: Input tag '${thinking.type}' found using 'type' does not match any of the expected tags: 'adaptive', 'disabled', 'enabled'`,
    );
  if (thinking.type === "disabled") return thinking;
  if (thinking.type === "enabled") {
    if (thinking.budget_tokens === undefined) refuse("thinking.enabled.budget_tokens: Field required");
    wants(Number.isInteger(thinking.budget_tokens), "thinking.enabled.budget_tokens", "a valid integer");
    if (thinking.budget_tokens < THINKING_MIN)
      refuse(`thinking.enabled.budget_tokens: Input should be greater than or equal to ${THINKING_MIN}`);
    if (thinking.budget_tokens >= body.max_tokens)
      refuse("`max_tokens` must be greater than `thinking.budget_tokens`.");
  }
  if (body.temperature !== undefined && body.temperature !== 1)
    refuse("`temperature` may only be set to 1 when thinking is enabled.");
  if (choice === "any" || isObject(choice)) refuse("Thinking may not be enabled when tool_choice forces tool use.");
  return thinking;
}

function checkBreakpoints(body) {
  let found = 0;
  JSON.stringify([body.tools, body.system, body.messages], (key, value) => {
    if (key === "cache_control" && value) found++;
    return value;
  });
  if (found > BREAKPOINTS_MAX)
    refuse(`A maximum of ${BREAKPOINTS_MAX} blocks with cache_control may be provided. Found ${found}.`);
}

// Validates a request. Returns the conversation as scenario.mjs reads it, and the limits of the answer.
export function read(body, { strict = false } = {}) {
  for (const key of ["model", "messages", "max_tokens"]) if (body[key] === undefined) refuse(`${key}: Field required`);
  for (const key of Object.keys(body)) if (!KNOWN.has(key)) refuse(`${key}: Extra inputs are not permitted`);
  wants(typeof body.model === "string" && body.model, "model", STRING);
  wants(Number.isInteger(body.max_tokens), "max_tokens", "a valid integer");
  if (body.max_tokens < 1) refuse("max_tokens: must be greater than or equal to 1");
  wants(Array.isArray(body.messages), "messages", "a valid list");
  if (!body.messages.length) refuse("messages: at least one message is required");
  if (body.messages.length > MESSAGES_MAX) refuse(`messages: at most ${MESSAGES_MAX} messages are allowed`);
  if (body.stream !== undefined) wants(typeof body.stream === "boolean", "stream", "a valid boolean");
  within(body, "temperature", 0, 1);
  within(body, "top_p", 0, 1);
  const stops = body.stop_sequences ?? [];
  wants(
    Array.isArray(stops) && stops.every((stop) => typeof stop === "string"),
    "stop_sequences",
    "a valid list of strings",
  );
  if (stops.some((stop) => !stop.trim())) refuse("stop_sequences: each stop sequence must contain non-whitespace");
  const system = body.system === undefined ? [] : blocksOf(body.system, "result", "system");
  const offered = body.tools === undefined ? [] : readTools(body.tools);
  const choice = readChoice(body.tool_choice, offered);
  const thinking = readThinking(body, choice);
  const format = body.output_config?.format;
  if (format) {
    if (format.type !== "json_schema") refuse("output_config.format.type: Input should be 'json_schema'");
    if (!isObject(format.schema)) refuse("output_config.format.schema: Field required");
    if (!isClosed(format.schema)) notClosed("output_config.format.schema");
  }
  if (body.output_config?.effort && !EFFORTS.includes(body.output_config.effort))
    refuse(`output_config.effort: Input should be ${EFFORTS.map((one) => `'${one}'`).join(", ")}`);
  checkBreakpoints(body);
  return {
    model: body.model,
    hash: hash(JSON.stringify([body.model, body.messages])),
    stream: body.stream === true,
    prompt: promptTokens(body),
    system: textOf(system),
    messages: readMessages(body, thinking.type, strict),
    offered,
    choice,
    parallel: body.tool_choice?.disable_parallel_tool_use !== true,
    thinks: { enabled: "always", adaptive: "may", disabled: "no" }[thinking.type],
    omitted: thinking.display === "omitted",
    limits: { max: body.max_tokens, stops },
  };
}

// ---- answers -----------------------------------------------------------------------------------------------------

// The tokens of the request by their use of the cache: those before the last breakpoint are written to it, or were read
// from it if an answer follows.
function promptTokens(body) {
  const sections = [body.tools, body.system, ...body.messages].filter((one) => one !== undefined);
  const sizes = sections.map((one) => tokens(JSON.stringify(one)));
  const marked = sections.findLastIndex((one) => JSON.stringify(one).includes('"cache_control"'));
  const upTo = body.cache_control ? sections.length - 1 : marked;
  const answer = sections.findLastIndex((one) => one.role === "assistant");
  const sum = (from, to) => sizes.slice(from, to).reduce((all, one) => all + one, 0);
  const read = Math.min(upTo, answer) + 1;
  return {
    read: sum(0, read),
    written: sum(read, Math.max(read, upTo + 1)),
    rest: sum(Math.max(read, upTo + 1), sizes.length),
  };
}

function usageOf(request, answer) {
  const sum = (texts) => texts.reduce((total, one) => total + tokens(one), 0);
  const thinking = sum(answer.think.map((part) => part.text));
  const output = thinking + sum([answer.text, answer.refuse ?? ""]) + sum(answer.calls.map((call) => call.name + call.json));
  return {
    input_tokens: request.prompt.rest,
    cache_creation_input_tokens: request.prompt.written,
    cache_read_input_tokens: request.prompt.read,
    output_tokens: Math.max(1, output),
    output_tokens_details: { thinking_tokens: thinking },
    server_tool_use: null,
  };
}

const REASONS = {
  end: "end_turn",
  length: "max_tokens",
  stop: "stop_sequence",
  tool: "tool_use",
  pause: "pause_turn",
  refusal: "refusal",
  filter: "refusal",
  context: "model_context_window_exceeded",
};

function ending(answer) {
  const isRefusal = REASONS[answer.finish] === "refusal";
  return {
    stop_reason: REASONS[answer.finish],
    stop_sequence: answer.stop,
    stop_details: isRefusal ? { type: "refusal", category: null, explanation: answer.refuse } : null,
  };
}

function inputOf(call) {
  try {
    const value = JSON.parse(call.json);
    return isObject(value) ? value : {};
  } catch {
    return {}; // what was cut off
  }
}

function blocksOfAnswer(request, answer) {
  const thoughts = answer.think.map((part, index) => {
    const kind = part.redacted ? "redacted_thinking" : "thinking";
    const text = request.omitted && !part.redacted ? "" : part.text;
    const signed = signature(request.model, { index, total: answer.think.length, kind, text });
    return part.redacted
      ? { type: kind, data: signed + Buffer.from(text).toString("base64") }
      : { type: kind, thinking: text, signature: signed };
  });
  const calls = answer.calls.map((call, index) => ({
    type: "tool_use",
    id: `toolu_01${hash(`${request.hash}/${index}`).slice(0, 22)}`,
    name: call.name,
    input: inputOf(call),
    caller: { type: "direct" },
  }));
  const words = answer.text ? [{ type: "text", text: answer.text, citations: null }] : [];
  return [...thoughts, ...words, ...calls];
}

function message(request, content, rest, usage) {
  return {
    id: `msg_01${request.hash.slice(0, 22)}`,
    type: "message",
    role: "assistant",
    model: request.model,
    content,
    container: null,
    ...rest,
    usage: {
      ...usage,
      cache_creation: { ephemeral_5m_input_tokens: usage.cache_creation_input_tokens, ephemeral_1h_input_tokens: 0 },
      service_tier: "standard",
    },
  };
}

export const answer = (request, answer) =>
  message(request, blocksOfAnswer(request, answer), ending(answer), usageOf(request, answer));

const event = (value) => `event: ${value.type}\ndata: ${JSON.stringify(value)}\n\n`;

// The answer as server-sent events: {text, piece, last}; a piece has some of the answer in it.
export function* frames(request, answer, size) {
  const usage = usageOf(request, answer);
  const plain = (value) => ({ text: event(value), piece: false });
  const nothing = { stop_reason: null, stop_sequence: null, stop_details: null };
  const { output_tokens_details: _, ...opening } = { ...usage, output_tokens: 1 };
  yield plain({ type: "message_start", message: message(request, [], nothing, opening) });
  let calls = 0;
  for (const [index, block] of blocksOfAnswer(request, answer).entries()) {
    const delta = (value) => ({ text: event({ type: "content_block_delta", index, delta: value }), piece: true });
    const empty = { thinking: { thinking: "", signature: "" }, text: { text: "" }, tool_use: { input: {} } }[
      block.type
    ];
    yield plain({ type: "content_block_start", index, content_block: { ...block, ...empty } });
    if (index === 0) yield plain({ type: "ping" });
    if (block.type === "thinking") {
      for (const part of pieces(block.thinking, size)) yield delta({ type: "thinking_delta", thinking: part });
      yield delta({ type: "signature_delta", signature: block.signature });
    }
    if (block.type === "text")
      for (const part of pieces(block.text, size)) yield delta({ type: "text_delta", text: part });
    if (block.type === "tool_use") {
      yield delta({ type: "input_json_delta", partial_json: "" });
      for (const part of pieces(answer.calls[calls++].json, size))
        yield delta({ type: "input_json_delta", partial_json: part });
    }
    yield plain({ type: "content_block_stop", index });
  }
  yield plain({ type: "message_delta", delta: { ...ending(answer), container: null }, usage });
  yield { ...plain({ type: "message_stop" }), last: true };
}

export const models = (names) => ({
  data: names.map((id) => model(id)),
  has_more: false,
  first_id: names[0] ?? null,
  last_id: names.at(-1) ?? null,
});
export const model = (id) => ({ type: "model", id, display_name: `${id} (a script)`, created_at: CREATED });

export const headers = (requestId, { limited = false } = {}) => ({
  "request-id": requestId,
  "anthropic-organization-id": "00000000-0000-4000-8000-000000000000",
  "anthropic-ratelimit-requests-limit": "4000",
  "anthropic-ratelimit-requests-remaining": limited ? "0" : "3999",
  "anthropic-ratelimit-requests-reset": CREATED,
  "anthropic-ratelimit-tokens-limit": "2000000",
  "anthropic-ratelimit-tokens-remaining": limited ? "0" : "1999999",
  "anthropic-ratelimit-tokens-reset": CREATED,
});
