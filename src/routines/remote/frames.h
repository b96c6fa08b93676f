// Frames: the numbers of the frames of one session in both directions, and the frames of the server
// that its worker has not acknowledged (docs/worker-protocol.md).
//
// Threads: a value; one owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

namespace ae::routines {

class Frames {
 public:
  // `received`: the frames of the worker that were processed before.
  explicit Frames(std::uint64_t received) : received_(received) {}

  // repeated: it was processed before. broken: it is not the next one, or acknowledges what was
  // never sent.
  enum class Arrival : std::uint8_t { next, repeated, broken };
  Arrival on_frame(std::uint64_t number, std::uint64_t ack);
  // Forgets the frames that the worker has processed. False: such a frame was never sent.
  bool on_ack(std::uint64_t ack);

  // The text of the next frame, with these messages: JSON, separated by commas. It is kept until
  // it is acknowledged.
  const std::string& make(std::string_view messages);
  // The frames to send again, unchanged and in their order.
  const std::deque<std::string>& kept() const { return kept_; }
  std::size_t kept_bytes() const { return kept_bytes_; }

  std::uint64_t received() const { return received_; }
  // Has the worker sent frames that no frame of ours acknowledges?
  bool owes_ack() const { return received_ > acknowledged_; }

 private:
  std::uint64_t received_, acknowledged_ = 0;
  std::uint64_t sent_ = 0;
  std::deque<std::string> kept_;  // the last one has the number sent_
  std::size_t kept_bytes_ = 0;
};

// The text of a frame.
std::string frame_text(std::uint64_t number, std::uint64_t ack, std::string_view messages);

}  // namespace ae::routines
