#include "log/seal.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <sstream>

#include "base/bytes.h"
#include "json/json.h"
#include "log/chain.h"
#include "log/redacted.h"
#include "log/sealed_form.h"
#include "log/words.h"
#include "testing/test.h"

namespace ae {
namespace {

const JobId kJob("job-1");
const std::string kStep = "baeb6f1c8b06de2e";
const AttemptId kAttempt("01890a5d-ac96-774b-bcce-b302099a8057");
const std::string kDigest(64, 'd');

Value json(std::string_view text) { return parse_json(text).value(); }

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

std::string payload(const Event& event) { return canonical(payload_json(event.body)); }

std::string log_text(const std::vector<Event>& events) {
  std::string out;
  for (const Event& event : events) out += canonical(envelope(kJob, event)) + "\n";
  return out;
}

std::string refusal(const Result<OpenedBatch>& opened) {
  return opened ? "accepted"
                : std::string(code_name(opened.error().code)) + ": " + opened.error().message;
}

// A payload with every field of its kind, or only the required ones.
Value sample(const EventKind& kind, bool every) {
  std::vector<Member> members;
  for (const Field& field : kind.fields) {
    if (!every && !field.required) continue;
    const auto value = [&]() -> Value {
      switch (field.kind) {
        case FieldKind::text:
          return "text \u20ac of " + std::string(field.name);
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

ToolInvocationStarted sample_call() {
  const EventType type = ToolInvocationStarted::kType;
  return std::get<ToolInvocationStarted>(event_of(type, sample(*event_kind(type), true)));
}

// The seven events of one step: the end of one call and the start of the next.
std::vector<EventBody> one_step() {
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
EventBody model_call(std::vector<Value> messages, std::string tool = "model:main") {
  ToolInvocationStarted call = sample_call();
  call.tool_name = std::move(tool);
  call.arguments = Value::object({{"max_tokens", 9},
                                  {"messages", Value::array(std::move(messages))},
                                  {"model", "small \u20ac"}});
  return call;
}

Value message(const std::string& content) {
  return Value::object({{"content", content}, {"role", "user"}});
}

std::vector<EventBody> two_values() {
  return {JobCompleted{.result = json(R"({"secret":"xyzzy"})")},
          NodeFinished{.error = RecordedError{"c", Value("private words")},
                       .node_id = "n",
                       .result_type = "permanent_failure",
                       .step_id = StepId(kStep),
                       .try_no = 2}};
}

EventBody map_decision() {
  return DecisionRecorded{.decision_id = DecisionId("0123456789abcdef"),
                          .kind = "branch",
                          .node_id = "m",
                          .payload = Value::array({"ada@x.org", "bob@x.org"}),
                          .step_id = StepId(kStep)};
}

// Redacts the list of its map, but retains the length.
Result<std::string> without_items(const Log& log, std::size_t batch) {
  Hash before;
  for (std::size_t i = 0; i < batch; ++i) {
    before = open(log.job, log.batches[i], before, log.source()).value().head;
  }
  return redact(
      log.job, log.batches[batch], before, log.source(),
      [](const Event&, std::string_view) { return true; },
      [](const Event&, std::string_view) { return Value::object({{"items", 2}}); });
}

EventBody started_under(std::string_view last) {
  ToolInvocationStarted call = sample_call();
  call.external_key = ExternalKey("aetheris:job-1:" + kStep + ":" + std::string(last));
  call.idempotency_key = IdempotencyKey("0123456789abcdef" + std::string(48, '7'));
  return call;
}

AE_TEST("log/seal/an external key that follows from its event takes no room") {
  std::map<std::string, std::size_t> sizes;
  for (const std::string& last : {std::string("0"), std::string("0123456789abcdef"),
                                  std::string("att"), std::string("own")}) {
    Log log;
    log.add({started_under(last)}, AttemptId("att"));
    const auto opened = log.open_first();
    ASSERT_TRUE(opened) << opened.error().message;
    EXPECT_EQ(opened->events[0].schema, 2);
    EXPECT_EQ(as<ToolInvocationStarted>(opened->events[0])->external_key.text,
              "aetheris:job-1:" + kStep + ":" + last);
    sizes[last] = log.batches[0].size();
  }
  EXPECT_EQ(sizes["0"], sizes["att"]);
  EXPECT_EQ(sizes["0"], sizes["0123456789abcdef"]);
  EXPECT_GT(sizes["own"], sizes["0"] + 30);
}

AE_TEST("log/seal/of an erased decision something may be left, in one form only") {
  Log log;
  log.add({map_decision()});
  const Hash head = log.open_first().value().head;
  const auto left = without_items(log, 0);
  ASSERT_TRUE(left) << left.error().message;
  EXPECT_EQ(left->find("ada@x.org"), std::string::npos);
  log.batches[0] = *left;
  const auto opened = log.open_first();
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(opened->head, head);
  const auto& decision = *as<DecisionRecorded>(opened->events[0]);
  EXPECT_TRUE(decision.payload.erased);
  EXPECT_EQ(decision.payload.value_or_retained(), json(R"({"items":2})"));
  // Redacting again changes nothing, and a retained part that is not an object is rejected.
  EXPECT_EQ(without_items(log, 0).value(), *left);
  std::string list = *left;
  list.replace(list.find(R"({"items":2})"), 11, R"(["items:2"])");
  log.batches[0] = list;
  EXPECT_NE(refusal(log.open_first()).find("not an object"), std::string::npos);
}

AE_TEST("log/seal/the vectors of earlier schemas are read as they were") {
  const char* root = std::getenv("AETHERIS_ROOT");
  if (root == nullptr) GTEST_SKIP() << "set AETHERIS_ROOT to the folder of the sources";
  std::ostringstream stored;
  stored << std::ifstream(std::filesystem::path(root) / "testdata/vectors/chain_1.json",
                          std::ios::binary)
                .rdbuf();
  const Value vectors = parse_json(stored.str()).value();
  std::size_t seen = 0;
  for (const Value& log : vectors["logs"].items()) {
    const BlobSource blobs = [&](const Hash& hash) -> Result<std::string> {
      return std::string(log["blobs"].text(to_hex(hash)));
    };
    Hash head;
    std::size_t next = 0;
    for (const Value& batch : log["sealed_batches"].items()) {
      const auto opened = open(kJob, *from_hex(batch.as_string()), head, blobs);
      ASSERT_TRUE(opened) << opened.error().message;
      head = opened->head;
      for (const Event& event : opened->events) {
        EXPECT_EQ(envelope(kJob, event), log["events"].items()[next++]);
        seen++;
      }
    }
    EXPECT_EQ(to_hex(head), log.text("head"));
  }
  EXPECT_GT(seen, 70u);
}

AE_TEST("log/seal/every kind of event comes back as it was sealed") {
  for (const EventKind& kind : event_kinds()) {
    for (const bool every : {true, false}) {
      for (const bool attempt : {true, false}) {
        Log log;
        const SealedBatch sealed = log.add({event_of(kind.type, sample(kind, every))},
                                           attempt ? std::optional(kAttempt) : std::nullopt);
        const auto opened = log.open_first();
        ASSERT_TRUE(opened) << kind.name << ": " << opened.error().message;
        EXPECT_EQ(log_text(opened->events), log_text(sealed.events));
        EXPECT_TRUE(opened->events[0].body == sealed.events[0].body) << kind.name;
        EXPECT_EQ(payload(opened->events[0]), canonical(sample(kind, every))) << kind.name;
        EXPECT_EQ(opened->head, sealed.head);
        EXPECT_EQ(opened->last_seq, 1u);
      }
    }
  }
}

AE_TEST("log/seal/what an earlier program would take for something else has a later schema") {
  const auto schema = [](const EventBody& body) {
    Log log;
    log.add({body}, kAttempt);
    const auto opened = log.open_first();
    EXPECT_TRUE(opened);
    return int{opened->events[0].schema};
  };
  const auto ended = [&](std::string_view outcome) {
    return schema(ToolInvocationFinished{.invocation_id = InvocationId(kStep),
                                         .outcome = std::string(outcome),
                                         .step_id = StepId(kStep),
                                         .try_no = 1});
  };
  EXPECT_EQ(ended("success"), 1);
  EXPECT_EQ(ended("unknown"), 1);
  EXPECT_EQ(ended("input_required"), 2);
  const auto decided = [&](std::string_view kind, std::string_view state) {
    return schema(DecisionRecorded{.decision_id = DecisionId(kStep),
                                   .kind = std::string(kind),
                                   .payload = json("{}"),
                                   .state = std::string(state)});
  };
  for (const char* state : {"requested", "approved", "rejected"}) {
    EXPECT_EQ(decided("approval", state), 1) << state;
  }
  EXPECT_EQ(decided("approval", "edited"), 2);
  EXPECT_EQ(decided("approval", "denied"), 2);
  EXPECT_EQ(decided("retry", "denied"), 1);
  const auto created = [&](std::string_view budget) {
    return schema(JobCreated{
        .agent = "a", .budget = json(budget), .execution_version = "1", .input = json("{}")});
  };
  EXPECT_EQ(created(R"({"tokens":1})"), 1);
  EXPECT_EQ(created(R"({"tokens":1,"spent":{"tokens":1}})"), 2);
  const auto planned = [&](std::string_view graph) {
    return schema(PlanGenerated{
        .decision_id = DecisionId(kStep), .schema_version = 1, .task_graph = json(graph)});
  };
  EXPECT_EQ(planned(R"({"nodes":[],"schema":1})"), 1);
  EXPECT_EQ(planned(R"({"conditions":"strict","nodes":[],"schema":1})"), 2);
  EXPECT_EQ(planned(R"({"conditions":"strict","tools":{"t":{},"u":{"records":"time"}}})"), 3);
  const auto imported = [&](std::string_view commands) {
    return schema(ForkImported{.commands = json(commands), .results = json("{}")});
  };
  EXPECT_EQ(imported(R"([{"node_id":"a","step_id":"s"}])"), 1);
  EXPECT_EQ(imported(R"([{"node_id":"a","step_id":"s","under_way":true},{"turn":0}])"), 2);
}

AE_TEST("log/seal/batches chain: the head of one is the start of the next") {
  Log log;
  log.add(one_step());
  log.add(one_step(), kAttempt);
  log.add({JobResumed{.by = "ann"}}, AttemptId("worker 7, try 3"));
  Hash head;
  std::vector<Event> events;
  for (const std::string& batch : log.batches) {
    const auto opened = open(kJob, batch, head, log.source());
    ASSERT_TRUE(opened) << opened.error().message;
    head = opened->head;
    events.insert(events.end(), opened->events.begin(), opened->events.end());
  }
  EXPECT_EQ(head, log.head);
  EXPECT_EQ(log_text(events), log_text(log.events));
  EXPECT_EQ(events.size(), 15u);
  for (std::size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].seq, i + 1);
    EXPECT_EQ(events[i].prev_hash, i == 0 ? Hash{} : events[i - 1].hash);
  }
  EXPECT_EQ(events[14].attempt_id->text, "worker 7, try 3");
  EXPECT_FALSE(open(kJob, log.batches[1], Hash{}, log.source())) << "another start is noticed";
  EXPECT_FALSE(open(JobId("job-2"), log.batches[0], Hash{}, log.source())) << "another job too";
}

AE_TEST("log/seal/the bytes and the hash of version 1 never change") {
  // The hash was computed from SPEC §13 with Python's hashlib.
  Log log;
  const SealedBatch sealed = log.add({JobResumed{.by = "ann"}}, kAttempt);
  const std::string hash = "830a7f6491a1bb8d64abd7258fe74962b4c3344bb37b29eb8346f82fd6ec3cd4";
  EXPECT_EQ(to_hex(sealed.head), hash);
  EXPECT_EQ(to_hex(sealed.bytes),
            "01"                                // version
            "018bcfe56801700780000000000003e8"  // first event id
            "00060a2418202240"                  // created_at
            "01"
            "01890a5dac96774bbcceb302099a8057"  // attempt
            "01"
            "01"  // one event, from seq 1
            "24"
            "01"
            "05"
            "01"
            "03616e6e"  // job_resumed, schema 1, five bytes: by = "ann"
                + hash);
}

AE_TEST("log/seal/absent members are dropped, a null that is a value stays") {
  Log log;
  const SealedBatch sealed = log.add(
      {event_of(EventType::job_cancelled, json(R"({"by":null,"reason":"tired","in_doubt":null})")),
       event_of(EventType::job_completed, json(R"({"result":null})"))});
  EXPECT_EQ(payload(sealed.events[0]), R"({"reason":"tired"})");
  EXPECT_TRUE(sealed.events[0].salts.is_null());
  EXPECT_EQ(payload(sealed.events[1]), R"({"result":null})");
  EXPECT_EQ(sealed.events[1].salts.text("result").size(), 32u);
  EXPECT_EQ(log_text(log.open_first()->events), log_text(sealed.events));
}

AE_TEST("log/seal/equal values get different salts, equal seeds the same ones") {
  Log log;
  Log again;
  for (Log* each : {&log, &again}) {
    each->add({JobCompleted{.result = Value(1)}, JobCompleted{.result = Value(1)},
               JobCompleted{.result = Value(1)}});
  }
  EXPECT_NE(log.events[0].salts, log.events[1].salts);
  EXPECT_NE(log.events[1].salts, log.events[2].salts);
  EXPECT_NE(log.events[0].salts, log.events[2].salts);
  EXPECT_EQ(log.batches, again.batches);
}

AE_TEST("log/seal/large values stand apart by hash, once") {
  const Value large = std::string(300, 'x');
  Log log;
  const SealedBatch sealed = log.add({JobCompleted{.result = large}, JobCompleted{.result = large},
                                      JobCancelled{.in_doubt = large}},
                                     {}, {.value_inline_max = 301, .json_inline_max = 301});
  ASSERT_EQ(sealed.blobs.size(), 1u);
  EXPECT_EQ(sealed.blobs[0].bytes, canonical(large));
  EXPECT_EQ(sealed.blobs[0].hash, sha256(canonical(large)));
  EXPECT_EQ(log_text(log.open_first()->events), log_text(sealed.events));

  Log inside;
  EXPECT_TRUE(
      inside.add({JobCompleted{.result = large}}, {}, {.value_inline_max = 302}).blobs.empty());
}

AE_TEST("log/seal/a value of 256 KiB stands in its event, a larger one apart") {
  constexpr std::size_t kMost = 256u << 10;
  const auto blobs_of = [](std::size_t bytes) {
    const Value text = std::string(bytes - 2, 'x');  // and two quotes
    Log log;
    const SealedBatch sealed = log.add({JobCompleted{.result = text}}, {});
    EXPECT_EQ(as<JobCompleted>(log.open_first()->events.at(0))->result.value, text);
    return sealed.blobs.size();
  };
  EXPECT_EQ(blobs_of(kMost), 0u);
  EXPECT_EQ(blobs_of(kMost + 1), 1u);
}

AE_TEST("log/seal/what a model is asked stands apart message by message, each message once") {
  const std::string first(100, 'a');
  const std::string second = std::string(100, 'b') + "\"\u20ac";
  const std::string third(300'000, 'c');
  Log log;
  const SealedBatch one = log.add({model_call({message(first), message(second)})}, kAttempt);
  const SealedBatch two = log.add({model_call({message(first), message(second), message(third)})});
  ASSERT_EQ(one.blobs.size(), 2u);
  EXPECT_EQ(one.blobs[0].bytes, canonical(message(first)));
  EXPECT_EQ(one.blobs[1].bytes, canonical(message(second)));
  EXPECT_EQ(log.blobs.size(), 3u);  // the second call repeats two of them
  EXPECT_LT(one.bytes.size(), 500u);
  EXPECT_LT(two.bytes.size(), one.bytes.size() + 100);
  const auto opened = log.open_first();
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(log_text(opened->events), log_text(one.events));
  const auto next = open(kJob, log.batches[1], opened->head, log.source());
  ASSERT_TRUE(next) << next.error().message;
  EXPECT_EQ(log_text(next->events), log_text(two.events));
  EXPECT_EQ(as<ToolInvocationStarted>(next->events[0])->arguments.value["messages"].items()[2],
            message(third));
}

AE_TEST("log/seal/the chain does not know how the messages to a model are stored") {
  Log apart;
  Log here;
  apart.add({model_call({message(std::string(99, 'a')), message("b")})});
  here.add({model_call({message(std::string(99, 'a')), message("b")})}, {},
           {.message_inline_max = 1000});
  EXPECT_EQ(apart.head, here.head);
  EXPECT_EQ(apart.blobs.size(), 1u);
  EXPECT_TRUE(here.blobs.empty());
  EXPECT_TRUE(here.open_first());
  // A tool's arguments are not split, whatever they look like.
  Log tool;
  tool.add({model_call({message(std::string(99, 'a')), message("b")}, "ask")});
  EXPECT_TRUE(tool.blobs.empty());
  EXPECT_TRUE(tool.open_first());
}

AE_TEST("log/seal/requests of every shape come back as they were sealed") {
  const auto requested = [](const char* arguments, const SealLimits& limits = {}) {
    Log log;
    EventBody draft = model_call({});
    std::get<ToolInvocationStarted>(draft).arguments = json(arguments);
    log.add({draft}, {}, limits);
    const auto opened = log.open_first();
    EXPECT_TRUE(opened) << arguments;
    if (opened) {
      EXPECT_EQ(canonical(as<ToolInvocationStarted>(opened->events[0])->arguments.value),
                arguments);
    }
    return log.blobs.size();
  };
  const SealLimits each{.message_inline_max = 0};
  EXPECT_EQ(requested(R"({"messages":[1,"two",[3],{},null,1]})", each), 5u);
  EXPECT_EQ(requested(R"({"a":{"messages":[1]},"messages":[[",",1],2]})", each), 2u);
  EXPECT_EQ(requested(R"({"\"messages\":[":[1],"messages":[1],"z":[1]})", each), 1u);
  for (const char* other : {R"({})", R"({"messages":[]})", R"({"messages":7})",
                            R"({"message":[1]})", "[1]", "null", "\"messages\""}) {
    EXPECT_EQ(requested(other, each), 0u);
  }
  // The rest of the request is too large to be inline: the whole request is a blob.
  EXPECT_EQ(requested(R"({"messages":["x","y"],"z":"0123456789012345678901234567890123456789"})",
                      {.value_inline_max = 40, .message_inline_max = 0}),
            1u);
}

AE_TEST("log/seal/a request that is redacted is gone, and the chain still holds") {
  Log log;
  const SealedBatch sealed = log.add({model_call({message(std::string(99, 'a')), message("b")})});
  const auto redacted =
      redact(kJob, sealed.bytes, Hash{}, log.source(),
             [](const Event&, std::string_view field) { return field == "arguments"; });
  ASSERT_TRUE(redacted);
  log.blobs.clear();
  const auto opened = open(kJob, *redacted, Hash{}, log.source());
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(opened->head, sealed.head);
  const Erasable& arguments = as<ToolInvocationStarted>(opened->events[0])->arguments;
  EXPECT_TRUE(arguments.erased);
  EXPECT_TRUE(is_redacted(arguments.value));
}

AE_TEST("log/seal/a message that is missing or altered is noticed") {
  Log log;
  log.add({model_call({message(std::string(99, 'a'))})});
  std::string& blob = log.blobs.begin()->second;
  blob[20] = 'b';
  EXPECT_TRUE(refusal(log.open_first()).starts_with("log_corrupt: event 1: the value kept apart"))
      << refusal(log.open_first());
  log.blobs.clear();
  EXPECT_EQ(refusal(log.open_first()), "log_corrupt: event 1: no such blob");
}

AE_TEST("log/seal/a blob that is missing, altered or cut is noticed, with the event's number") {
  Log log;
  log.add({JobCancelled{.by = "ann"}, JobCompleted{.result = Value(std::string(300, 'x'))}}, {},
          {.value_inline_max = 8});
  std::string& blob = log.blobs.begin()->second;
  const std::string original = blob;
  ASSERT_TRUE(log.open_first());
  blob[7] = 'y';
  EXPECT_TRUE(refusal(log.open_first()).starts_with("log_corrupt: event 2: "))
      << refusal(log.open_first());
  blob = original.substr(1);
  EXPECT_FALSE(log.open_first());
  log.blobs.clear();
  EXPECT_EQ(refusal(log.open_first()), "log_corrupt: event 2: no such blob");
}

AE_TEST("log/seal/a value that the reader knows is taken, and its bytes are proved all the same") {
  Log log;
  const Value graph = json(R"({"nodes":[{"id":"a"},{"id":"b"}],"schema":1})");
  const std::vector<EventBody> drafts = {
      PlanGenerated{.decision_id = DecisionId("0123456789abcdef"),
                    .decision_locked = true,
                    .plan_hash = *hash_from_hex(kDigest),
                    .plan_input_hash = *hash_from_hex(kDigest),
                    .planned_by = "file",
                    .planner_version = "1",
                    .schema_version = 1,
                    .task_graph = graph}};
  log.add(drafts, {}, {.json_inline_max = 8});
  ASSERT_EQ(log.blobs.size(), 1u);
  int requests = 0;
  const ValueLookup known = [&](const Hash& hash) {
    ++requests;
    return hash == sha256(canonical(graph)) ? &graph : nullptr;
  };
  const auto opened = open(kJob, log.batches[0], Hash{}, log.source(), known);
  ASSERT_TRUE(opened) << refusal(opened);
  EXPECT_EQ(requests, 1);
  EXPECT_EQ(log_text(opened->events), log_text(log.events));
  EXPECT_EQ(log_text(opened->events), log_text(log.open_first()->events));
  const ValueLookup nothing = [](const Hash&) -> const Value* { return nullptr; };
  EXPECT_TRUE(open(kJob, log.batches[0], Hash{}, log.source(), nothing));
  log.blobs.begin()->second[2] = 'N';
  EXPECT_TRUE(refusal(open(kJob, log.batches[0], Hash{}, log.source(), known))
                  .starts_with("log_corrupt: event 1: "));
  EXPECT_EQ(requests, 1) << "only of a value whose bytes have the hash";
}

AE_TEST("log/seal/a store that cannot be asked for a blob is not a corrupt log") {
  Log log;
  log.add({JobCompleted{.result = Value(std::string(300, 'x'))}}, {}, {.value_inline_max = 8});
  const BlobSource down = [](const Hash&) -> Result<std::string> {
    return fail(Code::unavailable, "no connection");
  };
  EXPECT_EQ(open(kJob, log.batches[0], Hash{}, down).error().code, Code::unavailable);
}

AE_TEST("log/seal/a value above the limit is refused and named") {
  const SealInput input{
      .job = kJob, .first_seq = 1, .prev_hash = Hash{}, .salt_seed_a = 1, .salt_seed_b = 2};
  const auto sealed = seal(input, {JobCompleted{.result = Value("12345678")}}, {.value_max = 9});
  ASSERT_FALSE(sealed);
  EXPECT_EQ(sealed.error().code, Code::payload_too_large);
  EXPECT_EQ(sealed.error().message, "result has 10 bytes; at most 9 are kept");
}

AE_TEST("log/seal/a payload that does not fit its kind is a bug of ours") {
  Log log;
  EXPECT_DEATH(log.add({event_of(EventType::job_resumed, json("{}"))}), "by is missing");
  EXPECT_DEATH(log.add({event_of(EventType::job_resumed, json(R"({"by":"a","x":1})"))}),
               "not a field");
  EXPECT_DEATH(log.add({event_of(EventType::job_resumed, Value::object({{"by", "\xff"}}))}),
               "is_utf8");
  EXPECT_DEATH(log.add({event_of(EventType::job_completed, Value::object({{"result", "\xff"}}))}),
               "is_utf8");
  EXPECT_DEATH(log.add({JobResumed{.by = "\xff"}}), "is_utf8");
  EXPECT_DEATH(log.add({StepCommitted{.step_id = StepId("x")}}), "not hex");
  EXPECT_DEATH(log.add({OutcomeNoted{}}), "not hex");
  EXPECT_DEATH(log.add({JobRunning{.attempt_id = "a", .epoch = std::int64_t{1} << 53}}),
               "too large");
  EXPECT_DEATH(log.add({}), "empty");
}

// Flips one bit of every byte of a batch (a different one for each byte), or each of the eight.
void flip(bool each_bit) {
  Log log;
  std::vector<EventBody> drafts = one_step();
  drafts.push_back(model_call({message(std::string(70, 'a')), message("b")}));
  log.add(drafts, kAttempt, {.value_inline_max = 20, .json_inline_max = 20});
  ASSERT_FALSE(log.blobs.empty());
  const std::string original = log.batches[0];
  for (std::size_t i = 0; i < original.size(); ++i) {
    for (std::size_t bit = 0; bit < 8; ++bit) {
      if (!each_bit && bit != i % 8) continue;
      std::string& bytes = log.batches[0] = original;
      bytes[i] = static_cast<char>(bytes[i] ^ (1 << bit));
      ASSERT_FALSE(log.open_first()) << "byte " << i << ", bit " << bit;
    }
  }
  log.batches[0] = original;
  for (auto& [hash, blob] : log.blobs) {
    for (char& c : blob) {
      c = static_cast<char>(c ^ 1);
      ASSERT_FALSE(log.open_first());
      c = static_cast<char>(c ^ 1);
    }
  }
  EXPECT_TRUE(log.open_first());
}

AE_TEST("log/seal/every single flipped byte of a sealed batch and its blobs is noticed") {
  flip(false);
}

AE_TEST_SLOW("log/seal/every single flipped bit of a sealed batch is noticed") { flip(true); }

AE_TEST("log/seal/a batch cut at any length, or with more behind it, is refused") {
  Log log;
  log.add(one_step(), kAttempt);
  const std::string original = log.batches[0];
  for (std::size_t size = 0; size < original.size(); ++size) {
    log.batches[0] = original.substr(0, size);
    ASSERT_FALSE(log.open_first()) << size;
  }
  log.batches[0] = original + '\0';
  EXPECT_FALSE(log.open_first());
}

// Changes, inserts, removes and repeats bytes. The trailer is unchanged, so another encoding of the
// same events would pass the hash check: none may be accepted.
void mutate(int rounds) {
  Log log;
  log.add(one_step(), kAttempt);
  log.add({Progress{.detail = json(R"({"percent":50})"), .node_id = "n"},
           model_call({message(std::string(70, 'a')), message("b"), Value(1)}),
           JobCompleted{.result = json(R"({"a":[1,2,3]})")}});
  const char* seed_text = std::getenv("AETHERIS_SEED");
  const std::uint64_t seed =
      seed_text == nullptr ? 20250131 : std::strtoull(seed_text, nullptr, 10);
  std::mt19937_64 random(seed);
  for (int round = 0; round < rounds; ++round) {
    const std::size_t which = random() % 2;
    const std::string& original = log.batches[which];
    std::string bytes = original;
    for (std::uint64_t changes = 1 + random() % 3; changes-- > 0;) {
      const std::size_t at = random() % (bytes.size() - kHashSize);
      const std::uint64_t kind = random() % 5;
      const auto byte = static_cast<char>(random() % 3 == 0 ? random() : random() % 8);
      if (kind <= 1) bytes[at] = byte;
      if (kind == 2) bytes.insert(at, 1, byte);
      if (kind == 3 && bytes.size() > kHashSize + 1) bytes.erase(at, 1);
      if (kind == 4) bytes.insert(at, bytes.substr(at, random() % 16));
    }
    const auto opened = open(kJob, bytes, which == 0 ? Hash{} : log.events[6].hash, log.source());
    ASSERT_EQ(opened.has_value(), bytes == original)
        << "repeat with: AETHERIS_SEED=" << seed << " ./dev test mutated; round " << round;
  }
}

AE_TEST("log/seal/mutated batches are refused and nothing crashes") { mutate(2'000); }

AE_TEST_SLOW("log/seal/100,000 mutated batches are refused and nothing crashes") {
  mutate(100'000);
}

AE_TEST("log/seal/random bytes are refused and nothing crashes") {
  std::mt19937_64 random(7);
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = round % 2 == 0 ? "\x01" : "";
    for (std::uint64_t size = random() % 100; size-- > 0;) bytes += static_cast<char>(random());
    ASSERT_FALSE(open(kJob, bytes, Hash{}, Log().source()));
  }
}

AE_TEST("log/seal/a redacted value is gone, and the chain still holds") {
  Log log;
  const SealedBatch sealed = log.add(two_values());
  std::vector<std::string> requests;
  const auto redacted = redact(
      kJob, sealed.bytes, Hash{}, log.source(), [&](const Event& event, std::string_view field) {
        requests.push_back(std::to_string(event.seq) + " " + std::string(field));
        return true;
      });
  ASSERT_TRUE(redacted) << redacted.error().message;
  EXPECT_EQ(requests, (std::vector<std::string>{"1 result", "2 error.message"}));
  EXPECT_EQ(redacted->find("xyzzy"), std::string::npos);
  EXPECT_EQ(redacted->find("private words"), std::string::npos);

  const auto opened = open(kJob, *redacted, Hash{}, log.source());
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(opened->head, sealed.head);
  const auto salt = from_hex(sealed.events[0].salts.text("result"));
  const Hash expected = sha256(*salt + R"({"secret":"xyzzy"})");
  EXPECT_EQ(payload(opened->events[0]),
            R"({"result":{"$redacted":")" + to_hex(expected) + R"("}})");
  EXPECT_TRUE(opened->events[0].salts.is_null());
  const auto& finished = *as<NodeFinished>(opened->events[1]);
  EXPECT_EQ(finished.error->code, "c");
  EXPECT_TRUE(finished.error->message.erased);
  EXPECT_TRUE(is_redacted(finished.error->message.value));
  EXPECT_EQ(erased_fields(opened->events[1]), std::vector<std::string>{"error.message"});

  const auto twice = redact(kJob, *redacted, Hash{}, log.source(),
                            [](const Event&, std::string_view) { return true; });
  EXPECT_EQ(twice, redacted) << "what is gone stays gone";
  std::string altered = *redacted;
  altered[40] = static_cast<char>(altered[40] ^ 1);
  EXPECT_FALSE(open(kJob, altered, Hash{}, log.source()));
}

AE_TEST("log/seal/redacting nothing gives the same bytes, for every kind of event") {
  const RedactFilter keep = [](const Event&, std::string_view) { return false; };
  for (const EventKind& kind : event_kinds()) {
    for (const std::size_t inline_max : {8u, 1000u}) {
      Log log;
      const SealedBatch sealed =
          log.add({event_of(kind.type, sample(kind, true))}, kAttempt,
                  {.value_inline_max = inline_max, .json_inline_max = inline_max});
      EXPECT_EQ(redact(kJob, sealed.bytes, Hash{}, log.source(), keep), sealed.bytes) << kind.name;
    }
  }
}

AE_TEST("log/seal/one value of several can be redacted, also a large one") {
  Log log;
  const SealedBatch sealed = log.add(two_values(), kAttempt, {.value_inline_max = 4});
  EXPECT_EQ(sealed.blobs.size(), 2u);
  const auto redacted = redact(kJob, sealed.bytes, Hash{}, log.source(),
                               [](const Event& event, std::string_view) { return event.seq == 1; });
  ASSERT_TRUE(redacted);
  log.blobs.erase(sealed.blobs[0].hash);
  const auto opened = open(kJob, *redacted, Hash{}, log.source());
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(as<NodeFinished>(opened->events[1])->error->message.value, "private words");
}

AE_TEST("log/seal/a value that looks redacted is an ordinary value while it has its salt") {
  Log log;
  const Value look_alike = Value::object({{"$redacted", kDigest}});
  const SealedBatch sealed = log.add({JobCompleted{.result = look_alike}});
  const auto opened = log.open_first();
  ASSERT_TRUE(opened);
  EXPECT_EQ(as<JobCompleted>(opened->events[0])->result.value, look_alike);
  EXPECT_FALSE(as<JobCompleted>(opened->events[0])->result.erased);
  EXPECT_EQ(opened->events[0].salts, sealed.events[0].salts);
}

AE_TEST("log/seal/numbers that the door refuses still come back, should they ever be sealed") {
  Log log;
  log.add({JobCompleted{.result = Value(1e20)}});
  ASSERT_TRUE(log.open_first()) << refusal(log.open_first());
  EXPECT_EQ(as<JobCompleted>(log.open_first()->events[0])->result.value.as_number(), 1e20);
}

AE_TEST("log/seal/the external key of this job, step and attempt costs one byte") {
  Log derived;
  Log literal;
  ToolInvocationStarted call = sample_call();
  derived.add({call}, kAttempt);
  call.external_key = ExternalKey("x");
  literal.add({call}, kAttempt);
  EXPECT_EQ(literal.batches[0].size(), derived.batches[0].size() + 2);
  EXPECT_EQ(*as<ToolInvocationStarted>(derived.open_first()->events[0]), sample_call());
}

// A batch encoded by hand: one event without an attempt. `payload` is payload' as it is hashed.
std::string by_hand(EventType type, std::uint8_t schema, std::string_view body,
                    std::string_view name, std::string_view payload) {
  Event event;
  event.seq = 1;
  event.type = type;
  event.schema = schema;
  event.unknown_name = name;
  EventHasher hasher(kJob, Instant{0}, {});
  hasher.begin(event);
  hasher.text() += payload;
  std::string bytes(1, '\x01');
  bytes.append(16, '\0');
  put_big_endian64(0, bytes);
  bytes += std::string("\0\x01\x01", 3);
  put_byte(static_cast<std::uint8_t>(type), bytes);
  put_byte(schema, bytes);
  put_text(body, bytes);
  const Hash hash = hasher.finish();
  return bytes.append(reinterpret_cast<const char*>(hash.bytes.data()), hash.bytes.size());
}

std::string text(std::string_view s) {
  std::string out;
  put_text(s, out);
  return out;
}

Result<OpenedBatch> open_by_hand(const std::string& bytes) {
  return open(kJob, bytes, Hash{}, Log().source());
}

AE_TEST("log/seal/a narrative event of a newer program is carried, shown and verified") {
  const std::string salt(16, 's');
  const Hash secret = sha256(salt + R"("hush")");
  const std::string body = text("dream_recorded") + text("about") + '\0' + text(R"({"n":1})") +
                           text("secret") + '\x04' + salt + text(R"("hush")");
  const std::string hashed =
      R"({"about":{"n":1},"secret":{"$sha256":")" + to_hex(secret) + R"("}})";
  const auto type = static_cast<EventType>(200);
  const std::string bytes = by_hand(type, 3, body, "dream_recorded", hashed);
  const auto opened = open_by_hand(bytes);
  ASSERT_TRUE(opened) << opened.error().message;
  const Event& event = opened->events[0];
  EXPECT_EQ(event.type, type);
  EXPECT_EQ(event_name(event), "dream_recorded");
  EXPECT_EQ(payload(event), R"({"about":{"n":1},"secret":"hush"})");
  EXPECT_EQ(envelope(kJob, event).text("type"), "dream_recorded");

  const auto redacted = redact(kJob, bytes, Hash{}, Log().source(),
                               [](const Event&, std::string_view) { return true; });
  ASSERT_TRUE(redacted);
  EXPECT_EQ(redacted->find("hush"), std::string::npos);
  EXPECT_EQ(open_by_hand(*redacted)->head, opened->head);
}

AE_TEST("log/seal/a narrative event of a newer schema is carried too") {
  const std::string body = text("progress") + text("brand_new") + '\0' + text("1");
  const auto opened = open_by_hand(by_hand(EventType::progress, 2, body, "", R"({"brand_new":1})"));
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(payload(opened->events[0]), R"({"brand_new":1})");
  EXPECT_EQ(refusal(open_by_hand(by_hand(EventType::progress, 1, body, "", R"({"brand_new":1})"))),
            "log_corrupt: event 1: progress.brand_new is not a field of progress");
}

AE_TEST("log/seal/any other unknown type, schema or format asks for a newer version") {
  const std::string by = std::string("\x01") + text("ann");
  const auto code = [](const std::string& bytes) { return open_by_hand(bytes).error().code; };
  const auto resumed = EventType::job_resumed;
  ASSERT_TRUE(open_by_hand(by_hand(resumed, 1, by, "", R"({"by":"ann"})")));
  EXPECT_EQ(code(by_hand(resumed, 2, by, "", R"({"by":"ann"})")), Code::needs_version);
  EXPECT_EQ(code(by_hand(static_cast<EventType>(127), 1, "", "x", "{}")), Code::needs_version);
  std::string next_format = by_hand(resumed, 1, by, "", R"({"by":"ann"})");
  next_format[0] = 2;
  EXPECT_EQ(code(next_format), Code::needs_version);
}

AE_TEST("log/seal/content has one form of bytes only") {
  const auto resumed = [](const std::string& body) {
    return refusal(open_by_hand(by_hand(EventType::job_resumed, 1, body, "", R"({"by":"ann"})")));
  };
  EXPECT_EQ(resumed("\x01" + text("ann")), "accepted");
  EXPECT_EQ(resumed(std::string("\x01\x83\x00", 3) + "ann"),
            "log_corrupt: event 1: its bytes end too early")
      << "a varint that is not minimal";
  EXPECT_EQ(resumed("\x21" + text("ann")), "log_corrupt: event 1: by has an unknown form");
  EXPECT_EQ(resumed("\x02" + text("ann")), "log_corrupt: event 1: an unknown field, number 2");
  EXPECT_EQ(resumed("\x01" + text("ann") + "\x01" + text("ann")),
            "log_corrupt: event 1: fields out of order");
  EXPECT_EQ(resumed(""), "log_corrupt: event 1: job_resumed.by is missing");
  EXPECT_EQ(resumed("\x01" + text("\xff")), "log_corrupt: event 1: a text is not UTF-8");

  const auto parked = [](const std::string& body) {
    return refusal(
        open_by_hand(by_hand(EventType::job_parked, 1, "\x01" + text("r") + "\x02" + body, "",
                             R"({"reason":"r","until":"resume"})")));
  };
  EXPECT_EQ(parked(std::string(1, static_cast<char>(word_number("resume")))), "accepted");
  EXPECT_EQ(parked('\0' + text("resume")),
            "log_corrupt: event 1: until spells out a word of the list");
  EXPECT_EQ(parked("\xff"), "log_corrupt: event 1: until is a word that is not in the list");

  const auto cancelled = [](const std::string& value) {
    return refusal(open_by_hand(by_hand(EventType::job_cancelled, 1, "\x03" + text(value), "",
                                        R"({"in_doubt":{"a":1,"b":2}})")));
  };
  EXPECT_EQ(cancelled(R"({"a":1,"b":2})"), "accepted");
  EXPECT_EQ(cancelled(R"({"b":2,"a":1})"),
            "log_corrupt: event 1: a value is not in canonical form");
  EXPECT_EQ(cancelled(R"({"a":1.0,"b":2})"),
            "log_corrupt: event 1: a value is not in canonical form");
  EXPECT_EQ(cancelled("null"), "log_corrupt: event 1: in_doubt is null");
  EXPECT_TRUE(cancelled("{").starts_with("log_corrupt: event 1: a value is invalid JSON"));

  std::string attempt_as_text(1, '\x01');
  attempt_as_text.append(24, '\0').append("\x02" + text(kAttempt.text)).append(40, '\x01');
  EXPECT_EQ(refusal(open_by_hand(attempt_as_text)),
            "log_corrupt: the attempt's UUID is written as text");
}

AE_TEST("log/seal/a huge length or count is not believed") {
  std::string bytes(1, '\x01');
  bytes.append(24, '\0');
  bytes += '\0';
  const std::string huge = "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01";
  EXPECT_EQ(refusal(open_by_hand(bytes + huge + "\x01")), "log_corrupt: an impossible event count");
  EXPECT_EQ(refusal(open_by_hand(bytes + "\x01" + huge + std::string(40, 'x'))),
            "log_corrupt: an impossible sequence number");
  EXPECT_EQ(refusal(open_by_hand(bytes + "\x01\x01\x24\x01" + huge + std::string(40, 'x'))),
            "log_corrupt: event 1: the batch ends too early");
}

AE_TEST("log/seal/words have their numbers for ever") {
  EXPECT_EQ(word_number("success"), 1);
  EXPECT_EQ(word_number("side_effect_committed"), 6);
  EXPECT_EQ(word_number("person"), 50);
  EXPECT_EQ(word_number("no such word"), 0);
  EXPECT_EQ(word_number(""), 0);
  EXPECT_EQ(word_text(0), "");
  for (int i = 1; i < 256; ++i) {
    const auto number = static_cast<std::uint8_t>(i);
    if (!word_text(number).empty()) {
      EXPECT_EQ(word_number(word_text(number)), number);
    }
  }
}

// The logs that scripts/verify_vectors.py checks: the events that readers see, and their bytes.
Value vectors() {
  const auto shown_log = [](std::string_view name, const Log& log) {
    std::vector<Value> batches;
    std::vector<Value> events;
    std::vector<Member> blobs;
    blobs.reserve(log.blobs.size());
    Hash head;
    for (const std::string& batch : log.batches) {
      batches.emplace_back(to_hex(batch));
      const OpenedBatch opened = open(log.job, batch, head, log.source()).value();
      for (const Event& event : opened.events) events.push_back(envelope(log.job, event));
      head = opened.head;
    }
    for (const auto& [hash, bytes] : log.blobs) blobs.emplace_back(to_hex(hash), bytes);
    return Value::object({{"name", name},
                          {"head", to_hex(head)},
                          {"sealed_batches", Value::array(std::move(batches))},
                          {"blobs", Value::object(std::move(blobs))},
                          {"events", Value::array(std::move(events))}});
  };
  Log every;
  for (const EventKind& kind : event_kinds()) {
    every.add({event_of(kind.type, sample(kind, true)), event_of(kind.type, sample(kind, false))},
              kAttempt, {.json_inline_max = 16});
  }
  every.add({event_of(
      EventType::job_completed,
      json(R"({"result":[0.1,1e21,-5e-324,1e-7,123456789.25,"\u0007\u20ac\ud83d\ude00"]})"))});
  Log redacted;
  redacted.add(two_values(), AttemptId("by hand"));
  redacted.add(two_values());
  redacted.add({map_decision()});
  redacted.batches[0] = redact(kJob, redacted.batches[0], Hash{}, redacted.source(),
                               [](const Event&, std::string_view) { return true; })
                            .value();
  redacted.batches[2] = without_items(redacted, 2).value();
  Log keys;
  for (const std::string_view last : {"0", "0123456789abcdef", "att", "own"}) {
    keys.add({started_under(last)}, AttemptId("att"));
  }
  return Value::object(
      {{"about", "Logs of sealed batches and what they say; scripts/verify_vectors.py checks them"},
       {"logs", Value::array({shown_log("every kind of event, full and sparse", every),
                              shown_log("the first two values redacted", redacted),
                              shown_log("external keys of a step, a choice, an attempt, "
                                        "and one that is stored",
                                        keys)})}});
}

AE_TEST("log/seal/the published vectors are what this program writes and reads") {
  const char* root = std::getenv("AETHERIS_ROOT");
  if (root == nullptr) GTEST_SKIP() << "set AETHERIS_ROOT to the folder of the sources";
  const auto path = std::filesystem::path(root) / "testdata/vectors/chain.json";
  const std::string now = pretty(vectors()) + "\n";
  if (std::getenv("AETHERIS_UPDATE") != nullptr) {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << now;
  }
  std::ostringstream stored;
  stored << std::ifstream(path, std::ios::binary).rdbuf();
  EXPECT_TRUE(stored.str() == now)
      << path
      << " differs: stored formats never change. After adding a kind of event, run the test "
      << "with AETHERIS_UPDATE=1 and look at the difference.";
}

}  // namespace
}  // namespace ae
