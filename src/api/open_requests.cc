#include "api/open_requests.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "api/command_line.h"
#include "inspect/requests_view.h"
#include "log/field_names.h"

namespace ae::api {

using engine::RequestKind;

std::vector<Value> open_requests(const engine::State& state, Instant now) {
  return open_requests(engine::requests_view(state), now);
}

std::vector<Value> open_requests(std::vector<Value> requests, Instant now) {
  std::erase_if(requests, [now](const Value& request) {
    const auto expires = instant_from_text(request.text(field::expires_at));
    return expires && *expires <= now;
  });
  for (Value& request : requests) {
    request = with_commands(request).with(field::detail, with_commands(request[field::detail]));
  }
  return requests;
}

bool is_kind(const Value& request, RequestKind kind) {
  return request.text(field::kind) == to_text(kind);
}

PreviewedJob PreviewedJob::of(const engine::State& state) {
  return {.job = state.job, .blind = state.blind, .plan = state.plan};
}

Value call_preview(const ApiContext& api, const PreviewedJob& job, const Value& request,
                   const Value& arguments) {
  const bool was_sent = is_kind(request, RequestKind::unknown_outcome);
  if (!api.options.preview || (!was_sent && !is_kind(request, RequestKind::call))) return {};
  if (was_sent && arguments.is_null()) return {};
  std::string_view version;  // a job keeps its tools when the file is reloaded
  if (job.plan) {
    const auto tool =
        std::ranges::find(job.plan->tools, request.text("tool"),
                          [](const auto& policy) { return std::string_view(policy.name); });
    if (tool != job.plan->tools.end()) version = tool->version;
  }
  const Value& detail = request[field::detail];
  const auto made =
      api.options.preview({.tool = request.text("tool"),
                           .job = job.job,
                           .step = StepId(request.text(field::step_id)),
                           .arguments = arguments,
                           .blind = job.blind,
                           .version = version,
                           .key = IdempotencyKey(detail.text(field::idempotency_key)),
                           .external_key = ExternalKey(detail.text(field::external_key)),
                           .invocation = InvocationId(detail.text(field::invocation_id))});
  return made ? *made : Value::object({{field::error, made.error().message}});
}

}  // namespace ae::api
