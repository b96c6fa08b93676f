// A refund agent: a model decides through OpenAI's client, an approver approves, the shop pays and sends a mail.
// README.md states how to run it.
import { agent, Failure, fetchAs, Rejected, tool, type Call } from "aetheris";
import OpenAI from "openai";

const SHOP = process.env.SHOP_URL ?? "http://127.0.0.1:9000";

interface Order {
  id: string;
  total: number;
  customer: { email: string };
}

// The key is the same in each try of a call, so the shop recognizes a repeated request.
async function post<T>(path: string, body: object, call: Call): Promise<T> {
  const headers = { "content-type": "application/json", "idempotency-key": call.key };
  const response = await fetch(SHOP + path, { method: "POST", headers, body: JSON.stringify(body), signal: call.signal });
  // The shop refused the request: it had no effect. After any other error that is not known.
  if (response.status >= 400 && response.status < 500) throw new Failure("shop_refused", await response.text());
  if (!response.ok) throw new Error(`the shop answered ${response.status}`);
  return (await response.json()) as T;
}

export const payBack = tool(
  "pay_back",
  {
    description: "Pays an amount back for an order",
    effect: "idempotent",
    timeout: "90s",
    retry: { max_attempts: 4, retry_on: ["connect", "timeout", "exception", "worker_lost"] },
  },
  (args: { order: string; amount: number }, call) => post<{ id: string }>("/refunds", args, call),
);

// What the model may request.
const tools: OpenAI.ChatCompletionTool[] = [
  {
    type: "function",
    function: {
      name: "get_order",
      parameters: { type: "object", properties: { id: { type: "string" } }, required: ["id"] },
    },
  },
  {
    type: "function",
    function: {
      name: "pay_back",
      parameters: {
        type: "object",
        properties: { order: { type: "string" }, amount: { type: "number" } },
        required: ["order", "amount"],
      },
    },
  },
];

export const refund = agent(
  "refund",
  { description: "Refunds an order if an approver approves it", uses: ["get_order"] },
  async (ctx, input: { message: string }) => {
    // Each request of the client is recorded. `read`: the model may be asked again, which changes only the bill.
    const openai = new OpenAI({
      apiKey: process.env.MODEL_KEY ?? "any-key",
      baseURL: process.env.MODEL_URL ?? "https://api.openai.com/v1",
      fetch: fetchAs(ctx, "read"),
      maxRetries: 0,
    });
    const refunds: string[] = [];

    const pay = async (args: { order: string; amount: number }): Promise<object> => {
      const order = await ctx.call<Order>("get_order", { id: args.order });
      if (!(args.amount > 0 && args.amount <= order.total)) return { refused: `the order cost ${order.total} EUR` };
      try {
        await ctx.approval(`Refund ${args.amount} EUR for order ${order.id}?`, { data: { ...args }, expires: "7d" });
      } catch (error) {
        if (error instanceof Rejected) return { rejected: error.note };
        throw error;
      }
      const paid = await ctx.call(payBack, args);
      refunds.push(paid.id);
      // The shop sends a mail for each request, so this call is never repeated.
      const mail = { to: order.customer.email, text: `We refunded ${args.amount} EUR: ${paid.id}.` };
      await ctx.run("mail", "at_most_once", mail, (body, call) => post("/mail", body, call));
      return { refund: paid.id };
    };

    const messages: OpenAI.ChatCompletionMessageParam[] = [
      { role: "system", content: "You refund orders. Read the order first. Refund what it cost, never more." },
      { role: "user", content: input.message },
    ];
    for (let turn = 0; turn < 8; turn++) {
      const { choices } = await openai.chat.completions.create({
        model: process.env.MODEL ?? "gpt-5-mini",
        messages,
        tools,
      });
      const answer = choices[0]?.message;
      if (!answer) throw new Failure("no_answer", "the model gave no answer");
      messages.push(answer);
      if (!answer.tool_calls?.length) return { answer: answer.content, refunds };
      for (const call of answer.tool_calls) {
        if (call.type !== "function") throw new Failure("unknown_call", `the model made a call of type ${call.type}`);
        const args = JSON.parse(call.function.arguments);
        const result = call.function.name === "pay_back" ? await pay(args) : await ctx.call("get_order", args);
        messages.push({ role: "tool", tool_call_id: call.id, content: JSON.stringify(result) });
      }
    }
    throw new Failure("turns_limit", "the model gave no answer in 8 turns");
  },
);
