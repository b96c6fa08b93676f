// Listener: the Api over HTTP, on the owner's socket, or for everybody who may reach an address.
//
// Translates requests and answers, and nothing else. `GET …/events` with `Accept: text/event-stream` is a live stream:
// `id:` is the seq, and Last-Event-ID resumes. Threads: the loop's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "api/api.h"
#include "core/error.h"
#include "net/asio_loop.h"

namespace ae::net {
class HttpServer;
}

namespace ae::app {

class Listener {
 public:
  // Borrows both.
  Listener(net::AsioLoop& loop, api::Api& api);
  ~Listener();

  // A Unix socket for the user we are. Fails with held: somebody listens there · unavailable.
  Status listen(const std::string& path);
  // TCP on this machine only: whoever may connect may do anything. Gives the port. Requests must name this machine in Host,
  // and a browser's must come from a page of ours (Origin). Fails with usage (the address can be reached from
  // elsewhere), held, input_invalid, unavailable.
  Result<std::uint16_t> listen_tcp(const std::string& address, std::uint16_t port);
  // Takes nothing new, lets answers go out, cuts what is left after `grace`, then calls `done`.
  void stop(Duration grace, std::function<void()> done);

 private:
  std::unique_ptr<net::HttpServer> server_;
};

}  // namespace ae::app
