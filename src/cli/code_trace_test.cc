// Golden traces of jobs with code. AETHERIS_UPDATE_GOLDEN=1 rewrites the texts; review the
// difference before you commit it.
#include <fmt/core.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "cli/trace_text.h"
#include "cli/transcript_text.h"
#include "engine/fixtures/code_log_test.h"
#include "engine/loop/loop_fixture_test.h"
#include "inspect/trace.h"
#include "testing/test.h"

namespace ae::cli {
namespace {

using namespace engine::testing;
using engine::WaitType;

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void expect_golden(const std::string& text, const std::string& name) {
  const char* root = std::getenv("AETHERIS_ROOT");
  const std::string path = fmt::format("{}/src/cli/golden/{}", root ? root : ".", name);
  if (const char* update = std::getenv("AETHERIS_UPDATE_GOLDEN"); update && *update == '1') {
    std::ofstream(path, std::ios::binary) << text;
  }
  EXPECT_EQ(text, read_file(path)) << name;
}

std::string text_of(const CodeLog& job, TraceStyle style = {}) {
  return trace_text(trace_view(job.state, job.log), style);
}

// Two items are charged in scopes of their own, the first after a retry; a person approves a
// payment; a function's outcome is unknown and is sent again.
CodeLog support_job() {
  CodeLog job({.more = kTools});
  job.claim().call("order", "look", "{'id':43}").after(20ms).ok("code/order", "{'total':50}");
  job.call("how_much", "model:main",
           "{'model':'small','messages':[{'role':'user','content':'How much?'}]}");
  job.after(900ms).ok("code/how_much", text_answer("40"));
  job.begin_scope("items/0").call("items/0/charge", "run:idempotent", "{'n':1}");
  job.after(10ms).unknown("code/items/0/charge", "connect").after(2s);
  job.after(10ms).ok("code/items/0/charge", "{'id':'re_1'}");
  job.end_scope("items/0", "{'id':'re_1'}").begin_scope("items/1");
  job.call("items/1/charge", "run:idempotent", "{'n':2}").after(15ms);
  job.ok("code/items/1/charge", "{'id':'re_2'}");
  job.end_scope("items/1", "{'id':'re_2'}");
  job.call("pay_back", "refund", "{'amount':40}");
  job.after(60s).answer_approval(job.open_request_id("code/pay_back"), "approve");
  job.after(30ms).ok("code/pay_back", "{'id':'re_3'}");
  job.wait("cool_off", {.type = WaitType::timer, .lasts = 30s}).suspend();
  return job;
}

AE_TEST("cli/the trace of code that waits shows its requests by their positions") {
  expect_golden(text_of(support_job()), "trace_code_waiting.txt");
}

AE_TEST("cli/the trace of code that returned shows what it did and its result") {
  CodeLog job = support_job();
  job.after(30s);
  job.call("mail", "run:at_most_once", "{'to':'ada@example.org'}").after(40ms).ok("code/mail");
  job.returns("{'refund':'re_3'}");
  ASSERT_EQ(job.status(), "completed") << job.log_text();
  expect_golden(text_of(job), "trace_code.txt");
  expect_golden(text_of(job, {.paint = Paint(false), .width = 80}), "trace_code_80.txt");
  expect_golden(canonical(trace_view(job.state, job.log)) + "\n", "trace_code.json");
}

AE_TEST("cli/the trace of code that differs from its log says where") {
  CodeLog job = support_job();
  job.after(30s);
  job.routine().divergence =
      Divergence{.delivered = 4,
                 .finding = "arguments",
                 .found = json("{'kind':'tool','position':'items/1/charge','tool':'run:read'}"),
                 .position = "items/1/charge"};
  job.run_until_idle();
  ASSERT_EQ(job.status(), "parked") << job.log_text();
  expect_golden(text_of(job), "trace_code_diverged.txt");
}

AE_TEST("cli/the trace of code that threw shows the exception") {
  CodeLog job({.more = kTools});
  job.claim().call("order", "look").after(20ms).fails("code/order", "http_404");
  job.ends({.exception = json("{'name':'TypeError','message':'cannot read total of undefined',"
                              "'stack':'at refund (agent.ts:14)'}")});
  ASSERT_EQ(job.status(), "parked") << job.log_text();
  expect_golden(text_of(job), "trace_code_exception.txt");
}

}  // namespace
}  // namespace ae::cli
