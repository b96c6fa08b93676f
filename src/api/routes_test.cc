// Tests of the route table: the OpenAPI document, the roles of each route, and unknown routes.
#include "api/api_fixture_test.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>

#include "json/json.h"
#include "testing/test.h"

namespace ae::api {
namespace {

// The path of a route, with `id` for {id} and `step` for {step}.
Path path_of(const Route& route, std::string_view id, std::string_view step = "s") {
  Path path;
  for (const std::string_view segment : route.segments) {
    path.emplace_back(segment == "{id}" ? id : segment == "{step}" ? step : segment);
  }
  return path;
}

Value read_document() {
  auto document = parse_json(openapi_json(), {.depth_max = 100});
  AE_CHECK(document.has_value(), document.error().message);
  return *std::move(document);
}

// The operation of a route in the document.
const Value& operation_of(const Value& document, const Route& route) {
  std::string method(route.method);
  std::ranges::transform(method, method.begin(), [](char c) { return std::tolower(c); });
  return document["paths"][route.path][method];
}

AE_TEST("openapi/operations and their query parameters match the route table") {
  const Value document = read_document();
  EXPECT_EQ(document.text("openapi"), "3.1.0");
  std::size_t operations = 0;
  for (const auto& [path, item] : document["paths"].members()) {
    const bool is_upgraded = item["get"].find("x-upgrade") != nullptr;  // the listener serves it
    operations +=
        item.size() - (item.find("parameters") != nullptr ? 1 : 0) - (is_upgraded ? 1 : 0);
  }
  EXPECT_EQ(routes().size(), operations);
  for (const Route& route : routes()) {
    const Value& operation = operation_of(document, route);
    EXPECT_EQ(operation.text("operationId"), route.operation);
    EXPECT_TRUE(operation["responses"].find("default")) << route.operation;
    std::string documented, of_route, path;
    for (std::size_t i = 0; i < operation["parameters"].size(); ++i) {
      const Value& parameter = operation["parameters"].items()[i];
      if (parameter.text("in") == "query") documented += fmt::format("{} ", parameter.text("name"));
    }
    for (const QueryParameter& one : route.query) of_route += fmt::format("{} ", one.name);
    EXPECT_EQ(of_route, documented) << route.operation;
    for (const std::string_view segment : route.segments) path += fmt::format("/{}", segment);
    EXPECT_EQ(path.empty() ? "/" : path, route.path);
  }
}

AE_TEST("openapi/the security of each operation lists the roles with access to its route") {
  const Value document = read_document();
  for (const Route& route : routes()) {
    std::vector<Value> roles;
    for (const Role role : roles_with(route.access)) roles.emplace_back(to_text(role));
    const Value wanted =
        route.access == Access::open
            ? Value::array({})
            : Value::array({Value::object({{"key", Value::array(std::move(roles))}})});
    EXPECT_EQ(canonical(operation_of(document, route)["security"]), canonical(wanted))
        << route.operation;
  }
  EXPECT_TRUE(is_public_route("GET", {"api", "health"}));
  EXPECT_FALSE(is_public_route("POST", {"api", "health"}));
  EXPECT_FALSE(is_public_route("GET", {"api", "jobs"}));
}

AE_TEST("openapi/request bodies accept the documented fields and reject others") {
  ApiFixture fixture;
  const Value document = read_document();
  const std::string job = fixture.make(R"({"agent": "asks"})");
  std::size_t bodies = 0;
  for (const Route& route : routes()) {
    const Value& operation = operation_of(document, route);
    const Value& schema = operation["requestBody"]["content"]["application/json"]["schema"];
    // The body of POST /mcp is JSON-RPC (mcp_protocol_test.cc), that of PUT an agent.
    if (route.method != "POST" || route.operation == "mcp") continue;
    const Value& known =
        schema["$ref"].is_string() ? document["components"]["schemas"]["NewJob"] : schema;
    ASSERT_EQ(known["properties"].size(), route.fields.size()) << route.operation;
    ++bodies;
    const Path path = path_of(route, job);
    const ApiResponse other = fixture.post(path, R"({"no such field": 1})");
    expect_problem(other, 400, "input_invalid");
    EXPECT_NE(other.body.text("detail").find("\"no such field\" is unknown"),
              std::string_view::npos)
        << route.operation;
    for (const auto& [field, type] : known["properties"].members()) {
      const ApiResponse response =
          fixture.post(path, canonical(Value::object({{field, Value::object({})}})));
      EXPECT_EQ(response.body.text("detail").find("is unknown"), std::string_view::npos)
          << route.operation << ": " << field << ": " << canonical(response.body);
    }
  }
  EXPECT_GT(bodies, 10u);
}

AE_TEST("openapi/each operation is served and rejects unknown query parameters") {
  ApiFixture fixture;
  const std::string job = fixture.make(R"({"agent": "asks"})");
  fixture.make(R"({"agent":"buys","input":{"n":250}})");
  const Value approval = fixture.get({"api", "approvals"}).body["approvals"].items()[0];
  const ApiResponse key = fixture.post({"api", "keys"}, R"({"role":"viewer"})");
  const Value steps = fixture.get({"api", "jobs", job, "steps"}).body;
  const std::string step(steps["steps"].items()[0].text("step_id"));
  const auto id_of = [&](const Route& route) -> std::string_view {
    if (route.path.starts_with("/api/agents")) return "echo";
    if (route.path.starts_with("/api/approvals")) return approval.text("id");
    return route.path.starts_with("/api/keys") ? key.body.text("id") : std::string_view(job);
  };
  for (const Route& route : routes()) {
    ApiRequest request;
    request.method = route.method;
    request.path = path_of(route, id_of(route), step);
    const ApiResponse response = fixture.send(request);
    EXPECT_TRUE(response.status != 404 && response.status != 405)
        << route.operation << ": " << response.status << canonical(response.body);
    request.query = {{"no such parameter", "1"}};
    const ApiResponse other = fixture.send(request);
    if (route.access == Access::open) {  // a probe may add parameters of its own
      EXPECT_EQ(other.status, 200) << route.operation;
      continue;
    }
    expect_problem(other, 400, "input_invalid");
    EXPECT_NE(other.body.text("detail").find("unknown query parameter"), std::string_view::npos)
        << route.operation;
  }
}

AE_TEST("roles/each route accepts exactly the roles with its access") {
  ApiFixture fixture;
  for (const Route& route : routes()) {
    ApiRequest request;
    request.method = route.method;
    request.path = path_of(route, "{id}");
    std::vector<Role> roles = all_roles();
    roles.push_back(Role::none);
    for (const Role role : roles) {
      request.role = role;
      const ApiResponse response = fixture.send(request);
      const bool refused = response.body.text("code") == "forbidden";
      EXPECT_EQ(refused, !has_access(role, route.access))
          << to_text(role) << " " << route.operation << canonical(response.body);
      if (refused) {
        EXPECT_EQ(response.status, 403);
      }
    }
  }
}

AE_TEST("api/unknown routes, jobs and parameters are errors") {
  ApiFixture fixture;
  expect_problem(fixture.get({"api", "nowhere"}), 404, "not_found");
  const ApiResponse index = fixture.get({});
  EXPECT_EQ(index.status, 200);
  EXPECT_EQ(index.body.text("openapi"), "/openapi.json");
  for (const char* what : {"", "events", "trace", "transcript", "replay", "verify", "steps",
                           "conversation", "timeline", "forks"}) {
    Path path{"api", "jobs", "missing"};
    if (*what) path.emplace_back(what);
    expect_problem(fixture.get(path), 404, "not_found");
    path[2] = "a/b";
    expect_problem(fixture.get(path), 404, "not_found");
  }
  expect_problem(fixture.get({"api", "jobs"}, {{"state", "running"}}), 400, "input_invalid");
  expect_problem(fixture.get({"api", "jobs"}, {{"status", "asleep"}}), 400, "input_invalid");
  expect_problem(fixture.get({"api", "jobs"}, {{"cursor", "missing"}}), 400, "input_invalid");
  expect_problem(fixture.get({"api", "jobs"}, {{"cursor", "j@x"}}), 400, "input_invalid");
  expect_problem(fixture.get({"api", "approvals"}, {{"kind", "call"}}), 400, "input_invalid");
  for (const char* list : {"approvals", "requests"}) {
    const QueryPairs query{{"job", "j"}, {"limit", "1"}};
    expect_problem(fixture.get({"api", list}, query), 400, "input_invalid");
  }
  for (const char* limit : {"-1", "0", "1001", "1e9"}) {
    expect_problem(fixture.get({"api", "jobs"}, {{"limit", limit}}), 400, "input_invalid");
    expect_problem(fixture.get({"api", "jobs"}, {{"limit", limit}, {"stalled", "true"}}), 400,
                   "input_invalid");
    expect_problem(fixture.get({"api", "approvals"}, {{"limit", limit}}), 400, "input_invalid");
    expect_problem(fixture.get({"api", "audit"}, {{"limit", limit}}), 400, "input_invalid");
  }
  ApiRequest put;
  put.method = "PUT";
  put.path = {"api", "agents", "echo"};
  expect_problem(fixture.send(put), 400, "unsupported");
  put.path = {"api", "jobs"};
  const ApiResponse refused = fixture.send(put);
  expect_problem(refused, 405, "method_not_allowed");
  EXPECT_EQ(refused.allow, "GET, HEAD, POST");
  EXPECT_EQ(fixture.get({"api", "health"}).body.text("status"), "ok");
}

}  // namespace
}  // namespace ae::api
