#include "net/unix_path.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/un.h>
#include <unistd.h>

namespace ae::net {

UnixPath::UnixPath(const std::string& path) : usable_(path) {
  if (path.size() < sizeof(sockaddr_un::sun_path)) return;
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos || slash == 0) return;
  folder_ = open(path.substr(0, slash).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (folder_ >= 0) usable_ = fmt::format("/proc/self/fd/{}{}", folder_, path.substr(slash));
}

UnixPath::~UnixPath() {
  if (folder_ >= 0) close(folder_);
}

}  // namespace ae::net
