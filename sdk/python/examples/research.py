"""A research agent: a model's plan, parallel branches with a deadline each, and a human who decides on the publication.

    aetheris serve agents.yaml
    AETHERIS_SOCKET=.aetheris/aetheris.sock python3 -m aetheris research.py
"""
import asyncio
import json
import os
import urllib.request

from aetheris import ToolFailed, agent, tool


@tool(effect="read", timeout="20s", retry={"max_attempts": 4, "initial_backoff": "50ms",
                                            "retry_on": ["exception", "timeout", "worker_lost"]})
def search(args, call):
    query = urllib.request.quote(args["q"])
    with urllib.request.urlopen(f"{os.environ['SEARCH_URL']}/?q={query}", timeout=15) as answer:
        return json.load(answer)["hits"][:5]


@agent("research", uses=["search", "model:main"])
async def research(ctx, input):
    plan = await ctx.model("main").json(
        f"Five questions that answer: {input['topic']}",
        {"type": "object", "properties": {"questions": {"type": "array", "items": {"type": "string"}}},
         "required": ["questions"], "additionalProperties": False})

    async def answer(ctx, question, i):
        hits = await ctx.call(search, {"q": question})
        try:
            prompt = f"Answer: {question}\n{json.dumps(hits)}"
            # A durable timer. What comes later is not used.
            return await asyncio.wait_for(ctx.model("main").text(prompt), 120)
        except (asyncio.TimeoutError, ToolFailed) as error:
            ctx.emit("left_out", {"question": question, "why": str(error)})
            return None

    notes = await ctx.map("question", plan["questions"], answer, parallel=4)
    report = await ctx.model("main").text("Write one page from these notes:\n" + json.dumps([n for n in notes if n]))
    verdict = await ctx.wait("human", "publish", question="Publish the report?", data={"report": report}, expires="7d",
                             on_expire="continue")
    return {"report": report, "published": verdict is not None}
