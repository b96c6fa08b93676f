#include "mcp/client/tool_diff.h"

#include <fmt/core.h>

#include "json/json.h"
#include "testing/test.h"

namespace ae::mcp::client {
namespace {

using Lines = std::vector<std::string>;

Value one(std::string_view tool) { return Value::array({*parse_json(tool)}); }

AE_TEST("mcp/tool_diff/each difference is one line: texts, schema members, annotations") {
  const Value before = *parse_json(R"([
    {"name":"gone","inputSchema":{}},
    {"name":"pay","description":"Pays.","annotations":{"readOnlyHint":true},
     "inputSchema":{"type":"object","properties":{"n":{"type":"integer"},"old":{"type":"string"}},"required":["n"]}},
    {"name":"same","description":"S","inputSchema":{}}])");
  const Value now = *parse_json(R"([
    {"name":"pay","title":"Pay","description":"Pays well.","annotations":{},
     "inputSchema":{"type":"object","properties":{"n":{"type":"number"},"iban":{}},"required":["n","iban"]},
     "outputSchema":{"type":"string"}},
    {"name":"refund","description":"Pays back.","inputSchema":{}},
    {"name":"same","description":"S","inputSchema":{}}])");
  EXPECT_EQ(
      diff_tools(before, now),
      (Lines{"gone: gone", "pay: title: added: \"Pay\"",
             "pay: description: \"Pays.\" -> \"Pays well.\"",
             "pay: inputSchema/properties/iban: added: {}",
             "pay: inputSchema/properties/n/type: \"integer\" -> \"number\"",
             "pay: inputSchema/properties/old: removed, was {\"type\":\"string\"}",
             "pay: inputSchema/required: [\"n\"] -> [\"n\",\"iban\"]",
             "pay: outputSchema: added: {\"type\":\"string\"}",
             "pay: annotations/readOnlyHint: removed, was true", "refund: new: \"Pays back.\""}));
  EXPECT_EQ(diff_tools(now, now), Lines{});
}

AE_TEST("mcp/tool_diff/long texts are shown around the difference, with the size of the rest") {
  const std::string same(5000, 'a');
  const auto tool = [](const std::string& words) {
    return Value::array({Value::object({{"name", "t"}, {"description", words}})});
  };
  const Lines lines =
      diff_tools(tool(same), tool(fmt::format("{}EVIL{}", same, std::string(3000, 'b'))));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("aaaEVILbbb"), std::string::npos) << lines[0];
  EXPECT_NE(lines[0].find(" bytes more)"), std::string::npos) << lines[0];
  EXPECT_LT(lines[0].size(), 2 * kTextShown + 200);
  // Characters are never split.
  for (std::size_t i = 0; i < 4; ++i) {
    std::string many(i, 'x');
    for (int n = 0; n < 1000; ++n) many += "ü";
    EXPECT_EQ(diff_tools(tool(many), tool(many + "!"))[0].find("\\x"), std::string::npos);
    EXPECT_EQ(diff_tools(tool("?"), tool(many))[0].find("\\x"), std::string::npos);
  }
}

AE_TEST("mcp/tool_diff/control characters from a server are escaped") {
  const Lines lines = diff_tools(
      one(R"({"name":"t","description":"a","annotations":{}})"),
      one(R"({"name":"t","description":"\u001b[2J\na","annotations":{"\u001b]0;x":1}})"));
  ASSERT_EQ(lines.size(), 2u);
  for (const std::string& line : lines) {
    EXPECT_EQ(line.find('\x1b'), std::string::npos);
    EXPECT_EQ(line.find('\n'), std::string::npos);
  }
}

AE_TEST("mcp/tool_diff/the number of lines is limited") {
  std::vector<Member> many;
  many.reserve(kDifferencesMax + 5);
  for (std::size_t i = 0; i < kDifferencesMax + 5; ++i) many.emplace_back(fmt::format("k{}", i), 1);
  const Value now = Value::array(
      {Value::object({{"name", "t"}, {"annotations", Value::object(std::move(many))}})});
  const Lines lines = diff_tools(one(R"({"name":"t","annotations":{}})"), now);
  ASSERT_EQ(lines.size(), kDifferencesMax + 1);
  EXPECT_EQ(lines.back(), "… and 5 more");
}

}  // namespace
}  // namespace ae::mcp::client
