// Conversation: valid and invalid requests, and the answers of models.
#include "llm/conversation.h"

#include <fmt/core.h>

#include "json/json.h"
#include "testing/test.h"

namespace ae::llm {
namespace {

Value conversation_json(std::string_view text) {
  auto value = parse_json(text);
  EXPECT_TRUE(value) << text;
  return value ? *value : Value();
}

// A request with these messages, and further members.
Value request_json(std::string_view messages, std::string_view more = "") {
  return conversation_json(R"({"model":"m","messages":)" + std::string(messages) +
                           std::string(more) + "}");
}

Request request(std::string_view messages, std::string_view more = "") {
  auto read = read_request(request_json(messages, more));
  EXPECT_TRUE(read) << (read ? "" : read.error().message);
  return read ? *std::move(read) : Request();
}

constexpr std::string_view kUser = R"([{"role":"user","content":"Hi"}])";
constexpr std::string_view kShortConversation = R"([
  {"role":"system","content":"Be brief."},
  {"role":"developer","content":[{"type":"text","text":"And kind."}]},
  {"role":"user","content":[{"type":"text","text":"What is it?"},{"type":"image","url":"https://h/x.png"}]},
  {"role":"assistant","content":"","tool_calls":[{"id":"c1","name":"files.read","arguments":{"p":1}},
                                                  {"id":"c2","name":"look","malformed":"{"}],
   "blocks":[{"type":"thinking","thinking":"hm","signature":"s"}]},
  {"role":"tool","call_id":"c1","content":"a cat"},
  {"role":"tool","call_id":"c2","content":"no JSON","error":true}])";

AE_TEST("conversation/a request is parsed with all its messages, tools and settings") {
  const Request read = request(
      kShortConversation,
      R"(,"tools":[{"name":"files.read","description":"reads","parameters":{"type":"object"}},
    {"name":"look"}],"temperature":0.5,"max_tokens":9,"schema":{"type":"object"})");
  ASSERT_EQ(read.messages.size(), 6u);
  EXPECT_EQ(read.messages[0].text, "Be brief.");
  EXPECT_EQ(read.messages[1].role, Role::developer);
  EXPECT_EQ(read.messages[1].parts.size(), 1u);
  EXPECT_TRUE(read.messages[2].parts[1].image);
  EXPECT_EQ(read.messages[2].parts[1].text, "https://h/x.png");
  EXPECT_EQ(canonical(read.messages[3].calls[0].arguments), R"({"p":1})");
  EXPECT_EQ(read.messages[3].calls[1].malformed, "{");
  EXPECT_EQ(read.messages[3].blocks.size(), 1u);
  EXPECT_EQ(read.messages[4].call_id, "c1");
  EXPECT_FALSE(read.messages[4].error);
  EXPECT_TRUE(read.messages[5].error);
  EXPECT_EQ(read.tools[0].wire, "files__read");
  EXPECT_EQ(read.tools[1].description, "");
  EXPECT_EQ(read.temperature, Value(0.5));
  EXPECT_EQ(read.max_tokens, Value(9));
  EXPECT_EQ(read.calls(), 2u);
}

AE_TEST("conversation/an invalid request is rejected with its position") {
  const struct {
    Value request;
    const char* where;
  } cases[] = {
      {conversation_json("{}"), "at least one message"},
      {conversation_json("7"), "not an object"},
      {request_json("[]"), "at least one message"},
      {request_json(kUser, R"(,"stream":true)"), "`stream`"},
      {request_json(R"([{"role":"user","content":"a"},{"role":"robot","content":"b"}])"),
       "messages[1]"},
      {request_json(R"([{"role":"user"}])"), "messages[0] has no `content`"},
      {request_json(R"([{"role":"user","content":[]}])"), "parts"},
      {request_json(R"([{"role":"user","content":"a","name":"b"}])"), "`name`"},
      {request_json(R"([{"role":"user","content":[{"type":"image","url":"file:///etc/passwd"}]}])"),
       "content[0] has an invalid `url`"},
      {request_json(R"([{"role":"user","content":[{"type":"audio"}]}])"), "no valid type"},
      {request_json(R"([{"role":"user","content":[{"type":"text","text":"a","url":"b"}]}])"),
       "`url`"},
      {request_json(R"([{"role":"assistant","content":[{"type":"text","text":"a"}]}])"),
       "`content`"},
      {request_json(R"([{"role":"assistant","content":"","tool_calls":{}}])"), "`tool_calls`"},
      {request_json(
           R"([{"role":"assistant","content":"","tool_calls":[{"id":"","name":"a","arguments":{}}]}])"),
       "tool_calls[0] has no `id`"},
      {request_json(R"([{"role":"assistant","content":"","tool_calls":[{"id":"a","name":"a"}]}])"),
       "neither"},
      {request_json(
           R"([{"role":"assistant","content":"","tool_calls":[{"id":"a","name":"a","arguments":{},"malformed":""}]}])"),
       "or both"},
      {request_json(R"([{"role":"assistant","content":"","blocks":["a"]}])"), "blocks[0]"},
      {request_json(R"([{"role":"tool","content":"a"}])"), "`call_id`"},
      {request_json(R"([{"role":"tool","call_id":"a","content":{}}])"), "`content`"},
      {request_json(kUser, R"(,"tools":[{"name":""}])"), "tools[0]"},
      {request_json(kUser, R"(,"tools":[{"name":"a","parameters":[]}])"), "`parameters`"},
      {request_json(kUser, R"(,"tools":[{"name":"a"},{"name":"a"}])"), "offered twice"},
      {request_json(kUser, R"(,"temperature":"hot")"), "`temperature`"},
      {request_json(kUser, R"(,"max_tokens":-1)"), "`max_tokens`"},
      {request_json(kUser, R"(,"schema":{"type":"text"})"), "`schema`"},
  };
  for (const auto& c : cases) {
    const auto read = read_request(c.request);
    ASSERT_FALSE(read) << canonical(c.request);
    EXPECT_EQ(read.error().code, Code::input_invalid);
    EXPECT_NE(read.error().message.find(c.where), std::string::npos) << read.error().message;
  }
}

AE_TEST("conversation/lists over their limits are rejected") {
  const auto many = [](std::size_t count, std::string_view item) {
    std::string list = "[";
    for (std::size_t i = 0; i < count; ++i) list += (i > 0 ? "," : "") + std::string(item);
    return list + "]";
  };
  constexpr std::string_view kMessage = R"({"role":"user","content":"x"})";
  EXPECT_TRUE(read_request(request_json(many(kMessagesMax, kMessage))));
  EXPECT_FALSE(read_request(request_json(many(kMessagesMax + 1, kMessage))));
  const auto parts = [&](std::size_t n) {
    return request_json(R"([{"role":"user","content":)" + many(n, R"({"type":"text","text":"x"})") +
                        "}]");
  };
  EXPECT_TRUE(read_request(parts(kPartsMax)));
  EXPECT_FALSE(read_request(parts(kPartsMax + 1)));
  Answer answer;
  const Request plain = request(kUser);
  for (std::size_t i = 0; i < kCallsMax; ++i) EXPECT_TRUE(answer.add_call(plain, "", "t", {}));
  EXPECT_FALSE(answer.add_call(plain, "", "t", {}));
}

AE_TEST("conversation/tool names are encoded in characters that providers accept, and decoded") {
  EXPECT_EQ(wire_name("files.read_file"), "files__read_file");
  EXPECT_EQ(wire_name("get-order"), "get-order");
  EXPECT_EQ(wire_name("größe"), "gr____e");
  const std::string long_name(200, 'x');
  EXPECT_EQ(wire_name(long_name).size(), 64u);
  EXPECT_NE(wire_name(long_name), wire_name(long_name + "y"));
  const Request read =
      request(kUser, R"(,"tools":[{"name":"a.b"},{"name":"a__b"},{"name":"a.b_"}])");
  EXPECT_EQ(read.name_of("a__b"), "a.b");
  EXPECT_EQ(read.tools[1].wire.size(), 4u + 1 + 8);  // the name was already used
  for (const OfferedTool& tool : read.tools) {
    EXPECT_EQ(read.name_of(tool.wire), tool.name);
    EXPECT_EQ(read.wire_name_of(tool.name), tool.wire);
  }
  EXPECT_EQ(read.name_of("made_up"), "made_up");          // invented by the model
  EXPECT_EQ(read.wire_name_of("gone.now"), "gone__now");  // offered in an earlier turn only
}

AE_TEST("conversation/a call keeps its id, or gets a unique one") {
  const Request read = request(kShortConversation);  // it contains two calls
  Answer answer;
  for (const char* id : {"given", "", "given", "call_5", "", ""}) {
    EXPECT_TRUE(answer.add_call(read, id, "t", Value::object({})));
  }
  std::vector<std::string> ids;
  for (const ToolCall& call : answer.calls) ids.push_back(call.id);
  EXPECT_EQ(ids,
            (std::vector<std::string>{"given", "call_4", "call_5", "call_6", "call_7", "call_8"}));
  EXPECT_FALSE(answer.add_call(read, "x", "", Value::object({})));
}

AE_TEST(
    "conversation/arguments are an object, empty means none, malformed ones are kept verbatim") {
  const Request read = request(kUser);
  const auto read_arguments = [&](const Value& arguments) {
    Answer answer;
    EXPECT_TRUE(answer.add_call(read, "c", "t", arguments));
    return canonical(call_value(answer.calls.at(0)));
  };
  EXPECT_EQ(read_arguments(R"({"a": 1})"), R"({"arguments":{"a":1},"id":"c","name":"t"})");
  EXPECT_EQ(read_arguments(conversation_json(R"({"a":1})")),
            R"({"arguments":{"a":1},"id":"c","name":"t"})");
  for (const Value& none : {Value(), Value(""), Value(" \n"), Value("{}")}) {
    EXPECT_EQ(read_arguments(none), R"({"arguments":{},"id":"c","name":"t"})");
  }
  EXPECT_EQ(read_arguments(R"({"id": 12345678901234567890})"),
            R"({"arguments":{"id":"12345678901234567890"},"id":"c","name":"t"})");
  EXPECT_EQ(
      read_arguments(R"({"a":)"),
      R"({"id":"c","invalid":"invalid JSON: the text ends where a value is expected at byte 5","malformed":"{\"a\":","name":"t"})");
  EXPECT_NE(read_arguments(R"({"a":1,"a":2})").find(R"(duplicate key \"a\" at byte 0)"),
            std::string::npos);
  EXPECT_NE(read_arguments(R"({"a":1e999})").find("a number beyond the largest double at byte 5"),
            std::string::npos);
  EXPECT_EQ(read_arguments("[1]"), R"({"id":"c","malformed":"[1]","name":"t"})");
  EXPECT_EQ(read_arguments(Value(7)), R"({"id":"c","malformed":"7","name":"t"})");
}

AE_TEST("conversation/a recorded answer can be sent again as a message") {
  Answer answer;
  const Request read = request(kUser);
  answer.text = "Let me look.";
  answer.blocks.push_back(
      conversation_json(R"({"type":"thinking","thinking":"hm","signature":"s"})"));
  EXPECT_TRUE(answer.add_call(read, "a", "look", conversation_json("{}")));
  EXPECT_TRUE(answer.add_call(read, "b", "look", "{"));
  const Value value = answer_value(answer);
  const Value message = Value::object({{"role", "assistant"},
                                       {"content", value["text"]},
                                       {"tool_calls", value["tool_calls"]},
                                       {"blocks", value["blocks"]}});
  const Request again = request(fmt::format("[{}]", canonical(message)));
  EXPECT_EQ(again.messages[0].calls.size(), 2u);
  EXPECT_EQ(again.messages[0].blocks[0], answer.blocks[0]);
}

AE_TEST("conversation/an answer is validated against its schema, unless it calls tools") {
  const Value schema = conversation_json(R"({"type":"object","required":["n"]})");
  const auto validated = [&](const char* answer) {
    return with_parsed_json(schema, conversation_json(answer));
  };
  EXPECT_EQ(canonical(*validated(R"({"text":"{\"n\":1}"})")),
            R"({"json":{"n":1},"text":"{\"n\":1}"})");
  EXPECT_EQ(canonical(*validated(R"({"text":"","tool_calls":[]})")),
            R"({"text":"","tool_calls":[]})");
  EXPECT_EQ(canonical(*with_parsed_json(Value(), conversation_json(R"({"text":"Hi"})"))),
            R"({"text":"Hi"})");
  const struct {
    const char* answer;
    const char* why;
  } cases[] = {
      {R"({"text":"Hi"})", "is invalid JSON"},
      {R"({"text":"{\"n\":","finish_reason":"length"})", "max_tokens"},
      {R"({"text":"","refusal":"I will not."})", "refused: I will not."},
      {R"({"text":"{}"})", "breaks the schema"},
  };
  for (const auto& c : cases) {
    const auto result = validated(c.answer);
    ASSERT_FALSE(result) << c.answer;
    EXPECT_EQ(result.error().code, Code::tool_output_invalid);
    EXPECT_NE(result.error().message.find(c.why), std::string::npos) << result.error().message;
  }
}

}  // namespace
}  // namespace ae::llm
