// replay of aetheris/testing, with the real program: AETHERIS_BIN names it; without it these tests are skipped.
import { after, before, describe, test } from "node:test";
import assert from "node:assert/strict";
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { agent, AetherisError, ConnectionFailed, InvalidInput, tool } from "../src/index.ts";
import * as testing from "../src/testing.ts";

const program = process.env["AETHERIS_BIN"];
const skip = program !== undefined && existsSync(program) ? false : "AETHERIS_BIN does not name the program";

let paid = 0;
const pay = tool("pay", { effect: "idempotent" }, ({ order }: { order: string }) => {
  paid++;
  return order;
});
const refund = agent("refund", {}, async (ctx, input: { order: string }) => {
  const order = await ctx.call(pay, { order: input.order });
  await ctx.wait({ type: "signal", wait_key: "go" });
  return { order };
});
const other = agent("other", {}, () => 1);
// The same agent, changed.
const sum = agent("refund", {}, async (ctx, input: { order: string }) => {
  const order = await ctx.call(pay, { order: `${input.order}0` });
  await ctx.wait({ type: "signal", wait_key: "go" });
  return { order };
});
const longer = agent("refund", {}, async (ctx, input: { order: string }) => {
  const order = await ctx.call(pay, { order: input.order });
  await ctx.wait({ type: "signal", wait_key: "go" });
  await ctx.sleep("1d");
  return { order };
});
const throws = agent("refund", {}, async (ctx, input: { order: string }) => {
  void ctx.call(pay, { order: input.order });
  void ctx.wait({ type: "signal", wait_key: "go" });
  throw new TypeError("a bug");
});
const coded = (code: string, text = /./) => (error: AetherisError) => error.code === code && text.test(error.message);

describe("replay", { skip }, () => {
  let t: testing.Testing;
  let folder: string;
  before(async () => {
    folder = mkdtempSync(join(tmpdir(), "aetheris-test-"));
    t = await testing.start({ agents: [refund, other], tools: [pay] });
    for (const order of ["7", "8"]) {
      const job = t.job(refund, { order }, { id: `refund-${order}` });
      await t.until(job, "waiting");
      writeFileSync(join(folder, `${job.id}.json`), JSON.stringify({ events: await job.events() }));
    }
    const ended = t.job(refund, { order: "9" }, { id: "ended" });
    await t.signal(ended, "go");
    await ended.result();
    writeFileSync(join(folder, "ended.json"), JSON.stringify({ events: await ended.events() }));
    const odd = t.job(other, {}, { id: "odd" });
    await odd.result();
    writeFileSync(join(folder, "odd.json"), JSON.stringify({ events: await odd.events() }));
    paid = 0;
  });
  after(async () => {
    assert.equal(paid, 0, "a function was called");
    await t.close();
    rmSync(folder, { recursive: true });
  });

  test("code that fits the logs passes", async () => {
    const jobs = await testing.replay(join(folder, "refund-*.json"), [refund, pay]);
    assert.deepEqual(
      jobs.map(({ job, verdict, recorded_requests }) => [job, verdict, recorded_requests]),
      [["refund-7", "continues", 2], ["refund-8", "continues", 2]],
    );
    // Jobs of other agents are skipped.
    assert.equal((await testing.replay(folder, [refund, pay])).length, 3);
    assert.equal((await testing.replay([join(folder, "odd.json"), join(folder, "e?ded.json")], [other, pay])).length, 1);
  });

  test("code that does not fit fails with what differs", async () => {
    await assert.rejects(
      testing.replay(`${folder}/refund-*`, [sum, pay]),
      coded("replay_diverged", /^2 of 2 .*job refund-7 \(agent refund\) diverges.*position pay.*testing_replay\.test\.ts.*recorded: call of tool "pay" \{"order":"7"\}/s),
    );
    // What follows the records of a job that has not ended is not compared.
    assert.equal((await testing.replay(`${folder}/refund-7.json`, [longer, pay])).length, 1);
    await assert.rejects(testing.replay(`${folder}/ended.json`, [longer, pay]), coded("replay_diverged", /sleep/));
    await assert.rejects(testing.replay(`${folder}/refund-7.json`, [throws, pay]), coded("replay_diverged", /TypeError: a bug/));
  });

  test("the jobs of a server", async () => {
    assert.equal((await testing.replay({ url: t.url }, [refund, pay])).length, 2, "those that have not ended");
    await assert.rejects(testing.replay({ url: t.url, jobs: ["refund-8"] }, [sum, pay]), coded("replay_diverged", /^1 of 1/));
    await assert.rejects(testing.replay({ url: t.url, jobs: ["nobody"] }, [refund]), coded("not_found"));
  });

  test("a job that cannot be judged does not pass", async () => {
    await assert.rejects(testing.replay(`${folder}/refund-7.json`, [refund]), coded("replay_diverged", /not judged.*pay/));
    await assert.rejects(testing.replay(`${folder}/odd.json`, [refund, pay]), coded("not_found", /refund in 1 jobs/));
    writeFileSync(join(folder, "broken.txt"), "{}");
    await assert.rejects(testing.replay(`${folder}/broken.txt`, [refund]), coded("usage", /not the log of a job/));
    await assert.rejects(testing.replay(`${folder}/none.json`, [refund]), coded("usage", /there is no/));
    await assert.rejects(testing.replay(`${folder}/none*.json`, [refund]), InvalidInput);
    await assert.rejects(testing.replay([], [refund]), InvalidInput);
    await assert.rejects(testing.replay(folder, [refund], { program: "/nowhere" }), ConnectionFailed);
  });
});
