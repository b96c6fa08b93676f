// Archived logs: files with the log of a job, as `prune --archive` and `events ID --json` write
// them.
//
// Threads: any.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "log/event.h"

namespace ae::app {

// The files of these paths, in order; a folder stands for the files in it whose names end with
// .json. Fails with usage: a path does not exist, or a folder has no such file.
Result<std::vector<std::string>> archive_files(const std::vector<std::string>& paths);

struct ArchivedLog {
  std::string job;
  Result<std::vector<Event>> events;  // fails with needs_version, log_corrupt
};
// Fails with usage: the file cannot be read, or has no events.
Result<ArchivedLog> read_archived_log(const std::string& path);

}  // namespace ae::app
