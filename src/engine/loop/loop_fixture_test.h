// loop_fixture: a loop for tests: `chat_node`, whose model and tools are answered by hand. "chat/1"
// is its second turn, "chat/1/0" the first call that this turn's answer requested.
//
//   JobFixture job = loop_job();
//   job.claim().ok("chat/0", tool_calls_answer({{"a", "look"}})).ok("chat/0/0", "1");
//   job.ok("chat/1", text_answer("Done"));
//
// For tests only. Threads: one owner.
#pragma once

#include <fmt/core.h>

#include <initializer_list>
#include <string>
#include <string_view>

#include "engine/fixtures/dropped_steps_test.h"
#include "engine/fixtures/job_fixture_test.h"
#include "engine/loop/loop.h"
#include "inspect/verify.h"
#include "testing/test.h"

namespace ae::engine::testing {

inline constexpr std::string_view kTools =
    "{'tools': {'model:main': {'effect': 'read', 'provider': 'openai',"
    "  'retry': {'max_attempts': 3, 'retry_on': ['timeout', '5xx']}},"
    " 'refund': {'effect': 'idempotent', 'approval': 'required'},"
    " 'book': {'effect': 'idempotent', 'compensate': {'tool': 'put', 'args': {'of': '${ .result "
    "}'}}},"
    " 'exact': {'effect': 'read', 'description': 'Exactly so', 'args_schema':"
    "   {'type': 'object', 'required': ['n'], 'properties': {'n': {'type': 'integer'}}}}}}";

inline std::string chat_node(std::string_view more = "") {
  return "[{'id': 'chat', 'kind': 'loop', 'loop': {'tool': 'model:main', 'model': 'small',"
         " 'system': 'Be kind', 'prompt': '${ .input.message }',"
         " 'tools': ['look', 'put', 'pay', 'risk', 'refund', 'book', 'exact'],"
         " 'parallel_tools': 2" +
         std::string(more.find("max_turns") == more.npos ? ", 'max_turns': 5" : "") +
         std::string(more) + "}}]";
}

inline JobFixture loop_job(std::string_view more = "", JobFixtureOptions setup = {}) {
  if (setup.more == "{}") setup.more = kTools;
  if (setup.input == "{}") setup.input = "{'message': 'Hello'}";
  return JobFixture(chat_node(more), setup);
}

inline std::string text_answer(std::string_view text) {
  return "{'text': '" + std::string(text) +
         "', 'finish_reason': 'stop', 'usage':"
         " {'input_tokens': 5, 'output_tokens': 2}}";
}

struct ToolCall {
  std::string_view id, name, arguments = "{}";
};
inline std::string tool_calls_answer(std::initializer_list<ToolCall> calls_wanted) {
  std::string calls;
  for (const ToolCall& call : calls_wanted) {
    calls += fmt::format("{}{{'id': '{}', 'name': '{}', 'arguments': {}}}",
                         calls.empty() ? "" : ", ", call.id, call.name, call.arguments);
  }
  return fmt::format("{{'text': '', 'finish_reason': 'tool_calls', 'tool_calls': [{}]}}", calls);
}

inline Value request(const JobFixture& job, std::string_view turn) {
  auto request = sent_request(job.state, job.step(turn));
  AE_CHECK(request.has_value(), request ? "" : request.error().message);
  return *request;
}
inline Value last_message(const JobFixture& job, std::string_view turn, std::size_t back = 1) {
  const Value messages = request(job, turn)["messages"];
  return messages.items()[messages.size() - back];
}

inline void expect_verified(const JobFixture& job) {
  const Verification proof =
      verify({.job = job.state.job, .events = job.log, .last_seq = {}, .head = {}},
             uncached_plan_source());
  EXPECT_TRUE(proof.replay.ok) << proof.replay.detail << "\n" << job.log_text();
  EXPECT_TRUE(proof.state_machine.ok) << proof.state_machine.detail;
  EXPECT_TRUE(proof.ledger.ok) << proof.ledger.detail;
  EXPECT_TRUE(proof.execution_hash.ok) << proof.execution_hash.detail;
  expect_same_views(job.state.job, job.log, uncached_plan_source());
}

}  // namespace ae::engine::testing
