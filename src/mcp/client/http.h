// HttpTransport: a server behind a URL, by the "streamable HTTP" of MCP: each message is a POST,
// answered by one JSON message or a stream of events.
//
// Every POST is sent at most once. A legacy stream that breaks before its answer is resumed by a
// GET, which has no effect; modern streams cannot be resumed. Messages of a legacy server outside
// of responses are received while calls are open (get_stream.h). Threads: the loop's.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "async/alive.h"
#include "json/sse_parser.h"
#include "mcp/client/get_stream.h"
#include "mcp/client/transport.h"
#include "net/http_client.h"

namespace ae::mcp::client {

constexpr int kResumesMax = 20;  // per stream of events

class HttpTransport final : public Transport {
 public:
  // Borrows everything except the definition: {url, headers}.
  HttpTransport(async::Loop& loop, net::HttpClient& client, tools::SecretSource& secrets,
                Value definition)
      : Transport(&secrets),
        loop_(loop),
        client_(client),
        secrets_(secrets),
        definition_(std::move(definition)),
        get_stream_({.loop = loop,
                     .client = client,
                     .call = [this] { return make_get_request(); },
                     .is_wanted = [this] { return has_requests(); },
                     .on_data = [this](std::string_view text) { on_stream_event(text); }}) {}
  ~HttpTransport() override { HttpTransport::close(); }
  void close() override;

  Status open(Callbacks callbacks) override;
  void send(OutgoingMessage outgoing, async::Done<Reply> reply) override;
  void cancel_request(std::int64_t id) override;
  bool listen(async::Task ready) override;
  void set_protocol_version(const std::string& version) override;
  bool cancel_notifies_server(bool modern) const override { return modern; }
  bool is_stdio() const override { return false; }

 private:
  struct Exchange;
  using Exchanges = std::map<std::uint64_t, std::shared_ptr<Exchange>>;

  net::HttpHeaders headers_of(const OutgoingMessage& outgoing) const;
  net::HttpCall make_get_request() const;
  bool has_requests() const;
  void start(const std::shared_ptr<Exchange>& exchange, net::HttpCall call);
  void on_stream_bytes(Exchange& exchange, const net::HttpHeaders& headers, std::string_view bytes);
  void note_session(const Exchange& exchange, const net::HttpHeaders& headers);
  void handle_event(Exchange& exchange, const SseEvent& event);
  void on_stream_event(std::string_view text);
  void on_response(const std::shared_ptr<Exchange>& exchange, net::HttpResult answer);
  bool resume_stream(const std::shared_ptr<Exchange>& exchange);
  void reply(Exchange& exchange, Reply what);

  async::Loop& loop_;
  net::HttpClient& client_;
  tools::SecretSource& secrets_;
  Value definition_;
  Callbacks callbacks_;
  net::HttpHeaders configured_headers_;  // of the definition, with secrets
  std::string version_, session_;
  std::uint64_t last_ = 0;
  Exchanges exchanges_;
  async::Alive alive_;  // checked by callbacks
  GetStream get_stream_;
};

}  // namespace ae::mcp::client
