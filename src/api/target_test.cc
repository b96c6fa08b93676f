// Tests of targets, query parameters and problems.
#include "api/target.h"

#include "api/problem.h"
#include "json/json.h"
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

AE_TEST("api/a query parameter is accepted under its alias, once") {
  const QueryParameter known[] = {{"stalled"}, {"stuck", false, "stalled"}};
  Query query({{"stuck", "true"}});
  query.rename_aliases(known);
  EXPECT_TRUE(query.check_names(known));
  EXPECT_EQ(*query.find("stalled"), "true");
  EXPECT_EQ(query.find("stuck"), nullptr);
  Query both({{"stuck", "true"}, {"stalled", "true"}});
  both.rename_aliases(known);
  EXPECT_EQ(both.check_names(known).error().message, "duplicate query parameter \"stalled\"");
  EXPECT_EQ(Query(QueryPairs{{"size", "1"}}).check_names(known).error().message,
            "unknown query parameter \"size\"; allowed: stalled");
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

AE_TEST("api/a problem contains the action of its error, as data and as a request") {
  const Error error{Code::wait_mismatch, "no open wait", Action{.act = act::kJob, .job = "a.b:1"}};
  const Value body = problem(error);
  EXPECT_EQ(body.text("detail"), "no open wait");
  EXPECT_EQ(body.text("act"), "GET /api/jobs/a.b:1");
  EXPECT_EQ(canonical(body["action"]),
            R"({"act":"job","arguments":{"job_id":"a.b:1"},"choices":[]})");
  EXPECT_EQ(error_of_problem(body, 400), error);
  EXPECT_EQ(problem(missing_job_error("x")).text("act"), "GET /api/jobs");
  const Value without = problem({Code::not_found, "nothing helps"});
  EXPECT_EQ(without.find("act"), nullptr);
  EXPECT_EQ(without.find("action"), nullptr);
  const Value local = problem({Code::needs_version, "old", Action{.act = act::kMigrate}});
  EXPECT_EQ(local.find("act"), nullptr) << "the API has no such request";
  EXPECT_EQ(local["action"].text("act"), "migrate");
}

}  // namespace
}  // namespace ae::api
