// Walks through a log in windows, kept states and the index of steps: they show what the whole log
// shows, and cost the part of it that they need.
#include "runtime/history.h"

#include "inspect/step_list.h"
#include "inspect/view.h"
#include "runtime/log_walk.h"
#include "runtime/worker_fixture_test.h"

namespace ae::runtime::testing {
namespace {

using Direction = store::WindowRequest::Direction;

// A job that maps a list; its tool answers at once.
struct LongJob {
  explicit LongJob(std::uint64_t checkpoint_every = 1'000'000, std::uint64_t seed = 1,
                   std::size_t answers = 60)
      : worker(env, "w", {.owned = true, .seed = seed, .checkpoint_every = checkpoint_every}) {
    worker.runtime->start();
    std::string list;
    for (int i = 0; i < 60; ++i) list += (i == 0 ? "" : ", ") + std::to_string(i);
    worker.create(plan("idempotent", "[{'id':'m', 'kind':'map', 'over':[" + list +
                                         "], 'max_parallel':2, 'do':{'tool':'do'}}]"));
    answer_until(answers);
    log = worker.read().events;
  }
  void answer_until(std::size_t calls) {
    for (; answered < worker.calls.size() && answered < calls; ++answered) {
      worker.answer(answered, {.kind = OutcomeKind::success, .result = json("1")});
    }
  }
  std::vector<Event> walk(store::WindowRequest from) {
    std::vector<Event> events;
    const auto row = env.loop.await<Result<store::JobRow>>([&](auto done) {
      walk_log(
          {*worker.faulty, executor}, kJob, from,
          [&](LogPart& part) {
            const bool forwards = from.direction == Direction::after;
            events.insert(forwards ? events.end() : events.begin(),
                          std::make_move_iterator(part.events.begin()),
                          std::make_move_iterator(part.events.end()));
            return true;
          },
          std::move(done));
    });
    EXPECT_TRUE(row) << row.error().message;
    return events;
  }
  Result<History::PastState> state_at(History& history, std::uint64_t seq) {
    return env.loop.await<Result<History::PastState>>(
        [&](auto done) { history.state_at(kJob, seq, {}, std::move(done)); });
  }
  Value expected_at(std::size_t seq) {
    const std::vector<Event> part(log.begin(), log.begin() + static_cast<std::ptrdiff_t>(seq));
    return engine::state_view(*engine::fold(kJob, part, engine::uncached_plan_source()));
  }

  TestEnvironment env;
  WorkerFixture worker;
  async::InlineExecutor executor;
  std::size_t answered = 0;
  std::vector<Event> log;
};

std::vector<std::uint64_t> seqs(const std::vector<Event>& events) {
  std::vector<std::uint64_t> all;
  for (const Event& event : events) all.push_back(event.seq);
  return all;
}

AE_TEST("history/a walk returns each event once, in both directions, with any window size") {
  LongJob job;
  ASSERT_GT(job.log.size(), 300u);
  for (const std::uint64_t events_max : {1u, 7u, 100u, 10'000u}) {
    EXPECT_EQ(seqs(job.walk({.events_max = events_max})), seqs(job.log)) << events_max;
    EXPECT_EQ(
        seqs(job.walk(
            {.direction = Direction::before, .seq = store::kLogEnd, .events_max = events_max})),
        seqs(job.log))
        << events_max;
  }
}

AE_TEST("history/single events are read in few windows") {
  LongJob job;
  std::size_t windows = 0;
  job.worker.script = [&](const store::Call& call) {
    windows += call.method == Method::load_window ? 1 : 0;
    return Fault::none;
  };
  const std::uint64_t last = job.log.size();
  const std::vector<std::uint64_t> wanted{last, 3, 5, 4, 3, 200, 201, last + 7};
  const auto events = job.env.loop.await<Result<std::vector<Event>>>([&](auto done) {
    read_events({*job.worker.faulty, job.executor}, kJob, wanted, std::move(done));
  });
  ASSERT_TRUE(events) << events.error().message;
  EXPECT_EQ(seqs(*events), (std::vector<std::uint64_t>{3, 4, 5, 200, 201, last}));
  EXPECT_LE(windows, 4u);
}

AE_TEST("history/a past state equals the replay of the events up to it") {
  for (const std::uint64_t checkpoint_every : {100u, 1'000'000u}) {
    LongJob job(checkpoint_every);
    std::size_t windows = 0;
    job.worker.script = [&](const store::Call& call) {
      windows += call.method == Method::load_window ? 1 : 0;
      return Fault::none;
    };
    History history(*job.worker.faulty, job.env.steady, job.executor, 50);
    const std::size_t last = job.log.size();
    for (const std::size_t seq : {last, last / 2, std::size_t{1}, std::size_t{2}, last - 1,
                                  last / 2 + 1, std::size_t{60}, last}) {
      const auto past = job.state_at(history, seq);
      ASSERT_TRUE(past) << past.error().message;
      ASSERT_TRUE(past->state) << seq;
      EXPECT_EQ(engine::state_view(*past->state), job.expected_at(seq)) << seq;
      EXPECT_EQ(past->row.last_seq, last);
    }
    const auto newest = job.state_at(history, History::kLastEvent);
    ASSERT_TRUE(newest && newest->state);
    EXPECT_EQ(newest->state->seq, last);
    const auto beyond = job.state_at(history, last + 1);
    ASSERT_TRUE(beyond);
    EXPECT_FALSE(beyond->state);
  }
}

AE_TEST("history/an abandoned read ends") {
  LongJob job;
  History history(*job.worker.faulty, job.env.steady, job.executor, 50);
  std::stop_source stop;
  stop.request_stop();
  const auto past = job.env.loop.await<Result<History::PastState>>([&](auto done) {
    history.state_at(kJob, History::kLastEvent, stop.get_token(), std::move(done));
  });
  ASSERT_FALSE(past);
  EXPECT_EQ(past.error().code, Code::unavailable);
  EXPECT_TRUE(job.state_at(history, History::kLastEvent)) << "other reads still work";
}

// A store that is switchable by another one, which has another job with the same id.
class SwitchableStore final : public store::ForwardingStore<SwitchableStore> {
 public:
  explicit SwitchableStore(store::Store* first) : current(first) {}
  store::Store* current;

 private:
  friend store::ForwardingStore<SwitchableStore>;
  store::Store& inner() const { return *current; }
};

AE_TEST("history/cached states are not used for another job with the same id") {
  LongJob job, other(1'000'000, 2);
  ASSERT_NE(other.log.back().hash, job.log.back().hash);
  store::MemoryStore moved(job.env.loop, job.env.loop, other.env.disk,
                           store::MemoryStore::Options{.owned = false});
  SwitchableStore switchable(&*job.worker.faulty);
  History history(switchable, job.env.steady, job.executor, 50);
  const auto read_index = [&] {
    return job.env.loop.await<Result<History::IndexPtr>>(
        [&](auto done) { history.step_index(kJob, std::move(done)); });
  };
  ASSERT_TRUE(job.state_at(history, job.log.size()));
  ASSERT_TRUE(read_index());
  switchable.current = &moved;
  const auto index = read_index();
  ASSERT_TRUE(index) << index.error().message;
  EXPECT_EQ((*index)->attempts().size(), 1u) << "of the new job alone";
  const std::size_t end = other.log.size();
  const auto past = job.state_at(history, end);
  ASSERT_TRUE(past) << past.error().message;
  ASSERT_TRUE(past->state);
  EXPECT_EQ(engine::state_view(*past->state), other.expected_at(end));
}

AE_TEST("history/an index that is in use does not change") {
  LongJob job(1'000'000, 1, 10);
  History history(*job.worker.faulty, job.env.steady, job.executor);
  const auto read = [&] {
    return job.env.loop.await<Result<History::IndexPtr>>(
        [&](auto done) { history.step_index(kJob, std::move(done)); });
  };
  const auto early = read();
  ASSERT_TRUE(early) << early.error().message;
  engine::StepIndex prefix;
  for (const Event& event : job.log) prefix.add(event);
  EXPECT_EQ((*early)->bytes(), prefix.bytes());
  job.answer_until(60);
  const auto late = read();
  ASSERT_TRUE(late) << late.error().message;
  EXPECT_EQ((*early)->bytes(), prefix.bytes());
  engine::StepIndex whole;
  for (const Event& event : job.worker.read().events) whole.add(event);
  EXPECT_GT(whole.bytes(), prefix.bytes());
  EXPECT_EQ((*late)->bytes(), whole.bytes());
}

AE_TEST("history/the step index is read once, then only new events are read") {
  LongJob job;
  std::size_t windows = 0;
  job.worker.script = [&](const store::Call& call) {
    windows += call.method == Method::load_window ? 1 : 0;
    return Fault::none;
  };
  History history(*job.worker.faulty, job.env.steady, job.executor);
  const auto read = [&] {
    return job.env.loop.await<Result<History::IndexPtr>>(
        [&](auto done) { history.step_index(kJob, std::move(done)); });
  };
  const auto index = read();
  ASSERT_TRUE(index) << index.error().message;
  engine::StepIndex whole;
  for (const Event& event : job.log) whole.add(event);
  const auto snapshot = job.worker.read();
  const std::string map = snapshot.state.steps[0].id.text.string();
  EXPECT_EQ(*engine::list_steps(snapshot.state, **index, {.parent = map}),
            *engine::list_steps(snapshot.state, whole, {.parent = map}));
  windows = 0;
  ASSERT_TRUE(read());
  EXPECT_EQ(windows, 1u) << "there is nothing new";
  job.worker.script = [](const store::Call& call) {
    return call.method == Method::load_window ? Fault::fail_before : Fault::none;
  };
  EXPECT_EQ(read().error().code, Code::unavailable);
  job.worker.script = [](const store::Call&) { return Fault::none; };
  EXPECT_TRUE(read());
}

}  // namespace
}  // namespace ae::runtime::testing
