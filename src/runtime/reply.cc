#include "runtime/reply.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"
#include "engine/state/action.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::runtime {
namespace {

// Messages can contain parts of a request.
constexpr std::size_t kMessageMax = 4096;

}  // namespace

std::string reply_text(const Result<Value>& answer) {
  if (answer) return canonical(Value::object({{"answer", *answer}}));
  std::string message = answer.error().message;
  if (message.size() > kMessageMax)
    message =
        message.substr(0, valid_utf8_prefix(std::string_view(message).substr(0, kMessageMax)));
  Value error = Value::object(
      {{field::code, code_name(answer.error().code)}, {"message", std::move(message)}});
  if (answer.error().action)
    error = error.with("action", engine::action_json(*answer.error().action));
  return canonical(Value::object({{field::error, std::move(error)}}));
}

Result<Value> read_reply(std::string_view text) {
  AE_ASSIGN(const Value reply, parse_json(text));
  if (const Value* const answer = reply.find("answer")) return *answer;
  const Value& error = reply[field::error];
  const auto code = code_from_name(error.text(field::code));
  if (!code) return fail(Code::log_corrupt, "the reply of the lease holder is damaged");
  return std::unexpected(
      Error{*code, std::string(error.text("message")), engine::action_from_json(error["action"])});
}

void consume(std::vector<AppliedEntry> entries, store::Batch& batch) {
  std::ranges::sort(entries, {}, &AppliedEntry::number);
  for (AppliedEntry& entry : entries) {
    batch.inbox_consumed.push_back(entry.number);
    if (!entry.reply.empty()) batch.inbox_replies.push_back({entry.number, std::move(entry.reply)});
  }
}

}  // namespace ae::runtime
