#include "cli/notifications.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "json/json.h"
#include "store/audit.h"

namespace ae::cli {
namespace {

constexpr Duration kLookAgain = std::chrono::minutes(1);
constexpr Duration kStoreAgain = std::chrono::seconds(5);  // after the store did not answer
constexpr Duration kClaimLasts = std::chrono::minutes(2);
constexpr Duration kPauseFirst = std::chrono::seconds(1), kPauseMost = std::chrono::minutes(5);
constexpr std::size_t kRowsAtOnce = 100;
constexpr std::size_t kUnderWayMax = 1'000;  // questions; others wait for the next look
constexpr std::size_t kJobsMax = 100'000;    // that are remembered as looked at

constexpr const char* kStatuses[] = {"waiting", "parked", "running", "queued"};

Duration pause_after(unsigned tries) {
  Duration pause = kPauseFirst;
  for (unsigned i = 1; i < tries && pause < kPauseMost; ++i) pause *= 2;
  return std::min(pause, kPauseMost);
}

}  // namespace

struct Notifications::Look {
  std::size_t status = 0;
  std::string after;
  std::optional<std::uint64_t> after_number;
  std::deque<std::pair<JobId, Hash>> jobs;  // and the hashes of their last events
};

Notifications::Notifications(app::Site& site, Wish wish)
    : site_(site),
      wish_(std::move(wish)),
      notifier_(wish_.program, wish_.store_flag, wish_.descriptors) {}

Notifications::~Notifications() { notifier_.drop(); }

void Notifications::warn(const JobId& job, const std::string& what) const {
  if (wish_.warn) wish_.warn(job, what);
}

void Notifications::later(Duration delay, async::Task task) {
  site_.loop().after(delay, [weak = std::weak_ptr(alive_), task = std::move(task)]() mutable {
    if (weak.lock()) task();
  });
}

void Notifications::begin() {
  read_marks([this] { look(); });
}

// ---------------------------------------------------------------- what is remembered

// What other processes and earlier ones have recorded. Goes on when it is known.
void Notifications::read_marks(std::function<void()> then) {
  site_.store().audit_log(audit_seq_, [this, weak = std::weak_ptr(alive_), then = std::move(then)](
                                          Result<store::AuditLog> log) mutable {
    if (!weak.lock()) return;
    if (!log) {
      return later(kStoreAgain, [this, then = std::move(then)] { read_marks(then); });
    }
    for (const store::AuditRow& row : log->rows) {
      audit_seq_ = std::max(audit_seq_, row.seq);
      take_mark(row.body);
    }
    then();
  });
}

void Notifications::take_mark(const std::string& body) {
  const auto entry = parse_json(body);
  if (!entry) return;
  const Value& detail = (*entry)["detail"];
  const std::string id(detail.text("question"));
  if (entry->text("act") == "notified") {
    claims_.erase(id);
    notified_.insert(id);
  } else if (entry->text("act") == "notifying" && !notified_.contains(id)) {
    const auto at = instant_from_text(entry->text("at"));
    const auto until = instant_from_text(detail.text("until"));
    const auto before = claims_.find(id);
    const bool free = before == claims_.end() || (at && before->second.until <= *at);
    if (until && free) {
      claims_.insert_or_assign(id, Claim{.by = std::string(entry->text("by")), .until = *until});
    }
  }
}

void Notifications::record(const Question& question, std::string act, std::vector<Member> more,
                           async::Done<Result<void>> done) {
  more.emplace_back("kind", question.kind);
  more.emplace_back("question", question.id);
  site_.store().record({.at = site_.store().now(),
                        .by = wish_.by,
                        .act = std::move(act),
                        .job = question.job,
                        .detail = Value::object(std::move(more))},
                       std::move(done));
}

// ---------------------------------------------------------------- looking through the store

void Notifications::look() { look_on(std::make_shared<Look>()); }

void Notifications::look_later() {
  later(kLookAgain, [this] { read_marks([this] { look(); }); });
}

void Notifications::look_on(std::shared_ptr<Look> look) {
  while (!look->jobs.empty()) {
    const auto [job, head] = look->jobs.front();
    look->jobs.pop_front();
    const auto before = looked_at_.find(job);
    if (before == looked_at_.end() || before->second != head) {
      return look_at(std::move(look), job, head);
    }
  }
  if (look->status == std::size(kStatuses)) return look_later();
  store::Filter filter;
  filter.status = kStatuses[look->status];
  filter.after = look->after;
  filter.after_number = look->after_number;
  filter.limit = kRowsAtOnce;
  site_.store().query(std::move(filter), [this, weak = std::weak_ptr(alive_),
                                          look](Result<std::vector<store::JobRow>> rows) {
    if (!weak.lock()) return;
    if (!rows) return look_later();
    for (const store::JobRow& row : *rows) look->jobs.emplace_back(row.id, row.head);
    if (rows->size() < kRowsAtOnce) {
      look->status++;
      look->after.clear();
      look->after_number.reset();
    } else {
      look->after = rows->back().id.text;
      look->after_number = rows->back().number;
    }
    look_on(look);
  });
}

// The whole log: an older event may ask what is still open.
void Notifications::look_at(std::shared_ptr<Look> look, const JobId& job, const Hash& head) {
  site_.runtime().read(job, [this, weak = std::weak_ptr(alive_), look, job,
                             head](Result<runtime::Runtime::Read> read) {
    if (!weak.lock()) return;
    if (read) {
      if (looked_at_.size() >= kJobsMax) looked_at_.clear();
      looked_at_[job] = head;
      OpenQuestions open(job);
      for (const Event& event : read->events) open.take(event);
      for (const Question& question : open.list()) offer(question);
    }
    site_.loop().post([this, weak, look] {
      if (weak.lock()) look_on(look);
    });
  });
}

void Notifications::on_events(const JobId& job, const std::vector<Event>& events) {
  OpenQuestions open(job);
  for (const Event& event : events) open.take(event);
  for (const Question& question : open.list()) offer(question);
  const bool ended = std::ranges::any_of(events, [](const Event& event) {
    return event.type == EventType::job_completed || event.type == EventType::job_failed ||
           event.type == EventType::job_cancelled;
  });
  if (!ended) return;
  looked_at_.erase(job);
}

// ---------------------------------------------------------------- one question

void Notifications::offer(const Question& question) {
  const std::string id = question.id;
  if (notified_.contains(id) || tries_.contains(id)) return;
  if (tries_.size() >= kUnderWayMax) {
    looked_at_.erase(question.job);  // the next look takes it up
    return;
  }
  tries_[id] = 0;
  if (site_.store().owned()) return start(question);
  claim(question);
}

// Of several processes the one whose entry comes first notifies.
void Notifications::claim(const Question& question) {
  const std::string until = to_text(site_.store().now() + kClaimLasts);
  const auto leave = [this, question] {
    tries_.erase(question.id);
    looked_at_.erase(question.job);  // looked at again: whoever has claimed it may end
  };
  const auto before = claims_.find(question.id);
  const bool taken = before != claims_.end() && before->second.by != wish_.by &&
                     before->second.until > site_.store().now();
  if (taken) return leave();
  record(question, "notifying", {{"until", until}},
         [this, weak = std::weak_ptr(alive_), question, leave](const Result<void>& kept) {
           if (!weak.lock()) return;
           if (!kept) return leave();
           read_marks([this, question, leave] {
             const auto claim = claims_.find(question.id);
             const bool ours = claim != claims_.end() && claim->second.by == wish_.by;
             ours ? start(question) : leave();
           });
         });
}

void Notifications::start(const Question& question) {
  notifier_.start(question, [this, weak = std::weak_ptr(alive_), &loop = site_.loop(),
                             question](const std::string& failure) {
    loop.post([this, weak, question, failure] {
      if (weak.lock()) ended(question, failure);
    });
  });
}

void Notifications::ended(const Question& question, const std::string& failure) {
  const std::string id = question.id;
  if (failure.empty()) return mark(question);
  const Duration pause = pause_after(++tries_[id]);
  warn(question.job, "--notify " + wish_.program + ": " + failure + "; question " + id +
                         " is retried in " + to_text(pause));
  later(pause, [this, question] { start_again(question); });
}

// What was answered meanwhile is notified no more.
void Notifications::start_again(const Question& question) {
  site_.runtime().read(question.job, [this, weak = std::weak_ptr(alive_),
                                      question](Result<runtime::Runtime::Read> read) {
    if (!weak.lock()) return;
    if (!read && read.error().code == Code::unavailable) {
      return later(kStoreAgain, [this, question] { start_again(question); });
    }
    OpenQuestions open(question.job);
    if (read) {
      for (const Event& event : read->events) open.take(event);
    }
    const auto asked = open.list();
    if (std::ranges::count(asked, question.id, &Question::id) > 0) return start(question);
    tries_.erase(question.id);
  });
}

void Notifications::mark(const Question& question) {
  record(question, "notified", {},
         [this, weak = std::weak_ptr(alive_), question](const Result<void>& kept) {
           if (!weak.lock()) return;
           if (!kept) return later(kStoreAgain, [this, question] { mark(question); });
           notified_.insert(question.id);
           tries_.erase(question.id);
         });
}

}  // namespace ae::cli
