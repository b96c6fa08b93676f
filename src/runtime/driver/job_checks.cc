#include "runtime/driver/job_checks.h"

#include <fmt/core.h>

#include <string_view>
#include <utility>

#include "engine/heart/ingest.h"
#include "engine/heart/side_record.h"
#include "log/field_names.h"

namespace ae::runtime {

Status check_row(const engine::State& state, const store::JobRow& row) {
  if (engine::is_terminal(state.status)) {
    return fail(Code::log_corrupt, "its row is runnable, but by its log it has ended");
  }
  const bool claimable =
      state.status == engine::JobStatus::queued || state.status == engine::JobStatus::running;
  if (!claimable) {
    return fail(Code::log_corrupt, "its row is runnable, but by its log it is {}",
                engine::to_text(state.status));
  }
  const std::pair<std::string_view, std::optional<Instant>> times[] = {
      {"created_at", row.created_at},
      {"updated_at", row.updated_at},
      {field::not_before, row.not_before},
      {"wake_at", row.wake_at}};
  for (const auto& [name, time] : times) {
    if (!time || is_representable(*time)) continue;
    return fail(Code::log_corrupt, "its row holds an invalid time ({}): {}", name, time->us);
  }
  return {};
}

std::optional<Error> find_newer_request(const JobId& job,
                                        const std::vector<store::InboxEntry>& inbox,
                                        std::uint64_t inbox_read) {
  for (const store::InboxEntry& entry : inbox) {
    if (entry.number <= inbox_read) continue;
    const auto json =
        engine::read_side_record(engine::inbox_location(job, entry.id), entry.request);
    if (!json) continue;
    const auto request = engine::ControlRequest::from_json(*json);
    if (!request && request.error().code == Code::needs_version) {
      return Error{Code::needs_version,
                   fmt::format("its inbox holds {}: it stays there for a newer version of aetheris",
                               request.error().message)};
    }
  }
  return std::nullopt;
}

}  // namespace ae::runtime
