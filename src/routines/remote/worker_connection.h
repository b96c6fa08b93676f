// WorkerConnection: a connection with a worker, as RemoteRoutines uses it: texts in both directions.
//
// Implementations: a WebSocket; a queue in tests. Threads: the loop's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ae::routines {

// The close codes of RFC 6455 that a session uses.
namespace close_code {
inline constexpr std::uint16_t kNormal = 1000;
inline constexpr std::uint16_t kGoingAway = 1001;      // the server stops; the worker was silent
inline constexpr std::uint16_t kProtocolError = 1002;  // frames that are not in their order
inline constexpr std::uint16_t kPolicy = 1008;         // no frame, no hello, too many errors
}  // namespace close_code

class WorkerConnection {
 public:
  // Cuts the connection if it is open.
  virtual ~WorkerConnection() = default;
  // UTF-8. False: the connection has ended. It is reported to RemoteRoutines::on_closed, but not
  // from within this call.
  virtual bool send(std::string_view text) = 0;
  // Bytes that the worker has not read.
  virtual std::size_t unsent() const = 0;
  // No event of this connection follows.
  virtual void close(std::uint16_t code, std::string_view reason) = 0;
};

}  // namespace ae::routines
