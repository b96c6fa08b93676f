// StdioTransport: a server that is a program of ours, one message a line.
//
// A line that begins with { or [ and is no message may be the answer of each call that is open: a call fails as soon as its
// answer was such a line for sure. Other lines are banners and logs, and are ignored. A line that is too long ends the
// server. Threads: the loop's.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "tools/companion.h"
#include "tools/mcp/transport.h"

namespace ae::tools::mcp {

constexpr std::size_t kOpenMax = 1'000;  // requests without an answer, of one server

class StdioTransport final : public Transport {
 public:
  // Borrows loop, companions and secrets. `definition`: {command, env, env_allow, cwd}.
  StdioTransport(async::Loop& loop, Companions& companions, const SecretSource& secrets,
                 Value definition, std::string folder)
      : Transport(&secrets),
        loop_(loop),
        companions_(companions),
        definition_(std::move(definition)),
        folder_(std::move(folder)) {}
  ~StdioTransport() override { StdioTransport::close(); }
  void close() override;
  void stop() override {
    if (server_) server_->stop();
  }

  Status open(Ears ears) override;
  void send(Post post, async::Done<Reply> reply) override;
  void give_up(std::int64_t id) override;
  bool give_up_tells(bool) const override { return false; }
  bool is_stdio() const override { return true; }

 private:
  void hear(std::string_view bytes);
  void line(std::string_view text);
  void unreadable(std::string_view text, const Error& error);
  void fail_suspects();
  async::Done<Reply> take_open(std::int64_t id);
  void end(bool started, const std::string& why);
  void reply_later(async::Done<Reply> reply, Reply what);

  async::Loop& loop_;
  Companions& companions_;
  Value definition_;
  std::string folder_;
  Ears ears_;
  std::unique_ptr<Companion> server_;
  std::string part_;  // of a line
  struct Open {
    async::Done<Reply> reply;
    bool is_call = false;
  };
  std::map<std::int64_t, Open> open_;
  // The calls that were open when a line could not be read, how many such lines came, and why the last of them failed.
  std::set<std::int64_t> suspects_;
  std::size_t unreadable_lines_ = 0;
  std::string unreadable_why_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // asked by what comes later
};

}  // namespace ae::tools::mcp
