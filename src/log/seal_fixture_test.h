// Shared by the tests of seal, open and redact: a log in memory, and sample events of every kind.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "json/json.h"
#include "log/chain.h"
#include "log/seal.h"

namespace ae::testing {

inline const JobId kJob("job-1");
inline const std::string kStep = "baeb6f1c8b06de2e";
inline const AttemptId kAttempt("01890a5d-ac96-774b-bcce-b302099a8057");
inline const std::string kDigest(64, 'd');

inline Value json(std::string_view text) { return parse_json(text).value(); }

// A log as a store holds it.
struct Log {
  JobId job = kJob;
  Hash head;
  std::uint64_t next = 1;
  std::vector<std::string> batches;
  std::map<Hash, std::string> blobs;
  std::vector<Event> events;

  BlobSource source() const {
    return [this](const Hash& hash) -> Result<std::string> {
      const auto found = blobs.find(hash);
      if (found == blobs.end()) return fail(Code::log_corrupt, "no such blob");
      return found->second;
    };
  }
  SealedBatch add(const std::vector<EventBody>& drafts, std::optional<AttemptId> attempt = {},
                  const SealLimits& limits = {}) {
    const SealInput input{.job = job,
                          .first_seq = next,
                          .prev_hash = head,
                          .first_id = uuid_v7(1'700'000'000'000 + next, 7, next * 1000),
                          .created_at = Instant{1'700'000'000'123'456},
                          .attempt_id = std::move(attempt),
                          .salt_seed_a = 11,
                          .salt_seed_b = next};
    SealedBatch sealed = seal(input, drafts, limits).value();
    for (const Blob& blob : sealed.blobs) blobs[blob.hash] = blob.bytes;
    batches.push_back(sealed.bytes);
    events.insert(events.end(), sealed.events.begin(), sealed.events.end());
    head = sealed.head;
    next = sealed.last_seq + 1;
    return sealed;
  }
  Result<OpenedBatch> open_first() const { return open(job, batches.at(0), Hash{}, source()); }
};

inline std::string payload(const Event& event) { return canonical(payload_json(event.body)); }

inline std::string log_text(const std::vector<Event>& events) {
  std::string out;
  for (const Event& event : events) out += canonical(envelope(kJob, event)) + "\n";
  return out;
}

inline std::string refusal(const Result<OpenedBatch>& opened) {
  return opened ? "accepted"
                : fmt::format("{}: {}", code_name(opened.error().code), opened.error().message);
}

// A payload with every field of its kind, or only the required ones.
inline Value sample(const EventKind& kind, bool every) {
  std::vector<Member> members;
  for (const Field& field : kind.fields) {
    if (!every && !field.required) continue;
    const auto value = [&]() -> Value {
      switch (field.kind) {
        case FieldKind::text:
          return fmt::format("text \u20ac of {}", field.name);
        case FieldKind::word:
          return every ? "success" : "a word of its own";
        case FieldKind::id8:
          return field.name == "step_id" ? kStep : "0123456789abcdef";
        case FieldKind::hash32:
          return kDigest;
        case FieldKind::uuid:
          return "01234567-89ab-7def-8123-456789abcdef";
        case FieldKind::integer:
          return every ? 9007199254740991 : std::int64_t{-1};
        case FieldKind::boolean:
          return every;
        case FieldKind::instant:
          return "2025-01-31T09:30:00.000001Z";
        case FieldKind::json:
          return every ? json(R"({"b":[1,2.5],"a":{"\ud83d\ude00":null}})") : Value();
        case FieldKind::value:
          return every ? json(R"({"total":12.5,"lines":["x",null,true]})") : Value();
        case FieldKind::error:
          return Value::object({{"code", "timeout"}, {"message", "it took too long"}});
        case FieldKind::external_key:
          return every ? external_key(kJob, StepId(kStep)).text : "their own key";
      }
      return {};
    };
    members.emplace_back(field.name, value());
  }
  return Value::object(std::move(members));
}

inline ToolInvocationStarted sample_call() {
  const EventType type = ToolInvocationStarted::kType;
  return std::get<ToolInvocationStarted>(event_of(type, sample(*event_kind(type), true)));
}

// The seven events of one step: the end of one call and the start of the next.
inline std::vector<EventBody> one_step() {
  std::vector<EventBody> drafts;
  for (const EventType type :
       {EventType::tool_invocation_finished, EventType::command_committed, EventType::node_finished,
        EventType::step_committed, EventType::node_started, EventType::command_emitted,
        EventType::tool_invocation_started}) {
    drafts.push_back(event_of(type, sample(*event_kind(type), true)));
  }
  return drafts;
}

// The start of a model call with these messages.
inline EventBody model_call(std::vector<Value> messages, std::string tool = "model:main") {
  ToolInvocationStarted call = sample_call();
  call.tool_name = std::move(tool);
  call.arguments = Value::object({{"max_tokens", 9},
                                  {"messages", Value::array(std::move(messages))},
                                  {"model", "small \u20ac"}});
  return call;
}

inline Value message(const std::string& content) {
  return Value::object({{"content", content}, {"role", "user"}});
}

inline std::vector<EventBody> two_values() {
  return {JobCompleted{.result = json(R"({"secret":"xyzzy"})")},
          NodeFinished{.error = RecordedError{"c", Value("private words")},
                       .node_id = "n",
                       .result_type = "permanent_failure",
                       .step_id = StepId(kStep),
                       .try_no = 2}};
}

inline EventBody map_decision() {
  return DecisionRecorded{.decision_id = DecisionId("0123456789abcdef"),
                          .kind = "branch",
                          .node_id = "m",
                          .payload = Value::array({"ada@x.org", "bob@x.org"}),
                          .step_id = StepId(kStep)};
}

// Redacts the list of its map, but retains the length.
inline Result<std::string> redact_items(const Log& log, std::size_t batch) {
  Hash before;
  for (std::size_t i = 0; i < batch; ++i) {
    before = open(log.job, log.batches[i], before, log.source()).value().head;
  }
  return redact(
      log.job, log.batches[batch], before, log.source(),
      [](const Event&, std::string_view) { return true; },
      [](const Event&, std::string_view) { return Value::object({{"items", 2}}); });
}

inline EventBody started_under(std::string_view last) {
  ToolInvocationStarted call = sample_call();
  call.external_key = ExternalKey(fmt::format("aetheris:job-1:{}:{}", kStep, last));
  call.idempotency_key = IdempotencyKey("0123456789abcdef" + std::string(48, '7'));
  return call;
}

}  // namespace ae::testing
