// How jobs with an unknown outcome end (SPEC §7). For each way to end, each kind of tool and each
// place of the call: at most one `resolve` ends the job, and the terminal event lists exactly the
// calls whose outcome stayed unknown.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/fixtures/job_fixture_test.h"
#include "engine/heart/ending_fixture_test.h"
#include "engine/heart/side_record.h"
#include "engine/loop/loop_fixture_test.h"
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
    if (proofs++ % 8 == 0) expect_log_verifies(runner.job);
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

}  // namespace
}  // namespace ae::engine::testing
