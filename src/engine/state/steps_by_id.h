// StepsById: finds the steps of a job by id.
//
// A hash table with open addressing that holds only indexes, so a step costs a few bytes and no
// allocation. Threads: a value; one owner.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <deque>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "engine/state/step.h"

namespace ae::engine {

class StepsById {
 public:
  using Steps = std::deque<Step>;

  // The index of the step with this id; kNoStep: there is none.
  std::uint32_t find(const StepId& id, const Steps& steps) const {
    if (slots_.empty()) return kNoStep;
    return slots_[slot_of(id, steps)];
  }
  // Adds step `index`. False: another one has its id. A step whose id changes is added again: its
  // old id then finds nothing.
  bool add(std::uint32_t index, const Steps& steps) {
    if (2 * (used_ + 1) > slots_.size()) grow(steps);
    std::uint32_t& slot = slots_[slot_of(steps[index].id, steps)];
    if (slot != kNoStep) return slot == index;
    slot = index;
    used_++;
    return true;
  }
  void clear() { *this = {}; }

 private:
  static std::uint64_t hash(std::string_view id) {
    std::uint64_t first = 0, last = 0;
    const std::size_t size = std::min(id.size(), sizeof first);
    std::memcpy(&first, id.data(), size);
    std::memcpy(&last, id.data() + id.size() - size, size);
    return (first ^ std::rotl(last, 32)) * 0x9E3779B97F4A7C15u;
  }
  // The slot of this id, or the free one where it belongs.
  std::size_t slot_of(const StepId& id, const Steps& steps) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t at = hash(id.text) >> shift_;
    while (slots_[at] != kNoStep && steps[slots_[at]].id != id) at = (at + 1) & mask;
    return at;
  }
  // Adds all steps again, without their old ids.
  void grow(const Steps& steps) {
    slots_.assign(std::bit_ceil(3 * steps.size() + 8), kNoStep);
    shift_ = 64 - std::countr_zero(slots_.size());
    used_ = 0;
    for (std::uint32_t index = 0; index < steps.size(); ++index) {
      std::uint32_t& slot = slots_[slot_of(steps[index].id, steps)];
      if (slot != kNoStep) continue;
      slot = index;
      used_++;
    }
  }

  std::vector<std::uint32_t> slots_;  // a power of two of them; kNoStep = free
  std::size_t used_ = 0;              // slots
  int shift_ = 64;                    // of a hash: its highest bits are the number of a slot
};

}  // namespace ae::engine
