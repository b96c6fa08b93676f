#!/usr/bin/env python3
"""Writes sdk/typescript/API.md from the declarations of the TypeScript SDK, or checks it.

  sdk_api.py            exits with 1 if the page is not what the sources give
  sdk_api.py --write    writes it
"""
import re
import sys

import npm_packages

PAGE = npm_packages.SDK / "API.md"
INTRO = """# The API of aetheris for TypeScript

Made by `scripts/sdk_api.py` from the sources. The [README](README.md) shows how these are used.
"""
# (declarations, module of the package, title)
PARTS = [
    ("definitions", "aetheris", "Agents and tools"),
    ("worker", "aetheris", "The worker"),
    ("protocol", "aetheris", "Effects"),
    ("api", "aetheris", "What agents and functions are given"),
    ("errors", "aetheris", "Errors"),
    ("json", "aetheris", "Values"),
    ("current", "aetheris", "For libraries"),
    ("wrap/fetch_as", "aetheris", "Clients that take a fetch function"),
    ("wrap/ai_sdk", "aetheris/ai-sdk", "Vercel AI SDK"),
    ("wrap/langgraph", "aetheris/langgraph", "LangGraph"),
    ("wrap/openai_agents", "aetheris/openai-agents", "OpenAI Agents"),
    ("testing", "aetheris/testing", "Tests"),
]


def declarations(text):
    """(name, text) of each exported declaration, with its comment."""
    text = re.sub(r"^(import .*|export \{.*|export type \{.*|export \* .*)\n", "", text, flags=re.M)
    for part in re.split(r"(?m)(?=^/\*\*)|(?<=\n)(?=^export )(?<!\*/\n)", text):
        name = re.search(r"^export (?:declare )?(?:abstract )?(?:interface|type|class|function|const) (\w+)", part, re.M)
        if name:
            yield name[1], part.strip()


def page():
    dist = npm_packages.built_sdk() / "dist"
    public = set(re.findall(r"\w+", " ".join(re.findall(r"\{(.*?)\}", (dist / "index.d.ts").read_text(), re.S))))
    made = [INTRO]
    for name, module, title in PARTS:
        found = [text for known, text in declarations((dist / f"{name}.d.ts").read_text())
                 if module != "aetheris" or known in public]
        assert found, name
        made.append(f"## {title}\n\nFrom `{module}`.\n\n```ts\n" + "\n\n".join(found) + "\n```\n")
    return "\n".join(made)


def main():
    text = page()
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(text)
        return 0
    if not PAGE.exists() or PAGE.read_text() != text:
        print("sdk/typescript/API.md is not what the sources give; scripts/sdk_api.py --write writes it")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
