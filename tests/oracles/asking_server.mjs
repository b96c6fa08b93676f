// An MCP server, built with the official SDK, whose tools send questions to the user on the GET stream over HTTP. Such a question
// does not name the call that it belongs to.
//   asking_server.mjs MODULES     prints its URL
//
// ask    sends a question and returns the answer
// later  closes the GET stream first, and sends the question when a new one is open
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
let streams = 0; // GET streams opened so far

async function streamAfter(before) {
  while (streams === before) await new Promise((resolve) => setTimeout(resolve, 20));
}

async function openSession() {
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
    const reply = await server.elicitInput(FORM, { timeout: PATIENCE });
    return { content: [{ type: "text", text: `${reply.action} ${reply.content?.mail ?? ""}`.trim() }] };
  });
  await server.connect(transport);
  return transport;
}

const listener = createServer(async (request, response) => {
  const id = request.headers["mcp-session-id"];
  if (id && !sessions.has(id)) return response.writeHead(404).end();
  const transport = sessions.get(id) ?? await openSession();
  const done = transport.handleRequest(request, response);
  if (request.method === "GET") streams += 1;
  await done;
});
listener.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${listener.address().port}/mcp`));
