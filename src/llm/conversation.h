// Conversation: requests to models and their answers, in one format for all providers.
//
// Stored, as the arguments and the result of a call of `model:NAME`:
//   request = {"model", "messages": [message…],
//              "tools"?: [{"name", "description"?, "parameters"?: schema}…],
//              "temperature"?, "max_tokens"?, "schema"?: of the answer's JSON,
//              "repair"?: true: the caller handles an answer that breaks the schema}
//   message = {"role": "system" | "developer" | "user", "content": text | [part…]}
//           | {"role": "assistant", "content": text, "tool_calls"?: [call…],
//              "blocks"?: [of the provider, verbatim…]}
//           | {"role": "tool", "call_id", "content": text, "error"?: true}
//   part    = {"type": "text", "text"} | {"type": "image", "url"}
//   call    = {"id", "name", "arguments": object}, or, if they are not a JSON object:
//             {"id", "name", "malformed": text, "invalid"?: why}
//   answer  = {"text", "tool_calls"?, "blocks"?, "finish_reason"?, "model"?, "refusal"?, "usage"?,
//              "json"?, "invalid"?: how it breaks the schema}
// A codec (chat_completions.h, messages.h) translates these to and from a provider's format.
// Threads: values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "json/value.h"
#include "schema/schema.h"

namespace ae::llm {

constexpr std::size_t kMessagesMax = 10'000;
constexpr std::size_t kToolsMax = 1'024;  // of a request; providers have their own limits
constexpr std::size_t kPartsMax = 256;    // of one message
constexpr std::size_t kCallsMax = 256;    // of one answer
constexpr std::size_t kNameMax = 512;     // bytes of a tool's name or of a call id

struct ToolCall {
  std::string id, name;
  Value arguments;                       // an object
  std::optional<std::string> malformed;  // instead of them
  std::string invalid;                   // the JSON parser's error; "" = none
};

struct Part {
  bool image = false;
  std::string text;  // of an image: its URL (https:, http: or data:)
};

enum class Role : std::uint8_t { system, developer, user, assistant, tool };  // spelled as stored

struct Message {
  Role role = Role::user;
  std::string text;
  std::vector<Part> parts;  // instead of text, for system, developer and user
  std::vector<ToolCall> calls;
  std::vector<Value> blocks;
  std::string call_id;  // of a tool message: the call it answers
  bool error = false;
};

struct OfferedTool {
  std::string name;
  std::string wire;  // its name at the provider
  std::string description;
  Value parameters;  // an object, or null
};

struct Request {
  std::string model;
  std::vector<Message> messages;
  std::vector<OfferedTool> tools;
  Value temperature, max_tokens;  // null = the provider's default
  Value schema;                   // null = any text

  // Converts a tool's name to its wire name and back. Of names that were not offered,
  // `wire_name_of` returns wire_name(name), and `name_of` the name unchanged.
  std::string wire_name_of(std::string_view name) const;
  std::string name_of(std::string_view wire) const;
  // The number of calls in its messages: generated call ids continue from there.
  std::size_t calls() const;
};

// Providers accept [A-Za-z0-9_-]{1,64}: a dot becomes `__`, other characters `_`; a name that is
// too long ends with a digest of itself.
std::string wire_name(std::string_view name);

// Parses a recorded request. Fails with input_invalid and the location of the error.
Result<Request> read_request(const Value& recorded);

struct Answer {
  std::string text;
  std::vector<ToolCall> calls;
  std::vector<Value> blocks;
  std::string finish_reason, model, refusal;  // "" = not given
  Value usage;                                // null = not given

  // Adds a call; `arguments` is a JSON text or a value. A missing or duplicate id is replaced by a
  // generated one. Fails with tool_output_invalid.
  Status add_call(const Request& request, std::string_view id, std::string_view wire,
                  const Value& arguments);
};

// The recorded form of an answer, before validation against a schema.
Value answer_value(const Answer& answer);
Value call_value(const ToolCall& call);

// Adds `json`: the answer's text, parsed and validated against `schema`. Unchanged if `schema` is
// null or the answer calls tools. Fails with tool_output_invalid.
Result<Value> with_parsed_json(const Value& schema, Value answer);

// The error of an unusable answer; `reason` is shown in its record.
std::unexpected<Error> invalid_answer(std::string reason);
// True for a non-negative integer.
bool is_count(const Value& value);

}  // namespace ae::llm
