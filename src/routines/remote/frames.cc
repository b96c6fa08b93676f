#include "routines/remote/frames.h"

#include <fmt/core.h>

namespace ae::routines {

std::string frame_text(std::uint64_t number, std::uint64_t ack, std::string_view messages) {
  std::string text = fmt::format(R"({{"frame":{},"ack":{},"messages":[)", number, ack);
  text.reserve(text.size() + messages.size() + 2);
  return text.append(messages).append("]}");
}

Frames::Arrival Frames::on_frame(std::uint64_t number, std::uint64_t ack) {
  if (!on_ack(ack) || number > received_ + 1) return Arrival::broken;
  if (number <= received_) return Arrival::repeated;
  received_ = number;
  return Arrival::next;
}

bool Frames::on_ack(std::uint64_t ack) {
  if (ack > sent_) return false;
  while (sent_ - kept_.size() < ack) {
    kept_bytes_ -= kept_.front().size();
    kept_.pop_front();
  }
  return true;
}

const std::string& Frames::make(std::string_view messages) {
  acknowledged_ = received_;
  kept_.push_back(frame_text(++sent_, received_, messages));
  kept_bytes_ += kept_.back().size();
  return kept_.back();
}

}  // namespace ae::routines
