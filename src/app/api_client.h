// ApiClient: how a command asks the Api of a store, wherever that is.
//
// If a process owns the store, the door is its socket; otherwise the command works on the store itself, without a
// lock when it only reads. The answers are the same. Threads: one.
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

// create: to write, and the store may be a new one.
enum class OpenMode { read, write, create };

class ApiClient {
 public:
  // To the server that AETHERIS_URL names, when it is set and answers within 5 s; else to this store. Fails with store_locked (an owner that does
  // not answer; names its pid), not_found (there is no store yet, and none is to be made), usage, unavailable, needs_version.
  static Result<std::unique_ptr<ApiClient>> open(const StoreUrl& store, OpenMode mode);
  // To the server at `url`, with the key that AETHERIS_API_KEY or the file AETHERIS_API_KEY_FILE holds, which goes nowhere
  // else; AETHERIS_CA_FILE names whom to trust instead of the system's list. Fails with usage.
  static Result<std::unique_ptr<ApiClient>> connect_to_server(std::string url);
  virtual ~ApiClient() = default;

  // One request, one answer. Fails with unavailable (it did not go out; another door may be open) or unknown_outcome
  // (it went out, and no answer came back).
  virtual Result<api::ApiResponse> send(const api::ApiRequest& request) = 0;
  virtual bool is_remote() const = 0;
  // The same without waiting for it: the answer comes on `loop`, which whoever asks so has to run.
  virtual void send_async(const api::ApiRequest& request,
                          async::Done<Result<api::ApiResponse>> done) = 0;
  virtual net::AsioLoop& loop() = 0;
  // A live stream: tells each of its events as it comes, until the stream ends or `on_event` says false. An event without a
  // name and data only shows that the stream is alive. What it gives is the refusal, or how the stream began. REQUIRES: is_remote(). Fails as `send`, also for a stream that broke off.
  struct LiveEvent {
    std::string name, data;
  };
  virtual Result<api::ApiResponse> follow(
      const api::ApiRequest& request, const std::function<bool(const LiveEvent&)>& on_event) = 0;
};

// The socket of the process that owns this store; nullptr when nobody answers for it.
std::unique_ptr<ApiClient> find_owner(const StoreUrl& store);
// The process that holds a SQLite store and does not answer on its socket within three seconds, for messages; "" = none.
std::string find_unresponsive_owner(const StoreUrl& store);
// The process that holds a SQLite store, for messages: "process 123". REQUIRES: there is one.
std::string owner_name(const StoreUrl& store);

}  // namespace ae::app
