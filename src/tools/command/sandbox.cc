// Sandbox by Landlock system calls, namespaces and resource limits.
#include "tools/command/sandbox.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <linux/capability.h>
#include <linux/securebits.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <span>
#include <string_view>

#include "base/time.h"

namespace ae::tools {
namespace {

// From linux/landlock.h, which is older than the running kernel on many machines.
constexpr long kCreateRuleset = 444, kAddRule = 445, kRestrictSelf = 446;
constexpr unsigned kLandlockVersion = 1, kPathBeneath = 1;
constexpr std::uint64_t kExecute = 1, kWriteFile = 1 << 1, kReadFile = 1 << 2, kReadDir = 1 << 3,
                        kMakeBlock = 1 << 11, kRefer = 1 << 13, kTruncate = 1 << 14,
                        kIoctlDev = 1 << 15;
constexpr std::uint64_t kAllOfAbi3 = (1 << 15) - 1;  // including refer and truncate
constexpr int kLandlockForIoctl = 5;
constexpr std::uint64_t kScopeSignal = 1 << 1;
constexpr std::uint64_t kReadAccess = kExecute | kReadFile | kReadDir;
constexpr std::uint64_t kFileAccess = kExecute | kWriteFile | kReadFile | kTruncate | kIoctlDev;
struct RulesetAttributes {
  std::uint64_t files = 0, network = 0, scoped = 0;
};
struct [[gnu::packed]] PathBeneath {
  std::uint64_t allowed = 0;
  std::int32_t fd = -1;
};

// Paths that every program needs. `denied_paths` applies here too.
constexpr const char* kSystemReads[] = {"/usr",
                                        "/bin",
                                        "/sbin",
                                        "/lib",
                                        "/lib32",
                                        "/lib64",
                                        "/etc",
                                        "/proc",
                                        "/opt",
                                        "/nix",
                                        "/run/systemd/resolve"};
constexpr const char* kSystemDevices[] = {"/dev/null",   "/dev/zero",    "/dev/full",
                                          "/dev/random", "/dev/urandom", "/dev/tty"};

std::unexpected<Error> bad(const std::string& message) {
  return fail(Code::plan_invalid, "sandbox{}", message);
}

bool is_below(std::string_view path, std::string_view folder) {
  if (folder == "/") return true;
  return path.starts_with(folder) && (path.size() == folder.size() || path[folder.size()] == '/');
}

bool is_denied(const Sandbox& sandbox, std::string_view path) {
  return std::ranges::any_of(sandbox.denied_paths,
                             [&](const std::string& c) { return path.starts_with(c); });
}

bool contains_denied(const Sandbox& sandbox, const std::string& path) {
  return std::ranges::any_of(sandbox.denied_paths,
                             [&](const std::string& c) { return is_below(c, path); });
}

// ---- Landlock

class Ruleset {
 public:
  explicit Ruleset(const RulesetAttributes& attributes) : handled_(attributes.files) {
    // An older kernel knows fewer members, and accepts the others if they are 0.
    fd_ = static_cast<int>(::syscall(kCreateRuleset, &attributes, sizeof attributes, 0));
  }
  ~Ruleset() {
    if (fd_ >= 0) ::close(fd_);
  }
  Ruleset(const Ruleset&) = delete;
  Ruleset& operator=(const Ruleset&) = delete;
  bool ok() const { return fd_ >= 0; }

  // A path that does not exist, or that we cannot open, is skipped.
  bool allow(const std::string& path, std::uint64_t access) {
    const int fd = ::open(path.c_str(), O_PATH | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT || errno == ENOTDIR || errno == EACCES;
    struct stat info{};
    bool done = ::fstat(fd, &info) == 0;
    access &= handled_ & (S_ISDIR(info.st_mode) ? ~std::uint64_t{0} : kFileAccess);
    const PathBeneath rule{.allowed = access, .fd = fd};
    done = done && ::syscall(kAddRule, fd_, kPathBeneath, &rule, 0) == 0;
    const int error = errno;
    ::close(fd);
    errno = error;
    return done;
  }
  bool restrict_self() { return ::syscall(kRestrictSelf, fd_, 0) == 0; }

 private:
  std::uint64_t handled_;
  int fd_ = -1;
};

// Allows everything below `path` except denied paths. A folder that contains a denied path is
// expanded: its current entries are allowed one by one.
bool allow_below(Ruleset& rules, const Sandbox& sandbox, const std::string& path,
                 std::uint64_t access) {
  if (is_denied(sandbox, path)) return true;
  if (!contains_denied(sandbox, path)) return rules.allow(path, access);
  DIR* folder = ::opendir(path.c_str());
  if (folder == nullptr) return true;
  bool done = true;
  while (const dirent* entry = ::readdir(folder)) {
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    const std::string below = fmt::format("{}/{}", path == "/" ? "" : path, name);
    struct stat info{};
    // Symbolic links are skipped: the target may be denied.
    if (::lstat(below.c_str(), &info) != 0 || S_ISLNK(info.st_mode)) continue;
    done = done && allow_below(rules, sandbox, below, access);
  }
  ::closedir(folder);
  return done;
}

int enter_landlock(const Sandbox& sandbox, const std::string& program, int abi) {
  RulesetAttributes attributes;
  if (abi >= kLandlockForSignals && !sandbox.none) attributes.scoped = kScopeSignal;
  if (sandbox.files) {
    attributes.files = kAllOfAbi3 | (abi >= kLandlockForIoctl ? kIoctlDev : 0);
  }
  // Every Landlock domain prevents ptrace of processes outside. Without signal scoping we need a
  // domain that handles some access: creating block devices, which no program can do (CAP_MKNOD),
  // and refer (links and renames between folders), which a domain that handles files would deny by
  // default and which is allowed again below.
  const bool only_tracing = attributes.files == 0 && attributes.scoped == 0 && !sandbox.none &&
                            abi >= kLandlockForTracing;
  if (only_tracing) attributes.files = kMakeBlock | kRefer;
  if (attributes.files == 0 && attributes.scoped == 0) return 0;
  Ruleset rules(attributes);
  if (!rules.ok()) return errno;
  if (only_tracing && !rules.allow("/", attributes.files)) return errno;
  if (sandbox.files) {
    bool done = rules.allow(program, kExecute | kReadFile);
    for (const char* path : kSystemReads)
      done = done && allow_below(rules, sandbox, path, kReadAccess);
    for (const char* path : kSystemDevices) {
      done = done && rules.allow(path, kReadFile | kWriteFile | kIoctlDev);
    }
    for (const std::string& path : sandbox.read) {
      done = done && allow_below(rules, sandbox, path, kReadAccess);
    }
    for (const std::string& path : sandbox.write) {
      done = done && rules.allow(path, attributes.files);
    }
    if (!done) return errno;
  }
  return rules.restrict_self() ? 0 : errno;
}

// ---- namespaces

bool write_file(const char* path, const std::string& text) {
  const int fd = ::open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool done = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int error = errno;
  ::close(fd);
  errno = error;
  return done;
}

// A user namespace that maps our user to itself and grants no additional rights.
int enter_user_namespace(int more) {
  const std::string users = fmt::format("{0} {0} 1", ::geteuid());
  const std::string groups = fmt::format("{0} {0} 1", ::getegid());
  if (::unshare(CLONE_NEWUSER | more) != 0) return errno;
  // The maps belong to root unless the process is dumpable. At this point its memory holds only
  // data of this program.
  const int was = ::prctl(PR_GET_DUMPABLE, 0, 0, 0, 0);
  ::prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
  const bool mapped = write_file("/proc/self/setgroups", "deny") &&
                      write_file("/proc/self/uid_map", users) &&
                      write_file("/proc/self/gid_map", groups);
  const int error = mapped ? 0 : errno;
  ::prctl(PR_SET_DUMPABLE, was, 0, 0, 0);
  if (error != 0) return error;
  const unsigned long bits = SECBIT_NOROOT | SECBIT_NOROOT_LOCKED;
  return ::prctl(PR_SET_SECUREBITS, bits, 0, 0, 0) == 0 ? 0 : errno;
}

int enter_namespaces(const Sandbox& sandbox) {
  const bool counts = sandbox.processes > 0;
  if (!sandbox.network && !counts && ::unshare(CLONE_NEWNET) == 0) return 0;
  if (sandbox.network && !counts) return 0;
  return enter_user_namespace(sandbox.network ? 0 : CLONE_NEWNET);
}

template <class Try>
bool succeeds_in_child(Try attempt) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(attempt() ? 0 : 1);
  int status = -1;
  while (child > 0 && ::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return child > 0 && status == 0;
}

SandboxSupport probe_support() {
  SandboxSupport found;
  const long abi = ::syscall(kCreateRuleset, nullptr, 0, kLandlockVersion);
  found.landlock = abi > 0 ? static_cast<int>(abi) : 0;
  found.user_namespaces = succeeds_in_child([] { return enter_user_namespace(0) == 0; });
  found.network_namespaces =
      succeeds_in_child([] { return enter_namespaces({.network = false}) == 0; });
  return found;
}

// ---- capabilities

constexpr std::uint64_t bit(int capability) { return std::uint64_t{1} << capability; }

// The capabilities that a program keeps under root or a server with capabilities: file access, low
// ports, signals to other users, changing the user. None of them can read other processes or change
// the machine.
constexpr std::uint64_t kKeptCapabilities =
    bit(CAP_CHOWN) | bit(CAP_DAC_OVERRIDE) | bit(CAP_FOWNER) | bit(CAP_FSETID) | bit(CAP_KILL) |
    bit(CAP_SETGID) | bit(CAP_SETUID) | bit(CAP_NET_BIND_SERVICE);

// REQUIRES: no_new_privs, so that execve restores nothing, even if the bounding set cannot be
// changed.
int drop_capabilities() {
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3] = {};
  if (::syscall(SYS_capget, &header, sets) != 0) return errno;
  std::uint32_t dropped = 0;
  for (int i = 0; i < _LINUX_CAPABILITY_U32S_3; ++i) {
    const auto kept = static_cast<std::uint32_t>(kKeptCapabilities >> (32 * i));
    for (std::uint32_t* set : {&sets[i].effective, &sets[i].permitted, &sets[i].inheritable}) {
      dropped |= *set & ~kept;
      *set &= kept;
    }
  }
  if (dropped == 0) return 0;
  for (int c = 0; ::prctl(PR_CAPBSET_READ, c, 0, 0, 0) >= 0; ++c) {
    if ((kKeptCapabilities & bit(c)) == 0) ::prctl(PR_CAPBSET_DROP, c, 0, 0, 0);
  }
  return ::syscall(SYS_capset, &header, sets) == 0 ? 0 : errno;
}

// ---- limits

bool limit(int which, std::uint64_t most) {
  if (most == 0) return true;
  rlimit now{};
  if (::getrlimit(static_cast<__rlimit_resource_t>(which), &now) != 0) return false;
  const rlim_t value = std::min<rlim_t>(most, now.rlim_max);
  now = {value, value};
  return ::setrlimit(static_cast<__rlimit_resource_t>(which), &now) == 0;
}

// ---- reading

Result<std::vector<std::string>> paths(const Value& list, const char* key,
                                       const std::string& folder) {
  std::vector<std::string> found;
  if (list.is_null()) return found;
  if (!list.is_array()) return bad(fmt::format(".{}: must be a list of paths", key));
  for (const Value& one : list.items()) {
    if (!one.is_string() || one.as_string().empty())
      return bad(fmt::format(".{}: must be a list of paths", key));
    std::error_code error;
    const auto whole =
        std::filesystem::absolute(std::filesystem::path(folder) / one.as_string(), error);
    // The kernel checks the target of a path, so symbolic links are resolved here too.
    std::string path = std::filesystem::weakly_canonical(whole, error).string();
    if (error || !std::filesystem::exists(path, error)) {
      return bad(fmt::format(".{}: {} is not there", key, whole.lexically_normal().string()));
    }
    if (path.size() > 1 && path.ends_with('/')) path.pop_back();
    found.push_back(std::move(path));
  }
  return found;
}

Result<std::uint64_t> number(const Value& value, const char* key) {
  if (value.is_null()) return 0;
  if (!value.is_integer() || value.as_int() < 1)
    return bad(fmt::format(".{}: must be at least 1", key));
  return static_cast<std::uint64_t>(value.as_int());
}

Status check_supported(const Sandbox& sandbox) {
  const SandboxSupport& support = sandbox_support();
  const auto cannot = [](const std::string& why) {
    return fail(Code::unsupported, Action{.act = act::kSandbox}, "sandbox{}", why);
  };
  if (sandbox.files && support.landlock < kLandlockForFiles) {
    const std::string found =
        support.landlock == 0 ? "not" : fmt::format("ABI {}", support.landlock);
    return cannot(
        fmt::format(".read: this kernel cannot restrict file access: it has Landlock {}, "
                    "and ABI 3 (Linux 6.2) is needed",
                    found));
  }
  if (!sandbox.network && !support.network_namespaces) {
    return cannot(".network: this process may not create a network namespace here");
  }
  if (sandbox.processes > 0 && !support.user_namespaces) {
    return cannot(".processes: this process may not create a user namespace here");
  }
  if (sandbox.processes > 0 && ::geteuid() == 0) {
    return cannot(
        ".processes: the kernel does not limit the processes of root: run as another user");
  }
  return {};
}

}  // namespace

const SandboxSupport& sandbox_support() {
  static const SandboxSupport found = probe_support();
  return found;
}

Result<Sandbox> read_sandbox(const Value& definition, const std::string& folder) {
  Sandbox sandbox;
  if (definition.is_null()) return sandbox;
  if (definition == Value("none")) {
    sandbox.none = true;
    return sandbox;
  }
  if (!definition.is_object()) return bad(": must be none or a mapping");
  sandbox.files = definition.find("read") != nullptr || definition.find("write") != nullptr;
  AE_ASSIGN(sandbox.read, paths(definition["read"], "read", folder));
  AE_ASSIGN(sandbox.write, paths(definition["write"], "write", folder));
  const std::string_view network = definition.text("network", "host");
  if (network != "host" && network != "none") return bad(".network: must be none or host");
  sandbox.network = network == "host";
  AE_ASSIGN(sandbox.memory, number(definition["memory"], "memory"));
  AE_ASSIGN(sandbox.processes, number(definition["processes"], "processes"));
  AE_ASSIGN(sandbox.file_size, number(definition["file_size"], "file_size"));
  AE_ASSIGN(sandbox.open_files, number(definition["open_files"], "open_files"));
  if (const Value* cpu = definition.find("cpu")) {
    auto span = duration_from_text(cpu->is_string() ? cpu->as_string() : "");
    if (!span || *span < std::chrono::seconds(1))
      return bad(".cpu: must be a duration of 1s or more");
    sandbox.cpu_seconds =
        static_cast<std::uint64_t>(std::chrono::ceil<std::chrono::seconds>(*span).count());
  }
  AE_TRY(check_supported(sandbox));
  return sandbox;
}

Status check_denied_paths(const Sandbox& sandbox, const std::vector<std::string>& denied_paths) {
  for (const std::string& path : sandbox.read) {
    for (const std::string& one : denied_paths) {
      if (!path.starts_with(one)) continue;
      return bad(
          fmt::format(".read: {} belongs to the runtime and is not accessible to tools", path));
    }
  }
  for (const std::string& path : sandbox.write) {
    for (const std::string& one : denied_paths) {
      if (path.starts_with(one)) {
        return bad(
            fmt::format(".write: {} belongs to the runtime and is not accessible to tools", path));
      }
      if (!is_below(one, path)) continue;
      return bad(
          fmt::format(".write: {} holds {}, which belongs to the runtime: list other "
                      "folders, or move it",
                      path, one));
    }
  }
  return {};
}

int enter_sandbox(const Sandbox& sandbox, const std::string& program,
                  const SandboxSupport& support) {
  if (const int error = enter_namespaces(sandbox); error != 0) return error;
  if (!limit(RLIMIT_AS, sandbox.memory) || !limit(RLIMIT_FSIZE, sandbox.file_size) ||
      !limit(RLIMIT_NOFILE, sandbox.open_files) || !limit(RLIMIT_CPU, sandbox.cpu_seconds) ||
      !limit(RLIMIT_NPROC, sandbox.processes)) {
    return errno;
  }
  if (const int error = enter_landlock(sandbox, program, support.landlock); error != 0)
    return error;
  return drop_capabilities();
}

}  // namespace ae::tools
