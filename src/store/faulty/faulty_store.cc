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

FaultyStore::FaultyStore(async::Loop& loop, Store& inner, Options options)
    : ForwardingStore(&inner),
      state_(std::make_shared<State>(State{loop, inner, std::move(options)})) {}

FaultyStore::~FaultyStore() { state_->destroyed = true; }

std::uint64_t FaultyStore::calls() const { return state_->calls; }
bool FaultyStore::crashed() const { return state_->crashed; }

void FaultyStore::load(JobId job, std::uint64_t from_seq, async::Done<Result<LoadedJob>> done) {
  forward(
      Method::load, std::move(done),
      [job = std::move(job), from_seq](Store& store, auto d) mutable {
        store.load(std::move(job), from_seq, std::move(d));
      },
      from_seq);
}
void FaultyStore::on_hint(std::function<void(const Hint&)> callback) {
  hint_callback_ = callback;
  ForwardingStore::on_hint(std::move(callback));
}
void FaultyStore::hint(const Hint& hint) {
  if (hint_callback_) hint_callback_(hint);
}
Instant FaultyStore::latest_now() { return inner().latest_now() + state_->clock_uncertainty; }
void FaultyStore::set_clock_uncertainty(Duration by) { state_->clock_uncertainty = by; }

}  // namespace ae::store
