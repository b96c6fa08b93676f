// Approvals: the open requests to users, over all jobs, and their answers.
//
// The list reads the logs of the jobs whose rows have such a request (store/pending.h), page by page
// and newest first. After kLogsMax logs it responds with what it has found.
#include <algorithm>
#include <deque>
#include <utility>

#include "api/command_line.h"
#include "api/request_context.h"
#include "inspect/view.h"
#include "json/json.h"

namespace ae::api {
namespace {

constexpr std::size_t kApprovalsDefault = 100;
constexpr std::size_t kRowsAtOnce = 100;
constexpr store::PendingKinds kAnswered = store::pending::call | store::pending::wait |
                                          store::pending::question | store::pending::confirmation;

}  // namespace

// A walk over the jobs that may have open requests.
struct Api::ApprovalWalk {
  std::string after;  // the last job that was read
  std::size_t wanted = kApprovalsDefault;
  std::size_t logs = 0;  // number of logs read
  std::deque<store::JobRow> rows;
  bool last_page = false;
  std::vector<Value> found;
};

// The open requests of a job; a call with the request that it would send. Expired ones are left
// out, also when their expiry is not recorded yet.
std::vector<Value> Api::open_approvals(const engine::State& state) const {
  std::vector<Value> approvals = engine::approvals_view(state);
  const Instant now = store_.now();
  std::erase_if(approvals, [&](const Value& one) {
    const auto expires = instant_from_text(one.text("expires_at"));
    return expires && *expires <= now;
  });
  for (Value& one : approvals) {
    Value sends;
    if (options_.preview && one.text("kind") == "call") {
      std::string_view version;  // a job keeps its tools when the file is reloaded
      if (state.plan) {
        const auto tool =
            std::ranges::find(state.plan->tools, one.text("tool"),
                              [](const auto& policy) { return std::string_view(policy.name); });
        if (tool != state.plan->tools.end()) version = tool->version;
      }
      const auto made =
          options_.preview(one.text("tool"), state.job, StepId(std::string(one.text("step_id"))),
                           one["arguments"], state.blind, version);
      sends = made ? *made : Value::object({{"error", made.error().message}});
    }
    one = with_commands(one).with("sends", sends);
  }
  return approvals;
}

// The open requests of one job: only its log is read.
void Api::approvals_of_job(ContextPtr ctx) {
  if (auto known = ctx->query.check_names({"job"}); !known) return ctx->refuse(known.error());
  ctx->id = *ctx->query.find("job");
  read(ctx, [this, ctx](runtime::Runtime::JobSnapshot& read) {
    ctx->answer(200, Value::object({{"approvals", Value::array(open_approvals(read.state))},
                                    {"next_cursor", Value()}}));
  });
}

void Api::approvals(ContextPtr ctx) {
  if (ctx->query.find("job")) return approvals_of_job(std::move(ctx));
  auto walk = std::make_shared<ApprovalWalk>();
  const auto params = [&]() -> Status {
    AE_TRY(ctx->query.check_names({"cursor", "limit"}));
    AE_ASSIGN(walk->wanted, ctx->query.limit(kApprovalsDefault, kJobsMax));
    if (const std::string* cursor = ctx->query.find("cursor")) walk->after = *cursor;
    return {};
  }();
  if (!params) return ctx->refuse(params.error());
  read_next_page(std::move(ctx), std::move(walk));
}

void Api::read_next_page(ContextPtr ctx, std::shared_ptr<ApprovalWalk> walk) {
  store::Filter filter;
  filter.pending = kAnswered;
  apply_cursor(walk->after, filter);
  filter.limit = kRowsAtOnce;
  store_.query(std::move(filter), [this, alive = alive_.watch(), ctx,
                                   walk](Result<std::vector<store::JobRow>> rows) {
    if (!rows && rows.error().code == Code::not_found) {
      return ctx->refuse({Code::input_invalid, "\"cursor\" does not match a job of this store"});
    }
    if (!rows) return ctx->refuse(rows.error());
    walk->last_page = rows->size() < kRowsAtOnce;
    for (store::JobRow& row : *rows) walk->rows.push_back(std::move(row));
    if (alive) read_next_log(ctx, walk);
  });
}

void Api::read_next_log(ContextPtr ctx, std::shared_ptr<ApprovalWalk> walk) {
  if (walk->found.size() >= walk->wanted || walk->logs >= kLogsMax) {
    return answer_approvals(ctx, *walk);
  }
  if (walk->rows.empty() && walk->last_page) {
    walk->after.clear();
    return answer_approvals(ctx, *walk);
  }
  if (walk->rows.empty()) return read_next_page(std::move(ctx), std::move(walk));
  const JobId job = walk->rows.front().id;
  walk->after = cursor_of(walk->rows.front());
  walk->rows.pop_front();
  ++walk->logs;
  read_with_slot(
      ctx, job,
      [this, alive = alive_.watch(), ctx, walk](Result<runtime::Runtime::JobSnapshot> read) {
        if (!alive) return;
        if (!read && read.error().code == Code::unavailable) return ctx->refuse(read.error());
        if (read) {  // an unreadable log must not hide other jobs
          for (Value& approval : open_approvals(read->state)) {
            walk->found.push_back(std::move(approval));
          }
        }
        read_next_log(ctx, walk);
      });
}

void Api::answer_approvals(const ContextPtr& ctx, ApprovalWalk& walk) {
  ctx->answer(200,
              Value::object({{"approvals", Value::array(std::move(walk.found))},
                             {"next_cursor", walk.after.empty() ? Value() : Value(walk.after)}}));
}

// The id is `<job id>.<16 hex digits>` (inspect/view.h).
void Api::answer_approval(ContextPtr ctx) {
  auto control = [&]() -> Result<engine::ControlRequest> {
    AE_TRY(ctx->query.check_names({}));
    AE_ASSIGN(const Fields fields,
              Fields::parse(ctx->request.body, {"arguments", "decision", "note"}));
    AE_ASSIGN(const std::string decision, fields.text("decision"));
    AE_ASSIGN(const std::string note, fields.text("note"));
    if (decision != "approve" && decision != "reject") {
      return fail(Code::input_invalid, "\"decision\" must be approve or reject");
    }
    const std::size_t dot = ctx->id.rfind('.');
    if (dot == ctx->id.npos) {
      return fail(Code::not_found, "there is no approval with the id \"" + ctx->id.substr(0, 96) +
                                       "\"; GET /api/approvals lists them");
    }
    engine::ControlRequest params{.kind = engine::ControlRequest::Kind::signal,
                                  .wait_type = "human"};
    params.approval = ctx->id.substr(dot + 1);
    params.payload = Value::object({{"decision", decision}});
    if (!note.empty()) params.payload = params.payload.with("note", note);
    if (const Value* arguments = fields.find("arguments")) params.arguments = *arguments;
    ctx->id.resize(dot);
    if (params.approval.empty()) return fail(Code::not_found, "approval not found");
    return params;
  }();
  if (!control) return ctx->refuse(control.error());
  this->submit_request(ctx, std::move(*control), 200);
}

}  // namespace ae::api
