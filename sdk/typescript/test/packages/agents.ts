// Agents with the real packages, for tests/sdk_packages.py: each calls a model, waits, and calls it again.
import { appendFileSync } from "node:fs";
import Anthropic from "@anthropic-ai/sdk";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Annotation, Command, END, interrupt, MemorySaver, START, StateGraph } from "@langchain/langgraph";
import { ChatOpenAI } from "@langchain/openai";
import { Agent as OpenAIAgent, OpenAIChatCompletionsModel, Runner, tool as agentTool } from "@openai/agents";
import { generateText, isStepCount, tool as aiTool, wrapLanguageModel } from "ai";
import OpenAI from "openai";
import { z } from "zod";
import { agent, fetchAs, ToolFailed, type Ctx } from "../../src/index.ts";
import { durable, durableTools } from "../../src/wrap/ai_sdk.ts";
import { durableRun } from "../../src/wrap/langgraph.ts";
import { durableAgentRun } from "../../src/wrap/openai_agents.ts";

interface Input {
  url: string; // of the model server
  prompt: string;
  model: string;
}

const note = (line: string): void => appendFileSync("calls.txt", `${line}\n`);
const openaiOf = (ctx: Ctx, url: string): OpenAI =>
  new OpenAI({ apiKey: "sk-any", baseURL: `${url}/v1`, fetch: fetchAs(ctx, "read"), maxRetries: 0 });
const anthropicOf = (ctx: Ctx, url: string): Anthropic =>
  new Anthropic({ apiKey: "any", baseURL: url, fetch: fetchAs(ctx, "read"), maxRetries: 0 });
const goes = (ctx: Ctx): Promise<unknown> => ctx.wait({ type: "signal", wait_key: "go" });

export const withOpenai = agent("openai", {}, async (ctx, { url }: Input) => {
  const client = openaiOf(ctx, url);
  const say = async (content: string): Promise<unknown> =>
    (await client.chat.completions.create({ model: "chat", messages: [{ role: "user", content }] })).choices[0]?.message
      .content;
  const first = await say("openai one");
  await goes(ctx);
  return [first, await say("openai two")];
});

export const withAnthropic = agent("anthropic", {}, async (ctx, { url }: Input) => {
  const client = anthropicOf(ctx, url);
  const say = async (content: string): Promise<unknown> => {
    const messages = [{ role: "user" as const, content }];
    const [block] = (await client.messages.create({ model: "chat", max_tokens: 100, messages })).content;
    return block?.type === "text" ? block.text : null;
  };
  const first = await say("anthropic one");
  await goes(ctx);
  return [first, await say("anthropic two")];
});

export const withAiSdk = agent("ai_sdk", {}, async (ctx, { url }: Input) => {
  const provider = createOpenAICompatible({ name: "scripted", baseURL: `${url}/v1`, apiKey: "any" });
  const model = wrapLanguageModel({ model: provider("chat"), middleware: durable(ctx) });
  const write = aiTool({
    description: "writes a note",
    inputSchema: z.object({ text: z.string() }),
    execute: ({ text }) => {
      note(`ai_sdk ${text}`);
      return "written";
    },
  });
  const tools = durableTools(ctx, { note: write }, { note: "at_most_once" });
  const more = { model, tools, stopWhen: isStepCount(3), maxRetries: 0 };
  const first = await generateText({ ...more, prompt: "note: milk" });
  await goes(ctx);
  return [first.text, (await generateText({ ...more, prompt: "note: bread" })).text];
});

export const withLanggraph = agent("langgraph", {}, async (ctx, { url }: Input) => {
  const model = new ChatOpenAI({
    model: "chat",
    apiKey: "any",
    maxRetries: 0,
    useResponsesApi: false,
    configuration: { baseURL: `${url}/v1`, fetch: fetchAs(ctx, "read") as typeof fetch },
  });
  const State = Annotation.Root({ draft: Annotation<string>, answer: Annotation<string>, last: Annotation<string> });
  const graph = new StateGraph(State)
    .addNode("write", async () => ({ draft: String((await model.invoke("langgraph one")).content) }))
    .addNode("review", ({ draft }) => ({ answer: interrupt(`is this right? ${draft}`) as string }))
    .addNode("send", async () => ({ last: String((await model.invoke("langgraph two")).content) }))
    .addEdge(START, "write")
    .addEdge("write", "review")
    .addEdge("review", "send")
    .addEdge("send", END)
    .compile({ checkpointer: new MemorySaver() });
  const command = (resume: unknown): Command => new Command({ resume });
  const ended = await durableRun<{ draft: string; answer: string; last: string }>(ctx, graph, {}, { command });
  return [ended.draft, ended.answer, ended.last];
});

export const withOpenaiAgents = agent("openai_agents", {}, async (ctx, { url }: Input) => {
  const write = agentTool({
    name: "note",
    description: "writes a note",
    parameters: z.object({ text: z.string() }),
    needsApproval: true,
    execute: ({ text }) =>
      ctx.run("note", "at_most_once", { text }, (args) => {
        note(`openai_agents ${args.text}`);
        return "written";
      }),
  });
  const model = new OpenAIChatCompletionsModel(openaiOf(ctx, url) as never, "chat");
  const writer = new OpenAIAgent({ name: "writer", instructions: "be brief", model, tools: [write] });
  const runner = new Runner({ tracingDisabled: true });
  const result = await durableAgentRun(ctx, (...args) => runner.run(...args), writer, "note: cheese");
  return result.finalOutput as string;
});

// A stream of each client. What follows from its first piece is requested before its end.
async function follow(ctx: Ctx, name: string, pieces: AsyncIterable<string>): Promise<string> {
  let text = "";
  let first: Promise<unknown> | undefined;
  for await (const piece of pieces) {
    if (piece === "") continue;
    note(`${name} ${Date.now()} ${piece}`);
    text += piece;
    first ??= ctx.run(`after_${name}`, "read", () => note(`${name} ${Date.now()} after the first piece`));
  }
  note(`${name} ${Date.now()} the end`);
  await first;
  return text;
}

async function* openaiTexts(client: OpenAI, { model, prompt: content }: Input): AsyncIterable<string> {
  const messages = [{ role: "user" as const, content }];
  for await (const chunk of await client.chat.completions.create({ model, stream: true, messages }))
    yield chunk.choices[0]?.delta.content ?? "";
}

async function* anthropicTexts(client: Anthropic, { model, prompt: content }: Input): AsyncIterable<string> {
  const messages = [{ role: "user" as const, content }];
  for await (const event of await client.messages.create({ model, max_tokens: 100, stream: true, messages }))
    if (event.type === "content_block_delta" && event.delta.type === "text_delta") yield event.delta.text;
}

export const streams = agent("streams", {}, async (ctx, input: Input) => [
  await follow(ctx, "openai", openaiTexts(openaiOf(ctx, input.url), input)),
  await follow(ctx, "anthropic", anthropicTexts(anthropicOf(ctx, input.url), input)),
]);

export const broken = agent("broken", {}, async (ctx, input: Input) => {
  let text = "";
  let error: unknown;
  try {
    for await (const piece of openaiTexts(openaiOf(ctx, input.url), input)) text += piece;
  } catch (thrown) {
    error = thrown instanceof ToolFailed ? thrown.code : String(thrown);
  }
  await goes(ctx);
  return { text, error };
});
