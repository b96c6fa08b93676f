// How jobs with an unknown outcome end (SPEC §7). For each way to end, each kind of tool and each
// place of the call: at most one `resolve` ends the job, and the terminal event lists exactly the
// calls whose outcome stayed unknown.
#include <set>

#include "engine/heart/job_fixture_test.h"
#include "engine/heart/side_record.h"
#include "engine/loop/loop_fixture_test.h"
#include "inspect/trace.h"
#include "inspect/verify.h"
#include "inspect/view.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

enum class End { cancel, deadline, max_attempts, other_fails };
// The state of the call when the end comes: its process died, and the job is unclaimed or claimed
// again (and parked if an operator decides); it timed out; it is still open and times out then; or
// its probe is running.
enum class CallState { killed, killed_and_claimed, timed_out, open, probing };
enum class Place { node, item, loop_call };

struct Case {
  End end;
  CallState call_state;
  Place place;
  std::string_view effect, on_in_doubt;
  bool compensate = false;
  bool owned = true;                         // single owner process; false: a shared store
  std::string_view resolution = "happened";  // the operator's decision
  std::string_view probe = "silent";         // found | absent | silent
};

std::string text(const Case& c) {
  constexpr std::string_view kEnds[] = {"cancel", "deadline", "max_attempts", "other_fails"};
  constexpr std::string_view kCallStates[] = {"killed", "killed_and_claimed", "timed_out", "open",
                                              "probing"};
  constexpr std::string_view kPlaces[] = {"node", "item", "loop_call"};
  std::string all;
  for (const std::string_view part :
       {kEnds[static_cast<int>(c.end)], kCallStates[static_cast<int>(c.call_state)],
        kPlaces[static_cast<int>(c.place)], c.effect, c.on_in_doubt,
        std::string_view(c.compensate ? "compensate" : "no compensation"),
        std::string_view(c.owned ? "owned" : "shared"), c.resolution, c.probe}) {
    all.append(part).append(", ");
  }
  return all;
}

std::string tools_of(const Case& c) {
  std::string tool = "{'effect':'" + std::string(c.effect) + "','on_in_doubt':'" +
                     std::string(c.on_in_doubt) + "','retry':{'max_attempts':2,'retry_on':[" +
                     (c.effect == "idempotent" ? "'connect','timeout'" : "'connect'") + "]}";
  if (c.on_in_doubt == "probe") {
    tool += ",'probe':{'tool':'look','happened':'${ .result }'}";
  }
  if (c.compensate) tool += ",'compensate':{'tool':'undo','args':{'of':'${ .result.id }'}}";
  return "{'tools':{'model:main':{'effect':'read','provider':'openai'},"
         "'undo':{'effect':'idempotent'},'do':" +
         tool + "}}}";
}

std::string nodes_of(const Case& c) {
  const std::string other = ",{'id':'other','kind':'tool','tool':'look'}]";
  switch (c.place) {
    case Place::node:
      return "[{'id':'d','kind':'tool','tool':'do','args':{'n':1}}" + other;
    case Place::item:
      return "[{'id':'d','kind':'map','over':[1],'max_parallel':1,'do':{'tool':'do','args':{'n':'${"
             " .item }'}}}" +
             other;
    case Place::loop_call:
      return "[{'id':'d','kind':'loop','loop':{'tool':'model:main','model':'small',"
             "'prompt':'Hi','tools':['do'],'max_turns':5,'parallel_tools':1}}" +
             other;
  }
  return "";
}

// The process dies, and the next one claims the job; control requests are
// applied before it decides.
JobFixture& crash_and_claim(JobFixture& job) {
  job.reload();
  job.begin_attempt();
  return job;
}

// Simulates the tool, the probe and the operator of one case.
class CaseRunner {
 public:
  explicit CaseRunner(const Case& c)
      : case_(c),
        name_(c.place == Place::node   ? "d"
              : c.place == Place::item ? "d/0"
                                       : "d/0/0"),
        more_(tools_of(c)),
        job(nodes_of(c), {.more = more_, .deadline = 1h}) {
    job.limits.lost_claims_max = 2;
    job.waits_for_settling = true;
    job.owned = c.owned;
  }

  void run() {
    job.claim();
    if (case_.place == Place::loop_call)
      job.ok("d/0", tool_calls_answer({{"c1", "do", "{'n':1}"}}));
    reach_unknown_outcome();
    reach_end();
    for (int i = 0; i < 100 && !is_terminal(job.state.status); ++i) make_progress();
  }

  const Step& call() const { return job.step(name_); }

  bool known = false;     // the outcome of the call is known
  bool happened = false;  // if known
  int resolved = 0;

 private:
  const Case& case_;
  const std::string name_;
  const std::string more_;

 public:
  JobFixture job;

 private:
  void reach_unknown_outcome() {
    switch (case_.call_state) {
      case CallState::killed:
        crash_and_claim(job);
        return;
      case CallState::killed_and_claimed:
        job.crash();
        return;
      case CallState::timed_out:
        job.times_out(name_);
        return;
      case CallState::open:
        return;
      case CallState::probing:
        while (call().phase == StepPhase::calling) job.times_out(name_).after(71s);  // settled
        AE_CHECK(call().phase == StepPhase::probing, job.log_text());
        return;
    }
  }

  void reach_end() {
    switch (case_.end) {
      case End::cancel:
        job.cancel();
        return;
      case End::deadline:
        job.after(2h);
        return;
      case End::other_fails:
        job.run_until_idle();
        if (job.in_flight.contains(job.index_of("other"))) job.fails("other");
        return;
      case End::max_attempts:
        for (int i = 0; i < 4 && !job.state.ending && !is_idle(); ++i) {
          job.crash();
        }
        return;
    }
  }

  bool is_idle() const {
    return job.state.status == JobStatus::parked || is_terminal(job.state.status);
  }

  void make_progress() {
    if (!job.in_flight.empty()) return answer_call(job.in_flight.begin()->first);
    if (job.status() == "parked" && job.state.parked_until == "resolve") return resolve_call();
    job.after(61s);  // a back-off or grace period passes
  }

  void answer_call(std::uint32_t index) {
    const Step& step = job.state.steps[index];
    if (&step == &call() && case_.call_state == CallState::open && job.tries(name_) == 1) {
      job.times_out(name_);
    } else if (&step == &call()) {
      known = happened = true;
      job.answer(index, {.kind = OutcomeKind::success, .result = json("{'id':'D'}")});
    } else if (step.role == Role::probe && case_.probe == "silent") {
      job.answer(index, {.kind = OutcomeKind::failure, .definite = true, .error_code = "http_404"});
    } else if (step.role == Role::probe) {
      known = true;
      happened = case_.probe == "found";
      job.answer(index,
                 {.kind = OutcomeKind::success, .result = happened ? json("{'id':'D'}") : Value()});
    } else {
      job.answer(index, {.kind = OutcomeKind::success, .result = json(text_answer("Done"))});
    }
  }

  void resolve_call() {
    resolved++;
    known = case_.resolution != "fail";
    happened = case_.resolution == "happened";
    const bool result = case_.resolution == "happened";
    job.resolve(name_, case_.resolution,
                result ? std::optional<std::string_view>("{'id':'D'}") : std::nullopt);
    ASSERT_EQ(job.refused, std::nullopt);
  }
};

std::vector<Case> cases(bool owned) {
  struct Kind {
    std::string_view effect, on_in_doubt;
  };
  constexpr Kind kKinds[] = {{"at_most_once", "park"},  {"at_most_once", "fail"},
                             {"at_most_once", "probe"}, {"idempotent", "park"},
                             {"idempotent", "fail"},    {"idempotent", "probe"},
                             {"idempotent", "resend"}};
  std::vector<Case> all;
  for (const End end : {End::cancel, End::deadline, End::max_attempts, End::other_fails}) {
    for (const CallState call_state : {CallState::killed, CallState::killed_and_claimed,
                                       CallState::timed_out, CallState::open, CallState::probing}) {
      for (const Place place : {Place::node, Place::item, Place::loop_call}) {
        for (const auto& [effect, on_in_doubt] : kKinds) {
          if (call_state == CallState::probing && on_in_doubt != "probe") continue;
          for (const bool compensate : {false, true}) {
            const Case base{.end = end,
                            .call_state = call_state,
                            .place = place,
                            .effect = effect,
                            .on_in_doubt = on_in_doubt,
                            .compensate = compensate,
                            .owned = owned};
            for (const std::string_view resolution : {"happened", "not_happened", "fail"}) {
              // No operator is asked.
              if (on_in_doubt == "fail" && resolution != "happened") continue;
              all.push_back(base);
              all.back().resolution = resolution;
            }
            if (on_in_doubt != "probe") continue;
            for (const std::string_view answer : {"found", "absent"}) {
              all.push_back(base);
              all.back().probe = answer;
            }
          }
        }
      }
    }
  }
  return all;
}

void expect_proved(const JobFixture& job) {
  VerifyInput input;
  input.job = job.state.job;
  input.events = job.log;
  input.effects = job.effects;
  const Verification all = verify(input, uncached_plan_source());
  EXPECT_TRUE(all.ok) << canonical(all.to_json());
  EXPECT_EQ(state_view(job.folded(job.log.size())), state_view(job.state));
}

// The keys of unknown calls in the terminal event.
std::set<std::string> listed(const JobFixture& job) {
  const Value in_doubt = std::visit(
      [](const auto& end) {
        if constexpr (requires { end.in_doubt; }) return end.in_doubt;
        return Value();
      },
      job.log.back().body);
  std::set<std::string> keys;
  if (!in_doubt.is_array()) return keys;
  for (const Value& key : in_doubt.items()) keys.emplace(key.as_string());
  return keys;
}

void expect_every_case_ends(bool owned) {
  std::set<std::string_view> reached;
  int proofs = 0;
  for (const Case& c : cases(owned)) {
    SCOPED_TRACE(text(c));
    CaseRunner runner(c);
    runner.run();
    ASSERT_TRUE(is_terminal(runner.job.state.status)) << runner.job.log_text();
    EXPECT_LE(runner.resolved, 1) << runner.job.log_text();
    reached.insert(runner.job.status());
    const auto called = std::ranges::find(runner.job.sent, "do", &JobFixture::SentTry::tool);
    ASSERT_NE(called, runner.job.sent.end());
    const std::string key = called->key;
    const std::set<std::string> unknown = runner.known ? std::set<std::string>() : std::set{key};
    EXPECT_EQ(listed(runner.job), unknown) << runner.job.log_text();
    EXPECT_EQ(job_view(runner.job.state)["in_doubt"].size(), unknown.size());
    const bool undone = runner.job.status() != "completed" && c.compensate && runner.happened;
    EXPECT_EQ(runner.job.count(EventType::step_compensated), undone ? 1u : 0u)
        << runner.job.log_text();
    if (c.compensate && c.on_in_doubt != "fail") {
      EXPECT_TRUE(runner.known || (runner.resolved == 1 && c.resolution == "fail"))
          << "it ended while a call that can be compensated was unknown\n"
          << runner.job.log_text();
    }
    if (c.on_in_doubt == "fail") {
      EXPECT_EQ(runner.resolved, 0) << "the call is abandoned";
    }
    if (c.effect == "idempotent" && c.on_in_doubt == "resend" && c.compensate) {
      EXPECT_EQ(runner.resolved, 0) << "a resend settles it\n" << runner.job.log_text();
    }
    if (::testing::Test::HasFailure()) return;
    if (proofs++ % 8 == 0) expect_proved(runner.job);
  }
  std::set<std::string_view> ends{"cancelled", "failed"};
  // On shared stores the calls of a dead process are left alone until they settle, and the job is
  // released meanwhile: it loses fewer attempts, and `other` succeeds in the end.
  if (!owned) ends.insert("completed");
  EXPECT_EQ(reached, ends);
}

AE_TEST("ending/every way to end needs at most one resolve and lists the unknown calls") {
  expect_every_case_ends(true);
}

AE_TEST_SLOW("ending/every way to end on a shared store needs at most one resolve") {
  expect_every_case_ends(false);
}

// ---------------------------------------------------------------- one unknown outcome, nothing
// else

constexpr std::string_view kOne = "[{'id':'a','kind':'tool','tool':'do'}]";

JobFixture one(std::string_view tool, std::optional<Duration> deadline = {}) {
  const std::string more =
      "{'tools':{'undo':{'effect':'idempotent'},'do':" + std::string(tool) + "}}";
  JobFixture job(kOne, {.more = more, .deadline = deadline});
  job.waits_for_settling = true;
  return job;
}

constexpr std::string_view kUndoable =
    "{'effect':'at_most_once','on_in_doubt':'park','compensate':{'tool':'undo'}}";
constexpr std::string_view kResent =
    "{'effect':'idempotent','retry':{'max_attempts':2,'retry_on':['timeout']},"
    "'dedupe_window':'1h','compensate':{'tool':'undo'}}";

// ---------------------------------------------------------------- parked for a non-blocking call

constexpr std::string_view kChanging =
    "{'tools':{'undo':{'effect':'idempotent'},"
    "'mark':{'effect':'idempotent','changes':[{'type':'doc','id':'${ .result.id }','op':'edit',"
    "'version':'${ .result.v }'}]},"
    "'sign':{'effect':'at_most_once','on_in_doubt':'park','changes':[{'type':'doc',"
    "'id':'${ .result.id }','op':'edit','version':'${ .result.v }'}]},"
    "'slow':{'effect':'at_most_once','on_in_doubt':'park','timeout':'600s'},"
    "'book':{'effect':'idempotent','retry':{'max_attempts':3,'retry_on':['timeout']},"
    "'compensate':{'tool':'undo'}}}}";

AE_TEST("ending/a deadline ends a job that is parked for resolve after its process died") {
  JobFixture job("[{'id':'a','kind':'tool','tool':'pay'}]", {.deadline = 1h});
  const EventBody resumed{JobResumed{.by = "runtime"}};
  job.claim().reload();
  job.add({requeued_event(kProcessDied, std::nullopt)});
  job.claim();
  ASSERT_EQ(job.state.parked_until, "resolve") << job.log_text();
  ASSERT_EQ(job.state.process_deaths, 1u);
  State parked = job.folded(job.log.size());
  EXPECT_FALSE(apply(parked, resumed, job.now, uncached_plan_source())) << "the job does not end";
  job.after(2h);
  EXPECT_EQ(job.status(), "failed") << job.log_text();
  EXPECT_EQ(job.last<JobResumed>().by, "runtime");
  EXPECT_EQ(job.last<JobFailed>().code, "deadline_exceeded");
  EXPECT_EQ(listed(job), std::set{job.sent[0].key});
  expect_proved(job);
  JobFixture waiting_job = one(kUndoable);
  waiting_job.claim();
  crash_and_claim(waiting_job).cancel();  // parked again, for a call that could be undone
  State waits = waiting_job.folded(waiting_job.log.size());
  EXPECT_FALSE(apply(waits, resumed, waiting_job.now, uncached_plan_source()))
      << "an operator must resolve the call";
}

AE_TEST("ending/a deadline passes while a change is unknown and another call is resent") {
  JobFixture job(
      "[{'id':'w','kind':'tool','tool':'mark'},{'id':'x','kind':'tool','tool':'sign','needs':['w']}"
      ","
      "{'id':'y','kind':'tool','tool':'book','needs':['w']}]",
      {.more = kChanging, .deadline = 1h});
  job.claim().ok("w", "{'id':'d','v':1}").times_out("y").crash();
  ASSERT_EQ(job.state.parked_until, "resolve") << job.log_text();
  job.after(2h);
  ASSERT_EQ(job.tries("y"), 2u) << job.log_text();
  job.ok("y");
  ASSERT_EQ(job.status(), "parked") << "x is resolved before y is compensated\n" << job.log_text();
  job.resolve("x", "fail").ok("y/compensate");
  EXPECT_EQ(job.last<JobFailed>().code, "deadline_exceeded") << job.log_text();
  EXPECT_EQ(listed(job), std::set{job.state.key_of(job.step("x")).text.string()});
  expect_proved(job);
}

AE_TEST("ending/a deadline ends a parked job of a shared store although a call is still open") {
  JobFixture job(
      "[{'id':'w','kind':'tool','tool':'mark'},{'id':'x','kind':'tool','tool':'sign','needs':['w']}"
      ","
      "{'id':'z','kind':'tool','tool':'slow','needs':['w']}]",
      {.more = kChanging, .deadline = 5min});
  job.owned = false;
  job.claim().ok("w", "{'id':'d','v':1}").crash().after(61s);
  ASSERT_EQ(job.state.parked_until, "resolve") << job.log_text();
  job.after(5min);
  EXPECT_EQ(job.status(), "running") << "a worker must claim the job to end it\n" << job.log_text();
  job.after(10min);
  EXPECT_EQ(job.status(), "failed") << job.log_text();
}

AE_TEST("ending/a cancelled job parks for an unknown call that can be compensated") {
  JobFixture job = one(kUndoable);
  job.claim();
  crash_and_claim(job).cancel();
  ASSERT_EQ(job.status(), "parked") << job.log_text();
  EXPECT_EQ(job.state.parked_until, "resolve");
  job.resolve("a", "happened", "'A'").ok("a/compensate");
  EXPECT_EQ(job.status(), "cancelled");
  EXPECT_EQ(job.last<JobCancelled>().compensated.size(), 1u);
  EXPECT_TRUE(job.last<JobCancelled>().in_doubt.is_null());
}

AE_TEST("ending/a cancel with compensate: false ends at once and lists the unknown call") {
  JobFixture job = one(kUndoable);
  job.claim();
  crash_and_claim(job).cancel("", false);
  EXPECT_EQ(job.status(), "cancelled") << job.log_text();
  EXPECT_EQ(listed(job), std::set{job.sent[0].key});
}

AE_TEST("ending/with on_in_doubt: fail a cancel ends at once and lists the unknown call") {
  JobFixture job =
      one("{'effect':'at_most_once','on_in_doubt':'fail','compensate':{'tool':'undo'}}");
  job.claims_when_free = false;
  job.claim().reload();
  job.add({requeued_event("drain", std::nullopt)});
  job.cancel();
  EXPECT_EQ(job.status(), "cancelled") << job.log_text();
  EXPECT_EQ(listed(job), std::set{job.sent[0].key});
}

AE_TEST("ending/a resend keeps the keys and the arguments of the call") {
  JobFixture job = one(kResent);
  job.claim();
  crash_and_claim(job).cancel();
  ASSERT_EQ(job.sent.size(), 2u) << job.log_text();
  EXPECT_EQ(job.sent[1].external_key, job.sent[0].external_key);
  EXPECT_EQ(job.sent[1].arguments, job.sent[0].arguments);
  EXPECT_EQ(job.sent[1].try_no, 2u);
}

AE_TEST("ending/a resend respects max_attempts, the dedupe window and the tool version") {
  {
    JobFixture job = one(kResent);  // 2 tries
    job.claim().times_out("a").after(1s).times_out("a");
    EXPECT_EQ(job.status(), "parked") << job.log_text();
    job.cancel();
    EXPECT_EQ(job.tries("a"), 2u) << job.log_text();
    EXPECT_EQ(job.status(), "parked");
  }
  {
    JobFixture job = one(kResent, 2h);
    job.claim();
    crash_and_claim(job).after(3h);
    EXPECT_EQ(job.tries("a"), 1u) << "the dedupe window has passed";
    EXPECT_EQ(job.status(), "parked") << job.log_text();
  }
  {
    JobFixture job = one(kResent);
    job.claim();
    crash_and_claim(job);
    job.versions.assign(job.state.plan->tools.size(), "fedcba9876543210");
    job.cancel();
    EXPECT_EQ(job.tries("a"), 1u) << "the tool has changed";
    EXPECT_EQ(job.status(), "parked") << job.log_text();
  }
}

AE_TEST("ending/a call of another worker is not resent before its grace period ends") {
  JobFixture job = one(kResent);
  job.owned = false;
  job.claim();
  crash_and_claim(job).cancel();
  EXPECT_EQ(job.tries("a"), 1u) << job.log_text();
  job.after(39s);
  EXPECT_EQ(job.tries("a"), 1u) << job.log_text();
  job.after(2s);  // the lease and the grace period
  EXPECT_EQ(job.tries("a"), 2u) << job.log_text();
  job.ok("a").ok("a/compensate");
  EXPECT_EQ(job.status(), "cancelled");
}

AE_TEST("ending/an unknown call without compensation does not delay the end") {
  JobFixture job("[{'id':'a','kind':'tool','tool':'do'},{'id':'p','kind':'tool','tool':'pay'}]",
                 {.more = "{'tools':{'undo':{'effect':'idempotent'},'do':{'effect':'at_most_once',"
                          "'on_in_doubt':'park','compensate':{'tool':'undo'}}}}"});
  job.waits_for_settling = true;
  job.claim();
  crash_and_claim(job).cancel();
  ASSERT_EQ(job_view(job.state)["in_doubt"].size(), 1u) << "only `a` needs a resolution";
  job.resolve("a", "not_happened");
  EXPECT_EQ(job.status(), "cancelled") << job.log_text();
  EXPECT_EQ(listed(job), std::set{job.state.key_of(job.step("p")).text.string()});
}

AE_TEST("ending/a job that waits only for an unknown call keeps the reason of its end") {
  JobFixture job = one(kResent);
  job.limits.lost_claims_max = 3;
  job.claim().crash().crash().crash();
  ASSERT_TRUE(job.state.ending.has_value()) << job.log_text();
  EXPECT_EQ(job.state.ending->code, "max_attempts");
  job.crash().crash().crash();
  EXPECT_EQ(job.status(), "parked") << "the call that ends each attempt needs an operator\n"
                                    << job.log_text();
  job.resolve("a", "not_happened");
  EXPECT_EQ(job.last<JobFailed>().code, "max_attempts") << job.log_text();
}

// ---------------------------------------------------------------- completed jobs

AE_TEST("ending/a completed job lists the calls whose outcome stayed unknown") {
  const std::pair<std::string_view, std::string_view> places[] = {
      {"[{'id':'a','kind':'tool','tool':'risk','on_error':'continue'}]", "a"},
      {"[{'id':'a','kind':'map','over':[1],'max_parallel':1,'do':{'tool':'risk'},'on_item_error':'"
       "collect'}]",
       "a/0"}};
  for (const auto& [nodes, call] : places) {
    JobFixture job(nodes);
    job.claim().unknown(call);
    ASSERT_EQ(job.status(), "completed") << job.log_text();
    EXPECT_EQ(listed(job), std::set{job.sent[0].key});
    EXPECT_EQ(schema_of(job.last<JobCompleted>()), 2);
    ASSERT_EQ(job_view(job.state)["in_doubt"].size(), 1u);
    expect_proved(job);
  }
}

AE_TEST("ending/a job that continues after a loop with an unknown call lists it at the end") {
  JobFixture job(
      "[{'id':'chat','kind':'loop','on_error':'continue','loop':{'tool':'model:main',"
      "'model':'small','prompt':'Hi','tools':['risk'],'max_turns':5,'parallel_tools':1}}]",
      {.more = kTools});
  job.claim().ok("chat/0", tool_calls_answer({{"c1", "risk"}})).unknown("chat/0/0");
  ASSERT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(listed(job), std::set{job.sent[1].key});
}

AE_TEST("ending/a call resolved as fail is listed when the job completes") {
  JobFixture job("[{'id':'a','kind':'tool','tool':'pay','on_error':'continue'}]");
  job.claim().unknown("a").resolve("a", "fail");
  ASSERT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(listed(job), std::set{job.sent[0].key});
  EXPECT_EQ(job_view(job.state)["in_doubt"].items()[0]["reason"], Value("unknown"));
}

AE_TEST("ending/a job without unknown calls writes job_completed in schema 1") {
  JobFixture job(kOne, {.more = "{'tools':{'do':{}}}"});
  job.claim().ok("a");
  EXPECT_TRUE(job.last<JobCompleted>().in_doubt.is_null());
  EXPECT_EQ(schema_of(job.last<JobCompleted>()), 1);
}

// ---------------------------------------------------------------- outcomes noted after the end

JobFixture ended() {
  JobFixture job("[{'id':'a','kind':'tool','tool':'risk'}]");
  job.claim().unknown("a");
  return job;
}

AE_TEST("note/an ended job accepts a resolution as a note and keeps its end") {
  JobFixture job = ended();
  const std::uint64_t seq = job.state.seq;
  job.send_request({.by = "ann",
                    .body = ResolveRequest{.idempotency_key = job.sent[0].key,
                                           .resolution = "happened",
                                           .result = json("{'id':7}"),
                                           .reason = "it is on the statement"}});
  ASSERT_EQ(job.refused, std::nullopt);
  EXPECT_EQ(job.reply["noted"], Value(true));
  EXPECT_EQ(job.state.seq, seq + 1);
  EXPECT_EQ(job.status(), "failed");
  const auto note = job.last<OutcomeNoted>();
  EXPECT_EQ(note.by, "ann");
  EXPECT_EQ(note.idempotency_key.text, job.sent[0].key);
  EXPECT_EQ(note.note.value, Value("it is on the statement"));
  EXPECT_EQ(note.resolution, "happened");
  EXPECT_EQ(note.result.value, json("{'id':7}"));
  const Value view = job_view(job.state)["in_doubt"].items()[0];
  EXPECT_EQ(view["noted"]["resolution"], Value("happened"));
  EXPECT_EQ(view["noted"]["by"], Value("ann"));
  EXPECT_EQ(view["actions"], json("[]"));
  EXPECT_EQ(job_view(job.state)["error"]["code"], Value("invocation_in_doubt"));
  expect_proved(job);
}

AE_TEST("note/a call is noted once, and only when its outcome is unknown and settled") {
  JobFixture job = ended();
  EXPECT_EQ(job.resolve("a", "not_happened").refused, Code::not_settled);
  job.after(2min);
  EXPECT_EQ(job.resolve("a", "not_happened").refused, std::nullopt);
  EXPECT_EQ(job.resolve("a", "not_happened").refused, Code::not_in_doubt);
  EXPECT_EQ(job.resolve("a", "fail").refused, Code::job_terminal);
  EXPECT_EQ(job.count(EventType::outcome_noted), 1u);
  JobFixture known("[{'id':'a','kind':'tool','tool':'risk'}]");
  known.claim().ok("a");
  EXPECT_EQ(known.resolve("a", "happened").refused, Code::job_terminal);
}

// ---------------------------------------------------------------- late results after giving up

Outcome succeeded() { return {.kind = OutcomeKind::success, .result = json("{'id':7}")}; }
Outcome refused() {
  return {.kind = OutcomeKind::failure, .definite = true, .error_code = "http_409"};
}

AE_TEST("note/a definite result that arrives after the end is noted once") {
  JobFixture job = ended();
  const std::uint64_t seq = job.state.seq;
  job.store_effect("a", succeeded());
  EXPECT_EQ(job.state.seq, seq + 1);
  const auto note = job.last<OutcomeNoted>();
  EXPECT_EQ(note.by, "runtime");
  EXPECT_EQ(note.idempotency_key.text, job.sent[0].key);
  EXPECT_EQ(note.resolution, "happened");
  EXPECT_EQ(note.result.value, json("{'id':7}"));
  EXPECT_EQ(job_view(job.state)["in_doubt"].items()[0]["noted"]["resolution"], Value("happened"));
  const Value trace = trace_view(job.state, job.log);
  EXPECT_EQ(trace["nodes"].items()[0]["world"], Value("changed")) << canonical(trace);
  job.store_effect("a", succeeded());
  EXPECT_EQ(job.count(EventType::outcome_noted), 1u);
  EXPECT_EQ(job.resolve("a", "not_happened").refused, Code::not_in_doubt);
  expect_proved(job);
}

AE_TEST("note/a late failure is noted as not_happened, a late timeout is not noted") {
  JobFixture job = ended();
  job.store_effect("a", {.kind = OutcomeKind::timeout, .error_code = "timeout"});
  EXPECT_EQ(job.count(EventType::outcome_noted), 0u);
  JobFixture other = ended();
  other.store_effect("a", refused());
  EXPECT_EQ(other.last<OutcomeNoted>().resolution, "not_happened");
  EXPECT_EQ(trace_view(other.state, other.log)["nodes"].items()[0]["world"], Value("unchanged"));
  expect_proved(other);
}

AE_TEST("note/two unknown tries are noted as not_happened only when both failed definitely") {
  JobFixture job("[{'id':'a','kind':'tool','tool':'do'}]",
                 {.more = "{'tools':{'do':{'effect':'idempotent','on_in_doubt':'fail',"
                          "'retry':{'max_attempts':2,'retry_on':['timeout']}}}}"});
  job.claim();
  const SentTry first = sent_try_of(job.state, job.step("a"));
  job.times_out("a").after(20s);
  ASSERT_EQ(job.tries("a"), 2u) << job.log_text();
  const SentTry second = sent_try_of(job.state, job.step("a"));
  job.times_out("a");
  ASSERT_EQ(job.status(), "failed") << job.log_text();
  const auto record = [&](const SentTry& sent) {
    return canonical(effect_record(job.state.job, sent, refused(), job.now, Arrival::late));
  };
  const std::string one = record(first), two = record(second);
  const auto notes = [&](const std::vector<StoredEffect>& effects) {
    const auto events = import_stored_effects(job.state, effects);
    AE_CHECK(events.has_value());
    return events->size();
  };
  EXPECT_EQ(notes({{first.invocation, 1, one}}), 0u) << "the second try may have happened";
  EXPECT_EQ(notes({{first.invocation, 2, two}}), 0u) << "the first try may have happened";
  EXPECT_EQ(notes({{first.invocation, 1, one}, {first.invocation, 2, two}}), 1u);
}

AE_TEST("note/a late result of an erased job is noted without its value") {
  JobFixture job = ended();
  const SentTry sent = sent_try_of(job.state, job.step("a"));
  const std::string record =
      canonical(effect_record(job.state.job, sent, succeeded(), job.now, Arrival::late));
  job.state.blind_erased = true;
  const auto events = import_stored_effects(job.state, {{sent.invocation, 1, record}});
  ASSERT_TRUE(events && events->size() == 1);
  EXPECT_EQ(std::get<OutcomeNoted>(events->front()).resolution, "happened");
  EXPECT_TRUE(std::get<OutcomeNoted>(events->front()).result.is_null());
}

AE_TEST("note/a late result is noted from an erased effect record without its value") {
  JobFixture job = ended();
  const SentTry sent = sent_try_of(job.state, job.step("a"));
  const auto record = erased_effect(
      effect_location(job.state.job, sent.invocation, 1),
      canonical(effect_record(job.state.job, sent, succeeded(), job.now, Arrival::late)));
  ASSERT_TRUE(record) << record.error().message;
  const auto events = import_stored_effects(job.state, {{sent.invocation, 1, *record}});
  ASSERT_TRUE(events && events->size() == 1);
  EXPECT_EQ(std::get<OutcomeNoted>(events->front()).resolution, "happened");
  EXPECT_TRUE(std::get<OutcomeNoted>(events->front()).result.is_null());
}

// ---------------------------------------------------------------- given up while the job continues

constexpr std::string_view kRiskThenWait =
    "[{'id':'a','kind':'tool','tool':'risk','args':{'n':1},'on_error':'continue'},"
    "{'id':'b','kind':'wait','wait':{'type':'signal','key':'k'},'needs':['a']}]";

Value unknown_call_of(const JobFixture& job) {
  const Value view = job_view(job.state)["in_doubt"];
  AE_CHECK(view.size() == 1, job.log_text());
  return view.items()[0];
}

AE_TEST("ending/a waiting job shows an abandoned call and does not park for it") {
  JobFixture job(kRiskThenWait);
  job.claim().unknown("a");
  ASSERT_EQ(job.status(), "waiting") << job.log_text();
  const Value unknown_call = unknown_call_of(job);
  EXPECT_EQ(unknown_call["given_up"], Value(true));
  EXPECT_EQ(unknown_call["idempotency_key"], Value(job.sent[0].key));
  EXPECT_EQ(unknown_call["actions"], json("[]"));
  job.pause();
  EXPECT_EQ(job_view(job.state)["parked"]["action"],
            json("{'act':'resume','arguments':{'job_id':'job-1'},'choices':[]}"));
  job.resume().signal("k");
  EXPECT_EQ(listed(job), std::set{job.sent[0].key});
}

AE_TEST("ending/unknown calls are listed before abandoned ones") {
  JobFixture job(
      "[{'id':'a','kind':'tool','tool':'risk','on_error':'continue'},"
      "{'id':'b','kind':'tool','tool':'pay','needs':['a']}]");
  job.claim().unknown("a").unknown("b");
  ASSERT_EQ(job.status(), "parked") << job.log_text();
  const Value view = job_view(job.state);
  ASSERT_EQ(view["in_doubt"].size(), 2u);
  EXPECT_EQ(view["in_doubt"].items()[0]["node_id"], Value("b"));
  EXPECT_EQ(view["in_doubt"].items()[0]["given_up"], Value(false));
  EXPECT_EQ(view["in_doubt"].items()[1]["node_id"], Value("a"));
  EXPECT_EQ(view["parked"]["action"], view["in_doubt"].items()[0]["actions"].items()[0]);
}

AE_TEST("note/a late result of an abandoned call is noted while the job continues") {
  JobFixture job(kRiskThenWait);
  job.claim().unknown("a").store_effect("a", succeeded());
  ASSERT_EQ(job.status(), "waiting") << job.log_text();
  EXPECT_EQ(job.count(EventType::outcome_noted), 1u);
  EXPECT_EQ(unknown_call_of(job)["noted"]["by"], Value("runtime"));
  job.signal("k").store_effect("a", succeeded());
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.count(EventType::outcome_noted), 1u);
  expect_proved(job);
}

AE_TEST("ending/an abandoned call that a new plan drops is still listed") {
  JobFixture job(kRiskThenWait);
  job.claim();
  const SentTry sent = sent_try_of(job.state, job.step("a"));
  job.unknown("a").replan(
      compiled(graph("[{'id':'z','kind':'wait','wait':{'type':'signal','key':'z'}}]")), {"a"});
  ASSERT_EQ(job.refused, std::nullopt) << job.refusal;
  ASSERT_EQ(job.status(), "waiting") << job.log_text();
  const std::string key = job.sent[0].key;
  Value unknown_call = unknown_call_of(job);
  EXPECT_EQ(unknown_call["idempotency_key"], Value(key));
  EXPECT_EQ(unknown_call["tool"], Value("risk"));
  EXPECT_EQ(unknown_call["node_id"], Value("a"));
  EXPECT_EQ(unknown_call["arguments"], json("{'n':1}"));
  EXPECT_EQ(unknown_call["given_up"], Value(true));
  expect_proved(job);
  job.reload().signal("z");
  ASSERT_EQ(job.status(), "completed");
  EXPECT_EQ(listed(job), std::set{key});
  expect_proved(job);
  const auto text_answer = [&](std::string_view resolution) {
    return job
        .send_request(
            {.body = ResolveRequest{.idempotency_key = key, .resolution = std::string(resolution)}})
        .refused;
  };
  EXPECT_EQ(text_answer("not_happened"), Code::not_settled);
  job.after(2min);
  EXPECT_EQ(text_answer("not_happened"), std::nullopt);
  EXPECT_EQ(unknown_call_of(job)["noted"]["resolution"], Value("not_happened"));
  job.store_effect(sent, succeeded());
  EXPECT_EQ(job.count(EventType::outcome_noted), 1u) << "one note for each call";
  expect_proved(job);
}

AE_TEST("note/a late result of a call that a new plan dropped is noted") {
  JobFixture job(kRiskThenWait);
  job.claim();
  const SentTry sent = sent_try_of(job.state, job.step("a"));
  job.unknown("a")
      .replan(compiled(graph("[{'id':'z','kind':'wait','wait':{'type':'signal','key':'z'}}]")),
              {"a"})
      .store_effect(sent, succeeded());
  EXPECT_EQ(unknown_call_of(job)["noted"]["resolution"], Value("happened"));
  expect_proved(job);
}

}  // namespace
}  // namespace ae::engine::testing
