// OtherWork: the time that code may spend on what is not a request: a dynamic import, a file.
import { performance } from "node:perf_hooks";

/** How long code may do other work before a recorded request counts as missing. */
export const OTHER_WORK_MS = 10_000;

export class OtherWork {
  private readonly ms: number;
  private timer: NodeJS.Timeout | undefined;
  private until: number | undefined;

  constructor(ms: number) {
    this.ms = ms;
  }

  /** Milliseconds that are left. They begin with the first call. */
  left(): number {
    this.until ??= performance.now() + this.ms;
    return this.until - performance.now();
  }

  /** The code was given something: its time begins again. */
  renew(): void {
    this.until = undefined;
  }

  /** Calls this after the time, unless it waits already. */
  wait(then: () => void, ms = this.ms): void {
    this.timer ??= setTimeout(() => {
      this.timer = undefined;
      then();
    }, ms);
  }

  stop(): void {
    clearTimeout(this.timer);
    this.timer = undefined;
  }
}
