// StdioTransport: a server that is a program of ours, one message a line.
//
// A line that is no message is passed over, as servers print banners; one that is too long ends the server, because
// nobody can know whose answer it was. Threads: the loop's.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "tools/companion.h"
#include "tools/mcp/transport.h"

namespace ae::tools::mcp {

constexpr std::size_t kOpenMax = 1'000;  // requests without an answer, of one server

class StdioTransport final : public Transport {
 public:
  // Borrows loop and companions. `definition`: {command, env, env_allow, cwd}.
  StdioTransport(async::Loop& loop, Companions& companions, Value definition, std::string folder)
      : loop_(loop),
        companions_(companions),
        definition_(std::move(definition)),
        folder_(std::move(folder)) {}
  ~StdioTransport() override { StdioTransport::close(); }
  void close() override;

  Status open(Ears ears) override;
  void send(Post post, async::Done<Reply> reply) override;
  void give_up(std::int64_t id) override;
  bool give_up_tells(bool) const override { return false; }
  bool is_stdio() const override { return true; }

 private:
  void hear(std::string_view bytes);
  void line(std::string_view text);
  void end(bool started, const std::string& why);
  void reply_later(async::Done<Reply> reply, Reply what);

  async::Loop& loop_;
  Companions& companions_;
  Value definition_;
  std::string folder_;
  Ears ears_;
  std::unique_ptr<Companion> server_;
  std::string part_;  // of a line
  std::map<std::int64_t, async::Done<Reply>> open_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // asked by what comes later
};

}  // namespace ae::tools::mcp
