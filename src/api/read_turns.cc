#include "api/read_turns.h"

#include <utility>

namespace ae::api {

struct ReadTurns::Lines {
  async::Loop* loop = nullptr;  // nullptr: over
  std::size_t free = 0;
  std::map<std::string, std::deque<Go>, std::less<>> of = {};  // by caller; none is empty
  std::string last = {};                                       // whose turn began last
};

ReadTurns::ReadTurns(async::Loop& loop, std::size_t at_once)
    : lines_(std::make_shared<Lines>(Lines{.loop = &loop, .free = at_once})) {}

ReadTurns::~ReadTurns() {
  lines_->loop = nullptr;
  const auto dropped = std::exchange(lines_->of, {});
}

ReadTurns::Turn ReadTurns::begin(const std::shared_ptr<Lines>& lines) {
  --lines->free;
  return {nullptr, [lines](void*) {
            ++lines->free;
            if (lines->loop == nullptr || lines->of.empty()) return;
            lines->loop->post([weak = std::weak_ptr(lines)] {
              if (const auto still = weak.lock()) next(still);
            });
          }};
}

void ReadTurns::next(const std::shared_ptr<Lines>& lines) {
  if (lines->loop == nullptr || lines->free == 0 || lines->of.empty()) return;
  auto line = lines->of.upper_bound(lines->last);
  if (line == lines->of.end()) line = lines->of.begin();
  lines->last = line->first;
  Go go = std::move(line->second.front());
  line->second.pop_front();
  if (line->second.empty()) lines->of.erase(line);
  go(begin(lines));
}

void ReadTurns::take(const std::string& caller, Go go) {
  if (lines_->free > 0 && lines_->of.empty()) return go(begin(lines_));
  lines_->of[caller].push_back(std::move(go));
}

}  // namespace ae::api
