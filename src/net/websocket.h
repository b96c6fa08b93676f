// WebSocket: the server side of RFC 6455, on a connection of HttpServer: texts in both directions.
//
// Each text is one frame; extensions are not negotiated. A ping is answered. A client that breaks
// the protocol, or does not read, loses its connection: 1002 a broken frame, 1003 bytes instead of
// text, 1007 a text that is not UTF-8, 1009 a text that is too large. Works on TCP, TLS and Unix
// sockets.
// Threads: everything on the loop's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <expected>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "async/alive.h"
#include "net/http_request.h"
#include "net/http_server.h"
#include "net/websocket_parser.h"

namespace ae::net {

// The value of Sec-WebSocket-Accept for this request; or the answer if it is no upgrade to a
// WebSocket with this subprotocol: 426, or 400 if a part of it is wrong.
std::expected<std::string, HttpResponse> websocket_accept(const HttpRequest& request,
                                                          std::string_view subprotocol);

class WebSocket {
 public:
  struct Limits {
    std::size_t message_max = 32u << 20;  // bytes of a text of the client
    std::size_t unsent_max = 64u << 20;   // bytes that the client has not read
  };
  // Not called from within a call of this object. Each may destroy it.
  struct Callbacks {
    std::function<void(std::string text)> on_text;
    // All that was unsent is with the kernel, after unsent() was not 0.
    std::function<void()> on_drained;
    // The connection has ended, or ends after this: by the client's close, by its failure, or
    // because it broke the protocol (then with the code that it was sent); kLost: without a close
    // frame. Called once, as the last one; never after close().
    std::function<void(std::uint16_t code, std::string reason)> on_closed;
    // The server stops: close() is expected soon.
    std::function<void()> on_stop;
  };

  // Answers the request. nullptr: it is not such an upgrade, and was answered with an error.
  static std::unique_ptr<WebSocket> accept(const HttpRequest& request, Responder responder,
                                           std::string_view subprotocol, Callbacks callbacks,
                                           const Limits& limits);
  // Cuts the connection, if it was not closed.
  ~WebSocket() = default;
  WebSocket(const WebSocket&) = delete;
  WebSocket& operator=(const WebSocket&) = delete;

  // REQUIRES: valid UTF-8. False: the connection has ended, or ends now because more than
  // unsent_max bytes wait for its client; then on_closed is not called.
  bool send(std::string_view text);
  // Bytes of texts that the kernel has not taken, in this object.
  std::size_t unsent() const { return queued_; }
  // Sends a close frame, and closes. A client that has not read what was sent before is cut off
  // without one. No callback follows.
  void close(std::uint16_t code, std::string_view reason);
  bool is_open() const { return is_open_; }

 private:
  WebSocket(Callbacks callbacks, const Limits& limits)
      : callbacks_(std::make_shared<const Callbacks>(std::move(callbacks))),
        limits_(limits),
        parser_(limits.message_max) {}
  void on_input(std::string_view bytes);
  void on_frame(WebSocketFrame frame);
  void end_with(std::uint16_t code, std::string reason, std::uint16_t sent_code);
  void on_stream_closed();
  void on_stream_drained();
  void queue(std::string frame);
  void pump();
  void cut();

  // Shared with the callback that runs, which may destroy this object.
  const std::shared_ptr<const Callbacks> callbacks_;
  const Limits limits_;
  WebSocketParser parser_;
  HttpStream stream_;
  bool is_open_ = true;
  bool is_full_ = false;           // the stream: wait until it has drained
  std::deque<std::string> queue_;  // frames that the stream does not have yet
  std::size_t offset_ = 0;         // of queue_.front(): what the stream has
  std::size_t queued_ = 0;         // bytes of the queue, without `offset_`
  std::string pong_;               // the newest, as a frame, while others wait
  async::Alive alive_;
};

}  // namespace ae::net
