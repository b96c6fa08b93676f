// The file verifier: size, modification time, or SHA-256 of the content.
#include <fcntl.h>
#include <fmt/core.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/time.h"
#include "log/field_names.h"
#include "tools/verify/compare.h"
#include "tools/verify/definition_fields.h"
#include "tools/verify/local_verifiers.h"

namespace ae::tools {
namespace {

constexpr off_t kFileMax = off_t{4} << 30;  // bytes of a file to hash

enum class By : std::uint8_t { sha256, size, mtime };

// Closes a descriptor.
class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

Observation digest(const File& file, off_t size) {
  if (size > kFileMax) return failed_observation("it is larger than 4 GiB, the limit");
  // Files in /proc report size 0 but have content.
  const off_t most = size > 0 ? size : kFileMax;
  off_t bytes_read = 0;
  Sha256 sum;
  std::vector<char> buffer(1u << 20);
  while (true) {
    const ssize_t n = ::read(file.fd(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed_observation(std::strerror(errno));
    if (n == 0) return {.unreachable = {}, .value = to_hex(sum.finish())};
    if ((bytes_read += n) > most) return failed_observation("it grew while it was read");
    sum.add({buffer.data(), static_cast<std::size_t>(n)});
  }
}

constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;

// Where a file with a recorded path may be.
struct PathScope {
  std::string folder;  // relative paths start here
  // Empty: any file.
  std::vector<std::string> allowed_folders = {};
  // Resolved paths or prefixes; only with `allowed_folders`.
  std::vector<std::string> denied_paths = {};
};

bool is_denied(std::string_view path, const PathScope& scope) {
  return std::ranges::any_of(scope.denied_paths,
                             [&](const std::string& one) { return path.starts_with(one); });
}

// By the current path of the open file, and by its inode: a denied file may have another name.
bool is_denied(const File& file, const struct stat& info, const PathScope& scope) {
  std::error_code error;
  const auto path =
      std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", file.fd()), error);
  if (error || is_denied(path.native(), scope)) return true;
  return std::ranges::any_of(scope.denied_paths, [&](const std::string& one) {
    struct stat other{};
    return ::stat(one.c_str(), &other) == 0 && other.st_dev == info.st_dev &&
           other.st_ino == info.st_ino;
  });
}

// A path that leaves the folder, by `..` or a symbolic link, is not opened: EXDEV.
int open_below(const std::string& folder, const std::string& path) {
  const auto relative = std::filesystem::path(path).lexically_relative(folder);
  if (relative.empty() || relative.native().starts_with("..")) {
    errno = EXDEV;
    return -1;
  }
  const int at = ::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (at < 0) return -1;
  open_how options{};
  options.flags = kFlags;
  options.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  const long fd = ::syscall(SYS_openat2, at, relative.c_str(), &options, sizeof options);
  const int error = errno;
  ::close(at);
  errno = error;
  return static_cast<int>(fd);
}

int open_file(const std::string& path, const PathScope& scope) {
  const std::string full_path =
      (std::filesystem::path(scope.folder) / path).lexically_normal().string();
  if (scope.allowed_folders.empty()) return ::open(full_path.c_str(), kFlags);
  if (is_denied(full_path, scope)) {
    errno = EACCES;
    return -1;
  }
  for (const std::string& folder : scope.allowed_folders) {
    const int fd = open_below(folder, full_path);
    if (fd >= 0 || errno != EXDEV) return fd;
  }
  return -1;
}

Observation read_file_state(const std::string& path, const PathScope& scope, By by) {
  const File file(open_file(path, scope));
  if (file.fd() < 0) {
    if (errno == ENOENT || errno == ENOTDIR)
      return {.unreachable = {}, .absent = true, .value = {}};
    if (errno == EXDEV) {
      return failed_observation(
          "the recorded path is outside the folders that `verify` may read: add its folder to "
          "`below`");
    }
    return failed_observation(std::strerror(errno));
  }
  struct stat info{};
  if (::fstat(file.fd(), &info) != 0) return failed_observation(std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return failed_observation("it is not a regular file");
  if (!scope.allowed_folders.empty() && is_denied(file, info, scope))
    return failed_observation(std::strerror(EACCES));
  if (by == By::size) return {.unreachable = {}, .value = std::to_string(info.st_size)};
  if (by == By::sha256) return digest(file, info.st_size);
  const Instant at{info.st_mtim.tv_sec * 1'000'000 + info.st_mtim.tv_nsec / 1'000};
  return {.unreachable = {}, .value = to_text(at)};
}

class FileVerifier final : public Verifier {
 public:
  FileVerifier(VerifierDependencies deps, Template path, By by, PathScope scope)
      : deps_(std::move(deps)), path_(std::move(path)), by_(by), scope_(std::move(scope)) {}

  void check(Value change, async::Done<CheckResult> done) override {
    auto path = render_text(path_, change);
    const SameFn same = by_ == By::sha256 ? same_digest : by_ == By::mtime ? same_time : same_text;
    const std::string at = path ? *path : std::string();
    const std::string why = path ? std::string() : path.error().message;
    deps_.reader.read(
        [change = std::move(change), at, why, by = by_, scope = scope_, same]() {
          return compare(change, field::version,
                         why.empty() ? read_file_state(at, scope, by) : failed_observation(why),
                         same);
        },
        std::move(done));
  }

 private:
  VerifierDependencies deps_;
  Template path_;
  By by_;
  PathScope scope_;
};

std::string absolute(const std::string& path, const std::string& folder) {
  std::error_code error;
  const auto full_path = std::filesystem::absolute(std::filesystem::path(folder) / path, error);
  std::string text = full_path.lexically_normal().string();
  if (text.size() > 1 && text.ends_with('/')) text.pop_back();
  return text;
}

// A literal path may name any file. A path that contains recorded data must be below one of the
// folders of `below`, or below the folder of the agents file.
Result<PathScope> scope_of(const Value& definition, const Template& path,
                           const std::string& folder) {
  PathScope scope{.folder = absolute("", folder)};
  const Value& below = definition["below"];
  if (!below.is_null() && !below.is_array()) {
    return fail(Code::plan_invalid, "below: a list of folders");
  }
  for (const Value& one : below.is_array() ? below.items() : std::span<const Value>()) {
    if (!one.is_string() || one.as_string().empty()) {
      return fail(Code::plan_invalid, "below: a list of folders");
    }
    scope.allowed_folders.push_back(absolute(one.as_string(), folder));
  }
  if (scope.allowed_folders.empty() && !path.is_constant())
    scope.allowed_folders.push_back(scope.folder);
  return scope;
}

}  // namespace

Result<std::unique_ptr<Verifier>> make_file_verifier(const Value& definition,
                                                     VerifierDependencies deps) {
  AE_TRY(check_known_keys(definition, {"path", field::by, "below"}));
  AE_TRY(text_of(definition, "path"));
  AE_ASSIGN(Template path, template_of(definition, "path", "change"));
  const std::string_view by = definition.text(field::by, "sha256");
  if (by != "sha256" && by != "size" && by != "mtime") {
    return fail(Code::plan_invalid, "by: sha256, size or mtime");
  }
  AE_ASSIGN(PathScope scope, scope_of(definition, path, deps.folder));
  scope.denied_paths = deps.denied_paths;
  const By kind = by == "size" ? By::size : by == "mtime" ? By::mtime : By::sha256;
  return std::make_unique<FileVerifier>(std::move(deps), std::move(path), kind, std::move(scope));
}

}  // namespace ae::tools
