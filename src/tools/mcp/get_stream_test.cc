// The stream of GET, against a server of bare sockets.
#include "tools/mcp/get_stream.h"

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "json/json.h"
#include "net/asio_loop.h"
#include "testing/raw_http_server.h"
#include "testing/test.h"
#include "tools/mcp/http.h"

namespace ae::tools::mcp {
namespace {

using namespace std::chrono_literals;
using Conversation = testing::RawHttpServer::Conversation;

constexpr std::string_view kBegin =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
constexpr std::string_view kAsks =
    "id: e1\nretry: 100\ndata: "
    "{\"jsonrpc\":\"2.0\",\"id\":\"q\",\"method\":\"elicitation/create\"}\n\n";

class NoSecrets final : public SecretSource {
 public:
  Result<Secret> get(std::string_view) override { return fail(Code::secret_missing, "none"); }
};

// A session of the old era with a server that answers each GET as the test says.
struct Heard {
  std::function<void(Conversation&, int nth)> on_get;
  std::string session;  // a header
  std::atomic<int> gets{0};
  net::AsioLoop loop;
  net::HttpClient client{loop};
  NoSecrets secrets;
  std::vector<Message> said;
  std::optional<testing::RawHttpServer> server;
  std::optional<HttpTransport> transport;

  explicit Heard(std::function<void(Conversation&, int nth)> how,
                 std::string its_session = "Mcp-Session-Id: s1\r\n")
      : on_get(std::move(how)), session(std::move(its_session)) {
    server.emplace([this](Conversation& c) {
      const auto request = c.read_request();
      if (!request) return;
      if (request->head.starts_with("GET")) return on_get(c, ++gets);
      if (request->body.find("tools/call") != std::string::npos) return c.hang();
      c.send(testing::raw_answer(200, R"({"jsonrpc":"2.0","id":1,"result":{}})", "application/json",
                                 session + "Connection: close\r\n"));
    });
  }
  ~Heard() {
    transport->close();
    server.reset();
  }
  // The session begins, and a call is open when `calls`.
  void begin(bool calls = true) {
    transport.emplace(loop, client, secrets, Value::object({{"url", server->url("/mcp")}}));
    ASSERT_TRUE(transport->open({.heard = [this](Message message) {
      said.push_back(std::move(message));
      loop.stop();
    }}));
    send(1, "initialize", [this](const Reply&) { loop.stop(); });
    loop.run();
    transport->speak("2025-11-25");
    if (calls) send(2, "tools/call", [](const Reply&) {});
  }
  void send(std::int64_t id, const std::string& method, async::Done<Reply> done) {
    transport->send({.message = Value::object({{"method", method}}),
                     .id = id,
                     .method = method,
                     .timeout = 20s},
                    std::move(done));
  }
  // True: it had to be waited for.
  bool listen() {
    if (transport->listen([this] { loop.stop(); })) return false;
    loop.run();
    return true;
  }
  std::vector<testing::RawRequest> asked() const {
    std::vector<testing::RawRequest> all;
    for (const auto& request : server->requests()) {
      if (request.head.starts_with("GET")) all.push_back(request);
    }
    return all;
  }
};

AE_TEST("mcp/get/a session has one stream, which is open before a call is sent, and is heard") {
  Heard heard([](Conversation& c, int) {
    c.send(kBegin);
    c.wait(50ms);
    c.send(kAsks);
    c.hang();
  });
  heard.begin();
  EXPECT_TRUE(heard.listen());
  EXPECT_TRUE(heard.said.empty()) << "it is open before anything is said";
  EXPECT_FALSE(heard.listen());
  heard.loop.run();
  ASSERT_EQ(heard.said.size(), 1u);
  EXPECT_EQ(heard.said[0].method, "elicitation/create");
  EXPECT_EQ(heard.said[0].stream, 0);
  ASSERT_EQ(heard.asked().size(), 1u);
  EXPECT_EQ(heard.asked()[0].header("Accept"), "text/event-stream");
  EXPECT_EQ(heard.asked()[0].header("Mcp-Session-Id"), "s1");
  EXPECT_EQ(heard.asked()[0].header("MCP-Protocol-Version"), "2025-11-25");
  EXPECT_EQ(heard.asked()[0].header("Last-Event-ID"), "");
}

AE_TEST("mcp/get/a server that has none is asked once") {
  for (const int status : {405, 404, 400, 501, 200}) {
    Heard heard([status](Conversation& c, int) {
      c.send(testing::raw_answer(status, "no", "text/plain", "Connection: close\r\n"));
    });
    heard.begin(false);
    EXPECT_TRUE(heard.listen());
    EXPECT_FALSE(heard.listen());
    EXPECT_EQ(heard.gets, 1) << status;
  }
}

AE_TEST("mcp/get/where it ended, it is taken up again while a request is open") {
  Heard heard([](Conversation& c, int nth) {
    c.send(kBegin);
    c.send(kAsks);
    if (nth > 1) c.hang();
  });
  heard.begin();
  heard.listen();
  while (heard.said.size() < 2) heard.loop.run();
  ASSERT_EQ(heard.asked().size(), 2u);
  EXPECT_EQ(heard.asked()[1].header("Last-Event-ID"), "e1");
  Heard idle([](Conversation& c, int) { c.send(kBegin); });
  idle.begin(false);
  idle.listen();
  idle.loop.after(500ms, [&] { idle.loop.stop(); });
  idle.loop.run();
  EXPECT_EQ(idle.gets, 1) << "nothing is open that it could be about";
}

AE_TEST("mcp/get/when nothing is open any more it ends, and the next call finds it where it was") {
  std::atomic<bool> gone = false;
  Heard heard([&gone](Conversation& c, int) {
    c.send(kBegin);
    c.send(kAsks);
    c.hang();
    gone = true;
  });
  heard.begin(false);
  int events = 0;
  bool wanted = true;
  GetStream stream({.loop = heard.loop,
                    .client = heard.client,
                    .call = [&] { return net::HttpCall{.url = heard.server->url("/mcp")}; },
                    .wanted = [&] { return wanted; },
                    .heard =
                        [&](std::string_view) {
                          ++events;
                          heard.loop.stop();
                        },
                    .stays = 50ms});
  const auto rests = [&heard] {
    heard.loop.after(200ms, [&heard] { heard.loop.stop(); });
    heard.loop.run();
  };
  EXPECT_FALSE(stream.listen([] {}));
  while (events < 1) heard.loop.run();
  rests();
  EXPECT_FALSE(gone) << "a call is open";
  wanted = false;
  while (!gone) rests();
  EXPECT_FALSE(stream.listen([] {}));
  while (events < 2) heard.loop.run();
  EXPECT_EQ(heard.asked().back().header("Last-Event-ID"), "e1");
  stream.close();
}

AE_TEST("mcp/get/a call waits for a silent server once, and not long") {
  Heard heard([](Conversation& c, int) { c.hang(); });
  heard.begin();
  EXPECT_TRUE(heard.listen());
  EXPECT_FALSE(heard.listen());
  EXPECT_EQ(heard.gets, 1);
}

AE_TEST("mcp/get/a server without sessions is not asked: it could not tell us from others") {
  Heard heard([](Conversation& c, int) { c.send(kBegin); }, "");
  heard.begin();
  EXPECT_FALSE(heard.listen());
  EXPECT_EQ(heard.gets, 0);
}

AE_TEST("mcp/get/an event that is too large ends it for good, an answer on it is none") {
  Heard heard([](Conversation& c, int) {
    c.send(kBegin);
    c.send("data: {\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{}}\n\n");
    c.send(kAsks);
    const std::string much(64u << 10, 'x');
    c.send("data: ");
    for (int i = 0; i < 80 && c.send(much); ++i) {
    }
    c.hang();
  });
  heard.begin();
  heard.listen();
  while (heard.said.empty()) heard.loop.run();
  heard.loop.after(500ms, [&] { heard.loop.stop(); });
  heard.loop.run();
  EXPECT_EQ(heard.said.size(), 1u);
  EXPECT_FALSE(heard.listen());
  EXPECT_EQ(heard.gets, 1);
}

}  // namespace
}  // namespace ae::tools::mcp
