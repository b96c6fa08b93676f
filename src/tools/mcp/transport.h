// Transport: how messages get to one MCP server and back. stdio.h and http.h are its two kinds.
//
// It knows nothing of methods. Its one promise is the one that effects need: of each request it says whether any byte
// of it may have reached the server. Threads: the loop's.
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
#include "tools/mcp/message.h"
#include "tools/secrets.h"

namespace ae::tools::mcp {

// What became of one request.
struct Reply {
  enum class Kind : std::uint8_t {
    result,       // `value`
    error,        // of JSON-RPC: `code`, `text`, `value` = its data
    refused,      // an HTTP status and no message: `status`, `text`
    not_sent,     // no byte has left, and it may go better soon
    unreachable,  // no byte has left: no connection. `text`
    unreadable,   // what came instead of an answer is no message: `text`
    lost,         // it may have arrived; nothing more will come. `text`
  };
  Kind kind = Kind::lost;
  Value value;
  std::int64_t code = 0;
  std::string text;
  int status = 0;               // of HTTP; 0: none
  bool is_tls_failure = false;  // unreachable: it is not the server we trust
};

struct OutgoingMessage {
  Value message;
  std::int64_t id =
      0;  // of a request; 0: nothing answers it, and its reply says whether it was taken
  std::int64_t ticket = 0;  // by which it can be given up all the same
  std::string method;
  bool modern =
      false;  // revision 2026-07-28: the headers Mcp-Method, Mcp-Name and Mcp-Param-KEY go with it
  std::string name;  // of what it is about; "" = none
  std::vector<std::pair<std::string, std::string>> params;
  Duration send_within{};  // zero: as long as it takes
  Duration timeout{};      // from the send; then give it up
};

class Transport {
 public:
  struct Callbacks {
    std::function<void(Message)> on_message;  // requests and notifications of the server
    std::function<void(std::string why)>
        on_close;  // of all at once: open requests have their reply. At most once
    // A request that was given up is answered after all. May be empty.
    std::function<void(std::int64_t id)> on_late_reply = {};
  };
  virtual ~Transport() = default;
  // Silence: no reply and no ear is called any more, and nothing that was borrowed is used. May be called by an ear.
  virtual void close() = 0;
  // Before close: a program is asked to stop, and gets a moment to do so.
  virtual void stop() {}

  // Once, before all else. Fails with plan_invalid, secret_missing, forbidden.
  virtual Status open(Callbacks callbacks) = 0;
  virtual void send(OutgoingMessage post, async::Done<Reply> reply) = 0;
  // Of an id or a ticket. Its reply comes soon: not_sent, lost, or what it was.
  virtual void cancel_request(std::int64_t id) = 0;
  // What the server says outside of any answer is to be heard, from before a call is sent until it is answered. True: it is, or
  // cannot be. Else `ready` is called, soon, also when it cannot.
  virtual bool listen(async::Task ready) {
    static_cast<void>(ready);
    return true;
  }
  // From now on this revision is spoken.
  virtual void set_protocol_version(const std::string& version) { static_cast<void>(version); }
  // Does giving up a request of this revision tell the server so?
  virtual bool cancel_notifies_server(bool modern) const = 0;
  // Is one connection for all, that must be told what is cancelled, and does not outlive its server?
  virtual bool is_stdio() const = 0;

  // What must not be seen in anything the server says: asked for each answer, as secrets change while the server lives. Valid
  // until it is asked again.
  const std::vector<UsedSecret>& used() {
    hidden_ = used_;
    if (secrets_ != nullptr) secrets_->add_known(hidden_);
    return hidden_;
  }

 protected:
  // Borrows it. nullptr: only what was used for this server is hidden.
  explicit Transport(const SecretSource* secrets = nullptr) : secrets_(secrets) {}
  std::vector<UsedSecret> used_;  // to open it

 private:
  const SecretSource* secrets_;
  std::vector<UsedSecret> hidden_;
};

}  // namespace ae::tools::mcp
