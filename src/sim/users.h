// Users: the simulated clients. They create, fork, signal, approve, send messages, pause, cancel,
// resolve and re-plan, and they keep a record of all requests and acknowledgements.
//
// They send each request to any live worker and retry it without an answer. Every acknowledged
// request must be in the log at the end, and every request in the log must have been sent. They
// resolve an unknown outcome as the journal of the external world shows it. Threads: one.
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
  engine::ControlRequest request;
  Value answer;
};

struct SentRequest {  // a request, answered or not
  engine::ControlRequest request;
  Instant first;                 // by the loop's clock, as is `acked`
  std::optional<Instant> acked;  // the first acknowledgement
};

// A requested fork. The same fork is never requested with different parameters.
struct RequestedFork {
  runtime::ForkRequest request;
  std::uint64_t origin_events = 0;  // events in the origin's log at the first request
};

// Actions of a review, besides resolving unknown outcomes.
struct ReviewOptions {
  bool waits = false;                // also answer waits for signals and messages, and end pauses
  std::uint64_t answer_one_in = 0;   // answer an approval
  std::string_view decision = {};    // with this decision; "" = at random
  std::uint64_t confirm_one_in = 0;  // answer a verification mismatch
  std::string_view confirm = {};     // with accept or fail; "" = at random
  std::uint64_t raise_one_in = 0;    // raise a used-up budget; 0 = never
};

class Users {
 public:
  // Impatient users resolve as "not happened" while a request may still be in transit: the runtime
  // must not accept that.
  struct UserModel {
    bool impatient = false;
    std::uint64_t resolve_fail_one_in = 0;  // resolve as failed
    bool resolves_by_hand = false;          // undo manually what no call can undo
  };
  Users(SimWorld& world, UserModel user_model) : world_(world), user_model_(user_model) {}

  // Each request is retried until it is answered, the job no longer accepts it, or `tries` are used
  // up.
  void create(runtime::NewJobRequest request);
  // `then` is called when the request is finished, with any result.
  void submit(const JobId& job, engine::ControlRequest request, int tries = 8,
              std::function<void()> then = {});
  // `then` receives the effects that the fork would repeat, if they were not agreed to; empty: it
  // was made.
  void fork(runtime::ForkRequest request, int tries,
            std::function<void(std::vector<Value>)> then = {});
  // Reviews the calls with unknown outcomes and resolves them.
  void review_open_requests(const ReviewOptions& options);
  // Records a request that was sent by other means.
  void record_request(const JobId& job, const engine::ControlRequest& request);

  const std::vector<Ack>& acks() const { return acks_; }
  // By request id.
  using SentRequests = std::map<std::string, SentRequest, std::less<>>;
  const SentRequests& requested(const JobId& job) { return requested_[job]; }
  const std::vector<JobId>& created() const { return created_; }
  const std::map<JobId, RequestedFork>& forks() const { return forks_; }  // requested ones
  const std::vector<JobId>& forked() const { return forked_; }            // created ones
  std::size_t busy() const { return busy_; }
  std::size_t requested_jobs() const { return requested_jobs_; }  // jobs that were requested

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
  void confirm(const JobId& job, const ObservedJob& observed, const ReviewOptions& options);
  void raise(const JobId& job, const ObservedJob& observed, const ReviewOptions& options);
  void resolve(const JobId& job, const std::string& idempotency_key);
  void resolve_undeclared(const JobId& job, std::string id, engine::ResolveRequest resolve);
  void submit_resolution(const JobId& job, std::string id, engine::ResolveRequest resolve);
  void answer(const JobId& job, const std::string& key, const OpenWait& wait,
              const ReviewOptions& options);

  SimWorld& world_;
  UserModel user_model_;
  std::vector<Ack> acks_;
  std::map<JobId, SentRequests> requested_;
  std::vector<JobId> created_, forked_;
  std::map<JobId, RequestedFork> forks_;
  std::set<std::pair<JobId, std::string>>
      in_progress_;  // requests by name, so that each is sent by one user at a time
  std::size_t busy_ = 0, requested_jobs_ = 0;
  std::uint64_t last_id_ = 0;
};

}  // namespace ae::sim
