// Tests of requests_view: the requests of a job in one shape, and the lists made of them.
#include "inspect/requests_view.h"

#include <string>
#include <vector>

#include "engine/fixtures/job_fixture_test.h"
#include "engine/loop/loop_fixture_test.h"
#include "engine/policy/policy_fixture_test.h"
#include "inspect/view.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

std::vector<std::string> members_of(const Value& object) {
  std::vector<std::string> names;
  for (const auto& [name, value] : object.members()) names.push_back(name);
  return names;
}

Value only_request(const JobFixture& job) {
  const std::vector<Value> requests = requests_view(job.state);
  EXPECT_EQ(requests.size(), 1u);
  return requests.empty() ? Value() : requests.front();
}

constexpr std::string_view kRules =
    "{'action':'deny', 'when':'${ .args.n > 1000 }'},"
    " {'action':'require_approval', 'when':'${ .args.n > 100 }', 'reason':'not small'}";

AE_TEST("requests/an approval and an unknown outcome have the same members") {
  JobFixture waiting = buys(ruled(kRules));
  JobFixture unknown("[{'id':'a', 'kind':'tool', 'tool':'pay', 'args':{'n':1}}]");
  const Value call = only_request(waiting.claim());
  const Value outcome = only_request(unknown.claim().crash());
  EXPECT_EQ(call["kind"], "call");
  EXPECT_EQ(outcome["kind"], "unknown_outcome");
  EXPECT_EQ(members_of(call), members_of(outcome));
  EXPECT_EQ(call["detail"], approvals_view(waiting.state)[0]);
  EXPECT_EQ(outcome["detail"], in_doubt_view(unknown.state)[0]);
  EXPECT_EQ(outcome["opened_at"], outcome["detail"]["since"]);
  EXPECT_EQ(call["id"], Value("job-1." + waiting.open_request_id("a")));
  EXPECT_EQ(outcome["id"], Value("job-1." + unknown.sent[0].key.substr(0, 16)));
}

AE_TEST("requests/an outcome that was noted after the end is no request, and stays in doubt") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'risk'}]");
  job.claim().unknown("a");
  EXPECT_EQ(only_request(job)["kind"], "unknown_outcome");
  job.resolve("a", "happened");
  EXPECT_TRUE(requests_view(job.state).empty());
  EXPECT_EQ(in_doubt_view(job.state).size(), 1u);
}

AE_TEST("requests/the details name the rule that requires the approval, and the schemas") {
  JobFixture job = buys(ruled(kRules, ", 'args_schema':{'type':'object'}"));
  const Value request = only_request(job.claim());
  const Value detailed = detailed_request(job.state, request);
  EXPECT_EQ(detailed["policy"]["number"], Value(2));
  EXPECT_EQ(detailed["policy"]["rule"].text("reason"), "not small");
  EXPECT_EQ(detailed["args_schema"], json("{'type':'object'}"));
  for (const char* name : {"answer_schema", "model_text", "result_schema"}) {
    EXPECT_EQ(detailed[name], Value()) << name;
    EXPECT_NE(detailed.find(name), nullptr) << name;
  }
}

AE_TEST("requests/an approval that the tool itself requires has no policy") {
  JobFixture job = buys("{'tools':{'buy':{'approval':'required'}}}");
  const Value request = only_request(job.claim());
  EXPECT_EQ(detailed_request(job.state, request)["policy"], Value());
}

AE_TEST("requests/the call of a loop has the text of the answer that requests it") {
  JobFixture job = loop_job();
  job.claim().ok("chat/0",
                 "{'text': 'I refund 5.', 'finish_reason': 'tool_calls', 'tool_calls':"
                 " [{'id': 'a', 'name': 'refund', 'arguments': {'sum': 5}}],"
                 " 'usage': {'input_tokens': 5, 'output_tokens': 2}}");
  const Value detailed = detailed_request(job.state, only_request(job));
  EXPECT_EQ(detailed.text("model_text"), "I refund 5.");
}

}  // namespace
}  // namespace ae::engine::testing
