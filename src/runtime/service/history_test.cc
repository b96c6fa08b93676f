// Walks through a log in windows, kept states and indexed states: they show what the whole log
// shows, and cost the part of it that they need.
#include "runtime/service/history.h"

#include "inspect/step_list.h"
#include "inspect/view.h"
#include "runtime/service/log_walk.h"
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
  Result<History::NewestState> newest(History& history) {
    return env.loop.await<Result<History::NewestState>>(
        [&](auto done) { history.newest(kJob, std::move(done)); });
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
    History history(job.env.loop, *job.worker.faulty, job.env.steady, job.executor, 50);
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
  History history(job.env.loop, *job.worker.faulty, job.env.steady, job.executor, 50);
  std::stop_source stop;
  stop.request_stop();
  const auto past = job.env.loop.await<Result<History::PastState>>([&](auto done) {
    history.state_at(kJob, History::kLastEvent, stop.get_token(), std::move(done));
  });
  ASSERT_FALSE(past);
  EXPECT_EQ(past.error().code, Code::unavailable);
  EXPECT_TRUE(job.state_at(history, History::kLastEvent)) << "other reads still work";
}

// A store that is switchable by another one, which has another job with the same id. It counts the
// windows that are read.
class SwitchableStore final : public store::ForwardingStore<SwitchableStore> {
 public:
  explicit SwitchableStore(store::Store* first) : current(first) {}
  void load_window(JobId job, store::WindowRequest window,
                   async::Done<Result<store::LogWindow>> done) override {
    windows.push_back(window.seq);
    current->load_window(std::move(job), window, std::move(done));
  }
  store::Store* current;
  std::vector<std::uint64_t> windows;  // the events that they follow

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
  History history(job.env.loop, switchable, job.env.steady, job.executor, 50);
  ASSERT_TRUE(job.state_at(history, job.log.size()));
  ASSERT_TRUE(job.newest(history));
  switchable.current = &moved;
  const auto newest = job.newest(history);
  ASSERT_TRUE(newest) << newest.error().message;
  EXPECT_EQ(newest->indexed->index().attempts().size(), 1u) << "of the new job alone";
  const std::size_t end = other.log.size();
  EXPECT_EQ(engine::state_view(newest->indexed->state()), other.expected_at(end));
  const auto past = job.state_at(history, end);
  ASSERT_TRUE(past) << past.error().message;
  ASSERT_TRUE(past->state);
  EXPECT_EQ(engine::state_view(*past->state), other.expected_at(end));
}

// What `indexed` shows equals what a state and an index of these events show.
void expect_shows(const engine::IndexedState& indexed, const std::vector<Event>& log) {
  engine::IndexedState expected(kJob);
  ASSERT_TRUE(expected.add(log, engine::uncached_plan_source()));
  EXPECT_EQ(engine::state_view(indexed.state()), engine::state_view(expected.state()));
  for (const std::string& parent : {std::string(), expected.state().steps[0].id.text.string()}) {
    EXPECT_EQ(*engine::list_steps(indexed.tree(), indexed.index(), {.parent = parent}),
              *engine::list_steps(expected.tree(), expected.index(), {.parent = parent}));
  }
  EXPECT_EQ(indexed.index().bytes(), expected.index().bytes());
  EXPECT_EQ(indexed.head(), log.back().hash);
}

AE_TEST("history/a state that is in use does not change, and a read of newer events waits for it") {
  LongJob job(1'000'000, 1, 10);
  History history(job.env.loop, *job.worker.faulty, job.env.steady, job.executor);
  auto early = job.newest(history);
  ASSERT_TRUE(early) << early.error().message;
  auto again = job.newest(history);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->indexed, early->indexed) << "without new events it is shared";
  job.answer_until(60);
  std::vector<std::shared_ptr<const engine::IndexedState>> late;
  for (int i = 0; i < 2; ++i) {
    history.newest(kJob, [&](Result<History::NewestState> newest) {
      ASSERT_TRUE(newest) << newest.error().message;
      late.push_back(newest->indexed);
    });
  }
  job.env.loop.run_ready();
  EXPECT_TRUE(late.empty());
  expect_shows(*early->indexed, job.log);
  early->indexed.reset();
  job.env.loop.run_ready();
  EXPECT_TRUE(late.empty()) << "the second reader has it";
  again->indexed.reset();
  job.env.loop.run_ready();
  ASSERT_EQ(late.size(), 2u);
  const std::vector<Event> whole = job.worker.read().events;
  ASSERT_GT(whole.size(), job.log.size());
  expect_shows(*late[0], whole);
}

AE_TEST("history/a log is walked through once, then only new events are read") {
  LongJob job(1'000'000, 1, 10);
  SwitchableStore counted(&*job.worker.faulty);
  History history(job.env.loop, counted, job.env.steady, job.executor);
  ASSERT_TRUE(job.newest(history));
  EXPECT_EQ(counted.windows, std::vector<std::uint64_t>{0});
  counted.windows.clear();
  ASSERT_TRUE(job.newest(history));
  EXPECT_EQ(counted.windows, std::vector<std::uint64_t>{job.log.size()}) << "there is nothing new";
  job.answer_until(60);
  counted.windows.clear();
  const auto grown = job.newest(history);
  ASSERT_TRUE(grown);
  EXPECT_EQ(counted.windows, std::vector<std::uint64_t>{job.log.size()}) << "only what is new";
  expect_shows(*grown->indexed, job.worker.read().events);
  history.drop(kJob);
  counted.windows.clear();
  ASSERT_TRUE(job.newest(history));
  EXPECT_EQ(counted.windows, std::vector<std::uint64_t>{0}) << "a value was erased";
  job.worker.script = [](const store::Call& call) {
    return call.method == Method::load_window ? Fault::fail_before : Fault::none;
  };
  EXPECT_EQ(job.newest(history).error().code, Code::unavailable);
  job.worker.script = [](const store::Call&) { return Fault::none; };
  EXPECT_TRUE(job.newest(history));
}

AE_TEST("history/a state above the bound is kept alone, and for a minute") {
  LongJob job;
  SwitchableStore counted(&*job.worker.faulty);
  History history(job.env.loop, counted, job.env.steady, job.executor, 50, 1);
  ASSERT_TRUE(job.newest(history));
  job.env.loop.advance(History::kFoldTtl - 1s);
  counted.windows.clear();
  ASSERT_TRUE(job.newest(history));
  EXPECT_EQ(counted.windows, std::vector<std::uint64_t>{job.log.size()}) << "it is kept";
  job.env.loop.advance(2 * History::kFoldTtl);
  counted.windows.clear();
  ASSERT_TRUE(job.newest(history));
  EXPECT_EQ(counted.windows, std::vector<std::uint64_t>{0}) << "it was not used for a minute";
}

AE_TEST("history/a state of a shared store is kept for a minute") {
  LongJob job;
  store::MemoryStore shared(job.env.loop, job.env.loop, job.env.disk,
                            store::MemoryStore::Options{.owned = false});
  SwitchableStore counted(&shared);
  History history(job.env.loop, counted, job.env.steady, job.executor);
  ASSERT_TRUE(job.newest(history));
  job.env.loop.advance(History::kFoldTtl - 1s);
  counted.windows.clear();
  ASSERT_TRUE(job.newest(history));
  EXPECT_EQ(counted.windows, std::vector<std::uint64_t>{job.log.size()});
  job.env.loop.advance(2s);
  counted.windows.clear();
  ASSERT_TRUE(job.newest(history));
  EXPECT_EQ(counted.windows, std::vector<std::uint64_t>{0});
}

}  // namespace
}  // namespace ae::runtime::testing
