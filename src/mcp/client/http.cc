#include "mcp/client/http.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "json/json.h"
#include "json/sse_parser.h"
#include "mcp/client/server_message.h"
#include "mcp/protocol/header.h"
#include "tools/output.h"
#include "tools/tool.h"

namespace ae::mcp::client {

using net::HttpPhase;
using net::HttpResult;

namespace {

constexpr Duration kConnectTimeout = std::chrono::seconds(10);
constexpr std::size_t kSessionMax = 1024;  // bytes of a session id
constexpr std::string_view kEvents = "text/event-stream";

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r\n") == text.npos; }

std::string_view media_type(const HttpResult& answer) {
  const std::string_view type = net::find_header(answer.headers, "Content-Type").value_or("");
  return type.substr(0, type.find_first_of("; \t"));
}

}  // namespace

struct HttpTransport::Exchange {
  std::uint64_t number = 0;
  OutgoingMessage outgoing;
  async::Done<Reply> reply;  // empty: already called
  std::optional<net::HttpClient::Id> http;
  std::optional<SseParser> events;
  int resumes = 0;
  async::TimerId timer = 0;
};

void HttpTransport::close() {
  alive_.end();
  get_stream_.close();
  const Exchanges open = std::exchange(exchanges_, {});
  for (const auto& [number, exchange] : open) {
    loop_.cancel(exchange->timer);
    if (exchange->http) client_.cancel(*exchange->http);
  }
}

Status HttpTransport::open(Callbacks callbacks) {
  callbacks_ = std::move(callbacks);
  const Value& headers = definition_["headers"];
  if (!headers.is_object()) return {};
  for (const auto& [name, text] : headers.members()) {
    AE_ASSIGN(const tools::Secret value, tools::replace_secrets(text.as_string(), secrets_, used_));
    if (!net::is_header_value(value.reveal())) {
      return fail(Code::plan_invalid,
                  "headers.{}: its value holds a line break or a control character", name);
    }
    configured_headers_.push_back({name, std::string(value.reveal())});
  }
  return {};
}

// Without a session the server cannot distinguish its clients: a question there could be meant for
// another one.
bool HttpTransport::listen(async::Task ready) {
  return session_.empty() || get_stream_.listen(std::move(ready));
}

bool HttpTransport::has_requests() const {
  return std::ranges::any_of(exchanges_,
                             [](const auto& entry) { return entry.second->outgoing.id != 0; });
}

void HttpTransport::set_protocol_version(const std::string& version) { version_ = version; }

net::HttpHeaders HttpTransport::headers_of(const OutgoingMessage& outgoing) const {
  net::HttpHeaders headers = {{"Accept", "application/json, text/event-stream"}};
  if (!version_.empty()) headers.push_back({"MCP-Protocol-Version", version_});
  if (!session_.empty()) headers.push_back({"Mcp-Session-Id", session_});
  if (outgoing.modern) headers.push_back({"Mcp-Method", encode_header_value(outgoing.method)});
  if (outgoing.modern && !outgoing.name.empty())
    headers.push_back({"Mcp-Name", encode_header_value(outgoing.name)});
  for (const auto& [key, value] : outgoing.params) {
    headers.push_back({"Mcp-Param-" + key, encode_header_value(value)});
  }
  headers.insert(headers.end(), configured_headers_.begin(), configured_headers_.end());
  return headers;
}

net::HttpCall HttpTransport::make_get_request() const {
  net::HttpCall call;
  call.method = "GET";
  call.url = definition_.text("url");
  call.headers = headers_of({});
  return call;
}

void HttpTransport::send(OutgoingMessage outgoing, async::Done<Reply> reply) {
  net::HttpCall call;
  call.method = "POST";
  call.url = definition_.text("url");
  call.headers = headers_of(outgoing);
  call.headers.push_back({"Content-Type", "application/json"});
  call.body = canonical(outgoing.message);
  call.total_timeout = outgoing.timeout;
  call.connect_timeout = std::min(kConnectTimeout, outgoing.timeout);
  if (outgoing.send_within.count() > 0) {
    call.send_within = outgoing.send_within;
    call.connect_timeout = std::min(call.connect_timeout, outgoing.send_within * 3 / 4);
  }
  auto exchange = std::make_shared<Exchange>();
  exchange->number = ++last_;
  exchange->outgoing = std::move(outgoing);
  exchange->reply = std::move(reply);
  exchanges_.emplace(exchange->number, exchange);
  start(exchange, std::move(call));
}

void HttpTransport::start(const std::shared_ptr<Exchange>& exchange, net::HttpCall call) {
  exchange->events.emplace(SseLimits{.line_max = kMessageMax, .event_max = kMessageMax});
  call.response_max = tools::kStreamMax;
  call.on_event_bytes = [this, alive = alive_.watch(), weak = std::weak_ptr(exchange)](
                            const net::HttpHeaders& headers, const std::string& bytes) {
    if (const auto locked = weak.lock(); locked && alive) on_stream_bytes(*locked, headers, bytes);
  };
  exchange->http =
      client_.start(std::move(call), [this, alive = alive_.watch(), exchange](HttpResult answer) {
        if (alive) on_response(exchange, std::move(answer));
      });
}

void HttpTransport::cancel_request(std::int64_t id) {
  for (const auto& entry : exchanges_) {
    const auto& exchange = entry.second;
    const bool meant = exchange->outgoing.id == id || exchange->outgoing.ticket == id;
    if (!meant || !exchange->reply) continue;
    if (exchange->http) return client_.cancel(*exchange->http);
    loop_.cancel(exchange->timer);
    return loop_.post([this, alive = alive_.watch(), exchange] {
      if (!alive) return;
      exchanges_.erase(exchange->number);
      reply(*exchange, {.kind = Reply::Kind::lost, .text = "given up"});
    });
  }
}

void HttpTransport::reply(Exchange& exchange, Reply what) {
  if (!exchange.reply) return;
  auto reply = std::exchange(exchange.reply, nullptr);
  what.text = tools::printable(tools::scrub(what.text, used()), tools::LineBreaks::keep);
  reply(std::move(what));
}

void HttpTransport::note_session(const Exchange& exchange, const net::HttpHeaders& headers) {
  if (exchange.outgoing.method != "initialize") return;
  const std::string_view id = net::find_header(headers, "Mcp-Session-Id").value_or("");
  if (id.size() <= kSessionMax) session_ = id;
}

void HttpTransport::on_stream_bytes(Exchange& exchange, const net::HttpHeaders& headers,
                                    std::string_view bytes) {
  note_session(exchange, headers);
  const async::Alive::Watch alive = alive_.watch();
  std::vector<SseEvent> events;
  const bool fits = exchange.events->feed(bytes, events).has_value();
  for (const SseEvent& event : events) {
    handle_event(exchange, event);
    if (!alive) return;
  }
  // The answer is complete, or too large: do not read the rest.
  if ((!fits || !exchange.reply) && exchange.http) client_.cancel(*exchange.http);
}

// An event with one or several messages. An unreadable event of type `message` counts as the
// answer.
void HttpTransport::handle_event(Exchange& exchange, const SseEvent& event) {
  auto messages = read_messages(event.data);
  if (!messages) {
    const bool is_message = event.name.empty() || event.name == "message";
    if (is_message && !is_blank(event.data) && exchange.outgoing.id != 0) {
      reply(exchange,
            {.kind = Reply::Kind::unreadable,
             .text = describe_unreadable(messages.error(), tools::scrub(event.data, used()))});
    }
    return;
  }
  const async::Alive::Watch alive = alive_.watch();
  for (Message& message : *messages) {
    if (!alive) return;
    if (message.kind != Message::Kind::response) {
      callbacks_.on_message({.message = std::move(message), .stream = exchange.outgoing.id});
      continue;
    }
    const bool is_ours = message.id.is_integer() && message.id.as_int() == exchange.outgoing.id;
    const bool is_unaddressed = !message.error.is_null() && message.id.is_null();
    if (exchange.outgoing.id == 0 || (!is_ours && !is_unaddressed)) continue;
    reply(exchange, to_reply(std::move(message)));
  }
}

// A message outside of responses. Responses are ignored here.
void HttpTransport::on_stream_event(std::string_view text) {
  auto messages = read_messages(text);
  if (!messages) return;
  const async::Alive::Watch alive = alive_.watch();
  for (Message& message : *messages) {
    if (!alive || message.kind == Message::Kind::response) continue;
    callbacks_.on_message({.message = std::move(message)});
  }
}

namespace {

// The reply to an exchange without a message. Scrubs before it truncates: scrub would not find half
// of a secret.
Reply reply_without_message(const HttpResult& answer, const std::vector<tools::UsedSecret>& used) {
  switch (answer.phase) {
    case HttpPhase::invalid:
    case HttpPhase::not_sent:
      return {.kind = Reply::Kind::not_sent, .text = answer.error};
    case HttpPhase::resolve_failed:
    case HttpPhase::connect_failed:
      return {.kind = Reply::Kind::unreachable, .text = answer.error};
    case HttpPhase::tls_failed:
      return {.kind = Reply::Kind::unreachable, .text = answer.error, .is_tls_failure = true};
    case HttpPhase::no_response:
    case HttpPhase::cut_off:
      return {.kind = Reply::Kind::lost, .text = answer.error};
    case HttpPhase::complete:
      break;
  }
  const bool good = answer.status >= 200 && answer.status < 300;
  const Value shown = tools::invalid_output("", tools::scrub(answer.body, used), 0);
  const std::string_view head = shown.text("head");
  return {.kind = good ? Reply::Kind::lost : Reply::Kind::refused,
          .text = fmt::format("the server answered {}{}{}", answer.status,
                              good ? " without an answer in it" : "",
                              head.empty() ? "" : fmt::format(": {}", head)),
          .status = answer.status};
}

}  // namespace

void HttpTransport::on_response(const std::shared_ptr<Exchange>& exchange, HttpResult answer) {
  exchange->http.reset();
  if (answer.status == 200) note_session(*exchange, answer.headers);
  const async::Alive::Watch alive = alive_.watch();
  const bool whole = answer.phase == HttpPhase::complete;
  const bool good = answer.status >= 200 && answer.status < 300;
  const bool is_stream = good && net::equal_ignoring_case(media_type(answer), kEvents);
  if (is_stream && !answer.cancelled && exchange->reply && resume_stream(exchange)) return;
  exchanges_.erase(exchange->number);
  if (whole && exchange->outgoing.id == 0 && good) {
    return reply(*exchange, {.kind = Reply::Kind::result, .status = answer.status});
  }
  if (whole && !is_stream && good) handle_event(*exchange, {.name = {}, .data = answer.body});
  if (whole && !good) {
    // A JSON-RPC error in the body is more specific than the HTTP status.
    auto messages = read_messages(answer.body);
    if (messages && !messages->front().error.is_null()) {
      Reply error = to_reply(std::move(messages->front()));
      error.status = answer.status;
      return reply(*exchange, std::move(error));
    }
  }
  if (alive) reply(*exchange, reply_without_message(answer, used()));
}

// A stream ended before the answer. True: it is being resumed.
bool HttpTransport::resume_stream(const std::shared_ptr<Exchange>& exchange) {
  const SseParser& events = *exchange->events;
  if (events.last_id().empty() || exchange->resumes++ >= kResumesMax ||
      !net::is_header_value(events.last_id())) {
    return false;
  }
  net::HttpCall call = make_get_request();
  call.headers.push_back({"Last-Event-ID", events.last_id()});
  call.total_timeout = exchange->outgoing.timeout;
  exchange->timer =
      loop_.after(events.retry().value_or(kReconnectDelay),
                  [this, alive = alive_.watch(), exchange, call = std::move(call)]() mutable {
                    if (alive && exchange->reply) start(exchange, std::move(call));
                  });
  return true;
}

}  // namespace ae::mcp::client
