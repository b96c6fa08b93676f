// Secrets of ModelTool: a key that the server repeats is in no delta, answer or record.
#include <fmt/core.h>

#include <cstdint>
#include <string>
#include <vector>

#include "llm/model_tool_fixture_test.h"

namespace ae::llm::model_tool_test {
namespace {

AE_TEST("model tool/a key that the server repeats is scrubbed from answers and records") {
  ModelFixture fixture;
  Outcome outcome =
      fixture.call_once(raw_response(200, R"({"id":"sk-canary-123","model":"sk-canary-123",
               "choices":[{"message":{"content":"your key is sk-canary-123"}}]})"));
  EXPECT_EQ((canonical(outcome.result) + outcome.external_id).find("canary"), std::string::npos);
  EXPECT_EQ(outcome.result["text"], Value("your key is [secret KEY]"));
  outcome = fixture.call_once(raw_response(200, R"({"key":"sk-canary-123"})"));
  ASSERT_TRUE(outcome.invalid);
  EXPECT_EQ(canonical(*outcome.invalid).find("canary"), std::string::npos);
}

AE_TEST("model tool/a missing key fails with its name, and nothing is sent") {
  RawHttpServer server(RawHttpServer::always(raw_response(200, kAnswer)));
  ModelFixture fixture;
  const Outcome outcome = fixture.call(
      ModelFixture::settings(server).with("api_key", "secret:MISSING"), make_call(make_request()));
  EXPECT_EQ(outcome.error_code, "secret_missing");
  EXPECT_TRUE(outcome.definite);
  EXPECT_NE(outcome.error_message.find("MISSING"), std::string::npos);
  EXPECT_EQ(server.connections(), 0);
}

AE_TEST("model tool/a streamed key is scrubbed, wherever it is split") {
  const std::string text = "your key is sk-canary-123, sk-canary-12 is none";
  for (std::size_t size = 1; size < 20; ++size) {
    std::vector<std::string> words;
    for (std::size_t at = 0; at < text.size(); at += size) words.push_back(text.substr(at, size));
    ModelFixture fixture;
    RawHttpServer server(stream_script(chat(words)));
    const StreamedCall streamed = call_streamed(fixture, server);
    EXPECT_EQ(streamed.text, "your key is [secret KEY], sk-canary-12 is none") << size;
    EXPECT_EQ(streamed.outcome.result["text"], Value(streamed.text)) << size;
  }
}

AE_TEST("model tool/an escaped key in a stream is scrubbed, wherever it is split") {
  const std::string text =
      R"({"k":"\u0073k\u002dcanary-123","l":"a\nb\/c","m":"sk-canary\u002d12 is none"})";
  for (std::size_t size = 1; size < 20; ++size) {
    std::vector<std::string> words;
    for (std::size_t at = 0; at < text.size(); at += size) words.push_back(text.substr(at, size));
    ModelFixture fixture;
    RawHttpServer server(stream_script(chat(words)));
    const StreamedCall streamed = call_streamed(fixture, server);
    EXPECT_EQ(streamed.text,
              R"({"k":"[secret KEY]","l":"a\nb\/c","m":"sk-canary\u002d12 is none"})")
        << size;
    EXPECT_EQ(streamed.outcome.result["text"], Value(streamed.text)) << size;
  }
}

// Events of the Messages API: one block per text.
std::vector<std::string> messages(const std::vector<std::string>& blocks) {
  std::vector<std::string> events;
  const auto add = [&](const Value& event) {
    events.push_back(fmt::format("data: {}\n\n", canonical(event)));
  };
  add(json(R"({"type":"message_start","message":{"id":"msg_1","model":"small-1","content":[]}})"));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const Value index(static_cast<std::uint64_t>(i));
    add(json(R"({"type":"content_block_start","content_block":{"type":"text","text":""}})")
            .with("index", index));
    add(Value::object({{"type", "content_block_delta"},
                       {"index", index},
                       {"delta", Value::object({{"type", "text_delta"}, {"text", blocks[i]}})}}));
  }
  add(json(R"({"type":"message_delta","delta":{"stop_reason":"end_turn"}})"));
  add(json(R"({"type":"message_stop"})"));
  return events;
}

AE_TEST("model tool/a key split over two parts of an answer is scrubbed") {
  const std::string text = "it is sk-canary-123.";
  for (std::size_t cut = 1; cut < text.size(); ++cut) {
    const std::vector<std::string> parts{text.substr(0, cut), text.substr(cut)};
    ModelFixture fixture;
    fixture.name = "anthropic";
    RawHttpServer server(stream_script(messages(parts)));
    const StreamedCall streamed = call_streamed(fixture, server);
    EXPECT_EQ(streamed.text, "it is [secret KEY].") << cut;
    EXPECT_EQ(streamed.outcome.result["text"], Value(streamed.text)) << cut;
  }
  const std::string whole = raw_response(200, R"({"content":[{"type":"text","text":"sk-can"},
      {"type":"text","text":"ary-123"}],"stop_reason":"end_turn","model":"m"})");
  for (const bool stream : {true, false}) {
    ModelFixture fixture;
    fixture.name = "anthropic";
    RawHttpServer server(RawHttpServer::always(whole));
    const Outcome outcome = fixture.call(ModelFixture::settings(server).with("stream", stream),
                                         make_call(make_request()));
    EXPECT_EQ(outcome.result.text("text"), "[secret KEY]") << stream;
  }
}

AE_TEST("model tool/an escaped key in streamed call arguments is scrubbed") {
  const std::string arguments = R"({\"k\":\"sk-canary\\u002d123\"})";
  const std::string whole = raw_response(
      200, R"({"id":"c","model":"m","choices":[{"index":0,"finish_reason":"tool_calls","message":
          {"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function",
          "function":{"name":"look","arguments":")" +
               arguments + R"("}}]}}]})");
  const std::string piece =
      R"(data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"1","function":{"name":"look",)"
      R"("arguments":")" +
      arguments + R"("}}]},"index":0}]})" + "\n\n";
  std::vector<std::string> events{piece};
  events.insert(events.end(), kChatEnd.begin(), kChatEnd.end());
  for (const auto& script : {RawHttpServer::always(whole), stream_script(events)}) {
    ModelFixture fixture;
    RawHttpServer server(script);
    const Value request =
        make_request().with("tools", json(R"([{"name":"look","parameters":{"type":"object"}}])"));
    const Outcome outcome = fixture.call(ModelFixture::settings(server), make_call(request));
    ASSERT_EQ(outcome.result["tool_calls"].size(), 1U) << canonical(outcome.result);
    EXPECT_EQ(canonical(outcome.result["tool_calls"].items()[0]["arguments"]),
              R"({"k":"[secret KEY]"})");
  }
}

AE_TEST("model tool/a key split in a broken stream is not recorded") {
  for (const std::string& end : {std::string("data: {garbage\n\n"), std::string(17u << 20, ' ')}) {
    ModelFixture fixture;
    RawHttpServer server(stream_script({chunk("It is sk-ca"), chunk("nary-123 and more"), end}));
    const Outcome outcome = fixture.call(ModelFixture::settings(server), make_call(make_request()));
    const std::string record = canonical(outcome.invalid.value_or(Value())) + outcome.error_message;
    EXPECT_EQ(outcome.invalid.has_value(), end.size() > 100);
    EXPECT_EQ(record.find("sk-ca"), std::string::npos) << record;
    EXPECT_EQ(record.find("nary-123"), std::string::npos) << record;
    if (!outcome.invalid) continue;
    EXPECT_TRUE(outcome.invalid->text("head").starts_with("It is [secret KEY]")) << record;
  }
}

AE_TEST("model tool/an escaped key in a broken stream is not recorded") {
  ModelFixture fixture;
  RawHttpServer server(stream_script(
      {chunk(R"({"k":"\u0073k-can)"), chunk(R"(\u0061ry-123", "l":)"), "data: {garbage\n\n"}));
  const StreamedCall streamed = call_streamed(fixture, server);
  EXPECT_EQ(streamed.outcome.error_code, "http_502");
  EXPECT_EQ(streamed.outcome.error_message.find("canary"), std::string::npos);
  EXPECT_EQ(streamed.text, R"({"k":"[secret KEY]", "l":)");
}

AE_TEST("model tool/an escaped key in call arguments is scrubbed") {
  ModelFixture fixture;
  const std::string call =
      R"({"id":"c","type":"function","function":{"name":"pay","arguments":"{\"to\":\"\\u0073k-canary-123\"}"}})";
  const Outcome outcome = fixture.call_once(raw_response(
      200,
      R"({"id":"1","choices":[{"index":0,"finish_reason":"tool_calls","message":{"role":"assistant","content":null,"tool_calls":[)" +
          call + "]}}]}"));
  EXPECT_EQ(canonical(outcome.result["tool_calls"]).find("canary"), std::string::npos)
      << canonical(outcome.result);
  EXPECT_NE(canonical(outcome.result["tool_calls"]).find("[secret KEY]"), std::string::npos)
      << canonical(outcome.result);
}

}  // namespace
}  // namespace ae::llm::model_tool_test
