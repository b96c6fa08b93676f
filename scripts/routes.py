#!/usr/bin/env python3
"""Reads docs/openapi.json: every route with its operation, roles, query parameters and fields of its body.

  routes.py            checks that the table of docs/api.md is that of openapi.json
  routes.py --write    writes it there
  routes.py --cpp FILE writes the table of src/api/routes.h to FILE; the build does this
"""
import collections
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs/openapi.json"
PAGE = ROOT / "docs/api.md"
METHODS = ("get", "put", "post", "delete", "patch")
HEAD = "| route | | query | body | roles |\n|---|---|---|---|---|\n"

# `roles`: None for a route that works without a key. `fields` is empty when the handler reads the body itself.
Route = collections.namedtuple("Route", "operation method path summary roles query fields")
Parameter = collections.namedtuple("Parameter", "name repeats")
Field = collections.namedtuple("Field", "name required unsupported")


def resolved(document, value):
    while "$ref" in value:
        where, value = value["$ref"], document
        for name in where.removeprefix("#/").split("/"):
            value = value[name]
    return value


def body_fields(document, operation):
    """The fields of a body that is a JSON object without other fields. `"not": {}`: refused, and the description is why."""
    content = operation.get("requestBody", {}).get("content", {})
    schema = resolved(document, content.get("application/json", {}).get("schema", {}))
    if schema.get("additionalProperties") is not False:
        return []
    required = schema.get("required", [])
    return [Field(name, name in required, field["description"] if field.get("not") == {} else "")
            for name, field in schema["properties"].items()]


def read_routes(document):
    routes = []
    for path, item in document["paths"].items():
        for method in METHODS:
            if method not in item:
                continue
            operation = item[method]
            parameters = [resolved(document, one) for one in item.get("parameters", []) + operation.get("parameters", [])]
            query = [Parameter(one["name"], resolved(document, one["schema"]).get("type") == "array")
                     for one in parameters if one["in"] == "query"]
            security = operation["security"]
            routes.append(Route(operation["operationId"], method.upper(), path, operation["summary"],
                                security[0]["key"] if security else None, query, body_fields(document, operation)))
    check(routes)
    return routes


def check(routes):
    operations = [route.operation for route in routes]
    for route in routes:
        if operations.count(route.operation) > 1:
            sys.exit(f"{DOCUMENT.name}: operationId {route.operation} is not unique")
        if set(re.findall(r"{\w*}", route.path)) - {"{id}", "{step}"}:
            sys.exit(f"{DOCUMENT.name}: {route.path}: the parameters of a path are {{id}} and {{step}}")


def literal(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def cpp_array(kind, name, values):
    """A declaration, or nothing for an empty array."""
    return f"inline constexpr {kind} {name}[] = {{{', '.join(values)}}};\n" if values else ""


def cpp(routes):
    arrays, rows = "", ""
    for route in routes:
        segments = [literal(part) for part in route.path.split("/") if part]
        query = [f"{{{literal(one.name)}, {str(one.repeats).lower()}}}" for one in route.query]
        fields = [f"{{{literal(one.name)}, {literal(one.unsupported)}}}" for one in route.fields]
        access = "Access::open"
        if route.roles is not None:
            roles = ("Role::operator_" if role == "operator" else f"Role::{role}" for role in route.roles)
            access = f"access_of({{{', '.join(roles)}}})"
        columns = [literal(route.operation), literal(route.method), literal(route.path)]
        for kind, name, values in (("std::string_view", "kSegments_", segments), ("QueryParameter", "kQuery_", query),
                                   ("BodyField", "kFields_", fields)):
            arrays += cpp_array(kind, name + route.operation, values)
            columns.append(name + route.operation if values else "{}")
        columns.insert(4, access)
        rows += f"    {{{', '.join(columns)}}},\n"
    return ('// Generated from docs/openapi.json by scripts/routes.py.\n#pragma once\n\n#include "api/routes.h"\n\n'
            f"namespace ae::api {{\n\n{arrays}\ninline constexpr Route kRoutes[] = {{\n{rows}}};\n\n}}  // namespace ae::api\n")


def table(routes):
    rows = HEAD
    for route in routes:
        query = ", ".join(f"`{one.name}`" for one in route.query)
        fields = ", ".join(f"`{one.name}`" + (r"\*" if one.required else "") for one in route.fields if not one.unsupported)
        roles = "everyone" if route.roles is None else ", ".join(route.roles)
        cells = [f"`{route.method} {route.path}`", route.summary, query, fields, roles]
        rows += "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|\n"
    return rows


def written(page, routes):
    """The page with the table of openapi.json."""
    page, count = re.subn(re.escape(HEAD) + r"(?:\|.*\n)*", lambda _: table(routes), page)
    if count != 1:
        sys.exit(f"{PAGE.name} has no table of routes")
    return page


def main():
    routes = read_routes(json.loads(DOCUMENT.read_text(encoding="utf-8")))
    if sys.argv[1:2] == ["--cpp"] and len(sys.argv) == 3:
        pathlib.Path(sys.argv[2]).write_text(cpp(routes), encoding="utf-8")
        return
    page = PAGE.read_text(encoding="utf-8")
    new = written(page, routes)
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(new, encoding="utf-8")
    elif new != page:
        sys.exit("the table of docs/api.md is not that of docs/openapi.json; write it with: scripts/routes.py --write")


if __name__ == "__main__":
    main()
