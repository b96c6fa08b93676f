// Tests of the agent, with functions in place of the shop and a clock that the test advances.
//
//   refund_test      prints what failed; exit code 1
#include <aetheris/testing.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>

#include "refund.h"

namespace {

using aetheris::Call;
using aetheris::Failure;
using aetheris::Result;
using aetheris::Status;
using aetheris::Value;
namespace testing = aetheris::testing;
using FunctionResult = std::expected<Value, Failure>;

std::unexpected<aetheris::Error> wrong(std::string what) {
  return std::unexpected(aetheris::Error{"wrong", std::move(what)});
}

// The total of an order is its number.
FunctionResult get_order(const Value& args, Call&) {
  return Value::object({{"email", "ada@example.org"}, {"total", std::stoi(args.text("order"))}});
}
FunctionResult pay_back(const Value&, Call&) { return Value::object({{"payment", "re_14"}}); }
FunctionResult send_mail(const Value&, Call&) { return Value(); }

Result<std::unique_ptr<testing::Testing>> start() {
  return testing::start(
      {.agents = {refund_agent()},
       .tools = {{"get_order", get_order}, {"pay_back", pay_back}, {"send_mail", send_mail}},
       .tools_of = shop_tools()});
}

Value order(std::string number) { return Value::object({{"order", std::move(number)}}); }

Status a_large_refund_is_approved() {
  AETHERIS_ASSIGN(const auto t, start());
  AETHERIS_ASSIGN(const testing::Job job, t->job("refund", order("180")));
  AETHERIS_TRY(t->until(job, "waiting"));
  if (!t->calls("pay_back").empty()) return wrong("it was paid before the approval");
  AETHERIS_TRY(t->approve(job));
  AETHERIS_ASSIGN(const Value result, job.result());
  if (result.text("payment") != "re_14") return wrong("the result is " + result.to_json());
  if (t->calls("pay_back").size() != 1) return wrong("it was not paid once");
  return {};
}

Status an_approval_that_does_not_come_expires() {
  AETHERIS_ASSIGN(const auto t, start());
  AETHERIS_ASSIGN(const testing::Job job, t->job("refund", order("180")));
  AETHERIS_TRY(t->until(job, "waiting"));
  AETHERIS_TRY(t->skip(std::chrono::hours(73)));
  const Result<Value> result = job.result();
  if (result || result.error().code != "wait_expired") return wrong("it did not expire");
  return {};
}

Status wherever_the_process_ends_the_refund_is_paid_once() {
  AETHERIS_ASSIGN(const auto t, start());
  AETHERIS_ASSIGN(const testing::CrashReport report,
                  testing::crash_everywhere([&]() -> Result<testing::Job> {
                    AETHERIS_ASSIGN(testing::Job job, t->job("refund", order("180")));
                    AETHERIS_TRY(t->approve(job));
                    return job;
                  }));
  if (report.crashes < 8) return wrong("only " + std::to_string(report.crashes) + " crashes");
  if (report.in_doubt < 1) return wrong("no crash left the outcome of the mail unknown");
  return {};
}

// As a job of production would be recorded: aetheris events ID --json
Status the_code_fits_recorded_jobs() {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "refund_test_logs";
  std::filesystem::create_directories(folder);
  AETHERIS_ASSIGN(const auto t, start());
  AETHERIS_ASSIGN(const testing::Job job, t->job("refund", order("29")));
  AETHERIS_TRY(job.result());
  AETHERIS_ASSIGN(const Value events, job.events());
  const std::filesystem::path log = folder / "refund-1.json";
  std::ofstream(log) << Value::object({{"events", events}}).to_json();
  AETHERIS_TRY(testing::replay({.logs = {log}}, {refund_agent()}, shop_tools()));

  aetheris::Agent changed = refund_agent();
  changed.body = [](aetheris::Context& ctx, const Value&) { return ctx.call("get_order", {}); };
  const auto replayed = testing::replay({.logs = {log}}, {changed}, shop_tools());
  std::filesystem::remove_all(folder);
  if (replayed || replayed.error().code != "replay_diverged") return wrong("it does not differ");
  return {};
}

}  // namespace

int main() {
  const struct {
    const char* name;
    Status (*test)();
  } tests[] = {{"a large refund is approved", a_large_refund_is_approved},
               {"an approval that does not come expires", an_approval_that_does_not_come_expires},
               {"wherever the process ends, the refund is paid once",
                wherever_the_process_ends_the_refund_is_paid_once},
               {"the code fits recorded jobs", the_code_fits_recorded_jobs}};
  int code = EXIT_SUCCESS;
  for (const auto& [name, test] : tests) {
    const Status passed = test();
    std::cout << (passed ? "ok " : "not ok ") << name << '\n';
    if (passed) continue;
    std::cout << "  " << passed.error().code << ": " << passed.error().message << '\n';
    code = EXIT_FAILURE;
  }
  return code;
}
