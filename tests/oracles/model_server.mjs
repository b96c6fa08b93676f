// The official SDKs of OpenAI and Anthropic as clients of examples/model-server. Prints `ok NAME` or `not ok NAME` for each test.
// node model_server.mjs MODULES URL JOURNAL: the folder with the SDKs, the URL of the server, and the file of its requests.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const [modules, url, journal] = process.argv.slice(2);
const require = createRequire(join(modules, "package.json"));
const OpenAI = require("openai").default;
const Anthropic = require("@anthropic-ai/sdk").default;
const openai = (rest = {}) => new OpenAI({ apiKey: "k", baseURL: `${url}/v1`, maxRetries: 0, ...rest });
const anthropic = (rest = {}) => new Anthropic({ apiKey: "k", baseURL: url, maxRetries: 0, ...rest });

const TESTS = [];
const test = (name, run) => TESTS.push({ name, run });
const user = (content) => [{ role: "user", content }];
const SCHEMA = { type: "object", properties: {}, additionalProperties: true };
const functions = (...names) => names.map((name) => ({ type: "function", function: { name, parameters: SCHEMA } }));
const tools = (...names) => names.map((name) => ({ name, input_schema: SCHEMA }));
const journaled = (words) =>
  readFileSync(journal, "utf8")
    .split("\n")
    .filter((line) => line.includes(words));
async function collect(stream) {
  const all = [];
  for await (const one of stream) all.push(one);
  return all;
}

// The results of the tools of the research scenario.
const RESULTS = {
  fs__list_directory: () => "[FILE] notes.txt\n[DIR] old",
  memory__search_nodes: () => '{"entities":[],"relations":[]}',
  fs__read_text_file: ({ path }) => `the contents of ${path}`,
  memory__create_entities: () => '[{"name":"finding"}]',
  fs__write_file: ({ path }) => `Successfully wrote to ${path}`,
};
const NAMES = Object.keys(RESULTS);
const RESEARCH = "Research the folder /data/in.";

for (const streamed of [false, true]) {
  const how = streamed ? "streamed" : "not streamed";

  test(`openai: a loop over tools, two calls at once, ${how}`, async () => {
    const messages = user(RESEARCH);
    const made = [];
    for (;;) {
      const params = { model: "research", messages, tools: functions(...NAMES) };
      const answer = streamed
        ? await openai()
            .chat.completions.stream({ ...params, stream_options: { include_usage: true } })
            .finalChatCompletion()
        : await openai().chat.completions.create(params);
      const [choice] = answer.choices;
      assert.ok(answer.usage.total_tokens > 0 && answer.usage.completion_tokens > 0);
      messages.push(choice.message);
      if (choice.finish_reason === "stop") break;
      assert.equal(choice.finish_reason, "tool_calls");
      made.push(choice.message.tool_calls.map((call) => call.function.name));
      for (const call of choice.message.tool_calls) {
        const content = RESULTS[call.function.name](JSON.parse(call.function.arguments));
        messages.push({ role: "tool", tool_call_id: call.id, content });
      }
    }
    assert.deepEqual(made, [
      ["fs__list_directory", "memory__search_nodes"],
      ["fs__read_text_file"],
      ["memory__create_entities"],
      ["fs__write_file"],
    ]);
    assert.equal(messages.at(-1).content, "The report is written.");
    const [entities] = messages.filter((one) => one.role === "assistant")[2].tool_calls;
    assert.match(entities.function.arguments, /the contents of \/data\/in\/notes\.txt/);
  });

  test(`anthropic: a loop over tools with thinking, two calls at once, ${how}`, async () => {
    const messages = user(RESEARCH);
    const kinds = [];
    for (;;) {
      const params = {
        model: "research",
        max_tokens: 4000,
        thinking: { type: "enabled", budget_tokens: 1024 },
        messages,
        tools: tools(...NAMES),
      };
      const answer = streamed
        ? await anthropic().messages.stream(params).finalMessage()
        : await anthropic().messages.create(params);
      messages.push({ role: "assistant", content: answer.content });
      kinds.push(answer.content.map((block) => block.type).join(" "));
      assert.ok(answer.usage.input_tokens > 0 && answer.usage.output_tokens > 0);
      if (answer.stop_reason === "end_turn") break;
      assert.equal(answer.stop_reason, "tool_use");
      const results = answer.content
        .filter((block) => block.type === "tool_use")
        .map((block) => ({ type: "tool_result", tool_use_id: block.id, content: RESULTS[block.name](block.input) }));
      messages.push({ role: "user", content: results });
    }
    assert.deepEqual(kinds, [
      "thinking text tool_use tool_use",
      "thinking tool_use",
      "thinking redacted_thinking tool_use",
      "thinking tool_use",
      "text",
    ]);
  });
}

test("both: the streamed answer equals the complete answer", async () => {
  const chat = { model: "research", messages: user(RESEARCH), tools: functions(...NAMES) };
  const whole = await openai().chat.completions.create(chat);
  const streamed = await openai().chat.completions.stream(chat).finalChatCompletion();
  assert.equal(streamed.id, whole.id);
  assert.equal(streamed.choices[0].message.content, whole.choices[0].message.content);
  const calls = (answer) =>
    answer.choices[0].message.tool_calls.map(({ id, function: f }) => [id, f.name, f.arguments]);
  assert.deepEqual(calls(streamed), calls(whole));
  const params = {
    model: "research",
    max_tokens: 2000,
    messages: user(RESEARCH),
    tools: tools(...NAMES),
    thinking: { type: "adaptive" },
  };
  const message = await anthropic().messages.create(params);
  const collected = await anthropic().messages.stream(params).finalMessage();
  const plain = (value) => JSON.parse(JSON.stringify({ ...value, usage: value.usage.output_tokens }));
  delete collected.parsed_output;
  assert.deepEqual(plain(collected), plain(message));
});

test("openai: chunks have the documented order, and usage is last", async () => {
  const params = { model: "instant", messages: user("2 turns"), tools: functions("echo"), stream: true };
  const chunks = await collect(
    await openai().chat.completions.create({ ...params, stream_options: { include_usage: true } }),
  );
  assert.equal(chunks[0].choices[0].delta.role, "assistant");
  assert.deepEqual(chunks.at(-1).choices, []);
  assert.ok(chunks.at(-1).usage.prompt_tokens_details.cached_tokens >= 0);
  assert.ok(chunks.slice(0, -1).every((chunk) => chunk.usage === null && chunk.choices.length === 1));
  assert.equal(chunks.at(-2).choices[0].finish_reason, "tool_calls");
  const calls = chunks.flatMap((chunk) => chunk.choices[0]?.delta.tool_calls ?? []);
  assert.ok(calls[0].id && calls[0].function.name === "echo" && calls.slice(1).every((call) => call.id === undefined));
  assert.equal(calls.map((call) => call.function.arguments).join(""), '{"n":1}');
  const without = await collect(await openai().chat.completions.create({ ...params }));
  assert.ok(without.every((chunk) => chunk.usage === undefined && chunk.choices.length === 1));
});

test("anthropic: events have the documented order", async () => {
  const params = { model: "instant", max_tokens: 99, messages: user("2 turns"), tools: tools("echo"), stream: true };
  const events = await collect(await anthropic().messages.create(params));
  const types = events.map((event) => event.type).filter((type, index, all) => type !== all[index - 1]);
  assert.deepEqual(types, [
    "message_start",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "message_stop",
  ]);
  assert.equal(events[0].message.stop_reason, null);
  const { response } = await anthropic().messages.create(params).withResponse();
  assert.match(await response.text(), /\nevent: ping\ndata: {"type":"ping"}\n\n/);
});

test("openai: a refusal is returned as refusal", async () => {
  const params = { model: "structured", messages: user("refuse this") };
  const whole = await openai().chat.completions.create(params);
  assert.equal(whole.choices[0].message.refusal, "I do not talk about that.");
  assert.equal(whole.choices[0].message.content, null);
  const streamed = await openai().chat.completions.stream(params).finalChatCompletion();
  assert.equal(streamed.choices[0].message.refusal, "I do not talk about that.");
});

test("anthropic: a refusal is returned as stop reason", async () => {
  const params = { model: "structured", max_tokens: 99, messages: user("refuse this") };
  for (const answer of [
    await anthropic().messages.create(params),
    await anthropic().messages.stream(params).finalMessage(),
  ]) {
    assert.equal(answer.stop_reason, "refusal");
    assert.equal(answer.stop_details.explanation, "I do not talk about that.");
  }
});

const FORMAT = {
  type: "object",
  properties: { city: { type: "string" }, degrees: { type: "integer" } },
  required: ["city", "degrees"],
  additionalProperties: false,
};

test("openai: structured output is parsed, and repaired after one turn", async () => {
  const response_format = { type: "json_schema", json_schema: { name: "weather", strict: true, schema: FORMAT } };
  const parse = (messages) => openai().chat.completions.parse({ model: "structured", messages, response_format });
  const good = await parse(user("at once"));
  assert.deepEqual(good.choices[0].message.parsed, { city: "Oslo", degrees: 21 });
  const messages = user("The weather?");
  const bad = await openai().chat.completions.create({ model: "structured", messages, response_format });
  assert.throws(() => JSON.parse(bad.choices[0].message.content));
  messages.push(bad.choices[0].message, ...user("That is no JSON."));
  assert.deepEqual((await parse(messages)).choices[0].message.parsed, { city: "Oslo", degrees: 21 });
});

test("anthropic: structured output is parsed", async () => {
  const output_config = { format: { type: "json_schema", schema: FORMAT } };
  const answer = await anthropic().messages.create({
    model: "structured",
    max_tokens: 99,
    messages: user("at once"),
    output_config,
  });
  assert.deepEqual(JSON.parse(answer.content[0].text), { city: "Oslo", degrees: 21 });
});

test("both: token limits and stop sequences end an answer", async () => {
  const cut = await openai().chat.completions.create({
    model: "storm",
    messages: user("slow"),
    max_completion_tokens: 2,
  });
  assert.equal(cut.choices[0].finish_reason, "length");
  assert.equal(cut.choices[0].message.content, "I am not");
  assert.equal(cut.usage.completion_tokens, 2);
  const stopped = await openai().chat.completions.create({ model: "storm", messages: user("slow"), stop: ["quick"] });
  assert.equal(stopped.choices[0].message.content, "I am not the ");
  const params = { model: "storm", max_tokens: 99, messages: user("slow") };
  const message = await anthropic().messages.create({ ...params, max_tokens: 2 });
  assert.equal(message.stop_reason, "max_tokens");
  const short = await anthropic().messages.create({ ...params, stop_sequences: ["zz", "quick"] });
  assert.equal(short.stop_reason, "stop_sequence");
  assert.equal(short.stop_sequence, "quick");
});

test("both: the token limit can end an answer within the arguments of a call", async () => {
  const chat = { model: "storm", messages: user("broken call"), tools: functions("do") };
  const [choice] = (await openai().chat.completions.create(chat)).choices;
  assert.equal(choice.finish_reason, "length");
  assert.equal(choice.message.tool_calls[0].function.arguments, '{"words":"th');
  const params = { model: "storm", max_tokens: 99, messages: user("broken call"), tools: tools("do"), stream: true };
  const events = await collect(await anthropic().messages.create(params));
  const json = events.flatMap((event) => event.delta?.partial_json ?? []).join("");
  assert.equal(json, '{"words":"th');
  assert.equal(events.at(-2).delta.stop_reason, "max_tokens");
});

test("both: parallel calls and all calls can be disabled", async () => {
  const chat = { model: "research", messages: user(RESEARCH), tools: functions(...NAMES) };
  const one = await openai().chat.completions.create({ ...chat, parallel_tool_calls: false });
  assert.equal(one.choices[0].message.tool_calls.length, 1);
  const none = await openai().chat.completions.create({ ...chat, tool_choice: "none" });
  assert.equal(none.choices[0].message.tool_calls, undefined);
  const params = { model: "research", max_tokens: 99, messages: user(RESEARCH), tools: tools(...NAMES) };
  const forced = { type: "tool", name: "memory__search_nodes" };
  const message = await anthropic().messages.create({ ...params, tool_choice: forced });
  assert.deepEqual(
    message.content.filter((block) => block.type === "tool_use").map((block) => block.name),
    [forced.name],
  );
});

test("openai: errors have the error classes of the SDK", async () => {
  const ask = (content, client = openai()) =>
    client.chat.completions.create({ model: "storm", messages: user(content) });
  await assert.rejects(ask("rate limit 1"), (error) => {
    assert.ok(error instanceof OpenAI.RateLimitError);
    assert.equal(error.headers.get("retry-after"), "1");
    assert.ok(error.requestID && error.code === "rate_limit_exceeded" && error.type === "requests");
    return true;
  });
  await assert.rejects(ask("internal error 1"), OpenAI.InternalServerError);
  await assert.rejects(ask("hang up 1"), OpenAI.APIConnectionError);
  await assert.rejects(ask("silent 1", openai({ timeout: 200 })), OpenAI.APIConnectionTimeoutError);
  await assert.rejects(ask("cut 1"), /terminated|Connection error|Premature|aborted/i);
  const unknown = openai().chat.completions.create({ model: "gpt", messages: user("x") });
  await assert.rejects(unknown, (error) => error instanceof OpenAI.NotFoundError && error.code === "model_not_found");
  const wrong = openai().chat.completions.create({ model: "storm", messages: [] });
  await assert.rejects(wrong, (error) => error instanceof OpenAI.BadRequestError && error.param === "messages");
});

test("anthropic: errors have the error classes of the SDK", async () => {
  const ask = (content, client = anthropic(), rest = {}) =>
    client.messages.create({ model: "storm", max_tokens: 99, messages: user(content), ...rest });
  await assert.rejects(ask("rate limit 2"), (error) => {
    assert.ok(error instanceof Anthropic.RateLimitError);
    assert.equal(error.headers.get("retry-after"), "1");
    assert.equal(error.type, "rate_limit_error");
    assert.equal(error.requestID, error.error.request_id);
    return true;
  });
  await assert.rejects(
    ask("overloaded 2"),
    (error) => error instanceof Anthropic.InternalServerError && error.status === 529,
  );
  await assert.rejects(ask("hang up 2"), Anthropic.APIConnectionError);
  await assert.rejects(ask("silent 2", anthropic({ timeout: 200 })), Anthropic.APIConnectionTimeoutError);
  const unknown = anthropic().messages.create({ model: "claude", max_tokens: 9, messages: user("x") });
  await assert.rejects(
    unknown,
    (error) => error instanceof Anthropic.NotFoundError && error.type === "not_found_error",
  );
  await assert.rejects(ask("x", anthropic(), { max_tokens: 0 }), Anthropic.BadRequestError);
});

test("both: an error event within a stream raises an error of the SDK", async () => {
  const chat = await openai().chat.completions.create({
    model: "storm",
    messages: user("error event 1"),
    stream: true,
  });
  await assert.rejects(collect(chat), OpenAI.APIError);
  const params = { model: "storm", max_tokens: 99, messages: user("error event 2"), stream: true };
  const stream = await anthropic().messages.create(params);
  await assert.rejects(
    collect(stream),
    (error) => error instanceof Anthropic.APIError && error.type === "overloaded_error",
  );
});

test("both: a truncated or invalid stream is not accepted as an answer", async () => {
  for (const words of ["cut", "garbage"]) {
    const chat = openai().chat.completions.stream({ model: "storm", messages: user(`${words} 3`) });
    await assert.rejects(chat.finalChatCompletion());
    const retried = await openai()
      .chat.completions.stream({ model: "storm", messages: user(`${words} 3`) })
      .finalChatCompletion();
    assert.match(retried.choices[0].message.content, /^This time/);
    const params = { model: "storm", max_tokens: 99, messages: user(`${words} 4`) };
    await assert.rejects(anthropic().messages.stream(params).finalMessage());
    assert.match((await anthropic().messages.stream(params).finalMessage()).content[0].text, /^This time/);
  }
});

test("both: the SDKs retry after the time in Retry-After", async () => {
  const began = performance.now();
  const chat = await openai({ maxRetries: 1 }).chat.completions.create({
    model: "storm",
    messages: user("rate limit 5"),
  });
  assert.equal(chat.choices[0].message.content, "Now there is room.");
  assert.ok(performance.now() - began >= 1000);
  const again = performance.now();
  const params = { model: "storm", max_tokens: 99, messages: user("rate limit 6") };
  const message = await anthropic({ maxRetries: 1 }).messages.create(params);
  assert.equal(message.content[0].text, "Now there is room.");
  assert.ok(performance.now() - again >= 1000);
  const counts = journaled('"fail 429"').map((line) => JSON.parse(line).headers["x-stainless-retry-count"]);
  assert.ok(counts.length >= 2, "the journal counts who was told to wait");
});

test("both: a client that disconnects within a stream does not affect the server", async () => {
  const chat = await openai().chat.completions.create({ model: "storm", messages: user("slow"), stream: true });
  for await (const chunk of chat) if (chunk.choices[0].delta.content) chat.controller.abort();
  const stream = anthropic().messages.stream({ model: "storm", max_tokens: 99, messages: user("slow") });
  stream.on("text", () => stream.abort());
  await assert.rejects(stream.finalMessage(), Anthropic.APIUserAbortError);
  assert.equal((await openai().models.retrieve("storm")).id, "storm");
});

test("both: models are listed", async () => {
  const names = (await collect(openai().models.list())).map((model) => model.id);
  assert.ok(names.includes("research") && names.includes("instant"));
  assert.deepEqual(
    (await collect(anthropic().models.list())).map((model) => model.id),
    names,
  );
  assert.equal((await anthropic().models.retrieve("storm")).type, "model");
  await assert.rejects(openai().models.retrieve("nobody"), OpenAI.NotFoundError);
});

test("anthropic: thinking blocks must be returned unchanged", async () => {
  const model = "research";
  const thinking = { type: "enabled", budget_tokens: 1024 };
  const params = { model, max_tokens: 4000, thinking, tools: tools(...NAMES) };
  const messages = user(RESEARCH);
  const answers = [];
  for (let turn = 0; turn < 3; turn++) {
    const answer = await anthropic().messages.create({ ...params, messages });
    answers.push(answer);
    const uses = answer.content.filter((block) => block.type === "tool_use");
    const results = uses.map((block) => ({
      type: "tool_result",
      tool_use_id: block.id,
      content: RESULTS[block.name](block.input),
    }));
    messages.push({ role: "assistant", content: answer.content }, { role: "user", content: results });
  }
  const refused = (change, words) => {
    const copy = structuredClone(messages);
    change(copy);
    return assert.rejects(anthropic().messages.create({ ...params, messages: copy }), (error) => {
      assert.ok(error instanceof Anthropic.BadRequestError);
      assert.match(error.message, words);
      return true;
    });
  };
  const invalid = /Invalid `signature` in `thinking` block/;
  await refused((m) => (m[1].content[0].thinking += "!"), invalid);
  await refused((m) => (m[1].content[0].signature = "AAAA"), invalid);
  await refused((m) => m[5].content.splice(1, 1), invalid); // without the redacted block
  await refused((m) => (m[5].content[1].data = "AAAA"), /Invalid `data` in `redacted_thinking` block/);
  await refused((m) => m[5].content.splice(0, 2), /Expected `thinking` or `redacted_thinking`, but found `tool_use`/);
  await anthropic().messages.create({ ...params, messages });
});

test("anthropic: the text before an earlier breakpoint is read from the cache", async () => {
  const system = [{ type: "text", text: "Long words. ".repeat(200), cache_control: { type: "ephemeral" } }];
  const ask = (messages) => anthropic().messages.create({ model: "storm", max_tokens: 99, system, messages });
  const first = (await ask(user("slow"))).usage;
  assert.ok(first.cache_creation_input_tokens > 500 && first.cache_read_input_tokens === 0);
  const later = (await ask([...user("slow"), { role: "assistant", content: "Yes." }, ...user("slow")])).usage;
  assert.ok(later.cache_read_input_tokens > 500 && later.cache_creation_input_tokens === 0);
});

let failed = 0;
for (const { name, run } of TESTS) {
  try {
    await run();
    console.log(`ok model_server/${name}`);
  } catch (error) {
    failed++;
    console.log(`not ok model_server/${name}`);
    console.log(`    ${error.stack.replaceAll("\n", "\n    ")}`);
  }
}
process.exit(failed ? 1 : 0);
