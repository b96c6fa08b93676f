// Listener: the Api over HTTP, on the owner's socket, or for everybody who may reach an address.
//
// Translates requests and answers; over the network it asks the Gate who it is that asks. `GET …/events` with
// `Accept: text/event-stream` is a live stream: `id:` is the seq, and Last-Event-ID resumes; it ends with the job. Between
// the events stands what answers say as they come (`said`, without an id).
// Threads: the loop's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "api/api.h"
#include "api/gate.h"
#include "core/error.h"
#include "net/asio_loop.h"
#include "runtime/sayings.h"

namespace ae::net {
class HttpServer;
class TlsIdentity;
}  // namespace ae::net

namespace ae::app {

// Where a server is to be reached.
struct ServeOptions {
  std::string address;  // an IP address, or localhost
  std::uint16_t port = 0;
  std::shared_ptr<net::TlsIdentity> tls = {};  // nullptr: in the clear
  std::optional<double> rate =
      {};  // requests a second of one key, or address; nullopt = of keys alone, kRateDefault
  std::function<void(const std::string&)> warn =
      {};                      // of what the operator should know; may be empty
  bool only_here = false;      // there is no way to serve other machines: nothing encrypts
  bool insecure_http = false;  // keys may cross a network in the clear: somebody else encrypts
};

class Listener {
 public:
  // On a socket of our own user, who may do everything. Borrows all.
  Listener(net::AsioLoop& loop, async::SteadyClock& steady, api::Api& api,
           runtime::Sayings& sayings);
  // On the network. Borrows all.
  Listener(net::AsioLoop& loop, async::SteadyClock& steady, store::Store& store, api::Api& api,
           runtime::Sayings& sayings, ServeOptions options);
  ~Listener();

  // A Unix socket for the user we are. Fails with held: somebody listens there · unavailable.
  Status listen(const std::string& path);
  // REQUIRES: the registry was read. Gives the port. An address that other machines reach needs a live key and a
  // connection that nobody can read along. Where only this machine does, requests must name it in Host; a browser's must
  // come from a page of ours (Origin). Fails with usage (says what is missing), input_invalid, unavailable.
  Result<std::uint16_t> listen_tcp();
  // Does a request need a key?
  bool needs_keys() const { return gate_->asks_for_keys(); }
  // Are there keys, and none of them lets anybody in?
  bool keys_all_ended() const { return gate_->asks_for_keys() && !gate_->has_live_key(); }
  // Takes nothing new, lets answers go out, cuts what is left after `grace`, then calls `done`.
  void stop(Duration grace, std::function<void()> done);

 private:
  ServeOptions options_;
  std::unique_ptr<api::Gate> gate_;  // of the network
  std::unique_ptr<net::HttpServer> server_;
};

}  // namespace ae::app
