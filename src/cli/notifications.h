// Notifications: each question of a store's jobs is notified once, by whichever process gets to it (--notify of services).
//
// A question is notified when its commit is made here, and, if that process ended before, when a service looks through the
// open jobs: at its start and every few minutes. That it was notified is an entry of the store's audit log (`notified`). Of a
// store that processes share, one claims the question first (`notifying`): the first claim that has not expired counts.
// A program that fails is started again with growing pauses. So a question is notified at least once, and again only when a
// process ends between the program and the entry; its `id` is then the same.
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
#include "cli/notifier.h"
#include "cli/questions.h"
#include "log/event.h"

namespace ae::cli {

class Notifications {
 public:
  struct Options {
    std::string program, store_flag;
    std::string by;               // this process, as claims name it
    std::size_t descriptors = 0;  // how many the program may have open; 0 = as many as we
    std::function<void(const JobId&, const std::string& what)> warn;
  };
  // Borrows the site, which outlives this.
  Notifications(app::Instance& instance, Options options);
  ~Notifications();  // waits for the program under way
  Notifications(const Notifications&) = delete;
  Notifications& operator=(const Notifications&) = delete;

  // Looks through the store, and goes on doing so.
  void begin();
  // This was committed here.
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
  void scan_job(std::shared_ptr<Scan> scan, const JobId& job, const Hash& head);
  void schedule_scan();
  void notify_once(const Question& question);
  void claim(const Question& question);
  void start(const Question& question);
  void ended(const Question& question, const std::string& failure);
  void start_again(const Question& question);
  void record_notified(const Question& question);
  void record(const Question& question, std::string act, std::vector<Member> more,
              async::Done<Result<void>> done);
  void later(Duration delay, async::Task task);
  void warn(const JobId& job, const std::string& what) const;

  app::Instance& instance_;
  const Options options_;
  std::uint64_t audit_seq_ = 0;     // read so far
  std::set<std::string> notified_;  // questions, by id
  std::map<std::string, Claim> claims_;
  std::map<std::string, unsigned> tries_;  // of those that are under way here
  std::map<JobId, Hash> scanned_heads_;    // the last event of each job that was read
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  Notifier notifier_;  // its thread posts to the loop: ends first
};

}  // namespace ae::cli
