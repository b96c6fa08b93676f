// OpenAI's Chat Completions: reads and validates requests, writes answers, streams and errors.
import { Fault, characters, hash, isObject, pieces, tokens } from "./scenario.mjs";
import { strictFault } from "./schemas.mjs";

const CREATED = 1767225600; // the same in every answer, so that equal requests get equal bytes
const CACHE_STEP = 128; // prompts are cached in steps of this many tokens,
const CACHE_MIN = 1024; // from this many on
const TOOLS_MAX = 128;
const STOPS_MAX = 4;
const NAME = /^[a-zA-Z0-9_-]+$/;
const NAME_MAX = 64;
const ROLES = ["system", "assistant", "user", "function", "tool", "developer"];
const KNOWN = new Set(
  `messages model audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens
  metadata modalities n parallel_tool_calls prediction presence_penalty prompt_cache_key prompt_cache_retention
  reasoning_effort response_format safety_identifier seed service_tier stop store stream stream_options temperature
  tool_choice tools top_logprobs top_p user verbosity web_search_options`.split(/\s+/),
);
const NOT_SCRIPTED = ["audio", "functions", "function_call", "logprobs", "prediction", "web_search_options"];

export const name = "chat";

// ---- errors ------------------------------------------------------------------------------------------------------

const refuse = (message, param = null, code = null) => {
  throw new Fault(400, message, { param, code });
};

const TYPES = {
  401: ["invalid_request_error", "invalid_api_key"],
  403: ["invalid_request_error", "insufficient_permissions"],
  404: ["invalid_request_error", null],
  429: ["requests", "rate_limit_exceeded"],
};
const MESSAGES = {
  429: "Rate limit reached for requests. Please try again later.",
  500: "The server had an error while processing your request. Sorry about that!",
  503: "The engine is currently overloaded, please try again later",
};

export function error(fault) {
  const [type, code] = TYPES[fault.status] ?? [fault.status >= 500 ? "server_error" : "invalid_request_error", null];
  return {
    error: {
      message: fault.message || MESSAGES[fault.status] || "As the scenario requires.",
      type: fault.type ?? type,
      param: fault.param ?? null,
      code: fault.code ?? code,
    },
  };
}

export const errorFrame = (fault) => `data: ${JSON.stringify(error(fault))}\n\n`;
export const garbageFrame = () => 'data: {"id":"chatcmpl-\n\n';

export const notJson = () =>
  new Fault(
    400,
    "We could not parse the JSON body of your request. (HINT: This likely means you aren't using your HTTP library " +
      "correctly. The API expects a JSON payload, but what was sent was not valid JSON.)",
  );
export const noModel = (model) =>
  new Fault(404, `The model \`${model}\` does not exist or you do not have access to it.`, {
    code: "model_not_found",
  });

export function authorize(headers, key) {
  const sent = /^Bearer (.+)$/.exec(headers.authorization ?? "")?.[1];
  if (!sent)
    throw new Fault(
      401,
      "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth " +
        "(i.e. Authorization: Bearer YOUR_KEY).",
      { code: "" },
    );
  if (key !== undefined && sent !== key) throw new Fault(401, "Incorrect API key provided.");
}

// ---- requests ----------------------------------------------------------------------------------------------------

function typeOf(value) {
  if (value === null) return "null";
  if (Array.isArray(value)) return "an array";
  if (typeof value === "number") return Number.isInteger(value) ? "an integer" : "a decimal number";
  return typeof value === "object" ? "an object" : `a ${typeof value}`;
}

const wants = (value, ok, param, expected) => {
  if (!ok)
    refuse(
      `Invalid type for '${param}': expected ${expected}, but got ${typeOf(value)} instead.`,
      param,
      "invalid_type",
    );
};
const missing = (param) => refuse(`Missing required parameter: '${param}'.`, param, "missing_required_parameter");

function within(body, param, low, high, whole = false) {
  const value = body[param];
  if (value === undefined || value === null) return;
  wants(
    value,
    typeof value === "number" && (!whole || Number.isInteger(value)),
    param,
    whole ? "an integer" : "a decimal",
  );
  if (value < low)
    refuse(
      `Invalid '${param}': ${whole ? "integer" : "decimal"} below minimum value. Expected a value >= ${low}, but got ${value} instead.`,
      param,
      `${whole ? "integer" : "decimal"}_below_min_value`,
    );
  if (value > high)
    refuse(
      `Invalid '${param}': decimal above maximum value. Expected a value <= ${high}, but got ${value} instead.`,
      param,
      "decimal_above_max_value",
    );
}

const PARTS = {
  user: ["text", "image_url", "input_audio", "file"],
  assistant: ["text", "refusal"],
  system: ["text"],
  developer: ["text"],
  tool: ["text"],
};

// The text of a content: a string, or a list of parts.
function words(content, role, param) {
  if (typeof content === "string") return content;
  wants(content, Array.isArray(content), param, "one of a string or array of objects");
  if (!content.length)
    refuse(
      `Invalid '${param}': empty array. Expected an array with minimum length 1, but got an empty array instead.`,
      param,
      "empty_array",
    );
  return content
    .map((part, index) => {
      const where = `${param}[${index}]`;
      wants(part, isObject(part), where, "an object");
      if (part.type === undefined) missing(`${where}.type`);
      if (!PARTS[role].includes(part.type))
        refuse(
          `Invalid value: '${part.type}'. Supported values are: ${PARTS[role].map((one) => `'${one}'`).join(", ")}.`,
          `${where}.type`,
          "invalid_value",
        );
      if (part.type !== "text" && part.type !== "refusal") return "";
      const text = part[part.type];
      if (text === undefined) missing(`${where}.${part.type}`);
      wants(text, typeof text === "string", `${where}.${part.type}`, "a string");
      return text;
    })
    .join("");
}

function callsOf(message, param) {
  if (message.tool_calls === undefined || message.tool_calls === null) return [];
  const calls = message.tool_calls;
  wants(calls, Array.isArray(calls), `${param}.tool_calls`, "an array of objects");
  if (!calls.length)
    refuse(
      `Invalid '${param}.tool_calls': empty array. Expected an array with minimum length 1, but got an empty array instead.`,
      `${param}.tool_calls`,
      "empty_array",
    );
  return calls.map((call, index) => {
    const where = `${param}.tool_calls[${index}]`;
    wants(call, isObject(call), where, "an object");
    for (const key of ["id", "type", "function"]) if (call[key] === undefined) missing(`${where}.${key}`);
    wants(call.id, typeof call.id === "string", `${where}.id`, "a string");
    if (call.type !== "function")
      refuse(
        `Invalid value: '${call.type}'. Supported values are: 'function' and 'custom'.`,
        `${where}.type`,
        "invalid_value",
      );
    for (const key of ["name", "arguments"]) {
      const value = call.function[key];
      if (value === undefined) missing(`${where}.function.${key}`);
      wants(value, typeof value === "string", `${where}.function.${key}`, "a string");
    }
    toolName(call.function.name, `${where}.function.name`);
    return { id: call.id, name: call.function.name };
  });
}

function toolName(value, param) {
  if (!NAME.test(value))
    refuse(
      `Invalid '${param}': string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'.`,
      param,
      "invalid_value",
    );
  if (value.length > NAME_MAX)
    refuse(
      `Invalid '${param}': string too long. Expected a string with maximum length ${NAME_MAX}, but got a string with length ${value.length} instead.`,
      param,
      "string_above_max_length",
    );
}

function readMessages(messages) {
  const out = [];
  let open = new Map(); // calls without a result so far, and where they were made
  const answered = (role) => {
    if (open.size)
      refuse(
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. " +
          `The following tool_call_ids did not have response messages: ${[...open.keys()].join(", ")}`,
        role,
      );
  };
  let mayAnswer = false;
  messages.forEach((message, index) => {
    const param = `messages[${index}]`;
    const loose = `messages.[${index}]`; // as the provider writes some of them
    wants(message, isObject(message), param, "an object");
    if (message.role === undefined) missing(`${param}.role`);
    if (!ROLES.includes(message.role))
      refuse(
        `Invalid value: '${message.role}'. Supported values are: ${ROLES.slice(0, -1)
          .map((role) => `'${role}'`)
          .join(", ")}, and 'developer'.`,
        `${param}.role`,
        "invalid_value",
      );
    if (message.role === "function")
      refuse("Messages with role 'function' are not scripted here; use 'tool'.", `${param}.role`);
    if (message.role === "tool") {
      if (!mayAnswer)
        refuse(
          "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.",
          `${loose}.role`,
        );
      if (message.tool_call_id === undefined) missing(`${param}.tool_call_id`);
      wants(message.tool_call_id, typeof message.tool_call_id === "string", `${param}.tool_call_id`, "a string");
      if (!open.delete(message.tool_call_id))
        refuse(
          `Invalid parameter: 'tool_call_id' of '${message.tool_call_id}' not found in 'tool_calls' of previous message.`,
          `${loose}.tool_call_id`,
        );
    } else {
      answered(`${loose}.role`);
    }
    const hasCalls = message.tool_calls !== undefined && message.tool_calls !== null;
    if (message.content === undefined && message.role !== "assistant") missing(`${param}.content`);
    const isNull = message.content === undefined || message.content === null;
    if (isNull && (message.role !== "assistant" || !(hasCalls || typeof message.refusal === "string")))
      refuse("Invalid value for 'content': expected a string, got null.", `${loose}.content`);
    const text = isNull ? "" : words(message.content, message.role, `${param}.content`);
    if (message.role === "assistant") {
      const calls = callsOf(message, param);
      open = new Map(calls.map((call) => [call.id, index]));
      if (open.size < calls.length) refuse("Duplicate value for 'tool_call_id' of one message.", `${param}.tool_calls`);
      mayAnswer = calls.length > 0;
      out.push({ role: "assistant", text, calls });
    } else if (message.role === "tool") {
      out.push({ role: "tool", id: message.tool_call_id, text });
    } else if (message.role === "user") {
      mayAnswer = false;
      out.push({ role: "user", text });
    } else {
      mayAnswer = false;
      out.push({ role: "system", text });
    }
  });
  answered(`messages.[${messages.length}].role`);
  return out;
}

function readTools(tools) {
  wants(tools, Array.isArray(tools), "tools", "an array of objects");
  if (!tools.length)
    refuse(
      "Invalid 'tools': empty array. Expected an array with minimum length 1, but got an empty array instead.",
      "tools",
      "empty_array",
    );
  if (tools.length > TOOLS_MAX)
    refuse(
      `Invalid 'tools': array too long. Expected an array with maximum length ${TOOLS_MAX}, but got an array with length ${tools.length} instead.`,
      "tools",
      "array_above_max_length",
    );
  return tools.map((tool, index) => {
    const param = `tools[${index}]`;
    wants(tool, isObject(tool), param, "an object");
    if (tool.type === undefined) missing(`${param}.type`);
    if (tool.type !== "function")
      refuse(
        `Invalid value: '${tool.type}'. Supported values are: 'function' and 'custom'.`,
        `${param}.type`,
        "invalid_value",
      );
    if (tool.function === undefined) missing(`${param}.function`);
    wants(tool.function, isObject(tool.function), `${param}.function`, "an object");
    const { name: called, description, parameters, strict } = tool.function;
    if (called === undefined) missing(`${param}.function.name`);
    wants(called, typeof called === "string", `${param}.function.name`, "a string");
    toolName(called, `${param}.function.name`);
    if (description !== undefined)
      wants(description, typeof description === "string", `${param}.function.description`, "a string");
    const invalid = (what) =>
      refuse(
        `Invalid schema for function '${called}': ${what}`,
        `${param}.function.parameters`,
        "invalid_function_parameters",
      );
    if (parameters !== undefined && parameters !== null) {
      wants(parameters, isObject(parameters), `${param}.function.parameters`, "an object");
      if (parameters.type !== "object" && Object.keys(parameters).length)
        invalid(`schema must be a JSON Schema of 'type: "object"', got 'type: "${parameters.type ?? "None"}"'.`);
    }
    if (strict === true) {
      const fault = strictFault(parameters ?? {});
      if (fault) invalid(fault);
    }
    return called;
  });
}

function readChoice(choice, offered) {
  if (choice === undefined || choice === null) return "auto";
  if (!offered.length)
    refuse("Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified.", "tool_choice");
  if (choice === "none" || choice === "auto") return choice;
  if (choice === "required") return "any";
  if (typeof choice === "string")
    refuse(
      `Invalid value: '${choice}'. Supported values are: 'none', 'auto', and 'required'.`,
      "tool_choice",
      "invalid_value",
    );
  const wanted = choice?.function?.name;
  if (choice.type !== "function" || typeof wanted !== "string") missing("tool_choice.function.name");
  if (!offered.includes(wanted))
    refuse(
      `Invalid value for 'tool_choice': no function named '${wanted}' was specified in the 'tools' parameter.`,
      "tool_choice",
    );
  return { name: wanted };
}

function checkFormat(format, body) {
  if (format === undefined || format === null) return;
  wants(format, isObject(format), "response_format", "an object");
  if (format.type === "text") return;
  if (format.type === "json_object") {
    if (!/json/i.test(JSON.stringify(body.messages)))
      refuse(
        "'messages' must contain the word 'json' in some form, to use 'response_format' of type 'json_object'.",
        "messages",
      );
    return;
  }
  if (format.type !== "json_schema")
    refuse(
      `Invalid value: '${format.type}'. Supported values are: 'json_object', 'json_schema', and 'text'.`,
      "response_format.type",
      "invalid_value",
    );
  const wanted = format.json_schema;
  if (wanted === undefined) missing("response_format.json_schema");
  if (wanted.name === undefined) missing("response_format.json_schema.name");
  toolName(String(wanted.name), "response_format.json_schema.name");
  if (wanted.schema === undefined) missing("response_format.json_schema.schema");
  const fault = wanted.strict === true ? strictFault(wanted.schema) : undefined;
  if (fault) refuse(`Invalid schema for response_format '${wanted.name}': ${fault}`, "response_format");
}

// Validates a request. Returns the conversation as scenario.mjs reads it, and the limits of the answer.
export function read(body) {
  if (body.model === undefined || body.model === "") refuse("you must provide a model parameter");
  wants(body.model, typeof body.model === "string", "model", "a string");
  for (const key of Object.keys(body)) if (!KNOWN.has(key)) refuse(`Unrecognized request argument supplied: ${key}`);
  for (const key of NOT_SCRIPTED)
    if (body[key]) refuse(`'${key}' is not scripted by this server.`, key, "unsupported_parameter");
  if (body.n !== undefined && body.n !== null && body.n !== 1)
    refuse("'n' other than 1 is not scripted by this server.", "n", "unsupported_value");
  if (body.messages === undefined) missing("messages");
  wants(body.messages, Array.isArray(body.messages), "messages", "an array of objects");
  if (!body.messages.length)
    refuse(
      "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array instead.",
      "messages",
      "empty_array",
    );
  const messages = readMessages(body.messages);
  const offered = body.tools === undefined || body.tools === null ? [] : readTools(body.tools);
  const choice = readChoice(body.tool_choice, offered);
  for (const key of ["parallel_tool_calls", "stream", "store"])
    if (body[key] !== undefined && body[key] !== null)
      wants(body[key], typeof body[key] === "boolean", key, "a boolean");
  if (body.parallel_tool_calls !== undefined && !offered.length)
    refuse(
      "Invalid value for 'parallel_tool_calls': 'parallel_tool_calls' is only allowed when 'tools' are specified.",
      "parallel_tool_calls",
    );
  within(body, "temperature", 0, 2);
  within(body, "top_p", 0, 1);
  within(body, "presence_penalty", -2, 2);
  within(body, "frequency_penalty", -2, 2);
  within(body, "max_tokens", 1, Infinity, true);
  within(body, "max_completion_tokens", 1, Infinity, true);
  if (body.max_tokens != null && body.max_completion_tokens != null)
    refuse(
      "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.",
      "max_tokens",
      "invalid_parameter_combination",
    );
  const stops = [].concat(body.stop ?? []);
  if (stops.length > STOPS_MAX)
    refuse(
      `Invalid 'stop': array too long. Expected an array with maximum length ${STOPS_MAX}, but got an array with length ${stops.length} instead.`,
      "stop",
      "array_above_max_length",
    );
  for (const stop of stops) wants(stop, typeof stop === "string", "stop", "a string");
  if (body.stream_options != null && !body.stream)
    refuse("The 'stream_options' parameter is only allowed when 'stream' is enabled.", "stream_options");
  checkFormat(body.response_format, body);
  return {
    model: body.model,
    hash: hash(JSON.stringify([body.model, body.messages])),
    stream: body.stream === true,
    withUsage: body.stream_options?.include_usage === true,
    obfuscated: body.stream_options?.include_obfuscation !== false,
    prompt: promptTokens(body),
    system: messages
      .filter((one) => one.role === "system")
      .map((one) => one.text)
      .join("\n"),
    messages: messages.filter((one) => one.role !== "system"),
    offered,
    choice,
    parallel: body.parallel_tool_calls !== false,
    thinks: "may", // its thoughts are not shown, only counted
    limits: { max: body.max_completion_tokens ?? body.max_tokens ?? undefined, stops },
  };
}

// ---- answers -----------------------------------------------------------------------------------------------------

// The tokens of the request, and those that an earlier request had too: all up to the last answer.
function promptTokens(body) {
  const count = (value) => (value === undefined ? 0 : tokens(JSON.stringify(value)));
  const lastAnswer = body.messages.findLastIndex((one) => one.role === "assistant");
  const all = count(body.tools) + count(body.messages);
  const before = lastAnswer < 0 ? 0 : count(body.tools) + count(body.messages.slice(0, lastAnswer + 1));
  const cached = Math.floor(before / CACHE_STEP) * CACHE_STEP;
  return { all, cached: cached >= CACHE_MIN ? cached : 0 };
}

function usageOf(request, answer) {
  const sum = (texts) => texts.reduce((total, text) => total + tokens(text ?? ""), 0);
  const reasoning = sum(answer.think.map((part) => part.text));
  const completion =
    reasoning + sum([answer.text, answer.refuse]) + sum(answer.calls.map((call) => call.name + call.json));
  return {
    prompt_tokens: request.prompt.all,
    completion_tokens: completion,
    total_tokens: request.prompt.all + completion,
    prompt_tokens_details: { cached_tokens: request.prompt.cached, audio_tokens: 0 },
    completion_tokens_details: {
      reasoning_tokens: reasoning,
      audio_tokens: 0,
      accepted_prediction_tokens: 0,
      rejected_prediction_tokens: 0,
    },
  };
}

const REASONS = { tool: "tool_calls", length: "length", context: "length", filter: "content_filter" };
const reason = (answer) => REASONS[answer.finish] ?? "stop";
const callId = (request, index) => `call_${hash(`${request.hash}/${index}`).slice(0, 24)}`;

const common = (request, object) => ({
  id: `chatcmpl-${request.hash.slice(0, 29)}`,
  object,
  created: CREATED,
  model: request.model,
  service_tier: "default",
  system_fingerprint: "fp_scripted",
});

export function answer(request, answer) {
  const calls = answer.calls.map((call, index) => ({
    id: callId(request, index),
    type: "function",
    function: { name: call.name, arguments: call.json },
  }));
  return {
    ...common(request, "chat.completion"),
    choices: [
      {
        index: 0,
        message: {
          role: "assistant",
          content: answer.text || (calls.length || answer.refuse ? null : ""),
          refusal: answer.refuse,
          annotations: [],
          ...(calls.length ? { tool_calls: calls } : {}),
        },
        logprobs: null,
        finish_reason: reason(answer),
      },
    ],
    usage: usageOf(request, answer),
  };
}

// The answer as server-sent events: {text, piece, last}; a piece has some of the answer in it.
export function* frames(request, answer, size) {
  const event = (choices, rest = {}) => {
    const filler = request.obfuscated && choices.length ? { obfuscation: padding(choices) } : {};
    const chunk = {
      ...common(request, "chat.completion.chunk"),
      choices,
      ...(request.withUsage ? { usage: null } : {}),
      ...rest,
      ...filler,
    };
    return `data: ${JSON.stringify(chunk)}\n\n`;
  };
  const delta = (value, finish = null) => event([{ index: 0, delta: value, logprobs: null, finish_reason: finish }]);
  const toolDelta = (value) => ({ tool_calls: [value] });
  yield {
    text: delta({ role: "assistant", content: answer.calls.length && !answer.text ? null : "", refusal: null }),
    piece: false,
  };
  for (const part of pieces(answer.text, size)) yield { text: delta({ content: part }), piece: true };
  for (const part of pieces(answer.refuse ?? "", size)) yield { text: delta({ refusal: part }), piece: true };
  for (const [index, call] of answer.calls.entries()) {
    const opened = {
      index,
      id: callId(request, index),
      type: "function",
      function: { name: call.name, arguments: "" },
    };
    yield { text: delta(toolDelta(opened)), piece: true };
    for (const part of pieces(call.json, size))
      yield { text: delta(toolDelta({ index, function: { arguments: part } })), piece: true };
  }
  yield { text: delta({}, reason(answer)), piece: false };
  if (request.withUsage) yield { text: event([], { usage: usageOf(request, answer) }), piece: false };
  yield { text: "data: [DONE]\n\n", piece: false, last: true };
}

// Letters that make all chunks equally long, as the provider does to hide the lengths of its tokens.
function padding(choices) {
  const size = characters(JSON.stringify(choices)).length;
  return "abcdefghijklmnop".slice(0, 16 - (size % 16));
}

export const models = (names) => ({
  object: "list",
  data: names.map((id) => model(id)),
});
export const model = (id) => ({ id, object: "model", created: CREATED, owned_by: "scripted" });

export const headers = (requestId, { limited = false } = {}) => ({
  "x-request-id": requestId,
  "openai-version": "2020-10-01",
  "openai-processing-ms": "1",
  "x-ratelimit-limit-requests": "10000",
  "x-ratelimit-limit-tokens": "2000000",
  "x-ratelimit-remaining-requests": limited ? "0" : "9999",
  "x-ratelimit-remaining-tokens": limited ? "0" : "1999999",
  "x-ratelimit-reset-requests": "6ms",
  "x-ratelimit-reset-tokens": "0s",
});
