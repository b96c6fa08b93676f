// AnswerAssembler: a streamed answer, put together again as the body that the same answer has when it comes whole.
//
// So there is one reader of answers per provider, and what is recorded does not depend on how it came: `body()` is for
// chat_answer and messages_answer. On the way the words of the answer come out piece by piece, for people. An error that
// a provider says in mid-stream is no answer: it may go better the next time, which the caller decides. Threads: one owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "json/sse_parser.h"
#include "json/value.h"

namespace ae::llm {

enum class WireFormat : std::uint8_t { chat_completions, messages };

class AnswerAssembler {
 public:
  explicit AnswerAssembler(WireFormat wire) : wire_(wire) {}

  // Adds the words that these bytes bring to `words`, also those before a failure. Fails with tool_output_invalid (no event
  // that can be read), payload_too_large (tools::kStreamMax), or tool_failed: the provider says that it cannot go on, and `error_type` how it
  // calls that. After a failure, and after the end, nothing more is read.
  Status feed(std::string_view bytes, std::string& words);

  // The provider said that this is all. A stream that ends without it was cut off: what it said is no answer.
  bool is_complete() const { return complete_; }
  const std::string& error_type() const { return error_type_; }

  // REQUIRES: is_complete().
  Value body() const;

 private:
  // A call of a tool, or a block: its members as they began, and the texts that grew since.
  struct PartialItem {
    Value initial;
    std::map<std::string, std::string> texts;
  };
  Status event(const SseEvent& event, std::string& words);
  Status fail_stream(const Value& error);
  Status chat_chunk(const Value& chunk, std::string& words);
  Status chat_call(const Value& delta, std::size_t position);
  Status messages_event(const Value& event, std::string& words);
  Status block_delta(const Value& event, std::string& words);
  Value chat_body() const;
  Value messages_body() const;

  WireFormat wire_;
  SseParser events_;
  std::size_t bytes_ = 0;
  bool started_ = false, complete_ = false, failed_ = false;
  std::string error_type_;

  Value head_;  // what stands around the answer; the newest members win
  std::map<std::string, std::string> texts_;  // of the message: content, refusal, …
  std::map<std::size_t, PartialItem> items_;  // calls or blocks, by index
  Value finish_fields_;                       // finish_reason, or the delta of message_delta
  Value usage_;
};

}  // namespace ae::llm
