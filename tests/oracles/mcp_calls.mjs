// The official MCP client, protocol of 2025, without elicitation. Reads calls from standard input, [{name, arguments}], makes them
// and prints their results. JOB in arguments is replaced by the job that the last call of an agent created.
//   mcp_calls.mjs MODULES URL
import { createRequire } from "node:module";
import { join } from "node:path";
import { readFileSync } from "node:fs";

const [modules, url] = process.argv.slice(2);
const require = createRequire(join(modules, "package.json"));
const { Client } = require("@modelcontextprotocol/sdk/client/index.js");
const { StreamableHTTPClientTransport } = require("@modelcontextprotocol/sdk/client/streamableHttp.js");

const client = new Client({ name: "calls", version: "1" }, { capabilities: {} });
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
const results = [];
let job = "";
for (const { name, arguments: given } of JSON.parse(readFileSync(0, "utf8"))) {
  const result = await client.callTool({ name, arguments: JSON.parse(JSON.stringify(given).replaceAll("JOB", job)) });
  if (!name.startsWith("aetheris_")) job = result._meta["aetheris/job"];
  results.push(result);
}
console.log(JSON.stringify(results));
await client.close();
