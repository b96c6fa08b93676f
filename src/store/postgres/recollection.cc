#include "store/postgres/recollection.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>

#include "base/hash.h"
#include "json/json.h"
#include "store/postgres/place.h"
#include "store/postgres/transaction.h"

namespace ae::store::postgres {
namespace {

constexpr std::string_view kFirstMagic = "aetheris.mark.v1";
constexpr std::string_view kMagic = "aetheris.mark.v2";
constexpr std::uint64_t kNever = 1ULL << 62;  // no entry has this number
constexpr std::size_t kSum = 16;
constexpr std::chrono::milliseconds kKeep{1000};  // at most this often

// None of them is prepared: the first look comes before a pooler is found out.
constexpr const char* kRow =
    "SELECT epoch, last_seq, job FROM heads WHERE job = "
    "(SELECT number FROM jobs WHERE job_id = $1::text)";
constexpr const char* kEntry = "SELECT hash FROM audit WHERE seq = $1::bigint";
// A canonical body begins with its act.
constexpr const char* kPrunes =
    "SELECT seq, body, hash FROM audit WHERE seq < $1::bigint AND "
    "substring(body FROM 1 FOR 15) = '{\"act\":\"prune\",'::bytea ORDER BY seq DESC LIMIT 64";
constexpr const char* kWord =
    "SELECT key, value FROM meta WHERE key IN ('timeline', 'timelines', 'lost', 'accepting')";
// Not of a store in which it was accepted meanwhile.
constexpr const char* kSayLost =
    "INSERT INTO meta(key, value) SELECT 'lost', $1::text WHERE coalesce("
    "(SELECT value FROM meta WHERE key = 'timeline'), $2::text) = $3::text "
    "ON CONFLICT DO NOTHING";
constexpr const char* kPutMeta =
    "INSERT INTO meta(key, value) VALUES($1::text, $2::text) "
    "ON CONFLICT (key) DO UPDATE SET value = excluded.value";

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> all;
  std::istringstream from(text);
  for (std::string line; std::getline(from, line);) all.push_back(line);
  return all;
}

// "1-64,70": is it one of these?
bool in_numbers(std::string_view list, std::uint64_t number) {
  while (!list.empty()) {
    const std::string_view one = list.substr(0, list.find(','));
    list.remove_prefix(std::min(one.size() + 1, list.size()));
    const char *const begin = std::to_address(one.begin()), *const end = begin + one.size();
    std::uint64_t from = 0;
    const auto first = std::from_chars(begin, end, from);
    std::uint64_t to = from;
    if (first.ptr != end) std::from_chars(first.ptr + 1, end, to);
    if (from <= number && number <= to) return true;
  }
  return false;
}

// Begins a transaction and adds the entry to the audit log in it.
Pg<void> begin_audited(Connection& connection, const AuditEntry& entry) {
  connection.add_once("BEGIN");
  connection.add_once("SELECT value FROM meta WHERE key = 'audit_head' FOR UPDATE");
  AE_ASSIGN(const auto head, connection.run());
  const AuditRow row = chained(Transaction::audit_head(head[1].text(0, 0)), entry);
  const std::string_view hash(reinterpret_cast<const char*>(row.hash.bytes.data()),
                              row.hash.bytes.size());
  connection.add_once("INSERT INTO audit(seq, body, hash) VALUES($1::bigint, $2::bytea, $3::bytea)",
                      Params().add(row.seq).add(Bytes{row.body}).add(Bytes{hash}));
  connection.add_once(
      kPutMeta, Params().add("audit_head").add(std::to_string(row.seq) + " " + to_hex(row.hash)));
  return {};
}

std::string sum_of(std::string_view text) { return to_hex(sha256(text)).substr(0, kSum); }

Error rolled_back(const std::string& lost) {
  return {Code::store_rolled_back,
          "this store went backwards: " + lost +
              "; a restore or failover lost commits, whose work would be repeated: check its jobs, "
              "then `aetheris doctor --accept-rollback` parks unfinished ones"};
}

Error still_accepting() {
  return {Code::store_rolled_back,
          "this store went backwards, and not all of its jobs have been parked since: `aetheris "
          "doctor --accept-rollback` continues with it"};
}

Error has_to_begin_anew(const std::string& why) {
  return {Code::store_stopped, why + "; this process has stopped writing: restart it"};
}

}  // namespace

Result<StoreWord> store_word(Connection& connection, const std::string& store_id) {
  connection.add_once(kWord);
  auto answers = connection.run();
  if (!answers) return std::unexpected(cannot(answers.error()));
  StoreWord word{.timeline = store_id, .before = {}, .lost = {}};
  const Rows& rows = answers->back();
  for (int i = 0; i < rows.size(); ++i) {
    const std::string key = rows.text(i, 0), value = rows.text(i, 1);
    if (key == "timeline") word.timeline = value;
    if (key == "timelines") word.before = lines(value);
    if (key == "lost") word.lost = value;
    if (key == "accepting") word.accepting = true;
  }
  return word;
}

Recollection::Recollection(std::string store_id, const std::string& folder, bool accepts)
    : store_id_(std::move(store_id)),
      path_(folder.empty() ? std::string() : folder + "/" + store_id_ + ".mark"),
      accepts_(accepts) {
  remembered_ = read();
}

Recollection::~Recollection() { keep(); }

std::string Recollection::timeline() const {
  const std::lock_guard lock(mutex_);
  return timeline_;
}

std::optional<std::string> Recollection::compare(const StoreWord& word,
                                                 const Remembered& remembered,
                                                 const std::optional<Mark>& stands) {
  const auto& [timeline, mark] = remembered;
  if (timeline != word.timeline) {
    if (std::ranges::find(word.before, timeline) != word.before.end()) return std::nullopt;
    return "it is from before a loss that was accepted";
  }
  if (mark.job.empty()) {
    if (stands) return std::nullopt;
    return "entry " + std::to_string(mark.audit.seq) + " of its audit log is not in it any more";
  }
  if (!stands) return "job " + mark.job.text + " is not in it any more";
  if (stands->epoch >= mark.epoch && stands->last_seq >= mark.last_seq) return std::nullopt;
  return "job " + mark.job.text + " is at event " + std::to_string(stands->last_seq) + " (epoch " +
         std::to_string(stands->epoch) + "), and was at event " + std::to_string(mark.last_seq) +
         " (epoch " + std::to_string(mark.epoch) + ")";
}

// The same row, or entry, as the store has it now; nullopt: it has none.
Result<std::optional<Mark>> Recollection::stands(Connection& connection, const Mark& mark) {
  const bool is_entry = mark.job.empty();
  connection.add_once(is_entry ? kEntry : kRow,
                      is_entry ? Params().add(mark.audit.seq) : Params().add(mark.job.text));
  auto answers = connection.run();
  if (!answers) return std::unexpected(cannot(answers.error()));
  const Rows& row = answers->back();
  if (row.empty()) return std::nullopt;
  if (is_entry) return row.hash(0, 0) == mark.audit.hash ? std::optional(mark) : std::nullopt;
  Mark found{.job = mark.job,
             .number = row.count(0, 2),
             .epoch = row.count(0, 0),
             .last_seq = row.count(0, 1),
             .audit = {}};
  // Another job may have the id by now.
  if (mark.number != 0 && found.number != mark.number) return std::nullopt;
  return found;
}

// The entry of the audit log that tells of the deletion of this job, the newest first; nullopt: it was not deleted. Of a
// mark without a number nobody can tell, and any deletion counts.
Result<std::optional<Mark>> Recollection::pruned(Connection& connection, const Mark& mark) {
  if (mark.job.empty()) return std::nullopt;
  for (std::uint64_t before = kNever;;) {
    connection.add_once(kPrunes, Params().add(before));
    auto answers = connection.run();
    if (!answers) return std::unexpected(cannot(answers.error()));
    const Rows& rows = answers->back();
    if (rows.empty()) return std::nullopt;
    for (int i = 0; i < rows.size(); ++i) {
      before = rows.count(i, 0);
      const auto entry = parse_json(rows.text(i, 1), {.depth_max = 128});
      if (!entry) continue;
      if (mark.number == 0 || in_numbers((*entry)["detail"].text("numbers"), mark.number)) {
        return Mark{.job = {}, .audit = {.seq = before, .hash = rows.hash(i, 2)}};
      }
    }
  }
}

Result<std::optional<std::string>> Recollection::missing(Connection& connection,
                                                         const StoreWord& word) {
  if (!word.lost.empty()) return word.lost;
  std::optional<Remembered> remembered;
  {
    const std::lock_guard lock(mutex_);
    remembered = remembered_;
  }
  if (!remembered) return std::nullopt;
  AE_ASSIGN(const auto found, stands(connection, remembered->mark));
  if (!found && remembered->timeline == word.timeline) {
    AE_ASSIGN(const auto entry, pruned(connection, remembered->mark));
    if (entry) {
      // What was written meanwhile is remembered already, and says more.
      const std::lock_guard lock(mutex_);
      if (remembered_ && remembered_->mark == remembered->mark) {
        remembered_->mark = *entry;
        changed_ = true;
      }
      return std::nullopt;
    }
  }
  return compare(word, *remembered, found);
}

Status Recollection::look(Connection& connection) {
  AE_ASSIGN(const StoreWord word, store_word(connection, store_id_));
  AE_ASSIGN(const auto lost, missing(connection, word));
  if (lost) return std::unexpected(rolled_back(*lost));
  if (word.accepting && !accepts_) return std::unexpected(still_accepting());
  return {};
}

Status Recollection::check(Connection& connection) {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return std::unexpected(*stopped_);
  }
  AE_ASSIGN(const StoreWord word, store_word(connection, store_id_));
  AE_ASSIGN(const auto lost, missing(connection, word));
  if (lost && word.lost.empty()) {
    connection.add_once(kSayLost, Params().add(*lost).add(store_id_).add(word.timeline));
    if (auto said = connection.run(); !said) return std::unexpected(cannot(said.error()));
  }
  std::optional<Error> why;
  if (lost) why = rolled_back(*lost);
  if (!lost && word.accepting && !accepts_) why = still_accepting();
  const std::lock_guard lock(mutex_);
  const bool first = timeline_.empty();
  if (!why && first) timeline_ = word.timeline;
  if (!why && word.timeline != timeline_) {
    why = Error{Code::store_rolled_back,
                "this store went backwards, and that was accepted while this process worked on it"};
  }
  if (!why) return {};
  if (first) return std::unexpected(*std::move(why));
  stopped_ = has_to_begin_anew(why->message);
  return std::unexpected(*stopped_);
}

void Recollection::wrote(const Mark& mark) {
  const auto now = std::chrono::steady_clock::now();
  {
    const std::lock_guard lock(mutex_);
    remembered_ = {timeline_, mark};
    changed_ = true;
    if (now < keep_at_) return;
    keep_at_ = now + kKeep;
  }
  keep();
}

Status Recollection::accept(Connection& connection, const std::string& lost, Instant at,
                            const std::string& by) {
  AE_ASSIGN(StoreWord word, store_word(connection, store_id_));
  std::string before;
  word.before.push_back(word.timeline);
  {
    // What is remembered may be of a timeline that this copy has never heard of.
    const std::lock_guard lock(mutex_);
    if (remembered_ && remembered_->timeline != word.timeline) {
      word.before.push_back(remembered_->timeline);
    }
    remembered_.reset();
  }
  for (const std::string& one : word.before) before += (before.empty() ? "" : "\n") + one;
  AE_ASSIGN(const std::string place, place_of(connection));
  const auto run = [&]() -> Pg<void> {
    AE_TRY(begin_audited(connection,
                         {.at = at,
                          .by = by,
                          .act = "accept_rollback",
                          .job = {},
                          .detail = Value::object({{"lost", lost}, {"timeline", word.timeline}})}));
    connection.add_once(kPutMeta, Params().add("timelines").add(before));
    connection.add_once(kPutMeta, Params().add("accepting").add("1"));
    connection.add_once(
        "INSERT INTO meta(key, value) VALUES('timeline', replace(gen_random_uuid()::text, '-', "
        "'')) ON CONFLICT (key) DO UPDATE SET value = excluded.value");
    connection.add_once("DELETE FROM meta WHERE key = 'lost'");
    put_place(connection, place);
    connection.add_once("COMMIT");
    AE_TRY(connection.run());
    return {};
  };
  if (const auto done = run(); !done) return std::unexpected(cannot(done.error()));
  return {};
}

Status Recollection::accept_move(Connection& connection, const std::string& why, Instant at,
                                 const std::string& by) {
  AE_ASSIGN(const std::string place, place_of(connection));
  const auto run = [&]() -> Pg<void> {
    AE_TRY(begin_audited(connection,
                         {.at = at,
                          .by = by,
                          .act = "accept_rollback",
                          .job = {},
                          .detail = Value::object({{"moved", why}, {"nothing_lost", true}})}));
    put_place(connection, place);
    connection.add_once("COMMIT");
    AE_TRY(connection.run());
    return {};
  };
  if (const auto done = run(); !done) return std::unexpected(cannot(done.error()));
  return {};
}

// ---------------------------------------------------------------- the file

std::optional<Recollection::Remembered> Recollection::read() const {
  if (path_.empty()) return std::nullopt;
  std::ifstream file(path_);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  const std::size_t end = line.rfind(' ');
  if (end == line.npos || sum_of(line.substr(0, end)) != line.substr(end + 1)) return std::nullopt;
  std::istringstream words(line);
  Remembered found;
  std::string magic, store;
  Mark& mark = found.mark;
  std::string kind, hash;
  words >> magic >> store >> found.timeline;
  if (magic == kFirstMagic) {
    words >> mark.epoch >> mark.last_seq >> mark.job.text;
  } else if (magic == kMagic && words >> kind && kind == "audit") {
    words >> mark.audit.seq >> hash;
    const auto read = hash_from_hex(hash);
    if (!read) return std::nullopt;
    mark.audit.hash = *read;
  } else if (magic == kMagic) {
    words >> mark.number >> mark.epoch >> mark.last_seq >> mark.job.text;
  } else {
    return std::nullopt;
  }
  if (!words || store != store_id_) return std::nullopt;
  return found;
}

// A lower bound, as of some moment: what cannot be kept now is kept later, or not. Processes that share a folder put their
// words in each other's place: each of them is true.
void Recollection::keep() {
  std::string text;
  {
    const std::lock_guard lock(mutex_);
    if (path_.empty() || !changed_ || !remembered_) return;
    changed_ = false;
    const auto& [timeline, mark] = *remembered_;
    text = std::string(kMagic) + " " + store_id_ + " " + timeline;
    if (mark.job.empty()) {
      text += " audit " + std::to_string(mark.audit.seq) + " " + to_hex(mark.audit.hash);
    } else {
      text += " job " + std::to_string(mark.number) + " " + std::to_string(mark.epoch) + " " +
              std::to_string(mark.last_seq) + " " + mark.job.text;
    }
  }
  text += " " + sum_of(text) + "\n";
  const std::string part = path_ + "." + std::to_string(::getpid());
  const int fd = ::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return;
  const bool written = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                       ::fsync(fd) == 0;
  ::close(fd);
  if (!written || std::rename(part.c_str(), path_.c_str()) != 0) ::unlink(part.c_str());
}

Pg<void> finish_accepting(Connection& connection) {
  connection.add_once("BEGIN");
  // Writes something also when it is done already: then this waits for a standby as the first time should have.
  connection.add_once("SELECT value FROM meta WHERE key = 'store_id' FOR UPDATE");
  connection.add_once("DELETE FROM meta WHERE key = 'accepting'");
  connection.add_once("COMMIT");
  AE_TRY(connection.run());
  return {};
}

}  // namespace ae::store::postgres
