// Reads keys from files.
#include "app/key_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace ae::app {
namespace {

constexpr std::size_t kKeyFileMax = 256u << 10;  // certificate chains are long

enum class Readers { anybody, group, owner };

Result<std::string> read_key_file(const std::string& path, Readers readers,
                                  const std::string& what = "signing key") {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0)
    return fail(Code::usage, "cannot read the {} {}: {}", what, path, std::strerror(errno));
  struct stat found{};
  const mode_t others = readers == Readers::group ? 007 : 077;
  const bool open_to_others = ::fstat(file, &found) != 0 || (found.st_mode & others) != 0;
  std::string text(kKeyFileMax, '\0');
  const ssize_t size = ::read(file, text.data(), text.size());
  const int error = errno;
  ::close(file);
  if (readers != Readers::anybody && open_to_others) {
    return fail(Code::usage,
                "other users may read the {0} {1}: run `chmod 600 {1}`, or "
                "create a new one if they have read it",
                what, path);
  }
  if (size < 0) {
    return fail(Code::usage, "cannot read the {} {}: {}", what, path, std::strerror(error));
  }
  text.resize(static_cast<std::size_t>(size));
  return text;
}

}  // namespace

Result<std::string> read_private_file(const std::string& path, const std::string& what) {
  AE_ASSIGN(std::string text, read_key_file(path, Readers::owner, what));
  const std::size_t end = text.find_last_not_of(" \t\r\n");
  text.resize(end == text.npos ? 0 : end + 1);
  return text.substr(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
}

Result<std::shared_ptr<net::TlsIdentity>> read_tls_identity(const TlsFiles& files) {
  AE_ASSIGN(const std::string certificate,
            read_key_file(files.certificate, Readers::anybody, "TLS certificate"));
  AE_ASSIGN(const std::string key, read_key_file(files.key, Readers::group, "TLS key"));
  auto identity = net::TlsIdentity::make(certificate, key);
  if (identity) return identity;
  const bool of_key = identity.error().message.starts_with("the key");
  return std::unexpected(
      std::move(identity).error().with_context(of_key ? files.key : files.certificate));
}

Result<SigningKey> read_signing_key(const std::string& path) {
  AE_ASSIGN(const std::string pem, read_key_file(path, Readers::owner));
  auto key = SigningKey::from_pem(pem);
  if (!key) return fail(Code::usage, "{}: {}", path, key.error().message);
  return key;
}

Result<PublicKey> read_public_key(const std::string& text) {
  if (auto digits = public_key_from_text(text)) return digits;
  AE_ASSIGN(const std::string file, read_key_file(text, Readers::anybody, "key"));
  auto key = public_key_from_text(file);
  if (!key) return fail(Code::usage, "{}: {}", text, key.error().message);
  return key;
}

}  // namespace ae::app
