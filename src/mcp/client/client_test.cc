// Messages of a server, and the outcome of a tools/call (SPEC §6).
#include "mcp/client/server_message.h"

#include <optional>
#include <string>
#include <utility>

#include "json/json.h"
#include "mcp/client/classify_response.h"
#include "mcp/client/http.h"
#include "mcp/client/listing.h"
#include "net/asio_loop.h"
#include "testing/raw_http_server.h"
#include "testing/test.h"
#include "tools/output.h"

namespace ae::mcp::client {
namespace {

Value client_json(std::string_view text) { return *parse_json(text); }

AE_TEST("mcp/server_message/one message or a batch is read") {
  const auto one = read_messages(R"({"jsonrpc":"2.0","id":"a","method":"m","params":{"x":1}})");
  ASSERT_TRUE(one.has_value());
  EXPECT_EQ(one->front().kind, Message::Kind::request);
  EXPECT_EQ(one->front().params["x"], Value(1));
  const auto many = read_messages(
      R"([{"jsonrpc":"2.0","method":"n"},{"jsonrpc":"2.0","id":2,"result":null},)"
      R"({"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no","data":[1]}}])");
  ASSERT_TRUE(many.has_value());
  EXPECT_EQ((*many)[0].kind, Message::Kind::notification);
  EXPECT_EQ(to_reply((*many)[1]).kind, Reply::Kind::result);
  const Reply error = to_reply((*many)[2]);
  EXPECT_EQ(error.kind, Reply::Kind::error);
  EXPECT_EQ(error.code, -32700);
  EXPECT_EQ(error.text, "no");
  EXPECT_EQ(error.value.size(), 1u);
}

AE_TEST("mcp/server_message/an invalid message is rejected") {
  for (const char* text :
       {"", "x", "[]", "7", "{}", R"({"jsonrpc":"1.0","id":1,"result":1})",
        R"({"jsonrpc":"2.0","id":1})", R"({"jsonrpc":"2.0","id":1.5,"result":1})",
        R"({"jsonrpc":"2.0","id":1,"method":7})", R"([{"jsonrpc":"2.0","method":"n"},7])"}) {
    EXPECT_FALSE(read_messages(text).has_value()) << text;
  }
  const auto large = read_messages(std::string(kMessageMax + 1, ' '));
  ASSERT_FALSE(large);
  EXPECT_EQ(large.error().code, kParseError);
  const auto invalid = read_messages("7");
  ASSERT_FALSE(invalid);
  const std::string why = describe_unreadable(invalid.error(), "7");
  EXPECT_NE(why.find("not a JSON-RPC 2.0 message"), why.npos) << why;
}

AE_TEST("mcp/classify_response/every end of a call is classified as in SPEC 6") {
  using Kind = Reply::Kind;
  struct Row {
    Reply reply;
    OutcomeKind kind;
    bool definite;
    const char* code;
  };
  const Value text = client_json(R"({"content":[{"type":"text","text":"x"}]})");
  const Row rows[] = {
      {{.kind = Kind::result, .value = text}, OutcomeKind::success, false, ""},
      {{.kind = Kind::result, .value = text.with("isError", true)},
       OutcomeKind::failure,
       true,
       "tool_error"},
      {{.kind = Kind::result,
        .value = client_json(R"({"resultType":"input_required","inputRequests":{}})")},
       OutcomeKind::failure,
       true,
       "input_required"},
      {{.kind = Kind::result,
        .value = client_json(R"({"resultType":"input_required","requestState":"s"})")},
       OutcomeKind::input_required,
       true,
       ""},
      {{.kind = Kind::result,
        .value = client_json(R"({"resultType":"input_required","requestState":"s","inputRequests":
                          {"k":{"method":"roots/list"}}})")},
       OutcomeKind::unknown,
       false,
       "input_required"},
      {{.kind = Kind::result, .value = client_json(R"({"resultType":"task","taskId":"t"})")},
       OutcomeKind::unknown,
       false,
       "rpc_error"},
      {{.kind = Kind::error, .code = -32601}, OutcomeKind::failure, true, "rpc_refused"},
      {{.kind = Kind::error, .code = -32602}, OutcomeKind::failure, true, "rpc_refused"},
      {{.kind = Kind::error, .code = -32603}, OutcomeKind::unknown, false, "rpc_error"},
      {{.kind = Kind::error, .code = -32600}, OutcomeKind::unknown, false, "rpc_error"},
      {{.kind = Kind::error, .code = -32020, .status = 400},
       OutcomeKind::failure,
       true,
       "http_400"},
      {{.kind = Kind::error, .code = -32603, .status = 500},
       OutcomeKind::unknown,
       false,
       "rpc_error"},
      {{.kind = Kind::refused, .status = 403}, OutcomeKind::failure, true, "http_403"},
      {{.kind = Kind::refused, .status = 409}, OutcomeKind::unknown, false, "http_409"},
      {{.kind = Kind::refused, .status = 502}, OutcomeKind::unknown, false, "http_502"},
      {{.kind = Kind::refused, .status = 302}, OutcomeKind::unknown, false, "http_302"},
      {{.kind = Kind::not_sent}, OutcomeKind::failure, true, "not_sent"},
      {{.kind = Kind::unreachable}, OutcomeKind::failure, true, "connect"},
      {{.kind = Kind::unreachable, .is_tls_failure = true}, OutcomeKind::failure, true, "tls"},
      {{.kind = Kind::unreadable}, OutcomeKind::unknown, false, "rpc_error"},
      {{.kind = Kind::lost}, OutcomeKind::unknown, false, "reset"},
  };
  for (const Row& row : rows) {
    const Outcome outcome = classify_response(row.reply, tools::kOutputMax, {});
    EXPECT_TRUE(outcome.kind == row.kind);
    EXPECT_EQ(outcome.definite, row.definite);
    EXPECT_EQ(outcome.error_code, row.code);
  }
}

AE_TEST(
    "mcp/classify_response/an error from the server settles the call, a gateway error does not") {
  const auto settles = [](const Reply& reply) {
    return classify_response(reply, tools::kOutputMax, {}).settled;
  };
  using Kind = Reply::Kind;
  EXPECT_TRUE(settles({.kind = Kind::error, .code = -32603}));
  EXPECT_TRUE(settles({.kind = Kind::error, .code = -32603, .status = 500}));
  EXPECT_TRUE(settles({.kind = Kind::refused, .status = 500}));
  for (const int status : {409, 502, 503, 504, 524}) {
    EXPECT_FALSE(settles({.kind = Kind::refused, .status = status})) << status;
    EXPECT_FALSE(settles({.kind = Kind::error, .code = -32603, .status = status})) << status;
  }
  EXPECT_FALSE(settles({.kind = Kind::lost}));
  const Value task = client_json(R"({"resultType":"task","taskId":"t"})");
  EXPECT_FALSE(settles({.kind = Kind::result, .value = task})) << "the server is still working";
}

AE_TEST(
    "mcp/classify_response/the result is the structured content, else the only text, else the "
    "list") {
  const auto result = [](std::string_view text) {
    return classify_response({.kind = Reply::Kind::result, .value = client_json(text)}, 100, {})
        .result;
  };
  EXPECT_EQ(result(R"({"content":[{"type":"text","text":"x"}],"structuredContent":{"a":1}})"),
            client_json(R"({"a":1})"));
  EXPECT_EQ(result(R"({"content":[{"type":"text","text":"x"}]})"), Value("x"));
  EXPECT_EQ(result(R"({"content":[]})"), Value());
  EXPECT_EQ(result(R"({"content":[{"type":"text","text":"x"},{"type":"text","text":"y"}]})").size(),
            2u);
  EXPECT_EQ(result(R"({"content":[{"type":"image","data":"","mimeType":"a/b"}]})").size(), 1u);
}

AE_TEST("mcp/classify_response/an invalid result is a success with a record of it") {
  for (const char* text : {R"({})", R"([])", R"({"content":"x"})"}) {
    const Outcome outcome =
        classify_response({.kind = Reply::Kind::result, .value = client_json(text)}, 100, {});
    EXPECT_TRUE(outcome.kind == OutcomeKind::success && outcome.invalid.has_value());
  }
  const Value large =
      Value::object({{"content", Value::array({})}, {"structuredContent", std::string(101, 'x')}});
  EXPECT_TRUE(classify_response({.kind = Reply::Kind::result, .value = large}, 100, {})
                  .invalid.has_value());
}

AE_TEST(
    "mcp/classify_response/an elicitation is converted to our format, with its state unchanged") {
  const Outcome outcome = classify_response(
      {.kind = Reply::Kind::result,
       .value = client_json(R"({"resultType":"input_required","requestState":"s","inputRequests":{
           "a":{"method":"elicitation/create","params":{"message":"m","requestedSchema":
                {"type":"object","properties":{"n":{"type":"integer"}}}}},
           "b":{"method":"elicitation/create","params":{"mode":"url","message":"m","url":"u"}}}})")},
      100, {});
  ASSERT_EQ(outcome.kind, OutcomeKind::input_required) << outcome.error_message;
  EXPECT_TRUE(outcome.definite);
  EXPECT_EQ(outcome.result, client_json(R"({"state":"s","requests":{
      "a":{"message":"m","mode":"form","schema":{"type":"object","properties":{"n":{"type":"integer"}}}},
      "b":{"message":"m","mode":"url","url":"u"}}})"));
}

AE_TEST("mcp/classify_response/a state that contains a secret is not stored") {
  std::vector<tools::UsedSecret> used;
  used.push_back({"T", tools::Secret("hush-hush")});
  const Outcome outcome = classify_response(
      {.kind = Reply::Kind::result,
       .value = client_json(R"({"resultType":"input_required","requestState":"hush-hush"})")},
      100, used);
  EXPECT_EQ(outcome.kind, OutcomeKind::unknown);
  EXPECT_EQ(canonical(outcome.result).find("hush"), std::string::npos);
}

AE_TEST("mcp/classify_response/secrets are scrubbed from results and errors") {
  std::vector<tools::UsedSecret> used;
  used.push_back({"T", tools::Secret("hush-hush")});
  for (const Reply& reply :
       {Reply{.kind = Reply::Kind::result,
              .value = client_json(R"({"structuredContent":{"hush-hush":["hush-hush"]}})")},
        Reply{.kind = Reply::Kind::result,
              .value = client_json(
                  R"({"isError":true,"content":[{"type":"text","text":"hush-hush"}]})")},
        Reply{.kind = Reply::Kind::error, .code = 1, .text = "hush-hush"},
        Reply{.kind = Reply::Kind::result, .value = client_json(R"({"hush-hush":1})")}}) {
    const Outcome outcome = classify_response(reply, tools::kOutputMax, used);
    const std::string all = canonical(outcome.result) + outcome.error_message +
                            (outcome.invalid ? canonical(*outcome.invalid) : "");
    EXPECT_EQ(all.find("hush"), std::string::npos);
  }
}

AE_TEST("mcp/listing/the digest covers all declared fields of a tool, and nothing else") {
  const Value tool = client_json(
      R"({"name":"t","description":"d","inputSchema":{"type":"object"},"annotations":{"a":1}})");
  const auto pin = pin_tool(tool);
  ASSERT_TRUE(pin.has_value());
  EXPECT_EQ(pin->text("digest"), digest_of(*pin));
  EXPECT_EQ(pin_tool(tool.with("icons", Value::array({})))->text("digest"), pin->text("digest"));
  EXPECT_EQ(pin_tool(tool.with("execution", client_json(R"({"taskSupport":"optional"})")))
                ->text("digest"),
            pin->text("digest"));
  EXPECT_NE(pin_tool(tool.with("execution", client_json(R"({"taskSupport":"required"})")))
                ->text("digest"),
            pin->text("digest"));
  for (const char* key : {"name", "title", "description"}) {
    EXPECT_NE(pin_tool(tool.with(key, "other"))->text("digest"), pin->text("digest"));
  }
  for (const char* key : {"inputSchema", "outputSchema", "annotations"}) {
    EXPECT_NE(pin_tool(tool.with(key, Value::object({{"x", 1}})))->text("digest"),
              pin->text("digest"));
  }
  EXPECT_FALSE(pin_tool(client_json(R"({"name":"t"})")).has_value());
  EXPECT_FALSE(pin_tool(tool.with("description", std::string(kToolMax, 'x'))).has_value());
}

AE_TEST("mcp/listing/invalid x-mcp-header declarations are rejected") {
  const auto schema = [](std::string_view properties) {
    return client_json(R"({"type":"object","properties":{)" + std::string(properties) + "}}");
  };
  EXPECT_TRUE(has_valid_header_mirrors(schema("")));
  EXPECT_TRUE(has_valid_header_mirrors(schema(R"("a":{"type":"string","x-mcp-header":"Region"},)"
                                              R"("b":{"type":"integer","x-mcp-header":"Priority"},)"
                                              R"("c":{"type":"boolean","x-mcp-header":"Debug"})")));
  for (const char* property : {
           R"("a":{"type":"string","x-mcp-header":""})",
           R"("a":{"type":"string","x-mcp-header":"My Region"})",
           R"("a":{"type":"string","x-mcp-header":"Region:Primary"})",
           R"("a":{"type":"string","x-mcp-header":"Région"})",
           R"("a":{"type":"string","x-mcp-header":"Region\t1"})",
           R"("a":{"type":"string","x-mcp-header":1})",
           R"("a":{"type":"number","x-mcp-header":"Score"})",
           R"("a":{"type":"object","x-mcp-header":"Data"})",
           R"("a":{"type":"array","x-mcp-header":"Items"})",
           R"("a":{"type":"null","x-mcp-header":"Nil"})",
           R"("a":{"x-mcp-header":"Any"})",
           R"("a":{"type":"string","x-mcp-header":"F"},"b":{"type":"string","x-mcp-header":"f"})",
           R"("a":{"type":"object","properties":{"b":{"type":"number","x-mcp-header":"B"}}})",
       }) {
    EXPECT_FALSE(has_valid_header_mirrors(schema(property))) << property;
  }
}

class OneSecret final : public tools::SecretSource {
 public:
  Result<tools::Secret> get(std::string_view) override { return tools::Secret("s3cr3t-canary"); }
};

AE_TEST("mcp/http/an error shows no part of a secret, wherever it is truncated") {
  net::AsioLoop loop;
  net::HttpClient client{loop};
  OneSecret secrets;
  for (std::size_t before = tools::kHeadMax - 13; before <= tools::kHeadMax; ++before) {
    testing::RawHttpServer server(testing::RawHttpServer::always(
        testing::raw_response(403, std::string(before, 'x') + "s3cr3t-canary", "text/plain")));
    HttpTransport transport(
        loop, client, secrets,
        Value::object({{"url", server.url("/mcp")},
                       {"headers", Value::object({{"Authorization", "secret:TOKEN"}})}}));
    ASSERT_TRUE(transport.open({}));
    std::optional<Reply> reply;
    transport.send({.message = Value::object({}), .id = 1, .timeout = std::chrono::seconds(5)},
                   [&](Reply answer) {
                     reply = std::move(answer);
                     loop.stop();
                   });
    loop.run();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->kind, Reply::Kind::refused);
    EXPECT_EQ(reply->text.find("s3"), std::string::npos) << reply->text;
  }
}

}  // namespace
}  // namespace ae::mcp::client
