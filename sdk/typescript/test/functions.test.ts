// Functions: which calls a worker remembers.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Functions } from "../src/functions.ts";
import { tool } from "../src/index.ts";
import type { Perform } from "../src/protocol.ts";
import { moment } from "../src/session.ts";

const CALLS = 20_000;
const STEP: Omit<Perform, "call" | "invocation"> = {
  type: "perform",
  job: "job-1",
  tool: "add",
  arguments: {},
  try: 1,
  key: "k",
  execution_key: "e",
  send_within_ms: 10_000,
  timeout_ms: 10_000,
};

async function remembered(acknowledgedAt: () => number): Promise<Functions> {
  const add = tool("add", { effect: "read" }, () => ({ text: "x".repeat(100) }));
  const functions = new Functions({ send: () => {}, routine: () => undefined, tool: () => add, acknowledgedAt });
  for (let call = 1; call <= CALLS; call++) {
    functions.perform({ ...STEP, call, invocation: `i-${call}` }, moment());
    if (call % 100 === 0) await functions.whenIdle();
  }
  return functions;
}

test("a call whose end the server has is not kept", async () => {
  const functions = await remembered(() => performance.now() + 60_000);
  assert.ok(functions.keptCount < 2_000, `${functions.keptCount} of ${CALLS} calls are kept`);
  assert.deepEqual(functions.left().left, []);
});

test("a call whose end the server may not have is kept, and listed", async () => {
  const functions = await remembered(() => performance.now());
  assert.equal(functions.keptCount, CALLS);
  assert.equal(functions.left().left.length, CALLS);
});

test("an end of a session that is gone is kept, whatever the next one acknowledges", async () => {
  let acknowledged = performance.now();
  const functions = await remembered(() => acknowledged);
  functions.onSessionGone();
  acknowledged += 60_000;
  assert.equal(functions.lateEnds().length, CALLS);
  assert.deepEqual(functions.left().left, []);
  assert.equal(functions.keptCount, CALLS);
});
