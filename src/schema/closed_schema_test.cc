// Schemas that are closed or complete, and schemas that are not.
#include "schema/closed_schema.h"

#include "json/json.h"
#include "testing/test.h"

namespace ae {
namespace {

Value closed_json(const char* text) {
  auto value = parse_json(text);
  EXPECT_TRUE(value) << text;
  return value ? *value : Value();
}

AE_TEST("schema/closed schema/a schema is closed if every object in it rejects unnamed members") {
  for (const char* closed :
       {R"({"type":"string"})", R"({"type":"object","additionalProperties":false})",
        R"({"type":"array","items":{"type":"object","additionalProperties":false}})",
        R"({"$defs":{"a":{"type":["object","null"],"additionalProperties":false}}})", "true"}) {
    EXPECT_TRUE(is_closed(closed_json(closed))) << closed;
  }
  for (const char* open :
       {R"({"type":"object"})", R"({"properties":{}})",
        R"({"type":"object","additionalProperties":true})",
        R"({"type":"object","additionalProperties":false,"properties":{"a":{"type":"object"}}})",
        R"({"type":"array","items":{"type":"object"}})", R"({"anyOf":[{"type":"object"}]})",
        R"({"$defs":{"a":{"type":["object","null"]}}})"}) {
    EXPECT_FALSE(is_closed(closed_json(open))) << open;
  }
}

AE_TEST("schema/closed schema/a complete schema is closed and requires every member it names") {
  EXPECT_TRUE(is_complete(closed_json(
      R"({"type":"object","additionalProperties":false,"properties":{"a":{"type":"string"}},"required":["a"]})")));
  EXPECT_TRUE(is_complete(closed_json(R"({"type":"object","additionalProperties":false})")));
  for (
      const char* not_complete :
      {R"({"type":"string"})", R"({"type":"object"})",
       R"({"type":"object","additionalProperties":false,"properties":{"a":{}}})",
       R"({"type":"object","additionalProperties":false,"properties":{"a":{}},"required":["b"]})",
       R"({"type":"object","additionalProperties":false,"anyOf":[]})",
       R"({"type":"object","additionalProperties":false,"required":["a"],"properties":{"a":{"not":{}}}})"}) {
    EXPECT_FALSE(is_complete(closed_json(not_complete))) << not_complete;
  }
}

}  // namespace
}  // namespace ae
