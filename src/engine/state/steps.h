// Steps: the steps of a job, by index and by id. A reference to a step stays valid when others are
// added.
//
// Steps are allocated in blocks. Ids are found in a hash table with open addressing that holds only
// indexes, so it costs a few bytes for a step. Threads: a value; one owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "base/ids.h"
#include "engine/state/step.h"

namespace ae::engine {

class Steps {
  template <class Owner, class Item>
  class Iterator {
   public:
    using value_type = Step;
    using difference_type = std::ptrdiff_t;
    Iterator() = default;
    Iterator(Owner* steps, std::size_t index) : steps_(steps), index_(index) {}
    Item& operator*() const { return (*steps_)[index_]; }
    Item* operator->() const { return &**this; }
    Iterator& operator++() {
      ++index_;
      return *this;
    }
    Iterator operator++(int) { return {steps_, index_++}; }
    bool operator==(const Iterator& other) const { return index_ == other.index_; }
    difference_type operator-(const Iterator& other) const {
      return static_cast<difference_type>(index_) - static_cast<difference_type>(other.index_);
    }

   private:
    Owner* steps_ = nullptr;
    std::size_t index_ = 0;
  };

 public:
  std::size_t size() const { return size_; }
  Step& operator[](std::size_t index) { return blocks_[index / kBlock][index % kBlock]; }
  const Step& operator[](std::size_t index) const {
    return blocks_[index / kBlock][index % kBlock];
  }
  const Step& front() const { return (*this)[0]; }
  auto begin() { return Iterator<Steps, Step>(this, 0); }
  auto end() { return Iterator<Steps, Step>(this, size_); }
  auto begin() const { return Iterator<const Steps, const Step>(this, 0); }
  auto end() const { return Iterator<const Steps, const Step>(this, size_); }

  // The index of the first step with this id; kNoStep: none has it.
  std::uint32_t index_of(const StepId& id) const {
    return slots_.empty() ? kNoStep : slots_[slot_of(id)];
  }
  Step& add(Step step);
  Step& add(const StepId& id);  // a new step
  // The step has this id from now on.
  void set_id(std::uint32_t index, const StepId& id);

 private:
  static constexpr std::size_t kBlock = 4;

  // An id is a digest; the memory of any id has 16 bytes (base/inline_text.h).
  static std::uint64_t hash(const StepId& id) {
    std::uint64_t halves[2];
    std::memcpy(halves, id.text.data(), sizeof halves);
    return (halves[0] ^ (halves[1] << 32 | halves[1] >> 32)) * 0x9E3779B97F4A7C15u;
  }
  // The slot of this id, or the free one where it belongs.
  std::size_t slot_of(const StepId& id) const {
    std::size_t at = hash(id) >> shift_;
    while (slots_[at] != kNoStep && (*this)[slots_[at]].id != id)
      at = (at + 1) & (slots_.size() - 1);
    return at;
  }
  void index_id(std::uint32_t index);
  void grow();

  std::vector<std::unique_ptr<Step[]>> blocks_;
  std::size_t size_ = 0;
  std::vector<std::uint32_t> slots_;  // a power of two of them; kNoStep = free
  std::size_t used_ = 0;              // slots
  int shift_ = 64;                    // of a hash: its highest bits are the number of a slot
};

}  // namespace ae::engine
