// The vectors that every SDK shares: testdata/vectors/code.json.
import { describe, test } from "node:test";
import assert from "node:assert/strict";
import { InvalidInput } from "../src/errors.ts";
import { blindedHash, canonical, type Json } from "../src/json.ts";
import { Positions } from "../src/positions.ts";
import { RandomNumbers } from "../src/values.ts";
import { vectors as vectorsOf } from "./support/vectors.ts";

interface Step {
  act: "next" | "closed_scope" | "loop" | "open_scope" | "forget_inside";
  scope: string;
  name: string;
  key?: string;
  number?: number;
  gives: string | null;
}
interface Vectors {
  positions: { about: string; steps: Step[] }[];
  random: { seed: string; scope: string; numbers: number[] }[];
  arguments: { blind: string; arguments: Json; canonical: string; hash: string }[];
}

const vectors = vectorsOf<Vectors>("code");

function given(positions: Positions, step: Step): string | null {
  try {
    if (step.act === "next") return positions.next(step.scope, step.name, { key: step.key });
    if (step.act === "closed_scope") return positions.closedScope(step.scope, step.name, step.number);
    return step.act === "loop" ? positions.loop(step.scope, step.name) : positions.openScope(step.scope, step.name);
  } catch (error) {
    assert.ok(error instanceof InvalidInput, String(error));
    return null;
  }
}

describe("vectors", () => {
  for (const { about, steps } of vectors.positions) {
    test(`positions: ${about}`, () => {
      const positions = new Positions();
      for (const step of steps) {
        if (step.act === "forget_inside") positions.forgetInside(step.scope);
        else assert.equal(given(positions, step), step.gives, JSON.stringify(step));
      }
    });
  }

  test("random numbers follow from the seed and the scope", () => {
    for (const { seed, scope, numbers } of vectors.random) {
      const found = new RandomNumbers(seed, scope);
      assert.deepEqual(
        numbers.map(() => found.next()),
        numbers,
      );
    }
  });

  test("hashes of arguments", () => {
    for (const one of vectors.arguments) {
      assert.equal(canonical(one.arguments), one.canonical);
      assert.equal(blindedHash(one.blind, one.arguments), one.hash);
    }
  });
});
