// agent and tool: what a worker offers.
import type { Agent, AgentDefinition, Call, Ctx, Tool, ToolDefinition } from "./api.ts";
import { InvalidInput } from "./errors.ts";
import type { Json } from "./json.ts";

const NAME = /^[A-Za-z_][A-Za-z0-9_-]{0,63}$/; // as in the agents file
/** Marks agents and tools, also those of another copy of this package. */
const OFFER = Symbol.for("aetheris.offer");
const EFFECTS = ["read", "idempotent", "at_most_once"];

function checkName(name: string, what: string): void {
  if (typeof name === "string" && NAME.test(name)) return;
  throw new InvalidInput(
    `"${String(name).slice(0, 100)}" is not a name of ${what}: it has 1 to 64 letters, digits, "_" and "-", and begins with a letter or "_"`,
  );
}

function marked<T extends object>(offer: T): T {
  return Object.defineProperty(offer, OFFER, { value: true });
}

/**
 * A tool that this worker performs. `definition` is its policy, with the names and defaults of the agents file; the
 * stricter of both holds. `fn` is called once for each permit of the server: the engine retries, not the function. It
 * returns JSON; throws `Failure` or `NotDone` if there was certainly no effect; anything else that it throws is an
 * unknown outcome, with the code `exception`.
 *
 * Throws `InvalidInput`: the name or the effect is not valid.
 */
export function tool<A = Json, R = Json>(
  name: string,
  definition: ToolDefinition,
  fn: (args: A, call: Call) => R | Promise<R>,
): Tool<A, R> {
  checkName(name, "a tool");
  if (definition.effect !== undefined && !EFFECTS.includes(definition.effect)) {
    throw new InvalidInput(
      `tool "${name}": the effect is read, idempotent or at_most_once, not "${String(definition.effect)}"`,
    );
  }
  if (typeof fn !== "function") throw new InvalidInput(`tool("${name}", definition, fn): fn must be a function`);
  return marked({ kind: "tool", name, definition, fn });
}

/**
 * An agent: a function whose requests are recorded. It may run again at any time, from its beginning, and is then given
 * the same outcomes, so all that reaches outside of it goes through `ctx`. Its result is the job's. A `Failure` that it
 * throws fails the job; any other error parks it until other code comes.
 *
 * Throws `InvalidInput`: the name is not valid.
 */
export function agent<I = Json, R = Json>(
  name: string,
  definition: AgentDefinition,
  fn: (ctx: Ctx, input: I) => R | Promise<R>,
): Agent<I, R> {
  checkName(name, "an agent");
  if (typeof fn !== "function") throw new InvalidInput(`agent("${name}", definition, fn): fn must be a function`);
  return marked({ kind: "agent", name, definition, fn });
}

// A tool or agent of any type of arguments and result.
// eslint-disable-next-line @typescript-eslint/no-explicit-any
export type AnyTool = Tool<any, any>;
export type AnyAgent = Agent<any, any>;

export function isOffer(value: unknown): value is AnyTool | AnyAgent {
  return typeof value === "object" && value !== null && OFFER in value;
}
