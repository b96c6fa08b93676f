// Warnings of `aetheris dev`. The functions of this process are wrapped before anything else uses them.
import { after, before, describe, test } from "node:test";
import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer, type Server } from "node:http";
import { randomUUID } from "node:crypto";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { warnAboutUnrecorded } from "../src/dev_warnings.ts";
import type { Ctx } from "../src/index.ts";
import { runJob } from "./support/harness.ts";

describe("warnings of dev", () => {
  const warnings: string[] = [];
  let server: Server;
  let url: string;
  before(async () => {
    warnAboutUnrecorded((warning) => warnings.push(warning));
    server = createServer((_, response) => response.end("ok"));
    await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
    url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  });
  after(() => {
    server.closeAllConnections();
    server.close();
  });
  const taken = (): string[] => warnings.splice(0);

  test("name the line, what is used and what to use instead, once", async () => {
    const helper = (): number => Date.now();
    let sent: Promise<Response> | undefined;
    const job = await runJob(async (ctx: Ctx) => {
      const found = [];
      for (let i = 0; i < 3; i++) found.push(helper());
      await ctx.sleep(1);
      found.push(Math.random(), crypto.randomUUID().length, randomUUID().length, new Date().getTime(), Date().length);
      sent = fetch(url);
      return found.every((one) => typeof one === "number");
    }, ({ engine }) => void engine.succeed("sleep", null));
    assert.equal(job.result, true);
    assert.equal(await (await sent)?.text(), "ok");
    const lines = taken();
    assert.deepEqual(
      lines.map((line) => line.replace(/^.*dev_warnings\.test\.ts:\d+: (.*) is not.*\. Use/, "$1 →")),
      ["Date.now() → ctx.now()", "Math.random() → ctx.random()", "crypto.randomUUID() → ctx.uuid()", "new Date() → ctx.now()", "fetch() → ctx.fetch()"],
    );
    assert.match(lines[0] as string, /^.*test\/dev_warnings\.test\.ts:32: /);
  });

  test("are not printed for functions, other code, packages and the SDK", async () => {
    const folder = mkdtempSync(join(tmpdir(), "aetheris-test-"));
    mkdirSync(join(folder, "node_modules"));
    const library = join(folder, "node_modules/library.mjs");
    writeFileSync(library, "export const stamp = () => [Date.now(), Math.random(), new Date()].length;\n");
    const { stamp } = (await import(pathToFileURL(library).href)) as { stamp: () => number };
    try {
      const job = await runJob(async (ctx: Ctx) => {
        const times = [ctx.now(), ctx.random(), ctx.uuid()].length;
        const inside = await ctx.run("a", "read", async () => [Date.now(), Math.random(), await (await fetch(url)).text()].length);
        const recorded = await ctx.fetch(url);
        return [times, stamp(), inside, recorded.status, new Date(0).getTime(), new Date(ctx.now()) instanceof Date];
      });
      assert.deepEqual(job.result, [3, 3, 3, 200, 0, true]);
      assert.ok(Date.now() > 0 && Math.random() < 1);
      assert.deepEqual(taken(), []);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });

  test("leave what they wrap as it is", () => {
    class Late extends Date {}
    assert.ok(new Late() instanceof Late && new Late() instanceof Date && new Date().constructor === Date);
    assert.deepEqual([Date.name, Date.length, Date.now.name, fetch.name, Date.UTC(1970, 0, 1)], ["Date", 7, "now", "fetch", 0]);
    assert.ok(structuredClone(new Date(5)) instanceof Date);
    assert.match(randomUUID(), /^[0-9a-f-]{36}$/);
  });
});
