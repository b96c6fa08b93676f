// Tests of with_aliases.
#include "inspect/aliases.h"

#include <set>

#include "testing/test.h"

namespace ae::engine::testing {
namespace {

AE_TEST("aliases/a member with an older name is shown under both, other members are unchanged") {
  const Value shown = with_aliases(Value::object({{"id", "j"}, {"shortfall", Value::array({1})}}));
  EXPECT_EQ(shown,
            Value::object(
                {{"id", "j"}, {"lacking", Value::array({1})}, {"shortfall", Value::array({1})}}));
  EXPECT_EQ(with_aliases(Value::object({{"id", "j"}})), Value::object({{"id", "j"}}));
}

AE_TEST("aliases/members of members have no aliases, and null has one") {
  const Value inner = Value::object({{"error_message", "lost"}});
  const Value shown = with_aliases(Value::object({{"call", inner}, {"no_worker", Value()}}));
  EXPECT_EQ(shown["call"], inner);
  ASSERT_NE(shown.find("unattended"), nullptr);
  EXPECT_TRUE(shown["unattended"].is_null());
}

AE_TEST("aliases/each name is listed once, and no name is an alias") {
  std::set<std::string_view> names;
  for (const auto& [name, alias] : kAliases) EXPECT_TRUE(names.insert(name).second) << name;
  for (const auto& [name, alias] : kAliases) EXPECT_FALSE(names.contains(alias)) << alias;
}

}  // namespace
}  // namespace ae::engine::testing
