// The keys of the mappings of an agents file, and the words of its enumerations.
//
// docs/agents.schema.json is their only source: scripts/grammar.py generates shape_of and words_of
// when the program is built. Each enumerator is the name of a definition ($defs) of the schema;
// `agents_file` is the schema itself. Threads: any.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace ae::agents {

using Names = std::span<const std::string_view>;

enum class Mapping : std::uint8_t {
  agent,
  agents_file,
  budget,
  change,
  code,
  compensate,
  content_part,
  context,
  file,
  git_ref,
  github,
  http,
  http_json,
  llm,
  loop,
  map_item,
  mcp_address,
  mcp_program,
  mcp_server,
  mcp_tool,
  model,
  model_message,
  node,
  outbound,
  own_tool,
  planner,
  policies_file,
  policy,
  price,
  probe,
  recorded_tool,
  retry,
  sandbox_limits,
  sql,
  verify,
  versions,
  wait,
};

enum class Words : std::uint8_t {
  answer,
  approval,
  code_language,
  confirm_mode,
  context_policy,
  dedupe_window,
  effect,
  fail_or_continue,
  file_by,
  github_by,
  http_method,
  max_tokens_name,
  network,
  numbers,
  on_exception,
  on_in_doubt,
  on_item_error,
  output,
  policy_action,
  provider,
  recorded_function,
  rejected_call,
  result,
  role,
  sandbox,
  version_policy,
};

struct KeyAlias {
  std::string_view alias;  // the older name
  std::string_view key;
};

struct Shape {
  Names keys;                         // in the order of messages, without aliases
  std::span<const KeyAlias> aliases;  // the mapping can have one instead of its key
  Names refused;                      // keys that the schema knows and refuses
  // A mapping is of one kind: the key of these that it has, or the word of its `type`.
  Names kinds;
  std::span<const Names> keys_of_kinds;  // parallel to `kinds`

  // The keys of mappings of this kind. REQUIRES: it is one of `kinds`.
  Names keys_of(std::string_view kind) const;
  // The kinds whose mappings can have this key.
  std::vector<std::string_view> kinds_with(std::string_view key) const;
  // The key of which `name` is an alias, else `name`.
  std::string_view key_of(std::string_view name) const;
};

bool contains(Names names, std::string_view name);
const Shape& shape_of(Mapping mapping);
Names words_of(Words words);

}  // namespace ae::agents
