// Positions: names the requests of one routine. The first `charge` of scope `items/2` is items/2/charge, the second
// items/2/charge#2, one with a key items/2/charge@KEY, one by its content items/2/charge~HASH.
//
// Positions depend on the names and on the order of requests only, so a new routine names the same requests in the
// same way.
import { InvalidInput } from "./errors.ts";
import { hasSecret, scrubText } from "./secrets.ts";

const POSITION_MAX = 512; // bytes
const SCOPES_MAX = 16;
const NAME = /^[A-Za-z0-9_.:-]{1,64}$/;
const KEY = /^[A-Za-z0-9_.:-]{1,128}$/;

type Use = "closed" | "numbered" | "turns" | "branches";

/** A position is recorded as it is, so it has no secret. */
export function isRequestName(name: unknown): name is string {
  return typeof name === "string" && NAME.test(name) && !hasSecret(name);
}

export function joined(scope: string, name: string | number): string {
  return scope === "" ? String(name) : `${scope}/${name}`;
}

export function isInside(position: string, scope: string): boolean {
  return position.startsWith(`${scope}/`);
}

function checkName(name: string): void {
  if (isRequestName(name)) return;
  throw new InvalidInput(
    `the name of a request or scope has 1 to 64 letters, digits, "_", ".", ":" and "-" and no secret, not ${quoted(name)}`,
  );
}

/** The begin of a text that was refused, for a message. */
export function quoted(text: unknown): string {
  return `"${scrubText(String(text)).slice(0, 100)}"`;
}

function checkPosition(position: string): string {
  if (position.length <= POSITION_MAX && position.split("/").length <= SCOPES_MAX + 1) return position;
  throw new InvalidInput(
    `"${position.slice(0, 100)}" is not a position: it has at most ${POSITION_MAX} bytes and ${SCOPES_MAX} scopes`,
  );
}

export class Positions {
  private readonly counts = new Map<string, number>(); // of requests, by position without #n
  private readonly keys = new Set<string>();
  private readonly scopes = new Map<string, Use>();

  /** Of the next request with this name, key or content. Throws InvalidInput. */
  next(scope: string, name: string, options: { key?: string | undefined; content?: string | undefined } = {}): string {
    checkName(name);
    const position = joined(scope, name);
    if (options.key !== undefined) {
      if (!KEY.test(options.key) || hasSecret(String(options.key))) {
        throw new InvalidInput(
          `the key of "${name}" has 1 to 128 letters, digits, "_", ".", ":" and "-" and no secret, not ${quoted(options.key)}`,
        );
      }
      const keyed = checkPosition(`${position}@${options.key}`);
      if (this.keys.has(keyed))
        throw new InvalidInput(`the key "${options.key}" of "${name}" was used before in its scope`);
      this.keys.add(keyed);
      return keyed;
    }
    const counted = options.content === undefined ? position : `${position}~${options.content}`;
    const count = (this.counts.get(counted) ?? 0) + 1;
    const found = checkPosition(count === 1 ? counted : `${counted}#${count}`);
    this.counts.set(counted, count);
    return found;
  }

  /** Of a closed scope: `name`, or `name/number`. Throws InvalidInput: also if it was used before. */
  closedScope(scope: string, name: string, number?: number): string {
    checkName(name);
    let position = joined(scope, name);
    if (number !== undefined) {
      this.use(position, "numbered");
      position = joined(position, number);
    }
    checkPosition(position);
    if (this.counts.has(position) || this.scopes.has(position)) {
      throw new InvalidInput(
        `"${position}" was used before; give each closed scope a name of its own, or use ctx.loop`,
      );
    }
    this.scopes.set(position, "closed");
    this.counts.set(position, 1); // a request with this name is its second
    return position;
  }

  /** Of a loop. Throws InvalidInput: also if the name was used before. */
  loop(scope: string, name: string): string {
    checkName(name);
    const position = checkPosition(joined(scope, name));
    if (this.scopes.has(position)) {
      throw new InvalidInput(`"${position}" was used before; give each loop a name of its own`);
    }
    this.scopes.set(position, "turns");
    return position;
  }

  /** The scope of the branches of a map or race, or a scope that is not closed. Its names count on if it is used again. */
  openScope(scope: string, name: string): string {
    checkName(name);
    const position = checkPosition(joined(scope, name));
    this.use(position, "branches");
    return position;
  }

  /** This closed scope has ended: no position inside of it is requested any more. */
  forgetInside(scope: string): void {
    for (const positions of [this.counts, this.keys, this.scopes]) {
      for (const position of positions.keys()) if (isInside(position, scope)) positions.delete(position);
    }
  }

  private use(position: string, use: Use): void {
    const known = this.scopes.get(position);
    if (known === undefined) this.scopes.set(position, use);
    else if (known !== use) {
      throw new InvalidInput(
        `the scope "${position}" was used before: closed scopes, loops, and the branches of a map or race, have different names`,
      );
    }
  }
}
