"""The agent of the row `code-py`: steps that are functions of this process."""
from aetheris import agent

TEXT = "x" * 180


async def step(args):
    return {"n": args["n"], "text": TEXT}


@agent("steps", version="1")
async def steps(ctx, input):
    last = 0
    for n in range(input["steps"]):
        made = await ctx.run("step", "idempotent", step, args={"n": n})
        last = made["n"]
    return {"last": last}
