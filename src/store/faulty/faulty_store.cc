#include "store/faulty/faulty_store.h"

#include <array>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

namespace ae::store {

std::string_view to_text(Method method) {
  static constexpr std::string_view kText[] = {
      "commit", "put_inbox", "claim", "claim_job", "heartbeat", "redact",    "prune",  "record",
      "due",    "next_due",  "load",  "query",     "ended",     "audit_log", "census", "wipe"};
  static_assert(std::size(kText) == kMethods);
  return kText[static_cast<std::size_t>(method)];
}

std::string_view to_text(Fault fault) {
  static constexpr std::string_view kText[] = {
      "none", "fail_before", "fail_after", "delay", "delay_answer", "crash_before", "crash_after"};
  static_assert(std::size(kText) == static_cast<std::size_t>(Fault::crash_after) + 1);
  return kText[static_cast<std::size_t>(fault)];
}

struct FaultyStore::State {
  async::Loop& loop;
  Store& inner;
  Options options;
  Duration clock_uncertainty{};
  std::uint64_t calls = 0;
  std::array<std::uint64_t, kMethods> number_of_method{};
  bool crashed = false;
  bool destroyed = false;  // the FaultyStore is destroyed: late calls do not reach the inner store

  void crash() {
    if (std::exchange(crashed, true)) return;
    if (options.on_crash) options.on_crash();
  }
};

FaultScript inject_at(std::uint64_t number, Fault fault) {
  return [number, fault](const Call& call) { return call.number == number ? fault : Fault::none; };
}

FaultScript inject_at(Method method, std::uint64_t number_of_method, Fault fault) {
  return [method, number_of_method, fault](const Call& call) {
    return call.method == method && call.number_of_method == number_of_method ? fault : Fault::none;
  };
}

FaultScript random_faults(async::RandomSource& random, FaultRates rates) {
  return [&random, rates](const Call&) {
    std::uint64_t draw = random.next() % 1000;
    const std::pair<std::uint32_t, Fault> faults[] = {{rates.fail_before, Fault::fail_before},
                                                      {rates.fail_after, Fault::fail_after},
                                                      {rates.delay, Fault::delay},
                                                      {rates.delay_answer, Fault::delay_answer}};
    for (const auto& [rate, fault] : faults) {
      if (draw < rate) return fault;
      draw -= rate;
    }
    return Fault::none;
  };
}

FaultyStore::FaultyStore(async::Loop& loop, Store& inner, Options options)
    : state_(std::make_shared<State>(State{loop, inner, std::move(options)})) {}

FaultyStore::~FaultyStore() { state_->destroyed = true; }

std::uint64_t FaultyStore::calls() const { return state_->calls; }
bool FaultyStore::crashed() const { return state_->crashed; }

// `start(inner, done)` makes the call. Everything an answer needs is in the shared state.
template <class T, class Start>
void FaultyStore::call(Method method, async::Done<Result<T>> done, Start start,
                       std::uint64_t from_seq) {
  State& state = *state_;
  if (state.crashed) return;
  const Call call{.number = ++state.calls,
                  .number_of_method = ++state.number_of_method[static_cast<std::size_t>(method)],
                  .method = method,
                  .from_seq = from_seq};
  const Fault fault = state.options.script ? state.options.script(call) : Fault::none;
  if (fault == Fault::crash_before) return state.crash();
  if (fault == Fault::fail_before) {
    state.loop.post([shared = state_, done = std::move(done), number = call.number]() mutable {
      if (shared->crashed) return;
      done(fail(Code::unavailable, "call " + std::to_string(number) + " failed: try again"));
    });
    return;
  }
  async::Done<Result<T>> deliver = [shared = state_, done = std::move(done), fault,
                                    call](Result<T> answer) mutable {
    if (shared->crashed) return;
    if (fault == Fault::crash_after) return shared->crash();
    if (fault == Fault::fail_after) {
      const Code code = is_read(call.method) ? Code::unavailable : Code::unknown_outcome;
      return done(fail(code, "the answer of call " + std::to_string(call.number) + " was lost"));
    }
    if (fault != Fault::delay_answer) return done(std::move(answer));
    auto later = [shared, done = std::move(done), answer = std::move(answer)]() mutable {
      if (!shared->crashed) done(std::move(answer));
    };
    shared->loop.after(shared->options.delay, std::move(later));
  };
  if (fault != Fault::delay) return start(state.inner, std::move(deliver));
  auto later = [shared = state_, start = std::move(start), deliver = std::move(deliver)]() mutable {
    if (!shared->crashed && !shared->destroyed) start(shared->inner, std::move(deliver));
  };
  state.loop.after(state.options.delay, std::move(later));
}

void FaultyStore::commit(Batch batch, async::Done<Result<CommitResult>> done) {
  call(Method::commit, std::move(done), [batch = std::move(batch)](Store& s, auto d) mutable {
    s.commit(std::move(batch), std::move(d));
  });
}
void FaultyStore::put_inbox(JobId job, InboxEntry entry, async::Done<Result<void>> done) {
  call(Method::put_inbox, std::move(done),
       [job = std::move(job), entry = std::move(entry)](Store& s, auto d) mutable {
         s.put_inbox(std::move(job), std::move(entry), std::move(d));
       });
}
void FaultyStore::claim(ClaimRequest request, async::Done<Result<std::vector<Lease>>> done) {
  call(Method::claim, std::move(done), [request = std::move(request)](Store& s, auto d) mutable {
    s.claim(std::move(request), std::move(d));
  });
}
void FaultyStore::claim_job(JobId job, ClaimRequest request,
                            async::Done<Result<std::optional<Lease>>> done) {
  call(Method::claim_job, std::move(done),
       [job = std::move(job), request = std::move(request)](Store& s, auto d) mutable {
         s.claim_job(std::move(job), std::move(request), std::move(d));
       });
}
void FaultyStore::heartbeat(std::vector<std::pair<JobId, Fence>> held, Duration lease,
                            async::Done<Result<std::vector<std::optional<Instant>>>> done) {
  call(Method::heartbeat, std::move(done),
       [held = std::move(held), lease](Store& s, auto d) mutable {
         s.heartbeat(std::move(held), lease, std::move(d));
       });
}
void FaultyStore::list_due(std::size_t limit, async::Done<Result<std::vector<JobId>>> done) {
  call(Method::list_due, std::move(done),
       [limit](Store& s, auto d) mutable { s.list_due(limit, std::move(d)); });
}
void FaultyStore::next_due(async::Done<Result<std::optional<Instant>>> done) {
  call(Method::next_due, std::move(done),
       [](Store& s, auto d) mutable { s.next_due(std::move(d)); });
}
void FaultyStore::load(JobId job, std::uint64_t from_seq, async::Done<Result<LoadedJob>> done) {
  call(
      Method::load, std::move(done),
      [job = std::move(job), from_seq](Store& s, auto d) mutable {
        s.load(std::move(job), from_seq, std::move(d));
      },
      from_seq);
}
void FaultyStore::query(Filter filter, async::Done<Result<std::vector<JobRow>>> done) {
  call(Method::query, std::move(done), [filter = std::move(filter)](Store& s, auto d) mutable {
    s.query(std::move(filter), std::move(d));
  });
}
void FaultyStore::list_ended(EndedFilter filter, async::Done<Result<EndedPage>> done) {
  call(Method::list_ended, std::move(done), [filter = std::move(filter)](Store& s, auto d) mutable {
    s.list_ended(std::move(filter), std::move(d));
  });
}
void FaultyStore::prune(Pruning pruning, async::Done<Result<bool>> done) {
  call(Method::prune, std::move(done), [pruning = std::move(pruning)](Store& s, auto d) mutable {
    s.prune(std::move(pruning), std::move(d));
  });
}
void FaultyStore::redact(Redaction redaction, async::Done<Result<void>> done) {
  call(Method::redact, std::move(done),
       [redaction = std::move(redaction)](Store& s, auto d) mutable {
         s.redact(std::move(redaction), std::move(d));
       });
}
void FaultyStore::erase_dropped_values(async::Done<Result<std::vector<ResidualCopy>>> done) {
  call(Method::erase_dropped_values, std::move(done),
       [](Store& s, auto d) { s.erase_dropped_values(std::move(d)); });
}
void FaultyStore::append_audit_entry(AuditEntry entry, async::Done<Result<void>> done) {
  call(Method::append_audit_entry, std::move(done),
       [entry = std::move(entry)](Store& s, auto d) mutable {
         s.append_audit_entry(std::move(entry), std::move(d));
       });
}
void FaultyStore::read_audit_log(std::uint64_t after, async::Done<Result<AuditLog>> done) {
  call(Method::read_audit_log, std::move(done),
       [after](Store& s, auto d) mutable { s.read_audit_log(after, std::move(d)); });
}
void FaultyStore::count_jobs(async::Done<Result<JobStats>> done) {
  call(Method::count_jobs, std::move(done), [](Store& s, auto d) { s.count_jobs(std::move(d)); });
}

void FaultyStore::announce(std::string worker, std::string announcement, Duration ttl) {
  state_->inner.announce(std::move(worker), std::move(announcement), ttl);
}
void FaultyStore::on_hint(std::function<void(const Hint&)> callback) {
  hint_callback_ = callback;
  state_->inner.on_hint(std::move(callback));
}
void FaultyStore::hint(const Hint& hint) {
  if (hint_callback_) hint_callback_(hint);
}
Instant FaultyStore::now() { return state_->inner.now(); }
Instant FaultyStore::latest_now() { return state_->inner.latest_now() + state_->clock_uncertainty; }
void FaultyStore::set_clock_uncertainty(Duration by) { state_->clock_uncertainty = by; }
bool FaultyStore::owned() const { return state_->inner.owned(); }
std::optional<Instant> FaultyStore::opened_at() const { return state_->inner.opened_at(); }

}  // namespace ae::store
