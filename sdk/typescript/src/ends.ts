// How code ends, from what it threw; and where in the agent's code that was.
import { failureIn, type AetherisError } from "./errors.ts";
import { scrubText } from "./secrets.ts";
import type { FailureText, RoutineEnd } from "./protocol.ts";

const MESSAGE_MAX = 4_096; // characters of an exception's message
const STACK_MAX = 16_384;

/** A message as it is sent. */
export function textOf(message: string): string {
  return scrubText(message).slice(0, MESSAGE_MAX).toWellFormed();
}

export function failureText(failure: AetherisError): FailureText {
  return { code: failure.code, message: textOf(failure.message) };
}

export function exceptionOf(error: unknown): NonNullable<RoutineEnd["exception"]> {
  if (!(error instanceof Error))
    return {
      name: "no_error",
      message: textOf(`the code threw a value that is not an Error: ${String(error)}`),
    };
  const exception: NonNullable<RoutineEnd["exception"]> = {
    name: error.name.slice(0, 200),
    message: textOf(error.message),
  };
  if (error.stack) exception.stack = scrubText(error.stack).slice(0, STACK_MAX).toWellFormed();
  return exception;
}

// A failure that the agent throws, or does not catch, ends its job. Any other error is a mistake in its code.
export function endOf(error: unknown): RoutineEnd {
  const failure = failureIn(error);
  return failure ? { failure: failureText(failure) } : { exception: exceptionOf(error) };
}

// As stacks name it. There is no import.meta in the CommonJS form.
const SDK_FOLDER = /((?:file:\/\/)?\/.*\/)[^/]+:\d+:\d+\)?$/m.exec(new Error().stack ?? "")?.[1] ?? "node:";

/** The line of the agent's code in a stack: the first that is not of the SDK or of Node. */
export function whereOf(stack: string | undefined): string | undefined {
  for (const line of (stack ?? "").split("\n").slice(1)) {
    if (line.includes(SDK_FOLDER) || line.includes("node:") || line.includes("<anonymous>")) continue;
    return line.trim().replace(/^at /, "").slice(0, 500);
  }
  return undefined;
}
