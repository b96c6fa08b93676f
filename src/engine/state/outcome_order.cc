#include "engine/state/outcome_order.h"

#include <algorithm>

namespace ae::engine {

void OutcomeOrder::add(std::uint32_t step, std::optional<std::uint64_t> position) {
  const Logged logged{.number = size(), .step = step};
  if (position) {
    placed_.emplace(*position, logged);
  } else {
    unplaced_.push_back(logged);
  }
}

void OutcomeOrder::finalize(std::uint64_t delivered) {
  for (; final_ < delivered; ++final_) {
    Logged next;
    if (!placed_.empty() && placed_.begin()->first == final_) {
      next = placed_.begin()->second;
      placed_.erase(placed_.begin());
    } else {
      next = unplaced_.front();
      unplaced_.pop_front();
    }
    if (next.step != kForgotten) kept_.push_back({.position = final_, .step = next.step});
  }
}

void OutcomeOrder::forget(const std::vector<std::uint32_t>& steps, std::uint64_t from) {
  const auto is_forgotten = [&](std::uint32_t step) {
    return std::ranges::binary_search(steps, step);
  };
  const auto first = std::ranges::lower_bound(kept_, from, {}, &Place::position);
  kept_.erase(std::remove_if(first, kept_.end(),
                             [&](const Place& place) { return is_forgotten(place.step); }),
              kept_.end());
  for (Logged& logged : unplaced_) {
    if (is_forgotten(logged.step)) logged.step = kForgotten;
  }
  for (auto& [position, logged] : placed_) {
    if (is_forgotten(logged.step)) logged.step = kForgotten;
  }
}

std::vector<OutcomeOrder::Place> OutcomeOrder::places() const {
  std::vector<Place> places = kept_;
  places.reserve(kept_.size() + unplaced_.size() + placed_.size());
  auto unplaced = unplaced_.begin();
  for (std::uint64_t position = final_; position < size(); ++position) {
    const auto placed = placed_.find(position);
    const Logged& next = placed != placed_.end() ? placed->second : *unplaced++;
    if (next.step != kForgotten) places.push_back({.position = position, .step = next.step});
  }
  return places;
}

std::vector<OutcomeOrder::Logged> OutcomeOrder::since(std::uint64_t from) const {
  std::vector<Logged> found;
  if (from >= size()) return found;
  const auto add = [&](const Logged& logged) {
    if (logged.number >= from && logged.step != kForgotten) found.push_back(logged);
  };
  const auto first = std::ranges::lower_bound(unplaced_, from, {}, &Logged::number);
  std::for_each(first, unplaced_.end(), add);
  for (const auto& [position, logged] : placed_) add(logged);
  std::ranges::sort(found, {}, &Logged::number);
  return found;
}

std::size_t OutcomeOrder::bytes() const {
  constexpr std::size_t kEntry = 64;  // of a map
  return sizeof(Place) * kept_.capacity() + sizeof(Logged) * unplaced_.size() +
         kEntry * placed_.size();
}

bool OutcomeOrder::is_valid(std::size_t steps) const {
  const auto exists = [&](std::uint32_t step) { return step < steps || step == kForgotten; };
  std::uint64_t last = 0;
  for (const Place& place : kept_) {
    if (place.position >= final_ || place.position < last || place.step >= steps) return false;
    last = place.position + 1;
  }
  for (const Logged& logged : unplaced_) {
    if (!exists(logged.step)) return false;
  }
  for (const auto& [position, logged] : placed_) {
    if (position < final_ || position >= size() || !exists(logged.step)) return false;
  }
  return true;
}

}  // namespace ae::engine
