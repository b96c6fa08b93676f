#include "runtime/child_requests.h"

#include <utility>
#include <variant>

#include "engine/children/request_children.h"
#include "engine/heart/side_record.h"
#include "json/json.h"

namespace ae::runtime {
namespace {

void put_request(JobId job, const engine::ControlRequest& request, store::Batch& batch) {
  store::InboxEntry entry{.number = 0, .id = engine::inbox_id(request), .request = {}};
  entry.request =
      canonical(engine::with_checksum(engine::inbox_location(job, entry.id), request.to_json()));
  batch.inbox_puts.push_back({.job = std::move(job), .entry = std::move(entry)});
}

bool is_end(const EventBody& event) {
  return std::holds_alternative<JobCompleted>(event) || std::holds_alternative<JobFailed>(event) ||
         std::holds_alternative<JobCancelled>(event);
}

}  // namespace

void add_child_request(const engine::State& state, const EventBody& event, store::Batch& batch) {
  if (const auto* const cancel = std::get_if<ChildCancelRequested>(&event)) {
    return put_request(JobId(cancel->child_job_id), engine::child_cancel_request(state), batch);
  }
  if (!state.parent || state.parent->detached == true || !is_end(event)) return;
  put_request(JobId(state.parent->job_id), engine::child_ended_request(state), batch);
}

std::vector<JobId> addressees_of(const store::Batch& batch) {
  std::vector<JobId> jobs;
  jobs.reserve(batch.inbox_puts.size());
  for (const store::InboxPut& put : batch.inbox_puts) jobs.push_back(put.job);
  return jobs;
}

}  // namespace ae::runtime
