#include "store/memory/memory_store.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>

#include "store/batch_failpoints.h"
#include "store/claim_order.h"
#include "store/rules.h"

namespace ae::store {
namespace {

using Slot = std::pair<std::string, std::uint32_t>;  // invocation, try

struct Commit {
  std::uint64_t first_seq = 0;
  std::string bytes;
  std::vector<Hash> blobs;
};

struct Job {
  std::uint64_t number = 0;  // order of creation
  JobRow row;
  Hash request_hash;
  std::uint64_t epoch = 0;  // of the last claim
  std::vector<Commit> commits;
  std::map<Slot, std::string> effects;
  std::map<Slot, LedgerRow> ledger;
  std::map<std::uint64_t, InboxEntry> inbox;
  std::map<std::string, std::string> replies;  // by id of the entry
  std::optional<std::string> signed_head;
  std::optional<Checkpoint> checkpoint;
};

template <class Item>
bool contains(const std::vector<Item>& items, const Item& item) {
  return std::ranges::find(items, item) != items.end();
}

std::vector<EffectRow> effect_rows_of(const std::map<Slot, std::string>& effects) {
  std::vector<EffectRow> rows;
  rows.reserve(effects.size());
  for (const auto& [slot, record] : effects) {
    rows.push_back({InvocationId(slot.first), slot.second, record});
  }
  return rows;
}

}  // namespace

// All jobs, and their indexes. Pointers to jobs are stable.
struct MemoryDisk::Data {
  std::map<std::uint64_t, Job> jobs;  // by number
  std::unordered_map<JobId, std::uint64_t> by_id;
  std::map<std::pair<std::string, std::string>, std::uint64_t> by_key;  // agent, idempotency key
  std::unordered_map<Hash, std::string> blobs;
  std::uint64_t last_job = 0, last_inbox = 0;
  AuditLog audit;
  struct Announcement {
    std::string text;
    Instant until;
  };
  std::map<std::string, Announcement> announcements;  // by worker

  void append_audit_entry(const AuditEntry& entry) {
    AuditRow row = chain_entry(audit.head, entry);
    audit.head = {row.seq, row.hash};
    audit.rows.push_back(std::move(row));
  }

  // Indexes: `ready` = claimable now, `eligible_at` = claimable at that instant, `wakes` = jobs
  // without a lease that have a wake_at, `held` = leased jobs.
  struct Needs {
    std::string agent;
    std::vector<std::string> capabilities;
    auto operator<=>(const Needs&) const = default;
  };
  using ReadyKey = std::tuple<std::string, Needs, std::int64_t, std::string, std::int64_t>;
  std::set<ReadyKey> ready;                             // queue, needs, -priority, key, number
  std::map<std::string, std::set<std::uint64_t>> held;  // by queue
  std::set<std::pair<Instant, std::uint64_t>> eligible_at;
  std::set<std::pair<Instant, std::uint64_t>> wakes;

  Job* find(const JobId& id) {
    const auto it = by_id.find(id);
    return it == by_id.end() ? nullptr : &jobs.at(it->second);
  }

  std::string fair_by;                       // a label; "" = no fairness keys
  std::map<std::int64_t, std::string> last;  // the last served fairness key, by priority

  ReadyKey ready_key(const Job& job) const {
    return {job.row.queue,
            {job.row.agent, job.row.capabilities},
            -job.row.priority,
            fairness_key_of(job.row.labels, fair_by),
            static_cast<std::int64_t>(job.number)};
  }

  // Call it before a job changes, and add_to_indexes after that.
  void remove_from_indexes(const Job& job) {
    const JobRow& row = job.row;
    ready.erase(ready_key(job));
    if (row.claim) held[row.queue].erase(job.number);
    if (row.lease_until) eligible_at.erase({*row.lease_until, job.number});
    if (row.not_before) eligible_at.erase({*row.not_before, job.number});
    if (row.wake_at) wakes.erase({*row.wake_at, job.number});
  }
  void add_to_indexes(const Job& job) {
    const JobRow& row = job.row;
    if (!row.claim && row.wake_at) wakes.insert({*row.wake_at, job.number});
    if (!is_runnable(row.status)) return;
    if (row.claim) {
      held[row.queue].insert(job.number);
      eligible_at.insert({*row.lease_until, job.number});
    } else if (row.not_before) {
      eligible_at.insert({*row.not_before, job.number});
    } else {
      ready.insert(ready_key(job));
    }
  }
  void become_eligible(Instant now) {
    while (!eligible_at.empty() && eligible_at.begin()->first <= now) {
      const Job& job = jobs.at(eligible_at.begin()->second);
      eligible_at.erase(eligible_at.begin());
      ready.insert(ready_key(job));
    }
  }

  void set_fairness_label(const std::string& label) {
    if (label == fair_by) return;
    std::vector<std::uint64_t> numbers;
    numbers.reserve(ready.size());
    for (const ReadyKey& one : ready)
      numbers.push_back(static_cast<std::uint64_t>(std::get<4>(one)));
    fair_by = label;
    last.clear();
    ready.clear();
    for (const std::uint64_t number : numbers) ready.insert(ready_key(jobs.at(number)));
  }
  std::size_t live(const std::string& queue, Instant now) {
    return static_cast<std::size_t>(std::ranges::count_if(
        held[queue], [&](std::uint64_t number) { return jobs.at(number).row.lease_until > now; }));
  }

  Lease claim(Job& job, const std::string& worker, const AttemptId& attempt, Instant until) {
    remove_from_indexes(job);
    job.row.claim = Fence{attempt, ++job.epoch};
    job.row.claim_worker = worker;
    job.row.lease_until = until;
    add_to_indexes(job);
    return {job.row.id, *job.row.claim, until};
  }
  void release(Job& job) {
    job.row.claim.reset();
    job.row.claim_worker.clear();
    job.row.lease_until.reset();
  }

  // Deletes the blobs that no commit of any job references.
  void drop_blobs() {
    std::set<Hash> named;
    for (const auto& [number, job] : jobs) {
      for (const Commit& commit : job.commits) {
        named.insert(commit.blobs.begin(), commit.blobs.end());
      }
    }
    std::erase_if(blobs, [&](const auto& blob) { return !named.contains(blob.first); });
  }

  bool is_committed(const Job& job, const SealedBatch& sealed) const {
    const auto it = std::ranges::lower_bound(job.commits, sealed.first_seq, {}, &Commit::first_seq);
    return it != job.commits.end() && it->first_seq == sealed.first_seq &&
           it->bytes == sealed.bytes;
  }

  Result<CommitResult> commit(const Batch& batch, BatchFailpoints& failpoints, bool& written);
  Result<CommitResult> create(const Batch& batch, BatchFailpoints& failpoints, Instant now,
                              bool& written);
  void append(Job& job, const SealedBatch& sealed, const RowState& row);
};

Result<CommitResult> MemoryDisk::Data::commit(const Batch& batch, BatchFailpoints& failpoints,
                                              bool& written) {
  Job* job = find(batch.job);
  if (job == nullptr) return std::unexpected(job_not_found(batch.job));
  if (batch.sealed && is_committed(*job, *batch.sealed)) {
    return CommitResult{.last_seq = batch.sealed->last_seq, .is_duplicate = true};
  }
  AE_TRY(check_precondition(batch, {.last_seq = job->row.last_seq, .claim = job->row.claim}));
  if (has_first_commit_check(batch))
    AE_TRY(check_late_precondition(batch, job->commits.front().bytes));
  for (const auto& [invocation, try_no] : batch.effects_absent) {
    if (job->effects.contains({invocation.text, try_no})) {
      return std::unexpected(effect_recorded(batch.job, invocation));
    }
  }
  if (batch.release || batch.inbox_read_through) {
    for (const auto& [number, entry] : job->inbox) {
      if (is_refused_by_inbox(batch, number)) return std::unexpected(inbox_not_empty(batch.job));
    }
  }
  if (auto error = failpoints.before_commit()) return std::unexpected(*std::move(error));

  written = true;
  remove_from_indexes(*job);
  if (batch.sealed) append(*job, *batch.sealed, batch.row);
  for (const EffectRow& e : batch.effects)
    job->effects.emplace(Slot(e.invocation.text, e.try_no), e.record);
  for (const LedgerRow& l : batch.ledger_put) {
    job->ledger.insert_or_assign(Slot(l.invocation.text, l.try_no), l);
  }
  for (const auto& [invocation, try_no] : batch.ledger_erase) {
    job->ledger.erase(Slot(invocation.text, try_no));
  }
  for (const InboxReply& one : batch.inbox_replies) {
    const auto entry = job->inbox.find(one.number);
    if (entry != job->inbox.end()) job->replies[entry->second.id] = one.reply;
  }
  for (const std::uint64_t number : batch.inbox_consumed) job->inbox.erase(number);
  if (batch.signed_head) job->signed_head = batch.signed_head;
  if (batch.checkpoint) job->checkpoint = Checkpoint{job->row.last_seq, *batch.checkpoint};
  if (batch.release) release(*job);
  add_to_indexes(*job);
  if (batch.audit) append_audit_entry(*batch.audit);
  return CommitResult{.last_seq = job->row.last_seq};
}

Result<CommitResult> MemoryDisk::Data::create(const Batch& batch, BatchFailpoints& failpoints,
                                              Instant now, bool& written) {
  const NewJob& requested = std::get<Batch::Create>(batch.authority).job;
  if (Job* job = find(batch.job); job != nullptr && is_committed(*job, *batch.sealed)) {
    CommitResult answer{.last_seq = batch.sealed->last_seq, .is_duplicate = true};
    if (requested.claim && job->row.claim == Fence{requested.claim->attempt, 1}) {
      answer.lease = Lease{batch.job, *job->row.claim, *job->row.lease_until};
    }
    return answer;
  }
  if (!requested.idempotency_key.empty()) {
    if (const auto it = by_key.find({requested.agent, requested.idempotency_key});
        it != by_key.end()) {
      const Job& job = jobs.at(it->second);
      return CommitResult{.last_seq = job.row.last_seq,
                          .existing = job.row.id,
                          .existing_request = job.request_hash};
    }
  }
  if (by_id.contains(batch.job)) return std::unexpected(job_exists(batch.job));
  if (auto error = failpoints.before_commit()) return std::unexpected(*std::move(error));

  written = true;
  Job& job = jobs[++last_job];
  job.number = last_job;
  job.row.number = last_job;
  job.request_hash = requested.request_hash;
  JobRow& row = job.row;
  row.id = batch.job;
  row.agent = requested.agent;
  row.idempotency_key = requested.idempotency_key;
  row.labels = requested.labels;
  row.priority = requested.priority;
  row.capabilities = requested.capabilities;
  row.queue = requested.queue;
  row.created_at = batch.sealed->created_at;
  by_id.emplace(batch.job, job.number);
  if (!requested.idempotency_key.empty())
    by_key.emplace(std::pair(requested.agent, requested.idempotency_key), job.number);
  append(job, *batch.sealed, batch.row);
  for (const EffectRow& e : batch.effects)
    job.effects.emplace(Slot(e.invocation.text, e.try_no), e.record);
  for (const LedgerRow& l : batch.ledger_put)
    job.ledger.insert_or_assign(Slot(l.invocation.text, l.try_no), l);
  job.signed_head = batch.signed_head;
  if (batch.audit) append_audit_entry(*batch.audit);
  CommitResult answer{.last_seq = row.last_seq};
  if (requested.claim) {
    answer.lease =
        claim(job, requested.claim->worker, requested.claim->attempt, now + requested.claim->lease);
  } else {
    add_to_indexes(job);
  }
  return answer;
}

void MemoryDisk::Data::append(Job& job, const SealedBatch& sealed, const RowState& state) {
  Commit commit{.first_seq = sealed.first_seq, .bytes = sealed.bytes, .blobs = {}};
  for (const Blob& blob : sealed.blobs) {
    commit.blobs.push_back(blob.hash);
    blobs.try_emplace(blob.hash, blob.bytes);
  }
  job.commits.push_back(std::move(commit));
  JobRow& row = job.row;
  row.last_seq = sealed.last_seq;
  row.head = sealed.head;
  row.updated_at = sealed.created_at;
  row.status = state.status;
  row.not_before = state.not_before;
  row.wake_at = state.wake_at;
  row.pending = state.pending;
}

// The Source of ClaimOrder.
class MemoryStore::ReadyJobs {
 public:
  using Failure = Error;
  struct Group {
    std::string queue;
    Data::Needs needs;
    std::int64_t priority = 0;
  };
  ReadyJobs(Data& data, const ClaimRequest& request, Instant now)
      : data_(data), request_(request), excluded_(request), now_(now) {}

  Result<std::vector<Group>> groups() const {
    std::vector<Group> groups;
    auto it = data_.ready.begin();
    while (it != data_.ready.end()) {
      Group group{std::get<0>(*it), std::get<1>(*it), -std::get<2>(*it)};
      it = data_.ready.upper_bound({group.queue, group.needs, kMax, {}, kMax});
      if (satisfies(request_, group.needs.agent, group.needs.capabilities)) {
        groups.push_back(std::move(group));
      }
    }
    return groups;
  }
  Result<std::size_t> count_leased(const std::string& queue, std::size_t) const {
    return data_.live(queue, now_);
  }
  Result<std::optional<std::int64_t>> priority_below(const Group& group,
                                                     std::int64_t priority) const {
    const auto it = data_.ready.lower_bound({group.queue, group.needs, 1 - priority, {}, 0});
    if (!is_of(it, group)) return std::nullopt;
    return -std::get<2>(*it);
  }
  Result<std::optional<std::string>> fairness_key_after(
      const Group& group, std::int64_t priority,
      const std::optional<std::string>& fairness_key) const {
    const auto it =
        fairness_key
            ? data_.ready.upper_bound({group.queue, group.needs, -priority, *fairness_key, kMax})
            : data_.ready.lower_bound({group.queue, group.needs, -priority, {}, 0});
    if (!is_of(it, group) || std::get<2>(*it) != -priority) return std::nullopt;
    return std::get<3>(*it);
  }
  Result<std::optional<ReadyJob>> job_after(const Group& group, std::int64_t priority,
                                            const std::string& fairness_key,
                                            std::int64_t number) const {
    const auto it =
        data_.ready.upper_bound({group.queue, group.needs, -priority, fairness_key, number});
    if (!is_of(it, group) || std::get<2>(*it) != -priority || std::get<3>(*it) != fairness_key) {
      return std::nullopt;
    }
    const JobRow& row = data_.jobs.at(static_cast<std::uint64_t>(std::get<4>(*it))).row;
    // The lease may be still valid if the clock was set back.
    const bool free = !row.lease_until || *row.lease_until <= now_;
    return ReadyJob{row.id, std::get<4>(*it), free && !excluded_.contains(row.id)};
  }
  Result<std::optional<std::string>> last_served_key_at(std::int64_t priority) const {
    const auto it = data_.last.find(priority);
    if (!is_fair() || it == data_.last.end()) return std::nullopt;
    return it->second;
  }
  bool is_fair() const { return !data_.fair_by.empty(); }

 private:
  static constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  bool is_of(const std::set<Data::ReadyKey>::iterator& it, const Group& group) const {
    return it != data_.ready.end() && std::get<0>(*it) == group.queue &&
           std::get<1>(*it) == group.needs;
  }

  Data& data_;
  const ClaimRequest& request_;
  const ExcludedJobs excluded_;
  const Instant now_;
};

MemoryDisk::MemoryDisk() : data_(std::make_unique<Data>()) {}
MemoryDisk::~MemoryDisk() = default;
MemoryDisk::MemoryDisk(const MemoryDisk& other) : data_(std::make_unique<Data>(*other.data_)) {}
MemoryDisk& MemoryDisk::operator=(const MemoryDisk& other) {
  *data_ = *other.data_;
  return *this;
}

MemoryStore::MemoryStore(async::Loop& loop, async::Clock& clock, MemoryDisk& disk, Options options)
    : loop_(loop),
      clock_(clock),
      data_(*disk.data_),
      options_(std::move(options)),
      opened_at_(options_.owned ? std::optional(clock.now()) : std::nullopt) {
  if (options_.fair_by) data_.set_fairness_label(*options_.fair_by);
  if (!options_.owned) return;
  for (auto& [number, job] : data_.jobs) {
    if (!job.row.claim) continue;
    data_.remove_from_indexes(job);
    job.row.lease_until = Instant{0};
    data_.add_to_indexes(job);
  }
}
MemoryStore::MemoryStore(async::Loop& loop, async::Clock& clock, MemoryDisk& disk)
    : MemoryStore(loop, clock, disk, Options{}) {}
MemoryStore::MemoryStore(async::Loop& loop, async::Clock& clock)
    : loop_(loop),
      clock_(clock),
      own_disk_(std::make_unique<MemoryDisk>()),
      data_(*own_disk_->data_),
      options_{},
      opened_at_(clock.now()) {}
MemoryStore::~MemoryStore() = default;

template <class T>
void MemoryStore::answer(async::Done<T> done, T value) {
  loop_.post(
      [done = std::move(done), value = std::move(value)]() mutable { done(std::move(value)); });
}

void MemoryStore::commit(Batch batch, async::Done<Result<CommitResult>> done) {
  check_batch(batch);
  BatchFailpoints failpoints(batch);
  const auto run = [&]() -> Result<CommitResult> {
    if (auto error = failpoints.before()) return std::unexpected(*std::move(error));
    bool written = false;
    auto result = std::holds_alternative<Batch::Create>(batch.authority)
                      ? data_.create(batch, failpoints, clock_.now(), written)
                      : data_.commit(batch, failpoints, written);
    if (!written) return result;
    if (auto error = failpoints.after()) return std::unexpected(*std::move(error));
    return result;
  };
  answer(std::move(done), run());
}

void MemoryStore::put_inbox(JobId job, InboxEntry entry, async::Done<Result<void>> done) {
  const auto run = [&]() -> Result<void> {
    Job* found = data_.find(job);
    if (found == nullptr) return std::unexpected(job_not_found(job));
    if (!found->row.claim) return std::unexpected(job_not_leased(job));
    const bool waits = std::ranges::any_of(
        found->inbox, [&](const auto& other) { return other.second.id == entry.id; });
    if (!waits) {
      entry.number = ++data_.last_inbox;
      found->replies.erase(entry.id);
      found->inbox.emplace(entry.number, std::move(entry));
    }
    if (auto error = hit_after_failpoint("signal.after_inbox"))
      return std::unexpected(*std::move(error));
    return {};
  };
  answer(std::move(done), run());
}

void MemoryStore::claim(ClaimRequest request, async::Done<Result<std::vector<Lease>>> done) {
  check_claim(request);
  const Instant now = clock_.now();
  data_.become_eligible(now);
  ReadyJobs ready(data_, request, now);
  ClaimOrder order(ready, request);
  const std::vector<JobId> chosen = *order.choose_jobs();
  for (const auto& [priority, fairness_key] : order.served_keys())
    data_.last[priority] = fairness_key;
  std::vector<Lease> leases;
  leases.reserve(chosen.size());
  for (const JobId& job : chosen) {
    leases.push_back(data_.claim(*data_.find(job), request.worker, request.attempts[leases.size()],
                                 now + request.lease));
  }
  Result<std::vector<Lease>> result(std::move(leases));
  if (!result->empty()) {
    if (auto error = hit_after_failpoint("claim.after"))
      result = std::unexpected(*std::move(error));
  }
  answer(std::move(done), std::move(result));
}

void MemoryStore::claim_job(JobId id, ClaimRequest request,
                            async::Done<Result<std::optional<Lease>>> done) {
  check_claim(request);
  const Instant now = clock_.now();
  const auto run = [&]() -> Result<std::optional<Lease>> {
    Job* job = data_.find(id);
    if (job == nullptr) return std::unexpected(job_not_found(id));
    const JobRow& row = job->row;
    if (!is_runnable(row.status) || request.limit == 0) return std::nullopt;
    if (row.claim ? *row.lease_until > now : row.not_before && *row.not_before > now)
      return std::nullopt;
    if (!matches(request, {id, row.agent, row.capabilities})) return std::nullopt;
    if (const auto limit = queue_limit_of(request, row.queue);
        limit && data_.live(row.queue, now) >= *limit) {
      return std::nullopt;
    }
    Lease lease = data_.claim(*job, request.worker, request.attempts[0], now + request.lease);
    if (auto error = hit_after_failpoint("claim.after")) return std::unexpected(*std::move(error));
    return lease;
  };
  answer(std::move(done), run());
}

void MemoryStore::heartbeat(std::vector<std::pair<JobId, Fence>> held, Duration lease,
                            async::Done<Result<std::vector<std::optional<Instant>>>> done) {
  const Instant now = clock_.now();
  BeforeFailpoint point = hit_before_failpoint("heartbeat.before");
  if (point.now) {
    return answer(std::move(done), Result<std::vector<std::optional<Instant>>>(
                                       std::unexpected(*std::move(point.now))));
  }
  std::vector<std::optional<Instant>> until;
  until.reserve(held.size());
  for (const auto& [id, fence] : held) {
    Job* job = data_.find(id);
    if (job == nullptr || job->row.claim != fence || *job->row.lease_until <= now) {
      until.push_back(std::nullopt);
      continue;
    }
    data_.remove_from_indexes(*job);
    job->row.lease_until = now + lease;
    data_.add_to_indexes(*job);
    until.push_back(job->row.lease_until);
  }
  Result<std::vector<std::optional<Instant>>> result(std::move(until));
  if (point.afterwards) result = std::unexpected(*std::move(point.afterwards));
  answer(std::move(done), std::move(result));
}

void MemoryStore::list_due(std::size_t limit, async::Done<Result<std::vector<JobId>>> done) {
  const Instant now = clock_.now();
  std::vector<JobId> jobs;
  for (const auto& [wake_at, number] : data_.wakes) {
    if (wake_at > now || jobs.size() == limit) break;
    jobs.push_back(data_.jobs.at(number).row.id);
  }
  answer(std::move(done), Result<std::vector<JobId>>(std::move(jobs)));
}

void MemoryStore::next_due(async::Done<Result<std::optional<Instant>>> done) {
  const Instant now = clock_.now();
  std::optional<Instant> next;
  if (!data_.wakes.empty()) next = data_.wakes.begin()->first;
  const auto future =
      data_.eligible_at.upper_bound({now, std::numeric_limits<std::uint64_t>::max()});
  for (auto it = future; it != data_.eligible_at.end(); ++it) {
    if (next && it->first >= *next) break;
    if (data_.jobs.at(it->second).row.claim) continue;  // the end of a lease is not scheduled work
    next = it->first;
    break;
  }
  answer(std::move(done), Result<std::optional<Instant>>(next));
}

void MemoryStore::load(JobId id, std::uint64_t from_seq, async::Done<Result<LoadedJob>> done) {
  const auto run = [&]() -> Result<LoadedJob> {
    const Job* job = data_.find(id);
    if (job == nullptr) return std::unexpected(job_not_found(id));
    LoadedJob loaded{.row = job->row};
    if (from_seq == kFirstCommit) {
      const Commit& first = job->commits.front();
      loaded.commits.push_back(first.bytes);
      for (const Hash& hash : std::set<Hash>(first.blobs.begin(), first.blobs.end())) {
        loaded.blobs.push_back({hash, data_.blobs.at(hash)});
      }
      return loaded;
    }
    loaded.signed_head = job->signed_head;
    if (from_seq <= 1) loaded.checkpoint = job->checkpoint;
    if (from_seq == 1) loaded.request_hash = job->request_hash;
    if (from_seq == kFromCheckpoint) from_seq = job->checkpoint ? job->checkpoint->seq + 1 : 1;
    auto it = std::ranges::upper_bound(job->commits, from_seq, {}, &Commit::first_seq);
    if (it != job->commits.begin()) --it;
    if (from_seq > job->row.last_seq) it = job->commits.end();
    std::set<Hash> seen;
    for (; it != job->commits.end(); ++it) {
      loaded.commits.push_back(it->bytes);
      for (const Hash& hash : it->blobs) {
        if (seen.insert(hash).second) loaded.blobs.push_back({hash, data_.blobs.at(hash)});
      }
    }
    loaded.effects = effect_rows_of(job->effects);
    for (const auto& [slot, row] : job->ledger) loaded.ledger.push_back(row);
    for (const auto& [number, entry] : job->inbox) loaded.inbox.push_back(entry);
    return loaded;
  };
  answer(std::move(done), run());
}

void MemoryStore::read_inbox_entry(JobId job, std::string id,
                                   async::Done<Result<InboxEntryState>> done) {
  const auto run = [&]() -> Result<InboxEntryState> {
    const Job* found = data_.find(job);
    if (found == nullptr) return std::unexpected(job_not_found(job));
    InboxEntryState state;
    state.pending =
        std::ranges::any_of(found->inbox, [&](const auto& entry) { return entry.second.id == id; });
    if (const auto reply = found->replies.find(id); reply != found->replies.end())
      state.reply = reply->second;
    return state;
  };
  answer(std::move(done), run());
}

void MemoryStore::query(Filter filter, async::Done<Result<std::vector<JobRow>>> done) {
  const auto run = [&]() -> Result<std::vector<JobRow>> {
    auto it = data_.jobs.end();
    if (filter.after_number) {
      it = data_.jobs.lower_bound(*filter.after_number);
    } else if (!filter.after.empty()) {
      const auto found = data_.by_id.find(JobId(filter.after));
      if (found == data_.by_id.end()) return std::unexpected(job_not_found(JobId(filter.after)));
      it = data_.jobs.find(found->second);
    }
    const auto matches = [&](const JobRow& row) {
      return (filter.status.empty() || row.status == filter.status) &&
             (filter.agent.empty() || row.agent == filter.agent) &&
             (!filter.updated_before || row.updated_at < *filter.updated_before) &&
             (filter.pending == 0 || (row.pending & filter.pending) != 0) &&
             std::ranges::all_of(filter.labels,
                                 [&](const auto& label) { return contains(row.labels, label); });
    };
    std::vector<JobRow> rows;
    while (it != data_.jobs.begin() && rows.size() < filter.limit) {
      --it;
      if (matches(it->second.row)) rows.push_back(it->second.row);
    }
    return rows;
  };
  answer(std::move(done), run());
}

void MemoryStore::list_ended(EndedFilter filter, async::Done<Result<EndedPage>> done) {
  std::vector<JobRow> scanned;
  for (auto it = data_.jobs.upper_bound(filter.after);
       it != data_.jobs.end() && scanned.size() < kEndedScanMax; ++it) {
    scanned.push_back(it->second.row);
  }
  answer(std::move(done), Result<EndedPage>(make_ended_page(std::move(scanned), filter)));
}

void MemoryStore::prune(Pruning pruning, async::Done<Result<bool>> done) {
  check_pruning(pruning);
  const auto find_candidate = [&](const JobId& id) -> std::optional<PruneCandidate> {
    const Job* job = data_.find(id);
    if (job == nullptr) return std::nullopt;
    std::vector<Hash> commits;
    commits.reserve(job->commits.size());
    for (const Commit& commit : job->commits) commits.push_back(sha256(commit.bytes));
    return PruneCandidate{.status = job->row.status,
                          .held = job->row.claim.has_value(),
                          .last_seq = job->row.last_seq,
                          .head = job->row.head,
                          .content_hash = content_hash_of(commits, job->signed_head)};
  };
  const auto run = [&]() -> Result<bool> {
    BeforeFailpoint point = hit_before_failpoint("prune.before");
    if (point.now) return std::unexpected(*std::move(point.now));
    for (const Pruning::Job& requested : pruning.jobs)
      AE_TRY(check_prunable(requested, find_candidate(requested.job)));
    for (const Pruning::Job& requested : pruning.jobs) {
      const Job& job = *data_.find(requested.job);
      data_.remove_from_indexes(job);
      if (!job.row.idempotency_key.empty()) {
        data_.by_key.erase({job.row.agent, job.row.idempotency_key});
      }
      data_.jobs.erase(job.number);
      data_.by_id.erase(requested.job);
    }
    data_.drop_blobs();
    data_.append_audit_entry(pruning.audit);
    if (point.afterwards) return std::unexpected(*std::move(point.afterwards));
    if (auto error = hit_after_failpoint("prune.after")) return std::unexpected(*std::move(error));
    return true;
  };
  answer(std::move(done), run());
}

void MemoryStore::redact(Redaction redaction, async::Done<Result<void>> done) {
  const auto run = [&]() -> Result<void> {
    Job* job = data_.find(redaction.job);
    if (job == nullptr) return std::unexpected(job_not_found(redaction.job));
    if (job->row.claim) return std::unexpected(job_still_leased(redaction.job));
    std::vector<Commit*> stored;
    bool changes = false;
    for (const Redaction::Commit& requested : redaction.commits) {
      const auto it = std::ranges::find(job->commits, requested.first_seq, &Commit::first_seq);
      const bool exists = it != job->commits.end();
      const bool same = exists && it->bytes == requested.bytes;
      if (!exists || (!same && sha256(it->bytes) != requested.expected_hash)) {
        return std::unexpected(commit_changed(redaction.job, requested.first_seq));
      }
      stored.push_back(&*it);
      changes = changes || !same;
    }
    std::map<Slot, std::string> records;
    for (const EffectRow& effect : redaction.effects) {
      records[{effect.invocation.text, effect.try_no}] = effect.record;
    }
    for (const auto& [slot, record] : job->effects) {
      const auto requested = records.find(slot);
      if (requested == records.end()) return std::unexpected(effects_changed(redaction.job));
      changes = changes || requested->second != record;
    }
    if (!changes) return {};
    for (auto& [slot, record] : job->effects) record = records.at(slot);
    for (std::size_t i = 0; i < stored.size(); ++i) {
      stored[i]->bytes = redaction.commits[i].bytes;
      stored[i]->blobs = redaction.commits[i].blobs;
    }
    data_.drop_blobs();
    job->checkpoint.reset();
    data_.append_audit_entry(redaction.audit);
    return {};
  };
  answer(std::move(done), run());
}

void MemoryStore::erase_dropped_values(async::Done<Result<std::vector<ResidualCopy>>> done) {
  answer(std::move(done), Result<std::vector<ResidualCopy>>());  // no files
}

void MemoryStore::append_audit_entry(AuditEntry entry, async::Done<Result<void>> done) {
  data_.append_audit_entry(entry);
  answer(std::move(done), Result<void>());
}

void MemoryStore::read_audit_log(std::uint64_t after, async::Done<Result<AuditLog>> done) {
  AuditLog log{.head = data_.audit.head};
  const auto& rows = data_.audit.rows;  // the first seq is 1
  log.rows.assign(rows.begin() + static_cast<std::ptrdiff_t>(std::min(after, rows.size())),
                  rows.end());
  answer(std::move(done), Result<AuditLog>(std::move(log)));
}

void MemoryStore::count_jobs(async::Done<Result<JobStats>> done) {
  JobStats job_stats;
  for (const char* status : {"queued", "running", "waiting", "parked"})
    job_stats.statuses[status] = 0;
  const Instant now = clock_.now();
  for (const auto& [number, job] : data_.jobs) {
    const JobRow& row = job.row;
    const auto status = job_stats.statuses.find(row.status);
    if (status == job_stats.statuses.end()) continue;
    ++status->second;
    if (row.claim) {
      JobStats::Worker& worker = job_stats.workers[row.claim_worker];
      ++(*row.lease_until > now ? worker.live : worker.expired);
    } else if (data_.ready.contains(data_.ready_key(job))) {
      ++job_stats.ready[row.queue];
    }
  }
  for (const auto& [worker, announcement] : data_.announcements) {
    if (announcement.until > now) job_stats.workers[worker].announcement = announcement.text;
  }
  answer(std::move(done), Result<JobStats>(std::move(job_stats)));
}

void MemoryStore::announce(std::string worker, std::string announcement, Duration ttl) {
  if (options_.owned) return;
  data_.announcements.insert_or_assign(
      std::move(worker), Data::Announcement{std::move(announcement), clock_.now() + ttl});
}

Instant MemoryStore::now() { return clock_.now(); }
bool MemoryStore::owned() const { return options_.owned; }

}  // namespace ae::store
