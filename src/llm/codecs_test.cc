// Both codecs: the same request in both formats, and the same answer from both.
#include <string>

#include "json/json.h"
#include "llm/chat_completions.h"
#include "llm/conversation.h"
#include "llm/messages.h"
#include "testing/test.h"

namespace ae::llm {
namespace {

Value codec_json(std::string_view text) {
  auto value = parse_json(text);
  EXPECT_TRUE(value) << text;
  return value ? *value : Value();
}

constexpr std::string_view kConversation = R"({"model":"m","max_tokens":50,"temperature":0.5,
 "tools":[{"name":"files.read","description":"reads a file","parameters":{"type":"object","properties":{"p":{"type":"string"}}}},
          {"name":"look"}],
 "messages":[
  {"role":"system","content":"Be brief."},
  {"role":"developer","content":"And kind."},
  {"role":"user","content":[{"type":"text","text":"What is it?"},{"type":"image","url":"https://h/x.png"},
                            {"type":"image","url":"data:image/png;base64,QUJD"}]},
  {"role":"assistant","content":"","blocks":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"reasoning_content","reasoning_content":"hm"}],
   "tool_calls":[{"id":"c1","name":"files.read","arguments":{"p":"a"}},{"id":"c2","name":"look","malformed":"{"}]},
  {"role":"tool","call_id":"c1","content":"a cat"},
  {"role":"tool","call_id":"c2","content":"no JSON","error":true},
  {"role":"user","content":"Go on."},
  {"role":"assistant","content":"A cat."},
  {"role":"user","content":"Sure?"}]})";

Value codec_chat(std::string_view request) {
  auto body = chat_request(codec_json(request), Value::object({}));
  EXPECT_TRUE(body) << (body ? "" : body.error().message);
  return body ? *body : Value();
}

Value codec_messages(std::string_view request) {
  auto body = messages_request(codec_json(request));
  EXPECT_TRUE(body) << (body ? "" : body.error().message);
  return body ? *body : Value();
}

const Value kRequest = codec_json(R"({"model":"m","messages":[{"role":"user","content":"x"}],
                                 "tools":[{"name":"files.read"}]})");

std::string decode(Result<Value> (*answer)(const Value&, const Value&), std::string_view body) {
  const auto value = answer(kRequest, codec_json(body));
  return value ? canonical(*value) : "fails: " + value.error().message;
}

AE_TEST("chat/a conversation with tools, results and images is encoded") {
  const Value body = codec_chat(kConversation);
  EXPECT_EQ(canonical(body["tools"]), canonical(codec_json(R"([
    {"type":"function","function":{"name":"files__read","description":"reads a file",
      "parameters":{"type":"object","properties":{"p":{"type":"string"}}}}},
    {"type":"function","function":{"name":"look"}}])")));
  EXPECT_EQ(canonical(body["messages"]), canonical(codec_json(R"([
    {"role":"system","content":"Be brief."},
    {"role":"developer","content":"And kind."},
    {"role":"user","content":[{"type":"text","text":"What is it?"},
      {"type":"image_url","image_url":{"url":"https://h/x.png"}},
      {"type":"image_url","image_url":{"url":"data:image/png;base64,QUJD"}}]},
    {"role":"assistant","content":null,"reasoning_content":"hm","tool_calls":[
      {"id":"c1","type":"function","function":{"name":"files__read","arguments":"{\"p\":\"a\"}"}},
      {"id":"c2","type":"function","function":{"name":"look","arguments":"{"}}]},
    {"role":"tool","tool_call_id":"c1","content":"a cat"},
    {"role":"tool","tool_call_id":"c2","content":"no JSON"},
    {"role":"user","content":"Go on."},
    {"role":"assistant","content":"A cat."},
    {"role":"user","content":"Sure?"}])")));
  EXPECT_EQ(body["max_completion_tokens"], Value(50));
  EXPECT_EQ(body["temperature"], Value(0.5));
}

AE_TEST("messages/system is separate, results are user content, adjacent turns are merged") {
  const Value body = codec_messages(kConversation);
  EXPECT_EQ(canonical(body["system"]),
            R"([{"text":"Be brief.","type":"text"},{"text":"And kind.","type":"text"}])");
  EXPECT_EQ(canonical(body["tools"]), canonical(codec_json(R"([
    {"name":"files__read","description":"reads a file",
     "input_schema":{"type":"object","properties":{"p":{"type":"string"}}}},
    {"name":"look","input_schema":{"type":"object"}}])")));
  EXPECT_EQ(canonical(body["messages"]), canonical(codec_json(R"([
    {"role":"user","content":[{"type":"text","text":"What is it?"},
      {"type":"image","source":{"type":"url","url":"https://h/x.png"}},
      {"type":"image","source":{"type":"base64","media_type":"image/png","data":"QUJD"}}]},
    {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},
      {"type":"tool_use","id":"c1","name":"files__read","input":{"p":"a"}},
      {"type":"tool_use","id":"c2","name":"look","input":{"malformed":"{"}}]},
    {"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":"a cat"},
      {"type":"tool_result","tool_use_id":"c2","content":"no JSON","is_error":true},
      {"type":"text","text":"Go on."}]},
    {"role":"assistant","content":[{"type":"text","text":"A cat."}]},
    {"role":"user","content":[{"type":"text","text":"Sure?"}]}])")));
  EXPECT_EQ(body["max_tokens"], Value(50));
  EXPECT_EQ(body["temperature"], Value(0.5));
}

AE_TEST("messages/max_tokens has a default, a missing user or an open schema is rejected") {
  EXPECT_EQ(
      codec_messages(R"({"model":"m","messages":[{"role":"user","content":"x"}]})")["max_tokens"],
      Value(4096));
  for (const char* invalid_request :
       {R"({"model":"m","messages":[{"role":"system","content":"x"}]})",
        R"({"model":"m","messages":[{"role":"assistant","content":" "}]})",
        R"({"model":"m","messages":[{"role":"user","content":"x"}],"schema":{"type":"object"}})"}) {
    const auto body = messages_request(codec_json(invalid_request));
    ASSERT_FALSE(body) << invalid_request;
    EXPECT_EQ(body.error().code, Code::input_invalid);
  }
}

AE_TEST("codecs/each format requests the schema, strict only if it is closed") {
  const auto with_schema = [](const char* schema) {
    return R"({"model":"m","messages":[{"role":"user","content":"x"}],"schema":)" +
           std::string(schema) + "}";
  };
  constexpr const char* kClosed =
      R"({"additionalProperties":false,"properties":{"n":{"type":"integer"}},"required":["n"],"type":"object"})";
  EXPECT_EQ(canonical(codec_chat(with_schema(kClosed))["response_format"]),
            R"({"json_schema":{"name":"answer","schema":)" + std::string(kClosed) +
                R"(,"strict":true},"type":"json_schema"})");
  EXPECT_EQ(
      codec_chat(with_schema(R"({"type":"object"})"))["response_format"]["json_schema"]["strict"],
      Value(false));
  EXPECT_EQ(canonical(codec_messages(with_schema(kClosed))["output_config"]),
            R"({"format":{"schema":)" + std::string(kClosed) + R"(,"type":"json_schema"}})");
}

AE_TEST("chat/tool calls are decoded, also in the variants of compatible servers") {
  const auto calls = [](std::string_view list, std::string_view reason) {
    return decode(chat_answer, R"({"choices":[{"message":{"content":null,"tool_calls":)" +
                                   std::string(list) + R"(},"finish_reason":")" +
                                   std::string(reason) + "\"}]}");
  };
  EXPECT_EQ(
      calls(
          R"([{"id":"a","type":"function","function":{"name":"files__read","arguments":"{\"p\":1}"}},
                      {"id":"b","type":"function","function":{"name":"files__read","arguments":"{}"}}])",
          "tool_calls"),
      R"({"finish_reason":"tool_calls","text":"","tool_calls":[)"
      R"({"arguments":{"p":1},"id":"a","name":"files.read"},)"
      R"({"arguments":{},"id":"b","name":"files.read"}]})");
  // No ids, arguments as an object, and a finish_reason that does not mention calls.
  EXPECT_EQ(
      calls(
          R"([{"function":{"name":"files__read","arguments":{"p":1}}},{"id":"","function":{"name":"x","arguments":"{"}}])",
          "stop"),
      R"({"finish_reason":"tool_calls","text":"","tool_calls":[)"
      R"({"arguments":{"p":1},"id":"call_1","name":"files.read"},)"
      R"({"id":"call_2","invalid":"invalid JSON: no key in quotes at byte 1","malformed":"{","name":"x"}]})");
  EXPECT_EQ(calls("null", "stop"), R"({"finish_reason":"stop","text":""})");
  EXPECT_EQ(calls("{}", "stop"), "fails: the answer's `tool_calls` is not a list");
  EXPECT_EQ(calls(R"([{"id":"a","function":{"arguments":"{}"}}])", "stop"),
            "fails: the answer calls a tool without a name");
}

AE_TEST("chat/reasoning is kept as a block, and a refusal as a refusal") {
  EXPECT_EQ(decode(chat_answer,
                   R"({"choices":[{"message":{"content":"Yes","reasoning_content":"hm"}}]})"),
            R"({"blocks":[{"reasoning_content":"hm","type":"reasoning_content"}],"text":"Yes"})");
  EXPECT_EQ(
      decode(
          chat_answer,
          R"({"choices":[{"message":{"content":null,"refusal":"No."},"finish_reason":"stop"}]})"),
      R"({"finish_reason":"stop","refusal":"No.","text":""})");
  EXPECT_EQ(decode(chat_answer, R"({"error":{"message":"No credit"}})"),
            "fails: the answer has no choices; its error: No credit");
}

AE_TEST("messages/blocks are decoded to text, thinking and calls, the stop reason is mapped") {
  EXPECT_EQ(
      decode(messages_answer, R"({"model":"m-1","stop_reason":"tool_use","content":[
        {"type":"thinking","thinking":"hm","signature":"s"},{"type":"redacted_thinking","data":"d"},
        {"type":"text","text":"Let me "},{"type":"text","text":"look."},{"type":"unheard_of"},
        {"type":"tool_use","id":"t1","name":"files__read","input":{"p":1}}],
        "usage":{"input_tokens":5,"cache_read_input_tokens":3,"cache_creation_input_tokens":2,"output_tokens":4,
                 "output_tokens_details":{"thinking_tokens":1}}})"),
      R"({"blocks":[{"signature":"s","thinking":"hm","type":"thinking"},{"data":"d","type":"redacted_thinking"}],)"
      R"("finish_reason":"tool_calls","model":"m-1","text":"Let me look.",)"
      R"("tool_calls":[{"arguments":{"p":1},"id":"t1","name":"files.read"}],)"
      R"("usage":{"cached_tokens":3,"input_tokens":10,"output_tokens":4,"reasoning_tokens":1,"total_tokens":14}})");
  const struct {
    const char* wire;
    const char* expected;
  } reasons[] = {{"end_turn", "stop"},         {"stop_sequence", "stop"},
                 {"max_tokens", "length"},     {"refusal", "refusal"},
                 {"pause_turn", "pause_turn"}, {"model_context_window_exceeded", "length"}};
  for (const auto& reason : reasons) {
    EXPECT_EQ(decode(messages_answer,
                     R"({"content":[],"stop_reason":")" + std::string(reason.wire) + "\"}"),
              R"({"finish_reason":")" + std::string(reason.expected) + R"(","text":""})");
  }
  EXPECT_EQ(
      decode(messages_answer,
             R"({"content":[],"stop_reason":"refusal","stop_details":{"explanation":"No."}})"),
      R"({"finish_reason":"refusal","refusal":"No.","text":""})");
}

AE_TEST("messages/the last call before max_tokens is malformed, even with valid arguments") {
  EXPECT_EQ(
      decode(messages_answer, R"({"stop_reason":"max_tokens","content":[
      {"type":"tool_use","id":"a","name":"look","input":{"p":1}},{"type":"tool_use","id":"b","name":"look","input":{}}]})"),
      R"({"finish_reason":"length","text":"","tool_calls":[{"arguments":{"p":1},"id":"a","name":"look"},)"
      R"({"id":"b","malformed":"{}","name":"look"}]})");
  EXPECT_EQ(decode(messages_answer,
                   R"({"stop_reason":"max_tokens","content":[{"type":"text","text":"Hel"}]})"),
            R"({"finish_reason":"length","text":"Hel"})");
}

std::string usage_of(Result<Value> (*answer)(const Value&, const Value&), std::string_view body,
                     std::string_view usage) {
  const auto decode =
      answer(codec_json(kConversation), codec_json(body).with("usage", codec_json(usage)));
  return decode ? canonical((*decode)["usage"]) : decode.error().message;
}

AE_TEST("chat/total tokens are at least input plus output, and missing counts are not 0") {
  const struct {
    const char* wire;
    const char* expected;
  } cases[] = {
      {R"({"prompt_tokens":9000,"completion_tokens":900,"total_tokens":0})",
       R"({"input_tokens":9000,"output_tokens":900,"total_tokens":9900})"},
      {R"({"prompt_tokens":9000,"completion_tokens":900})",
       R"({"input_tokens":9000,"output_tokens":900,"total_tokens":9900})"},
      {R"({"prompt_tokens":9000,"completion_tokens":900,"total_tokens":9960})",  // plus reasoning
       R"({"input_tokens":9000,"output_tokens":900,"total_tokens":9960})"},
      {R"({"prompt_tokens":9e15,"completion_tokens":5,"total_tokens":5})",
       R"({"input_tokens":9000000000000000,"output_tokens":5,"total_tokens":9000000000000005})"},
      {R"({"prompt_tokens":9007199254740991,"completion_tokens":9007199254740991})",
       R"({"input_tokens":9007199254740991,"output_tokens":9007199254740991,"total_tokens":9007199254740991})"},
      {R"({"prompt_tokens":"9000","completion_tokens":900.0,"total_tokens":null})",
       R"({"incomplete":true,"output_tokens":900,"total_tokens":900})"},
      {R"({"prompt_tokens":-100000,"completion_tokens":5,"total_tokens":-99995})",
       R"({"incomplete":true,"output_tokens":5,"total_tokens":5})"},
      {R"({"prompt_tokens":9,"total_tokens":20})",
       R"({"incomplete":true,"input_tokens":9,"total_tokens":20})"},
      {R"({"total_tokens":20})", R"({"incomplete":true,"total_tokens":20})"},
      {R"({"prompt_tokens":1e300,"prompt_tokens_details":{"cached_tokens":4}})",
       R"({"cached_tokens":4,"incomplete":true})"},
      {R"({"prompt_tokens":"a","completion_tokens":-1,"total_tokens":1.5})", "null"},
      {"{}", "null"},
      {"null", "null"},
      {"7", "null"},
  };
  for (const auto& one : cases) {
    EXPECT_EQ(usage_of(chat_answer, R"({"choices":[{"message":{"content":"x"}}]})", one.wire),
              one.expected)
        << one.wire;
  }
}

AE_TEST("messages/total tokens are input plus output, and missing counts are not 0") {
  const struct {
    const char* wire;
    const char* expected;
  } cases[] = {
      {R"({"input_tokens":5,"cache_read_input_tokens":null,"output_tokens":4})",
       R"({"input_tokens":5,"output_tokens":4,"total_tokens":9})"},
      {R"({"input_tokens":5,"cache_creation_input_tokens":2,"output_tokens":4,"total_tokens":1})",
       R"({"input_tokens":7,"output_tokens":4,"total_tokens":11})"},
      {R"({"input_tokens":5,"cache_read_input_tokens":"3","output_tokens":4})",
       R"({"incomplete":true,"output_tokens":4,"total_tokens":9})"},
      {R"({"input_tokens":"5","cache_read_input_tokens":3,"output_tokens":4})",
       R"({"cached_tokens":3,"incomplete":true,"output_tokens":4,"total_tokens":7})"},
      {R"({"input_tokens":5,"cache_creation_input_tokens":-2,"output_tokens":4})",
       R"({"incomplete":true,"output_tokens":4,"total_tokens":9})"},
      {R"({"input_tokens":5,"cache_read_input_tokens":9e15})",
       R"({"cached_tokens":9000000000000000,"incomplete":true,"input_tokens":9000000000000005,"total_tokens":9000000000000005})"},
      {R"({"output_tokens":4})", R"({"incomplete":true,"output_tokens":4,"total_tokens":4})"},
      {R"({"input_tokens":-1,"output_tokens":"2"})", "null"},
  };
  for (const auto& one : cases) {
    EXPECT_EQ(usage_of(messages_answer, R"({"content":[]})", one.wire), one.expected) << one.wire;
  }
}

AE_TEST("messages/an invalid response is an error, and invalid token counts are ignored") {
  EXPECT_EQ(decode(messages_answer, "{}"), "fails: the answer has no content");
  EXPECT_EQ(decode(messages_answer, R"({"type":"error","error":{"message":"Overloaded"}})"),
            "fails: the answer has no content; its error: Overloaded");
  EXPECT_EQ(decode(messages_answer, R"({"content":[{"type":"tool_use","id":"a","input":{}}]})"),
            "fails: the answer calls a tool without a name");
  EXPECT_EQ(
      decode(messages_answer, R"({"content":[],"usage":{"input_tokens":-1,"output_tokens":"2"}})"),
      R"({"text":""})");
  EXPECT_EQ(
      decode(
          messages_answer,
          R"({"content":[],"usage":{"input_tokens":9007199254740991,"cache_read_input_tokens":9007199254740991,)"
          R"("cache_creation_input_tokens":9007199254740991,"output_tokens":9007199254740991}})")
              .find("\"total_tokens\":9007199254740991") != std::string::npos,
      true);
}

}  // namespace
}  // namespace ae::llm
