// CodeChecker: checks code against the logs of jobs: one CodeCheck for each (runtime/service/code_check.h).
//
// The code is that of an instance on an empty store in memory. The logs are read from files, another
// store or a server; nothing is written there. Threads: the loop's, outside of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/api_client.h"
#include "app/archived_logs.h"
#include "app/instance.h"
#include "base/error.h"
#include "log/event.h"
#include "runtime/service/code_check.h"

namespace ae::app {

struct CheckedLogs {
  ApiClient* client = nullptr;        // null: the logs are in files
  std::vector<std::string> jobs;      // empty: all that have not ended, of the agents of the code
  std::vector<std::string> archives;  // instead: the logs in these files
  std::optional<std::uint64_t> at;    // only the events up to this one
};
struct CheckedJob {
  std::string job;
  std::optional<std::string> agent;  // nullopt: the log cannot be read; so are the status
  std::optional<engine::JobStatus> status;
  runtime::CodeFinding finding;
  // The text of its divergence or exception; "" = it has none.
  std::string explanation() const;
};
// What is wrong with the client or the ids: fails as the reads do. Call it before code is started.
Status check_logs(const CheckedLogs& logs);

class CodeChecker {
 public:
  // Borrows the instance and the client. `timeout`: for each job.
  CodeChecker(Instance& instance, CheckedLogs logs, Duration timeout = std::chrono::seconds(60))
      : instance_(instance), logs_(std::move(logs)), timeout_(timeout) {}
  // Fails as the reads do, and with the error of `fail`.
  Result<std::vector<CheckedJob>> run();
  // The code is not offered any more: ends `run`.
  void fail(Error why);

 private:
  Status list_jobs();
  Result<ArchivedLog> read_log(const std::string& name);
  Result<std::vector<Event>> read_events(const std::string& id);
  Status start_check(std::size_t index, ArchivedLog log);

  Instance& instance_;
  CheckedLogs logs_;
  const Duration timeout_;
  std::optional<Error> failed_;
  std::size_t next_ = 0;
  std::vector<CheckedJob> results_;
  std::map<std::size_t, std::unique_ptr<runtime::CodeCheck>> running_;
  std::vector<std::unique_ptr<runtime::CodeCheck>> ended_;  // in a call of theirs
};

}  // namespace ae::app
