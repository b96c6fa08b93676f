// A file: its size, its time, or the SHA-256 of its bytes.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "core/hash.h"
#include "core/time.h"
#include "tools/verify/compare.h"
#include "tools/verify/local.h"
#include "tools/verify/parts.h"

namespace ae::tools {
namespace {

constexpr off_t kFileMax = off_t{4} << 30;  // bytes of a file whose digest is taken

enum class By : std::uint8_t { sha256, size, mtime };

// A descriptor that is closed.
class File {
 public:
  explicit File(const std::string& path)
      : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

Seen cannot(std::string_view why) { return {.unreachable = std::string(why), .value = {}}; }

Seen digest(const File& file, off_t size) {
  if (size > kFileMax) return cannot("it is longer than 4 GiB, the most that is read");
  Sha256 sum;
  std::vector<char> buffer(1u << 20);
  while (true) {
    const ssize_t n = ::read(file.fd(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return cannot(std::strerror(errno));
    if (n == 0) return {.unreachable = {}, .value = to_hex(sum.finish())};
    sum.add({buffer.data(), static_cast<std::size_t>(n)});
  }
}

Seen look_at(const std::string& path, By by) {
  const File file(path);
  if (file.fd() < 0) {
    if (errno == ENOENT || errno == ENOTDIR)
      return {.unreachable = {}, .absent = true, .value = {}};
    return cannot(std::strerror(errno));
  }
  struct stat info{};
  if (::fstat(file.fd(), &info) != 0) return cannot(std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return cannot("it is no regular file");
  if (by == By::size) return {.unreachable = {}, .value = std::to_string(info.st_size)};
  if (by == By::sha256) return digest(file, info.st_size);
  const Instant at{info.st_mtim.tv_sec * 1'000'000 + info.st_mtim.tv_nsec / 1'000};
  return {.unreachable = {}, .value = to_text(at)};
}

class FileVerifier final : public Verifier {
 public:
  FileVerifier(VerifierNeeds needs, Template path, By by)
      : needs_(std::move(needs)), path_(std::move(path)), by_(by) {}

  void look(Value change, async::Done<Sighting> done) override {
    auto path = filled(path_, change);
    const SameFn same = by_ == By::sha256 ? same_digest : by_ == By::mtime ? same_time : same_text;
    std::string at = path ? *path : std::string();
    if (path && !at.starts_with('/')) at.insert(0, needs_.folder + "/");
    const std::string why = path ? std::string() : path.error().message;
    needs_.reader.read(
        [change = std::move(change), at = std::move(at), why, by = by_, same]() {
          return compare(change, "version", why.empty() ? look_at(at, by) : cannot(why), same);
        },
        std::move(done));
  }

 private:
  VerifierNeeds needs_;
  Template path_;
  By by_;
};

}  // namespace

Result<std::unique_ptr<Verifier>> make_file_verifier(const Value& definition, VerifierNeeds needs) {
  AE_TRY(known_keys(definition, {"path", "by"}));
  AE_TRY(text_of(definition, "path"));
  AE_ASSIGN(Template path, template_of(definition, "path", "change"));
  const std::string_view by = definition.text("by", "sha256");
  if (by != "sha256" && by != "size" && by != "mtime") {
    return fail(Code::plan_invalid, "by: sha256, size or mtime");
  }
  return std::make_unique<FileVerifier>(std::move(needs), std::move(path),
                                        by == "size"    ? By::size
                                        : by == "mtime" ? By::mtime
                                                        : By::sha256);
}

}  // namespace ae::tools
