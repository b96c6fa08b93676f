// The names of requests, and which of them are refused.
#include "routines/native/positions.h"

#include "engine/code/code.h"
#include "testing/test.h"

namespace ae::routines {
namespace {

std::string next(Positions& positions, std::string_view scope, std::string_view name,
                 std::string_view key = {}) {
  auto position = positions.next(scope, name, key);
  return position ? *position : std::string(code_name(position.error().code));
}

AE_TEST("positions/requests with one name are counted in their scope") {
  Positions positions;
  EXPECT_EQ(next(positions, "", "charge"), "charge");
  EXPECT_EQ(next(positions, "", "charge"), "charge#2");
  EXPECT_EQ(next(positions, "items/2", "charge"), "items/2/charge");
  EXPECT_EQ(next(positions, "items/2", "charge"), "items/2/charge#2");
  EXPECT_EQ(next(positions, "", "charge"), "charge#3");
}

AE_TEST("positions/a key replaces the count, and is used once in its scope") {
  Positions positions;
  EXPECT_EQ(next(positions, "a", "charge", "order:7"), "a/charge@order:7");
  EXPECT_EQ(next(positions, "a", "charge", "order:7"), "input_invalid");
  EXPECT_EQ(next(positions, "b", "charge", "order:7"), "b/charge@order:7");
  EXPECT_EQ(next(positions, "a", "charge"), "a/charge");
  EXPECT_EQ(next(positions, "a", "charge", "x#2"), "input_invalid");
  EXPECT_EQ(next(positions, "a", "charge", std::string(129, 'k')), "input_invalid");
}

AE_TEST("positions/every position is one of the engine") {
  Positions positions;
  for (const std::string_view name : {"", "a/b", "a@b", "a#2", "a~0123456789abcdef", "a b", "é"}) {
    EXPECT_EQ(next(positions, "", name), "input_invalid") << name;
  }
  EXPECT_EQ(next(positions, "", std::string(65, 'n')), "input_invalid");
  EXPECT_TRUE(engine::is_position(next(positions, "a/b", "model:main")));
  std::string deep = "s";
  for (int i = 1; i < 16; ++i) deep += "/s";
  EXPECT_EQ(next(positions, deep, "n"), deep + "/n");
  EXPECT_EQ(next(positions, deep + "/s", "n"), "input_invalid");
}

AE_TEST("positions/a closed scope is used once, unless it has a number") {
  Positions positions;
  EXPECT_EQ(positions.closed_scope("", "turn", {}), "turn");
  EXPECT_FALSE(positions.closed_scope("", "turn", {}));
  EXPECT_FALSE(positions.closed_scope("", "turn", 1)) << "inside of an ended scope";
  EXPECT_FALSE(positions.open_scope("", "turn"));
  EXPECT_EQ(positions.closed_scope("", "loop", 1), "loop/1");
  EXPECT_EQ(positions.closed_scope("", "loop", 2), "loop/2");
  EXPECT_FALSE(positions.closed_scope("", "loop", 2));
  EXPECT_FALSE(positions.open_scope("", "loop")) << "a branch may be in an ended scope";
  EXPECT_EQ(positions.open_scope("", "map"), "map");
  EXPECT_EQ(positions.open_scope("", "map"), "map");
  EXPECT_FALSE(positions.closed_scope("", "map", {}));
  EXPECT_FALSE(positions.closed_scope("", "map", 0));
}

AE_TEST("positions/the name of a loop is used once in its scope") {
  Positions positions;
  EXPECT_EQ(positions.loop("", "chat"), "chat");
  EXPECT_FALSE(positions.loop("", "chat"));
  EXPECT_FALSE(positions.closed_scope("", "chat", 0)) << "it could be a turn";
  EXPECT_EQ(positions.loop("s", "chat"), "s/chat");
}

AE_TEST("positions/a closed scope and a request share the names") {
  Positions positions;
  EXPECT_EQ(positions.closed_scope("", "a", {}), "a");
  EXPECT_EQ(next(positions, "", "a"), "a#2");
  EXPECT_EQ(next(positions, "", "b"), "b");
  EXPECT_FALSE(positions.closed_scope("", "b", {}));
}

AE_TEST("positions/what is inside of an ended scope is forgotten") {
  Positions positions;
  EXPECT_EQ(next(positions, "loop/1", "a"), "loop/1/a");
  EXPECT_EQ(next(positions, "loop/10", "a"), "loop/10/a");
  positions.forget_inside("loop/1");
  EXPECT_EQ(next(positions, "loop/1", "a"), "loop/1/a");
  EXPECT_EQ(next(positions, "loop/10", "a"), "loop/10/a#2");
}

}  // namespace
}  // namespace ae::routines
