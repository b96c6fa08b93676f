// The generated grammar agrees with what the engine records.
#include "agents/grammar.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "plan/plan.h"
#include "testing/test.h"

namespace ae::agents {
namespace {

std::vector<std::string> list(Names names) { return {names.begin(), names.end()}; }

AE_TEST("grammar/a mapping of a kind has the keys that the schema allows for it") {
  const Shape& node = shape_of(Mapping::node);
  EXPECT_EQ(list(node.kinds),
            (std::vector<std::string>{"tool", "agent", "llm", "wait", "map", "loop"}));
  for (const std::string_view kind : node.kinds) {
    EXPECT_TRUE(contains(node.keys_of(kind), kind));
    EXPECT_TRUE(contains(node.keys_of(kind), "id"));
    EXPECT_EQ(contains(node.keys_of(kind), "args"), kind == "tool");
  }
  EXPECT_EQ(node.kinds_with("do"), std::vector<std::string_view>{"map"});
}

AE_TEST("grammar/mappings with a type have the keys of all types, each once") {
  const Shape& wait = shape_of(Mapping::wait);
  EXPECT_EQ(list(wait.kinds),
            (std::vector<std::string>{"timer", "signal", "webhook", "human", "message"}));
  EXPECT_EQ(std::ranges::count(wait.keys, "type"), 1);
  EXPECT_EQ(list(wait.keys_of("timer")), (std::vector<std::string>{"type", "for", "until"}));
  EXPECT_EQ(list(wait.keys_of("signal")), list(wait.keys_of("webhook")));
}

AE_TEST("grammar/a key that is never valid is still a known key") {
  const Shape& tool = shape_of(Mapping::own_tool);
  EXPECT_TRUE(contains(tool.keys, "mcp"));
  EXPECT_EQ(list(tool.refused), std::vector<std::string>{"mcp"});
}

AE_TEST("grammar/an alias is not among the keys, and names one of them") {
  for (const Mapping mapping : {Mapping::mcp_server, Mapping::mcp_tool}) {
    const Shape& shape = shape_of(mapping);
    EXPECT_TRUE(contains(shape.keys, "question_expires"));
    EXPECT_FALSE(contains(shape.keys, "ask_expires"));
    EXPECT_EQ(shape.key_of("ask_expires"), "question_expires");
    EXPECT_EQ(shape.key_of("effect"), "effect");
  }
}

AE_TEST("grammar/the effect names are those that a plan records") {
  using engine::EffectClass;
  std::vector<std::string> recorded;
  for (const EffectClass effect :
       {EffectClass::read, EffectClass::idempotent, EffectClass::at_most_once}) {
    recorded.emplace_back(engine::to_text(effect));
  }
  EXPECT_EQ(list(words_of(Words::effect)), recorded);
}

}  // namespace
}  // namespace ae::agents
