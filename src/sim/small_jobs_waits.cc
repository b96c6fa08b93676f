// Small jobs about waits: timers, signals, messages, and what users answer, cancel or pause.
#include <vector>

#include "sim/small_job_lists.h"
#include "sim/small_job_requests.h"

namespace ae::sim {

using namespace std::chrono_literals;

std::vector<SmallJob> wait_jobs() {
  return {
      {.name = "a timer, then a signal",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"t","kind":"wait","wait":{"type":"timer","for":"2s"}},
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"go","expires":"2h"},"needs":["t"]},
         {"id":"a","kind":"tool","tool":"put","needs":["s"],"args":{"s":"${ .steps.s }"}}]})",
       .actions = {{1s, requests::signal("go")}}},
      {.name = "a signal while another branch works",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"s","kind":"wait","wait":{"type":"webhook","key":"go"}},
         {"id":"a","kind":"tool","tool":"put","args":{"fate":["late"]}},
         {"id":"b","kind":"tool","tool":"once","needs":["s","a"],"args":{}}]})",
       .actions = {{500ms, requests::signal("go")}}},
      {.name = "waits that expire: one continues, one fails the job",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"k1","expires":"2s",
          "on_expire":"continue"}},
         {"id":"a","kind":"tool","tool":"put","needs":["s"],"args":{}},
         {"id":"u","kind":"wait","wait":{"type":"signal","key":"k2","expires":"1s"},
          "needs":["a"]}]})"},
      {.name = "cancelled while a call is in flight",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"once","args":{"fate":["late"]}},
         {"id":"b","kind":"tool","tool":"put","needs":["a"],"args":{}}]})",
       .actions = {{1s, requests::cancel()}},
       .may_end = {"completed"}},  // a crash delays the cancel
      {.name = "cancelled while it waits",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"put","args":{}},
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"k"},"needs":["a"]}]})",
       .actions = {{3s, requests::cancel()}}},
      {.name = "a deadline while it waits", .nodes = R"({"schema":1,"deadline":"4s","nodes":[
         {"id":"a","kind":"tool","tool":"put","args":{}},
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"k"},"needs":["a"]}]})"},
  };
}

std::vector<SmallJob> user_jobs() {
  return {
      {.name = "a call that a user approves, and one that needs no approval",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"m","kind":"map","over":"${ [1,2] }","max_parallel":2,
          "do":{"tool":"vote","args":{"i":"${ .index }"}}}]})",
       .answer = "approve"},
      {.name = "a call that a user rejects, and the job continues",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"gift","on_error":"continue","args":{"n":1}},
         {"id":"b","kind":"tool","tool":"put","needs":["a"],"args":{"a":"${ .steps.a }"}}]})",
       .answer = "reject"},
      {.name = "an approval that expires", .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"vote","on_error":"continue","args":{"n":1}},
         {"id":"b","kind":"tool","tool":"put","needs":["a"],"args":{"a":"${ .steps.a }"}}]})"},
      {.name = "an approved call is retried under its approval",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"gift","args":{"fate":["refused","silent","ok"]}}]})",
       .answer = "approve"},
      {.name = "users approve, reject, and do not answer",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"y","kind":"wait","wait":{"type":"human","key":"y"}},
         {"id":"n","kind":"wait","wait":{"type":"human","key":"n","on_reject":"continue"}},
         {"id":"x","kind":"wait","wait":{"type":"human","key":"x","expires":"2s",
          "on_expire":"continue"}},
         {"id":"a","kind":"tool","tool":"put","needs":["y","n","x"],
          "args":{"y":"${ .steps.y.decision }","n":"${ .steps.n.decision }"}},
         {"id":"z","kind":"wait","wait":{"type":"human","key":"z"},"needs":["a"]}]})",
       .actions = {{200ms, requests::decision_signal("y", "approve")},
                   {100ms, requests::decision_signal("n", "reject")},
                   {3s, requests::decision_signal("z", "reject")}}},
      {.name = "messages before and after their waits, one of them twice",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"t","kind":"wait","wait":{"type":"timer","for":"1s"}},
         {"id":"p","kind":"wait","wait":{"type":"message","channel":"news"},"needs":["t"]},
         {"id":"q","kind":"wait","wait":{"type":"message","channel":"news"},"needs":["p"]}],
         "output":["${ .steps.p.message }","${ .steps.q.message }"]})",
       .actions = {{100ms, requests::message("m1")},
                   {100ms, requests::message("m1")},
                   {1500ms, requests::message("m2")}}},
      {.name = "a signal that comes before its wait",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"t","kind":"wait","wait":{"type":"timer","for":"2s"}},
         {"id":"s","kind":"wait","wait":{"type":"signal","key":"go"},"needs":["t"]},
         {"id":"a","kind":"tool","tool":"put","needs":["s"],"args":{"s":"${ .steps.s }"}}]})",
       .actions = {{100ms, requests::buffered_signal("go")}}},
      {.name = "paused while a call is in flight",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"once","args":{"fate":["refused","ok"]}}]})",
       .actions = {{10ms, requests::pause("p")}, {2s, requests::resume("r")}}},
      {.name = "paused while it waits",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"t","kind":"wait","wait":{"type":"timer","for":"2s"}},
         {"id":"a","kind":"tool","tool":"put","needs":["t"],"args":{}}]})",
       .actions = {{1s, requests::pause("p")}, {3s, requests::resume("r")}}},
  };
}

std::vector<SmallJob> question_jobs() {
  return {
      {.name = "a tool asks a user and continues with the answer",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"quiz","args":{"n":1}},
         {"id":"b","kind":"tool","tool":"poll","needs":["a"],"args":{"a":"${ .steps.a.said }"}}],
         "output":{"a":"${ .steps.a.said }","b":"${ .steps.b.said }"}})",
       .answer = "approve"},
      {.name = "a tool asks a user who declines, and another one is retried",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"a","kind":"tool","tool":"poll","on_error":"continue","args":{"fate":["refused","ok"]}},
         {"id":"b","kind":"tool","tool":"quiz","needs":["a"],"on_error":"continue","args":{}}]})",
       .answer = "reject"},
  };
}

}  // namespace ae::sim
