// The session of a worker: its frames and messages, and lost connections, against a scripted server.
import { describe, test } from "node:test";
import assert from "node:assert/strict";
import type { ServerMessage } from "../src/protocol.ts";
import { LIMITS, ScriptedServer, welcome, type Connection } from "./support/server.ts";
import { EMPTY, logged, open, performed, permit, release, server, start, startOf, useServer } from "./support/wire.ts";

useServer();

describe("hello", () => {
  test("the upgrade has the subprotocol and the key, and the first frame is hello", async () => {
    start({ api_key: "secret", capacity: { routines: 7 } });
    const connection = await server.accept();
    const { headers, url, method } = connection.request;
    assert.equal(`${method} ${url}`, "GET /api/worker");
    assert.equal(headers["sec-websocket-protocol"], "aetheris.worker.1");
    assert.equal(headers.authorization, "Bearer secret");
    assert.equal(headers.origin, undefined);
    assert.equal(headers["sec-websocket-extensions"], undefined);
    const frame = await connection.next();
    assert.deepEqual([frame.frame, frame.ack, frame.messages.length], [1, 0, 1]);
    const hello = frame.messages[0] as unknown as Record<string, unknown>;
    assert.equal(hello["type"], "hello");
    assert.equal(hello["protocol"], 1);
    assert.match(String(hello["sdk"]), /^typescript\//);
    assert.match(String(hello["worker"]), /^.+:\d+:[0-9a-f]{8}$/);
    assert.deepEqual(hello["capacity"], { routines: 7, calls: 256 });
    assert.deepEqual(hello["agents"], [
      { name: "one", version: "1", language: "typescript" },
      { name: "waits", language: "typescript" },
      { name: "chooses", language: "typescript" },
      { name: "mistaken", language: "typescript" },
    ]);
    assert.deepEqual((hello["tools"] as unknown[])[0], { name: "slow", effect: "at_most_once" });
    assert.ok(!("resume" in hello));
    assert.deepEqual([hello["left"], hello["connection"]], [[], 1]);
  });

  test("over TCP", async () => {
    const tcp = await ScriptedServer.listen("tcp");
    const worker = start({ url: tcp.url });
    const connection = await tcp.accept();
    assert.equal((await connection.next()).frame, 1);
    connection.send(1, 1, welcome("s-1"), startOf(1));
    assert.equal((await connection.message()).type, "advance");
    await worker.stop(0);
    await tcp.close();
  });

  for (const [status, code] of [
    ["401 Unauthorized", "unauthorized"],
    ["403 Forbidden", "forbidden"],
    ["404 Not Found", "unsupported"],
  ] as const) {
    test(`a server that answers ${status} ends the worker with ${code}`, async () => {
      server.refusesWith = status;
      await assert.rejects(start().closed, (error: { code: string }) => error.code === code);
    });
  }

  test("an address that is not a URL ends the worker with usage", async () => {
    for (const url of ["nowhere", "ftp://x"]) {
      await assert.rejects(start({ url }).closed, (error: { code: string }) => error.code === "usage");
    }
  });

  test("a server that is not there, or answers 503, is tried again", async () => {
    server.refusesWith = "503 Service Unavailable";
    start();
    await new Promise((resolve) => setTimeout(resolve, 120));
    server.refusesWith = undefined;
    await server.accept();
    assert.match(logged.join("\n"), /not connected: .*503/);
  });
});

describe("messages", () => {
  test("a step is one frame each way: the advance has the success and the next request", async () => {
    const connection = await open();
    connection.send(2, 1, startOf(1));
    assert.deepEqual((await connection.next()).messages, [
      {
        type: "advance",
        routine: 1,
        delivered: 0,
        requests: [
          { position: "greet", kind: "tool", delivered: 0, tool: "run:idempotent", arguments: { name: "Ada" } },
        ],
      },
    ]);
    connection.send(3, 2, permit(5, "run:idempotent", { routine: 1, position: "greet", arguments: { name: "Ada" } }));
    const step = await connection.next();
    assert.equal(step.ack, 3);
    assert.deepEqual(step.messages, [
      {
        type: "advance",
        routine: 1,
        delivered: 1,
        functions: [{ call: 5, result: "hello Ada", delivered: 0 }],
        requests: [
          { position: "look", kind: "tool", delivered: 1, tool: "look", arguments: { greeting: "hello Ada" } },
        ],
      },
    ]);
    connection.send(4, 3, {
      type: "deliver",
      routine: 1,
      outcomes: [{ position: "look", kind: "tool", result: "seen" }],
    });
    assert.deepEqual((await connection.next()).messages, [
      { type: "advance", routine: 1, delivered: 2, end: { result: ["hello Ada", "seen"] } },
    ]);
  });

  test("all routines of a turn share a frame", async () => {
    const connection = await open();
    connection.send(2, 1, startOf(1), startOf(2), startOf(3));
    assert.deepEqual(
      (await connection.next()).messages.map((message) => message["routine"]),
      [1, 2, 3],
    );
  });

  test("faults of a definition are reported with their place", async () => {
    start();
    const connection = await server.accept();
    await connection.next();
    const none = { file: "", line: null, column: null, suggestion: null };
    const faults = [
      { ...none, code: "plan_invalid", message: "must be a duration", path: "tools.slow.timeout" },
      { code: "tool_unknown", message: "no tool lok", path: "uses.0", file: "a.yaml", line: 4, column: 2, suggestion: "look" },
    ];
    const agents = [
      { name: "one", version: "1", faults },
      { name: "waits", faults },
    ];
    connection.send(1, 1, welcome("s-1", { agents }));
    connection.send(2, 1, startOf(1));
    await connection.message("advance");
    const names = "one (version 1), waits";
    assert.deepEqual(
      logged.filter((line) => line.startsWith("error")),
      [
        `error: the server does not take ${names}: tools.slow.timeout: must be a duration [plan_invalid]`,
        `error: the server does not take ${names}: a.yaml:4:2: uses.0: no tool lok (did you mean look?) [tool_unknown]`,
      ],
    );
  });

  test("unknown types and fields are ignored", async () => {
    const connection = await open();
    connection.send(
      2,
      1,
      { type: "new_thing", x: 1 },
      { no: "type" } as never,
      null as never,
      { ...startOf(1), also: { new: true } } as never,
    );
    assert.equal((await connection.message()).type, "advance");
    connection.send(
      3,
      2,
      { type: "deliver", routine: 99, outcomes: [] },
      { type: "abandon", call: 99 },
      { type: "stop", routine: 99, reason: "suspended" },
    );
    connection.send(4, 2, startOf(2));
    assert.equal((await connection.message())["routine"], 2);
  });

  test("a frame that came before is ignored, one that is missing ends the connection", async () => {
    const connection = await open();
    connection.send(2, 1, startOf(1));
    await connection.message();
    connection.send(2, 1, startOf(1));
    connection.send(1, 1, startOf(9));
    connection.send(3, 2, startOf(2));
    assert.equal((await connection.message())["routine"], 2);
    connection.send(5, 2, startOf(3));
    await connection.closed();
    const again = await server.accept();
    const hello = (await again.next()).messages[0] as unknown as { resume: unknown };
    assert.deepEqual(hello.resume, { session: "s-1", ack: 3 });
  });

  test("a text that is not UTF-8 ends the connection with 1007", async () => {
    const connection = await open();
    connection.sendBytes(Buffer.from([0x81, 1, 0xff]));
    const close = await connection.control();
    assert.deepEqual([close.opcode, close.payload.readUInt16BE(0)], [8, 1007]);
  });

  test("a record in parts", async () => {
    const connection = await open();
    connection.send(
      2,
      1,
      startOf(1, {
        more: true,
        record: { ...EMPTY, requests: [{ position: "greet", kind: "tool", tool: "run:idempotent", delivered: 0 }] },
      }),
    );
    connection.send(3, 1, {
      type: "deliver",
      routine: 1,
      outcomes: [{ position: "look", kind: "tool", result: "seen" }],
    });
    connection.send(4, 1, {
      type: "record",
      routine: 1,
      more: true,
      record: { ...EMPTY, deliveries: [{ position: "greet", kind: "tool", result: "hi" }] },
    });
    connection.send(5, 1, {
      type: "record",
      routine: 1,
      record: { ...EMPTY, requests: [{ position: "look", kind: "tool", tool: "look", delivered: 1 }] },
    });
    assert.deepEqual(await connection.message(), {
      type: "advance",
      routine: 1,
      delivered: 1,
      settled: false,
      requests: [{ position: "look", kind: "tool", delivered: 1, tool: "look", arguments: { greeting: "hi" } }],
    });
    assert.deepEqual((await connection.message())["end"], { result: ["hi", "seen"] });
  });

  test("an agent that is not offered is lost", async () => {
    const connection = await open();
    connection.send(2, 1, startOf(1, { version: "2" }));
    const message = await connection.message();
    assert.deepEqual([message.type, message["routine"], message["code"]], ["lost", 1, "not_found"]);
  });

  test("a routine that diverged says where, and is dropped", async () => {
    const connection = await open();
    connection.send(
      2,
      1,
      startOf(1, { record: { ...EMPTY, requests: [{ position: "greet", kind: "tool", tool: "look", delivered: 0 }] } }),
    );
    const message = await connection.message();
    assert.equal(message.type, "diverged");
    assert.deepEqual(
      [message["routine"], message["finding"], message["delivered"], message["position"], message["found"]],
      [1, "arguments", 0, "greet", { kind: "tool", position: "greet", tool: "run:idempotent" }],
    );
    assert.match(String(message["where"]), /support\/wire\.ts:\d+/);
    assert.match(
      logged.at(-1) ?? "",
      /^error: job job-1 \(agent one\): the code requests .*, at "greet", .*support\/wire\.ts:\d+.*: aetheris divergence job-1$/,
    );
  });

  test("an exception of the code is reported with its job and its stack", async () => {
    const connection = await open();
    connection.send(2, 1, startOf(1, { agent: "mistaken", version: "", input: null }));
    assert.equal(((await connection.message())["end"] as { exception: { name: string } }).exception.name, "TypeError");
    assert.match(
      logged.at(-1) ?? "",
      /^error: job job-1 \(agent mistaken\): an exception ended the code\. .* resume job-1\nTypeError: x is null\n +at .*support\/wire\.ts/,
    );
  });

  test("a routine that the server refused is reported with the reason", async () => {
    const connection = await open();
    connection.send(2, 1, startOf(1));
    await connection.message();
    connection.send(
      3,
      2,
      { type: "error", code: "tool_not_granted", message: 'the plan does not grant the tool "x"', routine: 1 },
      { type: "stop", routine: 1, reason: "refused" },
      startOf(2),
    );
    await connection.message();
    assert.match(
      logged.at(-1) ?? "",
      /^error: job job-1 \(agent one\): the server refused a request, .*tool_not_granted: .*grant the tool "x"\. Add it to `uses`/,
    );
  });

  test("a heartbeat is sent when nothing else is, and acknowledges", async () => {
    const connection = await open({}, { ...LIMITS, heartbeat_ms: 40 });
    connection.send(2, 1, { type: "closing", within_ms: 5 });
    const frame = await connection.next();
    assert.deepEqual([frame.ack, frame.messages], [2, [{ type: "heartbeat" }]]);
  });

  test("a ping is answered, and a server that is silent is left", async () => {
    const connection = await open({}, { heartbeat_ms: 20, silent_ms: 80, resume_ms: 1000 });
    connection.sendRaw(0x89, Buffer.from("x"));
    const pong = await connection.control();
    assert.deepEqual([pong.opcode, pong.payload.toString()], [10, "x"]);
    connection.sendRaw = () => {}; // no pong from now on
    await connection.closed();
    assert.match(logged.join("\n"), /silent/);
  });

  for (const [what, first, payload] of [
    ["fragment", 0x01, "{"],
    ["binary message", 0x82, "{}"],
    ["text that is not a frame", 0x81, "[]"],
    ["text that is no JSON", 0x81, "{"],
  ] as const) {
    test(`a ${what} ends the connection, and the session is resumed`, async () => {
      const connection = await open();
      connection.sendRaw(first, Buffer.from(payload));
      await connection.closed();
      const again = await server.accept();
      assert.equal((await again.next()).messages[0]?.type, "hello");
    });
  }

  test("messages of several MiB, and a frame in many pieces", async () => {
    const connection = await open();
    const name = "ü".repeat(3 << 20);
    const text = JSON.stringify({ frame: 2, ack: 1, messages: [startOf(1, { input: { name } })] });
    const payload = Buffer.from(text);
    const head = Buffer.alloc(10);
    head[0] = 0x81;
    head[1] = 127;
    head.writeBigUInt64BE(BigInt(payload.length), 2);
    const whole = Buffer.concat([head, payload]);
    for (let at = 0; at < whole.length; at += 1 << 20) {
      connection.sendBytes(whole.subarray(at, at + (1 << 20)));
      await new Promise((resolve) => setImmediate(resolve));
    }
    const message = await connection.message();
    assert.equal((message["requests"] as { arguments: { name: string } }[])[0]?.arguments.name.length, name.length);
  });
});

describe("lost connections", () => {
  test("the session is resumed, and frames that were not acknowledged are sent again with their numbers", async () => {
    const connection = await open();
    connection.send(2, 1, startOf(1));
    const lost = await connection.next();
    connection.cut();
    const again = await server.accept();
    const greeting = await again.next();
    assert.equal(greeting.frame, 0);
    assert.deepEqual((greeting.messages[0] as unknown as Record<string, unknown>)["resume"], {
      session: "s-1",
      ack: 2,
    });
    again.send(0, 1, welcome("s-1", { resumed: true }));
    assert.deepEqual(await again.next(), { ...lost, ack: 2 });
    again.send(3, 2, permit(5, "run:idempotent", { routine: 1, position: "greet", arguments: { name: "Ada" } }));
    assert.equal((await again.next()).frame, 3);
  });

  test("a frame is sent again unchanged, with the ack that it had", async () => {
    const connection = await open();
    connection.send(2, 1, startOf(1));
    const lost = await connection.next();
    assert.equal(lost.ack, 2);
    connection.send(3, 1, startOf(2, { agent: "waits", version: "" }));
    await connection.next();
    connection.cut();
    const again = await server.accept();
    await again.next();
    again.send(0, 1, welcome("s-1", { resumed: true }));
    assert.deepEqual(await again.next(), lost);
  });

  test("what was acknowledged is not sent again", async () => {
    const connection = await open();
    connection.send(2, 1, startOf(1));
    await connection.next();
    connection.cut();
    const again = await server.accept();
    await again.next();
    again.send(0, 2, welcome("s-1", { resumed: true }));
    again.send(3, 2, startOf(2));
    const frame = await again.next();
    assert.deepEqual([frame.frame, frame.messages.map((message) => message["routine"])], [3, [2]]);
  });

  test("without a resume the routines are gone, and their calls are left and end late", async () => {
    const connection = await open();
    connection.send(2, 1, startOf(1), permit(7, "slow"));
    await connection.message("advance");
    connection.send(3, 2, permit(8, "run:idempotent", { routine: 1, position: "greet", arguments: { name: "Ada" } }));
    await connection.message("advance");
    connection.cut();
    const again = await server.accept();
    const hello = (await again.next()).messages[0] as unknown as Record<string, unknown>;
    assert.deepEqual(hello["left"], [
      { job: "job-1", invocation: "i-7", try: 1 },
      { job: "job-1", invocation: "i-8", try: 1 },
    ]);
    again.send(1, 1, welcome("s-2"));
    const frame = await again.next();
    assert.equal(frame.frame, 2);
    assert.deepEqual(frame.messages, [{ type: "late", job: "job-1", invocation: "i-8", try: 1, result: "hello Ada" }]);
    release[0]?.();
    assert.deepEqual(await again.message(), {
      type: "late",
      job: "job-1",
      invocation: "i-7",
      try: 1,
      result: { aborted: false },
    });
    again.send(2, 2, { type: "deliver", routine: 1, outcomes: [{ position: "look", result: 1 }] }, startOf(1));
    assert.equal((await again.message())["delivered"], 0);
  });

  test("the back-off begins with 50 ms, and grows", async () => {
    start();
    const times: number[] = [];
    for (let i = 0; i < 5; i++) {
      const connection = await server.accept();
      times.push(performance.now());
      connection.cut();
    }
    const gaps = times.slice(1).map((time, i) => time - (times[i] as number));
    assert.ok((gaps[0] as number) >= 20 && (gaps[3] as number) >= 190, JSON.stringify(gaps));
  });

  // The whole job, with the connection cut before and after each frame of either side.
  for (const side of ["worker", "server"] as const) {
    for (let cutAt = 1; cutAt <= 4; cutAt++) {
      for (const isProcessed of [true, false]) {
        test(`the connection is cut at frame ${cutAt} of the ${side}, ${isProcessed ? "after" : "before"} it was processed`, async () => {
          await runWithCut(side, cutAt, isProcessed);
        });
      }
    }
  }
});

// A server with a session: it keeps its frames, and answers the two steps of the job.
async function runWithCut(side: "worker" | "server", cutAt: number, isProcessed: boolean): Promise<void> {
  const kept: { number: number; messages: ServerMessage[] }[] = [];
  let [sent, received, hasCut] = [0, 0, false];
  let connection: Connection;
  let done: (end: unknown) => void = () => {};
  const ended = new Promise((resolve) => (done = resolve));
  const advances: unknown[] = [];

  const write = (number: number, messages: ServerMessage[]): void => {
    if (side === "server" && number === cutAt && !hasCut) {
      hasCut = true;
      if (isProcessed) connection.send(number, received, ...messages);
      const cutting = connection;
      setTimeout(() => cutting.cut(), isProcessed ? 20 : 0);
      return;
    }
    connection.send(number, received, ...messages);
  };
  const answer = (...messages: ServerMessage[]): void => {
    kept.push({ number: ++sent, messages });
    write(sent, messages);
  };
  server.onConnection = (next) => {
    connection = next;
    next.onFrame = ({ frame, messages }) => {
      const hello = messages[0] as unknown as { type: string; resume?: { session: string; ack: number } };
      if (hello.type === "hello" && hello.resume) {
        const { ack } = hello.resume;
        next.send(0, received, welcome("s-1", { resumed: true }));
        for (const one of kept) if (one.number > ack) next.send(one.number, received, ...one.messages);
        return true;
      }
      if (hello.type === "hello") [sent, received, kept.length] = [0, 0, 0]; // a new session
      const isNew = frame === received + 1;
      if (side === "worker" && frame === cutAt && !hasCut) {
        hasCut = true;
        if (!isProcessed) {
          next.cut();
          return true;
        }
        received = Math.max(received, frame);
        process(messages);
        next.cut();
        return true;
      }
      if (!isNew) return true;
      received = frame;
      process(messages);
      return true;
    };
  };
  const process = (messages: Record<string, unknown>[]): void => {
    for (const message of messages) {
      if (message["type"] === "hello") answer(welcome("s-1"), startOf(1));
      if (message["type"] !== "advance") continue;
      advances.push(message["delivered"]);
      if (message["end"]) done(message["end"]);
      for (const request of (message["requests"] ?? []) as { position: string }[]) {
        if (request.position === "greet")
          answer(permit(5, "run:idempotent", { routine: 1, position: "greet", arguments: { name: "Ada" } }));
        else answer({ type: "deliver", routine: 1, outcomes: [{ position: "look", kind: "tool", result: "seen" }] });
      }
    }
  };
  start();
  assert.deepEqual(await ended, { result: ["hello Ada", "seen"] });
  assert.deepEqual(advances, [0, 1, 2], "each advance came once");
  assert.deepEqual(performed, ["key-5"]);
  server.onConnection = undefined;
}
