// Listener: the Api over HTTP, on the owner's socket.
//
// Translates requests and answers, and nothing else. `GET …/events` with `Accept: text/event-stream` is a live stream:
// `id:` is the seq, and Last-Event-ID resumes. Threads: the loop's.
#pragma once

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

  // Fails with held: somebody listens there · unavailable.
  Status listen(const std::string& path);

 private:
  std::unique_ptr<net::HttpServer> server_;
};

}  // namespace ae::app
