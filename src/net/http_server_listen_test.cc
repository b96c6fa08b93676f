// Listening sockets of HttpServer, and stop().
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "net/http_client.h"
#include "net/http_server_fixture_test.h"
#include "testing/test.h"

namespace ae::net::http_server_test {
namespace {

AE_TEST("http server/stop() finishes responses, ends streams and idle connections, then reports") {
  std::vector<Responder> waiting;
  HttpStream kept;
  bool stream_closed = false;
  ServerFixture fixture([&](HttpRequest request, Responder responder) {
    if (request.path[0] == "stream") {
      kept = std::move(responder).begin({});
      kept.on_closed([&] { stream_closed = true; });
    } else {
      waiting.push_back(std::move(responder));
    }
  });
  RawClient idle(fixture.port), waits(fixture.port), streams(fixture.port);
  waits.send(get("/wait"));
  streams.send(get("/stream"));
  streams.read_until("\r\n\r\n");
  for (std::size_t open = 0; open < 1;) fixture.on_loop([&] { open = waiting.size(); });
  std::promise<void> stopped;
  fixture.on_loop([&] { fixture.server->stop(5s, [&] { stopped.set_value(); }); });
  EXPECT_EQ(idle.read_all(), "");
  EXPECT_EQ(streams.read_all(), "0\r\n\r\n");
  fixture.on_loop([&] {
    EXPECT_TRUE(stream_closed);
    std::move(waiting[0]).answer({.body = "1"});
    waiting.clear();
  });
  EXPECT_TRUE(waits.read_all().ends_with("\r\n\r\n1"));
  streams.reset();
  waits.reset();
  EXPECT_EQ(stopped.get_future().wait_for(5s), std::future_status::ready);
  fixture.on_loop([&] { kept = HttpStream(); });
}

AE_TEST("http server/stop() disconnects remaining clients after the grace period") {
  std::vector<Responder> waiting;
  ServerFixture fixture(
      [&](HttpRequest, Responder responder) { waiting.push_back(std::move(responder)); });
  RawClient client(fixture.port);
  client.send(get("/wait"));
  for (std::size_t open = 0; open < 1;) fixture.on_loop([&] { open = waiting.size(); });
  std::promise<void> stopped;
  fixture.on_loop([&] { fixture.server->stop(10ms, [&] { stopped.set_value(); }); });
  EXPECT_EQ(stopped.get_future().wait_for(5s), std::future_status::ready);
  EXPECT_EQ(client.read_all(), "");
  fixture.on_loop([&] { waiting.clear(); });
}

struct Folder {
  Folder() : path(::testing::TempDir() + "ae_server_test.XXXXXX") {
    EXPECT_NE(mkdtemp(path.data()), nullptr);
  }
  ~Folder() { rmdir(path.c_str()); }
  std::string path;
};

AE_TEST("http server/a Unix socket has mode 0600, serves clients and is removed at the end") {
  const Folder folder;
  const std::string path = folder.path + "/aetheris.sock";
  {
    ServerFixture fixture(echo);
    fixture.on_loop([&] { EXPECT_TRUE(fixture.server->listen_unix(path)); });
    struct stat status{};
    ASSERT_EQ(stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600u);
    AsioLoop loop;
    HttpClient client(loop);
    HttpCall call;
    call.url = "http://localhost/api/jobs/1";
    call.unix_socket = path;
    client.start(call, [&](HttpResult answer) {
      EXPECT_EQ(answer.body, "GET api jobs 1") << answer.error;
      loop.stop();
    });
    loop.run();
  }
  EXPECT_NE(access(path.c_str(), F_OK), 0);
}

AE_TEST("http server/a live socket or another file is never replaced, a stale socket is") {
  const Folder folder;
  const std::string path = folder.path + "/s.sock";
  AsioLoop loop;
  {
    HttpServer first(loop, echo), second(loop, echo);
    EXPECT_TRUE(first.listen_unix(path));
    const Status status = second.listen_unix(path);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Code::held);
  }
  // A socket file left by a killed process.
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof address.sun_path, "%s", path.c_str());
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  close(fd);
  {
    HttpServer server(loop, echo);
    EXPECT_TRUE(server.listen_unix(path));
    // Another file replaces the socket: the server must not remove it.
    ASSERT_EQ(unlink(path.c_str()), 0);
    close(open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    HttpServer other(loop, echo);
    const Status status = other.listen_unix(path);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Code::held);
  }
  EXPECT_EQ(unlink(path.c_str()), 0);
  HttpServer server(loop, echo);
  EXPECT_FALSE(server.listen_unix(folder.path + "/no/such/folder/s.sock"));
}

AE_TEST("http server/listen_tcp reports the port, a port in use and an invalid address") {
  AsioLoop loop;
  HttpServer server(loop, echo), other(loop, echo);
  const auto port = server.listen_tcp("localhost", 0);
  ASSERT_TRUE(port);
  EXPECT_NE(*port, 0);
  const auto taken = other.listen_tcp("127.0.0.1", *port);
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().code, Code::held);
  const auto name = other.listen_tcp("example.com", 0);
  ASSERT_FALSE(name);
  EXPECT_EQ(name.error().code, Code::input_invalid);
  EXPECT_FALSE(other.listen_tcp("192.0.2.1", 0));
}

}  // namespace
}  // namespace ae::net::http_server_test
