// GetStream against a server of raw sockets.
#include "mcp/client/get_stream.h"

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "json/json.h"
#include "mcp/client/http.h"
#include "net/asio_loop.h"
#include "testing/raw_http_server.h"
#include "testing/test.h"

namespace ae::mcp::client {
namespace {

using namespace std::chrono_literals;
using Conversation = testing::RawHttpServer::Conversation;

constexpr std::string_view kBegin =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
constexpr std::string_view kQuestionEvent =
    "id: e1\nretry: 100\ndata: "
    "{\"jsonrpc\":\"2.0\",\"id\":\"q\",\"method\":\"elicitation/create\"}\n\n";

class NoSecrets final : public tools::SecretSource {
 public:
  Result<tools::Secret> get(std::string_view) override {
    return fail(Code::secret_missing, "none");
  }
};

// A legacy session with a server that answers each GET as the test specifies.
struct GetStreamFixture {
  std::function<void(Conversation&, int nth)> on_get;
  std::string session;  // a header
  std::atomic<int> gets{0};
  net::AsioLoop loop;
  net::HttpClient client{loop};
  NoSecrets secrets;
  std::vector<IncomingMessage> received;
  std::optional<testing::RawHttpServer> server;
  std::optional<HttpTransport> transport;

  explicit GetStreamFixture(std::function<void(Conversation&, int nth)> kind,
                            std::string its_session = "Mcp-Session-Id: s1\r\n")
      : on_get(std::move(kind)), session(std::move(its_session)) {
    server.emplace([this](Conversation& c) {
      const auto request = c.read_request();
      if (!request) return;
      if (request->head.starts_with("GET")) return on_get(c, ++gets);
      if (request->body.find("tools/call") != std::string::npos) return c.hang();
      c.send(testing::raw_response(200, R"({"jsonrpc":"2.0","id":1,"result":{}})",
                                   "application/json", session + "Connection: close\r\n"));
    });
  }
  ~GetStreamFixture() {
    transport->close();
    server.reset();
  }
  // Begins the session, with an open call if `calls`.
  void begin(bool calls = true) {
    transport.emplace(loop, client, secrets, Value::object({{"url", server->url("/mcp")}}));
    ASSERT_TRUE(transport->open({.on_message = [this](IncomingMessage message) {
      received.push_back(std::move(message));
      loop.stop();
    }}));
    send(1, "initialize", [this](const Reply&) { loop.stop(); });
    loop.run();
    transport->set_protocol_version("2025-11-25");
    if (calls) send(2, "tools/call", [](const Reply&) {});
  }
  void send(std::int64_t id, const std::string& method, async::Done<Reply> done) {
    transport->send({.message = Value::object({{"method", method}}),
                     .id = id,
                     .method = method,
                     .timeout = 20s},
                    std::move(done));
  }
  // Returns whether it had to wait.
  bool listen() {
    if (transport->listen([this] { loop.stop(); })) return false;
    loop.run();
    return true;
  }
  std::vector<testing::RawRequest> get_requests() const {
    std::vector<testing::RawRequest> all;
    for (const auto& request : server->requests()) {
      if (request.head.starts_with("GET")) all.push_back(request);
    }
    return all;
  }
};

AE_TEST("mcp/get_stream/a session opens one stream before a call and receives its messages") {
  GetStreamFixture fixture([](Conversation& c, int) {
    c.send(kBegin);
    c.wait(50ms);
    c.send(kQuestionEvent);
    c.hang();
  });
  fixture.begin();
  EXPECT_TRUE(fixture.listen());
  EXPECT_TRUE(fixture.received.empty()) << "the stream is open before the first message";
  EXPECT_FALSE(fixture.listen());
  fixture.loop.run();
  ASSERT_EQ(fixture.received.size(), 1u);
  EXPECT_EQ(fixture.received[0].message.method, "elicitation/create");
  EXPECT_EQ(fixture.received[0].stream, 0);
  ASSERT_EQ(fixture.get_requests().size(), 1u);
  EXPECT_EQ(fixture.get_requests()[0].header("Accept"), "text/event-stream");
  EXPECT_EQ(fixture.get_requests()[0].header("Mcp-Session-Id"), "s1");
  EXPECT_EQ(fixture.get_requests()[0].header("MCP-Protocol-Version"), "2025-11-25");
  EXPECT_EQ(fixture.get_requests()[0].header("Last-Event-ID"), "");
}

AE_TEST("mcp/get_stream/a server without a GET stream is requested once") {
  for (const int status : {405, 404, 400, 501, 200}) {
    GetStreamFixture fixture([status](Conversation& c, int) {
      c.send(testing::raw_response(status, "no", "text/plain", "Connection: close\r\n"));
    });
    fixture.begin(false);
    EXPECT_TRUE(fixture.listen());
    EXPECT_FALSE(fixture.listen());
    EXPECT_EQ(fixture.gets, 1) << status;
  }
}

AE_TEST("mcp/get_stream/a stream that ended is resumed while a request is open") {
  GetStreamFixture fixture([](Conversation& c, int nth) {
    c.send(kBegin);
    c.send(kQuestionEvent);
    if (nth > 1) c.hang();
  });
  fixture.begin();
  fixture.listen();
  while (fixture.received.size() < 2) fixture.loop.run();
  ASSERT_EQ(fixture.get_requests().size(), 2u);
  EXPECT_EQ(fixture.get_requests()[1].header("Last-Event-ID"), "e1");
  GetStreamFixture idle([](Conversation& c, int) { c.send(kBegin); });
  idle.begin(false);
  idle.listen();
  idle.loop.after(500ms, [&] { idle.loop.stop(); });
  idle.loop.run();
  EXPECT_EQ(idle.gets, 1) << "no request is open";
}

AE_TEST(
    "mcp/get_stream/an idle stream is closed, and the next call resumes it from the last event") {
  std::atomic<bool> gone = false;
  GetStreamFixture fixture([&gone](Conversation& c, int) {
    c.send(kBegin);
    c.send(kQuestionEvent);
    c.hang();
    gone = true;
  });
  fixture.begin(false);
  int events = 0;
  bool is_wanted = true;
  GetStream stream({.loop = fixture.loop,
                    .client = fixture.client,
                    .call = [&] { return net::HttpCall{.url = fixture.server->url("/mcp")}; },
                    .is_wanted = [&] { return is_wanted; },
                    .on_data =
                        [&](std::string_view) {
                          ++events;
                          fixture.loop.stop();
                        },
                    .idle_timeout = 50ms});
  const auto wait_idle = [&fixture] {
    fixture.loop.after(200ms, [&fixture] { fixture.loop.stop(); });
    fixture.loop.run();
  };
  EXPECT_FALSE(stream.listen([] {}));
  while (events < 1) fixture.loop.run();
  wait_idle();
  EXPECT_FALSE(gone) << "a call is open";
  is_wanted = false;
  while (!gone) wait_idle();
  EXPECT_FALSE(stream.listen([] {}));
  while (events < 2) fixture.loop.run();
  EXPECT_EQ(fixture.get_requests().back().header("Last-Event-ID"), "e1");
  stream.close();
}

AE_TEST("mcp/get_stream/a call waits for a silent server once, for a limited time") {
  GetStreamFixture fixture([](Conversation& c, int) { c.hang(); });
  fixture.begin();
  EXPECT_TRUE(fixture.listen());
  EXPECT_FALSE(fixture.listen());
  EXPECT_EQ(fixture.gets, 1);
}

AE_TEST("mcp/get_stream/no stream is opened to a server without sessions") {
  GetStreamFixture fixture([](Conversation& c, int) { c.send(kBegin); }, "");
  fixture.begin();
  EXPECT_FALSE(fixture.listen());
  EXPECT_EQ(fixture.gets, 0);
}

AE_TEST("mcp/get_stream/a too large event ends the stream for good, a response on it is ignored") {
  GetStreamFixture fixture([](Conversation& c, int) {
    c.send(kBegin);
    c.send("data: {\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{}}\n\n");
    c.send(kQuestionEvent);
    const std::string much(64u << 10, 'x');
    c.send("data: ");
    for (int i = 0; i < 80 && c.send(much); ++i) {
    }
    c.hang();
  });
  fixture.begin();
  fixture.listen();
  while (fixture.received.empty()) fixture.loop.run();
  fixture.loop.after(500ms, [&] { fixture.loop.stop(); });
  fixture.loop.run();
  EXPECT_EQ(fixture.received.size(), 1u);
  EXPECT_FALSE(fixture.listen());
  EXPECT_EQ(fixture.gets, 1);
}

}  // namespace
}  // namespace ae::mcp::client
