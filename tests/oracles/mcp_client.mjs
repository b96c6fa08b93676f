// The official MCP client against our server: list, call, read, tasks. Prints `ok NAME` for each check.
//   mcp_client.mjs MODULES http URL [KEY]  |  mcp_client.mjs MODULES stdio PROGRAM WORDS…
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join } from "node:path";

const [modules, transport, ...rest] = process.argv.slice(2);
const require = createRequire(join(modules, "package.json"));
const { Client } = require("@modelcontextprotocol/sdk/client/index.js");
const { StreamableHTTPClientTransport } = require("@modelcontextprotocol/sdk/client/streamableHttp.js");
const { StdioClientTransport } = require("@modelcontextprotocol/sdk/client/stdio.js");

async function connect() {
  const client = new Client({ name: "oracle", version: "1" }, { capabilities: {} });
  if (transport === "http") {
    await client.connect(new StreamableHTTPClientTransport(new URL(rest[0])));
  } else {
    await client.connect(new StdioClientTransport({
      command: rest[0], args: rest.slice(1), env: { ...process.env }, stderr: "inherit" }));
  }
  return client;
}

const client = await connect();
async function check(name, body) {
  await body();
  console.log("ok " + name);
}

await check("the client reads name and capabilities of the server", async () => {
  assert.equal(client.getServerVersion().name, "aetheris");
  assert.ok(client.getServerCapabilities().tools && client.getServerCapabilities().resources);
  await client.ping();
});
await check("the client lists tools", async () => {
  const { tools } = await client.listTools();
  const names = tools.map((tool) => tool.name);
  assert.ok(names.includes("echo") && names.includes("aetheris_job"), names.join(" "));
});
let job;
await check("the client calls an agent", async () => {
  const result = await client.callTool({ name: "echo", arguments: { n: 3 } });
  assert.deepEqual(result.structuredContent, { n: 3 });
  assert.ok(!result.isError);
  job = result._meta["aetheris/job"];
});
await check("the client receives progress", async () => {
  const seen = [];
  const result = await client.callTool({ name: "sleeps", arguments: {} }, undefined,
    { onprogress: (progress) => seen.push(progress), resetTimeoutOnProgress: true });
  assert.deepEqual(result.structuredContent, { woke: true });
  assert.ok(seen.length >= 1 && seen.every((one, i) => i === 0 || one.progress > seen[i - 1].progress));
});
await check("the client receives errors", async () => {
  assert.ok((await client.callTool({ name: "echo", arguments: { n: "x" } })).isError);
  const failed = await client.callTool({ name: "fails", arguments: {} });
  assert.ok(failed.isError && failed.content[0].text.includes("no_money"));
  await assert.rejects(client.callTool({ name: "nobody", arguments: {} }), { code: -32602 });
});
await check("the client answers a waiting job", async () => {
  const waits = await client.callTool({ name: "asks", arguments: {} });
  const id = waits._meta["aetheris/job"];
  assert.equal(waits.structuredContent.status, "waiting");
  await client.callTool({ name: "aetheris_signal", arguments: { job_id: id, key: "go-" + id, payload: { answer: 1 } } });
  const done = await client.callTool({ name: "aetheris_job", arguments: { job_id: id, wait_seconds: 30 } });
  assert.deepEqual(done.structuredContent, { answer: 1 });
});
await check("the client reads resources", async () => {
  const { resources } = await client.listResources();
  assert.ok(resources.some((one) => one.uri === "aetheris://jobs/" + job));
  assert.equal((await client.listResourceTemplates()).resourceTemplates.length, 3);
  for (const part of ["", "/trace", "/events"]) {
    const { contents } = await client.readResource({ uri: "aetheris://jobs/" + job + part });
    assert.ok(JSON.parse(contents[0].text));
  }
  await assert.rejects(client.readResource({ uri: "aetheris://jobs/nobody" }), { code: -32002 });
});
await check("the client follows a task", async () => {
  const kinds = [];
  for await (const message of client.experimental.tasks.callToolStream(
    { name: "sleeps", arguments: {} }, undefined, { task: { ttl: 60000 } })) {
    kinds.push(message.type);
    if (message.type === "error") throw message.error;
    if (message.type === "result") assert.deepEqual(message.result.structuredContent, { woke: true });
  }
  assert.equal(kinds[0], "taskCreated");
  assert.equal(kinds.at(-1), "result");
  assert.ok((await client.experimental.tasks.listTasks()).tasks.length > 0);
});
await client.close();
