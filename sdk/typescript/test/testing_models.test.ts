// The models of aetheris/testing, with the real program: AETHERIS_BIN names it; without it these tests are skipped.
import { describe, test } from "node:test";
import assert from "node:assert/strict";
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { agent, Failure, fetchAs, type Json } from "../src/index.ts";
import * as testing from "../src/testing.ts";
import { ModelServer } from "../src/testing/models.ts";

const program = process.env["AETHERIS_BIN"];
const skip = program !== undefined && existsSync(program) ? false : "AETHERIS_BIN does not name the program";
const CITY = {
  type: "object",
  additionalProperties: false,
  required: ["city"],
  properties: { city: { type: "string" } },
};

const writer = agent("writer", { uses: ["model:main"] }, async (ctx, input: { topic: string }) => {
  const text = await ctx.model("main").text(`Write about ${input.topic}`);
  const { city } = await ctx.model("main").json<{ city: string }>("Which city?", CITY);
  return { text, city };
});
// As a client does it that was given ctx.fetch. The address is that of the provider.
const client = agent("client", {}, async (ctx, input: { stream?: boolean }) => {
  const ask = async (text: string): Promise<string> => {
    const answer = await fetchAs(ctx, "read")("https://api.openai.com/v1/chat/completions", {
      method: "POST",
      headers: { "content-type": "application/json", authorization: "Bearer none" },
      body: JSON.stringify({
        model: "gpt-4.1",
        stream: input.stream ?? false,
        messages: [{ role: "user", content: text }],
      }),
    });
    assert.equal(answer.url, "https://api.openai.com/v1/chat/completions");
    return answer.text();
  };
  return [await ask("one"), await ask("two")];
});
const caller = agent("caller", { uses: ["model:main"] }, async (ctx) => {
  const request = { messages: [{ role: "user" as const, content: "Pay 43 back" }] };
  const { tool_calls = [], finish_reason, usage, refusal } = await ctx.model("main").generate(request);
  return { tool_calls, finish_reason, usage, refusal: refusal ?? null };
});

async function withModels<T>(
  models: Record<string, testing.FakeModel>,
  work: (t: testing.Testing) => Promise<T>,
): Promise<T> {
  const t = await testing.start({ agents: [writer, client, caller], models });
  try {
    return await work(t);
  } finally {
    await t.close();
  }
}

describe("models of a test", { skip }, () => {
  test("a function answers, and the calls are listed", async () => {
    const requests: testing.ModelCall[] = [];
    const main = async (request: testing.ModelCall): Promise<testing.ModelAnswer> => {
      requests.push(request);
      return request.schema ? { json: { city: "Zürich" } } : `About bees — ${"long ".repeat(20)}`;
    };
    await withModels({ main }, async (t) => {
      const job = t.job(writer, { topic: "bees" });
      assert.deepEqual(await job.result(), { text: `About bees — ${"long ".repeat(20)}`, city: "Zürich" });
      const [first, second] = t.calls("model:main");
      assert.deepEqual(first?.arguments["messages"], [{ role: "user", content: "Write about bees" }]);
      assert.deepEqual([first?.job, first?.try, first?.error], [job.id, 1, undefined]);
      assert.match(JSON.stringify(first?.result), /About bees/);
      assert.notEqual(first?.key, second?.key);
      assert.deepEqual(requests[1]?.schema, CITY);
      assert.equal(requests[0]?.job, job.id);
    });
  });

  test("a list has the answers of each job; failures are tried again", async () => {
    const main = [{ status: 429, message: "slow down", retry_after: 30 }, "A", { json: { city: "Bern" } }];
    await withModels({ main }, async (t) => {
      const began = await t.now();
      for (const topic of ["one", "two"])
        assert.deepEqual(await t.job(writer, { topic }).result(), { text: "A", city: "Bern" });
      assert.ok((await t.now()).getTime() - began.getTime() >= 30_000);
      const tries = t.calls("model:main").filter(({ job }) => job === "writer-1");
      assert.deepEqual(
        tries.map((call) => [call.try, call.error?.code]),
        [[1, "http_429"], [2, undefined], [1, undefined]],
      );
    });
  });

  test("clients that were given ctx.fetch are answered, streams too", async () => {
    const model = ({ messages }: testing.ModelCall): string => `answer to ${String(messages[0]?.["content"])}`;
    await withModels({ main: [], "gpt-4.1": model }, async (t) => {
      const [one, two] = (await t.job(client).result()) as string[];
      const text = (body: string | undefined): Json =>
        (JSON.parse(body ?? "") as { choices: { message: { content: Json } }[] }).choices[0]?.message.content ?? null;
      assert.deepEqual([text(one), text(two)], ["answer to one", "answer to two"]);
      const [streamed = ""] = (await t.job(client, { stream: true }).result()) as string[];
      assert.match(streamed, /^data: .*"delta":.*\n\ndata: \[DONE\]\n\n$/s);
      assert.deepEqual(
        t.calls("model:gpt-4.1").map(({ job }) => job),
        ["client-1", "client-1", "client-2", "client-2"],
      );
    });
  });

  test("a call that is repeated with its key gets its answer again", async () => {
    const server = await ModelServer.start({ main: ["first", { status: 503 }, "second"] }, () => {});
    const answer = async (key: string): Promise<Json> => {
      const made = await fetch(`${server.url}/chat/completions`, {
        method: "POST",
        headers: { "idempotency-key": key },
        body: JSON.stringify({ model: "main", messages: [] }),
      });
      const body = (await made.json()) as { choices?: { message: { content: Json } }[] };
      return body.choices?.[0]?.message.content ?? made.status;
    };
    try {
      const keys = ["one", "one", "two", "two", "two", "one", "three"];
      const answers: Json[] = [];
      for (const key of keys) answers.push(await answer(`aetheris:job-1:${key}:0`));
      assert.deepEqual(answers, ["first", "first", 503, "second", "second", "first", 400]);
      for (const job of ["job-2", "order:1", "order:2"]) {
        assert.equal(await answer(`aetheris:${job}:one:0`), "first", "another job has its own");
      }
    } finally {
      server.close();
    }
  });

  test("it calls tools, refuses, and states its use of tokens", async () => {
    const usage = { prompt_tokens: 700, completion_tokens: 30 };
    const main = [{ text: "", tool_calls: [{ name: "pay", arguments: { order: "43" }, id: "call_1" }], usage }];
    await withModels({ main }, async (t) => {
      const made = (await t.job(caller).result()) as { tool_calls: Json[]; usage: Record<string, Json> };
      assert.match(JSON.stringify(made), /"pay".*43|43.*"pay"/);
      assert.match(JSON.stringify(made.usage), /700/);
    });
    await withModels({ main: [{ refusal: "I do not pay." }] }, async (t) => {
      assert.match(JSON.stringify(await t.job(caller).result()), /I do not pay/);
    });
  });

  test("the models of an agents file whose addresses are in a variable", async () => {
    const folder = mkdtempSync(join(tmpdir(), "aetheris-test-"));
    const path = join(folder, "agents.yaml");
    const main = 'provider: anthropic, base_url: "${ env.TEST_MODEL_URL }", model: claude-sonnet-4-5';
    writeFileSync(path, `aetheris: 1\nmodels: { main: { ${main} } }\n`);
    const t = await testing.start({
      agents: [writer],
      agents_file: path,
      models: { "claude-sonnet-4-5": ({ body }) => (body["output_config"] ? { json: { city: "Bern" } } : "A — long, in pieces.") },
      models_url: "TEST_MODEL_URL",
    });
    try {
      assert.deepEqual(await t.job(writer, { topic: "bees" }).result(), { text: "A — long, in pieces.", city: "Bern" });
      assert.equal(t.calls("model:claude-sonnet-4-5").length, 2);
    } finally {
      await t.close();
      rmSync(folder, { recursive: true });
    }
  });

  test("what the test states wrongly fails the job with a reason", async () => {
    const failure = async (models: Record<string, testing.FakeModel>, reason: RegExp): Promise<void> => {
      await withModels(models, async (t) => {
        await assert.rejects(
          t.job(writer, { topic: "bees" }).result(),
          (error: Error) => error instanceof Failure && reason.test(error.message),
        );
        assert.equal(t.calls("model:main").at(-1)?.error?.code, "http_400");
      });
    };
    await failure({ main: ["only one"] }, /has 1 answers for a job, and writer-1 makes another call/);
    await failure(
      {
        main: () => {
          throw new Error("no such question");
        },
      },
      /no such question/,
    );
    await failure({ main: () => 7 as never }, /an answer is a text/);
  });
});
