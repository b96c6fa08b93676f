// ArchiveFolder: a folder in which the files of an archive stay.
//
// Each file is written beside its place, made durable, and gets its name by `link`, which replaces nothing; the folder is
// made durable before anybody is told. A file of that name with the same bytes is what is left of a run that died. Syncs
// take their time, so a thread of its own makes them.
// Threads: the loop's; answers are posted to the loop.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "async/loop.h"
#include "base/error.h"
#include "runtime/prune.h"

namespace ae::app {

class ArchiveFolder final : public runtime::Archive {
 public:
  // Makes the folder, mode 0700, where there is none; not the one above it. Fails with usage (no absolute path) ·
  // unavailable.
  static Result<std::unique_ptr<ArchiveFolder>> open(async::Loop& loop, std::string folder);
  ArchiveFolder(async::Loop& loop, std::string folder) : loop_(loop), folder_(std::move(folder)) {}
  ~ArchiveFolder() override;  // waits for what is being written

  // REQUIRES: one at a time.
  void put_files(std::vector<File> files, async::Done<Status> done) override;

 private:
  async::Loop& loop_;
  const std::string folder_;
  std::thread thread_;
};

}  // namespace ae::app
