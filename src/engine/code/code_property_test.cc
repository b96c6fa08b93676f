// Properties of every program of code, every order of outcomes and every moment of a crash: a new
// routine makes the same requests again. The rule is that of formal/routine.pml. Seeds:
// AETHERIS_SEED.
#include <fmt/core.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/code/random_program_test.h"
#include "engine/fixtures/code_fixture_test.h"
#include "engine/fixtures/dice_test.h"
#include "engine/fixtures/dropped_steps_test.h"
#include "engine/fixtures/forged_event_test.h"
#include "inspect/trace.h"
#include "inspect/verify.h"
#include "inspect/view.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

// What the branches of one routine share: x is in every request, and each outcome changes it.
struct Shared {
  std::string x = "x";
  std::vector<Awaited> requests;  // made outside of scopes
};

std::string mixed(std::string_view x, const Value& value) {
  return to_hex(sha256(fmt::format("{} {}", x, canonical(value)))).substr(0, 12);
}

// Runs one block. In a scope `local` is a variable of the scope, and x is only read.
class Runner {
 public:
  Runner(const RandomProgram& program, std::shared_ptr<Shared> shared)
      : program_(&program), shared_(std::move(shared)) {}

  static Script run(Runner self, CodeContext ctx, const Block* block) {
    Value last;
    for (const Statement& statement : *block) {
      last = co_await self.step(ctx, statement);
      if (statement.changes_x) self.change(last);
    }
    co_return Value(self.variable());
  }

 private:
  const std::string& variable() const { return local_ ? *local_ : shared_->x; }
  void change(const Value& by) { (local_ ? *local_ : shared_->x) = mixed(variable(), by); }
  Value content() const {
    std::vector<Member> members{{"x", shared_->x}};
    if (local_) members.emplace_back("local", *local_);
    if (!drawn_.is_null()) members.emplace_back("drawn", drawn_);
    return Value::object(std::move(members));
  }

  Script step(CodeContext ctx, const Statement& statement) {
    switch (statement.act) {
      case Act::request:
      case Act::wait:
        return request(ctx, statement);
      case Act::cancel:
        return cancelled(ctx, statement);
      case Act::all:
      case Act::race:
        return branches(ctx, statement);
      case Act::scope:
        return closed_scope(ctx, statement);
      case Act::loop:
        return loop(ctx, statement);
      case Act::outside:
        return outside();
      default:
        return value(ctx, statement);
    }
  }

  Script request(CodeContext ctx, const Statement& statement) {
    if (program_->is_delayed) co_await ctx.delayed(statement.name);
    const Awaited made = statement.act == Act::wait
                             ? ctx.wait_as(statement.name, statement.wait)
                             : ctx.call_as(statement.name, statement.tool, content());
    drawn_ = {};
    if (!local_) shared_->requests.push_back(made);
    Value result;
    try {
      result = co_await made;
    } catch (const CodeFailure& failed) {
      result = Value(failed.failure.code);
    }
    co_return result;
  }

  // Requests a wait or a call, and does not need it after another call.
  Script cancelled(CodeContext ctx, const Statement& statement) {
    const std::string name = "other_" + statement.name;
    if (program_->is_delayed) co_await ctx.delayed(name);
    const Awaited other = statement.cancels_call ? ctx.call_as(name, statement.tool, content())
                                                 : ctx.wait_as(name, statement.wait);
    const Value result = co_await request(ctx, statement);
    if (!other.done()) ctx.cancel(other);
    co_return result;
  }

  static Value draw(CodeContext ctx, bool uuid) { return uuid ? ctx.uuid() : ctx.now(); }

  // A drawn value is in the next request of its branch.
  Script value(CodeContext ctx, const Statement& statement) {
    if (statement.act == Act::value)
      drawn_ = draw(ctx.inside(statement.name), statement.draws_uuid);
    if (statement.act == Act::patch) drawn_ = Value(ctx.patched(statement.name));
    if (statement.act == Act::emit) ctx.emit(statement.name, Value(variable()));
    co_return drawn_;
  }

  Script branches(CodeContext ctx, const Statement& statement) {
    std::vector<Awaited> all;
    for (const Block& block : statement.blocks) all.push_back(ctx.spawn(run(*this, ctx, &block)));
    if (statement.act == Act::race) {
      const std::size_t first = co_await CodeContext::first(all);
      co_return Value(static_cast<std::uint64_t>(first));
    }
    Value last;
    for (const Awaited& branch : all) last = co_await branch;
    co_return last;
  }

  Script closed_scope(CodeContext ctx, const Statement& statement) {
    Runner inner = *this;
    inner.local_ = std::make_shared<std::string>(variable());
    const Awaited scope =
        ctx.scope(statement.name, run(inner, ctx.inside(statement.name), &statement.blocks[0]));
    co_return co_await scope;
  }

  // Each turn continues with the result of the one before.
  Script loop(CodeContext ctx, const Statement& statement) {
    Value last(variable());
    for (std::uint64_t n = ctx.first_turn(statement.name); n < statement.turns; ++n) {
      Runner inner = *this;
      inner.local_ = std::make_shared<std::string>(last.as_string());
      const CodeContext within = ctx.inside(fmt::format("{}/{}", statement.name, n));
      last = co_await ctx.turn(statement.name, n, run(inner, within, &statement.blocks[0]));
    }
    co_return last;
  }

  // A closed scope awaits a request from outside of it.
  Script outside() {
    Value result;
    if (shared_->requests.empty()) co_return result;
    const Awaited last = shared_->requests.back();
    try {
      result = co_await last;
    } catch (const CodeFailure& failed) {
      result = Value(failed.failure.code);
    }
    co_return result;
  }

  const RandomProgram* program_;
  std::shared_ptr<Shared> shared_;
  std::shared_ptr<std::string> local_;
  Value drawn_;
};

// ---------------------------------------------------------------- the walk

// Prints how to repeat a program that ends the test by a failed check.
std::string g_repeat;
void print_repeat(int) { std::fprintf(stderr, "%s\n", g_repeat.c_str()); }

struct Totals {
  std::size_t programs = 0, requests = 0, crashes = 0, routines = 0, replayed = 0, late = 0,
              refused = 0, early_ends = 0;
};

// Makes random things happen to one job.
class Walk {
 public:
  Walk(std::uint64_t seed, Totals& totals)
      : dice_(seed), program_(random_program(dice_)), totals_(totals) {
    const std::string code = fmt::format("{{'parallel':{}}}", 1 + dice_.below(4));
    job_ = std::make_unique<CodeJob>(
        [this](CodeContext ctx) {
          return Runner::run(Runner(program_, std::make_shared<Shared>()), std::move(ctx),
                             &program_.block);
        },
        code,
        JobFixtureOptions{.more = "{'max_attempts':1000,'tools':{'gated':{'approval':'required'},"
                                  "'picky':{'args_schema':{'type':'object','required':['never']}},"
                                  "'registered':{'function':true,'approval':'required'}}}"});
    CodeJob& job = *job_;
    job.state.keeps_folded = true;  // the walk refers to steps by index; check_dropping drops them
    records_rarely_ = dice_.one_in(2);
    job.is_stepwise = true;
    job.keeps_routines = dice_.one_in(2);
    job.owned = !dice_.one_in(3);
    job.commits_each_decision = dice_.one_in(2);
    job.limits.parallel_max = 1 + dice_.below(4);
    if (dice_.one_in(3)) job.limits.events_max = 1 + dice_.below(12);
    if (program_.is_delayed) {
      job.is_late = [this](std::string_view name) { return is_recorded(name) && dice_.one_in(2); };
    }
  }

  void run() {
    run_troubled();
    for (int n = 0; n < 2000 && goes_on(); ++n) one_thing(false);
    if (::testing::Test::HasFailure()) return;
    ASSERT_EQ(job_->status(), "completed") << job_->log_text();
    check_end();
    totals_.programs++;
    totals_.requests += program_.requests;
    totals_.routines += static_cast<std::size_t>(job_->routine_count);
    totals_.refused += static_cast<std::size_t>(job_->refused_advances);
  }

  // With crashes, failures, and things that happen in an odd order.
  void run_troubled() {
    job_->claim();
    const std::uint64_t things = 20 + dice_.below(120);
    for (std::uint64_t n = 0; n < things && goes_on(); ++n) one_thing(true);
  }
  const CodeJob& job() const { return *job_; }

 private:
  bool goes_on() const {
    return !is_terminal(job_->state.status) && !::testing::Test::HasFailure();
  }
  bool is_recorded(std::string_view position) const {
    return std::ranges::any_of(job_->state.steps, [&](const Step& step) {
      return step.request && step.request->position == position;
    });
  }

  void one_thing(bool troubled) {
    const std::size_t commits = job_->commits.size();
    const std::uint64_t kind = dice_.below(20);
    if (!troubled) {
      if (!move()) end_something(false);
    } else if (kind < 6) {
      move_one();
    } else if (kind < 8) {
      move();
    } else if (kind < 14) {
      end_something(true);
    } else if (kind < 16) {
      import_late();
    } else if (kind < 17) {
      pass_time(20s);
    } else if (kind < 18) {
      crash(commits);
    } else if (!records_rarely_ || dice_.one_in(4)) {
      record();
      if (dice_.one_in(3)) crash(commits);
    }
    check_routine();
  }

  // One thing that a driver does; false: there is none.
  bool move_one() {
    CodeJob& job = *job_;
    switch (dice_.below(4)) {
      case 0:
        return job.start_routines();
      case 1:
        totals_.replayed++;
        return job.replay_one();
      case 2:
        return job.deliver_one();
      default:
        return !records_rarely_ && record();
    }
  }
  // Whatever a driver can do now.
  bool move() {
    CodeJob& job = *job_;
    return job.start_routines() || job.replay_one() || job.deliver_one() || record();
  }

  // Records what the routine did, and decides on its requests, perhaps in another commit.
  bool record() {
    CodeJob& job = *job_;
    const std::size_t events = job.log.size();
    const bool may_admit = is_at_frontier();
    job.record_advances();
    if (dice_.one_in(4)) job.commit();
    if (!dice_.one_in(6)) decide(may_admit);
    return job.log.size() > events;
  }
  bool is_at_frontier() const {
    const ScriptedRoutine* const routine = job_->routine();
    return routine != nullptr && routine->is_live && routine->has_replayed();
  }
  // A request is admitted, and a function is performed, only by a routine at the frontier.
  void decide(bool may_admit) {
    CodeJob& job = *job_;
    const std::size_t events = job.log.size(), sent = job.sent.size();
    job.decide_until_idle();
    check_admitted(may_admit, events, sent);
  }
  void check_admitted(bool may_admit, std::size_t events, std::size_t sent) const {
    if (may_admit) return;
    CodeJob& job = *job_;
    for (std::size_t i = events; i < job.log.size(); ++i) {
      const auto* started = std::get_if<NodeStarted>(&job.log[i].body);
      EXPECT_TRUE(started == nullptr || !started->position) << job.log_text();
    }
    for (std::size_t i = sent; i < job.sent.size(); ++i) {
      EXPECT_FALSE(job.sent[i].tool.starts_with("run:")) << job.log_text();
    }
  }

  // A call ends, or a wait is answered, or time passes.
  void end_something(bool troubled) {
    CodeJob& job = *job_;
    const bool may_admit = is_at_frontier();
    const std::size_t events = job.log.size(), sent = job.sent.size();
    const std::size_t calls = job.in_flight.size(), waits = job.state.waits.size();
    if (calls + waits == 0) return pass_time(60s);
    const std::uint64_t chosen = dice_.below(calls + waits);
    if (chosen < calls) {
      auto call = job.in_flight.begin();
      std::advance(call, static_cast<std::ptrdiff_t>(chosen));
      const Outcome outcome = random_outcome(troubled);
      const std::uint32_t step = call->first;
      const bool is_early = job.is_given_early(step, outcome);
      totals_.early_ends += is_early ? 1 : 0;
      job.answer(step, outcome);
      // Another success of the same try is in the log before this one.
      if (is_early && troubled && dice_.one_in(8)) {
        job.store_effect(sent_try_of(job.state, job.state.steps[step]), random_outcome(false));
      }
    } else {
      auto wait = job.state.waits.begin();
      std::advance(wait, static_cast<std::ptrdiff_t>(chosen - calls));
      const std::string key = wait->first;
      answer_wait(key, Wait(wait->second));
    }
    check_admitted(may_admit, events, sent);
  }

  Outcome random_outcome(bool troubled) {
    const std::uint64_t kind = troubled ? dice_.below(14) : 13;
    if (kind == 0) return {.kind = OutcomeKind::failure, .definite = true, .error_code = "connect"};
    if (kind == 1)
      return {.kind = OutcomeKind::failure, .definite = true, .error_code = "http_400"};
    if (kind == 2) return {.kind = OutcomeKind::unknown, .error_code = "unknown"};
    Outcome outcome{.kind = OutcomeKind::success};
    outcome.result = Value(dice_.below(1'000'000));
    return outcome;
  }

  void answer_wait(const std::string& key, const Wait& wait) {
    CodeJob& job = *job_;
    const Step& step = job.state.steps[wait.step];
    const Value payload(dice_.below(1'000'000));
    if (wait.resolve) {
      const bool happened = dice_.one_in(2);
      if (const auto settles = job.state.settles_at(step); settles && !happened)
        job.now = std::max(job.now, *settles);
      ResolveRequest request{.idempotency_key = job.state.key_of(step).text,
                             .resolution = happened ? "happened" : "not_happened"};
      if (happened) request.result = payload;
      job.send_request({.by = "ann", .body = std::move(request)});
    } else if (wait.type == WaitType::human) {
      job.answer_approval(job.state.approval_id(wait), dice_.one_in(3) ? "reject" : "approve");
    } else if (wait.type == WaitType::message) {
      job.message(wait.channel, canonical(payload), fmt::format("m{}", ++messages_));
    } else if (wait.type == WaitType::timer) {
      pass_time(20s);
    } else {
      job.send_request(
          {.body = SignalRequest{.correlation_key = key, .wait_type = {}, .payload = payload}});
    }
  }

  void pass_time(Duration span) {
    const bool may_admit = is_at_frontier();
    const std::size_t events = job_->log.size(), sent = job_->sent.size();
    job_->after(span);
    check_admitted(may_admit, events, sent);
  }

  // The process dies at a commit that it made since, or at the last one.
  void crash(std::size_t commits_before) {
    CodeJob& job = *job_;
    const std::size_t made = job.commits.size() - std::min(commits_before, job.commits.size());
    if (made > 0) job.commits.resize(job.commits.size() - dice_.below(made + 1));
    if (job.commits.size() < 2 || job.state.status != JobStatus::running) return;
    std::vector<std::string> order;
    if (const ScriptedRoutine* routine = job.routine()) order = recorded_order(*routine);
    job.reload();
    if (job.state.status != JobStatus::running) {
      job.claim();
      return;
    }
    totals_.crashes++;
    keep_order(std::move(order));
    lost_.clear();
    for (const std::uint32_t step : job.state.calling) {
      if (dice_.one_in(2)) lost_.push_back(sent_try_of(job.state, job.state.steps[step]));
    }
    job.claim();
  }
  // Without what it was given before the log, and has not recorded.
  std::vector<std::string> recorded_order(const ScriptedRoutine& routine) const {
    std::set<std::string> own;
    for (const RoutineAdvance& advance : routine.advances) {
      if (advance.function) own.insert(job_->state.steps[advance.function->step].request->position);
      for (const Advance::Item& item : advance.recorded.items) {
        if (const auto* scope = std::get_if<Advance::ScopeEnded>(&item))
          own.insert(scope->position);
      }
    }
    const auto is_own = [&](const std::string& position) { return own.contains(position); };
    return {routine.order.begin(), std::ranges::find_if(routine.order, is_own)};
  }
  // What a later routine must be given at the same positions.
  void keep_order(std::vector<std::string> order) {
    std::set<std::string> durable;
    for (const Step& step : job_->state.steps) {
      if (step.request && step.request->ended) durable.insert(step.request->position);
    }
    std::size_t n = 0;
    while (n < order.size() && (order[n].empty() || durable.contains(order[n]))) n++;
    order.resize(n);
    if (order.size() > durable_order_.size()) durable_order_ = std::move(order);
  }

  // A call of a lost process ends; its outcome is in the effect store.
  void import_late() {
    CodeJob& job = *job_;
    if (lost_.empty() || job.state.status != JobStatus::running) return;
    const engine::SentTry sent = lost_.back();
    lost_.pop_back();
    const bool may_admit = is_at_frontier();
    const std::size_t events = job.log.size(), tries = job.sent.size();
    job.store_effect(sent, random_outcome(false));
    check_admitted(may_admit, events, tries);
    totals_.late++;
  }

  void check_routine() {
    CodeJob& job = *job_;
    ASSERT_FALSE(job.diverged) << canonical(record_json(*job.diverged)) << "\n" << job.log_text();
    const ScriptedRoutine* const routine = job.routine();
    if (routine == nullptr || is_terminal(job.state.status)) return;
    for (std::size_t i = 0; i < std::min(routine->order.size(), durable_order_.size()); ++i) {
      const bool is_passed_over = routine->order[i].empty() || durable_order_[i].empty();
      ASSERT_TRUE(is_passed_over || routine->order[i] == durable_order_[i]) << job.log_text();
    }
    each<ToolInvocationStarted>(job.log, [&](const ToolInvocationStarted& event) {
      const Step* const step = job.state.find_step(event.step_id);
      const auto made = routine->made.find(step->request->position);
      if (made == routine->made.end()) return;
      EXPECT_EQ(made->second, event.arguments.value) << job.log_text();
    });
    const bool is_recorded = routine->advances.size() == 1 &&
                             routine->advances[0].recorded.items.empty() &&
                             !routine->advances[0].function;
    if (!is_recorded || !job.state.routines.contains(0)) return;
    const CodeRecord record = job.record();
    std::vector<std::string> recorded;  // "": passed over
    for (const Delivery& one : record.deliveries) {
      recorded.resize(recorded.size() + one.passed_over);
      if (one.passed_over == 0) recorded.push_back(one.position);
    }
    ASSERT_LE(routine->order.size(), recorded.size()) << job.log_text();
    for (std::size_t i = 0; i < routine->order.size(); ++i) {
      const bool is_passed_over = routine->order[i].empty() || recorded[i].empty();
      ASSERT_TRUE(is_passed_over || routine->order[i] == recorded[i])
          << i << ": " << routine->order[i] << "\n"
          << job.log_text();
    }
  }

  // Steps that are dropped change nothing that a routine, a decision or a view of the job reads.
  void check_dropping() const {
    const CodeJob& job = *job_;
    const PlanSource same = [&](const Value&, std::string_view) {
      return Result<std::shared_ptr<const Plan>>(job.plan);
    };
    const auto ids = [](const State& state, const auto& indexes) {
      std::vector<std::string> ids;
      for (const std::uint32_t index : indexes) ids.emplace_back(state.steps[index].id.text.view());
      return ids;
    };
    for_each_pair(job.state.job, job.log, same, 1, [&](const State& all, const State& dropping) {
      ASSERT_EQ(ids(all, all.todo), ids(dropping, dropping.todo));
      ASSERT_EQ(ids(all, all.startable), ids(dropping, dropping.startable));
      ASSERT_EQ(ids(all, all.calling), ids(dropping, dropping.calling));
      ASSERT_EQ(ids(all, all.undoable), ids(dropping, dropping.undoable));
      ASSERT_EQ(all.unknown_call_keys(), dropping.unknown_call_keys());
      ASSERT_EQ(all.next_due(), dropping.next_due());
      if (all.seq % 16 == 0 || all.seq == job.log.size()) {
        ASSERT_EQ(canonical(job_view(all)), canonical(job_view(dropping))) << job.log_text();
      }
      if (!all.routines.contains(0)) return;
      ASSERT_EQ(text_of(record_of(all, all.steps[0])),
                text_of(record_of(dropping, dropping.steps[0])));
    });
  }
  static std::string text_of(const CodeRecord& record) {
    std::string text;
    for (const RecordedRequest& one : record.requests) {
      text += fmt::format("{} {}; ", one.position, one.delivered);
    }
    for (const Delivery& one : record.deliveries) {
      text += fmt::format("{} {} {}; ", one.position, one.passed_over, canonical(one.result));
    }
    return text;
  }

  void check_end() const {
    check_dropping();
    const CodeJob& job = *job_;
    VerifyInput input;
    input.job = job.state.job;
    input.events = job.log;
    input.effects = job.effects;
    const Verification all = verify(input, uncached_plan_source());
    EXPECT_TRUE(all.ok) << canonical(all.to_json()) << "\n" << job.log_text();
    (void)job_view(job.state);
    const Value trace = trace_view(job.state, job.log);
    const auto tries = static_cast<std::uint64_t>(job.count(EventType::tool_invocation_started));
    EXPECT_EQ(trace["totals"]["tries"], Value(tries)) << job.log_text();
    std::map<std::string, std::string> keys;
    each<ToolInvocationStarted>(job.log, [&](const ToolInvocationStarted& event) {
      const auto [known, is_first] = keys.emplace(event.step_id.text, event.external_key.text);
      EXPECT_EQ(known->second, event.external_key.text.view()) << job.log_text();
    });
    std::set<std::string> emitted;
    each<ValueEmitted>(job.log, [&](const ValueEmitted& event) {
      EXPECT_TRUE(emitted.insert(or_empty(event.scope) + '/' + event.value_name).second)
          << event.value_name << "\n"
          << job.log_text();
    });
  }

  Dice dice_;
  RandomProgram program_;
  bool records_rarely_ = false;  // many advances are in one commit
  std::unique_ptr<CodeJob> job_;
  Totals& totals_;
  std::vector<std::string> durable_order_;
  std::vector<engine::SentTry> lost_;
  int messages_ = 0;
};

AE_TEST("code/every program takes the recorded path again after crashes at any commit") {
  constexpr std::string_view kName = "code.every program*";
  Totals totals;
  const auto earlier = std::signal(SIGABRT, &print_repeat);
  const std::uint64_t first = first_seed();
  for (std::uint64_t seed = first; seed < first + seeds(100); ++seed) {
    g_repeat = repeat(seed, kName);
    SCOPED_TRACE(g_repeat);
    Walk(seed, totals).run();
    if (::testing::Test::HasFailure()) break;
  }
  std::signal(SIGABRT, earlier);
  if (ae::testing::are_slow_tests_enabled()) {
    std::cerr << fmt::format(
        "{} programs, {} requests, {} crashes, {} routines, {} ends before the log, {} late "
        "records, {} refused advances\n",
        totals.programs, totals.requests, totals.crashes, totals.routines, totals.early_ends,
        totals.late, totals.refused);
  }
  if (std::getenv("AETHERIS_SEED")) return;
  EXPECT_GT(totals.crashes, totals.programs);
  EXPECT_GT(totals.late, 0u);
}

AE_TEST("code/a forged event is rejected or applied without a crash") {
  constexpr std::string_view kName = "code.a forged event*";
  const auto earlier = std::signal(SIGABRT, &print_repeat);
  std::size_t refused = 0;
  Totals totals;
  const std::uint64_t first = first_seed();
  for (std::uint64_t seed = first; seed < first + seeds(8); ++seed) {
    g_repeat = repeat(seed, kName);
    SCOPED_TRACE(g_repeat);
    Walk walk(seed, totals);
    walk.run_troubled();
    const CodeJob& job = walk.job();
    const PlanSource compile = uncached_plan_source();
    const PlanSource same = [&](const Value& graph, std::string_view hash) {
      return hash == to_hex(job.plan->hash) ? Result<std::shared_ptr<const Plan>>(job.plan)
                                            : compile(graph, hash);
    };
    Dice dice(seed);
    refused += forge_events(job, dice, 40, same, [](const State& state, const auto& log) {
      (void)state_view(state);
      (void)job_view(state);
      (void)trace_view(state, log);
      for (const std::uint32_t code : state.routines) Replay(record_of(state, state.steps[code]));
    });
  }
  std::signal(SIGABRT, earlier);
  EXPECT_GT(refused, 0u);
}

}  // namespace
}  // namespace ae::engine::testing
