// ModelTool: requests of both providers, and the results of valid responses.
#include "llm/model_tool.h"

#include <string>

#include "llm/model_tool_fixture_test.h"

namespace ae::llm::model_tool_test {
namespace {

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

AE_TEST("model tool/a request of code is completed with the model of the file and its settings") {
  RawHttpServer server(RawHttpServer::always(raw_response(200, kAnswer)));
  ModelFixture fixture;
  const Value settings = Value::object(
      {{"base_url", server.url("/v1")},
       {"defaults", json(R"({"model":"small-1","temperature":0.5,"max_tokens":40})")}});
  for (const char* request : {R"({"max_tokens":7,"messages":[{"role":"user","content":"x"}]})",
                              R"({"model":"other","messages":[{"role":"user","content":"x"}]})"}) {
    const Outcome outcome = fixture.call(settings, make_call(json(request)));
    EXPECT_EQ(outcome.kind, OutcomeKind::success) << outcome.error_message;
  }
  ASSERT_EQ(server.arrivals(), 2);
  const Value of_code = json(server.requests()[0].body);
  EXPECT_EQ(of_code["model"], Value("small-1"));
  EXPECT_EQ(of_code["temperature"], Value(0.5));
  EXPECT_EQ(of_code["max_completion_tokens"], Value(7)) << "its own holds";
  const Value of_plan = json(server.requests()[1].body);
  EXPECT_EQ(of_plan["model"], Value("other"));
  EXPECT_EQ(of_plan.find("temperature"), nullptr) << "a request that names its model is complete";
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
}  // namespace ae::llm::model_tool_test
