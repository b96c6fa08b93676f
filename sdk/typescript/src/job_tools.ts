// The tools of the server that start other jobs and send to them: their names, grants and ids.
import { createHash } from "node:crypto";

export const SEND = "job:send";
const CHILD = "agent:";
const DETACHED = ":detached";
// Tools that no pattern of `uses` grants.
const NAMED = /^(model|agent|job):/;

/** The tool that starts a job of this agent. */
export function childTool(agent: string, detached: boolean): string {
  return `${CHILD}${agent}${detached ? DETACHED : ""}`;
}

/** The entry of `uses` that grants a tool. */
export function grantOf(tool: string): string {
  return tool.startsWith(CHILD) && tool.endsWith(DETACHED) ? tool.slice(0, -DETACHED.length) : tool;
}

/** Does `uses` of an agent grant the tool? */
export function grants(uses: readonly string[], tool: string): boolean {
  const grant = grantOf(tool);
  const matches = (one: string): boolean => one === "*" || (one.endsWith(".*") && tool.startsWith(one.slice(0, -1)));
  return uses.some((one) => one === grant || (!NAMED.test(tool) && matches(one)));
}

/** Of the child job that is started at a position (SPEC §3). */
export function childJobId(job: string, steps: { decision: string; path: string }, position: string): string {
  const hash = (...parts: string[]): Buffer => createHash("sha256").update(parts.join("\0")).digest();
  const step = hash(job, steps.decision, `${steps.path}/${position}`, "tool").toString("hex").slice(0, 16);
  const id = hash(job, step, "child").subarray(0, 16);
  id[6] = ((id[6] ?? 0) & 0x0f) | 0x80;
  id[8] = ((id[8] ?? 0) & 0x3f) | 0x80;
  return id.toString("hex").replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}
