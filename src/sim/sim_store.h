// SimStore: the store as one process uses it. The process may die before and after every call; a
// dead process makes no calls and gets no answers, a paused one gets them later. Threads: one.
#pragma once

#include <fmt/core.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/report.h"
#include "sim/sim_loop.h"
#include "store/forwarding_store.h"

namespace ae::sim {

class SimStore final : public store::ForwardingStore<SimStore> {
 public:
  struct Host {
    store::Store* inner;  // borrowed
    // Called at each boundary, where the process may die; false if it has died.
    std::function<bool(SimProcess&, std::string_view where)> at_boundary;
    std::set<AttemptId>* stale_attempts;  // attempts that got stale_attempt or lost their lease
    Report* report;
    Duration latency;  // of every answer
    bool owned;
  };
  SimStore(Host host, std::shared_ptr<SimProcess> process)
      : host_(std::move(host)), process_(std::move(process)) {}

  void commit(store::Batch batch, async::Done<Result<store::CommitResult>> done) override {
    const auto* held = std::get_if<store::Batch::Leased>(&batch.authority);
    const AttemptId attempt = held ? held->fence.attempt : AttemptId();
    if (held && host_.stale_attempts->contains(attempt) && !process_->dead) {
      host_.report->violate("F4 a worker that was notified of a lost lease writes nothing",
                            batch.job, attempt.text);
    }
    ForwardingStore::commit(std::move(batch), [this, attempt, done = std::move(done)](
                                                  Result<store::CommitResult> answer) mutable {
      if (!answer && answer.error().code == Code::stale_attempt && !attempt.empty()) {
        host_.stale_attempts->insert(attempt);
      }
      done(std::move(answer));
    });
  }
  void heartbeat(std::vector<std::pair<JobId, store::Fence>> held, Duration lease,
                 async::Done<Result<std::vector<std::optional<Instant>>>> done) override {
    auto requested = held;
    ForwardingStore::heartbeat(
        std::move(held), lease,
        [this, requested = std::move(requested),
         done = std::move(done)](Result<std::vector<std::optional<Instant>>> until) mutable {
          for (std::size_t i = 0; until && !host_.owned && i < requested.size(); ++i) {
            if (!(*until)[i]) host_.stale_attempts->insert(requested[i].second.attempt);
          }
          done(std::move(until));
        });
  }
  // The simulated workers announce nothing and get no hints.
  void announce(std::string, std::string, Duration) override {}
  void on_hint(std::function<void(const store::Hint&)>) override {}
  Instant latest_now() override { return now(); }
  bool owned() const override { return host_.owned; }

 private:
  friend store::ForwardingStore<SimStore>;
  store::Store& inner() const { return *host_.inner; }
  template <class T, class Start>
  void call(store::MethodCall method_call, async::Done<Result<T>> done, Start start) {
    const std::string_view where = to_text(method_call.method);
    if (process_->dead || !host_.at_boundary(*process_, where)) return;
    start(*host_.inner,
          [this, process = process_, where, done = std::move(done)](Result<T> answer) mutable {
            if (process->dead || !host_.at_boundary(*process, fmt::format("{}.answer", where)))
              return;
            process->after(host_.latency,
                           [process, done = std::move(done), answer = std::move(answer)]() mutable {
                             done(std::move(answer));
                           });
          });
  }

  Host host_;
  std::shared_ptr<SimProcess> process_;
};

}  // namespace ae::sim
