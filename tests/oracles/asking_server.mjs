// A server of MCP, made of its official SDK, whose tools ask a person without saying in which call: over HTTP, on the stream of GET.
//   asking_server.mjs MODULES     prints its URL
//
// ask    asks, and says what it was told
// later  closes the stream of GET first, and asks when there is one again
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { join } from "node:path";

const require = createRequire(join(process.argv[2], "package.json"));
const { Server } = require("@modelcontextprotocol/sdk/server/index.js");
const { StreamableHTTPServerTransport } = require("@modelcontextprotocol/sdk/server/streamableHttp.js");
const { CallToolRequestSchema, ListToolsRequestSchema } = require("@modelcontextprotocol/sdk/types.js");

const FORM = { message: "Who?", requestedSchema: { type: "object", properties: { mail: { type: "string", format: "email" } } } };
const PATIENCE = 60_000;
const sessions = new Map();
let streams = 0; // of GET, that were opened

async function streamAfter(before) {
  while (streams === before) await new Promise((resolve) => setTimeout(resolve, 20));
}

async function begin() {
  const server = new Server({ name: "asking", version: "1" }, { capabilities: { tools: {} } });
  const transport = new StreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID, onsessioninitialized: (id) => sessions.set(id, transport) });
  server.setRequestHandler(ListToolsRequestSchema, () => ({
    tools: ["ask", "later"].map((name) => ({ name, inputSchema: { type: "object" } })) }));
  server.setRequestHandler(CallToolRequestSchema, async ({ params }) => {
    if (params.name === "later") {
      const before = streams;
      transport.closeStandaloneSSEStream();
      await streamAfter(before);
    }
    const said = await server.elicitInput(FORM, { timeout: PATIENCE });
    return { content: [{ type: "text", text: `${said.action} ${said.content?.mail ?? ""}`.trim() }] };
  });
  await server.connect(transport);
  return transport;
}

const listener = createServer(async (request, response) => {
  const id = request.headers["mcp-session-id"];
  if (id && !sessions.has(id)) return response.writeHead(404).end();
  const transport = sessions.get(id) ?? await begin();
  const done = transport.handleRequest(request, response);
  if (request.method === "GET") streams += 1;
  await done;
});
listener.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${listener.address().port}/mcp`));
