#include "app/store_url.h"

#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <utility>

#include "store/sqlite/files.h"

namespace ae::app {

namespace {

// postgres://user:password@host/…?password=…&… without both passwords.
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

constexpr std::string_view kFolder = ".aetheris";
constexpr std::string_view kFile = "aetheris.db";

// Checks the file and the target of a symbolic link. Fails with forbidden.
Status check_owner(const std::string& path, const std::string& store) {
  for (const auto stat_call : {::lstat, ::stat}) {
    struct stat found{};
    if (stat_call(path.c_str(), &found) != 0 || found.st_uid == ::geteuid()) continue;
    return fail(Code::forbidden,
                "{} belongs to another user (uid {}); to use it "
                "anyway: --store sqlite:{}",
                path, found.st_uid, store);
  }
  return {};
}

// The store in the folder `.aetheris` of `folder`; nullopt: there is no such folder.
Result<std::optional<std::string>> find_store_in(const std::string& folder) {
  const std::string own = folder + (folder.ends_with('/') ? "" : "/") + std::string(kFolder);
  struct stat found{};
  if (::stat(own.c_str(), &found) != 0 || !S_ISDIR(found.st_mode)) return std::nullopt;
  std::string file = fmt::format("{}/{}", own, kFile);
  AE_TRY(check_owner(own, file));
  AE_TRY(check_owner(file, file));
  return file;
}

// May a search that started in `start` continue in this folder?
bool is_searched(const struct stat& folder, const struct stat& start) {
  if (folder.st_dev != start.st_dev) return false;
  if ((folder.st_mode & S_ISVTX) != 0 && (folder.st_mode & S_IWOTH) != 0) return false;
  const char* const home = std::getenv("HOME");
  struct stat own{};
  if (home == nullptr || *home == '\0' || ::stat(home, &own) != 0) return true;
  return own.st_dev != folder.st_dev || own.st_ino != folder.st_ino;
}

}  // namespace

std::string StoreUrl::text() const {
  switch (kind) {
    case Kind::memory:
      return has_virtual_clock ? "memory:?clock=virtual" : "memory:";
    case Kind::postgres:
      return without_password(path);
    case Kind::sqlite:
      break;
  }
  return "sqlite:" + path;
}

std::string StoreUrl::folder() const { return folder_of(path); }

std::string StoreUrl::socket_path() const {
  return folder_of(store::sqlite::resolve_symlinks(path)) + "/aetheris.sock";
}

std::string StoreUrl::second_socket_path() const {
  return store::sqlite::resolve_symlinks(path) + ".sock";
}

Result<StoreUrl> store_url(std::string_view text) {
  if (text == "memory:") return StoreUrl{StoreUrl::Kind::memory, {}};
  if (text == "memory:?clock=virtual") {
    return StoreUrl{.kind = StoreUrl::Kind::memory, .path = {}, .has_virtual_clock = true};
  }
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
  return fail(Code::usage, "a store is sqlite:PATH, postgres://… or memory:, not \"{}\"",
              text.substr(0, 80));
}

Result<StoreUrl> find_store() {
  StoreUrl store{StoreUrl::Kind::sqlite, std::string(kDefaultStore.substr(7)), true};
  std::error_code error;
  const std::string start = std::filesystem::current_path(error).string();
  struct stat first{};
  if (error || ::stat(start.c_str(), &first) != 0) return store;
  AE_ASSIGN(const auto in_start, find_store_in(start));
  if (in_start) return store;
  for (std::string folder = start; folder != "/";) {
    folder = folder_of(folder);
    struct stat now{};
    if (::stat(folder.c_str(), &now) != 0 || !is_searched(now, first)) break;
    AE_ASSIGN(const auto found, find_store_in(folder));
    if (found) {
      store.path = *found;
      break;
    }
  }
  return store;
}

Status check_folder(const StoreUrl& store) {
  if (store.kind != StoreUrl::Kind::sqlite || store.found || store.text() == kDefaultStore) {
    return {};
  }
  const std::string folder = folder_of(store::sqlite::resolve_symlinks(store.path));
  struct stat found{};
  if (::stat(folder.c_str(), &found) == 0 || errno != ENOENT) return {};
  return fail(Code::not_found,
              "there is no folder {} for the store: create it, or correct --store (AETHERIS_STORE)",
              folder);
}

}  // namespace ae::app
