// Secrets: they reach the function that needs them, and are in nothing that leaves the worker.
import { after, before, describe, test } from "node:test";
import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { AetherisError, Failure, tool, serve, type Ctx, type ToolFailed } from "../src/index.ts";
import { hideEnvironment, scrub, scrubText, ScrubbedText, secretOf } from "../src/secrets.ts";
import { replayed } from "./support/checks.ts";
import { runJob, TestJob } from "./support/harness.ts";
import { ScriptedServer, welcome } from "./support/server.ts";

const KEY = 'sk-"7f3a/9c+üx';
const OTHER = "correct horse battery";

before(() => {
  process.env["SHOP_API_KEY"] = KEY;
  process.env["DB_PASSWORD"] = OTHER;
  process.env["SHORT_TOKEN"] = "1234567";
  process.env["OTHER_NAME"] = "not-secret-value";
  hideEnvironment();
});

describe("secrets", () => {
  test("a value is found as it is and in the usual encodings; short values and other names are kept", () => {
    const bytes = Buffer.from(KEY);
    const forms = [KEY, JSON.stringify(KEY).slice(1, -1), encodeURIComponent(KEY), bytes.toString("hex")];
    for (const form of forms) assert.equal(scrubText(`a ${form} b`), "a [secret SHOP_API_KEY] b", form);
    for (const before of ["", "x", "xy", "user:"]) {
      for (const encoding of ["base64", "base64url"] as const) {
        const text = Buffer.concat([Buffer.from(before), bytes, Buffer.from("z")]).toString(encoding);
        assert.match(scrubText(text), /^.{0,7}\[secret SHOP_API_KEY\].{0,4}$/, `${before} ${encoding}`);
      }
    }
    assert.equal(scrubText("1234567 not-secret-value"), "1234567 not-secret-value");
    assert.deepEqual(scrub({ text: JSON.stringify({ key: KEY }) }), { text: '{"key":"[secret SHOP_API_KEY]"}' });
    const value = { a: [1, null, "x"] };
    assert.equal(scrub(value), value);
    assert.deepEqual(scrub({ [`k ${OTHER}`]: [OTHER, { b: `${OTHER}${KEY}` }] }), {
      "k [secret DB_PASSWORD]": ["[secret DB_PASSWORD]", { b: "[secret DB_PASSWORD][secret SHOP_API_KEY]" }],
    });
  });

  test("a text in pieces: all pieces together are without the secret", () => {
    const text = `x${OTHER}y correct horse b ${KEY}${OTHER.slice(0, 9)}`;
    for (let size = 1; size < 30; size++) {
      const stream = new ScrubbedText();
      const pieces = [];
      for (let at = 0; at < text.length; at += size) pieces.push(stream.feed(text.slice(at, at + size)));
      assert.equal([...pieces, stream.end()].join(""), scrubText(text));
    }
    assert.equal(new ScrubbedText().feed("nothing held"), "nothing held");
  });

  test("a value is found in JSON inside of JSON, also with what is not ASCII escaped", () => {
    const pem = "-----BEGIN KEY-----\nMIIE\"ü\\q\n😀-----END KEY-----\n";
    process.env["PEM_KEY"] = pem;
    hideEnvironment();
    const ascii = (text: string): string =>
      text.replace(/[^ -~]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`);
    for (let asciiAt = 0; asciiAt <= 5; asciiAt++) {
      let body = pem; // as it is, then in a tool result, in the message with it, in the body of a request, …
      for (let depth = 1; depth <= 4; depth++) {
        body = JSON.stringify({ inner: body });
        if (depth === asciiAt) body = ascii(body);
        const clean = JSON.stringify(scrub({ body }));
        assert.ok(clean.includes("[secret PEM_KEY]") && !clean.includes("MIIE"), `${depth} ${asciiAt}: ${clean}`);
      }
    }
    delete process.env["PEM_KEY"];
  });

  test("names and keys of requests are recorded as they are: one with a secret is refused", async () => {
    process.env["PLAIN_TOKEN"] = "tok-123456789";
    hideEnvironment();
    const secret = "tok-123456789";
    const uses: ((ctx: Ctx) => unknown)[] = [
      (ctx) => ctx.call("look", {}, { key: `k-${secret}` }),
      (ctx) => ctx.call("look", {}, { name: secret }),
      (ctx) => ctx.map(secret, [1], () => 1),
      (ctx) => ctx.race("r", { [secret]: () => 1 }),
      (ctx) => ctx.scope(secret, () => 1, { fold: true }),
      (ctx) => ctx.loop(secret, 0, async () => ({ done: 1 })),
      (ctx) => ctx.patched(secret),
      (ctx) => ctx.emit(secret, 1),
    ];
    for (const use of uses) {
      const job = await runJob(async (ctx: Ctx) => {
        await use(ctx);
      });
      const { name, message } = job.engine.end?.exception ?? {};
      assert.equal(name, "InvalidInput", String(use));
      assert.match(message ?? "", /no secret/, String(use));
      const all = JSON.stringify([...job.engine.log.values(), job.engine.end, job.host.sent]);
      assert.ok(!all.includes(secret), all);
    }
  });

  test("call.secret: the environment, a file, and what is missing", () => {
    const folder = mkdtempSync(join(tmpdir(), "aetheris-secret-"));
    writeFileSync(join(folder, "pin"), "from-a-file-1\n");
    process.env["PIN_FILE"] = join(folder, "pin");
    assert.deepEqual([secretOf("SHOP_API_KEY"), secretOf("PIN")], [KEY, "from-a-file-1"]);
    assert.equal(scrubText("from-a-file-1"), "[secret PIN]", "what was given is hidden, whatever its name");
    rmSync(folder, { recursive: true });
    for (const name of ["PIN", "NO_SUCH"]) {
      const isMissing = (error: AetherisError): boolean =>
        error.code === "secret_missing" && error.message.includes(name);
      assert.throws(() => secretOf(name), isMissing);
    }
  });

  test("nothing of a job has the secret: arguments, results, waits, emitted values, scopes, the end", async () => {
    const seen: unknown[] = [];
    const job = new TestJob(async (ctx: Ctx) => {
      const sent = await ctx.run("send", "idempotent", { key: KEY }, (args, call) => {
        seen.push(args.key, call.secret("SHOP_API_KEY"));
        return { echo: args.key };
      });
      ctx.emit("note", { key: KEY });
      const failed = await ctx
        .run("fail", "read", () => {
          throw new Failure("refused", `the key ${KEY} is wrong`);
        })
        .catch((error: ToolFailed) => error.message);
      const inner = await ctx.scope("inner", () => ({ key: KEY }), { fold: true });
      await ctx.approval(`Use ${KEY}?`, { data: { key: KEY } });
      return { sent, failed, inner, key: KEY };
    });
    await job.run();
    job.engine.succeed("approval", { by: "ada" });
    await job.run();
    assert.deepEqual(seen, [KEY, KEY], "the function has it");
    const hidden = "[secret SHOP_API_KEY]";
    assert.deepEqual(job.result, {
      sent: { echo: hidden },
      failed: `the key ${hidden} is wrong`,
      inner: { key: hidden },
      key: hidden,
    });
    assert.deepEqual(job.engine.at("send").arguments, { key: hidden });
    const all = JSON.stringify([...job.engine.log.values(), job.engine.emittedValues, job.host.sent]);
    assert.ok(!all.includes(JSON.stringify(KEY).slice(1, -1)), all);
    await replayed(job);
  });

  test("an exception has no secret; another value of a secret is not another request", async () => {
    const thrown = await runJob(() => {
      throw new TypeError(`bad ${OTHER}`);
    });
    const { message, stack } = thrown.engine.end?.exception ?? {};
    assert.deepEqual([message, stack?.includes(OTHER)], ["bad [secret DB_PASSWORD]", false]);
    const job = new TestJob(async (ctx: Ctx) => ctx.call("look", { password: process.env["DB_PASSWORD"] }));
    await job.run();
    process.env["DB_PASSWORD"] = "a newer password";
    hideEnvironment();
    job.restart();
    await job.run();
    job.engine.succeed("look", 1);
    await job.run();
    assert.equal(job.result, 1);
  });
});

describe("secrets of requests by HTTP", () => {
  const received: string[] = [];
  const shop = createServer((request, response) => {
    let body = "";
    request.on("data", (piece) => (body += piece));
    request.on("end", () => {
      received.push(`${request.url} ${body}`);
      response.end(`got ${body}`);
    });
  });
  before(() => new Promise<void>((resolve) => shop.listen(0, "127.0.0.1", resolve)));
  after(() => shop.close());

  test("ctx.fetch sends them, and neither the request nor the answer is recorded with them", async () => {
    const url = `http://127.0.0.1:${(shop.address() as AddressInfo).port}/`;
    const job = await runJob(async (ctx: Ctx) => {
      const init = { method: "POST", body: `secret=${OTHER}`, effect: "read" as const };
      return (await ctx.fetch(`${url}?k=${encodeURIComponent(KEY)}`, init)).text();
    });
    assert.deepEqual(received, [`/?k=${encodeURIComponent(KEY)} secret=${OTHER}`]);
    assert.equal(job.result, "got secret=[secret DB_PASSWORD]");
    const all = JSON.stringify([...job.engine.log.values()]);
    assert.ok(!all.includes(OTHER) && !all.includes(encodeURIComponent(KEY)), all);
    await replayed(job);
  });
});

test("secrets: neither the definitions nor progress, text, results and failures of tools have them", async () => {
  const server = await ScriptedServer.listen();
  const spills = tool("spills", { description: `uses ${KEY}` }, (args: { fails?: boolean }, call) => {
    call.progress({ key: KEY });
    for (const piece of `the key is ${KEY}.`.match(/.{1,3}/gs) ?? []) call.text(piece);
    if (args.fails) throw new Failure("no", KEY);
    return KEY;
  });
  const worker = serve(spills, { socket: server.socket as string, log: () => {} });
  const connection = await server.accept();
  const frames = [await connection.next()];
  connection.send(1, 1, welcome("s-1"));
  for (const [i, args] of [{}, { fails: true }].entries()) {
    connection.send(2 + i, 1, {
      type: "perform",
      call: i + 1,
      tool: "spills",
      job: "j",
      arguments: args,
      try: 1,
      key: "k",
      execution_key: "e",
      invocation: "i",
      send_within_ms: 60_000,
      timeout_ms: 60_000,
    });
    frames.push(await connection.next());
  }
  const texts = (frames[1]?.messages ?? []).filter(({ type }) => type === "text");
  assert.equal(texts.map((message) => message["text"]).join(""), "the key is [secret SHOP_API_KEY].");
  const all = JSON.stringify(frames);
  assert.ok(!all.includes(JSON.stringify(KEY).slice(1, -1)), all);
  assert.equal(all.split("[secret SHOP_API_KEY]").length - 1, 7, all);
  await worker.stop(0);
  await server.close();
});
