#include "app/archive_folder.h"

#include "app/fd.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace ae::app {
namespace {

std::unexpected<Error> failed(const std::string& path, int error) {
  return fail(Code::unavailable, "{}: {}", path, std::strerror(error));
}

Status sync_folder(const std::string& path) {
  const Fd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() < 0 || ::fsync(folder.get()) != 0) return failed(path, errno);
  return {};
}

Status write_all(int fd, const std::string& path, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failed(path, errno);
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

// Compares the file's content with `wanted`; one byte more is read to detect a longer file.
Result<bool> has_content(int fd, const std::string& path, std::string_view wanted) {
  std::string found(wanted.size() + 1, '\0');
  std::size_t size = 0;
  while (size < found.size()) {
    const ssize_t got = ::read(fd, found.data() + size, found.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failed(path, errno);
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  return std::string_view(found).substr(0, size) == wanted;
}

// The file is from a run that died before the deletion, or of another job.
Status compare(const std::string& path, const std::string& bytes) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (file.get() < 0) return failed(path, errno);
  AE_ASSIGN(const bool same, has_content(file.get(), path, bytes));
  if (!same) {
    return fail(Code::already_exists,
                "{} is there and holds something else: nothing of this job was "
                "deleted; move the file away, or give another folder",
                path);
  }
  if (::fsync(file.get()) != 0) return failed(path, errno);
  return {};
}

Status put(const std::string& folder, const runtime::Archive::File& file) {
  const std::string path = fmt::format("{}/{}", folder, file.name);
  const std::string part = fmt::format("{}/.{}.{}.part", folder, file.name, ::getpid());
  ::unlink(part.c_str());
  {
    const Fd fd(::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (fd.get() < 0) return failed(part, errno);
    Status written = write_all(fd.get(), part, file.bytes);
    if (written && ::fsync(fd.get()) != 0) written = failed(part, errno);
    if (!written) {
      ::unlink(part.c_str());
      return written;
    }
  }
  const int linked = ::link(part.c_str(), path.c_str()) == 0 ? 0 : errno;
  ::unlink(part.c_str());
  if (linked == EEXIST) return compare(path, file.bytes);
  if (linked != 0) return failed(path, linked);
  return {};
}

Status put_all(const std::string& folder, const std::vector<runtime::Archive::File>& files) {
  for (const runtime::Archive::File& file : files) AE_TRY(put(folder, file));
  return sync_folder(folder);
}

}  // namespace

Result<std::unique_ptr<ArchiveFolder>> ArchiveFolder::open(async::Loop& loop, std::string folder) {
  while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
  if (!folder.starts_with('/')) {
    return fail(Code::usage, "\"archive\" is the absolute path of a folder, not \"{}\"",
                folder.substr(0, 80));
  }
  if (::mkdir(folder.c_str(), 0700) == 0) {
    const std::size_t slash = folder.rfind('/');
    AE_TRY(sync_folder(slash == 0 ? "/" : folder.substr(0, slash)));
  } else if (errno != EEXIST) {
    return failed(fmt::format("cannot make the archive {}", folder), errno);
  }
  AE_TRY(sync_folder(folder));  // fails if it is not a folder; write access is not checked
  return std::make_unique<ArchiveFolder>(loop, std::move(folder));
}

ArchiveFolder::~ArchiveFolder() {
  if (thread_.joinable()) thread_.join();
}

void ArchiveFolder::put_files(std::vector<File> files, async::Done<Status> done) {
  if (thread_.joinable()) thread_.join();
  thread_ = std::thread([this, files = std::move(files), done = std::move(done)]() mutable {
    loop_.post([done = std::move(done), kept = put_all(folder_, files)]() mutable {
      done(std::move(kept));
    });
  });
}

}  // namespace ae::app
