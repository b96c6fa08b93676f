// Observer: sits directly above the disk and records what really happened there, whatever the
// workers receive.
//
// It keeps the data that the checkers and the simulated users need (lease holders, declared calls,
// open waits), and checks the fencing rules at the moment of a violation. Answers pass through
// unchanged. Threads: the loop's.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "plan/plan_cache.h"
#include "sim/report.h"
#include "store/forwarding_store.h"

namespace ae::sim {

struct DeclaredCall {  // a durable declaration
  AttemptId attempt;
  std::string arguments_hash, external_key, idempotency_key;
  Instant send_by;
  std::uint64_t epoch = 0;  // of the claim at that time
  std::uint64_t order = 0;  // of the commit, among all commits on the disk
  std::string blind;        // of the job
};

struct OpenWait {
  std::string type, channel;
  std::string approval;   // the id in the list of approvals; "" = not listed
  bool question = false;  // asked by a tool during its call; answered by its key
};

struct ObservedJob {  // a job
  std::string status;
  std::uint64_t epoch = 0;
  std::string blind;
  Hash head;                         // of its log
  std::vector<std::string> commits;  // its log as stored bytes
  std::vector<Event> log;            // its log, decoded
  std::string queue{store::kDefaultQueue};
  std::optional<store::Fence> claim;
  Instant lease_until;
  bool cancel_requested = false;
  bool paused = false;
  std::vector<std::string> required;            // capabilities
  std::map<std::string, OpenWait> open_waits;   // by correlation key
  std::map<std::string, std::string> requests;  // the newest request to approve a call, by step
  std::uint64_t events = 0;                     // in its log
  std::map<std::string, std::uint64_t, std::less<>> done;  // the step_committed event of each node
  std::set<std::string> open_mismatches;  // steps with an open verification mismatch
  std::string parked;                     // the reason
  Value budget;                           // given at creation; null = none
  std::optional<JobParent> parent;        // of a child job
  bool is_awaited_by(const JobId& job) const {
    return parent && parent->detached != true && job.text.view() == parent->job_id;
  }
};

class Observer final : public store::ForwardingStore<Observer> {
 public:
  explicit Observer(Report& report) : report_(report) {}

  void set_inner(store::Store* inner) { inner_ = inner; }  // borrowed; nullptr = the disk is closed
  // Canaries: a disk that does not keep what it acknowledges.
  void set_losing_inbox_entries(bool is_enabled) { loses_inbox_entries_ = is_enabled; }
  void set_losing_child_requests(bool is_enabled) { loses_child_requests_ = is_enabled; }
  void set_ignoring_limits(bool is_enabled) { ignores_limits_ = is_enabled; }
  void set_withheld_job(std::optional<JobId> job) { withheld_job_ = std::move(job); }
  void set_false_approvals(bool is_enabled) {
    approves_falsely_ = is_enabled;
  }  // a rejection becomes an approval
  void set_double_messages(bool is_enabled) {
    doubles_messages_ = is_enabled;
  }  // a message is stored twice
  // A cache, so that plans need not be compiled again.
  void set_plan_cache(const engine::PlanCache* plans) { plans_ = plans; }
  // Sets the capabilities of this worker.
  void set_capabilities(const std::string& worker, std::vector<std::string> capabilities) {
    capabilities_[worker] = std::move(capabilities);
  }
  // No worker may ever claim beyond the limits of these queues.
  void limits(std::vector<store::QueueLimit> queues) { limits_ = std::move(queues); }
  // The single owner has opened the store: every earlier lease is over.
  void on_opened_by_owner();

  const std::map<JobId, ObservedJob>& jobs() const { return jobs_; }
  const DeclaredCall* declared_call(const InvocationId& invocation, std::uint32_t try_no) const;
  // True if a result of this call was on the disk when this try was declared. Late results do not
  // count.
  bool was_answered_before(const DeclaredCall& declared_call,
                           const InvocationId& invocation) const {
    const auto answered = answered_.find(invocation.text);
    return answered != answered_.end() && answered->second < declared_call.order;
  }
  // True if a call with this key was ever declared.
  bool was_declared(const std::string& idempotency_key) const {
    return declared_.contains(idempotency_key);
  }
  std::uint64_t writes() const { return writes_; }  // calls so far that may change something
  // A batch with events is being written: a failpoint inside of it comes before its COMMIT.
  bool inside_batch() const { return inside_batch_; }

  void commit(store::Batch batch, async::Done<Result<store::CommitResult>> done) override;
  void put_inbox(JobId job, store::InboxEntry entry, async::Done<Result<void>> done) override;
  void claim(store::ClaimRequest request,
             async::Done<Result<std::vector<store::Lease>>> done) override;
  void claim_job(JobId job, store::ClaimRequest request,
                 async::Done<Result<std::optional<store::Lease>>> done) override;
  void heartbeat(std::vector<std::pair<JobId, store::Fence>> held, Duration lease,
                 async::Done<Result<std::vector<std::optional<Instant>>>> done) override;
  void prune(store::Pruning pruning, async::Done<Result<bool>> done) override {
    writes_++;
    inner_->prune(std::move(pruning), std::move(done));
  }
  void redact(store::Redaction redaction, async::Done<Result<void>> done) override {
    writes_++;
    inner_->redact(std::move(redaction), std::move(done));
  }
  void append_audit_entry(store::AuditEntry entry, async::Done<Result<void>> done) override {
    writes_++;
    inner_->append_audit_entry(std::move(entry), std::move(done));
  }
  void announce(std::string, std::string, Duration) override {}
  void on_hint(std::function<void(const store::Hint&)>) override {}
  Instant latest_now() override { return now(); }

 private:
  friend store::ForwardingStore<Observer>;
  store::Store& inner() const { return *inner_; }
  struct PendingCommit {  // the content of a commit in progress
    JobId job;
    Instant at;
    store::Batch::Authority authority;
    std::string bytes;  // sealed; "" = no events
    std::vector<Blob> blobs;
    std::string status;
    bool release = false;
    std::vector<std::string> answered;  // invocations with a successful effect record
  };
  void committed(const PendingCommit& written, const store::CommitResult& answer);
  void apply_event(const JobId& job, ObservedJob& observed, const Event& event);
  void apply_creation(const JobId& job, ObservedJob& observed, const JobCreated& event);
  void check_children(const JobId& job, const Event& event);
  void apply_call(const ObservedJob& observed, const Event& event);
  void falsify(const JobId& job, store::InboxEntry& entry);
  void apply_decision(ObservedJob& observed, const Event& event);
  void wait_opened(ObservedJob& observed, const WaitOpened& wait);
  void check_capabilities(const JobId& job, const ObservedJob& observed, const std::string& worker);
  void on_claimed(const store::Lease& lease, Instant at);
  void check_queue_limit(const JobId& job, const ObservedJob& observed, Instant at);

  Report& report_;
  store::Store* inner_ = nullptr;
  std::map<JobId, ObservedJob> jobs_;
  std::map<std::pair<std::string, std::uint32_t>, DeclaredCall> declared_calls_;
  std::uint64_t writes_ = 0, order_ = 0;
  std::map<std::string, std::uint64_t> answered_;  // order of the commit, by invocation
  std::set<std::string> declared_;                 // idempotency keys
  std::map<std::string, std::vector<std::string>> capabilities_;  // by worker
  bool ignores_limits_ = false, loses_child_requests_ = false;
  bool inside_batch_ = false, loses_inbox_entries_ = false, approves_falsely_ = false,
       doubles_messages_ = false;
  std::optional<JobId> withheld_job_;
  std::vector<store::QueueLimit> limits_;
  const engine::PlanCache* plans_ = nullptr;
};

}  // namespace ae::sim
