// ApiClient: how a command calls the Api of a store, locally or remotely.
//
// If a process owns the store, requests go to its socket; otherwise the command opens the store
// itself, without a lock if it only reads. The responses are the same. Threads: one.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "api/api.h"
#include "app/store_url.h"
#include "async/loop.h"
#include "base/error.h"

namespace ae::net {
class AsioLoop;
}  // namespace ae::net

namespace ae::app {

// create: to write; a missing store is created.
enum class OpenMode { read, write, create };

class ApiClient {
 public:
  // Connects to the server in AETHERIS_URL if that is set (it must respond within 5 s); otherwise
  // opens this store or connects to its owner. Fails with store_locked (an unresponsive owner;
  // names its pid), not_found (the store does not exist and is not to be created), usage,
  // unavailable, needs_version.
  static Result<std::unique_ptr<ApiClient>> open(const StoreUrl& store, OpenMode mode);
  // Connects to the server at `url`, with the key in AETHERIS_API_KEY or the file
  // AETHERIS_API_KEY_FILE; the key is sent to no other host. AETHERIS_CA_FILE replaces the system's
  // list of trusted CAs. Fails with usage.
  static Result<std::unique_ptr<ApiClient>> connect_to_server(std::string url);
  // Connects to a process that listens on this Unix socket.
  static std::unique_ptr<ApiClient> connect_to_socket(std::string path);
  virtual ~ApiClient() = default;

  // Sends one request and waits for its response. Fails with unavailable (it had no effect; a retry
  // is safe) or unknown_outcome (it was sent, but there was no response).
  virtual Result<api::ApiResponse> send(const api::ApiRequest& request) = 0;
  virtual bool is_remote() const = 0;
  // The same without waiting: the response arrives on `loop`, which the caller must run.
  virtual void send_async(const api::ApiRequest& request,
                          async::Done<Result<api::ApiResponse>> done) = 0;
  virtual net::AsioLoop& loop() = 0;
  // Follows a live stream: calls `on_event` for each event until the stream ends or it returns
  // false. An event without name and data is a keep-alive. Returns the refusal, or the head of the
  // stream. REQUIRES: is_remote(). Fails as `send`, also when the stream breaks off.
  struct LiveEvent {
    std::string name, data;
  };
  virtual Result<api::ApiResponse> follow(
      const api::ApiRequest& request, const std::function<bool(const LiveEvent&)>& on_event) = 0;
  // Ends `follow` on the thread that runs it, also one that begins later. Threads: any.
  virtual void stop_following() = 0;
};

// A client of the process that owns this store; nullptr if none responds.
std::unique_ptr<ApiClient> find_owner(const StoreUrl& store);
// The process that holds a SQLite store but does not respond on its socket within three seconds,
// for messages; "" = none.
std::string find_unresponsive_owner(const StoreUrl& store);
// The process that holds a SQLite store, for messages: "process 123". REQUIRES: such a process.
std::string owner_name(const StoreUrl& store);

}  // namespace ae::app
