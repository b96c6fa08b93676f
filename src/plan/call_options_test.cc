// The form of options of a call, and their order.
#include "plan/call_options.h"

#include "json/json.h"
#include "testing/test.h"

namespace ae::engine {
namespace {

using std::chrono::seconds;

AE_TEST("call options/their JSON has what is set, and is read back") {
  EXPECT_TRUE(engine::to_json(CallOptions{}).is_null());
  const CallOptions all{.timeout = seconds(2),
                        .max_attempts = 3,
                        .initial_backoff = seconds(1),
                        .max_backoff = seconds(60),
                        .on_in_doubt = OnInDoubt::park};
  const Value json = to_json(all);
  EXPECT_EQ(canonical(json),
            R"({"on_in_doubt":"park","retry":{"initial_backoff":"1s","max_attempts":3,)"
            R"("max_backoff":"1m"},"timeout":"2s"})");
  EXPECT_EQ(*call_options_of(json), all);
  EXPECT_EQ(*call_options_of(Value()), CallOptions());
  EXPECT_EQ(call_options_of(Value::object({{"other", 1}})).error().code, Code::input_invalid);
}

AE_TEST("call options/an action for an unknown outcome may do less by itself, not more") {
  const auto possible = [](OnInDoubt of_tool, OnInDoubt of_call) {
    ToolPolicy tool;
    tool.on_in_doubt = of_tool;
    return check_options({.on_in_doubt = of_call}, tool).has_value();
  };
  using enum OnInDoubt;
  EXPECT_TRUE(possible(resend, fail));
  EXPECT_TRUE(possible(resend, park));
  EXPECT_TRUE(possible(probe, probe));
  EXPECT_TRUE(possible(probe, fail));
  EXPECT_TRUE(possible(fail, park));
  EXPECT_FALSE(possible(resend, probe)) << "it has no probe";
  EXPECT_FALSE(possible(fail, resend));
  EXPECT_FALSE(possible(park, fail)) << "an operator decides";
  EXPECT_FALSE(possible(park, probe));
}

}  // namespace
}  // namespace ae::engine
