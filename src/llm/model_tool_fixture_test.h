// Fixture for ModelTool: a loop, a client, one secret, and scripts of streamed answers.
#pragma once

#include <fmt/core.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "json/json.h"
#include "llm/model_tool.h"
#include "llm/provider.h"
#include "net/asio_loop.h"
#include "testing/permit.h"
#include "testing/raw_http_server.h"
#include "testing/test.h"
#include "tools/http/http_tool.h"

namespace ae::llm::model_tool_test {

using namespace std::chrono_literals;
using testing::raw_response;
using testing::RawHttpServer;
using tools::Call;
using Conversation = RawHttpServer::Conversation;

class OneSecret final : public tools::SecretSource {
 public:
  Result<tools::Secret> get(std::string_view name) override {
    if (name == "KEY") return tools::Secret("sk-canary-123");
    return fail(Code::secret_missing, "the secret {} is missing", name);
  }
};

inline Value json(std::string_view text) {
  auto value = parse_json(text);
  EXPECT_TRUE(value) << text;
  return value ? *value : Value();
}

inline Value make_request() {
  return json(R"({"model":"small-1","messages":[{"role":"user","content":"Say ä"}]})");
}

inline Call make_call(Value args) {
  Call call;
  call.job = JobId("job-1");
  call.tool = "model:main";
  call.args = std::move(args);
  call.key = IdempotencyKey(std::string(64, 'a'));
  call.external_key = ExternalKey("aetheris:job-1:0123456789abcdef:0");
  call.invocation = InvocationId("fedcba9876543210");
  call.timeout = 5s;
  call.send_within = 5s;
  return call;
}

struct ModelFixture {
  net::AsioLoop loop;
  net::HttpClient client{loop};
  OneSecret secrets;
  std::string name = "openai";

  std::unique_ptr<ModelTool> model(const Value& settings) {
    auto provider = provider_of(name, settings);
    EXPECT_TRUE(provider) << name;
    if (!provider) return nullptr;
    auto http = tools::HttpTool::make(provider->transport, {loop, client, secrets, false});
    EXPECT_TRUE(http);
    if (!http) return nullptr;
    return std::make_unique<ModelTool>(loop, *std::move(http), std::move(provider->codec));
  }
  Outcome call(const Value& settings, Call call) {
    const auto tool = model(settings);
    return perform(*tool, std::move(call));
  }
  Outcome perform(ModelTool& tool, Call call) {
    Outcome seen;
    bool returned = false;
    auto permit = testing::PermitForTests::make(call.invocation, call.try_no);
    tool.perform(std::move(permit), std::move(call), [&](Outcome outcome) {
      EXPECT_TRUE(returned);
      seen = std::move(outcome);
      loop.stop();
    });
    returned = true;
    loop.run();
    return seen;
  }
  // The outcome of one call to a server with this response.
  Outcome call_once(const std::string& answer) {
    RawHttpServer server(RawHttpServer::always(answer));
    Outcome outcome = call(settings(server), make_call(make_request()));
    EXPECT_EQ(server.arrivals(), 1);
    return outcome;
  }
  static Value settings(const RawHttpServer& server) {
    return Value::object({{"base_url", server.url("/v1")}, {"api_key", "secret:KEY"}});
  }
};

// Replaces HOST by the server's address.
inline std::string with_host(std::string text, const RawHttpServer& server) {
  constexpr std::string_view kHost = "HOST";
  if (const auto at = text.find(kHost); at != text.npos) {
    text.replace(at, kHost.size(), server.url("").substr(std::string_view("http://").size()));
  }
  return text;
}

inline constexpr const char* kAnswer = R"({
  "id": "chatcmpl-7", "object": "chat.completion", "model": "small-1-2026-10-01",
  "choices": [{"index": 0, "message": {"role": "assistant", "content": "ä!", "refusal": null},
               "finish_reason": "stop", "logprobs": null}],
  "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12,
            "prompt_tokens_details": {"cached_tokens": 4, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 2}}})";

// Sends the head of a stream, then its events one by one; `end`: then ends the body properly.
inline RawHttpServer::Script stream_script(std::vector<std::string> events, bool end = true) {
  return [events = std::move(events), end](Conversation& c) {
    c.read_request();
    c.send(
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
        "Transfer-Encoding: chunked\r\n\r\n");
    for (const std::string& event : events)
      c.send(fmt::format("{:x}\r\n{}\r\n", event.size(), event));
    if (end) c.send("0\r\n\r\n");
  };
}

inline std::string chunk(std::string_view text) {
  const Value delta = Value::object({{"content", std::string(text)}});
  const Value choice = Value::object({{"delta", delta}, {"finish_reason", Value()}, {"index", 0}});
  return fmt::format("data: {}\n\n",
                     canonical(Value::object({{"id", "chatcmpl-7"},
                                              {"model", "small-1-2026-10-01"},
                                              {"choices", Value::array({choice})}})));
}

inline const std::vector<std::string> kChatEnd = {
    "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\",\"index\":0}]}\n\n",
    "data: "
    "{\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3,\"total_tokens\":12,"
    "\"prompt_tokens_details\":{\"cached_tokens\":4},"
    "\"completion_tokens_details\":{\"reasoning_tokens\":2}}}\n\n",
    "data: [DONE]\n\n"};

inline std::vector<std::string> chat(const std::vector<std::string>& words, bool whole = true) {
  std::vector<std::string> events;
  events.reserve(words.size() + kChatEnd.size());
  for (const std::string& word : words) events.push_back(chunk(word));
  if (whole) events.insert(events.end(), kChatEnd.begin(), kChatEnd.end());
  return events;
}

struct StreamedCall {
  std::string text;
  int pieces = 0;
  Outcome outcome;
};

inline StreamedCall call_streamed(ModelFixture& fixture, RawHttpServer& server) {
  StreamedCall streamed_call;
  Call call = make_call(make_request());
  call.on_text_delta = [&](const tools::TextDelta& piece) {
    EXPECT_EQ(piece.offset, streamed_call.text.size());
    streamed_call.text += piece.text;
    ++streamed_call.pieces;
  };
  streamed_call.outcome = fixture.call(ModelFixture::settings(server), std::move(call));
  return streamed_call;
}

}  // namespace ae::llm::model_tool_test
