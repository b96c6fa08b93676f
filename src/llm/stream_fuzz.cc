// AnswerAssembler fuzzer: a streamed answer is accepted or rejected the same way for any split,
// within its limits, and the result is an answer or an error.
#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "json/json.h"
#include "llm/answer_assembler.h"
#include "llm/chat_completions.h"
#include "llm/messages.h"

namespace {

using ae::Value;
using ae::llm::AnswerAssembler;
using ae::llm::WireFormat;

// The result of a stream as one text: its deltas, joined, and how it ended.
std::string read(WireFormat wire, std::string_view bytes, std::size_t step) {
  AnswerAssembler stream(wire);
  std::string text;
  while (!bytes.empty()) {
    const ae::Status fed = stream.feed(bytes.substr(0, step), text);
    bytes.remove_prefix(std::min(step, bytes.size()));
    if (!fed) return fmt::format("{}\nrejected: {}", text, ae::code_name(fed.error().code));
  }
  if (!stream.is_complete()) return text + "\ncut off";
  return fmt::format("{}\n{}", text, ae::canonical(stream.body()));
}

Value request() {
  return Value::object(
      {{"model", "m"},
       {"messages", Value::array({Value::object({{"role", "user"}, {"content", "x"}})})}});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  if (all.size() < 2) return 0;
  const WireFormat wire = (all[0] & 1) != 0 ? WireFormat::messages : WireFormat::chat_completions;
  const std::size_t step = static_cast<unsigned char>(all[1]) + 1u;
  const std::string_view bytes = all.substr(2);
  const std::string whole = read(wire, bytes, bytes.size() + 1);
  const std::string cut = read(wire, bytes, step);
  AE_CHECK(whole == cut, fmt::format("{}\n---- and cut\n{}", whole, cut));
  AnswerAssembler stream(wire);
  std::string text;
  if (!stream.feed(bytes, text) || !stream.is_complete()) return 0;
  const auto answer = wire == WireFormat::messages
                          ? ae::llm::messages_answer(request(), stream.body())
                          : ae::llm::chat_answer(request(), stream.body());
  if (answer) AE_CHECK((*answer)["text"].is_string());
  return 0;
}
