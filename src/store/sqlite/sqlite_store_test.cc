#include "store/sqlite/sqlite_store.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "store/conformance_test.h"
#include "testing/test.h"

namespace ae::store {
namespace {

using conformance::fence;
using conformance::Rig;

// A folder that goes away with the test.
class Folder {
 public:
  // `memory`: where an fsync costs nothing.
  explicit Folder(bool memory = false) {
    std::filesystem::path where = std::filesystem::temp_directory_path();
    if (memory && ::access("/dev/shm", W_OK) == 0) where = "/dev/shm";
    std::string pattern = where / "aetheris-store-XXXXXX";
    AE_CHECK(::mkdtemp(pattern.data()) != nullptr, pattern);
    path_ = pattern;
  }
  ~Folder() {
    ::chmod(path_.c_str(), 0700);
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const char* name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

class SqliteDriver final : public conformance::Driver {
 public:
  explicit SqliteDriver(testing::TestLoop& loop) : loop_(loop) { restart(); }
  Store& store() override { return *store_; }
  void restart() override {
    store_.reset();
    auto opened = SqliteStore::open({.path = folder_ / "a.db", .loop = loop_, .clock = loop_});
    AE_CHECK(opened.has_value(), opened.error().message);
    store_ = *std::move(opened);
  }

 private:
  testing::TestLoop& loop_;
  Folder folder_{true};
  std::unique_ptr<SqliteStore> store_;
};

const bool registered = conformance::register_conformance(
    "store_sqlite", [](testing::TestLoop& loop) { return std::make_unique<SqliteDriver>(loop); });

}  // namespace
}  // namespace ae::store
