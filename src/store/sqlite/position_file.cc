#include "store/sqlite/position_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>

#include "base/hash.h"

namespace ae::store::sqlite {
namespace {

constexpr std::string_view kMagic = "aetheris.position.v1";
constexpr std::size_t kSlot = 256, kId = 32, kSum = 16;

std::string sum_of(std::string_view text) { return to_hex(sha256(text)).substr(0, kSum); }

std::string slot_of(const StorePosition& p) {
  std::string text(kMagic);
  text += fmt::format(" {} {} {} ", p.store, p.timeline, p.number);
  text += sum_of(text);
  AE_CHECK(text.size() < kSlot, text);
  text.resize(kSlot - 1, ' ');
  return text + "\n";
}

std::string_view next_word(std::string_view& text) {
  const std::string_view found = text.substr(0, text.find(' '));
  text.remove_prefix(std::min(text.size(), found.size() + 1));
  return found;
}

std::optional<StorePosition> position_of(std::string_view slot) {
  std::string_view rest = slot;
  if (next_word(rest) != kMagic) return std::nullopt;
  StorePosition p;
  p.store = next_word(rest);
  p.timeline = next_word(rest);
  const std::string_view number = next_word(rest);
  const auto read = std::from_chars(number.data(), number.data() + number.size(), p.number);
  const bool valid = read.ec == std::errc() && read.ptr == number.data() + number.size() &&
                     p.store.size() == kId && p.timeline.size() == kId;
  const std::string_view summed = slot.substr(0, slot.size() - rest.size());
  if (!valid || next_word(rest) != sum_of(summed)) return std::nullopt;
  return p;
}

}  // namespace

bool is_behind(const StoreIdentity& identity, const StorePosition& recorded) {
  if (identity.at.store != recorded.store) return false;
  if (identity.at.timeline == recorded.timeline) return identity.at.number < recorded.number;
  return std::ranges::find(identity.earlier_timelines, recorded.timeline) ==
         identity.earlier_timelines.end();
}

PositionFile::PositionFile(PositionFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      write_second_slot_(other.write_second_slot_) {}

PositionFile& PositionFile::operator=(PositionFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(write_second_slot_, other.write_second_slot_);
  return *this;
}

PositionFile::~PositionFile() {
  if (fd_ >= 0) ::close(fd_);
}

// The higher slot was written last: after an accepted loss the numbers continue above both.
std::optional<StorePosition> PositionFile::read() const {
  const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return std::nullopt;
  std::string bytes(2 * kSlot, '\0');
  const ssize_t size = ::pread(fd, bytes.data(), bytes.size(), 0);
  ::close(fd);
  bytes.resize(size < 0 ? 0 : static_cast<std::size_t>(size));
  std::optional<StorePosition> best;
  for (std::size_t at = 0; at + kSlot <= bytes.size(); at += kSlot) {
    auto found = position_of(std::string_view(bytes).substr(at, kSlot));
    if (found && (!best || found->number > best->number)) best = std::move(found);
  }
  return best;
}

Status PositionFile::write(const StorePosition& position) {
  const auto failed = [&](const char* what) {
    return fail(Code::unavailable, "cannot {} {}: {}", what, path_, std::strerror(errno));
  };
  if (fd_ < 0) {
    const auto identity = read();
    // A new file, or one of another store: truncate both slots.
    const bool should_truncate = !identity || identity->store != position.store;
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | (should_truncate ? O_TRUNC : 0),
                 0600);
    if (fd_ < 0) return failed("write");
    if (!should_truncate) {
      std::string first(kSlot, '\0');
      const int reading = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
      if (reading >= 0) {
        const ssize_t size = ::pread(reading, first.data(), first.size(), 0);
        ::close(reading);
        write_second_slot_ = size == static_cast<ssize_t>(kSlot) && position_of(first) == identity;
      }
    }
  }
  const std::string slot = slot_of(position);
  const ssize_t written =
      ::pwrite(fd_, slot.data(), slot.size(), write_second_slot_ ? static_cast<off_t>(kSlot) : 0);
  if (written != static_cast<ssize_t>(slot.size()) || ::fdatasync(fd_) != 0) return failed("write");
  write_second_slot_ = !write_second_slot_;
  return {};
}

}  // namespace ae::store::sqlite
