// ctx.fetch: what is recorded, and which effect it has.
import { describe, test } from "node:test";
import assert from "node:assert/strict";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import type { Ctx } from "../src/index.ts";
import { blindedHash } from "../src/json.ts";
import { replayed } from "./support/checks.ts";
import { runJob } from "./support/harness.ts";

describe("fetch", () => {
  interface Seen {
    url: string;
    method: string;
    headers: Record<string, unknown>;
    body: string;
  }
  async function withServer(use: (url: string, seen: Seen[]) => Promise<void>): Promise<void> {
    const seen: Seen[] = [];
    const server: Server = createServer((request, response) => {
      const chunks: Buffer[] = [];
      request.on("data", (chunk: Buffer) => chunks.push(chunk));
      request.on("end", () => {
        seen.push({ url: String(request.url), method: String(request.method), headers: request.headers, body: Buffer.concat(chunks).toString() });
        const isFirst = seen.filter((one) => one.url === request.url).length === 1;
        if (request.url === "/reset" && isFirst) request.socket.destroy();
        else if (request.url === "/cut" && isFirst) response.writeHead(200, { "content-length": "9" }).write("a", () => request.socket.destroy());
        else if (request.url === "/busy" && isFirst) response.writeHead(429, { "retry-after": "2" }).end();
        else if (request.url === "/moved") response.writeHead(303, { location: "/ok" }).end();
        else if (request.url === "/chat/completions")
          response
            .writeHead(200, { "content-type": "text/event-stream" })
            .end('data: {"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":2}}');
        else if (request.url === "/bytes") response.end(Buffer.from([0xff, 0x00]));
        else
          response
            .writeHead(request.url === "/500" ? 500 : 200, { "content-type": "application/json", "set-cookie": "a=b" })
            .end(JSON.stringify({ n: seen.length }));
      });
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    try {
      await use(`http://127.0.0.1:${(server.address() as AddressInfo).port}`, seen);
    } finally {
      server.closeAllConnections();
      server.close();
    }
  }

  test("requests are recorded by content, without their secrets, and sent once", async () => {
    await withServer(async (url, seen) => {
      const job = await runJob(async (ctx: Ctx) => {
        const headers = { authorization: "Bearer secret", "content-type": "application/json", "x-other": "1" };
        const post = (n: number): Promise<Response> =>
          ctx.fetch(`${url}/ok`, { method: "POST", headers, body: JSON.stringify({ n }) });
        const [a, b, c] = await Promise.all([post(1), post(1), post(2)]);
        const got = await ctx.fetch(`${url}/ok`);
        return [
          a.status,
          await a.json(),
          (await b.json()).n,
          c.headers.get("set-cookie"),
          got.ok,
          got.url === `${url}/ok`,
        ];
      });
      assert.deepEqual(job.result, [200, { n: 1 }, 2, null, true, true]);
      const made = [...job.engine.log.values()];
      const host = new URL(url).host;
      const args = {
        method: "POST",
        url: `${url}/ok`,
        headers: { "content-type": "application/json" },
        body: '{"n":1}',
      };
      assert.deepEqual(made[0]?.arguments, args);
      const hash = blindedHash(job.engine.blind, args).slice(0, 16);
      assert.deepEqual(
        made.slice(0, 2).map(({ position, tool: name }) => [position, name]),
        [
          [`POST:${host}~${hash}`, "run:at_most_once"],
          [`POST:${host}~${hash}#2`, "run:at_most_once"],
        ],
      );
      assert.equal(made[3]?.tool, "run:read");
      assert.ok(!JSON.stringify(job.engine.record()).includes("secret"));
      assert.equal(seen[0]?.headers["authorization"], "Bearer secret");
      assert.equal(seen[0]?.headers["x-other"], "1");
      assert.equal(seen[0]?.headers["idempotency-key"], `aetheris:job-1:${made[0]?.position}:0`);
      assert.equal(seen[3]?.headers["idempotency-key"], undefined);
      await replayed(job);
      assert.equal(seen.length, 4);
    });
  });

  test("what only reads is tried again after 408, 429, 5xx and a lost answer; the last status is an answer", async () => {
    await withServer(async (url, seen) => {
      const job = await runJob(async (ctx: Ctx) => {
        const statuses = [];
        for (const path of ["/busy", "/reset", "/cut", "/500"]) statuses.push((await ctx.fetch(url + path)).status);
        const posted = await ctx.fetch(`${url}/500`, { method: "POST", body: "x" });
        return [...statuses, posted.status];
      });
      assert.deepEqual(job.result, [200, 200, 200, 500, 500]);
      assert.deepEqual(
        job.failures.map(({ code, retry_after_ms }) => [code, retry_after_ms]),
        [
          ["http_429", 2000],
          ["reset", undefined],
          ["reset", undefined],
          ["http_500", undefined],
          ["http_500", undefined],
          ["http_500", undefined],
        ],
      );
      assert.deepEqual(
        seen.slice(-2).map(({ method }) => method),
        ["GET", "POST"],
        "a POST is sent once",
      );
      await replayed(job);
    });
  });

  test("the tokens of a model are counted, also by the last line of a stream that has no end", async () => {
    await withServer(async (url) => {
      const body = '{"model":"m"}';
      const job = await runJob(async (ctx: Ctx) => (await ctx.fetch(`${url}/chat/completions`, { method: "POST", body })).status);
      assert.equal(job.result, 200);
      assert.deepEqual(job.usages, [{ model: "m", input_tokens: 12, output_tokens: 2 }]);
    });
  });

  test("bytes, forms and redirects", async () => {
    await withServer(async (url, seen) => {
      const job = await runJob(async (ctx: Ctx) => {
        const bytes = new Uint8Array(await (await ctx.fetch(`${url}/bytes`)).arrayBuffer());
        const form = new FormData();
        form.set("a", "b");
        await ctx.fetch(`${url}/ok`, { method: "POST", body: form, name: "form" });
        const moved = await ctx.fetch(`${url}/moved`, {
          method: "POST",
          body: new URLSearchParams({ x: "1" }),
          effect: "idempotent",
        });
        return [[...bytes], moved.status];
      });
      assert.deepEqual(job.result, [[255, 0], 200]);
      assert.match(String(seen[1]?.body), /^--aetheris-boundary\r\nContent-Disposition: form-data; name="a"/);
      assert.deepEqual(
        seen.slice(2).map(({ method, body }) => [method, body]),
        [
          ["POST", "x=1"],
          ["GET", ""],
        ],
      );
      assert.ok(job.engine.log.has("form"));
      await replayed(job);
    });
  });

  test("redirect: follow, manual and error", async () => {
    await withServer(async (url, seen) => {
      const job = await runJob(async (ctx: Ctx) => {
        const ends: unknown[] = [];
        const end = async (init: RequestInit, path = "/moved"): Promise<void> => {
          const request = ctx.fetch(`${url}${path}`, init);
          ends.push(await request.then(({ status }) => status, ({ code }: { code: string }) => code));
        };
        for (const redirect of ["follow", "manual", "error"] as const)
          for (const method of ["GET", "POST"]) await end({ redirect, method });
        await end({ redirect: "error" }, "/ok");
        await end({ redirect: "never" as never });
        const request = new Request(`${url}/moved`, { redirect: "manual" });
        ends.push((await ctx.fetch(request)).status);
        return ends;
      });
      assert.deepEqual(job.result, [200, 200, 303, 303, "http_303", "http_303", 200, "input_invalid", 303]);
      assert.equal(seen.filter((one) => one.url === "/moved").length, 7, "each is sent once");
      await replayed(job);
    });
  });

  test("a stream, a bad URL and a password in the URL are input_invalid; a refused connection is a definite failure", async () => {
    let closed = "";
    await withServer(async (url) => void (closed = url));
    const job = await runJob(async (ctx: Ctx) => {
      const ends = await Promise.allSettled([
        ctx.fetch("http://127.0.0.1:1/", { method: "POST", body: new ReadableStream(), duplex: "half" } as RequestInit),
        ctx.fetch("/x"),
        ctx.fetch("ftp://x/"),
        ctx.fetch("http://a:b@x/"),
        ctx.fetch(closed),
      ]);
      return ends.map((end) => (end as PromiseRejectedResult).reason.code as string);
    });
    assert.deepEqual(job.result, ["input_invalid", "input_invalid", "input_invalid", "input_invalid", "connect"]);
  });
});
