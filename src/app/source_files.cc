#include "app/source_files.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "app/file_stamp.h"

namespace ae::app {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kCode[] = {".ts",  ".mts", ".cts", ".tsx", ".js",
                                      ".mjs", ".cjs", ".jsx", ".py"};
constexpr std::string_view kSkipped[] = {"node_modules", "__pycache__"};

bool is_skipped(std::string_view folder) {
  return folder.starts_with('.') || std::ranges::find(kSkipped, folder) != std::end(kSkipped);
}

}  // namespace

Hash source_stamp(const std::string& folder, const std::string& file) {
  std::vector<std::string> stamps{file + " " + file_stamp(file)};
  std::vector<fs::path> folders{folder};
  std::size_t read = 0;
  while (!folders.empty() && read < kSourceFilesMax) {
    const fs::path at = std::move(folders.back());
    folders.pop_back();
    std::error_code error;
    for (fs::directory_iterator it(at, fs::directory_options::skip_permission_denied, error), end;
         !error && it != end && ++read < kSourceFilesMax; it.increment(error)) {
      const std::string name = it->path().filename().string();
      std::error_code ignored;
      if (it->is_symlink(ignored) && it->is_directory(ignored)) continue;  // it may be a cycle
      if (it->is_directory(ignored)) {
        if (!is_skipped(name)) folders.push_back(it->path());
      } else if (std::ranges::find(kCode, it->path().extension().string()) != std::end(kCode)) {
        stamps.push_back(it->path().string() + " " + file_stamp(it->path().string()));
      }
    }
  }
  std::ranges::sort(stamps);
  Sha256 hash;
  for (const std::string& stamp : stamps) hash.add(stamp + "\n");
  return hash.finish();
}

}  // namespace ae::app
