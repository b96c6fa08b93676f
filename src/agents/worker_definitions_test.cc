// What workers offer becomes a part of the agents file.
#include "agents/worker_definitions.h"

#include <algorithm>
#include <string>
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
  std::vector<Diagnostic> add(std::vector<Value> agents, std::vector<Value> tools = {}) {
    return definitions.add(
        agents, tools, [this](std::string_view name) { return name == in_file; },
        [this](const std::string& code) {
          loaded.push_back(code);
          return faults;
        });
  }

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

}  // namespace
}  // namespace ae::agents
