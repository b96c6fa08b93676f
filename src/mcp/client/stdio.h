// StdioTransport: a server that runs as our child process, one message per line.
//
// A line that begins with { or [ but is not a message may be the answer to any open call; a call
// fails as soon as its answer certainly was such a line. Other lines are banners and logs, and are
// ignored. A line that is too long ends the server. Threads: the loop's.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "async/alive.h"
#include "mcp/client/transport.h"
#include "tools/stdio_process.h"

namespace ae::mcp::client {

constexpr std::size_t kOpenMax = 1'000;  // unanswered requests per server

class StdioTransport final : public Transport {
 public:
  // Borrows loop, stdio_processes and secrets. `definition`: {command, env, env_allow, cwd}.
  StdioTransport(async::Loop& loop, tools::StdioProcesses& stdio_processes,
                 const tools::SecretSource& secrets, Value definition, std::string folder)
      : Transport(&secrets),
        loop_(loop),
        stdio_processes_(stdio_processes),
        definition_(std::move(definition)),
        folder_(std::move(folder)) {}
  ~StdioTransport() override { StdioTransport::close(); }
  void close() override;
  void stop() override {
    if (server_) server_->stop();
  }

  Status open(Callbacks callbacks) override;
  void send(OutgoingMessage outgoing, async::Done<Reply> reply) override;
  void cancel_request(std::int64_t id) override;
  bool cancel_notifies_server(bool) const override { return false; }
  bool is_stdio() const override { return true; }

 private:
  void on_bytes(std::string_view bytes);
  void on_line(std::string_view text);
  void on_unreadable_line(std::string_view text, const RpcError& error);
  void fail_suspects();
  async::Done<Reply> extract_open(std::int64_t id);
  void fail_connection(bool started, const std::string& why);
  void reply_later(async::Done<Reply> reply, Reply what);

  async::Loop& loop_;
  tools::StdioProcesses& stdio_processes_;
  Value definition_;
  std::string folder_;
  Callbacks callbacks_;
  std::unique_ptr<tools::StdioProcess> server_;
  std::string partial_line_;  // the incomplete last line
  struct OpenRequest {
    async::Done<Reply> reply;
    bool is_call = false;
  };
  std::map<std::int64_t, OpenRequest> open_;
  // The calls that were open when a line could not be read, the number of such lines, and why the
  // last one could not be read.
  std::set<std::int64_t> suspects_;
  std::size_t unreadable_lines_ = 0;
  std::string unreadable_why_;
  async::Alive alive_;  // checked by callbacks
};

}  // namespace ae::mcp::client
