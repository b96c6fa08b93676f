// aetheris-worker as a process: it serves what a file exports, and ends in order on SIGTERM.
import { test } from "node:test";
import assert from "node:assert/strict";
import { execFile, execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { chmodSync, mkdirSync, mkdtempSync, rmSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { ScriptedServer, welcome } from "./support/server.ts";

const MAIN = fileURLToPath(new URL("../src/worker_main.ts", import.meta.url));
const ADDRESS = new URL("../src/address.ts", import.meta.url).href;
const FILE = fileURLToPath(new URL("./fixtures/agents.ts", import.meta.url));

function exitOf(...args: string[]): Promise<{ code: unknown; stderr: string }> {
  return new Promise((resolve) =>
    execFile(process.execPath, [MAIN, ...args], (error, _, stderr) => resolve({ code: error?.code ?? 0, stderr })),
  );
}

test("worker_main: serves the exports of a TypeScript file, and drains on SIGTERM", async () => {
  const server = await ScriptedServer.listen();
  const env = { ...process.env, AETHERIS_SOCKET: server.socket, AETHERIS_API_KEY: "k", AETHERIS_VERSION: "7" };
  const child = spawn(process.execPath, [MAIN, FILE], { env, stdio: ["ignore", "inherit", "pipe"] });
  const exited = once(child, "exit");
  let stderr = "";
  child.stderr.on("data", (piece) => (stderr += String(piece)));
  const connection = await server.accept(60_000);
  const hello = (await connection.next()).messages[0] as unknown as { agents: unknown; tools: unknown };
  assert.deepEqual(hello.agents, [{ name: "adder", language: "typescript", version: "7" }]);
  assert.deepEqual(hello.tools, [{ name: "add", effect: "read" }]);
  assert.equal(connection.request.headers.authorization, "Bearer k");
  connection.send(1, 1, welcome("s-1"));
  connection.send(2, 1, {
    type: "perform",
    call: 1,
    tool: "add",
    job: "j",
    arguments: { a: 1, b: 2 },
    try: 1,
    key: "k",
    execution_key: "e",
    invocation: "i",
    send_within_ms: 60_000,
    timeout_ms: 60_000,
  });
  assert.deepEqual(await connection.message(), { type: "ended", call: 1, result: 3 });
  child.kill("SIGTERM");
  assert.equal((await connection.message()).type, "drain");
  assert.equal((await connection.control()).payload.readUInt16BE(0), 1000);
  assert.deepEqual(await exited, [0, null]);
  const ready = `aetheris: info: connected to ${server.socket}; agents: adder; tools: add\n`;
  assert.equal(stderr, ready, "in ordinary use it prints one line, once it is ready");
  await server.close();
});

test("worker_main: without an address it finds the socket of a store in a parent folder", async () => {
  const server = await ScriptedServer.listen();
  const folder = mkdtempSync(join(tmpdir(), "aetheris-worker-"));
  mkdirSync(join(folder, ".aetheris"));
  mkdirSync(join(folder, "below"));
  const env = { ...process.env };
  for (const name of ["AETHERIS_SOCKET", "AETHERIS_URL"]) delete env[name];
  symlinkSync(server.socket as string, join(folder, ".aetheris", "aetheris.sock"));
  const child = spawn(process.execPath, [MAIN, FILE], { env, cwd: join(folder, "below"), stdio: "ignore" });
  const connection = await server.accept(60_000);
  assert.equal((await connection.next()).messages[0]?.type, "hello");
  child.kill("SIGKILL");
  await server.close();
  rmSync(folder, { recursive: true });
});

test("worker_main: it uses no socket below the home folder, or below a folder that all users share", async () => {
  const server = await ScriptedServer.listen();
  const folder = mkdtempSync(join(tmpdir(), "aetheris-worker-"));
  mkdirSync(join(folder, ".aetheris"));
  mkdirSync(join(folder, "below"));
  symlinkSync(server.socket as string, join(folder, ".aetheris", "aetheris.sock"));
  for (const isShared of [false, true]) {
    if (isShared) chmodSync(folder, 0o1777);
    // What it finds is printed, and nothing is connected.
    const code = `import { findSocket } from ${JSON.stringify(ADDRESS)}; console.log(findSocket(process.cwd()));`;
    const env = { ...process.env, HOME: isShared ? "/" : folder };
    const found = execFileSync(process.execPath, ["--input-type=module", "-e", code], {
      env,
      cwd: join(folder, "below"),
    });
    assert.equal(String(found), "undefined\n");
  }
  await server.close();
  rmSync(folder, { recursive: true });
});

test("worker_main: a file that is missing, or exports nothing, is an error that says what to do", async () => {
  const none = await exitOf();
  assert.deepEqual([none.code, /usage: aetheris-worker FILE/.test(none.stderr)], [2, true]);
  const missing = await exitOf("no-such-file.mjs");
  assert.deepEqual([missing.code, /no-such-file\.mjs/.test(missing.stderr)], [1, true]);
  const empty = await exitOf(fileURLToPath(new URL("./support/harness.ts", import.meta.url)));
  assert.deepEqual([empty.code, /exports no agent and no tool; write: export const/.test(empty.stderr)], [2, true]);
});
