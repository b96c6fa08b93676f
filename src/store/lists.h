// Lists: the filters, pages and counts of the queries over many jobs.
//
// They read job rows and indexes, never a log.
// Limits: a page has at most `limit` rows; a page of ended jobs scans at most kEndedScanMax; a
// count stops at kJobCountMax. Threads: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/time.h"
#include "store/pending.h"
#include "store/rows.h"

namespace ae::store {

// The order of a list: the newest first.
enum class JobOrder : std::uint8_t {
  created,  // by number
  changed   // by Summary::changed_at, then by number; without jobs that have no summary
};

struct Filter {
  std::vector<std::string> statuses;  // empty = any
  std::string agent, queue;           // "" = any
  std::string error;                  // code of the error with which the job failed; "" = any
  std::string kind;                   // of the summary; "" = any
  std::uint64_t cost_min = 0;         // Summary::cost_micros is at least this
  std::string forked_from;            // forks of this job; "" = any job
  std::vector<std::pair<std::string, std::string>> labels;
  JobOrder order = JobOrder::created;
  std::string after;  // page cursor: a job id of an earlier answer ("" = from the newest)
  // Number of the job `after`: also valid when that job has been deleted.
  std::optional<std::uint64_t> after_number;
  // Its changed_at, as it was in the earlier answer. REQUIRES: `order` is changed; then it is set
  // if after_number is, and `after` is not used.
  std::optional<Instant> after_changed_at;
  std::optional<Instant> created_from, created_before;
  std::optional<Instant> updated_from, updated_before;  // the last write
  PendingKinds pending = 0;  // jobs that may have one of these open; 0 = any job
  std::size_t limit = 100;
};

// Jobs that have ended, that no worker holds, and whose last event is older than `before`.
struct EndedFilter {
  Instant before;
  std::vector<std::string> statuses;  // of completed failed cancelled; empty = all three
  std::string agent;                  // "" = any
  std::vector<std::pair<std::string, std::string>> labels;
  std::uint64_t after = 0;  // only jobs with a higher number
  std::size_t limit = 100;
};
// A page scans at most this many rows. The scan ends at a page whose rows were all created at or
// after `before`, so one job with a wrong clock does not hide others.
inline constexpr std::size_t kEndedScanMax = 1024;
struct EndedPage {
  std::vector<JobRow> rows;           // oldest first
  std::optional<std::uint64_t> next;  // `after` of the next page; nullopt = last page
};

// Which jobs to count; as in Filter.
struct CountFilter {
  std::string agent, queue;  // "" = any
  std::vector<std::pair<std::string, std::string>> labels;
  std::optional<Instant> created_from;
};

// Counts of jobs at one moment, from indexes. Each one examines at most kJobCountMax jobs, the
// newest first: the jobs with that status, or with an open request; for `completed`, which has no
// index, the jobs with the first label, else of the agent, else all.
struct JobCount {
  std::uint64_t jobs = 0;
  bool capped = false;  // not all were examined: there are at least so many
};
struct JobCounts {
  std::map<std::string, JobCount> statuses;       // all seven
  std::map<PendingKinds, JobCount> pending = {};  // jobs that may have one open, by kind
};

// Job counts at one moment. They are read from indexes and stop at kJobCountMax.
inline constexpr std::uint64_t kJobCountMax = 100'000;
struct JobStats {
  std::map<std::string, std::uint64_t> statuses;  // of queued, running, waiting, parked
  std::map<std::string, std::uint64_t> ready;     // claimable now, by queue
  struct Worker {
    std::uint64_t live = 0, expired = 0;  // jobs that it holds: lease valid; lease expired
    std::string announcement;             // its announcement; "" = none, or expired
  };
  std::map<std::string, Worker> workers;  // workers that hold a job or have an announcement
};

}  // namespace ae::store
