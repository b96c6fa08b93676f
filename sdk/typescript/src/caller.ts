// The place in the user's code from which a function of this package was called, for warnings.
import { dirname, relative } from "node:path";
import { fileURLToPath } from "node:url";

const FRAME = /[\s(]((?:file:\/\/)?\/[^()]+):(\d+):\d+\)?$/;

/**
 * agent.ts:14 of the first frame outside of the SDK's files `inner`, or of the whole SDK; undefined: it is not code of
 * the user.
 */
export function callerOf(inner: readonly string[] | "sdk"): string | undefined {
  const lines = (new Error().stack ?? "").split("\n").slice(1);
  const sdk = dirname(pathOf(FRAME.exec(lines[0] ?? "")?.[1] ?? "/")); // this function is the first
  for (const line of lines) {
    const found = FRAME.exec(line);
    if (found === null) {
      if (line.includes("at Reflect.") || line.includes("at Object.apply") || line.includes("<anonymous>")) continue;
      return undefined; // of Node
    }
    const path = pathOf(found[1] as string);
    if (path.startsWith(`${sdk}/`)) {
      if (inner === "sdk" || inner.some((name) => path.startsWith(`${sdk}/${name}.`))) continue;
      return undefined;
    }
    if (path.includes("/node_modules/")) return undefined;
    const short = relative(process.cwd(), path);
    return `${short.startsWith("..") ? path : short}:${found[2]}`;
  }
  return undefined;
}

function pathOf(place: string): string {
  return place.startsWith("file://") ? fileURLToPath(place) : place;
}
