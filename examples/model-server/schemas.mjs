// The providers' rules for schemas of structured output.
import { isObject } from "./scenario.mjs";

const SCHEMA_DEPTH_MAX = 10;
const NOT_PERMITTED = [
  "allOf",
  "not",
  "dependentRequired",
  "dependentSchemas",
  "if",
  "then",
  "else",
  "patternProperties",
];

const context = (path) => `(${path.map((part) => `'${part}'`).join(", ")}${path.length === 1 ? "," : ""})`;

// The rules of strict mode. Returns the first violation, or nothing.
export function strictFault(schema, path = [], depth = 0) {
  const wrong = (what) => `In context=${context(path)}, ${what}`;
  if (typeof schema === "boolean" || !isObject(schema)) return wrong("schema must be an object.");
  if (depth > SCHEMA_DEPTH_MAX) return wrong(`schema exceeds the maximum nesting of ${SCHEMA_DEPTH_MAX} levels.`);
  for (const key of NOT_PERMITTED) if (key in schema) return wrong(`'${key}' is not permitted.`);
  if (path.length === 0 && (schema.type !== "object" || schema.anyOf))
    return `schema must be a JSON Schema of 'type: "object"', got 'type: "${schema.type ?? "None"}"'.`;
  if (!["type", "anyOf", "$ref", "enum", "const"].some((key) => key in schema))
    return wrong("schema must have a 'type' key.");
  const types = [].concat(schema.type ?? []);
  if (types.includes("object")) {
    if (schema.additionalProperties !== false)
      return wrong("'additionalProperties' is required to be supplied and to be false.");
    const properties = Object.keys(schema.properties ?? {});
    const lacks = properties.find((key) => !(schema.required ?? []).includes(key));
    if (lacks !== undefined || !Array.isArray(schema.required ?? (properties.length ? undefined : [])))
      return wrong(
        `'required' is required to be supplied and to be an array including every key in properties. Missing '${lacks}'.`,
      );
    const extra = (schema.required ?? []).find((key) => !properties.includes(key));
    if (extra !== undefined) return wrong(`'required' has '${extra}', which is no key in properties.`);
  }
  if (types.includes("array") && schema.items === undefined) return wrong("array schema missing items.");
  const below = [
    ...Object.entries(schema.properties ?? {}).map(([key, value]) => [value, ["properties", key]]),
    ...Object.entries(schema.$defs ?? schema.definitions ?? {}).map(([key, value]) => [
      "$defs" in schema ? value : value,
      ["$defs", key],
    ]),
    ...(schema.anyOf ?? []).map((value, index) => [value, ["anyOf", String(index)]]),
    ...(schema.items !== undefined ? [[schema.items, ["items"]]] : []),
  ];
  for (const [value, step] of below) {
    const fault = strictFault(value, [...path, ...step], depth + 1);
    if (fault) return fault;
  }
  return undefined;
}

// Messages: every object of a promised schema is closed.
export function isClosed(schema) {
  if (Array.isArray(schema)) return schema.every(isClosed);
  if (!isObject(schema)) return true;
  if ([].concat(schema.type ?? []).includes("object") && schema.additionalProperties !== false) return false;
  const named = ["properties", "$defs", "definitions"].flatMap((key) => Object.values(schema[key] ?? {}));
  return [...named, schema.items, schema.anyOf, schema.allOf].every(isClosed);
}
