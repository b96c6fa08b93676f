#include "app/archived_logs.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <utility>

#include "inspect/envelope.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::app {
namespace {

namespace fs = std::filesystem;

constexpr JsonLimits kArchiveLimits{
    .bytes_max = 1u << 30, .depth_max = kJsonDepthMax, .big_integers = true};

Result<std::vector<Event>> events_of(std::span<const Value> envelopes) {
  std::vector<Event> events;
  events.reserve(envelopes.size());
  for (const Value& envelope : envelopes) {
    AE_ASSIGN(Event event, event_from_envelope(envelope));
    events.push_back(std::move(event));
  }
  return events;
}

}  // namespace

Result<std::vector<std::string>> archive_files(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      if (!fs::exists(path, error)) return fail(Code::usage, "there is no {}", path);
      files.push_back(path);
      continue;
    }
    std::vector<std::string> found;
    for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) {
      if (entry.path().extension() == ".json") found.push_back(entry.path().string());
    }
    if (error) return fail(Code::usage, "cannot read {}: {}", path, error.message());
    if (found.empty()) return fail(Code::usage, "{} has no file ID.json", path);
    std::ranges::sort(found);
    std::ranges::move(found, std::back_inserter(files));
  }
  return files;
}

Result<ArchivedLog> read_archived_log(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.good() && !file.eof()) return fail(Code::usage, "cannot read {}", path);
  const auto json = parse_json(text, kArchiveLimits);
  if (!json) return fail(Code::usage, "{}: {}", path, json.error().message);
  const Value* const events = json->is_object() ? json->find("events") : nullptr;
  if (events == nullptr || !events->is_array() || events->items().empty() ||
      !events->items().front().is_object()) {
    return fail(Code::usage, "{} is not the log of a job: it has no list `events`", path);
  }
  return ArchivedLog{.job = std::string(events->items().front().text("job_id")),
                     .events = events_of(events->items())};
}

}  // namespace ae::app
