"""Agents that read streams of a model server, as those of sdk/typescript/test/packages. For tests/sdk_packages.py."""
import json
import time

from aetheris import ToolFailed, agent


def note(text):
    with open("calls.txt", "a") as file:
        file.write(text + "\n")


def request_of(dialect, input):
    path = {"openai": "/v1/chat/completions", "anthropic": "/v1/messages"}[dialect]
    body = {"model": input["model"], "max_tokens": 100, "stream": True,
            "messages": [{"role": "user", "content": input["prompt"]}]}
    headers = {"authorization": "Bearer any-key", "x-api-key": "any-key", "content-type": "application/json",
               "anthropic-version": "2023-06-01"}
    return input["url"] + path, {"method": "POST", "headers": headers, "body": json.dumps(body), "effect": "read"}


def text_of(line):
    """The text of an event of either dialect."""
    if not line.startswith("data: {"):
        return ""
    event = json.loads(line[len("data: "):])
    choices = event.get("choices") or [{}]
    return choices[0].get("delta", {}).get("content") or event.get("delta", {}).get("text") or ""


class Follower:
    """Notes the pieces of a stream."""

    def __init__(self, name):
        self.name, self.text = name, ""

    def note(self, text):
        note(f"{self.name} {time.time_ns() // 1_000_000} {text}")

    def take(self, line):
        """Is it the first text?"""
        piece, is_first = text_of(line), not self.text
        if piece:
            self.note(piece)
            self.text += piece
        return bool(piece) and is_first

    def after(self):
        self.note("after the first piece")


@agent
async def streams(ctx, input):
    texts = []
    for name in ("openai", "anthropic"):
        url, options = request_of(name, input)
        follower, first = Follower(name), None
        async for line in (await ctx.fetch(url, stream=True, **options)).aiter_lines():
            if follower.take(line):
                first = ctx.run(f"after_{name}", "read", follower.after)
        follower.note("the end")
        await first
        texts.append(follower.text)
    return texts


@agent
def streams_sync(ctx, input):
    texts = []
    for name in ("openai", "anthropic"):
        url, options = request_of(name, input)
        follower, first = Follower(name), None
        for line in ctx.fetch(url, stream=True, **options).iter_lines():
            if follower.take(line):
                first = ctx.later.run(f"after_{name}", "read", follower.after)
        follower.note("the end")
        first.result()
        texts.append(follower.text)
    return texts


async def follow_httpx(ctx, input):
    import httpx
    texts = []
    for name in ("openai", "anthropic"):
        url, options = request_of(name, input)
        follower, first = Follower(name), None
        async with httpx.AsyncClient(transport=ctx.httpx("read")) as client:
            async with client.stream("POST", url, headers=options["headers"], content=options["body"]) as answer:
                async for line in answer.aiter_lines():
                    if follower.take(line):
                        first = ctx.run(f"after_{name}", "read", follower.after)
        follower.note("the end")
        await first
        texts.append(follower.text)
    return texts


@agent
async def streams_httpx(ctx, input):
    return await follow_httpx(ctx, input)


@agent(loop="host")
async def streams_host(ctx, input):
    return await follow_httpx(ctx, input)


@agent
async def broken(ctx, input):
    text, error = "", None
    url, options = request_of("openai", input)
    try:
        async for line in (await ctx.fetch(url, stream=True, **options)).aiter_lines():
            text += text_of(line)
    except ToolFailed as failed:
        error = failed.code
    await ctx.wait("signal", "go")
    return {"text": text, "error": error}


@agent
def broken_sync(ctx, input):
    text, error = "", None
    url, options = request_of("openai", input)
    try:
        for line in ctx.fetch(url, stream=True, **options).iter_lines():
            text += text_of(line)
    except ToolFailed as failed:
        error = failed.code
    ctx.wait("signal", "go")
    return {"text": text, "error": error}
