// Bodies of the routes about one job.
#include "api/views.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "api/budget_shortfall.h"
#include "api/command_line.h"
#include "api/open_requests.h"
#include "engine/state/state.h"
#include "engine/version/code_version.h"
#include "inspect/aliases.h"
#include "inspect/code_end.h"
#include "inspect/requests_view.h"
#include "inspect/trace.h"
#include "inspect/verify.h"
#include "inspect/view.h"
#include "json/json.h"
#include "log/field_names.h"
#include "log/seal.h"
#include "runtime/log_opener.h"
#include "runtime/row.h"
#include "runtime/service/redact.h"
#include "store/rules.h"

namespace ae::api {
namespace {

// Waits and requests beyond these are shown without arguments; `requests` has them.
constexpr std::size_t kArgumentsShown = 64;

// Each wait with its request, open or expired: the call to approve or the question of a tool. null
// = none.
std::vector<Value> with_questions(std::span<const Value> waits,
                                  const std::vector<Value>& requests) {
  std::map<std::string_view, const Value*> by_key;
  for (const Value& request : requests) {
    const Value& detail = request[field::detail];
    by_key[detail.text(field::correlation_key)] = &detail;
  }
  std::vector<Value> all;
  for (const Value& wait : waits) {
    const auto known = by_key.find(wait.text(field::correlation_key));
    const Value none{nullptr};
    const Value& found = known == by_key.end() ? none : *known->second;
    all.push_back(wait.with("answer", found["answer"])
                      .with(field::approval_id, found["id"])
                      .with(field::arguments,
                            all.size() < kArgumentsShown ? found[field::arguments] : Value())
                      .with("question", found["question"])
                      .with("tool", found["tool"]));
  }
  return all;
}

Value requests_of(std::vector<Value> requests, Instant now) {
  std::vector<Value> shown = open_requests(std::move(requests), now);
  for (std::size_t i = kArgumentsShown; i < shown.size(); ++i) {
    const Value& detail = shown[i][field::detail];
    if (detail.find(field::arguments) == nullptr) continue;
    shown[i] = shown[i].with(field::detail, detail.with(field::arguments, Value()));
  }
  return Value::array(std::move(shown));
}

Value with_expiry(const Value& wait, Instant now) {
  const auto expires = instant_from_text(wait.text(field::expires_at));
  const bool expired = expires && *expires <= now;
  if (!expired) return wait.with("expired", false);
  return wait.with("command", nullptr)
      .with(field::commands, Value::array({}))
      .with("expired", true);
}

}  // namespace

Value job_body(const runtime::JobSnapshot& read, Instant now) {
  Value body = with_all_commands(add_shortfall(read.state, engine::job_view(read.state)));
  std::vector<Value> requests = engine::requests_view(read.state);
  std::vector<Value> waits = with_questions(body[field::waits].items(), requests);
  for (Value& wait : waits) wait = with_expiry(wait, now);
  if (body["waiting"].is_object()) body = body.with("waiting", waits.front());
  body = body.with(field::waits, Value::array(std::move(waits)))
             .with("requests", requests_of(std::move(requests), now));
  if (body[field::labels].is_null()) body = body.with(field::labels, Value::object({}));
  // Its scheduling options.
  const Value& needed = read.state.required_capabilities;
  return body.with(field::priority, read.row.priority)
      .with(field::queue, read.row.queue)
      .with(field::required_capabilities, needed.is_array() ? needed : Value::array({}));
}

namespace {

// For a job of code whose worker is not connected.
Value without_worker_json(const std::string& agent, const Value& code) {
  const std::string_view version = code.text(field::version);
  return Value::object(
      {{field::commands, Value::array({})},
       {"message", fmt::format("it waits for a worker that offers the agent {}{}", agent,
                               version.empty() ? "" : fmt::format(", version {}", version))}});
}

// Which code the job runs; null: none. The plan of a code agent has one node of code.
Value code_agent_json(const engine::State& state) {
  if (!state.plan) return {};
  for (const engine::Node& node : state.plan->nodes) {
    if (!node.code) continue;
    return Value::object({{field::agent, node.code->agent},
                          {"language", node.code->language},
                          {field::version, engine::version_of_code(state, node.index)}});
  }
  return {};
}

}  // namespace

std::string JobFacts::text() const {
  std::string text = fmt::format("{}\n{}\n", has_no_owner ? "no owner" : "", refusal);
  if (!runs) return text;
  for (const std::string& capability : offered) text += capability + "\n";
  if (only_offer) {
    for (const std::string& agent : only_offer->agents) text += agent + "\n";
  }
  return text;
}

Value job_body(const runtime::JobSnapshot& read, const JobFacts& facts) {
  const Value body = job_body(read, facts.now);
  const store::AgentVersion* const version =
      facts.registry->find_version_with_plan(body.text(field::agent), body.text(field::plan_hash));
  std::optional<Value> unattended;
  if (store::is_runnable(read.row.status)) {
    if (facts.has_no_owner) {
      unattended = unattended_json(read.row);
    } else if (facts.only_offer && !read.row.claim) {
      unattended = not_offered_json(read.row, {*facts.only_offer});
      const Value* const code = version ? version->definition.find(field::code) : nullptr;
      if (unattended && code != nullptr) unattended = without_worker_json(read.row.agent, *code);
    }
  }
  return engine::with_aliases(
      body.with("code_agent", code_agent_json(read.state))
          .with("divergence", engine::divergence_view(read.state, read.events))
          .with("exception", engine::exception_view(read.state, read.events))
          .with("agent_version", version == nullptr ? Value() : Value(version->version))
          .with(engine::plain_name::kNoWorker, unattended.value_or(Value())));
}

Value add_needs_version(Value body, const store::JobRow& row, const JobFacts& facts) {
  if (!store::is_runnable(row.status)) return body;
  if (!facts.refusal.empty()) return body.with("needs_version", facts.refusal);
  if (!facts.runs) return body;
  const auto missing = std::ranges::find_if(row.capabilities, [&](const std::string& needed) {
    return std::ranges::find(facts.offered, needed) == facts.offered.end();
  });
  if (missing == row.capabilities.end()) return body;
  return body.with("needs_version", fmt::format("this process does not have {}", *missing));
}

Value trace_body(const runtime::JobSnapshot& read) {
  return engine::trace_view(read.state, read.events);
}

Result<Value> transcript_body(const JobId& job, const store::LoadedJob& loaded,
                              const engine::TranscriptPage& page,
                              const async::Interrupt& interrupt) {
  runtime::LogOpener opener(job, loaded, {});
  engine::TranscriptBuilder transcript(job, page, engine::uncached_plan_source());
  while (opener.next()) {
    for (const Event& event : opener.take_opened()) AE_TRY(transcript.add(event));
    if (interrupt.requested()) return std::unexpected(runtime::read_interrupted_error());
  }
  AE_TRY(opener.complete());
  return std::move(transcript).take();
}

namespace {

// Opens what can be opened: events, and the error of the first commit that fails.
void open_for_verification(const store::LoadedJob& loaded, const async::Interrupt& interrupt,
                           engine::VerifyInput& input) {
  std::map<Hash, const std::string*> blobs;
  for (const Blob& blob : loaded.blobs) blobs.emplace(blob.hash, &blob.bytes);
  const BlobSource source = [&blobs](const Hash& hash) -> Result<std::string> {
    if (const auto blob = blobs.find(hash); blob != blobs.end()) return *blob->second;
    return fail(Code::log_corrupt, "a blob is missing: {}", to_hex(hash));
  };
  Hash head;
  for (const std::string& bytes : loaded.commits) {
    if (interrupt.requested()) return;
    auto opened = open(input.job, bytes, head, source);
    if (!opened) {
      input.open_error = opened.error();
      return;
    }
    head = opened->head;
    for (Event& event : opened->events) input.events.push_back(std::move(event));
  }
}

// REQUIRES: the events are in the input.
void add_rows(const store::LoadedJob& loaded, engine::VerifyInput& input) {
  input.last_seq = loaded.row.last_seq;
  input.head = loaded.row.head;
  input.row = {.status = loaded.row.status,
               .agent = loaded.row.agent,
               .idempotency_key = loaded.row.idempotency_key,
               .labels = loaded.row.labels,
               .created_at = loaded.row.created_at,
               .request_hash = loaded.request_hash,
               .computed_request_hash = input.events.empty()
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
  for (const store::InboxEntry& entry : loaded.inbox) {
    input.inbox.emplace_back(entry.id, entry.request);
  }
  if (loaded.checkpoint) {
    input.checkpoint.emplace(loaded.checkpoint->seq, loaded.checkpoint->bytes);
  }
  input.signed_head = loaded.signed_head;
}

}  // namespace

Result<Value> verify_body(const JobId& job, const store::LoadedJob& loaded,
                          std::vector<PublicKey> keys, const async::Interrupt& interrupt) {
  engine::VerifyInput input{.job = job};
  input.keys = std::move(keys);
  open_for_verification(loaded, interrupt, input);
  add_rows(loaded, input);
  const engine::PlanSource plans = engine::uncached_plan_source();
  engine::IncrementalVerifier verifier(input, plans);
  while (!interrupt.requested()) {
    if (verifier.next()) continue;
    std::vector<Value> redacted;
    for (const runtime::ValueName& name : runtime::redacted_values(input.events)) {
      redacted.push_back(Value::object({{"field", name.field}, {"seq", name.seq}}));
    }
    return verifier.take().to_json().with("redacted", Value::array(std::move(redacted)));
  }
  return std::unexpected(runtime::read_interrupted_error());
}

}  // namespace ae::api
