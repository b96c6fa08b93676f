// HttpTransport: a server behind a URL, by the "streamable HTTP" of MCP: each message is a POST of its own, and its
// answer one JSON message or a stream of events.
//
// Every POST goes out at most once. A stream of an older revision that breaks before the answer is taken up again where
// it broke (a GET, which asks for nothing to be done); the newest revision has no such thing. What a server of an older
// revision says outside of any answer is heard while calls are open (get_stream.h). Threads: the loop's.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "json/event_stream.h"
#include "net/http_client.h"
#include "tools/mcp/get_stream.h"
#include "tools/mcp/transport.h"

namespace ae::tools::mcp {

constexpr int kTakeUpsMax = 20;  // of one stream of events

class HttpTransport final : public Transport {
 public:
  // Borrows all but the definition: {url, headers}.
  HttpTransport(async::Loop& loop, net::HttpClient& client, SecretSource& secrets, Value definition)
      : Transport(&secrets),
        loop_(loop),
        client_(client),
        secrets_(secrets),
        definition_(std::move(definition)),
        aside_({.loop = loop,
                .client = client,
                .call = [this] { return get(); },
                .wanted = [this] { return has_requests(); },
                .heard = [this](std::string_view text) { overhear(text); }}) {}
  ~HttpTransport() override { HttpTransport::close(); }
  void close() override;

  Status open(Ears ears) override;
  void send(Post post, async::Done<Reply> reply) override;
  void give_up(std::int64_t id) override;
  bool listen(async::Task heard) override;
  void speak(const std::string& version) override;
  bool give_up_tells(bool modern) const override { return modern; }
  bool is_stdio() const override { return false; }

 private:
  struct Exchange;
  using Exchanges = std::map<std::uint64_t, std::shared_ptr<Exchange>>;

  net::HttpHeaders headers_of(const Post& post) const;
  net::HttpCall get() const;
  bool has_requests() const;
  void start(const std::shared_ptr<Exchange>& exchange, net::HttpCall call);
  void hear(Exchange& exchange, const net::HttpHeaders& headers, std::string_view bytes);
  void note_session(const Exchange& exchange, const net::HttpHeaders& headers);
  void take(Exchange& exchange, const ServerEvent& event);
  void overhear(std::string_view text);
  void end(const std::shared_ptr<Exchange>& exchange, net::HttpAnswer answer);
  bool take_up(const std::shared_ptr<Exchange>& exchange);
  void reply(Exchange& exchange, Reply what);

  async::Loop& loop_;
  net::HttpClient& client_;
  SecretSource& secrets_;
  Value definition_;
  Ears ears_;
  net::HttpHeaders own_;  // of the definition, with their secrets
  std::string version_, session_;
  std::uint64_t last_ = 0;
  Exchanges exchanges_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // asked by what comes later
  GetStream aside_;
};

// A text as the value of an Mcp- header.
std::string header_text(std::string_view text);

}  // namespace ae::tools::mcp
