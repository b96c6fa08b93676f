// LateResults: stores results that arrive after their try was closed, or after this process lost
// the job.
//
// A certain outcome goes into the effect store. Then an inbox entry notifies the lease holder,
// which imports it into the log; without a lease holder it is imported here.
// Threads: the loop's.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "async/alive.h"
#include "async/loop.h"
#include "base/error.h"
#include "base/ids.h"
#include "engine/heart/ingest.h"
#include "json/value.h"
#include "runtime/world.h"
#include "store/store.h"

namespace ae::runtime {

class LateResults {
 public:
  // A late result of the job is stored: applies it, or notifies the lease holder.
  using Submit = std::function<void(const JobId& job, async::Done<Result<Value>> done)>;
  using Warn = std::function<void(const JobId& job, const std::string& what)>;
  // Borrows `world`.
  LateResults(World& world, Submit submit, Warn warn)
      : world_(world), submit_(std::move(submit)), warn_(std::move(warn)) {}

  void add(const JobId& job, const engine::SentTry& sent, const Outcome& outcome);

 private:
  void write(std::shared_ptr<store::Batch> batch, int tries);
  void on_written(std::shared_ptr<store::Batch> batch, int tries,
                  Result<store::CommitResult> result);
  void retry(const std::shared_ptr<store::Batch>& batch, int tries, const std::string& what,
             const Error& error);

  World& world_;
  const Submit submit_;
  const Warn warn_;
  async::Alive alive_;
};

}  // namespace ae::runtime
