#include "api/read_limiter.h"

#include <utility>

namespace ae::api {

struct ReadLimiter::WaitingReads {
  async::Loop* loop = nullptr;  // nullptr: the limiter was destroyed
  std::size_t free = 0;
  std::map<std::string, std::deque<SlotCallback>, std::less<>> of = {};  // by caller; never empty
  std::string last = {};  // the caller that was served last
};

ReadLimiter::ReadLimiter(async::Loop& loop, std::size_t at_once)
    : waiting_reads_(std::make_shared<WaitingReads>(WaitingReads{.loop = &loop, .free = at_once})) {
}

ReadLimiter::~ReadLimiter() {
  waiting_reads_->loop = nullptr;
  const auto dropped = std::exchange(waiting_reads_->of, {});
}

ReadLimiter::Slot ReadLimiter::begin(const std::shared_ptr<WaitingReads>& waiting_reads) {
  --waiting_reads->free;
  return {nullptr, [waiting_reads](void*) {
            ++waiting_reads->free;
            if (waiting_reads->loop == nullptr || waiting_reads->of.empty()) return;
            waiting_reads->loop->post([weak = std::weak_ptr(waiting_reads)] {
              if (const auto still = weak.lock()) next(still);
            });
          }};
}

void ReadLimiter::next(const std::shared_ptr<WaitingReads>& waiting_reads) {
  if (waiting_reads->loop == nullptr || waiting_reads->free == 0 || waiting_reads->of.empty())
    return;
  auto line = waiting_reads->of.upper_bound(waiting_reads->last);
  if (line == waiting_reads->of.end()) line = waiting_reads->of.begin();
  waiting_reads->last = line->first;
  SlotCallback on_slot = std::move(line->second.front());
  line->second.pop_front();
  if (line->second.empty()) waiting_reads->of.erase(line);
  on_slot(begin(waiting_reads));
}

void ReadLimiter::acquire(const std::string& caller, SlotCallback on_slot) {
  if (waiting_reads_->free > 0 && waiting_reads_->of.empty()) return on_slot(begin(waiting_reads_));
  waiting_reads_->of[caller].push_back(std::move(on_slot));
}

}  // namespace ae::api
