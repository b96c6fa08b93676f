// Answers that are not valid messages: the affected calls end at once, with an unknown outcome.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mcp/client/http.h"
#include "mcp/client/mcp_fixture_test.h"
#include "mcp/client/stdio.h"
#include "net/asio_loop.h"
#include "testing/raw_http_server.h"
#include "testing/test.h"

namespace ae::mcp::client {
namespace {

class WithoutSecrets final : public tools::SecretSource {
 public:
  Result<tools::Secret> get(std::string_view) override {
    return fail(Code::secret_missing, "none");
  }
};

// A program controlled by the test, with one secret in its environment.
struct FakeStdioProcesses final : tools::StdioProcesses {
  struct FakeStdioProcess final : tools::StdioProcess {
    void write(std::string) override {}
  };
  Result<std::unique_ptr<tools::StdioProcess>> start(const Value&, const std::string&,
                                                     std::vector<tools::UsedSecret>& used,
                                                     Callbacks callbacks_in) override {
    used.push_back({"TOKEN", tools::Secret("s3cr3t-canary")});
    callbacks = std::move(callbacks_in);
    return std::make_unique<FakeStdioProcess>();
  }
  Callbacks callbacks;
};

struct StdioFixture {
  ManualLoop loop;
  FakeStdioProcesses program;
  WithoutSecrets secrets;
  StdioTransport transport{loop, program, secrets, Value::object({}), ""};
  std::map<std::int64_t, Reply> replies;

  StdioFixture() {
    EXPECT_TRUE(transport.open({.on_message = [](const IncomingMessage&) {}, .on_close = {}}));
  }
  void call(std::int64_t id) { send(id, "tools/call", "pay"); }
  void send(std::int64_t id, const char* method, const char* name) {
    transport.send(
        {.message = Value::object({}), .id = id, .method = method, .name = name},
        [this, id](Reply reply) { EXPECT_TRUE(replies.emplace(id, std::move(reply)).second); });
  }
  void print_line(const std::string& line) { program.callbacks.on_output(line + "\n"); }
  std::string kind(std::int64_t id) {
    const auto found = replies.find(id);
    if (found == replies.end()) return "open";
    return found->second.kind == Kind::unreadable ? "unreadable"
           : found->second.kind == Kind::result   ? "result"
                                                  : "other";
  }
};

std::string response_to(std::int64_t id) { return canonical(response(id, Value::object({}))); }

AE_TEST("mcp/stdio/an invalid line ends the only open call and is shown") {
  for (const char* line : {"{it broke", "{", "[7", R"({"id":"7","result":1})"}) {
    StdioFixture server;
    server.call(7);
    server.print_line(std::string(line) + " s3cr3t-canary");
    ASSERT_EQ(server.kind(7), "unreadable") << line;
    const std::string& why = server.replies.at(7).text;
    EXPECT_NE(why.find("cannot be read"), why.npos) << why;
    EXPECT_NE(why.find("[secret TOKEN]"), why.npos) << why;
    EXPECT_EQ(why.find("canary"), why.npos) << why;
    server.call(8);
    server.print_line(response_to(8));
    EXPECT_EQ(server.kind(8), "result") << "the server stays connected";
  }
}

AE_TEST("mcp/stdio/banners, log lines and empty lines are skipped") {
  StdioFixture server;
  server.print_line("a banner");
  server.send(1, "initialize", "");
  server.print_line("another banner");
  server.print_line(response_to(1));
  EXPECT_EQ(server.kind(1), "result");
  server.call(2);
  server.print_line("");
  server.print_line(" \r");
  server.print_line("INFO a line of a log");
  server.print_line("7");
  server.print_line(R"({"jsonrpc":"2.0","method":"notifications/of-its-own"})");
  EXPECT_EQ(server.kind(2), "open");
  server.print_line(response_to(2));
  EXPECT_EQ(server.kind(2), "result");
}

AE_TEST("mcp/stdio/an invalid response with an id ends only that request") {
  StdioFixture server;
  server.send(1, "tools/list", "");
  server.call(2);
  server.call(3);
  server.print_line(R"({"jsonrpc":"1.0","id":2,"result":{}})");
  EXPECT_EQ(server.kind(2), "unreadable");
  server.print_line(R"([{"jsonrpc":"2.0","id":1}])");
  EXPECT_EQ(server.kind(1), "unreadable");
  EXPECT_EQ(server.kind(3), "open");
  server.print_line(response_to(3));
  EXPECT_EQ(server.kind(3), "result");
}

AE_TEST("mcp/stdio/an invalid line ends the call whose response it must have been") {
  StdioFixture server;
  server.call(1);
  server.call(2);
  server.call(3);
  server.print_line("{no message");
  EXPECT_EQ(server.kind(1) + server.kind(2) + server.kind(3), "openopenopen");
  server.call(4);
  server.print_line(response_to(1));
  EXPECT_EQ(server.kind(2), "open");
  server.print_line(response_to(3));
  EXPECT_EQ(server.kind(2), "unreadable") << "the line was its response";
  EXPECT_EQ(server.kind(4), "open") << "it was sent after the line";
  server.print_line("{no message");
  EXPECT_EQ(server.kind(4), "unreadable");
  server.call(5);
  server.call(6);
  server.print_line("{no message");
  server.transport.cancel_request(5);
  EXPECT_EQ(server.kind(6), "open") << "the line may have been the response to the other";
  server.print_line("{no message");
  EXPECT_EQ(server.kind(6), "unreadable");
}

Reply send_over_http(testing::RawHttpServer::Script script) {
  net::AsioLoop loop;
  net::HttpClient client{loop};
  WithoutSecrets secrets;
  testing::RawHttpServer server(std::move(script));
  HttpTransport transport(loop, client, secrets, Value::object({{"url", server.url("/mcp")}}));
  EXPECT_TRUE(transport.open({}));
  std::optional<Reply> reply;
  transport.send({.message = Value::object({}), .id = 1, .timeout = 60s}, [&](Reply answered) {
    reply = std::move(answered);
    loop.stop();
  });
  loop.run();
  transport.close();
  return reply.value_or(Reply{});
}

AE_TEST("mcp/http/an invalid response body ends the call and is shown") {
  const Reply reply = send_over_http(
      testing::RawHttpServer::always(testing::raw_response(200, "<html>", "application/json")));
  EXPECT_EQ(reply.kind, Kind::unreadable);
  EXPECT_NE(reply.text.find("<html>"), std::string::npos) << reply.text;
  const Reply empty = send_over_http(
      testing::RawHttpServer::always(testing::raw_response(200, "", "application/json")));
  EXPECT_EQ(empty.kind, Kind::lost) << "an empty body is not a response";
}

AE_TEST("mcp/http/an invalid event ends the call, even if its stream stays open") {
  const Reply reply = send_over_http([](testing::RawHttpServer::Conversation& c) {
    c.read_request();
    c.send(
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
        "id: 1\ndata: \n\nevent: heartbeat\ndata: tick\n\ndata: {broken\n\n");
    c.hang();
  });
  EXPECT_EQ(reply.kind, Kind::unreadable);
  EXPECT_NE(reply.text.find("{broken"), std::string::npos) << reply.text;
}

AE_TEST("mcp/call/an unreadable response is an unknown outcome with the name of the tool") {
  McpFixture fixture([](const OutgoingMessage& outgoing) -> std::optional<Reply> {
    if (outgoing.method == "tools/call")
      return Reply{.kind = Kind::unreadable, .text = "invalid JSON"};
    return modern_server(outgoing);
  });
  fixture.call();
  EXPECT_EQ(fixture.only_outcome().kind, OutcomeKind::unknown);
  EXPECT_FALSE(fixture.only_outcome().definite);
  EXPECT_EQ(fixture.only_outcome().error_code, "rpc_error");
  EXPECT_EQ(fixture.only_outcome().error_message, "s.t: invalid JSON");
}

}  // namespace
}  // namespace ae::mcp::client
