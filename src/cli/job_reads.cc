#include "cli/job_reads.h"

#include <fmt/core.h>

#include <charconv>
#include <utility>
#include <vector>

#include "api/problem.h"
#include "cli/shared.h"
#include "json/json.h"

namespace ae::cli {

Result<Value> get(app::ApiClient& client, api::Path path, api::QueryPairs query) {
  std::erase_if(query, [](const auto& pair) { return pair.second.empty(); });
  api::ApiRequest request;
  request.path = std::move(path);
  request.query = std::move(query);
  AE_ASSIGN(api::ApiResponse response, client.send(request));
  if (response.status >= 400) {
    return std::unexpected(
        with_option_names(api::error_of_problem(response.body, response.status)));
  }
  return std::move(response.body);
}

Result<std::unique_ptr<app::ApiClient>> open_to_read(const app::StoreUrl& store,
                                                     const std::string& id) {
  auto client = app::ApiClient::open(store, app::OpenMode::read);
  if (!client && client.error().code == Code::not_found && !id.empty()) {
    return fail(Code::not_found, "there is no job {}: {}", id, client.error().message);
  }
  return client;
}

Result<Value> get_job_view(const CommonOptions& options, const std::string& id,
                           const std::string& what, api::QueryPairs query) {
  AE_ASSIGN(const app::StoreUrl store, store_of(options));
  AE_ASSIGN(const auto client, open_to_read(store, id));
  api::Path path{"api", "jobs", id};
  if (!what.empty()) path.push_back(what);
  return get(*client, std::move(path), std::move(query));
}

std::string labels_text(const Value& labels) {
  std::string text;
  if (!labels.is_object()) return text;
  for (const auto& [name, value] : labels.members()) {
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", name,
                        value.is_string() ? value.as_string() : canonical(value));
  }
  return text;
}

namespace {

constexpr std::size_t kListedDefault = 100;  // same as the server's

}  // namespace

Result<Value> full_page(app::ApiClient& client, const api::Path& path, api::QueryPairs query,
                        const std::string& list, const std::string& limit) {
  std::size_t wanted = kListedDefault;
  std::from_chars(limit.data(), limit.data() + limit.size(), wanted);
  AE_ASSIGN(Value page, get(client, path, query));
  std::vector<Value> all(page[list].items().begin(), page[list].items().end());
  while (page["next_cursor"].is_string() && all.size() < wanted) {
    std::erase_if(query,
                  [](const auto& pair) { return pair.first == "cursor" || pair.first == "limit"; });
    query.emplace_back("cursor", page["next_cursor"].as_string());
    query.emplace_back("limit", std::to_string(wanted - all.size()));
    AE_ASSIGN(page, get(client, path, query));
    all.insert(all.end(), page[list].items().begin(), page[list].items().end());
  }
  return page.with(list, Value::array(std::move(all)));
}

}  // namespace ae::cli
