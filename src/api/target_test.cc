// Tests of targets, query parameters and problems.
#include "api/target.h"

#include "api/problem.h"
#include "testing/test.h"

namespace ae::api {
namespace {

AE_TEST("api/a segment of a path is escaped") {
  EXPECT_EQ(target({"api", "jobs", "a/b c%"}, {}), "/api/jobs/a%2Fb%20c%25");
  EXPECT_EQ(target({"x"}, {{"label", "a:b&c"}, {"q", ""}}), "/x?label=a:b%26c&q=");
}

AE_TEST("api/query parameters are checked for unknown names, duplicates and limits") {
  const Query twice({{"limit", "1"}, {"limit", "2"}});
  const QueryParameter known[] = {{"label", true}, {"limit"}};
  EXPECT_EQ(twice.check_names(known).error().message, "duplicate query parameter \"limit\"");
  EXPECT_EQ(Query(QueryPairs{{"size", "1"}}).check_names(known).error().message,
            "unknown query parameter \"size\"; allowed: label, limit");
  EXPECT_EQ(Query(QueryPairs{{"size", "1"}}).check_names({}).error().message,
            "unknown query parameter \"size\"; this route has none");
  for (const char* bad : {"0", "11", "-1", "x", ""}) {
    const auto limit = Query(QueryPairs{{"limit", bad}}).limit(5, 10);
    ASSERT_FALSE(limit) << bad;
    EXPECT_EQ(limit.error().code, Code::input_invalid) << bad;
  }
  EXPECT_EQ(*Query().limit(5, 10), 5u);
  EXPECT_EQ(*Query(QueryPairs{{"limit", "10"}}).limit(5, 10), 10u);
  EXPECT_TRUE(Query({{"label", "a=1"}, {"label", "b=2"}, {"limit", "1"}}).check_names(known));
}

AE_TEST("api/some query parameters cannot be combined") {
  EXPECT_TRUE(Query({{"job", "j"}, {"kind", "call"}}).check_combination("job", {"kind"}));
  const auto refused = Query({{"job", "j"}, {"limit", "1"}}).check_combination("job", {"kind"});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::input_invalid);
  EXPECT_EQ(refused.error().message,
            "the query parameter \"limit\" cannot be used with \"job\"; allowed: kind");
}

AE_TEST("api/a problem is parsed back into its error") {
  const Error error{Code::not_settled, "ask again later"};
  EXPECT_EQ(error_of_problem(problem(error), 409), error);
  EXPECT_EQ(error_of_problem(Value(), 502).code, Code::unavailable);
}

AE_TEST("api/a problem names requests, and the program prints them as commands") {
  const struct {
    std::string_view command, request, act;
  } kCases[] = {
      {"there is no job x; `aetheris jobs` lists them",
       "there is no job x; GET /api/jobs lists them", "GET /api/jobs"},
      {"`aetheris job a.b:1` lists its waits", "GET /api/jobs/a.b:1 lists its waits",
       "GET /api/jobs/a.b:1"},
      {"has failed (`aetheris verify j`); restore", "has failed (GET /api/jobs/j/verify); restore",
       "GET /api/jobs/j/verify"},
      {"shown: `aetheris trace` shows it", "shown: GET /api/jobs/{id}/trace shows it",
       "GET /api/jobs/{id}/trace"},
      {"`aetheris approvals` shows it, `aetheris approve ID --arguments JSON` answers it",
       "GET /api/approvals shows it, POST /api/approvals/{id} answers it", "GET /api/approvals"},
      {"`aetheris approve` and `aetheris reject` send it", "POST /api/approvals/{id} sends it",
       "POST /api/approvals/{id}"},
      {"repeat: x; allow it with --repeat-effects or --repeat STEP, or fork at a later event",
       "repeat: x; allow it with repeat_effects, or fork at a later event", ""},
      {"no command", "no command", ""},
      {"an `aetheris open", "an `aetheris open", ""}};
  for (const auto& one : kCases) {
    const Value body = problem({Code::not_found, std::string(one.command)});
    EXPECT_EQ(body.text("detail"), one.request);
    EXPECT_EQ(body.text("act"), one.act);
    EXPECT_EQ(with_commands(body.text("detail")), one.command);
  }
  EXPECT_EQ(problem(missing_job_error("x")).text("act"), "GET /api/jobs");
  EXPECT_EQ(with_commands(missing_job_error("x").message),
            "there is no job x in this store; `aetheris jobs` lists them");
}

}  // namespace
}  // namespace ae::api
