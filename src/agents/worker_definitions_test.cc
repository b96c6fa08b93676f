// What workers offer becomes a part of the agents file.
#include "agents/worker_definitions.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "json/json.h"
#include "testing/test.h"

namespace ae::agents {
namespace {

Value json(std::string text) {
  std::ranges::replace(text, '\'', '"');
  return *parse_json(text);
}

struct World {
  std::vector<Diagnostic> add(std::vector<Value> agents, std::vector<Value> tools = {},
                              std::string principal = "") {
    return definitions.add(
        {.principal = std::move(principal), .agents = agents, .tools = tools},
        {.is_in_file = [this](std::string_view name) { return name == in_file; },
         .is_superseded = [this](std::string_view,
                                 std::string_view version) { return version == superseded; },
         .load =
             [this](const std::string& code) {
               loaded.push_back(code);
               return faults;
             }});
  }
  std::string superseded;

  WorkerDefinitions definitions;
  std::string in_file;
  std::vector<Diagnostic> faults;
  std::vector<std::string> loaded;
};

AE_TEST("worker definitions/an agent and its tools become entries of an agents file") {
  World world;
  EXPECT_EQ(world.definitions.code(), "");
  EXPECT_TRUE(world
                  .add({json("{'name':'refund','language':'typescript','version':'1','uses':['a'],"
                             "'input_schema':{'type':'object'}}")},
                       {json("{'name':'pay','effect':'idempotent','timeout':'5s'}")})
                  .empty());
  EXPECT_EQ(
      world.definitions.code(),
      canonical(json("{'agents':{'refund':{'code':{'language':'typescript','uses':['a','pay'],"
                     "'version':'1'},'input_schema':{'type':'object'}}},"
                     "'tools':{'pay':{'effect':'idempotent','timeout':'5s','worker':'pay'}}}")));
}

AE_TEST("worker definitions/what the file defines holds instead") {
  World world;
  world.in_file = "refund";
  EXPECT_TRUE(world.add({json("{'name':'refund','language':'python'}")}).empty());
  EXPECT_EQ(world.definitions.code(), "");
}

AE_TEST("worker definitions/the same definition again is not loaded again") {
  World world;
  const Value agent = json("{'name':'a','language':'python','version':'1'}");
  EXPECT_TRUE(world.add({agent}).empty());
  EXPECT_TRUE(world.add({agent}).empty());
  EXPECT_EQ(world.loaded.size(), 1u);
}

AE_TEST("worker definitions/a version keeps its definition, another version replaces it") {
  World world;
  EXPECT_TRUE(world.add({json("{'name':'a','language':'python','version':'1'}")}).empty());
  const auto faults =
      world.add({json("{'name':'a','language':'python','version':'1','parallel':2}")});
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0].code, Code::already_exists);
  EXPECT_TRUE(
      world.add({json("{'name':'a','language':'python','version':'2','parallel':2}")}).empty());
  EXPECT_NE(world.definitions.code().find("\"parallel\":2"), std::string::npos);
}

AE_TEST("worker definitions/nothing changes when the file is invalid with them") {
  World world;
  EXPECT_TRUE(world.add({json("{'name':'a','language':'python'}")}).empty());
  const std::string before = world.definitions.code();
  world.faults = {{.message = "no such language"}};
  EXPECT_EQ(world.add({json("{'name':'b','language':'latin'}")}).size(), 1u);
  EXPECT_EQ(world.definitions.code(), before);
}

Value agent(std::string_view version, std::string_view name = "a") {
  return Value::object({{"language", "python"}, {"name", name}, {"version", version}});
}

AE_TEST("worker definitions/an older version that connects again replaces nothing") {
  World world;
  const Value pay = json("{'name':'pay','effect':'read'}");
  const Value new_pay = json("{'name':'pay','effect':'idempotent'}");
  EXPECT_TRUE(world.add({agent("1")}, {pay}).empty());
  EXPECT_TRUE(world.add({agent("2")}, {new_pay}).empty());
  const std::string newest = world.definitions.code();
  EXPECT_NE(newest.find("idempotent"), std::string::npos);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(world.add({agent("1")}, {pay}).empty());
    EXPECT_TRUE(world.add({agent("2")}, {new_pay}).empty());
  }
  EXPECT_EQ(world.definitions.code(), newest);
  EXPECT_EQ(world.loaded.size(), 2u);
}

AE_TEST("worker definitions/a version that an earlier process saw replaced is not the newest") {
  World world;
  world.superseded = "1";
  EXPECT_TRUE(world.add({agent("1")}).empty());
  EXPECT_NE(world.definitions.code().find("\"version\":\"1\""), std::string::npos)
      << "its jobs need it while there is no other";
  EXPECT_TRUE(world.add({agent("2")}).empty());
  World other;
  other.superseded = "1";
  EXPECT_TRUE(other.add({agent("2")}).empty());
  EXPECT_TRUE(other.add({agent("1")}).empty());
  EXPECT_EQ(other.definitions.code(), world.definitions.code());
}

AE_TEST(
    "worker definitions/a tool is replaced by newer code of its worker, not by another worker") {
  World world;
  const Value pay = json("{'name':'pay','effect':'read','timeout':'5s'}");
  const Value other_pay = json("{'name':'pay','effect':'read','timeout':'9s'}");
  EXPECT_TRUE(world.add({agent("1")}, {pay}, "ann").empty());
  for (const auto& [name, principal] : {std::pair{"a", "bob"}, {"b", "ann"}}) {
    const auto faults = world.add({agent("2", name)}, {other_pay}, principal);
    ASSERT_EQ(faults.size(), 1u);
    EXPECT_EQ(faults[0].code, Code::already_exists);
    EXPECT_EQ(faults[0].path, "tools.pay");
    EXPECT_NE(faults[0].message.find("`timeout`"), std::string::npos) << faults[0].message;
  }
  EXPECT_TRUE(world.add({agent("2", "b")}, {pay}, "bob").empty()) << "the same definition";
  EXPECT_TRUE(world.add({agent("2")}, {other_pay}, "ann").empty());
  EXPECT_NE(world.definitions.code().find("9s"), std::string::npos);
}

AE_TEST("worker definitions/their number is limited") {
  World world;
  std::vector<Value> tools;
  for (std::size_t i = 0; i <= WorkerDefinitions::kToolsMax; ++i) {
    tools.push_back(Value::object({{"name", "t" + std::to_string(i)}}));
  }
  const auto faults = world.add({}, tools);
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0].code, Code::input_invalid);
  EXPECT_EQ(world.definitions.code(), "");
}

}  // namespace
}  // namespace ae::agents
