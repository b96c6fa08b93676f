#include "store/faulty/faulty_store.h"

#include <iterator>
#include <string>
#include <string_view>
#include <utility>

namespace ae::store {

std::string_view to_text(Fault fault) {
  static constexpr std::string_view kText[] = {
      "none", "fail_before", "fail_after", "delay", "delay_answer", "crash_before", "crash_after"};
  static_assert(std::size(kText) == static_cast<std::size_t>(Fault::crash_after) + 1);
  return kText[static_cast<std::size_t>(fault)];
}

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

// Everything an answer needs is in the shared state.
template <class T, class Start>
void FaultyStore::call(MethodCall method_call, async::Done<Result<T>> done, Start start) {
  State& state = *state_;
  if (state.crashed) return;
  const Call call{
      .number = ++state.calls,
      .number_of_method = ++state.number_of_method[static_cast<std::size_t>(method_call.method)],
      .method = method_call.method,
      .from_seq = method_call.from_seq,
      .is_leased = method_call.is_leased};
  const Fault fault = state.options.script ? state.options.script(call) : Fault::none;
  if (fault == Fault::crash_before) return state.crash();
  if (fault == Fault::fail_before) {
    state.loop.post([shared = state_, done = std::move(done), number = call.number]() mutable {
      if (shared->crashed) return;
      done(fail(Code::unavailable, "call {} failed: try again", number));
    });
    return;
  }
  async::Done<Result<T>> deliver = [shared = state_, done = std::move(done), fault,
                                    call](Result<T> answer) mutable {
    if (shared->crashed) return;
    if (fault == Fault::crash_after) return shared->crash();
    if (fault == Fault::fail_after) {
      const Code code = is_read(call.method) ? Code::unavailable : Code::unknown_outcome;
      return done(fail(code, fmt::format("the answer of call {} was lost", call.number)));
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

FaultyStore::FaultyStore(async::Loop& loop, Store& inner, Options options)
    : state_(std::make_shared<State>(State{loop, inner, std::move(options)})) {}

FaultyStore::~FaultyStore() { state_->destroyed = true; }

std::uint64_t FaultyStore::calls() const { return state_->calls; }
bool FaultyStore::crashed() const { return state_->crashed; }

void FaultyStore::on_hint(std::function<void(const Hint&)> callback) {
  hint_callback_ = callback;
  state_->inner.on_hint(std::move(callback));
}
void FaultyStore::hint(const Hint& hint) {
  if (hint_callback_) hint_callback_(hint);
}
Instant FaultyStore::latest_now() { return state_->inner.latest_now() + state_->clock_uncertainty; }
void FaultyStore::set_clock_uncertainty(Duration by) { state_->clock_uncertainty = by; }

}  // namespace ae::store

template class ae::store::ForwardingStore<ae::store::FaultyStore>;
