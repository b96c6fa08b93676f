// The bodies of the routes that look at one job.
#include "api/views.h"

#include <map>
#include <span>
#include <utility>

#include "api/lacking.h"
#include "core/json.h"
#include "core/seal.h"
#include "engine/trace.h"
#include "engine/verify.h"
#include "engine/view.h"
#include "runtime/redact.h"
#include "runtime/row.h"

namespace ae::api {
namespace {

// With more of them a page is for a list, and `approvals` has it.
constexpr std::size_t kArgumentsShown = 64;

// Each wait with what a person is asked there: the call that is to be approved, or what its tool asks. null = nobody is.
std::vector<Value> with_asked(std::span<const Value> waits, const engine::State& state) {
  const std::vector<Value> asked = engine::approvals_view(state);
  std::map<std::string_view, const Value*> by_key;
  for (const Value& one : asked) by_key[one.text("correlation_key")] = &one;
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

Value with_expired(const Value& wait, Instant now) {
  const auto expires = instant_from_text(wait.text("expires_at"));
  const bool expired = expires && *expires <= now;
  if (!expired) return wait.with("expired", false);
  return wait.with("command", nullptr).with("commands", Value::array({})).with("expired", true);
}

}  // namespace

Value job_body(const runtime::Runtime::Read& read, Instant now) {
  Value body = with_lacking(read.state, engine::job_view(read.state));
  std::vector<Value> waits = with_asked(body["waits"].items(), read.state);
  for (Value& wait : waits) wait = with_expired(wait, now);
  if (body["waiting"].is_object()) body = body.with("waiting", waits.front());
  body = body.with("waits", Value::array(std::move(waits)));
  if (body["labels"].is_null()) body = body.with("labels", Value::object({}));
  // How it stands in line.
  const Value needed =
      read.events.empty() ? Value() : read.events.front().payload["required_capabilities"];
  return body.with("priority", read.row.priority)
      .with("queue", read.row.queue)
      .with("required_capabilities", needed.is_array() ? needed : Value::array({}));
}

Value trace_body(const runtime::Runtime::Read& read) {
  return engine::trace_view(read.state, read.events);
}

Result<Value> replay_body(const runtime::Runtime::Read& read, std::uint64_t seq) {
  std::vector<Event> events;
  for (const Event& event : read.events) {
    if (event.seq <= seq) events.push_back(event);
  }
  AE_ASSIGN(const engine::State state,
            engine::fold(read.state.job, events, engine::compile_each_time()));
  return engine::state_view(state).with("at", seq);
}

Value verify_body(const JobId& job, const store::Loaded& loaded,
                  const std::vector<PublicKey>& keys) {
  const BlobSource blobs = [&](const Hash& hash) -> Result<std::string> {
    for (const Blob& blob : loaded.blobs) {
      if (blob.hash == hash) return blob.bytes;
    }
    return fail(Code::log_corrupt, "a value that stands apart is missing: " + to_hex(hash));
  };
  engine::VerifyInput input{.job = job};
  Hash head;
  for (const std::string& bytes : loaded.commits) {
    auto opened = open(job, bytes, head, blobs);
    if (!opened) {
      input.refused = opened.error();
      break;
    }
    head = opened->head;
    for (Event& event : opened->events) input.events.push_back(std::move(event));
  }
  input.last_seq = loaded.row.last_seq;
  input.head = loaded.row.head;
  input.row = {.status = loaded.row.status,
               .agent = loaded.row.agent,
               .idempotency_key = loaded.row.idempotency_key,
               .labels = loaded.row.labels,
               .created_at = loaded.row.created_at,
               .request_hash = loaded.request_hash,
               .of_the_request = input.events.empty()
                                     ? std::nullopt
                                     : runtime::request_hash_of(input.events.front()),
               .commits = loaded.commit_count,
               .commits_read = loaded.commits.size()};
  for (const store::EffectRow& row : loaded.effects) {
    input.effects.push_back({row.invocation, row.try_no, row.record});
  }
  for (const store::LedgerRow& row : loaded.ledger) {
    input.ledger.push_back({row.invocation, row.try_no, row.state, row.record});
  }
  for (const store::InboxEntry& entry : loaded.inbox) input.inbox.emplace_back(entry.id, entry.act);
  if (loaded.checkpoint) input.checkpoint.emplace(loaded.checkpoint->seq, loaded.checkpoint->bytes);
  input.signed_head = loaded.signed_head;
  input.keys = keys;
  std::vector<Value> redacted;
  for (const runtime::ValueName& name : runtime::redacted_values(input.events)) {
    redacted.push_back(Value::object({{"field", name.field}, {"seq", name.seq}}));
  }
  return engine::verify(input, engine::compile_each_time())
      .to_json()
      .with("redacted", Value::array(std::move(redacted)));
}

}  // namespace ae::api
