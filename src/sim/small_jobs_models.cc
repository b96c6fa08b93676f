// Small jobs about models: answers, repaired answers, loops with tools, and plans.
#include <vector>

#include "sim/small_job_lists.h"
#include "sim/small_job_requests.h"

namespace ae::sim {

using namespace std::chrono_literals;

namespace {

// A planner whose model answers first with text and then with a plan of two calls.
constexpr std::string_view kPlanner = R"({"schema":1,"nodes":[
         {"id":"planner","kind":"planner","planner":{"tool":"model:echo","model":"echo",
          "prompt":"go on","tools":["put","once","look"],"max_nodes":3,"repair":1,
          "told":"{\"says\":[\"let me see\",\"{\\\"nodes\\\":[{\\\"id\\\":\\\"a\\\",\\\"tool\\\":\\\"put\\\",\\\"args\\\":\\\"{}\\\"},{\\\"id\\\":\\\"b\\\",\\\"tool\\\":\\\"once\\\",\\\"needs\\\":[\\\"a\\\"]}]}\"]}",
          "schema":{"type":"object","required":["nodes"]}}}]})";

}  // namespace

std::vector<SmallJob> model_jobs() {
  return {
      {.name = "a model answers, and its answer is used", .nodes = R"({"schema":1,"nodes":[
         {"id":"m","kind":"llm","tool":"model:echo","args":{"model":"echo","messages":[
          {"role":"user","content":"x is ${ .input.x }"}]}},
         {"id":"a","kind":"tool","tool":"once","needs":["m"],"args":{"m":"${ .steps.m.text }"}}],
         "output":{"m":"${ .steps.m.text }","a":"${ .steps.a.args }"}})"},
      {.name = "a model that is busy, then does not answer, then answers",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"m","kind":"llm","tool":"model:echo","args":{"model":"echo","messages":[
          {"role":"system","content":"[\"busy\",\"silent\",\"ok\"]"},
          {"role":"user","content":"well?"}]}},
         {"id":"a","kind":"tool","tool":"put","needs":["m"],"args":{"m":"${ .steps.m.text }"}}],
         "output":"${ .steps.a.args }"})"},
  };
}

std::vector<SmallJob> loop_jobs() {
  return {
      {.name = "a loop of three turns: one that changes, one that is not granted, one equal to the "
               "first",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"chat","kind":"loop","loop":{"tool":"model:echo","model":"echo","max_turns":5,
          "parallel_tools":2,"tools":["put","look"],"prompt":
          "[[{\"name\":\"put\",\"arguments\":{\"n\":1}}],[{\"name\":\"once\",\"arguments\":{}},{\"name\":\"look\",\"arguments\":{\"n\":2}}],[{\"name\":\"put\",\"arguments\":{\"n\":1}}]]"}},
         {"id":"z","kind":"tool","tool":"once","needs":["chat"],
          "args":{"t":"${ .steps.chat.text }"}}],
         "output":"${ .steps.chat }"})"},
      {.name = "a loop of five turns, with parallel calls and two repeated ones",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"chat","kind":"loop","loop":{"tool":"model:echo","model":"echo","max_turns":5,
          "parallel_tools":3,"tools":["put","once","look"],"prompt":
          "[[{\"name\":\"put\",\"arguments\":{\"n\":1}},{\"name\":\"once\",\"arguments\":{\"n\":2}}],[{\"name\":\"look\",\"arguments\":{}}],[{\"name\":\"once\",\"arguments\":{\"n\":2}},{\"name\":\"put\",\"arguments\":{\"n\":1}}],[{\"name\":\"put\",\"arguments\":{\"n\":3}},{\"name\":\"once\",\"arguments\":{\"n\":4}}]]"}}],
         "output":"${ .steps.chat }"})"},
      {.name = "a loop with parallel calls: one unknown, one failed, one compensated",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"chat","kind":"loop","loop":{"tool":"model:echo","model":"echo","max_turns":5,
          "parallel_tools":3,"tools":["put","once","book"],"prompt":
          "[[{\"name\":\"put\",\"arguments\":{\"fate\":[\"denied\"]}},{\"name\":\"book\",\"arguments\":{\"n\":1}},{\"name\":\"once\",\"arguments\":{\"n\":2}},{\"name\":\"put\",\"arguments\":{\"n\":3}}]]"}},
         {"id":"b","kind":"tool","tool":"put","needs":["chat"],"args":{"fate":["denied"]}}]})"},
      {.name = "a loop whose budget is used up after a turn, and raised",
       .nodes = R"({"schema":1,"budget":{"model_calls":1,"tool_calls":1},"nodes":[
         {"id":"chat","kind":"loop","loop":{"tool":"model:echo","model":"echo","max_turns":5,
          "parallel_tools":2,"tools":["put","look"],"prompt":
          "[[{\"name\":\"put\",\"arguments\":{\"n\":1}}],[{\"name\":\"look\",\"arguments\":{\"n\":2}}]]"}},
         {"id":"z","kind":"tool","tool":"put","needs":["chat"],
          "args":{"t":"${ .steps.chat.text }"}}]})",
       .actions = {{.after = 100ms,
                    .request = requests::raise(R"({"model_calls":100,"tool_calls":100})"),
                    .when = requests::kParked}}},
      {.name = "a loop whose model gets a budget notice, then exceeds the budget",
       .nodes = R"({"schema":1,"budget":{"tool_calls":2,"soft":50},"nodes":[
         {"id":"chat","kind":"loop","loop":{"tool":"model:echo","model":"echo","max_turns":5,
          "parallel_tools":2,"tools":["put","once"],"prompt":
          "[[{\"name\":\"put\",\"arguments\":{\"n\":1}}],[{\"name\":\"put\",\"arguments\":{\"n\":2}},{\"name\":\"once\",\"arguments\":{\"n\":3}}]]"}}],
         "output":{"t":"${ .steps.chat.text }"}})",
       .actions = {{.after = 100ms,
                    .request = requests::raise(R"({"tool_calls":3})"),
                    .when = requests::kParked}}},
  };
}

std::vector<SmallJob> thread_jobs() {
  return {
      {.name = "a thread: a message before its wait, one twice, one after it, and the end",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"chat","kind":"loop","loop":{"tool":"model:echo","model":"echo","max_turns":3,
          "parallel_tools":2,"tools":["put","look"],"thread":true,"prompt":
          "[[{\"name\":\"put\",\"arguments\":{\"n\":1}}],[],[],[{\"name\":\"look\",\"arguments\":{}}],[]]"}}],
         "output":"${ .steps.chat }"})",
       .actions = {{10ms, requests::thread_message("m1")},
                   {10ms, requests::thread_message("m1")},
                   {100ms, requests::thread_message("m2"), requests::kWaiting},
                   {100ms, requests::thread_message("m2")},
                   {100ms, requests::thread_end("end"), requests::kWaiting}}},
      {.name = "a thread that ends during a turn, and undoes nothing",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"chat","kind":"loop","loop":{"tool":"model:echo","model":"echo","max_turns":3,
          "parallel_tools":2,"tools":["book","look"],"thread":true,"prompt":
          "[[{\"name\":\"book\",\"arguments\":{\"n\":1}}]]"}}],
         "output":"${ .steps.chat }"})",
       .actions = {{10ms, requests::thread_message("m1")}, {10ms, requests::thread_end("end")}}},
      {.name = "a thread that is cancelled while it waits",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"chat","kind":"loop","loop":{"tool":"model:echo","model":"echo","max_turns":3,
          "parallel_tools":2,"tools":["book","look"],"thread":true,"prompt":
          "[[{\"name\":\"book\",\"arguments\":{\"n\":1}}]]"}}]})",
       .actions = {{100ms, requests::cancel(), requests::kWaiting}}},
  };
}

std::vector<SmallJob> context_jobs() {
  return {
      {.name = "a loop whose oldest turns are left out", .nodes = R"({"schema":1,"nodes":[
         {"id":"chat","kind":"loop","loop":{"tool":"model:echo","model":"plain","max_turns":4,
          "parallel_tools":2,"tools":["put","book"],"context":{"limit":260,"policy":"truncate"},
          "prompt":
          "[[{\"name\":\"book\",\"arguments\":{\"n\":1}}],[{\"name\":\"put\",\"arguments\":{\"n\":2}}],[{\"name\":\"put\",\"arguments\":{\"n\":3}}]]"}},
         {"id":"b","kind":"tool","tool":"put","needs":["chat"],"args":{"fate":["denied"]}}]})"},
      {.name = "a thread whose oldest exchanges are left out: a summary would not fit",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"chat","kind":"loop","loop":{"tool":"model:echo","model":"plain","max_turns":3,
          "parallel_tools":2,"tools":["put","look"],"thread":true,
          "context":{"limit":200,"policy":"summarize","tool":"model:echo","model":"plain"},
          "prompt":"[[{\"name\":\"put\",\"arguments\":{\"n\":1}}]]"}}],
         "output":"${ .steps.chat }"})",
       .actions = {{10ms, requests::thread_message("m1")},
                   {100ms, requests::thread_message("m2"), requests::kWaiting},
                   {100ms, requests::thread_end("end"), requests::kWaiting}}},
      {.name = "a loop that goes on after a summary of its oldest turns",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"chat","kind":"loop","loop":{"tool":"model:echo","model":"plain","max_turns":8,
          "parallel_tools":2,"tools":["put","book"],
          "context":{"limit":1900,"policy":"summarize","tool":"model:echo","model":"plain"},
          "prompt":
          "[[{\"name\":\"book\",\"arguments\":{\"n\":1,\"pad\":\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"}},{\"name\":\"put\",\"arguments\":{\"n\":2,\"pad\":\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"}}],[{\"name\":\"put\",\"arguments\":{\"n\":3,\"pad\":\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"}},{\"name\":\"put\",\"arguments\":{\"n\":4,\"pad\":\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"}}],[{\"name\":\"put\",\"arguments\":{\"n\":5,\"pad\":\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"}},{\"name\":\"put\",\"arguments\":{\"n\":6,\"pad\":\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"}}],[{\"name\":\"put\",\"arguments\":{\"n\":7,\"pad\":\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"}}]]"}}],
         "output":"${ .steps.chat }"})"},
  };
}

std::vector<SmallJob> repair_jobs() {
  return {
      {.name = "a model's invalid answer is repaired", .nodes = R"({"schema":1,"nodes":[
         {"id":"m","kind":"llm","tool":"model:echo","repair":1,"args":{"model":"echo","messages":[
          {"role":"system","content":"{\"says\":[\"let me see\",\"{\\\"n\\\":1}\"]}"},
          {"role":"user","content":"how many?"}],"schema":{"type":"object","required":["n"]}}},
         {"id":"a","kind":"tool","tool":"once","needs":["m"],"args":{"n":"${ .steps.m.json.n }"}}],
         "output":"${ .steps.a.args }"})"},
      {.name = "a model's answer is invalid twice, and the job continues without it",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"m","kind":"llm","tool":"model:echo","repair":1,"on_error":"continue",
          "args":{"model":"echo","messages":[
          {"role":"system","content":"{\"says\":[\"let me see\"]}"},
          {"role":"user","content":"how many?"}],"schema":{"type":"object","required":["n"]}}},
         {"id":"a","kind":"tool","tool":"put","needs":["m"],
          "args":{"c":"${ .steps.m.error.code }"}}]})"},
      {.name = "a model plans the job, at the second attempt", .nodes = kPlanner},
  };
}

}  // namespace ae::sim
