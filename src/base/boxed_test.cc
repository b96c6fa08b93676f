#include "base/boxed.h"

#include <string>

#include "testing/test.h"

namespace ae {
namespace {

using Text = Boxed<std::string>;

AE_TEST("base/boxed/it is made from a value, a std::optional or nothing") {
  EXPECT_FALSE(Text());
  EXPECT_FALSE(Text(std::nullopt));
  EXPECT_FALSE(Text(std::optional<std::string>()));
  EXPECT_EQ(*Text("a"), "a");
  EXPECT_EQ(*Text(std::optional<std::string>("a")), "a");
  const std::optional<std::string> back = Text("a");
  EXPECT_EQ(back, "a");
}

AE_TEST("base/boxed/a copy is independent, and is equal until one changes") {
  Text first("a");
  Text copy = first;
  EXPECT_TRUE(copy == first);
  *copy = "b";
  EXPECT_TRUE(first == "a");
  EXPECT_FALSE(copy == first);
  EXPECT_FALSE(first == Text());
  EXPECT_TRUE(Text() == Text());
  first.reset();
  EXPECT_FALSE(first);
}

}  // namespace
}  // namespace ae
