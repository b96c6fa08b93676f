// Tests of roles and of the routes for keys.
#include "api/api_fixture_test.h"

#include <fmt/core.h>

#include "api/authenticator.h"
#include "json/json.h"
#include "testing/test.h"

namespace ae::api {
namespace {

AE_TEST("roles/least privilege: the access of each role, in one table") {
  const auto has = [](Role role) {
    std::string all;
    for (const auto& [access, name] : {std::pair{Access::offer, "offer "},
                                       {Access::view, "view "},
                                       {Access::operate, "operate "},
                                       {Access::answer, "answer "},
                                       {Access::decide, "decide "},
                                       {Access::manage, "manage "}}) {
      if (has_access(role, access)) all += name;
    }
    return all;
  };
  EXPECT_EQ(has(Role::none), "");
  EXPECT_EQ(has(Role::worker), "offer ");
  EXPECT_EQ(has(Role::viewer), "offer view ");
  EXPECT_EQ(has(Role::operator_), "offer view operate answer ");
  EXPECT_EQ(has(Role::approver), "offer view answer decide ");
  EXPECT_EQ(has(Role::admin), "offer view operate answer decide manage ");
  for (const Role role : all_roles()) EXPECT_EQ(role_from_text(to_text(role)), role);
  EXPECT_FALSE(role_from_text("missing"));
  EXPECT_FALSE(role_from_text(""));
}

AE_TEST("roles/an operator cannot answer human waits, and an approver cannot send signals") {
  ApiFixture fixture;
  const auto signal = [&](Role role, const std::string& job, std::string_view body) {
    ApiRequest request;
    request.method = "POST";
    request.path = {"api", "jobs", job, "signal"};
    request.body = body;
    request.role = role;
    request.by = "key:1";
    const ApiResponse response = fixture.send(std::move(request));
    fixture.loop.run_ready();
    return response;
  };
  // A call that needs approval, answered through the key of its wait.
  const std::string buys = fixture.make(R"({"agent": "buys", "input": {"n": 101}})");
  ASSERT_EQ(fixture.status(buys), "waiting");
  const std::string key(
      fixture.get({"api", "jobs", buys}).body["waits"].items()[0].text("correlation_key"));
  ASSERT_TRUE(key.starts_with("approval/"));
  const std::string yes = R"("payload": {"decision": "approve"}})";
  const std::string own = fmt::format(R"({{"correlation_key": "{}", )", key);
  expect_problem(signal(Role::operator_, buys, own + yes), 403, "forbidden");
  expect_problem(signal(Role::operator_, buys, own + R"("wait_type": "human", )" + yes), 403,
                 "forbidden");
  expect_problem(signal(Role::operator_, buys, own + R"("wait_type": "signal", )" + yes), 400,
                 "wait_mismatch");
  EXPECT_EQ(fixture.status(buys), "waiting");
  EXPECT_EQ(signal(Role::approver, buys, own + yes).status, 200);
  EXPECT_EQ(fixture.status(buys), "completed");
  // A signal from a program.
  const std::string job = fixture.make(R"({"agent": "asks"})");
  const std::string go = R"({"correlation_key": "go", "payload": 1})";
  expect_problem(signal(Role::approver, job, go), 400, "wait_mismatch");
  expect_problem(signal(Role::approver, job, R"({"correlation_key": "go", "wait_type": "signal"})"),
                 403, "forbidden");
  EXPECT_EQ(signal(Role::operator_, job, go).status, 200);
  EXPECT_EQ(fixture.status(job), "completed");
  // An early answer must not become the answer of a user when the wait opens.
  const std::string listens = fixture.make(R"({"agent": "listens"})");
  const std::string early =
      R"({"correlation_key": "ok", "buffer": true, "payload": {"decision": "approve"}})";
  EXPECT_EQ(signal(Role::operator_, listens, early).status, 202);
  fixture.post({"api", "jobs", listens, "message"}, R"({"channel": "news", "payload": 1})");
  fixture.loop.run_ready();
  EXPECT_EQ(fixture.status(listens), "waiting") << "the human wait is still open";
  EXPECT_EQ(signal(Role::approver, listens, R"({"correlation_key": "ok", )" + yes).status, 200);
  fixture.loop.run_ready();
  EXPECT_EQ(fixture.status(listens), "completed");
}

AE_TEST("roles/only an admin may send a task graph with plan or retry") {
  ApiFixture fixture;
  const std::string job = fixture.make(R"({"agent": "asks"})");
  ApiRequest request;
  request.method = "POST";
  request.path = {"api", "jobs", job, "plan"};
  request.role = Role::operator_;
  request.body =
      canonical(Value::object({{"task_graph", fixture.file.agents.at("listens").task_graph}}));
  expect_problem(fixture.send(request), 403, "forbidden");
  request.role = Role::admin;
  EXPECT_EQ(fixture.send(request).status, 202);
  request.path = {"api", "jobs", job, "retry"};
  expect_problem(fixture.send(request), 400, "input_invalid");  // it has not failed
  request.role = Role::operator_;
  expect_problem(fixture.send(request), 403, "forbidden");
}

AE_TEST("keys/a key is created, shown once, listed without its secret, and revoked once") {
  ApiFixture fixture;
  const ApiResponse made =
      fixture.post({"api", "keys"}, R"({"role": "viewer", "name": "dash", "expires": "2h"})");
  ASSERT_EQ(made.status, 201) << canonical(made.body);
  const std::string id(made.body.text("id"));
  const auto key = key_from_text(made.body.text("key"));
  ASSERT_TRUE(key);
  EXPECT_EQ(key->id, id);
  EXPECT_EQ(made.location, "/api/keys/" + id);
  const ApiResponse listed = fixture.get({"api", "keys"});
  ASSERT_EQ(listed.body["keys"].size(), 1u);
  const Value& one = listed.body["keys"].items()[0];
  EXPECT_EQ(one.text("created_by"), "ada");
  EXPECT_EQ(one.text("expires_at"), to_text(testing::TestLoop::kStart + std::chrono::hours(2)));
  EXPECT_EQ(one["live"], Value(true));
  const std::string hash = to_hex(hash_of_secret(key->secret));
  EXPECT_EQ(canonical(listed.body).find(key->secret), std::string::npos);
  EXPECT_EQ(canonical(listed.body).find(hash), std::string::npos);
  EXPECT_EQ(canonical(fixture.get({"api", "audit"}).body).find(key->secret), std::string::npos);
  ApiRequest revoke;
  revoke.method = "DELETE";
  revoke.path = {"api", "keys", id};
  revoke.by = "bob";
  const ApiResponse revoked = fixture.send(revoke);
  EXPECT_EQ(revoked.status, 200);
  EXPECT_EQ(revoked.body["live"], Value(false));
  EXPECT_EQ(revoked.body.text("revoked_by"), "bob");
  revoke.by = "eve";
  EXPECT_EQ(canonical(fixture.send(revoke).body), canonical(revoked.body));
  EXPECT_EQ(fixture.get({"api", "audit"}).body["entries"].size(), 2u) << "each is recorded once";
  revoke.path.back() = "missing";
  expect_problem(fixture.send(revoke), 404, "not_found");
  const ApiResponse again = fixture.post({"api", "keys"}, R"({"role": "viewer"})");
  EXPECT_NE(again.body.text("key"), made.body.text("key"));
}

AE_TEST("keys/an invalid request creates no key and no audit entry") {
  ApiFixture fixture;
  for (const char* bad :
       {"{}", R"({"role": "missing"})", R"({"role": "root"})", R"({"role": 7})",
        R"({"role": "viewer", "expires": "soon"})", R"({"role": "viewer", "expires": "0s"})",
        R"({"role": "viewer", "expires": 7})", R"({"role": "viewer", "name": "a\nb"})",
        R"({"role": "viewer", "name": 7})", R"({"role": "viewer", "secret": "mine"})"}) {
    expect_problem(fixture.post({"api", "keys"}, bad), 400, "input_invalid");
  }
  expect_problem(fixture.post({"api", "keys"}, fmt::format(R"({{"role": "viewer", "name": "{}"}})",
                                                           std::string(65, 'n'))),
                 400, "input_invalid");
  EXPECT_EQ(fixture.get({"api", "keys"}).body["keys"].size(), 0u);
  EXPECT_EQ(fixture.get({"api", "audit"}).body["entries"].size(), 0u);
}

}  // namespace
}  // namespace ae::api
