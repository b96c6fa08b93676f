// What a log contains: values once, no quadratic growth, no decision by the writer's clock.
//
// Method: jobs run to some point, and their events are sealed as in the runtime, commit by commit.
#include <fmt/core.h>

#include "engine/fixtures/job_fixture_test.h"
#include "inspect/view.h"
#include "log/seal.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

// Everything that a store keeps of the job's log, concatenated.
std::string stored(const JobFixture& job) {
  std::string all;
  std::map<std::string, std::string> blobs;
  Hash head;
  std::size_t from = 0;
  for (const std::size_t to : job.commits) {
    std::vector<EventBody> drafts;
    for (std::size_t i = from; i < to; ++i) drafts.push_back(job.log[i].body);
    if (drafts.empty()) continue;
    auto sealed = seal({.job = job.state.job,
                        .first_seq = from + 1,
                        .prev_hash = head,
                        .first_id = uuid_v7(from, 1, 2),
                        .created_at = job.log[from].created_at,
                        .attempt_id = job.log[from].attempt_id,
                        .salt_seed_a = 3,
                        .salt_seed_b = from},
                       drafts);
    AE_CHECK(sealed.has_value(), sealed ? "" : sealed.error().message);
    all += sealed->bytes;
    for (const Blob& blob : sealed->blobs) blobs.emplace(to_hex(blob.hash), blob.bytes);
    head = sealed->head;
    from = to;
  }
  for (const auto& [hash, bytes] : blobs) all += bytes;
  return all;
}

std::size_t times(std::string_view text, std::string_view part) {
  std::size_t n = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != text.npos; at += part.size()) n++;
  return n;
}

AE_TEST("log/a result is stored once, and later events refer to its call or wait") {
  JobFixture job(R"([{'id':'a', 'kind':'tool', 'tool':'put'},
                   {'id':'w', 'kind':'wait', 'needs':['a'], 'wait':{'type':'signal', 'key':'k'}},
                   {'id':'m', 'kind':'wait', 'needs':['w'], 'wait':{'type':'message', 'channel':'c'}},
                   {'id':'e', 'kind':'map', 'needs':['m'], 'over':[1], 'max_parallel':1, 'do':{'tool':'put'}},
                   {'id':'p', 'kind':'tool', 'tool':'pay', 'needs':['e']}])",
                 {.more = "{'output':'done'}", .input = "'the-input'"});
  job.claim().ok("a", "'of-a-tool'").signal("k", "'of-a-signal'");
  job.message("c", "'of-a-message'", "m1").ok("e/0", "'of-an-item'").unknown("p");
  job.waits_for_settling = true;
  job.resolve("p", "happened", "'of-a-person'");
  ASSERT_EQ(job.status(), "completed") << job.log_text();
  const std::string log = stored(job);
  for (const char* value :
       {"the-input", "of-a-tool", "of-a-signal", "of-a-message", "of-an-item", "of-a-person"}) {
    EXPECT_EQ(times(log, value), 1u) << value;
  }
}

std::size_t stored_by_chain(int nodes) {
  std::string plan;
  for (int i = 0; i < nodes; ++i) {
    const std::string needs =
        fmt::format(",'needs':['n{0}'],'args':{{'x':'${{ .steps.n{0} }}'}}", 999 + i);
    plan += fmt::format("{}{{'id':'n{}','kind':'tool','tool':'put'{}}}", i == 0 ? "" : ",",
                        1000 + i, i == 0 ? "" : needs);
  }
  JobFixture job(fmt::format("[{}]", plan), {.more = "{'output':'done'}"});
  job.claim();
  for (int i = 0; i < nodes; ++i) {
    job.ok(fmt::format("n{}", 1000 + i), fmt::format("'{}'", std::string(100, 'r')));
  }
  AE_CHECK(job.status() == "completed");
  return stored(job).size();
}

AE_TEST("log/the stored size grows linearly with the steps") {
  const std::size_t few = stored_by_chain(20), many = stored_by_chain(160);
  EXPECT_LT(many, few * 8 * 11 / 10) << few << " bytes of 20 steps";
}

AE_TEST("log/keys and argument hashes are stored only where a try starts") {
  JobFixture job(R"([{'id':'a', 'kind':'tool', 'tool':'put'},
                   {'id':'m', 'kind':'map', 'needs':['a'], 'over':[1,2], 'max_parallel':2, 'do':{'tool':'once'}}])");
  job.claim().fails("a", "connect").after(10s).ok("a").crash().ok("m/0").ok("m/1");
  ASSERT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(job.count(EventType::tool_invocation_started), 6u);
  for (const Event& event : job.log) {
    const bool begins = event.type == EventType::tool_invocation_started;
    const Value payload = payload_json(event.body);
    for (const char* field : {"idempotency_key", "external_key", "arguments_hash", "arguments"}) {
      EXPECT_EQ(payload.find(field) != nullptr, begins) << event_name(event) << " " << field;
    }
  }
}

AE_TEST("log/an unknown narrative event changes only the sequence number") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'pay'}]");
  job.claim();
  for (const bool ended : {false, true}) {
    if (ended) job.ok("a");
    const Value before = state_view(job.state);
    const EventBody dream =
        UnknownEvent{static_cast<EventType>(200), "dreamt", json("{'of':'sheep'}")};
    ASSERT_TRUE(apply(job.state, dream, job.now, uncached_plan_source()));
    EXPECT_EQ(state_view(job.state), before.with("seq", Value(before["seq"].as_int() + 1)));
  }
}

AE_TEST("log/a decision of an unknown kind, state or field is rejected") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'put'}]");
  job.claim().fails("a", "connect");
  const std::uint64_t seq = job.seq_of(EventType::decision_recorded, "a");
  const auto& retry = std::get<DecisionRecorded>(job.log[seq - 1].body);
  ASSERT_EQ(retry.kind, "retry");
  const auto is_applied = [&](const auto& change) {
    DecisionRecorded event = retry;
    change(event);
    State before = job.folded(seq - 1);
    const Status applied = apply(before, event, job.now, uncached_plan_source());
    if (!applied) EXPECT_EQ(applied.error().code, Code::log_corrupt);
    return applied.has_value();
  };
  EXPECT_TRUE(is_applied([](DecisionRecorded&) {}));
  EXPECT_FALSE(is_applied([](DecisionRecorded& event) { event.kind = "route"; }));
  EXPECT_FALSE(is_applied([](DecisionRecorded& event) { event.state = "requested"; }));
  EXPECT_FALSE(is_applied([](DecisionRecorded& event) { event.payload = Value(); }));
  EXPECT_FALSE(is_applied(
      [](DecisionRecorded& event) { event.payload = event.payload.value.with("brand_new", 1); }));
}

AE_TEST("log/no attempt begins without a plan") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'pay'}]");
  State state;
  state.job = job.state.job;
  ASSERT_TRUE(apply(state, job.log[0].body, job.now, uncached_plan_source()));
  auto begun = apply(state, running_event(AttemptId("x"), 1, "w"), job.now, uncached_plan_source());
  ASSERT_FALSE(begun);
  EXPECT_EQ(begun.error().code, Code::plan_missing);
}

AE_TEST("log/a call under the external key of another command is rejected") {
  JobFixture job(
      R"([{'id':'a', 'kind':'tool', 'tool':'put'}, {'id':'b', 'kind':'tool', 'tool':'put'}])");
  job.claim();
  State state = job.folded(job.log.size() - 1);
  const Event& second = job.log.back();
  ASSERT_EQ(second.type, EventType::tool_invocation_started);
  auto shared = std::get<ToolInvocationStarted>(second.body);
  shared.external_key = job.all<ToolInvocationStarted>()[0].external_key;
  EXPECT_FALSE(apply(state, shared, job.now, uncached_plan_source()));
  state = job.folded(job.log.size() - 1);
  EXPECT_TRUE(apply(state, second.body, job.now, uncached_plan_source()));
}

// The full text of a decision.
std::string decision_text(const Decision& decision) {
  std::string text;
  for (const EventBody& draft : decision.events) {
    text += fmt::format("{} {}\n", event_name(type_of(draft)), canonical(payload_json(draft)));
  }
  for (const StepId& step : decision.perform) text += fmt::format("perform {}\n", step.text);
  if (decision.decide_again_at)
    text += fmt::format("again at {}\n", to_text(*decision.decide_again_at));
  return text + (decision.release ? "release" : "");
}

AE_TEST("log/the times in events do not affect decisions") {
  JobFixture job(R"([{'id':'a', 'kind':'tool', 'tool':'put'},
                   {'id':'w', 'kind':'wait', 'wait':{'type':'signal', 'key':'k', 'expires':'1h'}},
                   {'id':'t', 'kind':'wait', 'wait':{'type':'timer', 'for':'2h'}},
                   {'id':'b', 'kind':'tool', 'tool':'pay', 'needs':['a']},
                   {'id':'c', 'kind':'tool', 'tool':'once', 'needs':['w']}])",
                 {.deadline = 9h});
  job.claim().fails("a", "connect").after(10s).ok("a", "1").crash().signal("k");
  job.waits_for_settling = true;
  job.resolve("b", "not_happened").times_out("c").after(3h).ok("b").resolve("c", "happened", "1");
  ASSERT_EQ(job.status(), "completed") << job.log_text();
  std::size_t decisions = 0;
  for (std::size_t prefix = 2; prefix < job.log.size(); ++prefix) {
    std::vector<Event> shifted(job.log.begin(),
                               job.log.begin() + static_cast<std::ptrdiff_t>(prefix));
    for (Event& event : shifted) event.created_at = event.created_at - 24h * 400 - 1s * event.seq;
    auto other = fold(job.state.job, shifted, uncached_plan_source());
    ASSERT_TRUE(other) << other.error().message;
    const State original = job.folded(prefix);
    for (const Duration later : {Duration(0), Duration(1h), Duration(10h)}) {
      DecisionContext context = job.context();
      context.now = job.log[prefix - 1].created_at + later;
      const std::string expected = decision_text(decide(original, context, job.limits));
      ASSERT_EQ(decision_text(decide(*other, context, job.limits)), expected)
          << "after event " << prefix;
      decisions += expected.empty() ? 0 : 1;
      for (const RequestBody& body : {RequestBody(TimersRequest{}), RequestBody(CancelRequest{}),
                                      RequestBody(PauseRequest{})}) {
        auto one = apply_request(original, {.body = body}, context);
        auto two = apply_request(*other, {.body = body}, context);
        ASSERT_EQ(one.has_value(), two.has_value());
        if (!one) continue;
        ASSERT_EQ(decision_text({.events = one->events}), decision_text({.events = two->events}));
      }
    }
  }
  EXPECT_GT(decisions, 20u);
}

}  // namespace
}  // namespace ae::engine::testing
