#include "runtime/running_slot.h"

#include <fmt/core.h>

#include <atomic>
#include <bit>
#include <charconv>
#include <cstring>
#include <string_view>

#include "base/error.h"

namespace ae::runtime {
namespace {

constexpr std::string_view kMagic = "ae-run-1";
constexpr std::size_t kLengthAt = 8, kNameAt = 16;
static_assert(std::endian::native == std::endian::little, "the length is stored little-endian");

std::optional<RunningSlot::SliceName> read(std::span<const std::byte> memory) {
  const auto* const bytes = reinterpret_cast<const char*>(memory.data());
  if (std::string_view(bytes, kMagic.size()) != kMagic) return std::nullopt;
  std::uint64_t length = 0;
  std::memcpy(&length, bytes + kLengthAt, sizeof length);
  if (length == 0 || length > RunningSlot::kBytes - kNameAt) return std::nullopt;
  const std::string_view name(bytes + kNameAt, length);
  const std::size_t first = name.find('\n');
  const std::size_t second = first == name.npos ? first : name.find('\n', first + 1);
  if (second == name.npos) return std::nullopt;
  const std::string_view epoch = name.substr(second + 1);
  RunningSlot::SliceName named;
  named.job = JobId(std::string(name.substr(0, first)));
  named.fence.attempt = AttemptId(std::string(name.substr(first + 1, second - first - 1)));
  const auto [end, error] =
      std::from_chars(epoch.data(), epoch.data() + epoch.size(), named.fence.epoch);
  if (error != std::errc() || end != epoch.data() + epoch.size()) return std::nullopt;
  return named;
}

}  // namespace

RunningSlot::RunningSlot(std::span<std::byte> memory)
    : memory_(memory), interrupted_(read(memory)) {
  AE_CHECK(memory_.size() >= kBytes);
  if (!interrupted_) clear_interrupted();
}

void RunningSlot::clear_interrupted() {
  interrupted_.reset();
  store_length(0);
  std::memcpy(memory_.data(), kMagic.data(), kMagic.size());
}

bool RunningSlot::has_interrupted_slice(std::span<const std::byte> memory) {
  return memory.size() >= kBytes && read(memory).has_value();
}

std::string RunningSlot::name_of(const JobId& job, const store::Fence& fence) {
  return fmt::format("{}\n{}\n{}", job.text, fence.attempt.text, fence.epoch);
}

// The length is stored last and cleared first: a process that dies in between leaves no name.
void RunningSlot::set_running(const std::string* name) {
  if (interrupted_ || name == running_) return;
  store_length(0);
  running_ = name;
  if (name == nullptr || name->size() > kBytes - kNameAt) return;
  std::memcpy(memory_.data() + kNameAt, name->data(), name->size());
  store_length(name->size());
}

void RunningSlot::store_length(std::uint64_t length) {
  auto* const at = reinterpret_cast<std::uint64_t*>(memory_.data() + kLengthAt);
  std::atomic_ref<std::uint64_t>(*at).store(length, std::memory_order_seq_cst);
}

RunningSlot::Slice::Slice(RunningSlot* slot, const std::string& name)
    : slot_(slot), outer_(slot == nullptr ? nullptr : slot->running_) {
  if (slot_ != nullptr) slot_->set_running(&name);
}

RunningSlot::Slice::~Slice() {
  if (slot_ != nullptr) slot_->set_running(outer_);
}

}  // namespace ae::runtime
