// Bodies of the routes about one job.
#include "api/views.h"

#include <map>
#include <span>
#include <utility>

#include "api/budget_shortfall.h"
#include "api/command_line.h"
#include "inspect/trace.h"
#include "inspect/view.h"
#include "json/json.h"
#include "log/seal.h"
#include "runtime/redact.h"
#include "runtime/row.h"

namespace ae::api {
namespace {

// Waits beyond these are shown without arguments; `approvals` has them.
constexpr std::size_t kArgumentsShown = 64;

// Each wait with its open request: the call to approve or the question of a tool. null = none.
std::vector<Value> with_questions(std::span<const Value> waits, const engine::State& state) {
  const std::vector<Value> approvals = engine::approvals_view(state);
  std::map<std::string_view, const Value*> by_key;
  for (const Value& one : approvals) by_key[one.text("correlation_key")] = &one;
  std::vector<Value> all;
  for (const Value& wait : waits) {
    const auto known = by_key.find(wait.text("correlation_key"));
    const Value none{nullptr};
    const Value& found = known == by_key.end() ? none : *known->second;
    all.push_back(
        wait.with("answer", found["answer"])
            .with("approval_id", found["id"])
            .with("arguments", all.size() < kArgumentsShown ? found["arguments"] : Value())
            .with("question", found["question"])
            .with("tool", found["tool"]));
  }
  return all;
}

Value with_expiry(const Value& wait, Instant now) {
  const auto expires = instant_from_text(wait.text("expires_at"));
  const bool expired = expires && *expires <= now;
  if (!expired) return wait.with("expired", false);
  return wait.with("command", nullptr).with("commands", Value::array({})).with("expired", true);
}

}  // namespace

Value job_body(const runtime::Runtime::JobSnapshot& read, Instant now) {
  Value body = with_all_commands(add_shortfall(read.state, engine::job_view(read.state)));
  std::vector<Value> waits = with_questions(body["waits"].items(), read.state);
  for (Value& wait : waits) wait = with_expiry(wait, now);
  if (body["waiting"].is_object()) body = body.with("waiting", waits.front());
  body = body.with("waits", Value::array(std::move(waits)));
  if (body["labels"].is_null()) body = body.with("labels", Value::object({}));
  // Its scheduling options.
  const auto* created = read.events.empty() ? nullptr : as<JobCreated>(read.events.front());
  const Value needed = created != nullptr ? created->required_capabilities : Value();
  return body.with("priority", read.row.priority)
      .with("queue", read.row.queue)
      .with("required_capabilities", needed.is_array() ? needed : Value::array({}));
}

Value trace_body(const runtime::Runtime::JobSnapshot& read) {
  return engine::trace_view(read.state, read.events);
}

TranscriptBody::TranscriptBody(const JobId& job, store::LoadedJob&& loaded,
                               const engine::TranscriptPage& page)
    : loaded_(std::move(loaded)),
      opening_(job, loaded_, {}),
      transcribing_(job, page, engine::uncached_plan_source()) {}

bool TranscriptBody::next() {
  if (added_ < events_.size()) {
    status_ = transcribing_.add(events_[added_++]);
    return status_.has_value();
  }
  if (!opening_.next()) return false;
  events_ = opening_.take_opened();
  added_ = 0;
  return true;
}

Result<Value> TranscriptBody::take() {
  AE_TRY(status_);
  AE_TRY(opening_.complete());
  return std::move(transcribing_).take();
}

VerifyBody::VerifyBody(const JobId& job, store::LoadedJob&& loaded, std::vector<PublicKey> keys)
    : loaded_(std::move(loaded)), input_{.job = job} {
  input_.keys = std::move(keys);
  for (const Blob& blob : loaded_.blobs) blobs_.emplace(blob.hash, &blob.bytes);
}

bool VerifyBody::next() {
  if (opened_ < loaded_.commits.size() && !input_.open_error) {
    open_commit(loaded_.commits[opened_++]);
    return true;
  }
  if (!verifying_) {
    complete();
    verifying_.emplace(input_, plans_);
    return true;
  }
  return verifying_->next();
}

void VerifyBody::open_commit(const std::string& bytes) {
  auto opened = open(input_.job, bytes, head_, [&](const Hash& hash) -> Result<std::string> {
    if (const auto blob = blobs_.find(hash); blob != blobs_.end()) return *blob->second;
    return fail(Code::log_corrupt, "a blob is missing: " + to_hex(hash));
  });
  if (!opened) {
    input_.open_error = opened.error();
    return;
  }
  head_ = opened->head;
  for (Event& event : opened->events) input_.events.push_back(std::move(event));
}

void VerifyBody::complete() {
  input_.last_seq = loaded_.row.last_seq;
  input_.head = loaded_.row.head;
  input_.row = {.status = loaded_.row.status,
                .agent = loaded_.row.agent,
                .idempotency_key = loaded_.row.idempotency_key,
                .labels = loaded_.row.labels,
                .created_at = loaded_.row.created_at,
                .request_hash = loaded_.request_hash,
                .computed_request_hash = input_.events.empty()
                                             ? std::nullopt
                                             : runtime::request_hash_of(input_.events.front()),
                .commits = loaded_.commit_count,
                .commits_read = loaded_.commits.size()};
  for (const store::EffectRow& row : loaded_.effects) {
    input_.effects.push_back({row.invocation, row.try_no, row.record});
  }
  for (const store::LedgerRow& row : loaded_.ledger) {
    input_.ledger.push_back({row.invocation, row.try_no, row.state, row.record});
  }
  for (const store::InboxEntry& entry : loaded_.inbox) {
    input_.inbox.emplace_back(entry.id, entry.request);
  }
  if (loaded_.checkpoint) {
    input_.checkpoint.emplace(loaded_.checkpoint->seq, loaded_.checkpoint->bytes);
  }
  input_.signed_head = loaded_.signed_head;
}

Value VerifyBody::take() {
  std::vector<Value> redacted;
  for (const runtime::ValueName& name : runtime::redacted_values(input_.events)) {
    redacted.push_back(Value::object({{"field", name.field}, {"seq", name.seq}}));
  }
  return verifying_->take().to_json().with("redacted", Value::array(std::move(redacted)));
}

}  // namespace ae::api
