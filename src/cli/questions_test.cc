// The open questions of a job, from the whole log and from a single commit.
#include "cli/questions.h"

#include <fmt/core.h>

#include "engine/confirm/confirm.h"
#include "engine/state/state.h"
#include "testing/test.h"

namespace ae::cli {
namespace {

Event event(std::uint64_t seq, EventBody body) {
  Event made;
  made.seq = seq;
  made.type = type_of(body);
  made.body = std::move(body);
  return made;
}

Event parked(std::uint64_t seq, std::string_view until, std::string_view reason) {
  return event(seq, JobParked{.reason = std::string(reason), .until = std::string(until)});
}

Event pause_requested() { return event(1, JobPauseRequested{.by = "ada"}); }

std::vector<std::string> kinds_of(const std::vector<Event>& events) {
  OpenQuestions open(JobId("a"));
  for (const Event& one : events) open.apply(one);
  std::vector<std::string> kinds;
  for (const Question& question : open.list())
    kinds.push_back(fmt::format("{} {}", kind_text(question.kind), question.key));
  return kinds;
}

using Kinds = std::vector<std::string>;

AE_TEST("questions/a pause is not a question, even if its request is in an earlier commit") {
  const Event requested = pause_requested();
  for (const std::string_view reason : {"paused", "until the price is known"}) {
    EXPECT_EQ(kinds_of({requested, parked(2, "resume", reason)}), Kinds{});
    EXPECT_EQ(kinds_of({parked(2, "resume", reason)}), Kinds{}) << reason;
  }
}

AE_TEST("questions/a park of the runtime that only an operator ends is a question") {
  EXPECT_EQ(kinds_of({parked(2, "resume", engine::kWornOut)}), Kinds{"parked worn_out"});
  EXPECT_EQ(kinds_of({parked(2, "resume", engine::kVerifierUnreachable)}),
            Kinds{"parked verifier_unreachable"});
  EXPECT_EQ(kinds_of({parked(2, "budget", "budget_exceeded")}), Kinds{"budget budget_exceeded"});
  EXPECT_EQ(kinds_of({parked(2, "version", "execution_version_mismatch")}),
            Kinds{"parked execution_version_mismatch"});
  // Also after a pause that was withdrawn or earlier.
  const Event requested = pause_requested();
  EXPECT_EQ(kinds_of({requested, parked(2, "resume", engine::kWornOut)}), Kinds{"parked worn_out"});
}

AE_TEST("questions/a park for confirmations or unknown outcomes is not a question of its own") {
  EXPECT_EQ(kinds_of({parked(2, "confirmation", "replay_verification_human_required")}), Kinds{});
  EXPECT_EQ(kinds_of({parked(2, "resolve", "invocation_in_doubt")}), Kinds{});
}

}  // namespace
}  // namespace ae::cli
