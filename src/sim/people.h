// People: those who create, signal, cancel and resolve, and the ledger of what they were told.
//
// They ask any worker and ask again when no answer comes; whatever was acknowledged is kept, and must be found in the
// log in the end. About a call in doubt they say what the journal says. Threads: one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sim/world.h"

namespace ae::sim {

struct Ack {
  JobId job;
  engine::Act act;
  Value answer;
};

class People {
 public:
  // Impatient ones say "not happened" while a request may still be on its way: the runtime must not believe them.
  struct Manners {
    bool impatient = false;
    std::uint64_t say_fail_one_in = 0;  // resolve as failed
  };
  People(SimWorld& world, Manners manners) : world_(world), manners_(manners) {}

  // Each is asked for until it is answered, the job has no use for it, or `tries` are used up.
  void create(runtime::NewJobRequest request);
  void act(const JobId& job, engine::Act act, int tries = 8);
  // Looks at the calls in doubt and says what became of them; in the end also answers every open wait.
  void look_around(bool answer_waits);

  const std::vector<Ack>& acks() const { return acks_; }
  const std::vector<JobId>& created() const { return created_; }
  std::size_t busy() const { return busy_; }
  std::size_t wanted() const { return wanted_; }  // jobs that were to be created

 private:
  struct Errand;
  struct Birth;
  std::optional<std::size_t> any_worker();
  void try_errand(const std::shared_ptr<Errand>& errand);
  void answered(const std::shared_ptr<Errand>& errand, Result<Value> answer);
  void give_up(const std::shared_ptr<Errand>& errand);
  void try_birth(const std::shared_ptr<Birth>& birth);
  void resolve(const JobId& job, const std::string& idempotency_key);

  SimWorld& world_;
  Manners manners_;
  std::vector<Ack> acks_;
  std::vector<JobId> created_;
  std::set<std::pair<JobId, std::string>>
      under_way_;  // acts by name, so that one person asks at a time
  std::size_t busy_ = 0, wanted_ = 0;
  std::uint64_t last_id_ = 0;
};

}  // namespace ae::sim
