// Streams: the body of an answer to ctx.fetch, while it comes.
//
// The function reads the body to its end, whether or not the code reads it. The routine is given the answer with the
// first piece of text. This is the delivery of the call's outcome: until the end of the stream is known, the routine
// sends nothing and is given nothing else. So nothing that follows from half an answer leaves the worker, and the
// recorded order is that of a whole answer. A stream that breaks after that is recorded with the text that was given,
// and its error.
import type { Call } from "./api.ts";
import type { JsonObject } from "./json.ts";
import type { FailureText } from "./protocol.ts";
import type { Routine } from "./routine.ts";

/** Gives the routine of a call the stream of its answer. */
export class StreamHost {
  private readonly call: number;
  private readonly position: string;
  private readonly routine: Routine;
  private stream: BodyStream | undefined; // that was offered
  private isWithdrawn = false;

  constructor(call: number, position: string, routine: Routine) {
    this.call = call;
    this.position = position;
    this.routine = routine;
  }

  offer(stream: BodyStream): void {
    if (this.isWithdrawn) return;
    this.stream = stream;
    this.routine.onStream(this.call, this.position, stream);
  }

  /** The call ends without the routine: it is given no stream, also none that is offered later. False: it has it. */
  withdraw(): boolean {
    if (this.stream?.isGiven) return false;
    this.isWithdrawn = true;
    this.routine.withdrawStream(this.call);
    return true;
  }
}

/** The hosts of calls whose answers may be streams. */
export const streamHosts = new WeakMap<Call, StreamHost>();

export class BodyStream {
  /** The answer without its body. */
  readonly head: JsonObject;
  /** The routine has it. */
  isGiven = false;
  private readonly pieces: string[] = [];
  private hasEnded = false;
  private failure: FailureText | undefined;
  private wake: (() => void) | undefined;

  constructor(head: JsonObject) {
    this.head = head;
  }

  push(piece: string): void {
    this.pieces.push(piece);
    this.wake?.();
  }

  close(failure?: FailureText): void {
    this.hasEnded = true;
    this.failure = failure;
    this.wake?.();
  }

  /** The bytes, once. After a stream that broke, the error that `errorOf` makes. */
  body(errorOf: (failure: FailureText) => Error): ReadableStream<Uint8Array<ArrayBuffer>> {
    const encoder = new TextEncoder();
    // Without a buffer of its own: an error discards what a buffer holds, and the code would miss text that is recorded.
    return new ReadableStream<Uint8Array<ArrayBuffer>>(
      {
        pull: async (controller) => {
          while (this.pieces.length === 0 && !this.hasEnded) await new Promise<void>((resolve) => (this.wake = resolve));
          const piece = this.pieces.shift();
          if (piece !== undefined) controller.enqueue(encoder.encode(piece));
          else if (this.failure !== undefined) controller.error(errorOf(this.failure));
          else controller.close();
        },
      },
      { highWaterMark: 0 },
    );
  }
}
