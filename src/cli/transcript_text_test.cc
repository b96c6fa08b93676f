// Tests of TranscriptText.
#include "cli/transcript_text.h"

#include "json/json.h"
#include "testing/test.h"

namespace ae::cli {
namespace {

Value json(std::string text) {
  for (char& c : text) c = c == '\'' ? '"' : c;
  auto value = parse_json(text);
  EXPECT_TRUE(value) << text;
  return value ? *value : Value();
}

std::string lines(std::initializer_list<const char*> entries, TranscriptStyle style = {}) {
  TranscriptText text(style);
  std::string all;
  for (const char* entry : entries) all += text.entry(json(entry));
  return all;
}

AE_TEST("cli/a transcript shows a turn with its call") {
  EXPECT_EQ(
      lines(
          {"{'kind':'message', 'node_id':'chat', 'from':'system', 'content':'Be kind\\nand brief'}",
           "{'kind':'model_call', 'node_id':'chat', 'model':'main'}",
           "{'kind':'answer', 'node_id':'chat', 'turn':0, 'model':'main', 'outcome':'success',"
           " 'text':'I look', 'tool_calls':[{'name':'look'}], 'usage':{'input_tokens':1200,"
           " 'output_tokens':4}, 'cost_micros':1200, 'duration_us':12000}",
           "{'kind':'tool_call', 'node_id':'chat', 'step_id':'s', 'tool':'look',"
           " 'arguments':{'q':1}, 'effect_class':'read', 'try':1}",
           "{'kind':'result', 'node_id':'chat', 'step_id':'s', 'tool':'look',"
           " 'outcome':'success', 'result':'two\\nlines', 'duration_us':1500}",
           "{'kind':'end', 'status':'completed', 'result':7}"}),
      "\nnode chat\n"
      "[system] Be kind\n  and brief\n"
      "turn 1 · model main · 1,204 tokens · cost 0.0012 · 12 ms\n"
      "[assistant] I look\n"
      "→ look {\"q\":1}  (read)\n"
      "← look two\n  lines  2 ms\n"
      "\n[completed] 7\n");
}

AE_TEST("cli/a transcript counts calls and tries as a trace does") {
  const auto head = [](const char* totals) {
    return TranscriptText({}).head(json(
        "{'id':'j', 'agent':'a', 'status':'completed', 'totals':" + std::string(totals) + "}"));
  };
  EXPECT_EQ(head("{'tool_calls':11, 'repeated':2}"),
            "job j · agent a · completed · 9 tool calls, 11 tries (2 retries)\n");
  EXPECT_EQ(head("{'tool_calls':1, 'repeated':0}"), "job j · agent a · completed · 1 tool call\n");
}

AE_TEST("cli/a transcript shows the lines of an error below each other") {
  EXPECT_NE(lines({"{'kind':'result', 'tool':'t', 'outcome':'failure', 'definite':true,"
                   " 'error':{'code':'exit_3', 'message':'one\\ntwo\\n'}}"})
                .find("exit_3: one\n  two\n"),
            std::string::npos);
}

AE_TEST("cli/a transcript shows unknown outcomes of calls that change something") {
  const char* call =
      "{'kind':'tool_call', 'step_id':'s', 'tool':'pay', 'arguments':{}, 'effect_class':'%', "
      "'try':1}";
  const char* result =
      "{'kind':'result', 'step_id':'s', 'tool':'pay', 'outcome':'timeout', 'definite':false,"
      " 'error':{'code':'timeout', 'message':'30 s'}}";
  for (const auto& [effect, want] :
       {std::pair("at_most_once", "← pay ? outcome unknown: timeout: 30 s\n"),
        std::pair("read", "← pay ✗ timeout: 30 s\n")}) {
    std::string started(call);
    started.replace(started.find('%'), 1, effect);
    EXPECT_NE(lines({started.c_str(), result}).find(want), std::string::npos) << effect;
  }
}

AE_TEST("cli/a transcript marks redacted values, and cuts others only above its limit") {
  EXPECT_EQ(lines({"{'kind':'input', 'input':null, 'redacted':['input']}"}),
            "[input] (redacted)\n");
  const char* input = "{'kind':'input', 'input':'0123456789'}";
  EXPECT_EQ(lines({input}), "[input] 0123456789\n");
  EXPECT_EQ(lines({input}, {.value_max = 10}), "[input] 0123456789\n");
  EXPECT_EQ(lines({input}, {.value_max = 5}), "[input] 0123…\n");
}

AE_TEST("cli/a transcript escapes the control characters of a job") {
  const std::string text =
      lines({"{'kind':'message', 'node_id':'a\\u001b[2J', 'from':'user\\u0007',"
             " 'content':'x\\u001b[2J\\u202ey'}",
             "{'kind':'result', 'tool':'\\u001bt', 'outcome':'failure', 'definite':true,"
             " 'error':{'code':'\\u001bc', 'message':'\\u001bm'}}"});
  EXPECT_EQ(text.find('\x1b'), std::string::npos) << text;
  EXPECT_EQ(text.find('\x07'), std::string::npos);
  EXPECT_EQ(text.find("\u202e"), std::string::npos);
}

}  // namespace
}  // namespace ae::cli
