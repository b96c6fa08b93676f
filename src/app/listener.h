// Listener: serves the Api over HTTP, on the owner's socket or on a network address.
//
// Converts requests and responses; network clients are authenticated by Authenticator. `GET
// …/events` with `Accept: text/event-stream` is a live stream: `id:` is the seq, Last-Event-ID
// resumes, and the stream ends with the job. Partial output is sent between the events
// (`said`, without an id).
// Threads: the loop's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "api/api.h"
#include "api/authenticator.h"
#include "base/error.h"
#include "net/asio_loop.h"
#include "runtime/driver/output_hub.h"

namespace ae::net {
class HttpServer;
class TlsIdentity;
}  // namespace ae::net

namespace ae::routines {
class RemoteRoutines;
}

namespace ae::app {

class ClockControl;

// The address and options of a network server.
struct ServeOptions {
  std::string address;  // an IP address, or localhost
  std::uint16_t port = 0;
  std::shared_ptr<net::TlsIdentity> tls = {};  // nullptr: no encryption
  std::optional<double> rate =
      {};  // requests a second per key or address; nullopt = per key, kRateDefault
  std::function<void(const std::string&)> warn = {};  // for the operator; may be empty
  bool local_only = false;        // refuse addresses that other machines can reach: there is no TLS
  bool insecure_http = false;     // allow keys without TLS: a proxy encrypts
  ClockControl* clock = nullptr;  // of the route /api/clock, borrowed; nullptr: there is none
};

class Listener {
 public:
  // Serves the socket of our own user, who has every permission. Borrows all arguments. `workers`:
  // of the route /api/worker; nullptr: there is none.
  Listener(net::AsioLoop& loop, async::SteadyClock& steady, api::Api& api,
           runtime::OutputHub& output_hub, routines::RemoteRoutines* workers = nullptr);
  // Serves the network. Borrows all arguments except `options`.
  Listener(net::AsioLoop& loop, async::SteadyClock& steady, store::Store& store, api::Api& api,
           runtime::OutputHub& output_hub, ServeOptions options,
           routines::RemoteRoutines* workers = nullptr);
  ~Listener();

  // Listens on a Unix socket for our own user. Fails with held (another process listens there) ·
  // unavailable.
  Status listen(const std::string& path);
  // REQUIRES: the registry was read. Returns the port. An address that other machines can reach
  // needs a live key and an encrypted connection. On an address that only this machine can reach,
  // requests must name it in Host, and those of a browser must come from our own pages (Origin).
  // Fails with usage (names what is missing), input_invalid, unavailable.
  Result<std::uint16_t> listen_tcp();
  // Does a request need a key?
  bool needs_keys() const { return authenticator_->requires_keys(); }
  // Are there keys, but none that is live?
  bool has_no_live_key() const {
    return authenticator_->requires_keys() && !authenticator_->has_live_key();
  }
  // Stops accepting requests, lets responses finish, closes the rest after `grace`, then calls
  // `done`.
  void stop(Duration grace, std::function<void()> done);

 private:
  ServeOptions options_;
  std::unique_ptr<api::Authenticator> authenticator_;  // of the network server
  std::unique_ptr<net::HttpServer> server_;
};

}  // namespace ae::app
