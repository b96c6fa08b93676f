// Control requests: their stored JSON and the ids of their inbox entries.
#include "engine/heart/control_request.h"

#include <set>

#include "engine/fixtures/job_fixture_test.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

// A request with all members of its kind, and what is stored of it.
struct StoredRequest {
  ControlRequest request;
  std::string_view json;
  std::string_view inbox_id;  // its first digits
};

std::vector<StoredRequest> stored_requests() {
  return {
      {{.id = "r1",
        .by = "ann",
        .checked_at = Instant{1'700'000'000'000'000},
        .body = SignalRequest{.correlation_key = "k",
                              .wait_type = "human",
                              .buffer = true,
                              .payload = json("[1]"),
                              .traceparent = "00-1-2-01"}},
       "{'kind':'signal', 'id':'r1', 'by':'ann', 'looked_at':'2023-11-14T22:13:20.000000Z',"
       " 'correlation_key':'k', 'wait_type':'human', 'buffer':true,"
       " 'payload':[1], 'traceparent':'00-1-2-01'}",
       "ecc0c630d32afcaa"},
      {{.id = "r1",
        .body = ApproveRequest{.approval_id = "0123456789abcdef",
                               .decision = "approve",
                               .note = "fine",
                               .arguments = json("{'n':1}"),
                               .traceparent = "00-1-2-01"}},
       "{'kind':'signal', 'id':'r1', 'approval':'0123456789abcdef', 'wait_type':'human',"
       " 'payload':{'decision':'approve', 'note':'fine'}, 'arguments':{'n':1},"
       " 'traceparent':'00-1-2-01'}",
       "e076231d5892fb4f"},
      {{.id = "r1", .body = CancelRequest{.reason = "enough", .compensate = false}},
       "{'kind':'cancel', 'id':'r1', 'reason':'enough', 'compensate':false}",
       "5a8b683e9b364863"},
      {{.id = "r1",
        .body = ResolveRequest{.idempotency_key = "0123456789abcdef",
                               .step_id = "s",
                               .resolution = "happened",
                               .try_no = 2,
                               .result = json("null"),
                               .reason = "a note"}},
       "{'kind':'resolve', 'id':'r1', 'idempotency_key':'0123456789abcdef', 'step_id':'s',"
       " 'resolution':'happened', 'try':2, 'result':null, 'reason':'a note'}",
       "8057a9029b5cb30b"},
      {{.id = "r1", .body = TimersRequest{}}, "{'kind':'timers', 'id':'r1'}", "5a2ffb2552656f0b"},
      {{.id = "r1",
        .body =
            MessageRequest{.channel = "news", .payload = json("'hi'"), .traceparent = "00-1-2-01"}},
       "{'kind':'message', 'id':'r1', 'channel':'news', 'payload':'hi', 'traceparent':'00-1-2-01'}",
       "c9547d47e58b8c83"},
      {{.id = "r1", .body = PauseRequest{.reason = "lunch"}},
       "{'kind':'pause', 'id':'r1', 'reason':'lunch'}",
       "08c01079238510e5"},
      {{.id = "r1", .body = ResumeRequest{}}, "{'kind':'resume', 'id':'r1'}", "39ebbd4397133696"},
      {{.id = "r1",
        .body =
            PlanRequest{
                .task_graph = json("{'nodes':[]}"), .drop = json("['a']"), .reason = "a fix"}},
       "{'kind':'plan', 'id':'r1', 'payload':{'drop':['a'], 'task_graph':{'nodes':[]}},"
       " 'reason':'a fix'}",
       "3fdeb9758994063a"},
      {{.id = "r1",
        .body = BudgetRequest{.limits = {.tokens = 70,
                                         .cost_micros = 2'500'000,
                                         .model_calls = 3,
                                         .tool_calls = 4,
                                         .wall = std::chrono::hours(3)},
                              .reason = "more"}},
       "{'kind':'budget', 'id':'r1', 'reason':'more', 'payload':{'tokens':70,"
       " 'cost_micros':2500000, 'model_calls':3, 'tool_calls':4, 'wall':'3h'}}",
       "1e18162a7a22a56a"},
      {{.id = "r1", .by = "w", .body = VersionRequest{}},
       "{'kind':'version', 'id':'r1', 'by':'w'}",
       "04cb3bd8366ea704"},
      {{.id = "child-1",
        .body = ChildEndedRequest{.command_id = "0123456789abcdef",
                                  .end = json("{'status':'completed'}")}},
       "{'kind':'child_ended', 'id':'child-1', 'call':'0123456789abcdef',"
       " 'child_end':{'status':'completed'}}",
       "4d87327e2dbd54a8"}};
}

AE_TEST("request/each kind is written as its stored JSON and reads back") {
  std::set<std::size_t> kinds;
  for (const StoredRequest& stored : stored_requests()) {
    kinds.insert(stored.request.body.index());
    EXPECT_EQ(canonical(stored.request.to_json()), canonical(json(stored.json)));
    const auto read = ControlRequest::from_json(json(stored.json));
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(read->body.index(), stored.request.body.index());
    EXPECT_EQ(canonical(read->to_json()), canonical(json(stored.json)));
  }
  EXPECT_EQ(kinds.size(), std::variant_size_v<RequestBody>) << "a kind is missing in the table";
}

AE_TEST("request/the inbox id depends on the kind, the subject and the sender's id") {
  for (const StoredRequest& stored : stored_requests()) {
    EXPECT_TRUE(inbox_id(stored.request).starts_with(stored.inbox_id))
        << stored.json << ": " << inbox_id(stored.request);
  }
}

AE_TEST("request/an approval without decision reads back, and is rejected when applied") {
  const auto read = ControlRequest::from_json(
      json("{'kind':'signal', 'id':'r1', 'approval':'0123456789abcdef'}"));
  ASSERT_TRUE(read) << read.error().message;
  ASSERT_TRUE(read->is<ApproveRequest>());
  EXPECT_EQ(read->as<ApproveRequest>()->decision, "");
  JobFixture job("[{'id':'w', 'kind':'wait', 'wait':{'type':'human'}}]");
  job.claim().approve("w", "");
  EXPECT_EQ(job.refused, Code::input_invalid);
}

AE_TEST("request/an unknown kind or member returns needs_version") {
  for (const std::string_view newer :
       {"{'kind':'dance'}", "{'id':'r1'}", "{'kind':'cancel', 'unless':'paid'}",
        "{'kind':'timers', 'task_graph':{}}"}) {
    const auto read = ControlRequest::from_json(json(newer));
    ASSERT_FALSE(read) << newer;
    EXPECT_EQ(read.error().code, Code::needs_version) << newer;
  }
}

AE_TEST("request/a member that belongs only to other kinds is ignored") {
  const auto read = ControlRequest::from_json(
      json("{'kind':'cancel', 'id':'r1', 'channel':'news', 'payload':1, 'checksum':'00'}"));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->to_json(), json("{'kind':'cancel', 'id':'r1'}"));
}

AE_TEST("request/an invalid time or limit is rejected") {
  for (const std::string_view damaged :
       {"{'kind':'cancel', 'looked_at':'noon'}", "{'kind':'budget'}",
        "{'kind':'budget', 'payload':{'tokens':'many'}}"}) {
    const auto read = ControlRequest::from_json(json(damaged));
    ASSERT_FALSE(read) << damaged;
    EXPECT_EQ(read.error().code, Code::input_invalid) << damaged;
  }
}

}  // namespace
}  // namespace ae::engine::testing
