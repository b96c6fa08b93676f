// Tests of the lists of approvals and requests, and of answers to approvals.
#include "api/api_fixture_test.h"

#include <fmt/core.h>

#include "json/json.h"
#include "testing/test.h"

namespace ae::api {
namespace {

AE_TEST("api/approvals are listed over all jobs, in pages, and answered by id") {
  ApiFixture fixture;
  fixture.make(R"({"agent":"asks","id":"j0"})");
  const auto call = fixture.make(R"({"agent":"buys","id":"j1","input":{"n":250}})");
  fixture.make(R"({"agent":"buys","id":"j2","input":{"n":1}})");
  const auto no = fixture.make(R"({"agent":"buys","id":"j3","input":{"n":500}})");
  EXPECT_EQ(fixture.status("j2"), "completed") << "a small amount needs no approval";
  const Value all = fixture.get({"api", "approvals"}).body;
  ASSERT_EQ(all["approvals"].size(), 2u) << canonical(all);
  EXPECT_TRUE(all["next_cursor"].is_null());
  for (const Value& approval : all["approvals"].items()) {
    EXPECT_EQ(approval["kind"], "call");
    EXPECT_EQ(approval["tool"], "buy");
    EXPECT_EQ(approval["arguments_hash"].as_string().size(), 64u);
  }
  std::vector<std::string> ids;
  QueryPairs query{{"limit", "1"}};
  for (int page = 0; page < 10; ++page) {
    const Value one = fixture.get({"api", "approvals"}, query).body;
    for (const Value& approval : one["approvals"].items()) ids.emplace_back(approval.text("id"));
    if (one["next_cursor"].is_null()) break;
    query = {{"limit", "1"}, {"cursor", std::string(one.text("next_cursor"))}};
  }
  ASSERT_EQ(ids.size(), 2u);
  EXPECT_TRUE(ids[0].starts_with("j3.") && ids[1].starts_with("j1.")) << ids[0];
  expect_problem(fixture.get({"api", "approvals"}, {{"cursor", "x"}}), 400, "input_invalid");

  const auto response =
      fixture.post({"api", "approvals", ids[1]}, R"({"decision":"approve","note":"ok"})");
  EXPECT_EQ(response.status, 200) << canonical(response.body);
  EXPECT_EQ(response.body["delivered"], Value(true));
  fixture.loop.run_ready();
  EXPECT_EQ(fixture.status(call), "completed");
  const auto again = fixture.post({"api", "approvals", ids[1]}, R"({"decision":"reject"})");
  EXPECT_EQ(again.status, 200);
  EXPECT_EQ(again.body["outcome"], "approved");
  EXPECT_EQ(again.body["applied"], Value(false));
  fixture.post({"api", "approvals", ids[0]}, R"({"decision":"reject"})");
  fixture.loop.run_ready();
  EXPECT_EQ(fixture.get({"api", "jobs", no}).body["error"]["code"], "rejected");
  EXPECT_EQ(fixture.get({"api", "approvals"}).body["approvals"].size(), 0u);

  // The error names what is missing: the job, or the request in an existing job.
  const auto detail = [&](const std::string& id) {
    return std::string(
        fixture.post({"api", "approvals", id}, R"({"decision":"approve"})").body.text("detail"));
  };
  EXPECT_EQ(detail("missing.ffffffffffffffff").find("there is no job missing"), 0u);
  EXPECT_EQ(detail(call + ".ffffffffffffffff").find("there is no job"), std::string::npos);
  EXPECT_EQ(detail(no + ".ffffffffffffffff").find("there is no job"), std::string::npos);
  for (const char* id : {"missing", "j1.0123456789abcdef", "j1.", "missing.0123456789abcdef"}) {
    expect_problem(fixture.post({"api", "approvals", id}, R"({"decision":"approve"})"), 404,
                   "not_found");
  }
  expect_problem(fixture.post({"api", "approvals", ids[0]}, R"({"decision":"perhaps"})"), 400,
                 "input_invalid");
}

AE_TEST("api/a call is approved with edited arguments; answers to the earlier ones fail") {
  ApiFixture fixture;
  const auto job = fixture.make(R"({"agent":"buys","id":"j1","input":{"n":250}})");
  const Value approval = fixture.get({"api", "approvals"}).body["approvals"].items()[0];
  EXPECT_EQ(approval["editable"], Value(true));
  EXPECT_NE(approval.find("sends"), nullptr);
  EXPECT_NE(approval.find("reason"), nullptr);
  EXPECT_NE(approval.find("labels"), nullptr);
  const std::string id(approval.text("id"));
  const auto answer = [&](const char* body) {
    return fixture.post({"api", "approvals", id}, body);
  };
  expect_problem(answer(R"({"decision":"approve","arguments":[1]})"), 400, "input_invalid");
  expect_problem(answer(R"({"decision":"reject","arguments":{"n":1}})"), 400, "input_invalid");
  const std::string signal = R"({"correlation_key":")" +
                             std::string(approval.text("correlation_key")) +
                             R"(","payload":{"decision":"approve","arguments":{"n":1}}})";
  expect_problem(fixture.post({"api", "jobs", job, "signal"}, signal), 400, "input_invalid");
  const auto response = answer(R"({"decision":"approve","arguments":{"n":120},"note":"less"})");
  EXPECT_EQ(response.status, 200) << canonical(response.body);
  EXPECT_EQ(response.body["outcome"], "edited");
  fixture.loop.run_ready();
  EXPECT_EQ(fixture.status(job), "completed");
  EXPECT_EQ(canonical(fixture.get({"api", "jobs", job}).body["result"]), R"({"n":120})");
  expect_problem(answer(R"({"decision":"approve"})"), 409, "approval_edited");
  const auto late = answer(R"({"decision":"reject"})");
  expect_problem(late, 409, "approval_edited");
  EXPECT_NE(late.body.text("detail").find("edited by ada at "), std::string::npos)
      << late.body.text("detail");
  const auto again = answer(R"({"decision":"approve","arguments":{"n":120},"note":"less"})");
  EXPECT_EQ(again.status, 200);
  EXPECT_EQ(again.body["duplicate"], Value(true));
}

AE_TEST("api/an approval is reported as not applied if the tool has changed since the request") {
  ApiFixture fixture;
  const auto job = fixture.make(R"({"agent":"buys","input":{"n":250}})");
  const std::string first(
      fixture.get({"api", "approvals"}).body["approvals"].items()[0].text("id"));
  fixture.tool_registry.find("buy")->version = "ffffffffffffffff";
  const auto response = fixture.post({"api", "approvals", first}, R"({"decision":"approve"})");
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(response.body["delivered"], Value(true));
  EXPECT_EQ(response.body["applied"], Value(false)) << canonical(response.body);
  EXPECT_NE(response.body.text("reason").find("\"buy\" has changed"), std::string_view::npos)
      << canonical(response.body);
  fixture.loop.run_ready();
  ASSERT_EQ(fixture.status(job), "waiting");
  const Value list = fixture.get({"api", "approvals"}).body["approvals"];
  ASSERT_EQ(list.size(), 1u);
  const std::string second(list.items()[0].text("id"));
  EXPECT_NE(second, first);
  const auto good = fixture.post({"api", "approvals", second}, R"({"decision":"approve"})");
  EXPECT_EQ(good.body.find("applied"), nullptr) << canonical(good.body);
  fixture.loop.run_ready();
  EXPECT_EQ(fixture.status(job), "completed");
  // A rejection is accepted whatever the current version of the tool.
  fixture.make(R"({"agent":"buys","input":{"n":300}})");
  const std::string third(
      fixture.get({"api", "approvals"}).body["approvals"].items()[0].text("id"));
  fixture.tool_registry.find("buy")->version = "0123456789abcdef";
  const auto no = fixture.post({"api", "approvals", third}, R"({"decision":"reject"})");
  EXPECT_EQ(no.body["outcome"], "rejected");
  EXPECT_EQ(no.body.find("applied"), nullptr);
}

AE_TEST_SLOW("api/lists of requests read only the logs of jobs that may have one") {
  ApiFixture fixture;
  fixture.make(R"({"agent":"buys","id":"asked","input":{"n":250}})");
  fixture.make(R"({"agent":"doubts","id":"doubted"})");
  for (std::size_t i = 0; i < kLogsMax; ++i) {
    fixture.make(fmt::format(R"({{"agent":"asks","id":"j{}"}})", i));
  }
  const auto pages = [&](const Path& path, QueryPairs query, std::string_view list) {
    std::vector<std::size_t> sizes;
    for (;;) {
      const Value page = fixture.get(path, query).body;
      sizes.push_back(page[list].size());
      if (page["next_cursor"].is_null()) return sizes;
      std::erase_if(query, [](const auto& pair) { return pair.first == "cursor"; });
      query.emplace_back("cursor", page.text("next_cursor"));
    }
  };
  const std::vector<std::size_t> one_page{1};
  EXPECT_EQ(pages({"api", "approvals"}, {}, "approvals"), one_page);
  EXPECT_EQ(pages({"api", "jobs"}, {{"in_doubt", "true"}}, "jobs"), one_page);
  EXPECT_EQ(pages({"api", "requests"}, {}, "requests"), std::vector<std::size_t>{2});
  EXPECT_EQ(pages({"api", "jobs"}, {{"stalled", "true"}}, "jobs"), std::vector<std::size_t>{1})
      << "jobs whose row suffices are not read";
}

AE_TEST("api/requests of all kinds have one shape") {
  ApiFixture fixture;
  fixture.make(R"({"agent":"buys","id":"asked","input":{"n":250}})");
  fixture.make(R"({"agent":"doubts","id":"doubted"})");
  const auto requests = [&](QueryPairs query) {
    return fixture.get({"api", "requests"}, std::move(query)).body["requests"];
  };
  const Value all = requests({});
  ASSERT_EQ(all.size(), 2u) << canonical(all);
  const Value& unknown = all.items()[0];
  const Value& call = all.items()[1];
  EXPECT_EQ(unknown.text("kind"), "unknown_outcome");
  EXPECT_EQ(unknown.text("job_id"), "doubted");
  EXPECT_EQ(unknown["commands"].size(), 3u) << "happened, not_happened, fail";
  EXPECT_EQ(unknown["detail"]["idempotency_key"].as_string().substr(0, 16),
            unknown.text("id").substr(std::string_view("doubted.").size()));
  EXPECT_EQ(call.text("kind"), "call");
  EXPECT_EQ(call.text("agent"), "buys");
  EXPECT_EQ(call["detail"]["arguments"]["n"], Value(250));
  std::vector<std::string> names[2];
  for (const int i : {0, 1}) {
    for (const auto& [name, value] : all.items()[static_cast<std::size_t>(i)].members())
      names[i].push_back(name);
  }
  EXPECT_EQ(names[0], names[1]);
  EXPECT_EQ(requests({{"kind", "call"}}).size(), 1u);
  EXPECT_EQ(requests({{"job", "doubted"}}).size(), 1u);
  EXPECT_EQ(requests({{"job", "doubted"}, {"kind", "budget"}}).size(), 0u);
  expect_problem(fixture.get({"api", "requests"}, {{"kind", "other"}}), 400, "input_invalid");

  EXPECT_EQ(
      fixture.post({"api", "approvals", std::string(call.text("id"))}, R"({"decision":"approve"})")
          .status,
      200);
  EXPECT_EQ(requests({{"kind", "call"}}).size(), 0u) << "it is answered";
}

AE_TEST("api/one request is read by its id, with schemas and what its call sends") {
  ApiFixture fixture;
  std::vector<std::string> external_keys;
  ApiOptions options = fixture.api_options(true);
  options.preview = [&](const PreviewedCall& call) -> Result<Value> {
    external_keys.emplace_back(call.external_key.text.view());
    return Value::object({{"tool", call.tool}, {"arguments", call.arguments}});
  };
  fixture.api.emplace(fixture.loop, fixture.steady, fixture.store, *fixture.runtime,
                      std::move(options));
  fixture.make(R"({"agent":"buys","id":"asked","input":{"n":250}})");
  fixture.make(R"({"agent":"strict","id":"doubted"})");
  fixture.make(R"({"agent":"thrifty","id":"spent"})");
  const Value all = fixture.get({"api", "requests"}).body["requests"];
  ASSERT_EQ(all.size(), 3u) << canonical(all);
  for (const Value& listed : all.items()) {
    const std::string id(listed.text("id"));
    const ApiResponse one = fixture.get({"api", "approvals", id});
    ASSERT_EQ(one.status, 200) << canonical(one.body);
    for (const auto& [name, value] : listed.members()) EXPECT_EQ(one.body[name], value) << name;
  }
  const auto read = [&](const Value& listed) {
    return fixture.get({"api", "approvals", std::string(listed.text("id"))}).body;
  };
  EXPECT_EQ(all.items()[0].text("id"), "spent.budget");
  EXPECT_EQ(read(all.items()[0])["sends"], Value());
  external_keys.clear();
  const Value unknown = read(all.items()[1]);
  EXPECT_EQ(unknown["result_schema"]["required"].size(), 1u) << canonical(unknown);
  EXPECT_EQ(unknown["sends"].text("tool"), "strict");
  ASSERT_EQ(external_keys.size(), 1u);
  EXPECT_EQ(unknown["detail"].text("external_key"), external_keys[0]) << "as it was sent";
  const Value call = read(all.items()[2]);
  EXPECT_EQ(call["sends"]["arguments"]["n"], Value(250));
  EXPECT_EQ(call["sends"], call["detail"]["sends"]);

  const std::string id(call.text("id"));
  fixture.post({"api", "approvals", id}, R"({"decision":"approve"})");
  for (const std::string& missing :
       {id, std::string("asked.ffffffffffffffff"), std::string("missing.budget"), std::string("x"),
        std::string("asked.")}) {
    expect_problem(fixture.get({"api", "approvals", missing}), 404, "not_found");
  }
}

AE_TEST("api/a preview of other arguments checks them as an approval does, and records nothing") {
  ApiFixture fixture;
  const auto job = fixture.make(R"({"agent":"buys","input":{"n":250}})");
  const Value approval = fixture.get({"api", "approvals"}).body["approvals"].items()[0];
  const std::string id(approval.text("id"));
  const Value before = fixture.get({"api", "jobs", job}).body["seq"];
  const auto preview = [&](const char* body) {
    return fixture.post({"api", "approvals", id, "preview"}, body);
  };
  const ApiResponse good = preview(R"({"arguments":{"n":120}})");
  ASSERT_EQ(good.status, 200) << canonical(good.body);
  EXPECT_EQ(good.body.text("verdict"), "require_approval");
  EXPECT_EQ(good.body["faults"].size(), 0u);
  const Value same = preview(R"({"arguments":{"n":250}})").body;
  EXPECT_EQ(same["arguments_hash"], approval["arguments_hash"]);
  EXPECT_NE(good.body["arguments_hash"], approval["arguments_hash"]);
  const Value wrong = preview(R"({"arguments":[1]})").body;
  ASSERT_EQ(wrong["faults"].size(), 1u) << canonical(wrong);
  EXPECT_EQ(wrong["faults"].items()[0].text("code"), "input_invalid");
  EXPECT_EQ(wrong["arguments_hash"], Value());
  expect_problem(preview("{}"), 400, "input_invalid");
  expect_problem(fixture.post({"api", "approvals", "x.y", "preview"}, R"({"arguments":{}})"), 404,
                 "not_found");
  fixture.make(R"({"agent":"doubts","id":"doubted"})");
  const Value doubt = fixture.get({"api", "requests"}, {{"job", "doubted"}}).body["requests"];
  expect_problem(
      fixture.post({"api", "approvals", std::string(doubt.items()[0].text("id")), "preview"},
                   R"({"arguments":{}})"),
      400, "input_invalid");
  EXPECT_EQ(fixture.get({"api", "jobs", job}).body["seq"], before);
  const Value edited =
      fixture.post({"api", "approvals", id}, R"({"decision":"approve","arguments":{"n":120}})")
          .body;
  EXPECT_EQ(edited.text("outcome"), "edited");
}

AE_TEST("api/a job has its requests as they are listed") {
  ApiFixture fixture;
  for (const char* agent : {"buys", "doubts", "thrifty"}) {
    const std::string job =
        fixture.make(fmt::format(R"({{"agent":"{}","input":{{"n":250}}}})", agent));
    const Value shown = fixture.get({"api", "jobs", job}).body["requests"];
    const Value listed = fixture.get({"api", "requests"}, {{"job", job}}).body["requests"];
    ASSERT_EQ(shown.size(), 1u) << canonical(shown);
    ASSERT_EQ(listed.size(), 1u) << canonical(listed);
    for (const auto& [name, value] : shown.items()[0].members()) {
      if (name == "detail") continue;
      EXPECT_EQ(value, listed.items()[0][name]) << name;
    }
    for (const auto& [name, value] : shown.items()[0]["detail"].members()) {
      EXPECT_EQ(value, listed.items()[0]["detail"][name]) << name;
    }
  }
}

AE_TEST("api/an unknown outcome is never listed as an approval") {
  ApiFixture fixture;
  fixture.make(R"({"agent":"doubts"})");
  EXPECT_EQ(fixture.get({"api", "approvals"}).body["approvals"].size(), 0u);
}

}  // namespace
}  // namespace ae::api
