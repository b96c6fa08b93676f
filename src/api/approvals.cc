// What people are asked, over all jobs, and their answers.
//
// The list reads the jobs that have not ended, page by page and newest first: the waiting, then the others. A store
// keeps no list of its own of what is asked; ended jobs cost nothing here. After kLogsMax logs it answers with what it has.
#include <algorithm>
#include <deque>
#include <utility>

#include "api/asked.h"
#include "inspect/view.h"
#include "json/json.h"

namespace ae::api {
namespace {

constexpr std::size_t kApprovalsDefault = 100;
constexpr std::size_t kRowsAtOnce = 100;
// A job that waits may also be running (another branch), queued (it backs off) or parked (paused).
constexpr std::string_view kOpenStatuses[] = {"waiting", "running", "queued", "parked"};

}  // namespace

// A walk over the jobs that may ask somebody.
struct Api::Inbox {
  std::size_t status = 0;  // index into kOpenStatuses
  std::string after;       // the last job that was looked at
  std::size_t wanted = kApprovalsDefault;
  std::size_t logs = 0;  // that were read
  std::deque<store::JobRow> rows;
  bool last_page = false;
  std::vector<Value> found;
};

// What a job asks, each call with what it would send. What has expired is asked no more, though nobody has noted it yet.
std::vector<Value> Api::asked_of(const engine::State& state) const {
  std::vector<Value> asked = engine::approvals_view(state);
  const Instant now = store_.now();
  std::erase_if(asked, [&](const Value& one) {
    const auto expires = instant_from_text(one.text("expires_at"));
    return expires && *expires <= now;
  });
  for (Value& one : asked) {
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
    one = one.with("sends", sends);
  }
  return asked;
}

// What one job asks: its log is all that is read.
void Api::approvals_of_job(Ask ask) {
  if (auto known = ask->query.only({"job"}); !known) return ask->refuse(known.error());
  ask->id = *ask->query.find("job");
  read(ask, [this, ask](runtime::Runtime::Read& read) {
    ask->answer(200, Value::object({{"approvals", Value::array(asked_of(read.state))},
                                    {"next_cursor", Value()}}));
  });
}

void Api::approvals(Ask ask) {
  if (ask->query.find("job")) return approvals_of_job(std::move(ask));
  auto inbox = std::make_shared<Inbox>();
  const auto wish = [&]() -> Status {
    AE_TRY(ask->query.only({"cursor", "limit"}));
    AE_ASSIGN(inbox->wanted, ask->query.limit(kApprovalsDefault, kJobsMax));
    const std::string* cursor = ask->query.find("cursor");
    if (!cursor) return {};
    const std::size_t colon = cursor->find(':');
    const auto status = std::ranges::find(kOpenStatuses, cursor->substr(0, colon));
    if (colon == cursor->npos || status == std::end(kOpenStatuses)) {
      return fail(Code::input_invalid, "\"cursor\" must be one that a response returned");
    }
    inbox->status = static_cast<std::size_t>(status - std::begin(kOpenStatuses));
    inbox->after = cursor->substr(colon + 1);
    return {};
  }();
  if (!wish) return ask->refuse(wish.error());
  next_jobs(std::move(ask), std::move(inbox));
}

void Api::next_jobs(Ask ask, std::shared_ptr<Inbox> inbox) {
  store::Filter filter;
  filter.status = kOpenStatuses[inbox->status];
  go_on_after(inbox->after, filter);
  filter.limit = kRowsAtOnce;
  store_.query(std::move(filter), [this, alive = std::weak_ptr(alive_), ask,
                                   inbox](Result<std::vector<store::JobRow>> rows) {
    if (!rows && rows.error().code == Code::not_found) {
      return ask->refuse({Code::input_invalid, "\"cursor\" does not match a job of this store"});
    }
    if (!rows) return ask->refuse(rows.error());
    inbox->last_page = rows->size() < kRowsAtOnce;
    for (store::JobRow& row : *rows) inbox->rows.push_back(std::move(row));
    if (alive.lock()) next_job(ask, inbox);
  });
}

void Api::next_job(Ask ask, std::shared_ptr<Inbox> inbox) {
  if (inbox->found.size() >= inbox->wanted || inbox->logs >= kLogsMax) {
    return answer_inbox(ask, *inbox);
  }
  if (inbox->rows.empty() && inbox->last_page) {
    inbox->status++;
    inbox->after.clear();
    if (inbox->status == std::size(kOpenStatuses)) return answer_inbox(ask, *inbox);
  }
  if (inbox->rows.empty()) return next_jobs(std::move(ask), std::move(inbox));
  const JobId job = inbox->rows.front().id;
  inbox->after = cursor_of(inbox->rows.front());
  inbox->rows.pop_front();
  ++inbox->logs;
  read_in_turn(
      ask, job,
      [this, alive = std::weak_ptr(alive_), ask, inbox](Result<runtime::Runtime::Read> read) {
        if (!alive.lock()) return;
        if (!read && read.error().code == Code::unavailable) return ask->refuse(read.error());
        if (read) {  // a log that cannot be read hides nothing of the others
          for (Value& asked : asked_of(read->state)) {
            inbox->found.push_back(std::move(asked));
          }
        }
        next_job(ask, inbox);
      });
}

void Api::answer_inbox(const Ask& ask, Inbox& inbox) {
  Value next;
  if (inbox.status < std::size(kOpenStatuses)) {
    next = std::string(kOpenStatuses[inbox.status]) + ":" + inbox.after;
  }
  ask->answer(200, Value::object({{"approvals", Value::array(std::move(inbox.found))},
                                  {"next_cursor", next}}));
}

// The id is `<job id>.<16 hex digits>` (inspect/view.h).
void Api::answer_approval(Ask ask) {
  auto act = [&]() -> Result<engine::Act> {
    AE_TRY(ask->query.only({}));
    AE_ASSIGN(const Fields fields,
              Fields::parse(ask->request.body, {"arguments", "decision", "note"}));
    AE_ASSIGN(const std::string decision, fields.text("decision"));
    AE_ASSIGN(const std::string note, fields.text("note"));
    if (decision != "approve" && decision != "reject") {
      return fail(Code::input_invalid, "\"decision\" must be approve or reject");
    }
    const std::size_t dot = ask->id.rfind('.');
    if (dot == ask->id.npos) {
      return fail(Code::not_found, "there is no approval with the id \"" + ask->id.substr(0, 96) +
                                       "\"; GET /api/approvals lists them");
    }
    engine::Act wish{.kind = engine::Act::Kind::signal, .wait_type = "human"};
    wish.approval = ask->id.substr(dot + 1);
    wish.payload = Value::object({{"decision", decision}});
    if (!note.empty()) wish.payload = wish.payload.with("note", note);
    if (const Value* arguments = fields.find("arguments")) wish.arguments = *arguments;
    ask->id.resize(dot);
    if (wish.approval.empty()) return fail(Code::not_found, "approval not found");
    return wish;
  }();
  if (!act) return ask->refuse(act.error());
  this->act(ask, std::move(*act), 200);
}

}  // namespace ae::api
