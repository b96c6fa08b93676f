// Conversation: what a model is asked and what it answers, in our words, the same for all providers.
//
// Stored, as the arguments and the result of a call of `model:NAME`:
//   request = {"model", "messages": [message…], "tools"?: [{"name", "description"?, "parameters"?: schema}…],
//              "temperature"?, "max_tokens"?, "schema"?: what the JSON of the answer must be,
//              "repair"?: true, whoever asks deals with an answer that is no such JSON: it is recorded as it came}
//   message = {"role": "system" | "developer" | "user", "content": text | [part…]}
//           | {"role": "assistant", "content": text, "tool_calls"?: [call…], "blocks"?: [of the provider, verbatim…]}
//           | {"role": "tool", "call_id", "content": text, "error"?: true}
//   part    = {"type": "text", "text"} | {"type": "image", "url"}
//   call    = {"id", "name", "arguments": object}, or {"id", "name", "malformed": text, "invalid"?: why}: what is no JSON object
//   answer  = {"text", "tool_calls"?, "blocks"?, "finish_reason"?, "model"?, "refusal"?, "usage"?, "json"?,
//              "invalid"?: why it is not what the schema wants}
// A dialect (chat_completions.h, messages.h) says the one and hears the other. Threads: values and pure functions.
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
constexpr std::size_t kToolsMax = 1'024;  // tools of a request; providers have limits of their own
constexpr std::size_t kPartsMax = 256;    // of one message
constexpr std::size_t kCallsMax = 256;    // of one answer
constexpr std::size_t kNameMax = 512;     // bytes of a tool's name or of a call's id

struct ToolCall {
  std::string id, name;
  Value arguments;                       // an object
  std::optional<std::string> malformed;  // instead of them
  std::string invalid;                   // why the reader of JSON refused that; "" = it did not
};

struct Part {
  bool image = false;
  std::string text;  // of an image: its URL, https:, http: or data:
};

enum class Role : std::uint8_t { system, developer, user, assistant, tool };  // spelled as stored

struct Message {
  Role role = Role::user;
  std::string text;
  std::vector<Part> parts;  // instead of the text: of system, developer and user
  std::vector<ToolCall> calls;
  std::vector<Value> blocks;
  std::string call_id;  // of a tool: which call this answers
  bool error = false;
};

struct OfferedTool {
  std::string name;
  std::string wire;  // what the provider calls it
  std::string description;
  Value parameters;  // an object, or null
};

struct Request {
  std::string model;
  std::vector<Message> messages;
  std::vector<OfferedTool> tools;
  Value temperature, max_tokens;  // null = the provider's
  Value schema;                   // null = any text

  // A tool by the name that goes over the wire, there and back. A name that nobody offered stays what it is.
  std::string wire_of(std::string_view name) const;
  std::string name_of(std::string_view wire) const;
  // How many calls its messages hold: ids that we give ourselves go on from there.
  std::size_t calls() const;
};

// Providers take [A-Za-z0-9_-]{1,64}: a dot becomes `__`, what else they refuse `_`; a name that is too long ends in
// a digest of itself.
std::string wire_name(std::string_view name);

// Reads what is recorded. Fails with input_invalid, and says where: nothing is sent.
Result<Request> read_request(const Value& recorded);

struct Answer {
  std::string text;
  std::vector<ToolCall> calls;
  std::vector<Value> blocks;
  std::string finish_reason, model, refusal;  // "" = it does not say
  Value usage;                                // null = it does not say

  // A call as it was heard: `arguments` is a text of JSON, or a value. An id that is missing, or that another call of
  // this answer has, is given by us. Fails with tool_output_invalid.
  Status add_call(const Request& request, std::string_view id, std::string_view wire,
                  const Value& arguments);
};

// What is recorded of an answer, before it is held to a schema.
Value answer_value(const Answer& answer);
Value call_value(const ToolCall& call);

// The same with `json`: its text, read and held to the request's schema; unchanged when there is none, or when it calls
// tools. Fails with tool_output_invalid.
Result<Value> with_parsed_json(const Value& schema, Value answer);

// An answer that cannot be used: the reason that its record shows.
std::unexpected<Error> invalid_answer(std::string reason);
// Is it a number of something?
bool is_count(const Value& value);

}  // namespace ae::llm
