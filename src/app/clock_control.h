// ClockControl: the clock of a store in memory, which a test advances: memory:?clock=virtual and the
// route POST /api/clock (docs/testing-agents.md).
//
//   {}                   -> {"advanced": false, "now"}
//   {"to_next": true}    to the next instant that is due, once no job runs; `advanced`: there was one
//   {"advance": "3d"}    by this time; before each instant that is due, and after it, no job runs
// Fails with input_invalid, forbidden (the role is not admin), unavailable (jobs still run after 30 s).
//
// Only the clock of the store advances: leases, timers, deadlines, and what jobs read. Time limits of
// calls and connections are durations of real time. Threads: the loop's.
#pragma once

#include <memory>

#include "api/authenticator.h"
#include "async/alive.h"
#include "async/loop.h"
#include "base/error.h"
#include "json/value.h"
#include "net/http_request.h"
#include "net/http_server.h"
#include "runtime/scheduler/runtime.h"
#include "store/store.h"

namespace ae::app {

class VirtualClock final : public async::Clock {
 public:
  explicit VirtualClock(async::Clock& real) : real_(real) {}
  Instant now() override { return real_.now() + ahead_; }
  void advance(Duration by) { ahead_ += by; }

 private:
  async::Clock& real_;
  Duration ahead_{};
};

class ClockControl {
 public:
  struct Parts {  // borrowed
    async::Loop& loop;
    async::SteadyClock& steady;
    VirtualClock& clock;  // of the store
    store::Store& store;
    runtime::Runtime& runtime;
  };
  explicit ClockControl(const Parts& parts) : parts_(parts) {}

  void advance(const Value& request, async::Done<Result<Value>> done);

 private:
  struct Request;
  void step(std::shared_ptr<Request> request);
  void on_next_due(std::shared_ptr<Request> request, std::optional<Instant> due);
  void step_later(std::shared_ptr<Request> request);
  void advance_to(Instant at);
  void answer(Request& request, bool advanced);

  const Parts parts_;
  async::Alive alive_;
};

bool is_clock_route(const net::HttpRequest& request);
void answer_clock(ClockControl& control, const net::HttpRequest& request, net::Responder responder,
                  const api::Principal& principal);

}  // namespace ae::app
