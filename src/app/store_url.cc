#include "app/store_url.h"

#include <algorithm>

#include "store/sqlite/files.h"

namespace ae::app {

namespace {

// postgres://user:password@host/…?password=…&… without both.
std::string without_password(std::string url) {
  const std::size_t begin = url.find("://") + 3;
  const std::size_t at = url.substr(0, url.find_first_of("/?", begin)).rfind('@');
  const std::size_t colon = url.find(':', begin);
  if (at != url.npos && at >= begin && colon < at) url.erase(colon, at - colon);
  std::size_t next = url.find('?');
  while (next != url.npos && next + 1 < url.size()) {
    const std::size_t end = std::min(url.find('&', next + 1), url.size());
    const std::string_view parameter = std::string_view(url).substr(next + 1, end - next - 1);
    if (parameter.starts_with("password=") || parameter.starts_with("sslpassword=")) {
      url.erase(next + 1, std::min(end + 1, url.size()) - next - 1);
    } else {
      next = end;
    }
  }
  while (url.ends_with('&') || url.ends_with('?')) url.pop_back();
  return url;
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == path.npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

std::string StoreUrl::text() const {
  switch (kind) {
    case Kind::memory:
      return "memory:";
    case Kind::postgres:
      return without_password(path);
    case Kind::sqlite:
      break;
  }
  return "sqlite:" + path;
}

std::string StoreUrl::folder() const { return folder_of(path); }

std::string StoreUrl::socket_path() const {
  return folder_of(store::sqlite::real_file(path)) + "/aetheris.sock";
}

std::string StoreUrl::second_socket_path() const {
  return store::sqlite::real_file(path) + ".sock";
}

Result<StoreUrl> store_url(std::string_view text) {
  if (text == "memory:") return StoreUrl{StoreUrl::Kind::memory, {}};
  if (text.starts_with("postgres://") || text.starts_with("postgresql://")) {
    if (text.find('\0') != text.npos) return fail(Code::usage, "--store has a NUL character");
    return StoreUrl{StoreUrl::Kind::postgres, std::string(text)};
  }
  if (text.starts_with("sqlite:")) {
    text.remove_prefix(7);
    if (text.starts_with("//")) text.remove_prefix(2);  // sqlite:///absolute/path
    if (text.empty() || text.ends_with('/') || text.find('\0') != text.npos) {
      return fail(Code::usage, "--store sqlite:PATH needs the path of a file");
    }
    return StoreUrl{StoreUrl::Kind::sqlite, std::string(text)};
  }
  return fail(Code::usage, "a store is sqlite:PATH, postgres://… or memory:, not \"" +
                               std::string(text.substr(0, 80)) + "\"");
}

}  // namespace ae::app
