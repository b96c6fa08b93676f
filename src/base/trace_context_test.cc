// Trace context: a table of valid and invalid headers, and ids that are derived from a job.
#include "base/trace_context.h"

#include <fmt/core.h>

#include <string>

#include "testing/test.h"

namespace ae {
namespace {

constexpr const char* kTrace = "0af7651916cd43dd8448eb211c80319c";
constexpr const char* kSpan = "b7ad6b7169203331";

AE_TEST("trace_context/a malformed traceparent is treated as absent") {
  const std::string valid = fmt::format("00-{}-{}-01", kTrace, kSpan);
  const struct {
    std::string header;
    bool counts;
    std::uint8_t flags = 0;
  } cases[] = {
      {valid, true, 1},
      {fmt::format("  {}\t", valid), true, 1},
      {fmt::format("00-{}-{}-00", kTrace, kSpan), true, 0},
      {fmt::format("00-{}-{}-03", kTrace, kSpan), true, 3},
      // Unknown flags are not propagated.
      {fmt::format("00-{}-{}-ff", kTrace, kSpan), true, 3},
      {"", false},
      {"00", false},
      {valid.substr(0, 54), false},
      {valid + "-", false},
      {valid + "-x", false},
      {valid + "0", false},
      // A later version may append more fields after another dash.
      {"01" + valid.substr(2), true, 1},
      {fmt::format("cc{}-what-the-future-brings", valid.substr(2)), true, 1},
      {fmt::format("cc{}.what", valid.substr(2)), false},
      {"ff" + valid.substr(2), false},
      {"0G" + valid.substr(2), false},
      {"00_" + valid.substr(3), false},
      {fmt::format("00-{}-{}-01", std::string(32, '0'), kSpan), false},
      {fmt::format("00-{}-{}-01", kTrace, std::string(16, '0')), false},
      {fmt::format("00-0AF7651916CD43DD8448EB211C80319C-{}-01", kSpan), false},
      {fmt::format("00-{}-B7AD6B7169203331-01", kTrace), false},
      {fmt::format("00-{}-{}-0x", kTrace, kSpan), false},
      {fmt::format("00-{}g-{}-01", std::string(31, 'a'), kSpan), false},
  };
  for (const auto& c : cases) {
    const auto context = trace_context(c.header, "");
    EXPECT_EQ(context.has_value(), c.counts) << c.header;
    if (!context) continue;
    EXPECT_EQ(context->trace_id, kTrace) << c.header;
    EXPECT_EQ(context->parent_id, kSpan) << c.header;
    EXPECT_EQ(context->flags, c.flags) << c.header;
  }
}

AE_TEST("trace_context/a malformed tracestate is dropped and the traceparent is kept") {
  const std::string parent = fmt::format("00-{}-{}-01", kTrace, kSpan);
  std::string many, too_many;
  for (int i = 0; i < 33; ++i) {
    const std::string member = fmt::format("{}k{}=v", i == 0 ? "" : ",", i);
    if (i < 32) many += member;
    too_many += member;
  }
  const struct {
    std::string state;
    bool counts;
  } cases[] = {
      {"rojo=00f067aa0ba902b7,congo=t61rcWkgMzE", true},
      {"a=1 , b=2", true},
      {"a=1,,b=2", true},
      {"fw529a3039@dt=FfAiIhIeSYsg", true},
      {"0tenant@sys=x", true},
      {"a=b c", true},
      {many, true},
      {too_many, false},
      {"a", false},
      {"=1", false},
      {"a=", false},
      {"A=1", false},
      {"a=1,a=2", false},
      {"a=b=c", false},
      {"a@b@c=1", false},
      {"a@0b=1", false},
      {"a=\x01", false},
      {"a=\xC3\xA9", false},
      {std::string(257, 'a') + "=1", false},
      {"a=" + std::string(257, 'b'), false},
      {"a=" + std::string(200, 'b') + std::string(2000, ' '), true},  // trimmed
  };
  for (const auto& c : cases) {
    const auto context = trace_context(parent, c.state);
    ASSERT_TRUE(context.has_value()) << c.state;
    EXPECT_EQ(!context->state.empty(), c.counts) << c.state;
  }
}

AE_TEST("trace_context/trace and span ids are derived from job, call and try, and are distinct") {
  const JobId job("holiday"), other("holiday2");
  const InvocationId call("0123456789abcdef");
  EXPECT_EQ(trace_id_of(job).size(), 32U);
  EXPECT_EQ(trace_id_of(job), trace_id_of(JobId("holiday")));
  EXPECT_NE(trace_id_of(job), trace_id_of(other));
  EXPECT_EQ(span_id_of(job, call, 1).size(), 16U);
  EXPECT_EQ(span_id_of(job, call, 1), span_id_of(job, call, 1));
  EXPECT_NE(span_id_of(job, call, 1), span_id_of(job, call, 2));
  EXPECT_NE(span_id_of(job, call, 1), span_id_of(other, call, 1));
  EXPECT_NE(span_id_of(job), span_id_of(job, call, 1));
  const std::string header = traceparent(trace_id_of(job), span_id_of(job, call, 1), 1);
  const auto again = trace_context(header, "");
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->trace_id, trace_id_of(job));
  EXPECT_EQ(again->parent_id, span_id_of(job, call, 1));
}

}  // namespace
}  // namespace ae
