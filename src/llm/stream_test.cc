// Streamed answers: for any split, the result equals the answer that is not streamed.
#include "llm/answer_assembler.h"

#include <fmt/core.h>

#include <random>
#include <string>
#include <vector>

#include "json/json.h"
#include "llm/chat_completions.h"
#include "llm/messages.h"
#include "testing/test.h"
#include "tools/tool.h"

namespace ae::llm {
namespace {

Value stream_json(std::string_view text) {
  auto value = parse_json(text);
  EXPECT_TRUE(value) << text;
  return value ? *value : Value();
}

const Value kStreamRequest =
    stream_json(R"({"model":"m","messages":[{"role":"user","content":"x"}]})");

// ---- events

std::string events_of(std::string_view bytes, std::size_t step, SseLimits limits = {}) {
  SseParser stream(limits);
  std::vector<SseEvent> events;
  std::string seen;
  while (!bytes.empty()) {
    const Status fed = stream.feed(bytes.substr(0, step), events);
    bytes.remove_prefix(std::min(step, bytes.size()));
    if (!fed) seen = "failed ";
  }
  for (const SseEvent& event : events) seen += fmt::format("{}={};", event.name, event.data);
  return seen;
}

AE_TEST("event stream/lines end with CR, LF or both, and a blank line ends an event") {
  constexpr std::string_view kStream =
      "\xEF\xBB\xBF: hello\nevent: a\ndata: 1\n\ndata: x\r\ndata:y\r\n\r\nevent:b\rdata:  2\rid: "
      "7\r\r"
      "retry: 5\n\nevent: lost\n\ndata\n\ndata: no end";
  constexpr std::string_view kEvents = "a=1;=x\ny;b= 2;=;";
  for (std::size_t step = 1; step <= kStream.size(); ++step) {
    EXPECT_EQ(events_of(kStream, step), kEvents) << "in pieces of " << step;
  }
}

AE_TEST("event stream/a line or an event over its limit fails the stream") {
  const SseLimits limits{.line_max = 10, .event_max = 12};
  for (const std::size_t step : {1u, 3u, 100u}) {
    EXPECT_EQ(events_of("data: 4567\n\n", step, limits), "=4567;");
    EXPECT_EQ(events_of("data: 45678\n\ndata: 1\n\n", step, limits), "failed ");
    EXPECT_EQ(
        events_of("data: 1\n\ndata: 4567\ndata: 4567\ndata: 4567\n\ndata: 2\n\n", step, limits),
        "failed =1;");
  }
}

// ---- answers

struct AssembledAnswer {
  std::string words;
  bool complete = false;
  Code failed = Code::usage;  // usage: it did not fail
  std::string error_type;
  Value body;
};

AssembledAnswer assemble(WireFormat wire, std::string_view bytes, std::size_t step) {
  AnswerAssembler stream(wire);
  AssembledAnswer assembled;
  while (!bytes.empty()) {
    const Status fed = stream.feed(bytes.substr(0, step), assembled.words);
    bytes.remove_prefix(std::min(step, bytes.size()));
    if (!fed) {
      assembled.failed = fed.error().code;
      break;
    }
  }
  assembled.error_type = stream.error_type();
  assembled.complete = stream.is_complete();
  if (assembled.complete) assembled.body = stream.body();
  return assembled;
}

// An answer, not streamed and as a stream.
struct EncodedAnswer {
  Value whole;
  std::string stream;
};

class AnswerEncoder {
 public:
  explicit AnswerEncoder(std::uint64_t seed) : rng_(seed) {}

  EncodedAnswer chat() {
    EncodedAnswer encoded;
    const std::string text = pick(3) == 0 ? "" : words();
    const std::string refusal = pick(4) == 0 ? words() : "";
    std::vector<Value> calls;
    add_chunk(encoded, Value::object({{"role", "assistant"}, {"content", ""}}));
    for (const std::string& piece : cut(text)) {
      add_chunk(encoded, Value::object({{"content", piece}}));
    }
    for (const std::string& piece : cut(refusal)) {
      add_chunk(encoded, Value::object({{"refusal", piece}}));
    }
    for (std::uint64_t i = pick(4); i > 0; --i) {
      const int index = static_cast<int>(calls.size());
      const std::string id = fmt::format("call_{}", index), arguments = object_text();
      calls.push_back(call(id, arguments));
      add_chunk(encoded,
                delta_of(index, stream_json(R"({"type":"function"})").with("id", id), "look", ""));
      for (const std::string& piece : cut(arguments)) {
        add_chunk(encoded, delta_of(index, Value::object({}), Value(), piece));
      }
    }
    std::vector<Member> message = {{"content", text.empty() ? Value() : Value(text)},
                                   {"refusal", refusal.empty() ? Value() : Value(refusal)}};
    const char* reason = calls.empty() ? "stop" : "tool_calls";
    if (!calls.empty()) message.emplace_back("tool_calls", Value::array(calls));
    const Value usage =
        stream_json(R"({"prompt_tokens":9,"completion_tokens":3,"total_tokens":12})");
    encoded.whole = Value::object(
        {{"id", "x"},
         {"model", "m-1"},
         {"usage", usage},
         {"choices",
          Value::array({Value::object(
              {{"index", 0}, {"finish_reason", reason}, {"message", Value::object(message)}})})}});
    add_chunk(encoded, Value::object({}), reason);
    data(encoded,
         Value::object({{"model", "m-1"}, {"choices", Value::array({})}, {"usage", usage}}));
    encoded.stream += "data: [DONE]\n\n";
    return encoded;
  }

  EncodedAnswer messages() {
    EncodedAnswer encoded;
    std::vector<Value> blocks;
    data(encoded,
         stream_json(R"({"type":"message_start","message":{"id":"msg","model":"m-1","content":[],
        "stop_reason":null,"usage":{"input_tokens":5,"output_tokens":1,"cache_read_input_tokens":2}}})"));
    data(encoded, stream_json(R"({"type":"ping"})"));
    for (std::uint64_t i = pick(5); i > 0; --i) block(encoded, blocks);
    const Value ending = stream_json(R"({"stop_reason":"end_turn","stop_sequence":null})");
    const Value usage =
        stream_json(R"({"input_tokens":5,"output_tokens":7,"cache_read_input_tokens":2})");
    data(encoded, Value::object({{"type", "message_delta"}, {"delta", ending}, {"usage", usage}}));
    data(encoded, stream_json(R"({"type":"message_stop"})"));
    encoded.whole = Value::object({{"id", "msg"},
                                   {"model", "m-1"},
                                   {"stop_reason", "end_turn"},
                                   {"content", Value::array(blocks)},
                                   {"usage", usage}});
    return encoded;
  }

 private:
  std::uint64_t pick(std::uint64_t below) { return rng_() % below; }
  std::string words() {
    constexpr std::string_view kWords[] = {"a",  "ä", "日本", "\n", "\"",
                                           "\\", " ", "{",    "🙂", "data: "};
    std::string text;
    for (std::uint64_t i = 1 + pick(8); i > 0; --i) text += kWords[pick(std::size(kWords))];
    return text;
  }
  std::string object_text() {
    return pick(5) == 0 ? "{}" : canonical(Value::object({{"a", words()}, {"n", 7}}));
  }
  // Whole characters only: each piece from a provider is valid UTF-8.
  std::vector<std::string> cut(const std::string& text) {
    std::vector<std::string> pieces;
    for (const char c : text) {
      const bool inside = (static_cast<unsigned char>(c) & 0xC0) == 0x80;
      if (pieces.empty() || (!inside && pick(2) == 0)) pieces.emplace_back();
      pieces.back() += c;
    }
    return pieces;
  }
  static Value call(const std::string& id, const std::string& arguments) {
    return Value::object(
        {{"id", id},
         {"type", "function"},
         {"function", Value::object({{"name", "look"}, {"arguments", arguments}})}});
  }
  static Value delta_of(int index, Value call, Value name, const std::string& arguments) {
    Value function = Value::object({{"arguments", arguments}});
    if (!name.is_null()) function = function.with("name", std::move(name));
    call = call.with("index", index).with("function", std::move(function));
    return Value::object({{"tool_calls", Value::array({std::move(call)})}});
  }
  void add_chunk(EncodedAnswer& encoded, Value delta, Value reason = {}) {
    Value choice = Value::object(
        {{"index", 0}, {"delta", std::move(delta)}, {"finish_reason", std::move(reason)}});
    data(encoded, Value::object({{"id", "x"},
                                 {"model", "m-1"},
                                 {"usage", Value()},
                                 {"choices", Value::array({std::move(choice)})}}));
  }
  void data(EncodedAnswer& encoded, const Value& value) {
    if (value.find("type") != nullptr) {
      encoded.stream += fmt::format("event: {}\n", value.text("type"));
    }
    encoded.stream +=
        fmt::format("data: {}{}", canonical(value), pick(2) == 0 ? "\n\n" : "\r\n\r\n");
  }
  void block(EncodedAnswer& encoded, std::vector<Value>& blocks) {
    const int index = static_cast<int>(blocks.size());
    const auto begin = [&](const Value& begun) {
      data(encoded,
           Value::object(
               {{"type", "content_block_start"}, {"index", index}, {"content_block", begun}}));
    };
    const auto grow = [&](const char* type, const char* key, const std::string& text) {
      data(encoded, Value::object({{"type", "content_block_delta"},
                                   {"index", index},
                                   {"delta", Value::object({{"type", type}, {key, text}})}}));
    };
    if (const std::uint64_t kind = pick(3); kind == 0) {
      const std::string text = words();
      begin(stream_json(R"({"type":"text","text":""})"));
      for (const std::string& piece : cut(text)) grow("text_delta", "text", piece);
      blocks.push_back(Value::object({{"type", "text"}, {"text", text}}));
    } else if (kind == 1) {
      const std::string text = words();
      begin(stream_json(R"({"type":"thinking","thinking":"","signature":""})"));
      for (const std::string& piece : cut(text)) grow("thinking_delta", "thinking", piece);
      grow("signature_delta", "signature", "sig==");
      blocks.push_back(
          Value::object({{"type", "thinking"}, {"thinking", text}, {"signature", "sig=="}}));
    } else {
      const std::string arguments = object_text();
      const Value call = stream_json(R"({"type":"tool_use","name":"look","input":{}})")
                             .with("id", fmt::format("toolu_{}", index));
      begin(call);
      grow("input_json_delta", "partial_json", "");
      if (arguments != "{}") {
        for (const std::string& piece : cut(arguments)) {
          grow("input_json_delta", "partial_json", piece);
        }
      }
      blocks.push_back(call.with("input", stream_json(arguments)));
    }
    data(encoded, Value::object({{"type", "content_block_stop"}, {"index", index}}));
  }

  std::mt19937_64 rng_;
};

// A short stream, for tests that visit every byte.
EncodedAnswer short_answer(WireFormat wire) {
  for (std::uint64_t seed = 0;; ++seed) {
    AnswerEncoder encoder(seed);
    EncodedAnswer encoded = wire == WireFormat::messages ? encoder.messages() : encoder.chat();
    if (encoded.stream.size() < 1200) return encoded;
  }
}

AE_TEST("stream/for any split, the answer equals the unstreamed one and the deltas are its text") {
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    for (const WireFormat wire : {WireFormat::chat_completions, WireFormat::messages}) {
      AnswerEncoder encoder(seed);
      const EncodedAnswer encoded =
          wire == WireFormat::messages ? encoder.messages() : encoder.chat();
      const auto read = wire == WireFormat::messages ? messages_answer : chat_answer;
      const auto wanted = read(kStreamRequest, encoded.whole);
      ASSERT_TRUE(wanted) << canonical(encoded.whole);
      for (const std::size_t step : {std::size_t{1}, std::size_t{7}, encoded.stream.size()}) {
        const AssembledAnswer assembled = assemble(wire, encoded.stream, step);
        ASSERT_TRUE(assembled.complete) << seed << "\n" << encoded.stream;
        const auto answer = read(kStreamRequest, assembled.body);
        ASSERT_TRUE(answer) << seed << "\n" << encoded.stream;
        EXPECT_EQ(canonical(*answer), canonical(*wanted)) << seed << "\n" << encoded.stream;
        EXPECT_EQ(assembled.words, answer->text("text")) << seed;
      }
    }
  }
}

AE_TEST("stream/two pieces split at any byte give the same answer") {
  for (const WireFormat wire : {WireFormat::chat_completions, WireFormat::messages}) {
    const EncodedAnswer encoded = short_answer(wire);
    const std::string wanted =
        canonical(assemble(wire, encoded.stream, encoded.stream.size()).body);
    for (std::size_t at = 0; at <= encoded.stream.size(); ++at) {
      AnswerAssembler stream(wire);
      std::string words;
      ASSERT_TRUE(stream.feed(std::string_view(encoded.stream).substr(0, at), words));
      ASSERT_TRUE(stream.feed(std::string_view(encoded.stream).substr(at), words));
      ASSERT_TRUE(stream.is_complete()) << at;
      EXPECT_EQ(canonical(stream.body()), wanted) << at;
    }
  }
}

AE_TEST("stream/a stream cut off at any byte is incomplete") {
  for (const WireFormat wire : {WireFormat::chat_completions, WireFormat::messages}) {
    const EncodedAnswer encoded = short_answer(wire);
    // The last event ends with two line ends, of one or two bytes each.
    for (std::size_t size = 0; size + 4 < encoded.stream.size(); ++size) {
      const AssembledAnswer assembled =
          assemble(wire, std::string_view(encoded.stream).substr(0, size), 1000);
      EXPECT_FALSE(assembled.complete) << size;
      EXPECT_EQ(assembled.failed, Code::usage) << size;
    }
  }
}

AE_TEST("stream/an invalid event fails the stream, a provider error is distinguished") {
  const struct {
    WireFormat wire;
    const char* bytes;
    Code code;
    const char* type;
  } cases[] = {
      {WireFormat::chat_completions, "data: {\"id\":\"chatcmpl-\n\n", Code::tool_output_invalid,
       ""},
      {WireFormat::chat_completions, "data: 7\n\n", Code::tool_output_invalid, ""},
      {WireFormat::chat_completions, "data: [DONE]\n\n", Code::tool_output_invalid, ""},
      {WireFormat::chat_completions, "data: {\"choices\":[],\"usage\":{}}\n\ndata: [DONE]\n\n",
       Code::tool_output_invalid, ""},
      {WireFormat::messages, "data: {\"type\":\"message_stop\"}\n\n", Code::tool_output_invalid,
       ""},
      {WireFormat::chat_completions,
       "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":5000,\"id\":\"a\"}]}}]}\n\n",
       Code::tool_output_invalid, ""},
      {WireFormat::chat_completions,
       "data: {\"error\":{\"type\":\"server_error\",\"message\":\"Sorry\"}}\n\n", Code::tool_failed,
       "server_error"},
      {WireFormat::messages,
       "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n",
       Code::tool_failed, "overloaded_error"},
      {WireFormat::messages,
       "data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"text\":\"a\"}}\n\n",
       Code::tool_output_invalid, ""},
      {WireFormat::messages,
       "data: {\"type\":\"content_block_start\",\"index\":-1,\"content_block\":{}}\n\n",
       Code::tool_output_invalid, ""},
      {WireFormat::messages,
       "data: {\"type\":\"content_block_start\",\"index\":1,\"content_block\":{}}\n\n"
       "data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{}}\n\n",
       Code::tool_output_invalid, ""},
      {WireFormat::messages,
       "data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{}}\n\n"
       "data: {\"type\":\"content_block_start\",\"index\":1,\"content_block\":{}}\n\n"
       "data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"text\":\"a\"}}\n\n",
       Code::tool_output_invalid, ""},
  };
  for (const auto& c : cases) {
    const AssembledAnswer assembled = assemble(c.wire, c.bytes, 1000);
    EXPECT_EQ(assembled.failed, c.code) << c.bytes;
    EXPECT_EQ(assembled.error_type, c.type) << c.bytes;
    AnswerAssembler stream(c.wire);
    std::string words;
    EXPECT_FALSE(stream.feed(c.bytes, words));
    EXPECT_FALSE(stream.feed("data: [DONE]\n\n", words)) << "a failed stream stays failed";
    EXPECT_FALSE(stream.is_complete());
  }
}

AE_TEST("stream/a stream over 16 MiB fails, and data after the end is ignored") {
  AnswerAssembler stream(WireFormat::chat_completions);
  const std::string comment = fmt::format(":{}\n", std::string((1u << 20) - 2, 'x'));
  std::string words;
  for (std::size_t n = 0; n < tools::kStreamMax; n += comment.size()) {
    ASSERT_TRUE(stream.feed(comment, words));
  }
  const Status over = stream.feed(":", words);
  ASSERT_FALSE(over);
  EXPECT_EQ(over.error().code, Code::payload_too_large);
  AnswerAssembler done(WireFormat::chat_completions);
  ASSERT_TRUE(done.feed("data: {\"choices\":[{\"delta\":{}}]}\n\n", words));
  ASSERT_TRUE(done.feed("data: [DONE]\n\ndata: {\n\n", words));
  ASSERT_TRUE(done.feed("data: {\n\n", words));
  EXPECT_TRUE(done.is_complete());
}

AE_TEST("stream/calls without an index are decoded") {
  const AssembledAnswer assembled = assemble(
      WireFormat::chat_completions,
      R"(data: {"choices":[{"delta":{"tool_calls":[{"id":"a","function":{"name":"x","arguments":"{\"n\":"}}]}}]})"
      "\n\n"
      R"(data: {"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"1}"}}]}}]})"
      "\n\n"
      R"(data: {"choices":[{"delta":{"tool_calls":[{"id":"b","function":{"name":"y","arguments":{"m":2}}}]}}]})"
      "\n\ndata: [DONE]\n\n",
      5);
  ASSERT_TRUE(assembled.complete);
  const auto answer = chat_answer(kStreamRequest, assembled.body);
  ASSERT_TRUE(answer);
  EXPECT_EQ(
      canonical((*answer)["tool_calls"]),
      R"([{"arguments":{"n":1},"id":"a","name":"x"},{"arguments":{"m":2},"id":"b","name":"y"}])");
}

}  // namespace
}  // namespace ae::llm
