// The outside world of the simulator: tools whose effects are written to a journal that no crash touches.
// Threads: one.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "sim/sim_loop.h"
#include "sim/sim_store.h"
#include "tools/tool.h"

namespace ae::sim {

struct JournalEntry {
  JobId job;
  std::string tool;
  InvocationId invocation;
  std::string idempotency_key, external_key, args;
  std::uint32_t try_no = 1;
  bool effect =
      false;  // this arrival took effect (an idempotent world: only the first of its key does)
};

struct Journal {
  std::vector<JournalEntry> arrivals;
  std::map<std::string, std::uint64_t> arrived;  // by tool + external key
  std::map<std::string, std::uint64_t> effects;  // by tool + external key
};

enum class Nature {
  read,
  idempotent,
  at_most_once
};  // what the downstream does with a second arrival

// Performs after a random delay. Behaviours are drawn per call: answer, fail definitely, take effect and go silent
// (timeout), take effect and say 503.
class SimTool : public tools::Tool {
 public:
  struct Odds {  // one in n; 0 = never
    std::uint64_t definite = 0, silent = 0, error_after = 0;
  };
  SimTool(SimLoop& loop, Crasher& crasher, SimChance& chance, Journal& journal, Nature nature,
          Odds odds)
      : loop_(loop),
        crasher_(crasher),
        chance_(chance),
        journal_(journal),
        nature_(nature),
        odds_(odds) {}

  void perform(tools::Permit permit, tools::Call call, async::Done<Outcome> done) override {
    std::move(permit).use(call.invocation, call.try_no);
    const Duration delay = std::chrono::milliseconds(chance_.below(50));
    const Duration timeout = call.timeout;
    loop_.after(delay, [this, call = std::move(call), done = std::move(done), timeout]() mutable {
      if (!crasher_.pass()) return;  // died before the request left
      const auto one_in = [&](std::uint64_t n) { return n > 0 && chance_.below(n) == 0; };
      if (one_in(odds_.definite)) {
        return answer(std::move(done), {.kind = OutcomeKind::failure,
                                        .definite = true,
                                        .retryable = true,
                                        .error_code = "connect",
                                        .error_message = "refused"});
      }
      const bool silent = one_in(odds_.silent), error_after = one_in(odds_.error_after);
      const std::string key = call.tool + " " + call.external_key.text;
      journal_.arrived[key]++;
      const bool effect = nature_ == Nature::at_most_once || journal_.effects[key] == 0;
      if (effect) journal_.effects[key]++;
      journal_.arrivals.push_back({call.job, call.tool, call.invocation, call.key.text,
                                   call.external_key.text, canonical_args(call), call.try_no,
                                   effect});
      if (!crasher_.pass()) return;  // died after the effect, before the answer
      if (silent) {
        loop_.after(timeout, [this, done = std::move(done)]() mutable {
          if (crasher_.crashed()) return;
          done({.kind = OutcomeKind::timeout,
                .retryable = true,
                .error_code = "timeout",
                .error_message = "silence"});
        });
        return;
      }
      if (error_after) {
        return answer(std::move(done), {.kind = OutcomeKind::unknown,
                                        .retryable = true,
                                        .error_code = "http_503",
                                        .error_message = "down"});
      }
      answer(std::move(done), {.kind = OutcomeKind::success,
                               .result = Value::object({{"args", call.args}, {"tool", call.tool}}),
                               .took = std::chrono::milliseconds(1)});
    });
  }
  void abandon(const InvocationId&, std::uint32_t) override {}

 private:
  static std::string canonical_args(const tools::Call& call);
  void answer(async::Done<Outcome> done, Outcome outcome) {
    loop_.after(std::chrono::milliseconds(chance_.below(20)),
                [this, done = std::move(done), outcome = std::move(outcome)]() mutable {
                  if (crasher_.pass()) done(std::move(outcome));
                });
  }

  SimLoop& loop_;
  Crasher& crasher_;
  SimChance& chance_;
  Journal& journal_;
  Nature nature_;
  Odds odds_;
};

}  // namespace ae::sim
