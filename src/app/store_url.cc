#include "app/store_url.h"

namespace ae::app {

std::string StoreUrl::text() const { return kind == Kind::memory ? "memory:" : "sqlite:" + path; }

std::string StoreUrl::folder() const {
  const std::size_t slash = path.rfind('/');
  if (slash == path.npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

Result<StoreUrl> store_url(std::string_view text) {
  if (text == "memory:") return StoreUrl{StoreUrl::Kind::memory, {}};
  if (text.starts_with("postgres:") || text.starts_with("postgresql:")) {
    return fail(Code::unsupported,
                "PostgreSQL stores come with a later version of Aetheris; use sqlite:PATH");
  }
  if (text.starts_with("sqlite:")) {
    text.remove_prefix(7);
    if (text.starts_with("//")) text.remove_prefix(2);  // sqlite:///absolute/path
    if (text.empty() || text.ends_with('/') || text.find('\0') != text.npos) {
      return fail(Code::usage, "--store sqlite:PATH needs the path of a file");
    }
    return StoreUrl{StoreUrl::Kind::sqlite, std::string(text)};
  }
  return fail(Code::usage,
              "a store is sqlite:PATH or memory:, not \"" + std::string(text.substr(0, 80)) + "\"");
}

}  // namespace ae::app
