// Streamed answers of ModelTool: deltas, results, and streams that end early.
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "llm/model_tool_fixture_test.h"

namespace ae::llm::model_tool_test {
namespace {

AE_TEST("model tool/a streamed answer is delivered incrementally and equals an unstreamed one") {
  ModelFixture fixture;
  RawHttpServer whole(RawHttpServer::always(raw_response(200, kAnswer)));
  RawHttpServer server(stream_script(chat({"ä", "", "!"})));
  const StreamedCall at_once = call_streamed(fixture, whole),
                     streamed = call_streamed(fixture, server);
  EXPECT_EQ(canonical(streamed.outcome.result), canonical(at_once.outcome.result));
  EXPECT_EQ(streamed.outcome.external_id, at_once.outcome.external_id);
  EXPECT_EQ(streamed.text, "ä!");
  EXPECT_EQ(at_once.text, "") << "an unstreamed answer has no deltas";
}

AE_TEST("model tool/an Anthropic stream is delivered and recorded") {
  ModelFixture fixture;
  fixture.name = "anthropic";
  RawHttpServer server(stream_script(
      {"event: message_start\ndata: "
       "{\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\"model\":"
       "\"small-1-2026\",\"content\":[],\"usage\":{\"input_tokens\":5,\"output_tokens\":1}}}\n\n",
       "data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\","
       "\"text\":\"\"}}\n\n",
       "data: "
       "{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":"
       "\"Ja\"}}\n\n",
       "data: "
       "{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":"
       "\", ä.\"}}\n\n",
       "data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":"
       "{\"output_tokens\":3}}\n\ndata: {\"type\":\"message_stop\"}\n\n"}));
  const StreamedCall streamed = call_streamed(fixture, server);
  EXPECT_EQ(streamed.text, "Ja, ä.");
  EXPECT_EQ(canonical(streamed.outcome.result),
            R"({"finish_reason":"stop","model":"small-1-2026","text":"Ja, ä.",)"
            R"("usage":{"input_tokens":5,"output_tokens":3,"total_tokens":8}})");
}

AE_TEST("model tool/a stream that ends early leaves no partial answer") {
  const std::string overloaded =
      "event: error\ndata: {\"error\":{\"type\":\"overloaded_error\",\"message\":\"Busy, says "
      "sk-canary-123.\"}}\n\n";
  const struct {
    const char* name;
    RawHttpServer::Script script;
    const char* code;
    const char* message;
  } cases[] = {
      {"the connection is closed normally", stream_script(chat({"Half"}, false)), "http_502",
       "the streamed answer stopped before its end"},
      {"an event is not JSON", stream_script({chunk("Half"), "data: <html>\n\n", chunk(" more")}),
       "http_502", "an event of the streamed answer is not a JSON object"},
      {"an event is not an object", stream_script({chunk("Half"), "data: 7\n\n"}), "http_502",
       "an event of the streamed answer is not a JSON object"},
      {"it ends before the first chunk", stream_script({"data: [DONE]\n\n"}), "http_502",
       "the streamed answer ends before it begins"},
      {"it has no event", stream_script({"<!doctype html>\n"}), "http_502",
       "the streamed answer stopped before its end"},
      {"no data", stream_script({}), "http_502", "not a model provider: it sent nothing"},
      {"the connection breaks", stream_script(chat({"Half"}, false), false), "reset", ""},
      {"a provider error", stream_script({chunk("Half"), overloaded}), "http_529",
       "Busy, says [secret KEY]."},
      {"no more data",
       [](Conversation& c) {
         c.read_request();
         c.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + chunk("Half"));
         c.hang();
       },
       "timeout", ""},
  };
  for (const auto& c : cases) {
    ModelFixture fixture;
    RawHttpServer server(c.script);
    Call call = make_call(make_request());
    if (c.code == std::string_view("timeout")) call.timeout = 200ms;
    const Outcome outcome = fixture.call(ModelFixture::settings(server), std::move(call));
    EXPECT_NE(outcome.kind, OutcomeKind::success) << c.name;
    EXPECT_EQ(outcome.error_code, c.code) << c.name;
    EXPECT_FALSE(outcome.definite) << c.name;
    EXPECT_TRUE(outcome.retryable) << c.name;
    EXPECT_TRUE(outcome.result.is_null() && !outcome.invalid) << c.name;
    EXPECT_NE(outcome.error_message.find(c.message), std::string::npos) << outcome.error_message;
    EXPECT_EQ(outcome.error_message.find("Half"), std::string::npos) << outcome.error_message;
  }
}

AE_TEST("model tool/a complete stream is an answer, even if its connection breaks afterwards") {
  ModelFixture fixture;
  RawHttpServer server(stream_script(chat({"All."}), false));
  EXPECT_EQ(call_streamed(fixture, server).outcome.result["text"], Value("All."));
}

AE_TEST("model tool/a call completes at the end of its stream, not of its connection") {
  const std::string overloaded =
      "data: {\"error\":{\"type\":\"overloaded_error\",\"message\":\"Busy.\"}}\n\n";
  const struct {
    const char* name;
    std::vector<std::string> events;
    OutcomeKind kind;
    const char* code;
    bool invalid;
  } cases[] = {
      {"complete", chat({"All."}), OutcomeKind::success, "", false},
      {"a provider error", {chunk("Half"), overloaded}, OutcomeKind::unknown, "http_529", false},
      {"invalid event",
       {chunk("Half"), "data: {garbage\n\n"},
       OutcomeKind::unknown,
       "http_502",
       false},
  };
  for (const auto& c : cases) {
    std::atomic<bool> closed = false;
    RawHttpServer server([&](Conversation& conversation) {
      stream_script(c.events, false)(conversation);
      conversation.hang();  // until the client disconnects
      closed = true;
    });
    ModelFixture fixture;
    const Outcome outcome = call_streamed(fixture, server).outcome;
    EXPECT_EQ(outcome.kind, c.kind) << c.name;
    EXPECT_EQ(outcome.error_code, c.code) << c.name;
    EXPECT_EQ(outcome.invalid.has_value(), c.invalid) << c.name;
    EXPECT_LT(outcome.elapsed, Duration(4s)) << c.name << ": it waited for the call's timeout";
    for (int i = 0; i < 5000 && !closed; ++i) std::this_thread::sleep_for(1ms);
    EXPECT_TRUE(closed) << c.name;
  }
}

AE_TEST("model tool/a stream that completes after its tool is destroyed is an answer") {
  RawHttpServer server(stream_script(chat({"All."})));
  ModelFixture fixture;
  auto tool = fixture.model(ModelFixture::settings(server));
  std::move_only_function<void()> poll_arrivals = [&] {
    if (server.arrivals() == 0) {
      fixture.loop.after(1ms, [&] { poll_arrivals(); });
    } else {
      tool.reset();
    }
  };
  poll_arrivals();
  EXPECT_EQ(fixture.perform(*tool, make_call(make_request())).result["text"], Value("All."));
}

AE_TEST("model tool/a too large stream is a success with a record of the reason") {
  ModelFixture fixture;
  std::vector<std::string> much(18, chunk(std::string(1u << 20, 'x')));
  RawHttpServer large(stream_script(much));
  const StreamedCall more = call_streamed(fixture, large);
  EXPECT_EQ(more.outcome.kind, OutcomeKind::success);
  ASSERT_TRUE(more.outcome.invalid) << more.outcome.error_code;
  EXPECT_NE(more.outcome.invalid->text("reason").find("larger"), std::string::npos);
  const std::string_view head = more.outcome.invalid->text("head");
  EXPECT_EQ(head, std::string(head.size(), 'x')) << "the text, not the raw bytes";
  std::string bytes;
  for (const std::string& event : much) bytes += event;
  bytes.resize(tools::kStreamMax + 1);
  EXPECT_EQ((*more.outcome.invalid)["size"], Value(bytes.size()));
  EXPECT_EQ(more.outcome.invalid->text("sha256"), to_hex(sha256(bytes)));
  std::vector<std::string> secret = {chunk("sk-can"), chunk("ary-123")};
  secret.insert(secret.end(), much.begin(), much.end());
  RawHttpServer hiding(stream_script(secret));
  const StreamedCall hidden = call_streamed(fixture, hiding);
  ASSERT_TRUE(hidden.outcome.invalid);
  EXPECT_TRUE(hidden.outcome.invalid->text("head").starts_with("[secret KEY]xx"));
}

AE_TEST("model tool/unknown events and comments are skipped") {
  const std::vector<std::string> strange = {": keep-alive\n\n",
                                            "event: ping\ndata: {\"type\":\"ping\"}\n\n",
                                            "event: news\ndata: {\"x\":1}\n\n"};
  ModelFixture fixture;
  std::vector<std::string> events = strange;
  for (const std::string& one : chat({"All."})) events.push_back(one);
  RawHttpServer server(stream_script(events));
  EXPECT_EQ(call_streamed(fixture, server).outcome.result["text"], Value("All."));
}

}  // namespace
}  // namespace ae::llm::model_tool_test
