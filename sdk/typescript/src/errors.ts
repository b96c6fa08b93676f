// The errors of the SDK. Each has a stable `code`, and a message that states what failed, where, and what to do.

/**
 * Makes `instanceof` true also for errors of another copy of this package in the process, for example its CommonJS
 * form beside its ES modules.
 */
function brand(type: { prototype: object }, name: string): void {
  const symbol = Symbol.for(`aetheris.${name}`);
  Object.defineProperty(type.prototype, symbol, { value: true });
  Object.defineProperty(type, Symbol.hasInstance, {
    value(this: unknown, value: unknown): boolean {
      if (this !== type) return Function.prototype[Symbol.hasInstance].call(this, value); // a class of the user
      return typeof value === "object" && value !== null && symbol in value;
    },
  });
}

/** The base of all errors that the SDK throws. Act on `code`; the message is for people. */
export class AetherisError extends Error {
  static {
    brand(this, "AetherisError");
  }
  readonly code: string;
  constructor(code: string, message: string, options?: { cause?: unknown }) {
    super(message, options);
    this.name = new.target.name;
    this.code = code;
  }
}

/**
 * A failure that you throw on purpose.
 *
 * - Thrown by an agent: the job fails with this code and message.
 * - Thrown by a function (`tool`, `ctx.run`): a definite failure. It states that the call had no effect. If you do not
 *   know that, throw any other error: the outcome is then unknown, and the effect class decides what follows.
 *
 * A closed scope that failed throws one, too.
 */
export class Failure extends AetherisError {
  static {
    brand(this, "Failure");
  }
}

/**
 * Thrown by a function: the call certainly had no effect. Another try is made if the tool's `retry` has one left and
 * `retry_on` names `code`, not earlier than after `retry_after_ms`. `retryable` is recorded for readers.
 */
export class NotDone extends Failure {
  static {
    brand(this, "NotDone");
  }
  readonly retryable: boolean;
  readonly retry_after_ms: number | undefined;
  constructor(code: string, message: string, options: { retryable?: boolean; retry_after_ms?: number } = {}) {
    super(code, message);
    this.retryable = options.retryable ?? false;
    this.retry_after_ms = options.retry_after_ms;
  }
}

/** A request failed for good: its tries are used up, a policy denied it, or its arguments were refused. */
export class ToolFailed extends AetherisError {
  static {
    brand(this, "ToolFailed");
  }
  /** The tool of the call, or the type of the wait. */
  readonly tool: string;
  /** The position of the request. */
  readonly position: string;
  constructor(code: string, message: string, tool: string, position: string) {
    super(code, message);
    this.tool = tool;
    this.position = position;
  }
}

/** The answer to an approval or to another human wait is a rejection. Code: `rejected`. */
export class Rejected extends ToolFailed {
  static {
    brand(this, "Rejected");
  }
  /** What the approver wrote. Empty: nothing. */
  readonly note: string;
  constructor(tool: string, position: string, note: string) {
    super("rejected", `"${position}" was rejected${note === "" ? "" : `: ${note}`}`, tool, position);
    this.note = note;
  }
}

/** Nothing came before the wait expired. Code: `wait_expired`. */
export class WaitExpired extends ToolFailed {
  static {
    brand(this, "WaitExpired");
  }
  constructor(tool: string, position: string) {
    super("wait_expired", `there was no answer to "${position}" before the wait expired`, tool, position);
  }
}

/** `cancel()` was called on the request. Code: `cancelled`. */
export class Cancelled extends ToolFailed {
  static {
    brand(this, "Cancelled");
  }
  constructor(tool: string, position: string, reason: string | undefined) {
    super("cancelled", `the request "${position}" was cancelled${reason ? `: ${reason}` : ""}`, tool, position);
  }
}

/**
 * A mistake in the code of the agent, found at the line that has it: a value that is not JSON, a name that is not
 * allowed, a key that was used before. Code: `input_invalid`, `payload_too_large` or `wrong_context`. If nothing
 * catches it, the job parks until other code comes.
 */
export class InvalidInput extends AetherisError {
  static {
    brand(this, "InvalidInput");
  }
  constructor(message: string, code = "input_invalid") {
    super(code, message);
  }
}

/** The connection to the server cannot be made or used. `serve` rejects with it only if a retry cannot help. */
export class ConnectionFailed extends AetherisError {
  static {
    brand(this, "ConnectionFailed");
  }
}

/** The failure in an error or in its causes; undefined: it has none. Libraries often wrap the errors of their calls. */
export function failureIn(error: unknown): Failure | ToolFailed | undefined {
  let at: unknown = error;
  for (let depth = 0; depth < 8 && at instanceof Error; depth++) {
    if (at instanceof Failure || at instanceof ToolFailed) return at;
    at = at.cause;
  }
  return undefined;
}
