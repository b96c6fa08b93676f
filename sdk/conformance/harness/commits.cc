// commits: loaded into the process of a library (LD_PRELOAD), counts the commits of its store, and kills the process
// before or after one of them. A commit is a sync of SQLite's write-ahead log.
//
// Threads: any. The file that COMMITS_FILE names is shared with the runner (world.py).
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

namespace {

struct Commits {
  std::atomic<std::uint64_t> count;
  std::atomic<std::uint64_t> kill_before;  // this one; 0: none
  std::atomic<std::uint64_t> kill_after;
  std::atomic<std::uint64_t> is_killed;
};

Commits& commits() {
  static Commits* const shared = [] {
    const char* const path = std::getenv("COMMITS_FILE");
    const int file = path == nullptr ? -1 : open(path, O_RDWR | O_CLOEXEC);
    void* const at = mmap(nullptr, sizeof(Commits), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at == MAP_FAILED) std::abort();
    close(file);
    return static_cast<Commits*>(at);
  }();
  return *shared;
}

bool is_log(int file) {
  char path[4096];
  const std::string link = "/proc/self/fd/" + std::to_string(file);
  const ssize_t length = readlink(link.c_str(), path, sizeof path);
  return length > 0 && std::string_view(path, static_cast<std::size_t>(length)).ends_with("-wal");
}

void kill_if(bool is_now) {
  if (is_now && commits().is_killed.exchange(1) == 0) kill(getpid(), SIGKILL);  // once
}

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

int sync_with(const char* name, int file) {
  const int result = next<int (*)(int)>(name)(file);
  if (is_log(file)) kill_if(++commits().count == commits().kill_after);
  return result;
}

}  // namespace

extern "C" {

ssize_t pwrite64(int file, const void* data, std::size_t size, off64_t at) {
  if (is_log(file)) kill_if(commits().count + 1 == commits().kill_before);
  return next<ssize_t (*)(int, const void*, std::size_t, off64_t)>("pwrite64")(file, data, size,
                                                                               at);
}

int fdatasync(int file) { return sync_with("fdatasync", file); }
int fsync(int file) { return sync_with("fsync", file); }

}  // extern "C"
