// MCP resources: jobs, aetheris://jobs/{id} and its parts.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <utility>

#include "api/mcp.h"
#include "api/mcp_call.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::api {
namespace {

constexpr std::string_view kJobs = "aetheris://jobs/";
constexpr std::string_view kJson = "application/json";

struct Part {
  std::string_view name, what;  // "" = the job itself
};
constexpr auto kParts =
    std::to_array<Part>({{"", "A job: status, result or error, open waits"},
                         {"trace", "The steps of a job with the outcome of each call"},
                         {"events", "A job's log; ?after=SEQ continues after an event"}});

struct Wanted {
  std::string job;
  std::string part;
  QueryPairs query;
};

// nullopt: there is no such resource.
std::optional<Wanted> wanted(std::string_view uri) {
  if (!uri.starts_with(kJobs)) return std::nullopt;
  uri.remove_prefix(kJobs.size());
  Wanted found;
  if (const std::size_t at = uri.find('?'); at != uri.npos) {
    constexpr std::string_view kAfter = "after=";
    const std::string_view query = uri.substr(at + 1);
    if (!query.starts_with(kAfter)) return std::nullopt;
    found.query.emplace_back("after", query.substr(kAfter.size()));
    uri = uri.substr(0, at);
  }
  const std::size_t slash = uri.find('/');
  const auto job = job_of(Value(uri.substr(0, slash)));
  if (!job) return std::nullopt;
  found.job = *job;
  if (slash != uri.npos) found.part = uri.substr(slash + 1);
  const bool known =
      std::ranges::find(kParts, std::string_view(found.part), &Part::name) != kParts.end();
  const bool named = known && (slash == uri.npos) == found.part.empty();
  if (!named || (!found.query.empty() && found.part != "events")) return std::nullopt;
  return found;
}

// The result must not be cached.
Value with_age(const Value& result, bool modern) {
  return modern ? result.with("cacheScope", "private").with("ttlMs", 0) : result;
}

}  // namespace

void Mcp::list_resources(CallPtr call) {
  QueryPairs query{{"limit", std::to_string(kMcpPage)}};
  const Value& cursor = call->params()["cursor"];
  if (!cursor.is_null() && !cursor.is_string()) {
    return call->refuse_params("\"cursor\" must be one that a response returned");
  }
  if (cursor.is_string()) query.emplace_back("cursor", cursor.as_string());
  call_route(call, "GET", {"api", "jobs"}, std::move(query), {},
             [this, call](const ApiResponse& response) {
               if (response.status != 200) return call->refuse(response);
               std::vector<Value> all;
               for (const Value& row : items_of(response.body["jobs"])) {
                 const std::string id(row.text("id"));
                 const std::string what =
                     fmt::format("A job of {}, {}, made {}", row.text(field::agent),
                                 row.text("status"), row.text("created_at"));
                 all.push_back(Value::object({{"description", what},
                                              {"mimeType", kJson},
                                              {"name", id},
                                              {"uri", fmt::format("{}{}", kJobs, id)}}));
               }
               Value result = Value::object({{"resources", Value::array(std::move(all))}});
               if (const Value& next = response.body["next_cursor"]; next.is_string()) {
                 result = result.with("nextCursor", next);
               }
               finish(call, with_age(result, call->modern()));
             });
}

void Mcp::list_templates(CallPtr call) {
  std::vector<Value> all;
  for (const Part& part : kParts) {
    const bool whole = part.name.empty();
    const char* const query = part.name == "events" ? "{?after}" : "";
    std::string uri = fmt::format("{}{{id}}{}{}{}", kJobs, whole ? "" : "/", part.name, query);
    all.push_back(Value::object({{"description", part.what},
                                 {"mimeType", kJson},
                                 {"name", whole ? "job" : part.name},
                                 {"uriTemplate", std::move(uri)}}));
  }
  finish(call, with_age(Value::object({{"resourceTemplates", Value::array(std::move(all))}}),
                        call->modern()));
}

void Mcp::read_resource(CallPtr call) {
  const Value& uri = call->params()["uri"];
  if (!uri.is_string()) return call->refuse_params("\"uri\" must be a string");
  const auto missing = [call] {
    const std::string requested_uri = call->params()["uri"].as_string();
    call->refuse({.code = call->modern() ? mcp::kInvalidParams : mcp::kResourceNotFound,
                  .message = "Resource not found",
                  .data = Value::object({{"uri", requested_uri}})});
  };
  auto found = wanted(uri.as_string());
  if (!found) return missing();
  Path path{"api", "jobs", found->job};
  if (!found->part.empty()) path.push_back(found->part);
  // The body can be large: the message is made and printed on a reader thread, except for a client
  // that takes it as a Value.
  const bool renders = static_cast<bool>(call->caller.render);
  const auto message = [frame = frame_of(*call), uri = uri.as_string()](const Value& text) {
    const Value content = Value::object({{"mimeType", kJson}, {"text", text}, {"uri", uri}});
    return frame.message(
        with_age(Value::object({{"contents", Value::array({content})}}), frame.modern));
  };
  ApiRequest request = route_request(*call, "GET", std::move(path), std::move(found->query));
  request.render = [message, render = call->caller.render](const Value& body) {
    return render ? render(message(canonical(body))) : RenderedBody{canonical(body)};
  };
  send(std::move(request), [call, missing, message, renders](ApiResponse response) {
    if (response.status == 404) return missing();
    if (response.status != 200) return call->refuse(response);
    // Without a reader thread, as behind a remote server, nothing is rendered.
    ApiResponse answer;
    answer.rpc = true;
    if (response.rendered && renders) {
      answer.rendered = std::move(response.rendered);
    } else {
      answer.body = message(response.rendered ? Value(std::move(response.rendered->bytes))
                                              : Value(canonical(response.body)));
    }
    call->done(std::move(answer));
  });
}

}  // namespace ae::api
