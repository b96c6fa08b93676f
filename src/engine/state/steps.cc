#include "engine/state/steps.h"

#include <bit>

namespace ae::engine {

Step& Steps::add(const StepId& id) {
  if (size_ % kBlock == 0) blocks_.push_back(std::make_unique<Step[]>(kBlock));
  const auto index = static_cast<std::uint32_t>(size_++);
  set_id(index, id);
  return (*this)[index];
}

Step& Steps::add(Step step) { return add(step.id) = std::move(step); }

// The slot of its old id stays in use: the id there is no longer the step's, so nothing finds it.
void Steps::set_id(std::uint32_t index, const StepId& id) {
  (*this)[index].id = id;
  index_id(index);
}

void Steps::index_id(std::uint32_t index) {
  if (2 * (used_ + 1) > slots_.size()) grow();
  std::uint32_t& slot = slots_[slot_of((*this)[index].id)];
  if (slot != kNoStep) return;
  slot = index;
  used_++;
}

// Indexes all steps again, without their old ids.
void Steps::grow() {
  slots_.assign(std::bit_ceil(3 * size_ + 8), kNoStep);
  shift_ = 64 - std::countr_zero(slots_.size());
  used_ = 0;
  for (std::uint32_t index = 0; index < size_; ++index) {
    std::uint32_t& slot = slots_[slot_of((*this)[index].id)];
    if (slot != kNoStep) continue;
    slot = index;
    used_++;
  }
}

}  // namespace ae::engine
