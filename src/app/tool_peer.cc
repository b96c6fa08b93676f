#include "app/tool_peer.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fmt/core.h>
#include <linux/inet_diag.h>
#include <linux/kcmp.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/fd.h"
#include "tools/command/proc.h"

extern "C" {
#include <sys/pidfd.h>  // glibc 2.36 does not declare its functions as C
}

namespace ae::app {
namespace {

constexpr int kSoPeerPidFd = 77;  // SO_PEERPIDFD, Linux 6.5

// A handle of the connecting process; if the kernel has none, of the current process with its pid.
int handle_of_peer(int fd, pid_t pid) {
  int handle = -1;
  socklen_t size = sizeof handle;
  if (::getsockopt(fd, SOL_SOCKET, kSoPeerPidFd, &handle, &size) == 0) return handle;
  return errno == ENOPROTOOPT ? ::pidfd_open(pid, 0) : -1;
}

bool is_alive(int handle) {
  pollfd ended{handle, POLLIN, 0};
  return ::poll(&ended, 1, 0) == 0;
}

struct PeerSocket {
  std::uint32_t inode = 0;  // 0: no process has it open any more
  uid_t uid = 0;            // of its creator
};

// The socket from `source` to `target`; nullopt if there is none, or the kernel cannot look it up.
std::optional<PeerSocket> socket_between(const sockaddr_storage& source,
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
  if (head->nlmsg_type != SOCK_DIAG_BY_FAMILY ||
      size < static_cast<ssize_t>(NLMSG_LENGTH(sizeof(inet_diag_msg)))) {
    return std::nullopt;
  }
  const auto* found = reinterpret_cast<const inet_diag_msg*>(NLMSG_DATA(head));
  return PeerSocket{.inode = found->idiag_inode, .uid = found->idiag_uid};
}

// Is the socket among these open files? nullopt: they are not readable.
std::optional<bool> lists_socket(const std::string& folder, std::uint32_t inode) {
  DIR* files = ::opendir(folder.c_str());
  if (files == nullptr) {
    if (errno == ENOENT || errno == ESRCH) return false;
    return std::nullopt;
  }
  bool found = false;
  while (const dirent* file = found ? nullptr : ::readdir(files)) {
    struct stat info{};
    if (file->d_name[0] == '.' || ::fstatat(::dirfd(files), file->d_name, &info, 0) != 0) continue;
    found = S_ISSOCK(info.st_mode) && info.st_ino == inode;
  }
  ::closedir(files);
  return found;
}

std::string folder_of(pid_t pid) { return fmt::format("/proc/{}", pid); }

std::optional<bool> main_thread_lists(const tools::ProcessEntry& process, std::uint32_t inode) {
  return lists_socket(folder_of(process.pid) + "/fd", inode);
}

// A thread may have its own open files (unshare(CLONE_FILES)) and outlive the main thread.
std::optional<bool> other_threads_list(const tools::ProcessEntry& process, std::uint32_t inode) {
  if (process.threads <= 1) return false;
  const std::string folder = folder_of(process.pid) + "/task";
  DIR* threads = ::opendir(folder.c_str());
  if (threads == nullptr) return false;
  std::optional<bool> found = false;
  while (const dirent* thread = found == true ? nullptr : ::readdir(threads)) {
    pid_t id = 0;
    const std::string_view name = thread->d_name;
    std::from_chars(name.data(), name.data() + name.size(), id);
    // Threads that share the files of the main thread are skipped.
    if (id <= 0 || id == process.pid ||
        ::syscall(SYS_kcmp, process.pid, id, KCMP_FILES, 0, 0) == 0) {
      continue;
    }
    const auto listed = lists_socket(fmt::format("{}/{}/fd", folder, thread->d_name), inode);
    if (listed != false) found = listed;
  }
  ::closedir(threads);
  return found;
}

// Does a tool's program have the socket?
bool is_socket_of_tool(const std::vector<tools::ProcessEntry>& processes, std::uint32_t inode) {
  const pid_t self = ::getpid();
  std::set<pid_t> below_us;
  for (const tools::ProcessEntry& process : tools::running_descendants(self, processes)) {
    below_us.insert(process.pid);
  }
  return std::ranges::any_of(
      tools::filter_tool_processes(processes), [&](const tools::ProcessEntry& tool) {
        // A descendant of ours with unreadable files could have it. A supervisor is unreadable too,
        // but has no such socket.
        const bool unreadable_counts = below_us.contains(tool.pid) && tool.parent != self;
        return main_thread_lists(tool, inode).value_or(unreadable_counts) ||
               other_threads_list(tool, inode).value_or(unreadable_counts);
      });
}

// Does a process that no tool started have the socket? Checks the youngest first: a command has
// just started.
bool is_socket_of_other_program(std::vector<tools::ProcessEntry> processes, std::uint32_t inode) {
  std::ranges::sort(processes, std::ranges::greater(), &tools::ProcessEntry::start);
  for (const auto has : {main_thread_lists, other_threads_list}) {
    for (const tools::ProcessEntry& process : processes) {
      if (has(process, inode) != true) continue;
      if (tools::origin_of(process.pid) != tools::Origin::elsewhere) continue;
      const auto now = tools::process_entry(process.pid);
      if (now && now->start == process.start) return true;  // the pid was not reused meanwhile
    }
  }
  return false;
}

}  // namespace

bool is_tool_on_socket(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return true;
  // Outside of our pid namespace; our own tools are always inside.
  if (peer.pid <= 0) return false;
  const Fd handle(handle_of_peer(fd, peer.pid));
  if (handle.get() < 0) return true;
  const tools::Origin origin = tools::origin_of(peer.pid);
  return origin != tools::Origin::elsewhere || !is_alive(handle.get());
}

bool is_tool_on_loopback(int fd) {
  sockaddr_storage local{}, peer{};
  socklen_t local_size = sizeof local, peer_size = sizeof peer;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&local), &local_size) != 0 ||
      ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_size) != 0) {
    return true;
  }
  const auto socket = socket_between(peer, local);
  if (!socket || socket->inode == 0) return true;
  std::vector<tools::ProcessEntry> processes = tools::all_processes();
  if (is_socket_of_tool(processes, socket->inode)) return true;
  // A tool can hide its socket: in a message between two other sockets, or in an io_uring.
  return socket->uid == ::geteuid() &&
         !is_socket_of_other_program(std::move(processes), socket->inode);
}

}  // namespace ae::app
