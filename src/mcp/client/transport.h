// Transport: delivers messages to one MCP server and back. Implementations: stdio.h and http.h.
//
// It does not interpret methods. Its guarantee, on which effects depend: for each request it
// reports whether any byte may have reached the server. Threads: the loop's.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "async/loop.h"
#include "base/error.h"
#include "base/time.h"
#include "json/value.h"
#include "mcp/protocol/message.h"
#include "tools/secrets.h"

namespace ae::mcp::client {

// The reply to one request.
struct Reply {
  enum class Kind : std::uint8_t {
    result,       // `value`
    error,        // of JSON-RPC: `code`, `text`, `value` = data
    refused,      // an HTTP status without a message: `status`, `text`
    not_sent,     // no byte was sent; a retry may succeed
    unreachable,  // no byte was sent: no connection. `text`
    unreadable,   // the answer is not a valid message: `text`
    lost,         // it may have arrived; no answer will come. `text`
  };
  Kind kind = Kind::lost;
  Value value;
  std::int64_t code = 0;
  std::string text;
  int status = 0;               // of HTTP; 0: none
  bool is_tls_failure = false;  // unreachable: the server's certificate is not trusted
};

// A request or notification of the server.
struct IncomingMessage {
  Message message;
  std::int64_t stream = 0;  // our request on whose stream it arrived; 0: shared by all requests
};

struct OutgoingMessage {
  Value message;
  std::int64_t id =
      0;  // of a request; 0: no answer follows, the reply reports whether it was accepted
  std::int64_t ticket = 0;  // id for cancel_request of a message without `id`
  std::string method;
  bool modern =
      false;  // revision 2026-07-28: sends the headers Mcp-Method, Mcp-Name and Mcp-Param-KEY
  std::string name;  // the target, as in Mcp-Name; "": none
  std::vector<std::pair<std::string, std::string>> params;
  Duration send_within{};  // zero: no limit
  Duration timeout{};      // from the send; then the request is dropped
};

class Transport {
 public:
  struct Callbacks {
    std::function<void(IncomingMessage)> on_message;
    std::function<void(std::string why)>
        on_close;  // of the connection: open requests already have their reply. At most once
    // A cancelled request was answered after all. May be empty.
    std::function<void(std::int64_t id)> on_late_reply = {};
  };
  virtual ~Transport() = default;
  // Closes without calling any reply or callback; nothing borrowed is used afterwards. May be
  // called from a callback.
  virtual void close() = 0;
  // Call before close: asks a program to stop, and gives it a moment to do so.
  virtual void stop() {}

  // Call once, first. Fails with plan_invalid, secret_missing, forbidden.
  virtual Status open(Callbacks callbacks) = 0;
  virtual void send(OutgoingMessage outgoing, async::Done<Reply> reply) = 0;
  // By id or ticket. The reply follows soon: not_sent, lost, or the actual result.
  virtual void cancel_request(std::int64_t id) = 0;
  // Start to receive the server's messages outside of responses; called before a call is sent.
  // True: they are received, or cannot be. False: `ready` follows soon, in both cases.
  virtual bool listen(async::Task ready) {
    static_cast<void>(ready);
    return true;
  }
  // Sets the revision for all messages from now on.
  virtual void set_protocol_version(const std::string& version) { static_cast<void>(version); }
  // Whether cancelling a request of this revision notifies the server.
  virtual bool cancel_notifies_server(bool modern) const = 0;
  // Whether all requests share one connection that ends with its server and needs cancel
  // notifications.
  virtual bool is_stdio() const = 0;

  // The secrets to scrub from the server's messages. Called for each message, because secrets may
  // change while the server runs. Valid until the next call.
  const std::vector<tools::UsedSecret>& used() {
    secrets_to_scrub_ = used_;
    if (secrets_ != nullptr) secrets_->add_known(secrets_to_scrub_);
    return secrets_to_scrub_;
  }

 protected:
  // Borrows it. nullptr: only the secrets of this server are scrubbed.
  explicit Transport(const tools::SecretSource* secrets = nullptr) : secrets_(secrets) {}
  std::vector<tools::UsedSecret> used_;  // used to open the connection

 private:
  const tools::SecretSource* secrets_;
  std::vector<tools::UsedSecret> secrets_to_scrub_;
};

}  // namespace ae::mcp::client
