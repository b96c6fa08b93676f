#include "cli/notifications.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "json/json.h"
#include "log/field_names.h"
#include "store/audit.h"

namespace ae::cli {
namespace {

constexpr Duration kScanEvery = std::chrono::minutes(1);
constexpr Duration kStoreRetry = std::chrono::seconds(5);  // after the store was unavailable
constexpr Duration kClaimLasts = std::chrono::minutes(2);
constexpr Duration kPauseFirst = std::chrono::seconds(1), kPauseMost = std::chrono::minutes(5);
constexpr std::size_t kRowsAtOnce = 100;
constexpr std::size_t kInFlightMax = 1'000;  // questions; others wait for the next scan
constexpr std::size_t kJobsMax = 100'000;    // remembered as scanned

constexpr const char* kStatuses[] = {"waiting", "parked", "running", "queued"};

Duration pause_after(unsigned tries) {
  Duration pause = kPauseFirst;
  for (unsigned i = 1; i < tries && pause < kPauseMost; ++i) pause *= 2;
  return std::min(pause, kPauseMost);
}

}  // namespace

struct Notifications::Scan {
  std::size_t status = 0;
  std::string after;
  std::optional<std::uint64_t> after_number;
  std::deque<std::pair<JobId, Hash>> jobs;  // with the hashes of their last events
};

Notifications::Notifications(app::Instance& instance, Options options)
    : instance_(instance),
      options_(std::move(options)),
      notifier_(options_.program, options_.store_flag, options_.descriptors) {}

Notifications::~Notifications() { notifier_.drop(); }

void Notifications::warn(const JobId& job, const std::string& what) const {
  if (options_.warn) options_.warn(job, what);
}

void Notifications::after_delay(Duration delay, async::Task task) {
  instance_.loop().after(delay, [alive = alive_.watch(), task = std::move(task)]() mutable {
    if (alive) task();
  });
}

void Notifications::begin() {
  read_claims([this] { scan(); });
}

// ---------------------------------------------------------------- claims

// Reads the claims and notifications in the audit log, then calls `then`.
void Notifications::read_claims(std::function<void()> then) {
  instance_.store().read_audit_log(
      audit_seq_,
      [this, alive = alive_.watch(), then = std::move(then)](Result<store::AuditLog> log) mutable {
        if (!alive) return;
        if (!log) {
          return after_delay(kStoreRetry, [this, then = std::move(then)] { read_claims(then); });
        }
        for (const store::AuditRow& row : log->rows) {
          audit_seq_ = std::max(audit_seq_, row.seq);
          apply_audit_entry(row.body);
        }
        then();
      });
}

void Notifications::apply_audit_entry(const std::string& body) {
  const auto entry = parse_json(body);
  if (!entry) return;
  const Value& detail = (*entry)[field::detail];
  const std::string id(detail.text("question"));
  if (entry->text("act") == "notified") {
    claims_.erase(id);
    notified_.insert(id);
  } else if (entry->text("act") == "notifying" && !notified_.contains(id)) {
    const auto at = instant_from_text(entry->text(field::at));
    const auto until = instant_from_text(detail.text(field::until));
    const auto before = claims_.find(id);
    const bool free = before == claims_.end() || (at && before->second.until <= *at);
    if (until && free) {
      claims_.insert_or_assign(id,
                               Claim{.by = std::string(entry->text(field::by)), .until = *until});
    }
  }
}

void Notifications::record(const Question& question, std::string action, std::vector<Member> more,
                           async::Done<Result<void>> done) {
  more.emplace_back(field::kind, kind_text(question.kind));
  more.emplace_back("question", question.id);
  instance_.store().append_audit_entry({.at = instance_.store().now(),
                                        .by = options_.by,
                                        .act = std::move(action),
                                        .job = question.job,
                                        .detail = Value::object(std::move(more))},
                                       std::move(done));
}

// ---------------------------------------------------------------- scan

void Notifications::scan() { continue_scan(std::make_shared<Scan>()); }

void Notifications::schedule_scan() {
  after_delay(kScanEvery, [this] { read_claims([this] { scan(); }); });
}

void Notifications::continue_scan(std::shared_ptr<Scan> scan) {
  while (!scan->jobs.empty()) {
    const auto [job, head] = scan->jobs.front();
    scan->jobs.pop_front();
    const auto before = scanned_heads_.find(job);
    if (before == scanned_heads_.end() || before->second != head) {
      return scan_job(std::move(scan), job, head);
    }
  }
  if (scan->status == std::size(kStatuses)) return schedule_scan();
  store::Filter filter;
  filter.statuses = {kStatuses[scan->status]};
  filter.after = scan->after;
  filter.after_number = scan->after_number;
  filter.limit = kRowsAtOnce;
  instance_.store().query(std::move(filter), [this, alive = alive_.watch(),
                                              scan](Result<std::vector<store::JobRow>> rows) {
    if (!alive) return;
    if (!rows) return schedule_scan();
    for (const store::JobRow& row : *rows) scan->jobs.emplace_back(row.id, row.head);
    if (rows->size() < kRowsAtOnce) {
      scan->status++;
      scan->after.clear();
      scan->after_number.reset();
    } else {
      scan->after = rows->back().id.text;
      scan->after_number = rows->back().number;
    }
    continue_scan(scan);
  });
}

// Reads the whole log: the question may be in an older event.
void Notifications::read_questions(const JobId& job,
                                   async::Done<Result<std::vector<Question>>> done) {
  instance_.runtime().reader().read<std::vector<Question>>(
      job, {},
      [job](runtime::JobSnapshot& read) -> Result<std::vector<Question>> {
        OpenQuestions open(job);
        for (const Event& event : read.events) open.apply(event);
        return open.list();
      },
      std::move(done));
}

void Notifications::scan_job(std::shared_ptr<Scan> scan, const JobId& job, const Hash& head) {
  read_questions(job, [this, alive = alive_.watch(), scan, job,
                       head](Result<std::vector<Question>> questions) {
    if (!alive) return;
    if (questions) {
      if (scanned_heads_.size() >= kJobsMax) scanned_heads_.clear();
      scanned_heads_[job] = head;
      for (const Question& question : *questions) notify_once(question);
    }
    instance_.loop().post([this, alive, scan] {
      if (alive) continue_scan(scan);
    });
  });
}

void Notifications::on_events(const JobId& job, const std::vector<Event>& events) {
  OpenQuestions open(job);
  for (const Event& event : events) open.apply(event);
  for (const Question& question : open.list()) notify_once(question);
  const bool ended = std::ranges::any_of(events, [](const Event& event) {
    return event.type == EventType::job_completed || event.type == EventType::job_failed ||
           event.type == EventType::job_cancelled;
  });
  if (!ended) return;
  scanned_heads_.erase(job);
}

// ---------------------------------------------------------------- one question

void Notifications::notify_once(const Question& question) {
  const std::string id = question.id;
  if (notified_.contains(id) || tries_.contains(id)) return;
  if (tries_.size() >= kInFlightMax) {
    scanned_heads_.erase(question.job);  // the next scan finds it
    return;
  }
  tries_[id] = 0;
  if (instance_.store().owned()) return start(question);
  claim(question);
}

// The process with the first claim notifies.
void Notifications::claim(const Question& question) {
  const std::string until = to_text(instance_.store().now() + kClaimLasts);
  const auto release_question = [this, question] {
    tries_.erase(question.id);
    scanned_heads_.erase(question.job);  // rescan: the claiming process may end
  };
  const auto before = claims_.find(question.id);
  const bool taken = before != claims_.end() && before->second.by != options_.by &&
                     before->second.until > instance_.store().now();
  if (taken) return release_question();
  record(question, "notifying", {{field::until, until}},
         [this, alive = alive_.watch(), question, release_question](const Result<void>& kept) {
           if (!alive) return;
           if (!kept) return release_question();
           read_claims([this, question, release_question] {
             const auto claim = claims_.find(question.id);
             const bool ours = claim != claims_.end() && claim->second.by == options_.by;
             ours ? start(question) : release_question();
           });
         });
}

void Notifications::start(const Question& question) {
  notifier_.start(question, [this, alive = alive_.watch(), &loop = instance_.loop(),
                             question](const std::string& failure) {
    loop.post([this, alive, question, failure] {
      if (alive) on_program_exit(question, failure);
    });
  });
}

void Notifications::on_program_exit(const Question& question, const std::string& failure) {
  const std::string id = question.id;
  if (failure.empty()) return record_notified(question);
  const Duration pause = pause_after(++tries_[id]);
  warn(question.job, fmt::format("--notify {}: {}; question {} is retried in {}", options_.program,
                                 failure, id, to_text(pause)));
  after_delay(pause, [this, question] { restart(question); });
}

// Questions that were answered meanwhile are dropped.
void Notifications::restart(const Question& question) {
  read_questions(question.job,
                 [this, alive = alive_.watch(), question](Result<std::vector<Question>> open) {
                   if (!alive) return;
                   if (!open && open.error().code == Code::unavailable) {
                     return after_delay(kStoreRetry, [this, question] { restart(question); });
                   }
                   if (open && std::ranges::count(*open, question.id, &Question::id) > 0)
                     return start(question);
                   tries_.erase(question.id);
                 });
}

void Notifications::record_notified(const Question& question) {
  record(question, "notified", {},
         [this, alive = alive_.watch(), question](const Result<void>& kept) {
           if (!alive) return;
           if (!kept)
             return after_delay(kStoreRetry, [this, question] { record_notified(question); });
           notified_.insert(question.id);
           tries_.erase(question.id);
         });
}

}  // namespace ae::cli
