// What tests of primitives check of a job.
import assert from "node:assert/strict";
import type { TestJob } from "./harness.ts";

/** The job again, from its log: the same end, and nothing else is requested. */
export async function replayed(job: TestJob): Promise<void> {
  const { result, engine } = job;
  const log = JSON.stringify(engine.record());
  engine.end = undefined;
  job.restart();
  await job.run();
  assert.deepEqual(job.result, result);
  assert.equal(JSON.stringify(engine.record()), log);
}

/** Runs the job until something outside of it has happened. */
export async function until(job: TestJob, isDone: () => boolean): Promise<void> {
  for (const end = Date.now() + 60_000; !isDone() && Date.now() < end;) {
    await new Promise((resolve) => setTimeout(resolve, 5));
    await job.run();
  }
}

export const positions = (job: TestJob): string[] => [...job.engine.log.keys()];
