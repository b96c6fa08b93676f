// The vectors that every SDK shares: testdata/vectors/NAME.json. A copy of the SDK below the repository finds them, too.
import { existsSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";

export function vectors<T>(name: string): T {
  for (let folder = import.meta.dirname; ; folder = dirname(folder)) {
    const file = join(folder, `testdata/vectors/${name}.json`);
    if (existsSync(file) || folder === dirname(folder)) return JSON.parse(readFileSync(file, "utf8")) as T;
  }
}
