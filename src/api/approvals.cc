// The open requests to operators, over all jobs: all of them, or those that are approved or
// rejected; and the answers of the latter. One request is in approval.cc.
//
// A list reads the logs of the jobs whose rows have such a request (store/pending.h), page by page
// and newest first. After kLogsMax logs it responds with what it has found.
#include <algorithm>
#include <deque>
#include <utility>

#include "api/control_requests.h"
#include "api/jobs.h"
#include "api/open_requests.h"
#include "api/operations.h"
#include "api/read.h"
#include "api/request_kinds.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::api {
namespace {

constexpr std::size_t kRequestsDefault = 100;
constexpr std::size_t kRowsAtOnce = 100;

namespace pending = store::pending;
using engine::RequestKind;
constexpr store::PendingKinds kApprovals =
    pending::call | pending::wait | pending::question | pending::confirmation;

Result<store::PendingKinds> kinds_of(const Query& query) {
  const std::string* const name = query.find(field::kind);
  if (name == nullptr) return pending::all;
  const auto* const found = std::ranges::find(kRequestKinds, *name, &NamedKind::name);
  if (found != kRequestKinds.end()) return found->kind;
  return fail(Code::input_invalid,
              "\"kind\" must be call, wait, question, confirmation, unknown_outcome or budget");
}

bool is_of(store::PendingKinds kinds, const Value& request) {
  const auto* const found =
      std::ranges::find(kRequestKinds, request.text(field::kind), &NamedKind::name);
  return found != kRequestKinds.end() && (kinds & found->kind) != 0;
}

// A walk over the jobs that may have open requests.
struct RequestWalk {
  std::string_view member;  // of the response: "approvals" or "requests"
  store::PendingKinds kinds = 0;
  bool approvals_only = false;
  std::string after = {};  // the last job that was read
  std::size_t wanted = kRequestsDefault;
  std::size_t logs = 0;  // number of logs read
  std::deque<store::JobRow> rows = {};
  bool last_page = false;
  std::vector<Value> found = {};

  // Approvals are the details of their requests.
  void add(const std::vector<Value>& requests) {
    for (const Value& one : requests) {
      if (!is_of(kinds, one)) continue;
      const Value& detail = one[field::detail];
      if (!approvals_only) {
        found.push_back(one);
      } else {
        found.push_back(detail.find("sends") == nullptr ? detail.with("sends", Value()) : detail);
      }
    }
  }
  Value body() {
    return Value::object({{std::string(member), Value::array(std::move(found))},
                          {"next_cursor", after.empty() ? Value() : Value(after)}});
  }
};

// The open requests of one job, made on a reader thread, and what their previews need.
struct JobRequests {
  std::vector<Value> requests;
  PreviewedJob job;
};

// Tools make previews on the loop.
std::vector<Value> with_previews(const ApiContext& api, JobRequests open) {
  for (Value& one : open.requests) {
    if (!is_kind(one, RequestKind::call)) continue;
    const Value& detail = one[field::detail];
    one =
        one.with(field::detail,
                 detail.with("sends", call_preview(api, open.job, one, detail[field::arguments])));
  }
  return std::move(open.requests);
}

// Adds the requests of one job to the walk.
void read_requests(ApiContext& api, const RequestPtr& ctx, const JobId& job,
                   std::shared_ptr<RequestWalk> walk, async::Done<Status> then) {
  compute_state<JobRequests>(
      api, ctx, job,
      [now = api.store.now()](Snapshot& read) -> Result<JobRequests> {
        return JobRequests{open_requests(read.state, now), PreviewedJob::of(read.state)};
      },
      [&api, walk, then = std::move(then)](Result<JobRequests> open) mutable {
        if (!open) return then(std::unexpected(std::move(open).error()));
        walk->add(with_previews(api, *std::move(open)));
        then({});
      });
}

void read_next_page(ApiContext& api, RequestPtr ctx, std::shared_ptr<RequestWalk> walk);

void read_next_log(ApiContext& api, RequestPtr ctx, std::shared_ptr<RequestWalk> walk) {
  if (walk->rows.empty() && walk->last_page) walk->after.clear();
  const bool over = walk->found.size() >= walk->wanted || walk->logs >= kLogsMax;
  if (over || (walk->rows.empty() && walk->last_page)) return answer_large(api, ctx, walk->body());
  if (walk->rows.empty()) return read_next_page(api, std::move(ctx), std::move(walk));
  const JobId job = walk->rows.front().id;
  walk->after = cursor_of(walk->rows.front());
  walk->rows.pop_front();
  ++walk->logs;
  read_requests(api, ctx, job, walk, [&api, ctx, walk](const Status& read) {
    if (!read && read.error().code == Code::unavailable) return ctx->refuse(read.error());
    read_next_log(api, ctx, walk);  // an unreadable log must not hide other jobs
  });
}

void read_next_page(ApiContext& api, RequestPtr ctx, std::shared_ptr<RequestWalk> walk) {
  store::Filter filter;
  filter.pending = walk->kinds;
  apply_cursor(walk->after, filter);
  filter.limit = kRowsAtOnce;
  api.store.query(std::move(filter), [&api, alive = api.alive.watch(), ctx,
                                      walk](Result<std::vector<store::JobRow>> rows) {
    if (!rows && rows.error().code == Code::not_found) {
      return ctx->refuse({Code::input_invalid, "\"cursor\" does not match a job of this store"});
    }
    if (!rows) return ctx->refuse(rows.error());
    walk->last_page = rows->size() < kRowsAtOnce;
    for (store::JobRow& row : *rows) walk->rows.push_back(std::move(row));
    if (alive) read_next_log(api, ctx, walk);
  });
}

void begin_request_walk(ApiContext& api, RequestPtr ctx, RequestWalk walk) {
  const bool of_job = ctx->query.find("job") != nullptr;
  const auto params = [&]() -> Status {
    if (of_job) AE_TRY(ctx->query.check_combination("job", {field::kind}));
    AE_ASSIGN(walk.wanted, ctx->query.limit(kRequestsDefault, kJobsMax));
    if (const std::string* cursor = ctx->query.find("cursor")) walk.after = *cursor;
    return {};
  }();
  if (!params) return ctx->refuse(params.error());
  auto shared = std::make_shared<RequestWalk>(std::move(walk));
  if (!of_job) return read_next_page(api, std::move(ctx), std::move(shared));
  const auto job = job_id_of(*ctx->query.find("job"));
  if (!job) return ctx->refuse(job.error());
  read_requests(api, ctx, *job, shared, [&api, ctx, shared](const Status& read) {
    if (!read) return ctx->refuse(read.error());
    answer_large(api, ctx, shared->body());
  });
}

}  // namespace

void operations::approvals(ApiContext& api, RequestPtr ctx) {
  begin_request_walk(api, std::move(ctx),
                     {.member = "approvals", .kinds = kApprovals, .approvals_only = true});
}

void operations::requests(ApiContext& api, RequestPtr ctx) {
  auto kinds = kinds_of(ctx->query);
  if (!kinds) return ctx->refuse(kinds.error());
  begin_request_walk(api, std::move(ctx), {.member = "requests", .kinds = *kinds});
}

// The id is `<job id>.<16 hex digits>` (inspect/view.h).
void operations::answer_approval(ApiContext& api, RequestPtr ctx) {
  auto control = [&]() -> Result<engine::ControlRequest> {
    const Fields fields = std::move(ctx->fields);
    AE_ASSIGN(const std::string decision, fields.text("decision"));
    AE_ASSIGN(const std::string note, fields.text(field::note));
    if (decision != "approve" && decision != "reject") {
      return fail(Code::input_invalid, "\"decision\" must be approve or reject");
    }
    const std::size_t dot = ctx->id.rfind('.');
    if (dot == ctx->id.npos) {
      return fail(Code::not_found, Action{.act = act::kApprovals},
                  "there is no approval with the id \"{}\"", ctx->id.substr(0, 96));
    }
    engine::ApproveRequest approve{
        .approval_id = ctx->id.substr(dot + 1), .decision = decision, .note = note};
    if (const Value* arguments = fields.find(field::arguments)) approve.arguments = *arguments;
    ctx->id.resize(dot);
    if (approve.approval_id.empty()) return fail(Code::not_found, "approval not found");
    return engine::ControlRequest{.body = std::move(approve)};
  }();
  if (!control) return ctx->refuse(control.error());
  submit_request(api, ctx, std::move(*control), 200);
}

}  // namespace ae::api
