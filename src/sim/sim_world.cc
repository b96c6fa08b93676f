#include "sim/sim_world.h"

namespace ae::sim {
namespace {

template <class T, class Start>
std::optional<T> wait_for(SimWorld& world, Start start) {
  auto answer = std::make_shared<std::optional<T>>();
  start([answer](T value) { answer->emplace(std::move(value)); });
  world.loop().run([&] { return answer->has_value() || world.crasher().crashed(); },
                   world.loop().now() + std::chrono::minutes(10));
  return std::move(*answer);
}

std::unexpected<Error> gone() { return fail(Code::unavailable, "the simulated process is gone"); }

}  // namespace

std::optional<std::string> SimWorld::run_to_rest(const JobId& job, Duration limit) {
  const Instant until = loop_.now() + limit;
  while (loop_.now() < until && !crasher_.crashed()) {
    loop_.run([&] { return crasher_.crashed() || !runtime_->holds(job); }, until);
    if (crasher_.crashed()) break;
    if (!runtime_->holds(job)) {
      auto row = read(job);
      if (crasher_.crashed()) break;
      if (!row) return "unreadable: " + row.error().message;
      const std::string& status = row->row.status;
      const bool blocked = status == "waiting" || status == "parked";
      if (engine::is_terminal(row->state.status) || (blocked && !row->row.wake_at)) return status;
    }
    const Instant next = loop_.now() + std::chrono::seconds(1);
    loop_.run([&] { return crasher_.crashed(); }, std::min(until, next));
  }
  return std::nullopt;
}

Result<runtime::Created> SimWorld::create(runtime::NewJobRequest request) {
  auto created = wait_for<Result<runtime::Created>>(
      *this, [&](auto done) { runtime_->create(std::move(request), std::move(done)); });
  return created ? std::move(*created) : gone();
}

Result<Value> SimWorld::act(const JobId& job, engine::Act act) {
  auto answer = wait_for<Result<Value>>(
      *this, [&](auto done) { runtime_->act(job, std::move(act), std::move(done)); });
  return answer ? std::move(*answer) : gone();
}

// Past the process: it neither counts as a boundary nor crashes.
Result<runtime::Runtime::Read> SimWorld::read(const JobId& job) {
  std::optional<Result<store::Loaded>> loaded;
  memory_->load(job, 1, [&](Result<store::Loaded> answer) { loaded.emplace(std::move(answer)); });
  loop_.run([&] { return loaded.has_value(); }, loop_.now());
  if (!loaded) return gone();
  if (!*loaded) return std::unexpected(loaded->error());
  AE_ASSIGN(auto events, runtime::open_log(job, **loaded));
  AE_ASSIGN(auto state, engine::fold(job, events, engine::compile_each_time()));
  return runtime::Runtime::Read{std::move((*loaded)->row), std::move(events), std::move(state)};
}

}  // namespace ae::sim
