// ModelTool with a real HTTP server: the requests sent, and the outcome of every kind of response.
#include "llm/model_tool.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>

#include "json/json.h"
#include "llm/provider.h"
#include "net/asio_loop.h"
#include "testing/permit.h"
#include "testing/raw_http_server.h"
#include "testing/test.h"
#include "tools/http/http_tool.h"

namespace ae::llm {
namespace {

using namespace std::chrono_literals;
using testing::raw_response;
using testing::RawHttpServer;
using tools::Call;
using Conversation = RawHttpServer::Conversation;

class OneSecret final : public tools::SecretSource {
 public:
  Result<tools::Secret> get(std::string_view name) override {
    if (name == "KEY") return tools::Secret("sk-canary-123");
    return fail(Code::secret_missing, "the secret " + std::string(name) + " is missing");
  }
};

Value json(std::string_view text) {
  auto value = parse_json(text);
  EXPECT_TRUE(value) << text;
  return value ? *value : Value();
}

Value make_request() {
  return json(R"({"model":"small-1","messages":[{"role":"user","content":"Say ä"}]})");
}

Call make_call(Value args) {
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
std::string with_host(std::string text, const RawHttpServer& server) {
  constexpr std::string_view kHost = "HOST";
  if (const auto at = text.find(kHost); at != text.npos) {
    text.replace(at, kHost.size(), server.url("").substr(std::string_view("http://").size()));
  }
  return text;
}

constexpr const char* kAnswer = R"({
  "id": "chatcmpl-7", "object": "chat.completion", "model": "small-1-2026-10-01",
  "choices": [{"index": 0, "message": {"role": "assistant", "content": "ä!", "refusal": null},
               "finish_reason": "stop", "logprobs": null}],
  "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12,
            "prompt_tokens_details": {"cached_tokens": 4, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 2}}})";

// ---- requests and records

AE_TEST("model tool/a request is sent to chat/completions, and the response is normalized") {
  RawHttpServer server(RawHttpServer::always(raw_response(200, kAnswer)));
  ModelFixture fixture;
  const Outcome outcome = fixture.call(ModelFixture::settings(server), make_call(make_request()));
  EXPECT_EQ(outcome.kind, OutcomeKind::success) << outcome.error_message;
  EXPECT_EQ(canonical(outcome.result),
            R"({"finish_reason":"stop","model":"small-1-2026-10-01","text":"ä!",)"
            R"("usage":{"cached_tokens":4,"input_tokens":9,"output_tokens":3,)"
            R"("reasoning_tokens":2,"total_tokens":12}})");
  EXPECT_EQ(outcome.external_id, "chatcmpl-7");
  ASSERT_EQ(server.arrivals(), 1);
  const auto request = server.requests()[0];
  EXPECT_TRUE(request.head.starts_with("POST /v1/chat/completions HTTP/1.1\r\n"));
  EXPECT_EQ(request.header("Authorization"), "Bearer sk-canary-123");
  EXPECT_EQ(request.header("Content-Type"), "application/json");
  EXPECT_EQ(request.header("Idempotency-Key"), "aetheris:job-1:0123456789abcdef:0");
  EXPECT_EQ(request.body,
            R"({"messages":[{"content":"Say ä","role":"user"}],"model":"small-1","stream":true,)"
            R"("stream_options":{"include_usage":true}})");
}

AE_TEST("model tool/temperature and max_tokens are sent if the request has them") {
  RawHttpServer server(RawHttpServer::always(raw_response(200, kAnswer)));
  ModelFixture fixture;
  const Value request = make_request().with("temperature", 0.5).with("max_tokens", 40);
  Value settings = Value::object({{"base_url", server.url("/v1/")}});
  fixture.call(settings, make_call(request));
  fixture.call(settings.with("max_tokens_name", "max_tokens"), make_call(request));
  ASSERT_EQ(server.arrivals(), 2);
  EXPECT_EQ(server.requests()[0].target(), "/v1/chat/completions");
  EXPECT_EQ(server.requests()[0].header("Authorization"), "");
  const Value first = json(server.requests()[0].body);
  EXPECT_EQ(first["temperature"], Value(0.5));
  EXPECT_EQ(first["max_completion_tokens"], Value(40));
  EXPECT_EQ(first.find("max_tokens"), nullptr);
  const Value second = json(server.requests()[1].body);
  EXPECT_EQ(second["max_tokens"], Value(40));
  EXPECT_EQ(second.find("max_completion_tokens"), nullptr);
}

AE_TEST("model tool/a request without model or messages is rejected and not sent") {
  RawHttpServer server(RawHttpServer::always(raw_response(200, kAnswer)));
  ModelFixture fixture;
  for (const char* request : {"{}", R"({"model":"m","messages":[]})", R"({"model":"m"})",
                              R"({"messages":[{"role":"user","content":"x"}]})"}) {
    const Outcome outcome = fixture.call(ModelFixture::settings(server), make_call(json(request)));
    EXPECT_EQ(outcome.kind, OutcomeKind::failure) << request;
    EXPECT_TRUE(outcome.definite);
    EXPECT_EQ(outcome.error_code, "request_invalid");
  }
  EXPECT_EQ(server.connections(), 0);
}

AE_TEST("model tool/an answer with a refusal, null, filtered or multi-part content is valid") {
  ModelFixture fixture;
  const auto text_of = [&](const std::string& message, const char* reason) {
    return fixture.call_once(raw_response(200, R"({"choices":[{"message":)" + message +
                                                   R"(,"finish_reason":")" + reason + R"("}]})"));
  };
  Outcome outcome = text_of(R"({"content":null,"refusal":"I will not."})", "stop");
  EXPECT_EQ(canonical(outcome.result),
            R"({"finish_reason":"stop","refusal":"I will not.","text":""})");
  outcome = text_of(R"({"content":null})", "content_filter");
  EXPECT_EQ(canonical(outcome.result), R"({"finish_reason":"content_filter","text":""})");
  outcome = text_of(R"({"role":"assistant"})", "length");
  EXPECT_EQ(canonical(outcome.result), R"({"finish_reason":"length","text":""})");
  outcome =
      text_of(R"({"content":[{"type":"text","text":"a"},{"type":"x"},{"type":"text","text":"b"}]})",
              "stop");
  EXPECT_EQ(outcome.result["text"], Value("ab"));
}

AE_TEST("model tool/invalid token counts are omitted") {
  ModelFixture fixture;
  const Outcome outcome =
      fixture.call_once(raw_response(200, R"({"choices":[{"message":{"content":"x"}}],
                          "usage":{"prompt_tokens":-1,"completion_tokens":"3","total_tokens":1.5}})"));
  EXPECT_EQ(canonical(outcome.result), R"({"text":"x"})");
}

AE_TEST("model tool/JSON with content type text/plain is parsed") {
  ModelFixture fixture;
  const Outcome outcome = fixture.call_once(raw_response(200, kAnswer, "text/plain"));
  EXPECT_EQ(outcome.result["text"], Value("ä!"));
}

// ---- failures

AE_TEST("model tool/an invalid answer is a success with a small record of the reason") {
  ModelFixture fixture;
  const auto reason = [&](const std::string& answer) {
    const Outcome outcome = fixture.call_once(answer);
    EXPECT_EQ(outcome.kind, OutcomeKind::success);
    EXPECT_TRUE(outcome.result.is_null());
    EXPECT_TRUE(outcome.invalid) << answer.substr(0, 200);
    const Value record = outcome.invalid.value_or(Value());
    EXPECT_EQ(record["invalid"], Value(true));
    EXPECT_LT(canonical(record).size(), 2000u);
    return std::string(record.text("reason"));
  };
  EXPECT_EQ(reason(raw_response(200, "{}")), "the answer has no choices");
  EXPECT_EQ(reason(raw_response(200, "{}", "text/plain")), "the answer has no choices");
  EXPECT_EQ(reason(raw_response(200, R"({"choices":[]})")), "the answer has no choices");
  EXPECT_EQ(reason(raw_response(200, R"({"choices":[{"delta":{}}]})")),
            "the answer has no message");
  EXPECT_NE(reason(raw_response(200, R"({"choices":[{"message":{"content":7}}]})")).find("content"),
            std::string::npos);
  EXPECT_NE(reason(raw_response(200, std::string(5 << 20, ' ') + kAnswer)).find("larger"),
            std::string::npos);
}

AE_TEST("model tool/a response that is not JSON is retryable, as a 502") {
  const struct {
    const char* name;
    std::string answer;
    const char* message;
  } cases[] = {
      {"a page with a title",
       raw_response(200, "<html><head><TITLE> Sign in, sk-canary-123 </TITLE></head></html>",
                    "text/html; charset=utf-8"),
       "the server at HOST is not a model provider: it sent text/html (Sign in, [secret KEY]): "
       "check `base_url`"},
      {"a page without a title", raw_response(200, "<p>Hello", "text/html"),
       "the server at HOST is not a model provider: it sent text/html (<p>Hello): "
       "check `base_url`"},
      {"a text", raw_response(200, "hello", "text/plain"),
       "the server at HOST is not a model provider: it sent text/plain (hello): check `base_url`"},
      {"bytes", raw_response(200, "\xff\x01", "application/octet-stream"),
       "the server at HOST is not a model provider: it sent application/octet-stream (\\xff\\x01): "
       "check `base_url`"},
      {"nothing", raw_response(200, ""),
       "the server at HOST is not a model provider: it sent nothing: check `base_url`"},
      {"a truncated response", raw_response(200, R"({"choices":[)"),
       "the answer is invalid JSON: the text ends where a value is expected at byte 12"},
  };
  for (const bool stream : {true, false}) {
    for (const auto& c : cases) {
      ModelFixture fixture;
      RawHttpServer server(RawHttpServer::always(c.answer));
      const Value settings = ModelFixture::settings(server).with("stream", stream);
      const Outcome outcome = fixture.call(settings, make_call(make_request()));
      EXPECT_EQ(outcome.kind, OutcomeKind::unknown) << c.name;
      EXPECT_EQ(outcome.error_code, "http_502") << c.name;
      EXPECT_TRUE(outcome.retryable && !outcome.definite) << c.name;
      EXPECT_TRUE(outcome.result.is_null() && !outcome.invalid) << c.name;
      EXPECT_EQ(with_host(c.message, server), outcome.error_message) << c.name;
    }
  }
}

AE_TEST("model tool/each error status is classified and reported with a message and a hint") {
  const struct {
    int status;
    OutcomeKind kind;
    bool definite, retryable;
    const char* hint = ".";
  } cases[] = {{302, OutcomeKind::unknown, false, false, "; check `base_url` (HOST): it redirects"},
               {400, OutcomeKind::failure, true, false},
               {401, OutcomeKind::failure, true, false, "; its key is secret:KEY"},
               {403, OutcomeKind::failure, true, false, "; its key is secret:KEY"},
               {404, OutcomeKind::failure, true, false, "; check `base_url` (HOST) and `model`"},
               {429, OutcomeKind::failure, true, true},
               {500, OutcomeKind::unknown, false, true},
               {503, OutcomeKind::unknown, false, true},
               {529, OutcomeKind::unknown, false, true}};
  ModelFixture fixture;
  for (const auto& c : cases) {
    RawHttpServer server(RawHttpServer::always(raw_response(
        c.status,
        R"({"error": {"type": "invalid_request_error", "message": "Not so, says sk-canary-123."}})",
        "application/json", "Retry-After: 7\r\n")));
    const Outcome outcome = fixture.call(ModelFixture::settings(server), make_call(make_request()));
    EXPECT_EQ(outcome.kind, c.kind) << c.status;
    EXPECT_EQ(outcome.definite, c.definite) << c.status;
    EXPECT_EQ(outcome.retryable, c.retryable) << c.status;
    EXPECT_EQ(outcome.error_code, "http_" + std::to_string(c.status));
    EXPECT_EQ(outcome.error_message, "the server answered " + std::to_string(c.status) +
                                         ": Not so, says [secret KEY]" + with_host(c.hint, server));
    EXPECT_EQ(outcome.retry_after, Duration(7s));
  }
}

AE_TEST("model tool/a missing key or an unreachable server is reported with what to check") {
  ModelFixture fixture;
  RawHttpServer server(RawHttpServer::always(raw_response(401, "{}")));
  const Value settings = Value::object({{"base_url", server.url("/v1")}});
  EXPECT_EQ(fixture.call(settings, make_call(make_request())).error_message,
            "the server answered 401: {}; the model has no `api_key`");
  for (int i = 0; i < 2; ++i) {
    const Outcome outcome = fixture.call(Value::object({{"base_url", "http://127.0.0.1:1/v1"}}),
                                         make_call(make_request()));
    EXPECT_EQ(outcome.error_code, "connect");
    EXPECT_EQ(outcome.error_message,
              "Failed to connect to 127.0.0.1 port 1: Couldn't connect to server; "
              "check `base_url` (127.0.0.1:1)");
  }
}

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

AE_TEST("model tool/a cut off response or a timeout is unknown and retryable") {
  const struct {
    const char* name;
    RawHttpServer::Script script;
    OutcomeKind kind;
    const char* code;
  } cases[] = {
      {"cut off",
       [](Conversation& c) {
         c.read_request();
         c.send("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n");
         c.send(std::string(kAnswer).substr(0, 60));
       },
       OutcomeKind::unknown, "reset"},
      {"reset",
       [](Conversation& c) {
         c.read_request();
         c.reset();
       },
       OutcomeKind::unknown, "reset"},
      {"hang",
       [](Conversation& c) {
         c.read_request();
         c.hang();
       },
       OutcomeKind::timeout, "timeout"},
  };
  ModelFixture fixture;
  for (const auto& c : cases) {
    RawHttpServer server(c.script);
    Call call = make_call(make_request());
    call.timeout = 100ms;
    const Outcome outcome = fixture.call(ModelFixture::settings(server), std::move(call));
    EXPECT_EQ(outcome.kind, c.kind) << c.name;
    EXPECT_EQ(outcome.error_code, c.code) << c.name;
    EXPECT_FALSE(outcome.definite) << c.name;
    EXPECT_TRUE(outcome.retryable) << c.name;
    EXPECT_EQ(server.arrivals(), 1) << c.name;
  }
}

AE_TEST("model tool/an abandoned call completes once, also if its tool is destroyed") {
  RawHttpServer server([](Conversation& c) {
    c.read_request();
    c.hang();
  });
  ModelFixture fixture;
  auto tool = fixture.model(ModelFixture::settings(server));
  std::move_only_function<void()> poll_arrivals = [&] {
    if (server.arrivals() == 0) {
      fixture.loop.after(1ms, [&] { poll_arrivals(); });
    } else {
      tool->abandon(InvocationId("fedcba9876543210"), 1);
      tool.reset();
    }
  };
  poll_arrivals();
  const Outcome outcome = fixture.perform(*tool, make_call(make_request()));
  EXPECT_EQ(outcome.kind, OutcomeKind::unknown);
  EXPECT_EQ(outcome.error_code, "abandoned");
}

AE_TEST("model tool/Anthropic requests have their own path, headers and format") {
  RawHttpServer server(RawHttpServer::always(raw_response(200, R"({
    "id": "msg_1", "type": "message", "role": "assistant", "model": "small-1-2026",
    "content": [{"type": "text", "text": "ä!"}], "stop_reason": "end_turn",
    "usage": {"input_tokens": 5, "output_tokens": 3, "cache_read_input_tokens": 4}})")));
  ModelFixture fixture;
  fixture.name = "anthropic";
  const Outcome outcome = fixture.call(ModelFixture::settings(server), make_call(make_request()));
  EXPECT_EQ(outcome.kind, OutcomeKind::success) << outcome.error_message;
  EXPECT_EQ(canonical(outcome.result),
            R"({"finish_reason":"stop","model":"small-1-2026","text":"ä!",)"
            R"("usage":{"cached_tokens":4,"input_tokens":9,"output_tokens":3,"total_tokens":12}})");
  EXPECT_EQ(outcome.external_id, "msg_1");
  ASSERT_EQ(server.arrivals(), 1);
  const auto request = server.requests()[0];
  EXPECT_EQ(request.target(), "/v1/messages");
  EXPECT_EQ(request.header("x-api-key"), "sk-canary-123");
  EXPECT_EQ(request.header("anthropic-version"), "2023-06-01");
  EXPECT_EQ(request.header("Authorization"), "");
  EXPECT_EQ(request.header("Idempotency-Key"), "aetheris:job-1:0123456789abcdef:0");
  EXPECT_EQ(request.body,
            R"({"max_tokens":4096,"messages":[{"content":[{"text":"Say ä","type":"text"}],)"
            R"("role":"user"}],"model":"small-1","stream":true})");
}

AE_TEST("model tool/an answer with a schema has parsed JSON, or a record with reason and usage") {
  const Value schema = json(R"({"type":"object","additionalProperties":false,)"
                            R"("properties":{"n":{"type":"integer"}},"required":["n"]})");
  ModelFixture fixture;
  const auto call_with_content = [&](const std::string& content) {
    const Value body = json(kAnswer);
    Value choice = body["choices"].items()[0];
    choice = choice.with("message", json(R"({"role":"assistant"})").with("content", content));
    RawHttpServer server(RawHttpServer::always(
        raw_response(200, canonical(body.with("choices", Value::array({choice}))))));
    return fixture.call(ModelFixture::settings(server),
                        make_call(make_request().with("schema", schema)));
  };
  EXPECT_EQ(call_with_content(R"( {"n": 7} )").result["json"], json(R"({"n":7})"));
  const struct {
    const char* content;
    const char* reason;
  } cases[] = {{"Sure! {\"n\": 7}", "is invalid JSON"},
               {R"({"n":"7"})", "breaks the schema"},
               {"", "is invalid JSON"}};
  for (const auto& c : cases) {
    const Outcome outcome = call_with_content(c.content);
    EXPECT_EQ(outcome.kind, OutcomeKind::success) << c.content;
    EXPECT_TRUE(outcome.result.is_null()) << c.content;
    ASSERT_TRUE(outcome.invalid) << c.content;
    EXPECT_TRUE(outcome.invalid->text("reason").starts_with(c.reason))
        << outcome.invalid->text("reason");
    EXPECT_EQ((*outcome.invalid)["usage"]["total_tokens"], Value(12)) << c.content;
    EXPECT_EQ(outcome.invalid->text("model"), "small-1-2026-10-01") << c.content;
  }
}

AE_TEST("model tool/with repair, an answer that violates its schema is recorded verbatim") {
  ModelFixture fixture;
  RawHttpServer server(RawHttpServer::always(raw_response(200, kAnswer)));
  const Value request = make_request().with("schema", json(R"({"type":"object"})"));
  const Outcome outcome =
      fixture.call(ModelFixture::settings(server), make_call(request.with("repair", true)));
  EXPECT_EQ(outcome.kind, OutcomeKind::success);
  EXPECT_FALSE(outcome.invalid);
  EXPECT_FALSE(outcome.result.text("text").empty());
  EXPECT_TRUE(outcome.result.text("invalid").starts_with("is invalid JSON"));
  EXPECT_EQ(outcome.result.find("json"), nullptr);
  EXPECT_EQ(outcome.result["usage"]["total_tokens"], Value(12));
  EXPECT_TRUE(fixture.call(ModelFixture::settings(server), make_call(request)).invalid);
}

AE_TEST("model tool/an abandoned call closes its connection") {
  std::atomic<bool> closed = false;
  RawHttpServer server([&](Conversation& c) {
    c.read_request();
    c.hang();  // until the client disconnects
    closed = true;
  });
  ModelFixture fixture;
  auto tool = fixture.model(ModelFixture::settings(server));
  std::move_only_function<void()> poll_arrivals = [&] {
    if (server.arrivals() == 0) {
      fixture.loop.after(1ms, [&] { poll_arrivals(); });
      return;
    }
    EXPECT_FALSE(closed);
    tool->abandon(InvocationId("fedcba9876543210"), 1);
  };
  poll_arrivals();
  EXPECT_EQ(fixture.perform(*tool, make_call(make_request())).error_code, "abandoned");
  for (int i = 0; i < 5000 && !closed; ++i) std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(closed);
}

// ---- streams

// Sends the head of a stream, then its events one by one; `end`: then ends the body properly.
RawHttpServer::Script stream_script(std::vector<std::string> events, bool end = true) {
  return [events = std::move(events), end](Conversation& c) {
    c.read_request();
    c.send(
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
        "Transfer-Encoding: chunked\r\n\r\n");
    for (const std::string& event : events) {
      char size[32];
      std::snprintf(size, sizeof size, "%zx\r\n", event.size());
      c.send(size + event + "\r\n");
    }
    if (end) c.send("0\r\n\r\n");
  };
}

std::string chunk(std::string_view text) {
  const Value delta = Value::object({{"content", std::string(text)}});
  const Value choice = Value::object({{"delta", delta}, {"finish_reason", Value()}, {"index", 0}});
  return "data: " +
         canonical(Value::object({{"id", "chatcmpl-7"},
                                  {"model", "small-1-2026-10-01"},
                                  {"choices", Value::array({choice})}})) +
         "\n\n";
}

const std::vector<std::string> kChatEnd = {
    "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\",\"index\":0}]}\n\n",
    "data: "
    "{\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3,\"total_tokens\":12,"
    "\"prompt_tokens_details\":{\"cached_tokens\":4},"
    "\"completion_tokens_details\":{\"reasoning_tokens\":2}}}\n\n",
    "data: [DONE]\n\n"};

std::vector<std::string> chat(const std::vector<std::string>& words, bool whole = true) {
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

StreamedCall call_streamed(ModelFixture& fixture, RawHttpServer& server) {
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
    events.push_back("data: " + canonical(event) + "\n\n");
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

AE_TEST("model tool/stream false requests an unstreamed response") {
  for (const char* name : {"openai", "anthropic"}) {
    RawHttpServer server(RawHttpServer::always(raw_response(200, "{}")));
    ModelFixture fixture;
    fixture.name = name;
    fixture.call(ModelFixture::settings(server).with("stream", false), make_call(make_request()));
    EXPECT_EQ(json(server.requests()[0].body).find("stream"), nullptr) << name;
  }
}

}  // namespace
}  // namespace ae::llm
