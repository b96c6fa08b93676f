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
  engine::Act act;
  Value answer;
};

struct Asked {  // what somebody wanted, whether or not it was ever answered
  engine::Act act;
  Instant first;                 // by the loop, as are the others
  std::optional<Instant> acked;  // the first acknowledgement
};

// What somebody wanted of a fork. One of these is never asked for in two ways.
struct ForkAsk {
  runtime::ForkRequest request;
  std::uint64_t origin_events = 0;  // that the origin's log had when it was first asked for
};

// What those who look around do besides saying what became of calls in doubt.
struct Glance {
  bool waits = false;                // answer signals' and messages' waits too, and end pauses
  std::uint64_t answer_one_in = 0;   // answer who asks for an approval
  std::string_view decision = {};    // so; "" = at random
  std::uint64_t confirm_one_in = 0;  // answer who asks whether a change is well
  std::string_view confirm = {};     // so: accept or fail; "" = at random
  std::uint64_t raise_one_in = 0;    // raise a budget that is used up; 0 = never
};

class People {
 public:
  // Impatient ones say "not happened" while a request may still be on its way: the runtime must not believe them.
  struct Manners {
    bool impatient = false;
    std::uint64_t say_fail_one_in = 0;  // resolve as failed
    bool hands = false;                 // undo by hand what no call can undo
  };
  People(SimWorld& world, Manners manners) : world_(world), manners_(manners) {}

  // Each is asked for until it is answered, the job has no use for it, or `tries` are used up.
  void create(runtime::NewJobRequest request);
  // `then` is called when it is over, whatever came of it.
  void act(const JobId& job, engine::Act act, int tries = 8, std::function<void()> then = {});
  // `then` is told what the fork would repeat, when nobody has agreed to that; empty: it was made.
  void fork(runtime::ForkRequest request, int tries,
            std::function<void(std::vector<Value>)> then = {});
  // Looks at the calls in doubt and says what became of them.
  void look_around(const Glance& look);
  // Somebody said this in another way.
  void remember(const JobId& job, const engine::Act& act);

  const std::vector<Ack>& acks() const { return acks_; }
  // By the act's id.
  using Sayings = std::map<std::string, Asked, std::less<>>;
  const Sayings& asked(const JobId& job) { return asked_[job]; }
  const std::vector<JobId>& created() const { return created_; }
  const std::map<JobId, ForkAsk>& forks() const { return forks_; }  // that were asked for
  const std::vector<JobId>& forked() const { return forked_; }      // that were made
  std::size_t busy() const { return busy_; }
  std::size_t wanted() const { return wanted_; }  // jobs that were to be created

 private:
  struct Errand;
  struct Birth;
  struct Forking;
  std::optional<std::size_t> any_worker();
  void try_errand(const std::shared_ptr<Errand>& errand);
  void answered(const std::shared_ptr<Errand>& errand, Result<Value> answer);
  void give_up(const std::shared_ptr<Errand>& errand);
  void try_birth(const std::shared_ptr<Birth>& birth);
  void try_fork(const std::shared_ptr<Forking>& forking);
  void fork_answered(const std::shared_ptr<Forking>& forking, Result<runtime::Forked> answer);
  void confirm(const JobId& job, const Seen& seen, const Glance& look);
  void raise(const JobId& job, const Seen& seen, const Glance& look);
  void resolve(const JobId& job, const std::string& idempotency_key);
  void resolve_undeclared(const JobId& job, engine::Act act);
  void answer(const JobId& job, const std::string& key, const OpenWait& wait, const Glance& look);

  SimWorld& world_;
  Manners manners_;
  std::vector<Ack> acks_;
  std::map<JobId, Sayings> asked_;
  std::vector<JobId> created_, forked_;
  std::map<JobId, ForkAsk> forks_;
  std::set<std::pair<JobId, std::string>>
      under_way_;  // acts by name, so that one person asks at a time
  std::size_t busy_ = 0, wanted_ = 0;
  std::uint64_t last_id_ = 0;
};

}  // namespace ae::sim
