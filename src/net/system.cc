#include "net/system.h"

#include <sys/random.h>
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "core/error.h"

namespace ae::net {
Instant SystemClock::now() {
  timespec t{};
  AE_CHECK(clock_gettime(CLOCK_REALTIME, &t) == 0, "this kernel has no such clock");
  return {std::int64_t{t.tv_sec} * 1'000'000 + t.tv_nsec / 1000};
}

namespace {

constexpr rlim_t kDescriptorsWanted = 65'536;

rlimit descriptor_limit() {
  rlimit limit{};
  AE_CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0, std::strerror(errno));
  return limit;
}

}  // namespace

std::size_t descriptors_max() { return descriptor_limit().rlim_cur; }

std::size_t raise_descriptors() {
  const rlimit before = descriptor_limit();
  rlimit wanted = before;
  wanted.rlim_cur = std::max(before.rlim_cur, std::min(before.rlim_max, kDescriptorsWanted));
  // What is not given is done without: the limits on connections follow what there is.
  if (wanted.rlim_cur > before.rlim_cur) setrlimit(RLIMIT_NOFILE, &wanted);
  return before.rlim_cur;
}

bool is_scarcity(int error) {
  return error == EMFILE || error == ENFILE || error == EAGAIN || error == ENOMEM ||
         error == ENOBUFS;
}

std::uint64_t SystemChance::next() {
  if (left_ == 0) {
    auto* bytes = reinterpret_cast<unsigned char*>(buffer_.data());
    std::size_t have = 0;
    while (have < sizeof(buffer_)) {
      const ssize_t n = getrandom(bytes + have, sizeof(buffer_) - have, 0);
      // EINTR is the only failure there is for valid arguments; without chance no id may be made.
      AE_CHECK(n > 0 || errno == EINTR, std::strerror(errno));
      if (n > 0) have += static_cast<std::size_t>(n);
    }
    left_ = buffer_.size();
  }
  --left_;
  return std::exchange(buffer_[left_], 0);
}

}  // namespace ae::net
