// JobLines: the log lines of a service about its jobs: one per start, wait, park and end.
//
// A line has ids, names, codes and the answering command, but no value of the job. Threads: one.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "base/ids.h"
#include "cli/questions.h"
#include "cli/service_log.h"
#include "log/event.h"

namespace ae::cli {

class JobLines {
 public:
  // Jobs with tracked open questions; beyond it a line names `aetheris job ID` instead of the
  // answering command.
  static constexpr std::size_t kJobsMax = 10'000;

  // `store_flag` is appended to commands.
  explicit JobLines(std::string store_flag) : store_flag_(std::move(store_flag)) {}

  // The lines for one commit. `agent`: of the job; "" = unknown.
  std::vector<ServiceLog::Line> of(const JobId& job, const std::string& agent,
                                   const std::vector<Event>& events);
  // The job is no longer run here.
  void remove(const JobId& job) { jobs_.erase(job); }

 private:
  void blocked(const JobId& job, const Event& event, ServiceLog::Line& line);

  const std::string store_flag_;
  std::map<JobId, OpenQuestions> jobs_;
};

}  // namespace ae::cli
