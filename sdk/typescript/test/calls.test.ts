// The calls of a session: functions, their ends, and what the worker awaits before it stops, against a scripted server.
import { describe, test } from "node:test";
import assert from "node:assert/strict";
import { welcome } from "./support/server.ts";
import { logged, open, performed, permit, release, server, startOf, useServer, worker } from "./support/wire.ts";

useServer();

describe("calls", () => {
  test("progress and text are sent while a function runs, then its end", async () => {
    const connection = await open();
    connection.send(2, 1, permit(1, "slow"));
    const messages = [
      await connection.message(),
      await connection.message(),
      await connection.message(),
      await connection.message(),
    ];
    assert.deepEqual(messages, [
      { type: "progress", call: 1, value: { percent: 10 } },
      { type: "text", call: 1, at: 0, text: "abc" },
      { type: "text", call: 1, at: 3, text: "ü" },
      { type: "text", call: 1, at: 5, text: "d" },
    ]);
    release[0]?.();
    assert.deepEqual(await connection.message(), { type: "ended", call: 1, result: { aborted: false } });
  });

  test("a report of progress beyond 4,096 bytes is refused at its line", async () => {
    const connection = await open();
    connection.send(2, 1, permit(1, "reports"));
    assert.deepEqual(await connection.message(), { type: "progress", call: 1, value: "x".repeat(4094) });
    assert.deepEqual(await connection.message("ended"), {
      type: "ended",
      call: 1,
      result: { isInvalid: true, code: "payload_too_large", isHere: true },
    });
  });

  test("of the text of a call 16 MiB are sent, in pieces that follow each other", async () => {
    const connection = await open();
    connection.send(2, 1, permit(1, "writes"));
    let at = 0;
    let text = "";
    for (;;) {
      const message = await connection.message();
      if (message.type === "ended") break;
      assert.deepEqual([message.type, message["at"]], ["text", at]);
      at += Buffer.byteLength(message["text"] as string);
      text += message["text"] as string;
    }
    const all = `${"\u0000".repeat(6 << 20)}😀${"y".repeat(12 << 20)}`;
    assert.ok(at <= 16 << 20 && at > 15 << 20, `${at}`);
    assert.ok(all.startsWith(text));
  });

  test("a failure, an exception and a result that is not JSON", async () => {
    const connection = await open();
    connection.send(2, 1, permit(1, "fails"), permit(2, "throws"), permit(3, "no_json"), permit(4, "unknown"));
    const ends = [];
    for (let i = 0; i < 4; i++) ends.push(await connection.message("ended"));
    const by = Object.fromEntries(ends.map((end) => [end["call"], end])) as Record<number, Record<string, unknown>>;
    assert.deepEqual(by[1]?.["failure"], {
      code: "busy",
      message: "try later",
      definite: true,
      retryable: true,
      retry_after_ms: 1500,
    });
    assert.deepEqual(by[2]?.["unknown"], { code: "exception", message: "TypeError: x is undefined" });
    assert.match(JSON.stringify(by[3]?.["failure"]), /"tool_output_invalid".*bigint.*"definite":false/);
    assert.deepEqual(
      [
        (by[4]?.["failure"] as Record<string, unknown>)["code"],
        (by[4]?.["failure"] as Record<string, unknown>)["definite"],
      ],
      ["not_sent", true],
    );
  });

  test("a permit for a call that the code has cancelled is not used, unless it may make an outcome known", async () => {
    const connection = await open();
    connection.send(2, 1, startOf(1, { agent: "chooses", version: "" }));
    assert.deepEqual(
      ((await connection.message())["requests"] as { position: string }[]).map(({ position }) => position),
      ["r/a/fails", "r/b/receive"],
    );
    connection.send(3, 2, { type: "deliver", routine: 1, outcomes: [{ position: "r/b/receive", result: 1 }] });
    const advance = await connection.message();
    assert.deepEqual([advance["cancelled"], advance["delivered"]], [["r/a/fails"], 1]);
    connection.send(4, 3, permit(1, "fails", { routine: 1, position: "r/a/fails" }));
    assert.equal(((await connection.message())["failure"] as { code: string }).code, "not_sent");
    connection.send(5, 4, permit(2, "fails", { routine: 1, position: "r/a/fails", try: 2 }));
    assert.equal(((await connection.message())["failure"] as { code: string }).code, "busy");
  });

  test("a permit that comes too late is not used", async () => {
    const connection = await open();
    connection.send(2, 1, startOf(1));
    await connection.message();
    await new Promise((resolve) => setTimeout(resolve, 60));
    // It counts from the frame that the permit acknowledges: the hello, which was sent before.
    connection.send(3, 1, permit(1, "slow", { send_within_ms: 50 }));
    const end = await connection.message();
    assert.deepEqual((end["failure"] as Record<string, unknown>)["code"], "not_sent");
    assert.deepEqual(performed, []);
    await new Promise((resolve) => setTimeout(resolve, 60));
    connection.send(4, 2, permit(2, "slow", { send_within_ms: 100_000 }));
    await connection.message("progress");
    assert.deepEqual(performed, ["key-2"]);
  });

  test("a permit counts from the frame that it acknowledges, not from the hello", async () => {
    const connection = await open();
    await new Promise((resolve) => setTimeout(resolve, 150));
    connection.send(2, 1, startOf(1));
    await connection.message();
    connection.send(3, 2, permit(1, "run:idempotent", { routine: 1, position: "greet", send_within_ms: 140 }));
    assert.deepEqual((await connection.message())["delivered"], 1);
  });

  test("a function that does not return in time ends as unknown, and later as late", async () => {
    const connection = await open();
    connection.send(2, 1, permit(1, "slow", { timeout_ms: 30 }));
    assert.deepEqual((await connection.message("ended"))["unknown"], {
      code: "timeout",
      message: "the function did not return within 30 ms",
    });
    release[0]?.();
    assert.deepEqual(await connection.message(), {
      type: "late",
      job: "job-1",
      invocation: "i-1",
      try: 1,
      result: { aborted: true },
    });
  });

  test("a function that throws the reason of its signal has an unknown outcome: it is no definite failure", async () => {
    const connection = await open();
    connection.send(2, 1, permit(1, "stops", { timeout_ms: 30 }));
    assert.equal(((await connection.message("ended"))["unknown"] as { code: string }).code, "timeout");
    connection.send(3, 2, permit(2, "fails"));
    const next = await connection.message();
    assert.deepEqual([next.type, next["call"]], ["ended", 2], "nothing is known of the call that was cut off");
  });

  test("a call that is abandoned is cut off", async () => {
    const connection = await open();
    connection.send(2, 1, permit(1, "slow"));
    await connection.message("text");
    connection.send(3, 2, { type: "abandon", call: 1 });
    assert.equal(((await connection.message("ended"))["unknown"] as { code: string }).code, "abandoned");
  });

  test("the success of a routine that was dropped ends its call", async () => {
    const connection = await open();
    connection.send(2, 1, startOf(1));
    await connection.message();
    connection.send(3, 2, permit(5, "run:idempotent", { routine: 1, position: "greet" }), {
      type: "stop",
      routine: 1,
      reason: "suspended",
    });
    assert.deepEqual(await connection.message(), { type: "ended", call: 5, result: "hello undefined" });
  });
});

describe("stopping", () => {
  test("drain: the worker awaits its functions, sends their ends and closes with 1000", async () => {
    const connection = await open();
    connection.send(2, 1, permit(1, "slow"));
    await connection.message("text");
    const stopped = worker?.stop(120_000);
    await connection.message("drain");
    release[0]?.();
    assert.deepEqual(await connection.message("ended"), { type: "ended", call: 1, result: { aborted: false } });
    const close = await connection.control();
    assert.deepEqual([close.opcode, close.payload.readUInt16BE(0)], [8, 1000]);
    await stopped;
  });

  test("drain: while the connection is lost, functions are awaited, and their ends are reported after it", async () => {
    const connection = await open();
    connection.send(2, 1, permit(1, "slow"));
    await connection.message("text");
    connection.cut();
    while (!logged.some((line) => line.includes("not connected"))) await new Promise((resolve) => setImmediate(resolve));
    const stopped = worker?.stop(120_000);
    release[0]?.();
    const again = await server.accept();
    const resumed = (await again.next()).messages[0] as unknown as { resume: { session: string } };
    assert.equal(resumed.resume.session, "s-1");
    again.send(0, connection.received, welcome("s-1", { resumed: true }));
    assert.deepEqual(await again.message("ended"), { type: "ended", call: 1, result: { aborted: false } });
    assert.equal((await again.control()).payload.readUInt16BE(0), 1000);
    await stopped;
  });

  test("drain: a new session gets the end of a call of the one before", async () => {
    const connection = await open();
    connection.send(2, 1, permit(1, "slow"));
    await connection.message("text");
    connection.cut();
    const stopped = worker?.stop(120_000);
    const again = await server.accept();
    await again.next();
    again.send(1, 1, welcome("s-2"));
    await again.message("drain");
    release[0]?.();
    const late = await again.message("late");
    assert.deepEqual([late["invocation"], late["result"]], ["i-1", { aborted: false }]);
    await stopped;
  });

  test("drain: without a connection and without calls, the worker stops at once", async () => {
    const connection = await open();
    connection.send(2, 1, startOf(2, { agent: "waits", version: "" }));
    await connection.message("advance");
    connection.cut();
    while (!logged.some((line) => line.includes("not connected"))) await new Promise((resolve) => setImmediate(resolve));
    const began = performance.now();
    await worker?.stop(20_000);
    assert.ok(performance.now() - began < 5_000);
  });

  test("drain: what does not end within the grace period is cut off", async () => {
    const connection = await open();
    connection.send(2, 1, permit(1, "slow"), startOf(2, { agent: "waits", version: "" }));
    await connection.message("text");
    const stopped = worker?.stop(30);
    assert.equal(((await connection.message("ended"))["unknown"] as { code: string }).code, "abandoned");
    await stopped;
  });
});
