// ArchiveFolder: an archive in a folder.
//
// Each file is written under a temporary name, synced, and published with `link`, which never
// replaces a file. The folder is synced before the caller is notified. An existing file with the
// same name and bytes is left from an interrupted run and accepted. Syncs are slow, so they run on
// a separate thread.
// Threads: the loop's; results are posted to the loop.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "async/loop.h"
#include "base/error.h"
#include "runtime/service/prune.h"

namespace ae::app {

class ArchiveFolder final : public runtime::Archive {
 public:
  // Creates the folder, mode 0700, if it does not exist; not its parent. Fails with usage (not an
  // absolute path) · unavailable.
  static Result<std::unique_ptr<ArchiveFolder>> open(async::Loop& loop, std::string folder);
  ArchiveFolder(async::Loop& loop, std::string folder) : loop_(loop), folder_(std::move(folder)) {}
  ~ArchiveFolder() override;  // waits for the current write

  // REQUIRES: one at a time.
  void put_files(std::vector<File> files, async::Done<Status> done) override;

 private:
  async::Loop& loop_;
  const std::string folder_;
  std::thread thread_;
};

}  // namespace ae::app
