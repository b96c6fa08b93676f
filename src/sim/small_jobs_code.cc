// Small jobs with code: its functions, scopes, races and failures (code_program.cc).
#include <string_view>
#include <vector>

#include "sim/small_job_lists.h"
#include "sim/small_job_requests.h"

namespace ae::sim {

using namespace std::chrono_literals;

std::vector<SmallJob> code_jobs() {
  return {
      {.name = "code: functions of each class, and a tool", .nodes = R"({"schema":1,"nodes":[
         {"id":"code","kind":"code","code":{"agent":"calls","language":"cpp",
          "tools":["put","run:at_most_once","run:idempotent","run:read"]}}]})"},
      {.name = "code: calls at once, a scope, values",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"code","kind":"code","code":{"agent":"scopes","language":"cpp",
          "tools":["look","once","run:at_most_once","run:idempotent","run:read"]}}]})",
       .races = true},
      {.name = "code: a function is first, a wait is not needed",
       .nodes = R"({"schema":1,"nodes":[
         {"id":"code","kind":"code","code":{"agent":"races","language":"cpp",
          "tools":["put","run:idempotent","run:read"]}}]})",
       .races = true},
      {.name = "code: a failure ends it, and a call is undone", .nodes = R"({"schema":1,"nodes":[
         {"id":"code","kind":"code","code":{"agent":"undoes","language":"cpp",
          "tools":["book","look","run:idempotent","run:read"]}}]})"},
  };
}

}  // namespace ae::sim
