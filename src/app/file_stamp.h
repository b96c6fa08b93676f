// A stamp of a file, to see that it was edited or replaced. Threads: any.
#pragma once

#include <fmt/core.h>
#include <sys/stat.h>

#include <string>

namespace ae::app {

// Its inode, size and times; "" = the file does not exist.
inline std::string file_stamp(const std::string& path) {
  struct stat found{};
  if (::stat(path.c_str(), &found) != 0) return "";
  const auto time = [](const timespec& at) { return fmt::format("{}.{}", at.tv_sec, at.tv_nsec); };
  return fmt::format("{} {} {} {} {}", found.st_dev, found.st_ino, found.st_size,
                     time(found.st_mtim), time(found.st_ctim));
}

}  // namespace ae::app
