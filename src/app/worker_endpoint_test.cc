// GET /api/worker: the upgrade, its errors, and a session through real sockets.
#include "app/worker_endpoint.h"

#include <optional>
#include <string>

#include "async/boot_clock.h"
#include "net/http_server_fixture_test.h"
#include "net/system.h"
#include "net/websocket_client_test.h"
#include "testing/test.h"
#include "testing/test_loop.h"

namespace ae::app {
namespace {

using namespace net::http_server_test;

struct Endpoint {
  Endpoint()
      : fixture([this](net::HttpRequest request, net::Responder responder) {
          if (!is_worker_route(request)) return echo(std::move(request), std::move(responder));
          accept_worker(fixture.loop, *workers, nullptr, request, std::move(responder),
                        {.role = role, .key = {}, .by = {}, .caller = {}});
        }) {
    fixture.on_loop([this] {
      workers.emplace(routines::RemoteRoutines::Parts{
          .loop = fixture.loop, .clock = wall, .steady_clock = steady, .random = random});
    });
  }
  ~Endpoint() {
    fixture.on_loop([this] { workers->close(); });
    fixture.on_loop([this] {
      fixture.server.reset();
      workers.reset();
    });
  }
  testing::TestLoop wall;
  async::BootClock steady;
  testing::TestRandom random;
  api::Role role = api::Role::worker;
  std::optional<routines::RemoteRoutines> workers;
  ServerFixture fixture;
};

constexpr std::string_view kHello =
    R"({"frame":1,"ack":0,"messages":[{"type":"hello","protocol":1,"sdk":"s","worker":"w",)"
    R"("agents":[],"tools":[],"capacity":{"routines":1,"calls":1}}]})";

AE_TEST("worker endpoint/a worker connects, and its connection ends with the server's code") {
  Endpoint endpoint;
  RawClient worker(endpoint.fixture.port);
  worker.send(upgrade_request() + client_frame(kHello));
  EXPECT_TRUE(worker.read_until("\r\n\r\n").starts_with("HTTP/1.1 101 "));
  EXPECT_NE(worker.read_until("}]}").find(R"("type":"welcome")"), std::string::npos);
  endpoint.fixture.on_loop([&] { EXPECT_EQ(endpoint.workers->sessions(), 1u); });
  worker.send(client_frame("no frame"));
  EXPECT_EQ(close_code_in(worker.read_all()), 1008u);
  endpoint.fixture.on_loop([&] {
    EXPECT_EQ(endpoint.workers->connections(), 0u);
    EXPECT_EQ(endpoint.workers->sessions(), 0u);
  });
}

AE_TEST("worker endpoint/a close with 1000 ends the session, a lost connection does not") {
  Endpoint endpoint;
  {
    RawClient lost(endpoint.fixture.port);
    lost.send(upgrade_request() + client_frame(kHello));
    lost.read_until("}]}");
  }
  RawClient ended(endpoint.fixture.port);
  ended.send(upgrade_request() + client_frame(kHello));
  ended.read_until("}]}");
  ended.send(client_frame(close_payload(1000), 0x88));
  ended.read_all();
  endpoint.fixture.on_loop([&] {
    EXPECT_EQ(endpoint.workers->sessions(), 1u);
    EXPECT_EQ(endpoint.workers->connections(), 0u);
  });
}

AE_TEST("worker endpoint/requests of browsers, of other roles and without an upgrade are refused") {
  Endpoint endpoint;
  const auto status_of = [&](const std::string& request) {
    RawClient client(endpoint.fixture.port);
    client.send(request);
    return client.read_response().substr(9, 3);
  };
  EXPECT_EQ(status_of(upgrade_request("", "Origin: http://localhost\r\n")), "403");
  EXPECT_EQ(status_of(get("/api/worker")), "426");
  EXPECT_EQ(status_of(upgrade_request("Sec-WebSocket-Protocol")), "400");
  endpoint.role = api::Role::operator_;
  EXPECT_EQ(status_of(upgrade_request()), "403");
  endpoint.fixture.on_loop([&] { EXPECT_EQ(endpoint.workers->connections(), 0u); });
}

}  // namespace
}  // namespace ae::app
