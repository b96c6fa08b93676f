// One open request, by the id of the lists; and what an approval with other arguments would do.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/open_requests.h"
#include "api/operations.h"
#include "api/read.h"
#include "engine/approvals/edited_call.h"
#include "inspect/requests_view.h"
#include "log/field_names.h"
#include "store/registry.h"

namespace ae::api {
namespace {

using engine::RequestKind;

// The job of a request: its id without the last part. Fails with not_found.
Result<JobId> job_of_request(const std::string& id) {
  const std::size_t dot = id.rfind('.');
  if (dot != id.npos && dot + 1 < id.size()) {
    auto job = job_id_from_text(id.substr(0, dot));
    if (job) return *std::move(job);
  }
  return fail(Code::not_found, Action{.act = act::kApprovals},
              "there is no open request with the id \"{}\"", id.substr(0, 96));
}

// Fails with not_found.
Result<Value> find_open_request(const engine::State& state, const std::string& id, Instant now) {
  std::vector<Value> requests = engine::requests_view(state);
  std::erase_if(requests, [&id](const Value& one) { return one.text("id") != id; });
  requests = open_requests(std::move(requests), now);
  if (!requests.empty()) return std::move(requests.front());
  return fail(Code::not_found, Action{.act = act::kApprovals},
              "job {} has no open request with the id \"{}\": it was answered or has expired",
              state.job.text, id.substr(0, 96));
}

struct FoundRequest {
  Value request;
  PreviewedJob job;
};

Result<FoundRequest> read_request(const engine::State& state, const std::string& id, Instant now,
                                  const store::Registry& registry) {
  AE_ASSIGN(const Value request, find_open_request(state, id, now));
  const store::AgentVersion* const version =
      state.plan ? registry.find_version_with_plan(state.agent, to_hex(state.plan->hash)) : nullptr;
  return FoundRequest{
      engine::detailed_request(state, request)
          .with("agent_version", version == nullptr ? Value() : Value(version->version)),
      PreviewedJob::of(state)};
}

// The result of a preview: {arguments_hash, faults[], verdict}, without `sends`.
struct CheckedEdit {
  Value body;
  Value request, arguments;
  PreviewedJob job;
  bool accepted = false;
};

Value faults_json(const std::vector<engine::ArgumentsFault>& faults) {
  std::vector<Value> all;
  for (const engine::ArgumentsFault& fault : faults) {
    all.push_back(Value::object({{field::code, code_name(fault.error.code)},
                                 {field::detail, fault.error.message},
                                 {"path", fault.path}}));
  }
  return Value::array(std::move(all));
}

Result<CheckedEdit> check_edit(const engine::State& state, const std::string& id, Instant now,
                               Value arguments) {
  AE_ASSIGN(Value request, find_open_request(state, id, now));
  const engine::Step* const step = state.find_step(StepId(request.text(field::step_id)));
  if (!is_kind(request, RequestKind::call) || step == nullptr) {
    return fail(Code::input_invalid,
                "only the arguments of a call that needs approval can be previewed");
  }
  const engine::EditedCall call = engine::check_edited_call(state, *step, arguments);
  Value body = Value::object(
      {{field::arguments_hash, call.arguments_hash.empty() ? Value() : Value(call.arguments_hash)},
       {"faults", faults_json(call.faults)},
       {field::verdict, call.verdict ? Value(to_text(*call.verdict)) : Value()}});
  return CheckedEdit{std::move(body), std::move(request), std::move(arguments),
                     PreviewedJob::of(state), call.faults.empty()};
}

}  // namespace

void operations::approval(ApiContext& api, RequestPtr ctx) {
  const auto job = job_of_request(ctx->id);
  if (!job) return ctx->refuse(job.error());
  api.agents.when_fresh([&api, ctx, job = *job] {
    compute_state<FoundRequest>(
        api, ctx, job,
        [id = ctx->id, now = api.store.now(), registry = api.registry.copy()](Snapshot& read) {
          return read_request(read.state, id, now, *registry);
        },
        [&api, ctx](Result<FoundRequest> found) {
          if (!found) return ctx->refuse(found.error());
          const Value& request = found->request;
          const Value sends =
              call_preview(api, found->job, request, request[field::detail][field::arguments]);
          Value detail = request[field::detail];
          if (is_kind(request, RequestKind::call)) detail = detail.with("sends", sends);
          answer_large(api, ctx, request.with(field::detail, detail).with("sends", sends));
        });
  });
}

void operations::preview_approval(ApiContext& api, RequestPtr ctx) {
  const Value* const given = ctx->fields.find(field::arguments);
  if (given == nullptr) {
    return ctx->refuse(
        {Code::input_invalid, "\"arguments\" is missing: all arguments, as they are to be sent"});
  }
  const auto job = job_of_request(ctx->id);
  if (!job) return ctx->refuse(job.error());
  compute_state<CheckedEdit>(
      api, ctx, *job,
      [id = ctx->id, now = api.store.now(), arguments = *given](Snapshot& read) mutable {
        return check_edit(read.state, id, now, std::move(arguments));
      },
      [&api, ctx](Result<CheckedEdit> edit) {
        if (!edit) return ctx->refuse(edit.error());
        const Value sends =
            edit->accepted ? call_preview(api, edit->job, edit->request, edit->arguments) : Value();
        answer_large(api, ctx, edit->body.with("sends", sends));
      });
}

}  // namespace ae::api
