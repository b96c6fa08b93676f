#include "app/tool_peer.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "tools/command/proc.h"

extern "C" {
#include <sys/pidfd.h>  // glibc 2.36 does not declare its functions as C
}

namespace ae::app {
namespace {

constexpr int kSoPeerPidFd = 77;  // SO_PEERPIDFD, Linux 6.5

class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() {
    if (fd_ >= 0) ::close(fd_);
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// A handle of exactly the process that connected; where the kernel has none, of the one that has its number now.
int handle_of_peer(int fd, pid_t pid) {
  int handle = -1;
  socklen_t size = sizeof handle;
  if (::getsockopt(fd, SOL_SOCKET, kSoPeerPidFd, &handle, &size) == 0) return handle;
  return errno == ENOPROTOOPT ? ::pidfd_open(pid, 0) : -1;
}

bool still_lives(int handle) {
  pollfd ended{handle, POLLIN, 0};
  return ::poll(&ended, 1, 0) == 0;
}

// The number of the socket from `source` to `target`, 0 when no process has it open; nullopt when the kernel does not say.
std::optional<std::uint32_t> inode_of(const sockaddr_storage& source,
                                      const sockaddr_storage& target) {
  struct {
    nlmsghdr head;
    inet_diag_req_v2 body;
  } request{};
  request.head = {.nlmsg_len = sizeof request,
                  .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                  .nlmsg_flags = NLM_F_REQUEST,
                  .nlmsg_seq = 1,
                  .nlmsg_pid = 0};
  request.body.sdiag_protocol = IPPROTO_TCP;
  request.body.idiag_states = ~0u;
  request.body.id.idiag_cookie[0] = request.body.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  inet_diag_sockid& id = request.body.id;
  request.body.sdiag_family = static_cast<std::uint8_t>(source.ss_family);
  if (source.ss_family == AF_INET) {
    const auto* from = reinterpret_cast<const sockaddr_in*>(&source);
    const auto* to = reinterpret_cast<const sockaddr_in*>(&target);
    id.idiag_sport = from->sin_port;
    id.idiag_dport = to->sin_port;
    std::memcpy(id.idiag_src, &from->sin_addr, sizeof from->sin_addr);
    std::memcpy(id.idiag_dst, &to->sin_addr, sizeof to->sin_addr);
  } else {
    const auto* from = reinterpret_cast<const sockaddr_in6*>(&source);
    const auto* to = reinterpret_cast<const sockaddr_in6*>(&target);
    id.idiag_sport = from->sin6_port;
    id.idiag_dport = to->sin6_port;
    std::memcpy(id.idiag_src, &from->sin6_addr, sizeof from->sin6_addr);
    std::memcpy(id.idiag_dst, &to->sin6_addr, sizeof to->sin6_addr);
  }
  const Fd kernel(::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (kernel.get() < 0 ||
      ::send(kernel.get(), &request, sizeof request, 0) != static_cast<ssize_t>(sizeof request)) {
    return std::nullopt;
  }
  alignas(nlmsghdr) char answer[4096];
  const ssize_t size = ::recv(kernel.get(), answer, sizeof answer, 0);
  const auto* head = reinterpret_cast<const nlmsghdr*>(answer);
  if (size < static_cast<ssize_t>(sizeof *head)) return std::nullopt;
  if (head->nlmsg_type == NLMSG_ERROR) {
    const auto* error = reinterpret_cast<const nlmsgerr*>(NLMSG_DATA(head));
    return error->error == -ENOENT ? std::optional<std::uint32_t>(0) : std::nullopt;
  }
  if (head->nlmsg_type != SOCK_DIAG_BY_FAMILY ||
      size < static_cast<ssize_t>(NLMSG_LENGTH(sizeof(inet_diag_msg)))) {
    return std::nullopt;
  }
  return reinterpret_cast<const inet_diag_msg*>(NLMSG_DATA(head))->idiag_inode;
}

// Has this process the socket open? nullopt: it does not let us look.
std::optional<bool> has_socket(pid_t pid, std::uint32_t inode) {
  const std::string folder = "/proc/" + std::to_string(pid) + "/fd";
  DIR* files = ::opendir(folder.c_str());
  if (files == nullptr) {
    if (errno == ENOENT || errno == ESRCH) return false;
    return std::nullopt;
  }
  bool found = false;
  while (const dirent* file = ::readdir(files)) {
    struct stat info{};
    if (file->d_name[0] == '.' || ::fstatat(::dirfd(files), file->d_name, &info, 0) != 0) continue;
    found = found || (S_ISSOCK(info.st_mode) && info.st_ino == inode);
  }
  ::closedir(files);
  return found;
}

}  // namespace

bool is_tool_on_socket(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return true;
  if (peer.pid <= 0) return false;  // outside of our view of processes, where ours always are
  const Fd handle(handle_of_peer(fd, peer.pid));
  if (handle.get() < 0) return true;
  const tools::Origin origin = tools::origin_of(peer.pid);
  return origin != tools::Origin::elsewhere || !still_lives(handle.get());
}

bool is_tool_on_loopback(int fd) {
  sockaddr_storage here{}, there{};
  socklen_t here_size = sizeof here, there_size = sizeof there;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&here), &here_size) != 0 ||
      ::getpeername(fd, reinterpret_cast<sockaddr*>(&there), &there_size) != 0) {
    return true;
  }
  const pid_t self = ::getpid();
  auto inode = inode_of(there, here);
  // A kernel that cannot look sockets up does not find our own either.
  if (inode && *inode == 0 && inode_of(here, there).value_or(0) == 0) inode.reset();
  if (inode && *inode == 0) return true;
  for (const tools::ProcessEntry& process : tools::running_descendants(self)) {
    if (tools::origin_of(process.pid) != tools::Origin::ours) continue;
    if (!inode) return true;
    // One that does not let us look could have it. A supervisor does not let us look either, and has no such socket.
    if (has_socket(process.pid, *inode).value_or(process.parent != self)) return true;
  }
  return false;
}

}  // namespace ae::app
