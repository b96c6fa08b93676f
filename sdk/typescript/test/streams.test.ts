// Streams of ctx.fetch whose calls are cut off: a worker, a scripted server, and an HTTP server.
import { test } from "node:test";
import assert from "node:assert/strict";
import { createServer, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { agent, serve, type Call, type Worker } from "../src/index.ts";
import { BodyStream, streamHosts } from "../src/streams.ts";
import { ScriptedServer, welcome } from "./support/server.ts";
import { permit, startOf } from "./support/wire.ts";

async function aborted(call: Call): Promise<void> {
  await new Promise<void>((resolve) => call.signal.addEventListener("abort", () => setImmediate(resolve)));
}

for (const [what, offersLate] of [
  ["that waits is not given after the end of its call", false],
  ["that is offered after the end of its call is not given", true],
] as const) {
  test(`a stream ${what}`, async () => {
    let answered = (_: ServerResponse): void => {};
    const answer = new Promise<ServerResponse>((resolve) => (answered = resolve));
    const http = createServer((_request, response) => {
      response.writeHead(200, { "content-type": "text/event-stream" }).write("1\n");
      answered(response);
    });
    await new Promise<void>((resolve) => http.listen(0, "127.0.0.1", resolve));
    const url = `http://127.0.0.1:${(http.address() as AddressInfo).port}/`;
    let given = (): void => {};
    const isGiven = new Promise<void>((resolve) => (given = resolve));
    let release = (): void => {};
    const released = new Promise<void>((resolve) => (release = resolve));
    let offered = (): void => {};
    const isOffered = new Promise<void>((resolve) => (offered = resolve));
    // Offers a stream, and does not notice that it is cut off.
    const unaware = async (_args: unknown, call: Call): Promise<string> => {
      if (offersLate) await aborted(call);
      const stream = new BodyStream({ status: 200, headers: {} });
      stream.push("2\n");
      streamHosts.get(call)?.offer(stream);
      offered();
      await released;
      return "2\n";
    };
    const one = agent("one", { version: "1" }, async (ctx) => {
      const read = async (): Promise<string> => {
        const response = await ctx.fetch(url, { name: "a" });
        given();
        return response.text();
      };
      const run = (): Promise<string> =>
        ctx.run("b", "read", {}, unaware).then(String, ({ code }: { code: string }) => code);
      return (await Promise.all([read(), run()])).join();
    });
    const server = await ScriptedServer.listen();
    const worker: Worker = serve(one, { socket: server.socket as string, log: () => {} });
    try {
      const connection = await server.accept();
      await connection.next();
      connection.send(1, 1, welcome("s-1"));
      connection.send(2, 1, startOf(1));
      await connection.message("advance");
      const args = { method: "GET", url, headers: {} };
      connection.send(3, 2, permit(5, "run:read", { routine: 1, position: "a", arguments: args }));
      const first = await answer;
      await isGiven;
      connection.send(4, 2, permit(6, "run:read", { routine: 1, position: "b", timeout_ms: 100 }));
      const ended = await connection.message("ended");
      assert.deepEqual([ended["call"], (ended["unknown"] as { code: string }).code], [6, "timeout"]);
      await isOffered;
      first.end();
      const read = await connection.message("advance");
      assert.deepEqual((read["functions"] as { call: number }[])[0]?.call, 5);
      const failure = { code: "timeout", message: "too late" };
      connection.send(5, 3, { type: "deliver", routine: 1, outcomes: [{ position: "b", kind: "tool", failure }] });
      const late = new Promise<never>((_, reject) => setTimeout(reject, 20_000, new Error("no advance")).unref());
      const last = await Promise.race([connection.message("advance"), late]);
      assert.deepEqual([last["delivered"], last["end"]], [2, { result: "1\n,timeout" }]);
    } finally {
      release();
      await worker.stop(0);
      await server.close();
      http.closeAllConnections();
      http.close();
    }
  });
}
