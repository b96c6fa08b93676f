// Notifications: --notify of services: one notification per question of a store's jobs, across
// processes.
//
// A question is notified when this process commits it. Questions of processes that ended before
// that are found by a scan of the open jobs, at start and every minute. A notification is recorded
// in the store's audit log (`notified`). In a shared store a process first claims the question
// there (`notifying`): the first unexpired claim wins.
// A failed program is retried with backoff. So a question is notified at least once; a repetition
// happens only if a process ends between the program and the entry, and has the same `id`.
// Decision: 0066-notifications.md. Threads: the loop's.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "app/instance.h"
#include "async/alive.h"
#include "cli/notifier.h"
#include "cli/questions.h"
#include "log/event.h"

namespace ae::cli {

class Notifications {
 public:
  struct Options {
    std::string program, store_flag;
    std::string by;               // this process, in claims
    std::size_t descriptors = 0;  // limit for the program; 0 = our own
    std::function<void(const JobId&, const std::string& what)> warn;
  };
  // Borrows the instance, which outlives this.
  Notifications(app::Instance& instance, Options options);
  ~Notifications();  // waits for the running program
  Notifications(const Notifications&) = delete;
  Notifications& operator=(const Notifications&) = delete;

  // Starts scanning the store periodically.
  void begin();
  // These events were committed here.
  void on_events(const JobId& job, const std::vector<Event>& events);

 private:
  struct Claim {
    std::string by;
    Instant until;
  };
  struct Scan;
  void read_claims(std::function<void()> then);
  void apply_audit_entry(const std::string& body);
  void scan();
  void continue_scan(std::shared_ptr<Scan> scan);
  void read_questions(const JobId& job, async::Done<Result<std::vector<Question>>> done);
  void scan_job(std::shared_ptr<Scan> scan, const JobId& job, const Hash& head);
  void schedule_scan();
  void notify_once(const Question& question);
  void claim(const Question& question);
  void start(const Question& question);
  void on_program_exit(const Question& question, const std::string& failure);
  void restart(const Question& question);
  void record_notified(const Question& question);
  void record(const Question& question, std::string action, std::vector<Member> more,
              async::Done<Result<void>> done);
  void after_delay(Duration delay, async::Task task);
  void warn(const JobId& job, const std::string& what) const;

  app::Instance& instance_;
  const Options options_;
  std::uint64_t audit_seq_ = 0;     // the last entry read
  std::set<std::string> notified_;  // questions, by id
  std::map<std::string, Claim> claims_;
  std::map<std::string, unsigned> tries_;  // of questions being notified here
  std::map<JobId, Hash> scanned_heads_;    // the last event of each scanned job
  async::Alive alive_;
  Notifier notifier_;  // its thread posts to the loop: destroyed first
};

}  // namespace ae::cli
