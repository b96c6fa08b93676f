// Answers of model APIs: the vectors that every SDK shares, testdata/vectors/model_answers.json.
import { describe, test } from "node:test";
import assert from "node:assert/strict";
import type { JsonObject } from "../src/json.ts";
import { ModelAnswer } from "../src/model_answers.ts";
import { vectors } from "./support/vectors.ts";

interface Case {
  about: string;
  request: JsonObject;
  content_type: string;
  body: string;
  text?: string;
  usage: JsonObject | null;
}

describe("answers of models", () => {
  for (const { about, request, content_type, body, text, usage } of vectors<{ answers: Case[] }>("model_answers").answers) {
    test(about, () => {
      const isStream = content_type === "text/event-stream";
      for (const size of isStream ? [1, 7, body.length] : [body.length]) {
        const answer = ModelAnswer.of(request);
        let shown = "";
        if (!isStream) answer?.read(body);
        else for (let at = 0; at < body.length; at += size) shown += answer?.feed(body.slice(at, at + size)) ?? "";
        shown += answer?.end() ?? "";
        assert.equal(shown, text ?? "");
        assert.deepEqual(answer?.usage() ?? null, usage);
      }
    });
  }
});
