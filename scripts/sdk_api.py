#!/usr/bin/env python3
"""Writes the API pages of the SDKs from their declarations, or checks them: sdk/typescript/API.md, sdk/python/API.md.

  sdk_api.py            exits with 1 if a page is not what the sources give
  sdk_api.py --write    writes them
"""
import ast
import re
import sys
import textwrap

import npm_packages

PYTHON = npm_packages.ROOT / "sdk/python"
INTRO = """# The API of aetheris for {}

Made by `scripts/sdk_api.py` from the sources. The [README](README.md) shows how these are used;
[primitives](../../docs/primitives.md) has the units, limits and errors of what an agent calls.
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
    ("client", "aetheris", "Clients"),
    ("wrap/fetch_as", "aetheris", "Clients that take a fetch function"),
    ("wrap/ai_sdk", "aetheris/ai-sdk", "Vercel AI SDK"),
    ("wrap/langgraph", "aetheris/langgraph", "LangGraph"),
    ("wrap/openai_agents", "aetheris/openai-agents", "OpenAI Agents"),
    ("testing", "aetheris/testing", "Tests"),
]

MORE = {"testing": ("testing/models", "testing/replay")}  # modules that a part exports again
TESTING = {"FakeModel", "ModelAnswer", "ModelCall", "ModelFailure", "ReplayedJob", "ReplayOptions", "StoredJobs", "replay"}
# (title, module of the package, [(source, names)])
PYTHON_PARTS = [
    ("Agents and tools", "aetheris", [("definitions", ("agent", "tool"))]),
    ("The worker", "aetheris", [("worker", ("serve", "Worker"))]),
    ("What agents are given", "aetheris", [
        ("context", ("Requests", "Values", "Ctx", "Model", "Job", "Logger", "Race", "Next", "Done")),
        ("request", ("Request",)), ("sync", ("SyncCtx", "SyncModel", "SyncRequest")), ("http_response", ("Response",))]),
    ("What functions are given", "aetheris", [("functions", ("Call", "Signal"))]),
    ("Errors", "aetheris", [("errors", ("AetherisError", "Failure", "NotDone", "ToolFailed", "Rejected", "WaitExpired", "Cancelled",
                                        "InvalidInput", "ConnectionFailed", "Evicted"))]),
    ("For libraries", "aetheris", [("current", ("current",))]),
    ("Clients", "aetheris", [("client", ("Client",))]),
    ("Tests", "aetheris.testing", [
        ("testing", ("start", "Testing", "TestJob", "CallRecord", "crash_everywhere", "CrashReport", "start_async",
                     "crash_everywhere_async")),
        ("testing_models", ("ModelCall",)), ("testing_replay", ("replay", "replay_async", "StoredJobs", "ReplayedJob"))]),
]
# Not for users.
INTERNAL = {"Requests": {"stated"}, "Ctx": {"inner", "enter"}, "SyncCtx": {"inner", "enter"}, "Values": {"routine"},
            "SyncRequest": {"give", "fail", "stop"}, "Request": {"give", "fail", "stop"},
            "Worker": {"schedule", "send", "offers_tool", "end_call", "post", "routine", "acknowledged_at", "tool", "log",
                       "hello", "on_session", "on_trouble", "on_too_large", "on_message", "loop"}}
MADE_BY_USERS = {"Worker", "Client", "AetherisError", "Failure", "NotDone"}


def declarations(text):
    """(name, text) of each exported declaration, with its comment."""
    text = re.sub(r"^(import .*|export \{.*|export type \{.*|export \* .*)\n", "", text, flags=re.M)
    for part in re.split(r"(?m)(?=^/\*\*)|(?<=\n)(?=^export )(?<!\*/\n)", text):
        name = re.search(r"^export (?:declare )?(?:abstract )?(?:interface|type|class|function|const) (\w+)", part, re.M)
        if name:
            yield name[1], part.strip()


def typescript_page():
    dist = npm_packages.built_sdk() / "dist"
    public = set(re.findall(r"\w+", " ".join(re.findall(r"\{(.*?)\}", (dist / "index.d.ts").read_text(), re.S))))
    made = [INTRO.format("TypeScript")]
    for name, module, title in PARTS:
        found = [text for known, text in declarations((dist / f"{name}.d.ts").read_text())
                 if module != "aetheris" or known in public]
        for more in MORE.get(name, ()):
            found += [text for known, text in declarations((dist / f"{more}.d.ts").read_text()) if known in TESTING]
        assert found, name
        made.append(f"## {title}\n\nFrom `{module}`.\n\n```ts\n" + "\n\n".join(found) + "\n```\n")
    return "\n".join(made)


# ---------------------------------------------------------------- Python


def comment_of(node, indent):
    """Its docstring, as it is written."""
    text = ast.get_docstring(node)
    return textwrap.indent(f'"""{text}"""', indent) if text else None


def header_of(node, lines):
    """The lines from `def` or `class` to the colon."""
    first = node.body[0]
    end = min([first.lineno] + [one.lineno for one in getattr(first, "decorator_list", [])])
    header = "\n".join(lines[node.lineno - 1:end - 1]) if end > node.lineno else lines[node.lineno - 1]
    return header.split("  # ")[0].rstrip()


def attributes_of(body, indent, lines, internal):
    """`name: type` of a class, or of `self` in its `__init__`, and the docstring that follows."""
    made = []
    for at, node in enumerate(body):
        if not isinstance(node, ast.AnnAssign):
            continue
        name = getattr(node.target, "attr", getattr(node.target, "id", ""))
        if name.startswith("_") or name in internal:
            continue
        made.append(f"{indent}{name}: {ast.get_source_segment(chr(10).join(lines), node.annotation)}")
        following = body[at + 1] if at + 1 < len(body) else None
        if isinstance(following, ast.Expr) and isinstance(getattr(following.value, "value", None), str):
            made.append(textwrap.indent('"""' + textwrap.dedent(following.value.value).strip() + '"""', indent))
    return made


def function_of(node, lines, indent=""):
    decorators = [one for one in node.decorator_list if getattr(one, "id", "") in ("property", "overload")]
    if any(one.id == "overload" for one in decorators):
        return None
    head = (indent + "@property\n" if decorators else "") + textwrap.indent(textwrap.dedent(header_of(node, lines)), indent)
    return "\n".join(filter(None, [head, comment_of(node, indent + "    ") or f"{indent}    ..."]))


def class_of(node, lines):
    head = [header_of(node, lines), comment_of(node, "    ")]
    init = next((one for one in node.body if getattr(one, "name", "") == "__init__"), None)
    has_arguments = init is not None and node.name in MADE_BY_USERS
    internal = INTERNAL.get(node.name, ())
    parts = ["\n".join(filter(None, head + attributes_of(node.body, "    ", lines, internal)
                              + (attributes_of(init.body, "    ", lines, internal) if init else [])))]
    parts += [function_of(one, lines, "    ") for one in node.body
              if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))
              and (not one.name.startswith("_") and one.name not in internal or one is init and has_arguments)]
    return "\n\n".join(filter(None, parts))


def python_declarations(module, names):
    text = (PYTHON / f"aetheris/{module}.py").read_text()
    lines = text.split("\n")
    for node in ast.parse(text).body:
        if getattr(node, "name", "") in names:
            made = class_of(node, lines) if isinstance(node, ast.ClassDef) else function_of(node, lines)
            if made:
                yield node.name, made


def python_page():
    made = [INTRO.format("Python")]
    for title, module, parts in PYTHON_PARTS:
        found = []
        for part, names in parts:
            known = dict(python_declarations(part, names))
            assert set(known) == set(names), (part, sorted(set(names) - set(known)))
            found += [known[name] for name in names]
        made.append(f"## {title}\n\nFrom `{module}`.\n\n```python\n" + "\n\n\n".join(found) + "\n```\n")
    return "\n".join(made)


def main():
    is_written = sys.argv[1:] == ["--write"]
    stale = 0
    for path, text in ((PYTHON / "API.md", python_page()), (npm_packages.SDK / "API.md", typescript_page())):
        if is_written:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            print(f"{path.relative_to(npm_packages.ROOT)} is not what the sources give; scripts/sdk_api.py --write writes it")
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main())
