#include "mcp/client/server_message.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "log/field_names.h"
#include "tools/output.h"

namespace ae::mcp::client {

std::expected<std::vector<Message>, RpcError> read_messages(std::string_view text) {
  const auto value = parse_message(text, Sender::server);
  if (!value) return std::unexpected(value.error());
  const bool is_batch = value->is_array();
  if (is_batch && (value->size() == 0 || value->size() > kServerBatchMax)) {
    return std::unexpected(
        RpcError{.code = kInvalidRequest, .message = "a batch has 1 to 1,000 of them"});
  }
  std::vector<Message> messages;
  for (const Value& one : is_batch ? value->items() : std::span(&*value, 1)) {
    auto message = read_message(one, Sender::server);
    if (!message) return std::unexpected(std::move(message).error());
    messages.push_back(*std::move(message));
  }
  return messages;
}

std::vector<std::int64_t> extract_response_ids(std::string_view text) {
  std::vector<std::int64_t> ids;
  const auto value = parse_message(text, Sender::server);
  const auto add = [&](const Value& one) {
    if (one.is_object() && one["id"].is_integer() && one.find("method") == nullptr) {
      ids.push_back(one["id"].as_int());
    }
  };
  if (value && value->is_array()) std::ranges::for_each(value->items(), add);
  if (value) add(*value);
  return ids;
}

std::string describe_unreadable(const RpcError& error, std::string_view text) {
  const Value shown = tools::invalid_output("", text, 0);
  return fmt::format("the server's answer cannot be read ({}{}): {}",
                     error.code == kParseError ? "" : "not a JSON-RPC 2.0 message: ", error.message,
                     shown.text("head"));
}

Reply to_reply(Message response) {
  if (response.error.is_null()) {
    return {.kind = Reply::Kind::result, .value = std::move(response.result)};
  }
  const Value& code = response.error[field::code];
  return {.kind = Reply::Kind::error,
          .value = response.error["data"],
          .code = code.is_integer() ? code.as_int() : 0,
          .text = std::string(response.error.text("message"))};
}

}  // namespace ae::mcp::client
