// Witness: stands right above the disk and sees what truly happened, whatever the workers are told.
//
// It keeps what the checkers and the people of the simulated world need (who holds a job, what is declared, which waits
// are open) and raises the fencing rules at the moment they are broken. The answers pass unchanged.
// Threads: the loop's.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "plan/plan_cache.h"
#include "sim/report.h"
#include "store/store.h"

namespace ae::sim {

struct Intent {  // a durable declaration
  AttemptId attempt;
  std::string arguments_hash, external_key, idempotency_key;
  Instant send_by;
  std::uint64_t epoch = 0;  // of the claim that stood
  std::uint64_t order = 0;  // of the commit, among all of the disk
  std::string blind;        // of the job
};

struct OpenWait {
  std::string type, channel;
  std::string approval;   // the id under which it is listed among the approvals; "" = it is not
  bool question = false;  // of a tool in the middle of its call; answered by its key
};

struct Seen {  // of a job
  std::string status;
  std::uint64_t epoch = 0;
  std::string blind;
  Hash head;                         // of its log
  std::vector<std::string> commits;  // its log, as it was written
  std::vector<Event> log;            // and as it reads
  std::string queue{store::kDefaultQueue};
  std::optional<store::Fence> claim;
  Instant lease_until;
  bool cancel_requested = false;
  bool paused = false;
  std::vector<std::string> required;            // capabilities
  std::map<std::string, OpenWait> open_waits;   // by correlation key
  std::map<std::string, std::string> requests;  // the newest request to approve a call, by step
  std::uint64_t events = 0;                     // in its log
  std::map<std::string, std::uint64_t, std::less<>> done;  // the step_committed of each node
  std::set<std::string>
      raised;          // steps of which somebody is asked whether what they changed is well
  std::string parked;  // why
  Value budget;        // that it was made with; null = none
};

class Witness final : public store::Store {
 public:
  explicit Witness(Report& report) : report_(report) {}

  void stand_on(store::Store* inner) { inner_ = inner; }  // borrowed; nullptr = the disk is gone
  // Canaries: a disk that does not keep what it says.
  void forget_posts(bool wish) { forget_posts_ = wish; }
  void forget_limits(bool wish) { forgets_limits_ = wish; }
  void never_give(std::optional<JobId> job) { never_given_ = std::move(job); }
  void say_yes(bool wish) { says_yes_ = wish; }      // a person's no becomes a yes
  void say_twice(bool wish) { says_twice_ = wish; }  // a message is there twice
  // Plans that need not be read again.
  void know_plans(const engine::PlanCache* plans) { plans_ = plans; }
  // From now on this worker has these.
  void offers(const std::string& worker, std::vector<std::string> capabilities) {
    offers_[worker] = std::move(capabilities);
  }
  // Of these queues, no worker may ever claim beyond the limit.
  void limits(std::vector<store::QueueLimit> queues) { limits_ = std::move(queues); }
  // The store was opened by its only owner: every earlier lease is over.
  void opened_by_owner();

  const std::map<JobId, Seen>& jobs() const { return jobs_; }
  const Intent* intent(const InvocationId& invocation, std::uint32_t try_no) const;
  // Did an answer to this call stand on the disk when this try was declared? Not one that came late.
  bool answered_before(const Intent& intent, const InvocationId& invocation) const {
    const auto answered = answered_.find(invocation.text);
    return answered != answered_.end() && answered->second < intent.order;
  }
  // Was a call with this key ever declared?
  bool declared(const std::string& idempotency_key) const {
    return declared_.contains(idempotency_key);
  }
  std::uint64_t writes() const { return writes_; }  // calls that may change something, so far
  // A batch with events is being written: a point inside it comes before its COMMIT.
  bool inside_batch() const { return inside_batch_; }

  void commit(store::Batch batch, async::Done<Result<store::Committed>> done) override;
  void put_inbox(JobId job, store::InboxEntry entry, async::Done<Result<void>> done) override;
  void claim(store::ClaimRequest request,
             async::Done<Result<std::vector<store::Lease>>> done) override;
  void claim_job(JobId job, store::ClaimRequest request,
                 async::Done<Result<std::optional<store::Lease>>> done) override;
  void heartbeat(std::vector<std::pair<JobId, store::Fence>> held, Duration lease,
                 async::Done<Result<std::vector<std::optional<Instant>>>> done) override;
  void due(std::size_t limit, async::Done<Result<std::vector<JobId>>> done) override;
  void next_due(async::Done<Result<std::optional<Instant>>> done) override;
  void load(JobId job, std::uint64_t from_seq, async::Done<Result<store::Loaded>> done) override;
  void query(store::Filter filter, async::Done<Result<std::vector<store::JobRow>>> done) override;
  void ended(store::EndedFilter filter, async::Done<Result<store::EndedPage>> done) override {
    inner_->ended(std::move(filter), std::move(done));
  }
  void prune(store::Pruning pruning, async::Done<Result<bool>> done) override {
    writes_++;
    inner_->prune(std::move(pruning), std::move(done));
  }
  void redact(store::Redaction redaction, async::Done<Result<void>> done) override {
    writes_++;
    inner_->redact(std::move(redaction), std::move(done));
  }
  void wipe(async::Done<Result<std::vector<store::OldCopy>>> done) override {
    inner_->wipe(std::move(done));
  }
  void record(store::AuditEntry entry, async::Done<Result<void>> done) override {
    writes_++;
    inner_->record(std::move(entry), std::move(done));
  }
  void audit_log(std::uint64_t after, async::Done<Result<store::AuditLog>> done) override {
    inner_->audit_log(after, std::move(done));
  }
  void census(async::Done<Result<store::Census>> done) override { inner_->census(std::move(done)); }
  Instant now() override { return inner_->now(); }
  bool owned() const override { return inner_->owned(); }
  std::optional<Instant> opened_at() const override { return inner_->opened_at(); }

 private:
  struct Written {  // what a commit says, kept while it is under way
    JobId job;
    Instant at;
    store::Batch::Authority authority;
    std::string bytes;  // sealed; "" = it says nothing
    std::vector<Blob> blobs;
    std::string status;
    bool release = false;
    std::vector<std::string> answered;  // invocations whose effect record says success
  };
  void committed(const Written& written, const store::Committed& answer);
  void learn(const JobId& job, Seen& seen, const Event& event);
  void learn_creation(Seen& seen, const JobCreated& event);
  void learn_call(const Seen& seen, const Event& event);
  void learn_decision(Seen& seen, const Event& event);
  void wait_opened(Seen& seen, const WaitOpened& wait);
  void claimed_by(const JobId& job, const Seen& seen, const std::string& worker);
  void claimed(const store::Lease& lease, Instant at);
  void within_limit(const JobId& job, const Seen& seen, Instant at);

  Report& report_;
  store::Store* inner_ = nullptr;
  std::map<JobId, Seen> jobs_;
  std::map<std::pair<std::string, std::uint32_t>, Intent> intents_;
  std::uint64_t writes_ = 0, order_ = 0;
  std::map<std::string, std::uint64_t> answered_;           // invocations, by the order of commits
  std::set<std::string> declared_;                          // idempotency keys
  std::map<std::string, std::vector<std::string>> offers_;  // capabilities, by worker
  bool forgets_limits_ = false;
  bool inside_batch_ = false, forget_posts_ = false, says_yes_ = false, says_twice_ = false;
  std::optional<JobId> never_given_;
  std::vector<store::QueueLimit> limits_;
  const engine::PlanCache* plans_ = nullptr;
};

}  // namespace ae::sim
