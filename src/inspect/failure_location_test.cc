// Tests of the reported location of failed jobs and steps.
#include "inspect/failure_location.h"

#include "engine/fixtures/job_fixture_test.h"
#include "inspect/trace.h"
#include "inspect/view.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

Value error_of(JobFixture& job) {
  EXPECT_EQ(job.status(), "failed") << job.log_text();
  return job_view(job.state)["error"];
}

struct Case {
  const char* nodes;
  const char* more;
  const char* summary;
};

AE_TEST("failure/a failed expression is reported with its node, tool and field") {
  const Case cases[] = {
      {"[{'id':'a','kind':'tool','tool':'put','args':{'rows':['x',{'id':'n ${ .input.none }'}]}}]",
       "{}", "node a (tool put): args.rows[1].id: .input.none is null"},
      {"[{'id':'a','kind':'tool','tool':'put','args':{'id':'${ .input.n.x }'}}]", "{}",
       "node a (tool put): args.id: .input.n.x: line 1, column 10: cannot look up `x` in a number"},
      {"[{'id':'a','kind':'tool','tool':'put','when':'${ .input.n.x }'}]", "{}",
       "node a (tool put): when: .input.n.x: line 1, column 10: cannot look up `x` in a number"},
      {"[{'id':'m','kind':'map','over':'${ .input.n }','max_parallel':1,'do':{'tool':'put'}}]",
       "{}", "node m: map: .input.n: the value of `map` must be an array"},
      {"[{'id':'m','kind':'map','over':[null],'max_parallel':1,'do':{'tool':'put','args':{'id':'n "
       "${ "
       ".item }'}}}]",
       "{}", "node m, item 0 (tool put): args.id: .item is null"},
      {"[{'id':'w','kind':'wait','wait':{'type':'signal','key':'k ${ .input.none }'}}]", "{}",
       "node w: wait.key: .input.none is null"},
      {"[{'id':'w','kind':'wait','wait':{'type':'message','channel':'${ .input.n }'}}]", "{}",
       "node w: wait.channel: .input.n: a channel must be a text of 1 to 256 bytes"},
      {"[{'id':'w','kind':'wait','wait':{'type':'timer','for':'${ .input.n }'}}]", "{}",
       "node w: wait.for: .input.n: a timer's `for` must be a text such as \"90s\""},
      {"[{'id':'a','kind':'tool','tool':'typed','args':{'id':'${ .input.n }'}}]",
       "{'tools':{'typed':{'args_schema':{'type':'object','properties':{'id':{'type':'string'}}}}}"
       "}",
       "node a (tool typed): args.id: .input.n: must be a string"},
  };
  for (const Case& one : cases) {
    JobFixture job(one.nodes, {.more = one.more, .input = "{'n':7}"});
    job.claim();
    const Value error = error_of(job);
    EXPECT_EQ(error.text("summary"), one.summary) << job.log_text();
    EXPECT_FALSE(error["field"].is_null()) << one.nodes;
    EXPECT_FALSE(error["expression"].is_null()) << one.nodes;
  }
}

AE_TEST("failure/an error names the members of the input that its expression reads") {
  const struct {
    const char* argument;
    const char* reads;
  } kCases[] = {{"n ${ .input.none }", "['none']"},
                {"${ (.input.b + .input.a) | floor }", "['a','b']"},
                {"${ .input | floor }", "[]"},
                {"${ .steps.a.n | floor }", "null"},
                {"n ${ .input.none } ${ .steps.a.n }", "['none']"}};
  for (const auto& one : kCases) {
    JobFixture job(
        std::string("[{'id':'a','kind':'tool','tool':'put'},{'id':'b','kind':'tool','tool'"
                    ":'put','needs':['a'],'args':{'id':'") +
            one.argument + "'}}]",
        {.input = "{'a':'x','b':'y'}"});
    job.claim().ok("a", "{'n':'text'}");
    EXPECT_EQ(error_of(job)["reads_input"], json(one.reads)) << one.argument;
  }
  JobFixture job("[{'id':'a','kind':'tool','tool':'put','args':{'id':'${ .input.none }'}}]");
  job.claim().answer("a", {.kind = OutcomeKind::failure,
                           .definite = true,
                           .error_code = "request_invalid",
                           .error_message = "http.url: .args.id is null"});
  const Value error = error_of(job);
  EXPECT_EQ(error["reads_input"], json("['none']")) << canonical(error);
  EXPECT_TRUE(error["expression"].is_null());
  EXPECT_EQ(error.text("summary"),
            "node a (tool put): http.url: .args.id is null (args.id is .input.none)");
}

AE_TEST("failure/an error lists the nodes that took effect, without reads") {
  JobFixture job(
      "[{'id':'r','kind':'tool','tool':'get'},{'id':'a','kind':'tool','tool':'put','needs':['r']},"
      "{'id':'b','kind':'tool','tool':'put','needs':['a']}]",
      {.more = "{'tools':{'get':{'effect':'read'}}}"});
  job.claim().ok("r").ok("a").fails("b", "http_404");
  EXPECT_EQ(error_of(job)["committed"], json("['a']"));
}

AE_TEST("failure/an error names the imported results that its expression reads, and no others") {
  JobFixture first(
      "[{'id':'a','kind':'tool','tool':'put'},{'id':'other','kind':'tool','tool':'put'},"
      "{'id':'b','kind':'tool','tool':'put','needs':['a','other'],'args':{'id':'${ .steps.a.n | "
      "floor }'}}]");
  first.claim().ok("a", "{'n':'text'}").ok("other", "{'n':1}");
  EXPECT_EQ(error_of(first)["reads_kept"], json("[]")) << "the results are not imported";
  JobFixture fork(*first.fork(first.seq_of(EventType::node_started, "b")), "job-2");
  fork.claim();
  EXPECT_EQ(error_of(fork)["reads_kept"], json("['a']"));
}

AE_TEST("failure/the output of a job is a field without a node") {
  JobFixture job("[{'id':'a','kind':'tool','tool':'put'}]",
                 {.more = "{'output':{'b':'n ${ .steps.a.none }'}}"});
  job.claim().ok("a", "{}");
  const Value error = error_of(job);
  EXPECT_EQ(error.text("summary"), "output.b: .steps.a.none is null");
  EXPECT_EQ(error.text("field"), "output.b");
  EXPECT_TRUE(error["node_id"].is_null() && error["tool"].is_null());
}

AE_TEST("failure/a failed call is reported with its node, item and tool") {
  JobFixture job("[{'id':'m','kind':'map','over':[1,2],'max_parallel':1,'do':{'tool':'once'}}]");
  job.claim().ok("m/0").fails("m/1", "http_404");
  const Value error = error_of(job);
  EXPECT_EQ(error.text("code"), "http_404");
  EXPECT_EQ(error["item"], Value(1));
  EXPECT_EQ(error.text("tool"), "once");
  EXPECT_TRUE(error["field"].is_null() && error["expression"].is_null());
  EXPECT_TRUE(error.text("summary").starts_with("node m, item 1 (tool once): "))
      << error.text("summary");
}

AE_TEST("failure/a job that ends at its deadline has no failed node") {
  JobFixture job("[{'id':'w','kind':'wait','wait':{'type':'signal'}}]", {.deadline = 1h});
  job.claim().after(2h);
  const Value error = error_of(job);
  EXPECT_TRUE(error["node_id"].is_null());
  EXPECT_EQ(error["summary"], error["message"]);
}

AE_TEST("failure/the trace names field and expression of each failed step") {
  JobFixture job(
      "[{'id':'a','kind':'tool','tool':'put','on_error':'continue','args':{'id':'n ${ .input.x "
      "}'}}]");
  job.claim();
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  const Value trace = trace_view(job.state, job.log);
  const Value& error = trace["nodes"].items()[0]["error"];
  EXPECT_EQ(error.text("field"), "args.id");
  EXPECT_EQ(error.text("expression"), ".input.x");
}

AE_TEST("failure/the trace evaluates the first 16 failed steps again") {
  JobFixture job(
      "[{'id':'m','kind':'map','over':'${ [range(40)] "
      "}','max_parallel':8,'on_item_error':'collect',"
      "'do':{'tool':'put','args':{'id':'n ${ .input.x }'}}}]");
  job.claim();
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  const Value trace = trace_view(job.state, job.log);
  std::size_t located = 0;
  for (const Value& item : trace["nodes"].items()[0]["items"].items()) {
    EXPECT_EQ(item["error"].text("code"), "expression_failed");
    located += item["error"].text("expression") == ".input.x";
  }
  EXPECT_EQ(located, kStepsLocated);
}

AE_TEST("failure/the location of an error is not stored in the log") {
  JobFixture job("[{'id':'a','kind':'tool','tool':'put','args':{'id':'n ${ .input.x }'}}]");
  job.claim();
  const Event& last = job.log.back();
  const Value stored = payload_json(last.body);
  EXPECT_EQ(stored.size(), 3u) << canonical(stored);
  const auto* failed = as<JobFailed>(last);
  ASSERT_NE(failed, nullptr);
  EXPECT_TRUE(failed->error.value.as_string().starts_with("at /id: ")) << canonical(stored);
}

}  // namespace
}  // namespace ae::engine::testing
