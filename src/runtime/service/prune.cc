#include "runtime/service/prune.h"

#include <fmt/core.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <set>
#include <utility>

#include "base/hash.h"
#include "json/json.h"
#include "log/event.h"
#include "log/field_names.h"
#include "runtime/log.h"
#include "store/batch_failpoints.h"
#include "store/rules.h"

namespace ae::runtime {
namespace {

constexpr int kPruneTries = 8;  // consecutive conflicts with other writers

// Formats as "1-64,70". REQUIRES: ascending order.
std::string ranges_of(const std::vector<std::uint64_t>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    text += (text.empty() ? "" : ",") + std::to_string(numbers[i]);
    if (last > i) text += fmt::format("-{}", numbers[last]);
    i = last + 1;
  }
  return text;
}

// SHA-256 of "aetheris.prune.v1", then for each job its id, the byte 0 and the hash of its last
// event.
Hash hash_of(const std::vector<store::JobRow>& rows) {
  std::string text = "aetheris.prune.v1";
  for (const store::JobRow& row : rows) {
    text += row.id.text + '\0';
    text.append(reinterpret_cast<const char*>(row.head.bytes.data()), row.head.bytes.size());
  }
  return sha256(text);
}

class Pruner : public std::enable_shared_from_this<Pruner> {
 public:
  Pruner(store::Store& store, PruneRequest request, std::function<void(const JobId&)> on_deleted,
         async::Done<Result<PruneResult>> done)
      : store_(store),
        request_(std::move(request)),
        on_deleted_(std::move(on_deleted)),
        done_(std::move(done)),
        after_(request_.after) {
    result_.before = store_.now() - request_.older_than;
  }

  void load_page() {
    store_.list_ended({.before = result_.before,
                       .statuses = request_.statuses,
                       .agent = request_.agent,
                       .labels = request_.labels,
                       .after = after_,
                       .limit = std::max<std::size_t>(1, request_.jobs_max - result_.jobs)},
                      [self = shared_from_this()](Result<store::EndedPage> page) {
                        if (!page) return self->done_(std::unexpected(page.error()));
                        self->next_ = page->next;
                        self->rows_.clear();
                        for (store::JobRow& row : page->rows) {
                          if (!self->skipped_.contains(row.id))
                            self->rows_.push_back(std::move(row));
                        }
                        self->continue_page();
                      });
  }

 private:
  void continue_page() {
    if (request_.dry_run) {
      for (const store::JobRow& row : rows_) count(row);
      rows_.clear();
    }
    if (!rows_.empty()) return fill_batch();
    if (next_) after_ = *next_;
    if (!next_ || result_.jobs >= request_.jobs_max) {
      result_.next = next_;
      return done_(std::move(result_));
    }
    load_page();
  }

  // Selects the jobs of the next transaction.
  void fill_batch() {
    batch_.clear();
    pruning_ = {};
    files_.clear();
    bytes_ = 0;
    std::uint64_t events = 0;
    while (!rows_.empty() && batch_.size() < store::kPruneJobsMax &&
           (batch_.empty() || events + rows_.front().last_seq <= kPruneEventsMax)) {
      events += rows_.front().last_seq;
      pruning_.jobs.push_back({.job = rows_.front().id,
                               .last_seq = rows_.front().last_seq,
                               .head = rows_.front().head,
                               .content_hash = {}});
      batch_.push_back(std::move(rows_.front()));
      rows_.pop_front();
    }
    if (request_.archive) return read(0);
    write();
  }

  void read(std::size_t i) {
    if (i == batch_.size()) return archive();
    if (bytes_ > kPruneArchiveBytes) {  // the remaining jobs go into the next transaction
      while (batch_.size() > i) {
        rows_.push_front(std::move(batch_.back()));
        batch_.pop_back();
      }
      pruning_.jobs.resize(i);
      return archive();
    }
    store_.load(batch_[i].id, 1, [self = shared_from_this(), i](Result<store::LoadedJob> loaded) {
      if (!loaded && loaded.error().code == Code::not_found) return self->reload_page();
      if (!loaded) return self->done_(std::unexpected(loaded.error()));
      const JobId job = self->batch_[i].id;
      auto files = archive_of(job, *loaded);
      if (!files) {
        self->skip_job(i, files.error());
        return self->read(i);
      }
      std::vector<Hash> commits;
      commits.reserve(loaded->commits.size());
      for (const std::string& bytes : loaded->commits) commits.push_back(sha256(bytes));
      self->pruning_.jobs[i].content_hash = store::content_hash_of(commits, loaded->signed_head);
      for (Archive::File& file : *files) {
        self->bytes_ += file.bytes.size();
        self->files_.push_back(std::move(file));
      }
      self->read(i + 1);
    });
  }

  void skip_job(std::size_t i, const Error& error) {
    ++result_.skipped_jobs;
    skipped_.insert(batch_[i].id);
    if (result_.skipped.size() < kPruneSkippedMax)
      result_.skipped.emplace_back(batch_[i].id, error);
    batch_.erase(batch_.begin() + static_cast<std::ptrdiff_t>(i));
    pruning_.jobs.erase(pruning_.jobs.begin() + static_cast<std::ptrdiff_t>(i));
  }

  void archive() {
    if (batch_.empty()) return continue_page();
    request_.archive->put_files(std::move(files_), [self = shared_from_this()](Status written) {
      if (!written)
        return self->done_(std::unexpected(std::move(written).error().with_context("the archive")));
      if (auto error = store::hit_before_failpoint("prune.archived").now) {
        return self->done_(std::unexpected(*std::move(error)));
      }
      self->write();
    });
  }

  void write() {
    pruning_.audit = {
        .at = store_.now(), .by = request_.by, .act = "prune", .job = {}, .detail = detail()};
    store_.prune(pruning_, [self = shared_from_this()](Result<bool> done) {
      if (!done) {
        const Code code = done.error().code;
        const bool changed =
            code == Code::sequence_conflict || code == Code::held || code == Code::not_found;
        if (changed && ++self->tries_ < kPruneTries) return self->reload_page();
        return self->done_(std::unexpected(done.error()));
      }
      if (!*done) return self->write();
      self->tries_ = 0;
      for (const store::JobRow& row : self->batch_) {
        self->count(row);
        self->after_ = row.number;
        if (self->on_deleted_) self->on_deleted_(row.id);
      }
      self->continue_page();
    });
  }

  // Continues after the last deleted job.
  void reload_page() { load_page(); }

  Value detail() const {
    std::vector<std::uint64_t> numbers;
    std::uint64_t events = 0;
    for (const store::JobRow& row : batch_) {
      numbers.push_back(row.number);
      events += row.last_seq;
    }
    std::vector<Member> members{{"archived", request_.archive != nullptr},
                                {"before", to_text(result_.before)},
                                {"events", events},
                                {"hash", to_hex(hash_of(batch_))},
                                {"jobs", std::uint64_t{batch_.size()}},
                                {"numbers", ranges_of(numbers)}};
    if (!request_.agent.empty()) members.emplace_back(field::agent, request_.agent);
    if (!request_.statuses.empty()) {
      members.emplace_back("statuses", Value::array(std::vector<Value>(request_.statuses.begin(),
                                                                       request_.statuses.end())));
    }
    if (!request_.labels.empty()) {
      std::vector<Member> labels;
      labels.reserve(request_.labels.size());
      for (const auto& [key, value] : request_.labels) labels.emplace_back(key, value);
      members.emplace_back(field::labels, Value::object(std::move(labels)));
    }
    return Value::object(std::move(members));
  }

  void count(const store::JobRow& row) {
    ++result_.jobs;
    result_.events += row.last_seq;
    if (!result_.oldest || row.updated_at < *result_.oldest) result_.oldest = row.updated_at;
    if (!result_.newest || row.updated_at > *result_.newest) result_.newest = row.updated_at;
  }

  store::Store& store_;
  const PruneRequest request_;
  const std::function<void(const JobId&)> on_deleted_;
  async::Done<Result<PruneResult>> done_;
  PruneResult result_;
  std::uint64_t after_ = 0;
  std::optional<std::uint64_t> next_;
  std::deque<store::JobRow> rows_;
  std::vector<store::JobRow> batch_;
  store::Pruning pruning_;
  std::vector<Archive::File> files_;
  std::size_t bytes_ = 0;
  std::set<JobId> skipped_;  // not listed again
  int tries_ = 0;
};

}  // namespace

Result<std::vector<Archive::File>> archive_of(const JobId& job, const store::LoadedJob& loaded) {
  AE_ASSIGN(const std::vector<Event> events, open_log(job, loaded));
  std::vector<Archive::File> files{{.name = job.text + ".json", .bytes = {}}};
  std::vector<Value> envelopes;
  envelopes.reserve(events.size());
  for (const Event& event : events) envelopes.push_back(envelope(job, event));
  files[0].bytes = canonical(Value::object(
                       {{"events", Value::array(std::move(envelopes))}, {"next", Value()}})) +
                   "\n";
  if (loaded.signed_head) {
    files.push_back({.name = job.text + ".signed_head", .bytes = *loaded.signed_head});
  }
  return files;
}

void prune(store::Store& store, PruneRequest request, std::function<void(const JobId&)> on_deleted,
           async::Done<Result<PruneResult>> done) {
  std::make_shared<Pruner>(store, std::move(request), std::move(on_deleted), std::move(done))
      ->load_page();
}

}  // namespace ae::runtime
