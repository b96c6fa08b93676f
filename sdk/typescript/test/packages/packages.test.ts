// The clients and frameworks that people use, inside of an agent, against a local stub of two providers. Each job is
// run to its end, then again from its log: the same end, no further request, and nothing is sent again.
import { after, before, test } from "node:test";
import assert from "node:assert/strict";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import OpenAI from "openai";
import Anthropic from "@anthropic-ai/sdk";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, isStepCount, streamText, tool as aiTool, wrapLanguageModel } from "ai";
import { ChatOpenAI } from "@langchain/openai";
import { Annotation, Command, END, interrupt, MemorySaver, START, StateGraph } from "@langchain/langgraph";
import { Agent as OpenAIAgent, OpenAIChatCompletionsModel, Runner, tool as agentTool } from "@openai/agents";
import { z } from "zod";
import { agent, fetchAs, type Ctx } from "../../src/index.ts";
import * as testing from "../../src/testing.ts";
import { durable, durableTools } from "../../src/wrap/ai_sdk.ts";
import { durableRun } from "../../src/wrap/langgraph.ts";
import { durableAgentRun } from "../../src/wrap/openai_agents.ts";
import { TestJob } from "../support/harness.ts";

let server: Server;
let url = "";
let refusals: number[] = []; // the statuses of the next answers
let sent: { path: string; body: Record<string, unknown> }[] = [];

interface ChatMessage {
  role: string;
  content: unknown;
}

// A model that calls a tool once if it is given one, else answers with the last message in capitals.
function chatAnswer(body: Record<string, unknown>): Record<string, unknown> {
  const messages = body["messages"] as ChatMessage[];
  const last = messages.at(-1) as ChatMessage;
  const tools = body["tools"] as { function: { name: string } }[] | undefined;
  const isToolCall = tools !== undefined && last.role === "user";
  const message = isToolCall
    ? {
        role: "assistant",
        content: null,
        tool_calls: [
          { id: "call-1", type: "function", function: { name: tools[0]?.function.name, arguments: '{"city":"Oslo"}' } },
        ],
      }
    : { role: "assistant", content: `${last.role}: ${JSON.stringify(last.content).toUpperCase()}` };
  return {
    id: "chat-1",
    object: "chat.completion",
    created: 1,
    model: "small",
    choices: [{ index: 0, message, finish_reason: isToolCall ? "tool_calls" : "stop" }],
    usage: { prompt_tokens: 3, completion_tokens: 5, total_tokens: 8 },
  };
}

function chatStream(text: string): string {
  const chunk = (delta: object, finish: string | null): string =>
    `data: ${JSON.stringify({ id: "chat-1", object: "chat.completion.chunk", created: 1, model: "small", choices: [{ index: 0, delta, finish_reason: finish }] })}\n\n`;
  return [
    chunk({ role: "assistant", content: "" }, null),
    ...[...text].map((letter) => chunk({ content: letter }, null)),
    chunk({}, "stop"),
    "data: [DONE]\n\n",
  ].join("");
}

before(async () => {
  server = createServer((request, response) => {
    const chunks: Buffer[] = [];
    request.on("data", (chunk: Buffer) => chunks.push(chunk));
    request.on("end", () => {
      const body = JSON.parse(Buffer.concat(chunks).toString() || "{}") as Record<string, unknown>;
      sent.push({ path: String(request.url), body });
      if (refusals.length > 0) {
        response.writeHead(refusals.shift() as number, { "content-type": "application/json", "retry-after": "1" });
        return response.end(JSON.stringify({ error: { message: "busy", type: "busy" } }));
      }
      if (request.url?.endsWith("/messages")) {
        response.writeHead(200, { "content-type": "application/json" });
        response.end(
          JSON.stringify({
            id: "msg-1",
            type: "message",
            role: "assistant",
            model: "claude",
            content: [{ type: "text", text: "hello from claude" }],
            stop_reason: "end_turn",
            stop_sequence: null,
            usage: { input_tokens: 1, output_tokens: 2 },
          }),
        );
      } else if (body["stream"] === true) {
        response.writeHead(200, { "content-type": "text/event-stream" });
        response.end(chatStream("a stream of letters"));
      } else {
        response.writeHead(200, { "content-type": "application/json" });
        response.end(JSON.stringify(chatAnswer(body)));
      }
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`;
});
after(() => {
  server.closeAllConnections();
  server.close();
});

/** Runs the agent to its end, answers waits, and replays it. */
async function proves(fn: (ctx: Ctx) => Promise<unknown>, answers: Record<string, unknown> = {}): Promise<TestJob> {
  sent = [];
  const job = new TestJob(fn, { other_work_ms: 10_000 });
  for (const end = Date.now() + 20_000; job.engine.end === undefined && !job.host.diverged && Date.now() < end;) {
    await job.run();
    for (const { position } of job.engine.open()) {
      if (position in answers) job.engine.succeed(position, answers[position] as never);
    }
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  const { result } = job;
  assert.equal(job.engine.end?.exception, undefined, JSON.stringify(job.engine.end));
  const log = JSON.stringify(job.engine.record());
  const count = sent.length;
  job.engine.end = undefined;
  job.restart();
  for (const end = Date.now() + 20_000; job.engine.end === undefined && !job.host.diverged && Date.now() < end;) {
    await job.run();
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  assert.deepEqual(job.result, result, JSON.stringify(job.host.diverged));
  assert.equal(JSON.stringify(job.engine.record()), log);
  assert.equal(sent.length, count, "nothing is sent again");
  job.routine.drop("test");
  return job;
}

test("openai: complete answers, in parallel, and a stream", async () => {
  const job = await proves(async (ctx) => {
    const client = new OpenAI({ apiKey: "sk-secret", baseURL: url, fetch: fetchAs(ctx, "read"), maxRetries: 0 });
    const say = async (content: string): Promise<string | null | undefined> =>
      (await client.chat.completions.create({ model: "small", messages: [{ role: "user", content }] })).choices[0]
        ?.message.content;
    const answers = await Promise.all([say("one"), say("two")]);
    let text = "";
    for await (const chunk of await client.chat.completions.create({
      model: "small",
      stream: true,
      messages: [{ role: "user", content: "x" }],
    })) {
      text += chunk.choices[0]?.delta.content ?? "";
    }
    return [...answers, text];
  });
  assert.deepEqual(job.result, ['user: "ONE"', 'user: "TWO"', "a stream of letters"]);
  assert.equal(sent.length, 3);
  assert.ok([...job.engine.log.values()].every(({ tool }) => tool === "run:read"));
  assert.ok(!JSON.stringify([...job.engine.log.values()]).includes("sk-secret"));
});

test("anthropic: an answer", async () => {
  const job = await proves(async (ctx) => {
    const client = new Anthropic({
      apiKey: "secret",
      baseURL: url.replace("/v1", ""),
      fetch: fetchAs(ctx, "read"),
      maxRetries: 0,
    });
    const message = await client.messages.create({
      model: "claude",
      max_tokens: 10,
      messages: [{ role: "user", content: "hi" }],
    });
    return message.content[0]?.type === "text" ? message.content[0].text : null;
  });
  assert.equal(job.result, "hello from claude");
  // The header that a provider's version is in is recorded, the key is not.
  const headers = [...job.engine.log.values()][0]?.arguments?.["headers"] as Record<string, unknown>;
  assert.match(String(headers["anthropic-version"]), /^\d{4}-\d\d-\d\d$/);
  assert.equal(headers["x-api-key"], undefined);
});

test("ai sdk: text, tools and a stream", async () => {
  let executed = 0;
  const job = await proves(async (ctx) => {
    const provider = createOpenAICompatible({ name: "stub", baseURL: url });
    const model = wrapLanguageModel({ model: provider("small"), middleware: durable(ctx) });
    const tools = durableTools(
      ctx,
      {
        weather: aiTool({
          description: "the weather",
          inputSchema: z.object({ city: z.string() }),
          execute: ({ city }) => {
            executed++;
            return `sun in ${city}`;
          },
        }),
      },
      { weather: "read" },
    );
    const { text } = await generateText({
      model,
      prompt: "the weather?",
      tools,
      stopWhen: isStepCount(3),
      maxRetries: 0,
    });
    const stream = streamText({ model, prompt: "x", maxRetries: 0 });
    return [text, await stream.text];
  });
  assert.match(String((job.result as string[])[0]), /TOOL: .*SUN IN OSLO/i);
  assert.equal((job.result as string[])[1], "a stream of letters");
  assert.equal(executed, 1);
  assert.deepEqual([...job.engine.log.keys()], ["model:small", "weather", "model:small#2", "model:small#3"]);
});

test("a provider that refuses for now is called again by the engine, whatever the client", async () => {
  const clients: Record<string, (ctx: Ctx) => Promise<unknown>> = {
    openai: (ctx) =>
      new OpenAI({ apiKey: "k", baseURL: url, fetch: fetchAs(ctx, "read"), maxRetries: 0 }).chat.completions
        .create({ model: "small", messages: [{ role: "user", content: "hi" }] })
        .then(({ choices }) => choices[0]?.message.content),
    ai: (ctx) => {
      const provider = createOpenAICompatible({ name: "stub", baseURL: url });
      const model = wrapLanguageModel({ model: provider("small"), middleware: durable(ctx) });
      return generateText({ model, prompt: "hi", maxRetries: 0 }).then(({ text }) => text);
    },
  };
  for (const [name, fn] of Object.entries(clients)) {
    refusals = [429, 503];
    const job = await proves(fn);
    assert.match(String(job.result), /HI/, name);
    assert.deepEqual([sent.length, job.failures.map(({ code }) => code)], [3, ["http_429", "http_503"]], name);
  }
});

test("langgraph: a graph with a model and an interrupt", async () => {
  const job = await proves(
    async (ctx) => {
      const model = new ChatOpenAI({
        model: "small",
        apiKey: "x",
        maxRetries: 0,
        useResponsesApi: false,
        configuration: { baseURL: url, fetch: fetchAs(ctx, "read") as typeof fetch },
      });
      const State = Annotation.Root({ draft: Annotation<string>, answer: Annotation<string> });
      const graph = new StateGraph(State)
        .addNode("write", async () => ({ draft: String((await model.invoke("write")).content) }))
        .addNode("review", async ({ draft }) => ({ answer: interrupt(`is this right? ${draft}`) as string }))
        .addEdge(START, "write")
        .addEdge("write", "review")
        .addEdge("review", END)
        .compile({ checkpointer: new MemorySaver() });
      const { draft, answer } = await durableRun<{ draft: string; answer: string }>(
        ctx,
        graph,
        {},
        { command: (resume) => new Command({ resume }) },
      );
      return [draft, answer];
    },
    { interrupt: "yes" },
  );
  assert.deepEqual(job.result, ['user: "WRITE"', "yes"]);
  assert.equal(job.engine.at("interrupt").wait?.question, 'is this right? user: "WRITE"');
});

test("openai agents: a tool that needs an approval", async () => {
  let executed = 0;
  const job = await proves(
    async (ctx) => {
      const client = new OpenAI({ apiKey: "x", baseURL: url, fetch: fetchAs(ctx, "read"), maxRetries: 0 });
      const weather = agentTool({
        name: "weather",
        description: "the weather",
        parameters: z.object({ city: z.string() }),
        needsApproval: true,
        execute: ({ city }) =>
          ctx.run("weather", "read", { city }, (args) => {
            executed++;
            return `sun in ${args.city}`;
          }),
      });
      const agent = new OpenAIAgent({
        name: "forecaster",
        instructions: "be brief",
        model: new OpenAIChatCompletionsModel(client as never, "small"),
        tools: [weather],
      });
      const runner = new Runner({ tracingDisabled: true });
      const result = await durableAgentRun(ctx, (...args) => runner.run(...args), agent, "the weather?");
      return result.finalOutput as string;
    },
    { approval: { by: "ada" } },
  );
  assert.match(String(job.result), /SUN IN OSLO/);
  assert.equal(executed, 1);
});

test("the models of aetheris/testing answer the clients of OpenAI and Anthropic", async () => {
  const writer = agent("writer", {}, async (ctx) => {
    const openai = new OpenAI({ apiKey: "none", fetch: fetchAs(ctx, "read"), maxRetries: 0 });
    const request = { model: "gpt-4.1", messages: [{ role: "user" as const, content: "Pay 43 back" }] };
    const called = await openai.chat.completions.create({
      ...request,
      tools: [{ type: "function" as const, function: { name: "pay", parameters: { type: "object" } } }],
    });
    const [call] = called.choices[0]?.message.tool_calls ?? [];
    let text = "";
    for await (const chunk of await openai.chat.completions.create({ ...request, stream: true }))
      text += chunk.choices[0]?.delta.content ?? "";
    const streamed = await openai.chat.completions.stream(request).finalChatCompletion();
    const anthropic = new Anthropic({ apiKey: "none", fetch: fetchAs(ctx, "read"), maxRetries: 0 });
    const asked = { model: "claude", max_tokens: 100, messages: [{ role: "user" as const, content: "Pay 43 back" }] };
    const whole = await anthropic.messages.create(asked);
    const inPieces = await anthropic.messages.stream(asked).finalMessage();
    return {
      claude: [whole.content, whole.stop_reason, inPieces.content, inPieces.stop_reason, inPieces.usage.output_tokens] as never,
      call: call?.type === "function" ? [call.function.name, call.function.arguments] : null,
      text,
      usage: called.usage?.prompt_tokens ?? null,
      last: streamed.choices[0]?.message.content ?? null,
    };
  });
  const t = await testing.start({
    agents: [writer],
    models: {
      "gpt-4.1": [
        { tool_calls: [{ name: "pay", arguments: { order: "43" } }], usage: { prompt_tokens: 7, completion_tokens: 2 } },
        "Order 43 is paid back — today.",
        "Done.",
      ],
      claude: ({ messages }) =>
        t.calls("model:claude").length === 1
          ? `You wrote: ${String(messages[0]?.["content"])}`
          : {
              text: "I pay it back, then.",
              tool_calls: [{ name: "pay", arguments: { order: "43" }, id: "toolu_1" }],
              usage: { prompt_tokens: 7, completion_tokens: 11 },
            },
    },
  });
  try {
    assert.deepEqual(await t.job(writer).result(), {
      claude: [
        [{ type: "text", text: "You wrote: Pay 43 back" }],
        "end_turn",
        [
          { type: "text", text: "I pay it back, then." },
          { type: "tool_use", id: "toolu_1", name: "pay", input: { order: "43" } },
        ],
        "tool_use",
        11,
      ],
      call: ["pay", '{"order":"43"}'],
      text: "Order 43 is paid back — today.",
      usage: 7,
      last: "Done.",
    });
    assert.equal(t.calls("model:gpt-4.1").length, 3);
  } finally {
    await t.close();
  }
});

test("the models of aetheris/testing answer requests of Responses", async () => {
  const writer = agent("writer", {}, async (ctx) => {
    const openai = new OpenAI({ apiKey: "none", fetch: fetchAs(ctx, "read"), maxRetries: 0 });
    const request = { model: "gpt-4.1", input: "Pay 43 back" };
    const whole = await openai.responses.create(request);
    const asked = await openai.responses.create({ ...request, input: [{ role: "user", content: "And 44?" }] });
    let text = "";
    for await (const event of await openai.responses.create({ ...request, stream: true }))
      if (event.type === "response.output_text.delta") text += event.delta;
    const inPieces = await openai.responses.stream(request).finalResponse();
    const cut = await openai.responses.create({ ...request, text: { format: { type: "json_schema", name: "n", schema: {} } } });
    return {
      whole: [whole.output_text, whole.status, whole.usage?.total_tokens],
      asked: asked.output.map((item) => (item.type === "function_call" ? [item.call_id, item.name, item.arguments] : item.type)),
      text,
      inPieces: [inPieces.output_text, inPieces.output.length, inPieces.usage?.output_tokens],
      cut: [cut.output_text, cut.status, cut.incomplete_details?.reason],
    } as never;
  });
  const pay = { name: "pay", arguments: { order: "43" }, id: "call_1" };
  const t = await testing.start({
    agents: [writer],
    models: {
      "gpt-4.1": ({ messages, schema }) =>
        [
          { text: String(messages[0]?.["content"]), usage: { prompt_tokens: 7, completion_tokens: 2 } },
          { tool_calls: [pay] },
          "Order 43 is paid back \u2014 today.",
          { text: "I pay it back, then.", tool_calls: [pay], usage: { prompt_tokens: 7, completion_tokens: 11 } },
          { json: schema ?? null, finish_reason: "length" },
        ][t.calls("model:gpt-4.1").length - 1] ?? "",
    },
  });
  try {
    assert.deepEqual(await t.job(writer).result(), {
      whole: ["Pay 43 back", "completed", 9],
      asked: [["call_1", "pay", '{"order":"43"}']],
      text: "Order 43 is paid back \u2014 today.",
      inPieces: ["I pay it back, then.", 2, 11],
      cut: ["{}", "incomplete", "max_output_tokens"],
    });
  } finally {
    await t.close();
  }
});
