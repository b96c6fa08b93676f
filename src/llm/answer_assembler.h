// AnswerAssembler: assembles a streamed answer into the body that the same
// answer has when not streamed.
//
// So each provider needs one decoder, and the record does not depend on streaming: `body()` is
// the input of chat_answer and messages_answer. Text deltas are returned as they arrive, for
// display. An error that the provider reports in mid-stream is not an answer; a retry may
// succeed, which the caller decides.
// Threads: one owner.
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

  // Appends the text of these bytes to `text_out`, also the text before a failure. Fails with
  // tool_output_invalid (a malformed event), payload_too_large (tools::kStreamMax), or
  // tool_failed: the provider reported an error of `error_type()`. After a failure or the
  // end, nothing more is read.
  Status feed(std::string_view bytes, std::string& text_out);

  // The provider sent its end marker. A stream without it was cut off: its
  // content is not an answer.
  bool is_complete() const { return complete_; }
  const std::string& error_type() const { return error_type_; }

  // REQUIRES: is_complete().
  Value body() const;

 private:
  // A tool call or a block: its initial members, and the texts accumulated since.
  struct PartialItem {
    Value initial;
    std::map<std::string, std::string> texts;
  };
  Status event(const SseEvent& event, std::string& text_out);
  Status fail_stream(const Value& error);
  Status chat_chunk(const Value& chunk, std::string& text_out);
  Status chat_call(const Value& delta, std::size_t position);
  Status messages_event(const Value& event, std::string& text_out);
  Status block_delta(const Value& event, std::string& text_out);
  Value chat_body() const;
  Value messages_body() const;

  WireFormat wire_;
  SseParser events_;
  std::size_t bytes_ = 0;
  bool started_ = false, complete_ = false, failed_ = false;
  std::string error_type_;

  Value head_;                                // members outside of the message; the latest values
  std::map<std::string, std::string> texts_;  // of the message: content, refusal, …
  std::map<std::size_t, PartialItem> items_;  // tool calls or blocks, by index
  Value finish_fields_;                       // finish_reason, or the delta of message_delta
  Value usage_;
};

}  // namespace ae::llm
