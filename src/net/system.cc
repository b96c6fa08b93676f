#include "net/system.h"

#include <malloc.h>
#include <mimalloc.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "base/error.h"

// The program may be linked without it.
#pragma weak mi_collect
#pragma weak mi_option_get
#pragma weak mi_option_set

namespace ae::net {
namespace {

std::int64_t offset_in(const std::string& path) {
  constexpr std::int64_t kMax = std::int64_t{100} * 365 * 24 * 3600 * 1'000'000;  // a century
  std::int64_t offset = 0;
  std::ifstream(path) >> offset;
  return std::clamp(offset, -kMax, kMax);
}

}  // namespace

SystemClock::SystemClock() {
  if (const char* path = std::getenv(kClockOffsetFile)) offset_file_ = path;
}

Instant SystemClock::now() {
  timespec t{};
  AE_CHECK(clock_gettime(CLOCK_REALTIME, &t) == 0, "this kernel has no such clock");
  const std::int64_t offset = offset_file_.empty() ? 0 : offset_in(offset_file_);
  return {std::int64_t{t.tv_sec} * 1'000'000 + t.tv_nsec / 1000 + offset};
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

std::size_t raise_descriptor_limit() {
  const rlimit before = descriptor_limit();
  rlimit wanted = before;
  wanted.rlim_cur = std::max(before.rlim_cur, std::min(before.rlim_max, kDescriptorsWanted));
  // Failure is ignored: connection limits follow the actual limit.
  if (wanted.rlim_cur > before.rlim_cur) setrlimit(RLIMIT_NOFILE, &wanted);
  return before.rlim_cur;
}

EagerRelease::EagerRelease() {
  if (mi_option_get == nullptr) return;
  delay_ = mi_option_get(mi_option_decommit_delay);
  mi_option_set(mi_option_decommit_delay, 0);
}

EagerRelease::~EagerRelease() {
  if (mi_option_set != nullptr) mi_option_set(mi_option_decommit_delay, delay_);
}

void trim_heap() {
  if (mi_collect != nullptr) mi_collect(true);
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

bool is_resource_shortage(int error) {
  return error == EMFILE || error == ENFILE || error == EAGAIN || error == ENOMEM ||
         error == ENOBUFS;
}

std::uint64_t SystemRandom::next() {
  if (left_ == 0) {
    auto* bytes = reinterpret_cast<unsigned char*>(buffer_.data());
    std::size_t have = 0;
    while (have < sizeof(buffer_)) {
      const ssize_t n = getrandom(bytes + have, sizeof(buffer_) - have, 0);
      // With valid arguments the only possible failure is EINTR; without
      // randomness no id may be created.
      AE_CHECK(n > 0 || errno == EINTR, std::strerror(errno));
      if (n > 0) have += static_cast<std::size_t>(n);
    }
    left_ = buffer_.size();
  }
  --left_;
  return std::exchange(buffer_[left_], 0);
}

}  // namespace ae::net
