#include "api/target.h"

#include "api/problem.h"
#include "testing/test.h"

namespace ae::api {
namespace {

AE_TEST("api/a segment stays one, whatever it holds") {
  EXPECT_EQ(target({"api", "jobs", "a/b c%"}, {}), "/api/jobs/a%2Fb%20c%25");
  EXPECT_EQ(target({"x"}, {{"label", "a:b&c"}, {"q", ""}}), "/x?label=a:b%26c&q=");
}

AE_TEST("api/a query names each thing once, but labels and keys") {
  const Query twice({{"limit", "1"}, {"limit", "2"}});
  EXPECT_EQ(twice.only({"limit"}).error().code, Code::input_invalid);
  for (const char* bad : {"0", "11", "-1", "x", ""}) {
    const auto limit = Query(QueryPairs{{"limit", bad}}).limit(5, 10);
    ASSERT_FALSE(limit) << bad;
    EXPECT_EQ(limit.error().code, Code::input_invalid) << bad;
  }
  EXPECT_EQ(*Query().limit(5, 10), 5u);
  EXPECT_EQ(*Query(QueryPairs{{"limit", "10"}}).limit(5, 10), 10u);
  EXPECT_TRUE(Query({{"label", "a=1"}, {"label", "b=2"}, {"limit", "1"}}).only({"label", "limit"}));
}

AE_TEST("api/a problem can be read back") {
  const Error error{Code::not_settled, "ask again later"};
  EXPECT_EQ(error_of_problem(problem(error), 409), error);
  EXPECT_EQ(error_of_problem(Value(), 502).code, Code::unavailable);
}

}  // namespace
}  // namespace ae::api
