#include "net/websocket.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/error.h"

namespace ae::net {
namespace {

constexpr std::string_view kGuid = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";  // RFC 6455 §1.3
constexpr std::size_t kPieceMax = 64u << 10;  // bytes for the stream at once: always within limits

std::string base64(std::string_view bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');
  const int size = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                   reinterpret_cast<const unsigned char*>(bytes.data()),
                                   static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(size));
  return text;
}

std::string accept_key(std::string_view key) {
  const std::string text = std::string(key).append(kGuid);
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  AE_CHECK(EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha1(), nullptr) == 1);
  return base64({reinterpret_cast<const char*>(digest.data()), size});
}

// Is this the base64 text of 16 bytes?
bool is_key(std::string_view text) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  return text.size() == 24 && text.ends_with("==") &&
         text.find_first_not_of(kDigits) == text.size() - 2;
}

// The comma-separated tokens of all headers of this name.
template <class Visit>
void for_each_token(const HttpHeaders& headers, std::string_view name, Visit visit) {
  for (const HttpHeader& header : headers) {
    if (!equal_ignoring_case(header.name, name)) continue;
    std::string_view rest = header.value;
    while (!rest.empty()) {
      const std::size_t comma = std::min(rest.find(','), rest.size());
      std::string_view token = rest.substr(0, comma);
      while (token.starts_with(' ') || token.starts_with('\t')) token.remove_prefix(1);
      while (token.ends_with(' ') || token.ends_with('\t')) token.remove_suffix(1);
      if (!token.empty()) visit(token);
      rest.remove_prefix(std::min(comma + 1, rest.size()));
    }
  }
}

bool has_token(const HttpHeaders& headers, std::string_view name, std::string_view wanted) {
  bool found = false;
  for_each_token(headers, name, [&](std::string_view token) {
    found = found || equal_ignoring_case(token, wanted);
  });
  return found;
}

std::optional<std::string_view> only_header(const HttpRequest& request, std::string_view name) {
  std::optional<std::string_view> found;
  for (const HttpHeader& header : request.headers) {
    if (header.name != name) continue;
    if (found) return std::nullopt;
    found = header.value;
  }
  return found;
}

HttpResponse bad_request(std::string_view detail) {
  return problem(400, code_name(Code::input_invalid), detail);
}

}  // namespace

std::expected<std::string, HttpResponse> websocket_accept(const HttpRequest& request,
                                                          std::string_view subprotocol) {
  if (request.method != "GET" || !has_token(request.headers, "upgrade", "websocket") ||
      !has_token(request.headers, "connection", "upgrade")) {
    HttpResponse required = problem(426, code_name(Code::unsupported),
                                    "this route needs an upgrade to a WebSocket (RFC 6455)");
    required.headers = {{"Upgrade", "websocket"}, {"Connection", "Upgrade"}};
    return std::unexpected(std::move(required));
  }
  if (only_header(request, "sec-websocket-version") != "13") {
    HttpResponse required =
        problem(426, code_name(Code::unsupported), "the version of the WebSocket must be 13");
    required.headers = {{"Upgrade", "websocket"}, {"Sec-WebSocket-Version", "13"}};
    return std::unexpected(std::move(required));
  }
  if (request.has_body) return std::unexpected(bad_request("an upgrade has no body"));
  const auto key = only_header(request, "sec-websocket-key");
  if (!key || !is_key(*key)) {
    return std::unexpected(bad_request("Sec-WebSocket-Key is not the base64 text of 16 bytes"));
  }
  bool is_offered = false;
  for_each_token(request.headers, "sec-websocket-protocol",
                 [&](std::string_view token) { is_offered = is_offered || token == subprotocol; });
  if (!is_offered) {
    return std::unexpected(
        bad_request("Sec-WebSocket-Protocol must offer " + std::string(subprotocol)));
  }
  return accept_key(*key);
}

std::unique_ptr<WebSocket> WebSocket::accept(const HttpRequest& request, Responder responder,
                                             std::string_view subprotocol, Callbacks callbacks,
                                             const Limits& limits) {
  auto accepted = websocket_accept(request, subprotocol);
  if (!accepted) {
    std::move(responder).answer(std::move(accepted).error());
    return nullptr;
  }
  std::unique_ptr<WebSocket> self(new WebSocket(std::move(callbacks), limits));
  WebSocket& socket = *self;
  socket.stream_ =
      std::move(responder).upgrade({{"Upgrade", "websocket"},
                                    {"Connection", "Upgrade"},
                                    {"Sec-WebSocket-Accept", *accepted},
                                    {"Sec-WebSocket-Protocol", std::string(subprotocol)}},
                                   [&socket](std::string_view bytes) { socket.on_input(bytes); });
  if (socket.stream_.closed()) return nullptr;
  socket.stream_.on_closed([&socket] { socket.on_stream_closed(); });
  socket.stream_.on_drained([&socket] { socket.on_stream_drained(); });
  return self;
}

// ---------------------------------------------------------------- what the client sends

void WebSocket::on_input(std::string_view bytes) {
  const auto alive = alive_.watch();
  while (alive && is_open_ && !bytes.empty()) {
    bytes.remove_prefix(parser_.feed(bytes));
    if (parser_.state() == WebSocketParser::State::failed) {
      const auto [code, reason] = parser_.failure();
      return end_with(code, std::string(reason), code);
    }
    if (parser_.state() == WebSocketParser::State::frame) on_frame(parser_.take());
  }
}

// May destroy this object.
void WebSocket::on_frame(WebSocketFrame frame) {
  const auto callbacks = callbacks_;
  switch (frame.opcode) {
    case WebSocketOpcode::text:
      return callbacks->on_text(std::move(frame.payload));
    case WebSocketOpcode::close: {
      const bool has_code = frame.code != websocket_code::kNoCode;
      return end_with(frame.code, std::move(frame.payload),
                      has_code ? frame.code : websocket_code::kNormal);
    }
    case WebSocketOpcode::ping:
      // While others wait, only the newest is answered: a client that reads nothing cannot make
      // them pile up (RFC 6455 §5.5.3).
      pong_ = websocket_frame(WebSocketOpcode::pong, frame.payload);
      return pump();
    case WebSocketOpcode::pong:
      return;
  }
}

// Sends a close frame, closes, and calls on_closed. May destroy this object.
void WebSocket::end_with(std::uint16_t code, std::string reason, std::uint16_t sent_code) {
  const auto callbacks = callbacks_;
  close(sent_code, reason);
  if (callbacks->on_closed) callbacks->on_closed(code, std::move(reason));
}

// ---------------------------------------------------------------- what it is sent

bool WebSocket::send(std::string_view text) {
  if (!is_open_) return false;
  if (queued_ + text.size() > limits_.unsent_max) {
    cut();
    return false;
  }
  queue(websocket_frame(WebSocketOpcode::text, text));
  pump();
  return true;
}

void WebSocket::queue(std::string frame) {
  queued_ += frame.size();
  queue_.push_back(std::move(frame));
}

void WebSocket::pump() {
  while (is_open_ && !is_full_) {
    if (offset_ == 0 && !pong_.empty()) {
      queued_ += pong_.size();
      queue_.push_front(std::exchange(pong_, {}));
    }
    if (queue_.empty()) return;
    const std::string_view piece = std::string_view(queue_.front()).substr(offset_, kPieceMax);
    const bool has_room = stream_.write(piece);
    offset_ += piece.size();
    queued_ -= piece.size();
    if (offset_ == queue_.front().size()) {
      queue_.pop_front();
      offset_ = 0;
    }
    is_full_ = !has_room;
  }
}

void WebSocket::on_stream_drained() {
  is_full_ = false;
  const bool had_waiting = queued_ > 0;
  pump();
  const auto callbacks = callbacks_;
  if (had_waiting && queued_ == 0 && callbacks->on_drained) callbacks->on_drained();
}

void WebSocket::on_stream_closed() {
  if (!is_open_) return;
  const auto callbacks = callbacks_;
  if (!stream_.closed()) {
    if (callbacks->on_stop) callbacks->on_stop();
    return;
  }
  cut();
  if (callbacks->on_closed) callbacks->on_closed(websocket_code::kLost, "the connection was lost");
}

void WebSocket::close(std::uint16_t code, std::string_view reason) {
  if (!is_open_) return;
  if (queued_ > 0) return cut();
  is_open_ = false;
  stream_.write(websocket_close_frame(code, reason));
  stream_.end();
}

void WebSocket::cut() {
  is_open_ = false;
  queue_.clear();
  queued_ = offset_ = 0;
  stream_ = HttpStream();
}

}  // namespace ae::net
