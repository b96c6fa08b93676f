// The calls of a job that a rolled-back store may repeat.
#include "runtime/service/rollback.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "engine/fixtures/code_log_test.h"
#include "testing/test.h"

namespace ae::runtime {
namespace {

using engine::testing::CodeLog;
using engine::testing::JobFixture;

AE_TEST("rolled_back/unfinished code may repeat each of its tools that does more than read") {
  CodeLog job({.more = "{'tools':{'look':{'effect':'read'},'pay':{'effect':'at_most_once',"
                       "'on_in_doubt':'park'}}}"});
  job.claim();
  const std::vector<std::string> calls = repeatable_calls(job.state).calls;
  const auto has = [&](std::string_view call) {
    return std::ranges::find(calls, call) != calls.end();
  };
  EXPECT_TRUE(has("code (pay, at_most_once)"));
  EXPECT_TRUE(has("code (run:idempotent, idempotent)"));
  EXPECT_FALSE(has("code (look, read)"));
  job.returns("1");
  EXPECT_TRUE(repeatable_calls(job.state).calls.empty()) << "it has ended";
}

AE_TEST("rolled_back/a finished node repeats nothing, an unfinished one its call") {
  JobFixture job(
      "[{'id':'a','kind':'tool','tool':'put'},{'id':'b','kind':'tool','tool':'pay',"
      "'needs':['a']}]");
  job.claim().ok("a");
  EXPECT_EQ(repeatable_calls(job.state).calls, std::vector<std::string>{"b (pay, at_most_once)"});
}

}  // namespace
}  // namespace ae::runtime
