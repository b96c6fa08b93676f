// People: those who create, fork, signal, approve, write, pause, cancel, resolve and give other plans, and the ledger of what
// they said and were told.
//
// They ask any worker and ask again when no answer comes; whatever was acknowledged is kept, and must be found in the
// log in the end; what the log says of people must have been said. About a call in doubt they say what the journal says.
// Threads: one.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/world.h"

namespace ae::sim {

struct Ack {
  JobId job;
  engine::ControlRequest act;
  Value answer;
};

struct SentRequest {  // what somebody wanted, whether or not it was ever answered
  engine::ControlRequest act;
  Instant first;                 // by the loop, as are the others
  std::optional<Instant> acked;  // the first acknowledgement
};

// What somebody wanted of a fork. One of these is never asked for in two ways.
struct RequestedFork {
  runtime::ForkRequest request;
  std::uint64_t origin_events = 0;  // that the origin's log had when it was first asked for
};

// What those who look around do besides saying what became of calls in doubt.
struct ReviewOptions {
  bool waits = false;                // answer signals' and messages' waits too, and end pauses
  std::uint64_t answer_one_in = 0;   // answer who asks for an approval
  std::string_view decision = {};    // so; "" = at random
  std::uint64_t confirm_one_in = 0;  // answer who asks whether a change is well
  std::string_view confirm = {};     // so: accept or fail; "" = at random
  std::uint64_t raise_one_in = 0;    // raise a budget that is used up; 0 = never
};

class Users {
 public:
  // Impatient ones say "not happened" while a request may still be on its way: the runtime must not believe them.
  struct UserModel {
    bool impatient = false;
    std::uint64_t resolve_fail_one_in = 0;  // resolve as failed
    bool resolves_by_hand = false;          // undo by hand what no call can undo
  };
  Users(SimWorld& world, UserModel user_model) : world_(world), user_model_(user_model) {}

  // Each is asked for until it is answered, the job has no use for it, or `tries` are used up.
  void create(runtime::NewJobRequest request);
  // `then` is called when it is over, whatever came of it.
  void act(const JobId& job, engine::ControlRequest act, int tries = 8,
           std::function<void()> then = {});
  // `then` is told what the fork would repeat, when nobody has agreed to that; empty: it was made.
  void fork(runtime::ForkRequest request, int tries,
            std::function<void(std::vector<Value>)> then = {});
  // Looks at the calls in doubt and says what became of them.
  void review_open_requests(const ReviewOptions& look);
  // Somebody said this in another way.
  void record_request(const JobId& job, const engine::ControlRequest& act);

  const std::vector<Ack>& acks() const { return acks_; }
  // By the act's id.
  using SentRequests = std::map<std::string, SentRequest, std::less<>>;
  const SentRequests& requested(const JobId& job) { return requested_[job]; }
  const std::vector<JobId>& created() const { return created_; }
  const std::map<JobId, RequestedFork>& forks() const { return forks_; }  // that were asked for
  const std::vector<JobId>& forked() const { return forked_; }            // that were made
  std::size_t busy() const { return busy_; }
  std::size_t requested_jobs() const { return requested_jobs_; }  // jobs that were to be created

 private:
  struct PendingRequest;
  struct PendingCreate;
  struct PendingFork;
  std::optional<std::size_t> pick_live_worker();
  void send_request(const std::shared_ptr<PendingRequest>& pending);
  void on_answered(const std::shared_ptr<PendingRequest>& pending, Result<Value> answer);
  void finish_request(const std::shared_ptr<PendingRequest>& pending);
  void send_create(const std::shared_ptr<PendingCreate>& pending);
  void send_fork(const std::shared_ptr<PendingFork>& pending);
  void on_fork_answered(const std::shared_ptr<PendingFork>& pending,
                        Result<runtime::ForkResult> answer);
  void confirm(const JobId& job, const ObservedJob& observed, const ReviewOptions& look);
  void raise(const JobId& job, const ObservedJob& observed, const ReviewOptions& look);
  void resolve(const JobId& job, const std::string& idempotency_key);
  void resolve_undeclared(const JobId& job, engine::ControlRequest act);
  void answer(const JobId& job, const std::string& key, const OpenWait& wait,
              const ReviewOptions& look);

  SimWorld& world_;
  UserModel user_model_;
  std::vector<Ack> acks_;
  std::map<JobId, SentRequests> requested_;
  std::vector<JobId> created_, forked_;
  std::map<JobId, RequestedFork> forks_;
  std::set<std::pair<JobId, std::string>>
      in_progress_;  // acts by name, so that one person asks at a time
  std::size_t busy_ = 0, requested_jobs_ = 0;
  std::uint64_t last_id_ = 0;
};

}  // namespace ae::sim
