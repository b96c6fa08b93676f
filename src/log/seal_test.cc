// Tests of seal and open: sealed batches read back unchanged, chained, with large values as blobs.
#include "log/seal.h"

#include <fmt/core.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "json/json.h"
#include "log/redacted.h"
#include "log/seal_fixture_test.h"
#include "testing/test.h"

namespace ae::testing {
namespace {

AE_TEST("log/seal/an external key derived from its event takes no space") {
  std::map<std::string, std::size_t> sizes;
  for (const std::string& last : {std::string("0"), std::string("0123456789abcdef"),
                                  std::string("att"), std::string("own")}) {
    Log log;
    log.add({started_under(last)}, AttemptId("att"));
    const auto opened = log.open_first();
    ASSERT_TRUE(opened) << opened.error().message;
    EXPECT_EQ(opened->events[0].schema, 2);
    EXPECT_EQ(as<ToolInvocationStarted>(opened->events[0])->external_key.text,
              fmt::format("aetheris:job-1:{}:{}", kStep, last));
    sizes[last] = log.batches[0].size();
  }
  EXPECT_EQ(sizes["0"], sizes["att"]);
  EXPECT_EQ(sizes["0"], sizes["0123456789abcdef"]);
  EXPECT_GT(sizes["own"], sizes["0"] + 30);
}

AE_TEST("log/seal/every kind of event reads back as it was sealed") {
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

AE_TEST("log/seal/events that an older program would misread have a newer schema") {
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
    return schema(JobCreated{.agent = "a",
                             .budget = JsonOf<JobBudget>(json(budget)),
                             .execution_version = "1",
                             .input = json("{}")});
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
  EXPECT_EQ(planned(R"({"nodes":[{"loop":{"thread":true}}],"tools":{"t":{"sends":true}}})"), 7);
  const auto imported = [&](std::string_view commands) {
    return schema(ForkImported{.commands = JsonOf<std::vector<ForkEntry>>(json(commands)),
                               .results = json("{}")});
  };
  EXPECT_EQ(imported(R"([{"node_id":"a","step_id":"s"}])"), 1);
  EXPECT_EQ(imported(R"([{"node_id":"a","step_id":"s","under_way":true},{"turn":0}])"), 2);
}

AE_TEST("log/seal/each batch starts at the head of the previous one") {
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
  EXPECT_FALSE(open(kJob, log.batches[1], Hash{}, log.source())) << "a different previous hash";
  EXPECT_FALSE(open(JobId("job-2"), log.batches[0], Hash{}, log.source())) << "a different job";
}

AE_TEST("log/seal/the bytes and the hash of format version 1 never change") {
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

AE_TEST("log/seal/absent members are omitted, a null value is kept") {
  Log log;
  const SealedBatch sealed = log.add(
      {event_of(EventType::job_cancelled, json(R"({"by":null,"reason":"tired","in_doubt":null})")),
       event_of(EventType::job_completed, json(R"({"result":null})"))});
  EXPECT_EQ(payload(sealed.events[0]), R"({"reason":"tired"})");
  EXPECT_TRUE(sealed.events[0].salts.empty());
  EXPECT_EQ(payload(sealed.events[1]), R"({"result":null})");
  EXPECT_NE(salt_of(sealed.events[1], "result"), nullptr);
  EXPECT_EQ(salt_of(sealed.events[1], "error"), nullptr);
  EXPECT_EQ(log_text(log.open_first()->events), log_text(sealed.events));
}

AE_TEST("log/seal/equal values get different salts, equal seeds give equal salts") {
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

AE_TEST("log/seal/large values are stored once, as blobs addressed by hash") {
  const Value large = std::string(300, 'x');
  Log log;
  const SealedBatch sealed =
      log.add({JobCompleted{.result = large}, JobCompleted{.result = large},
               JobCancelled{.in_doubt = JsonOf<std::vector<std::string>>(large)}},
              {}, {.value_inline_max = 301, .json_inline_max = 301});
  ASSERT_EQ(sealed.blobs.size(), 1u);
  EXPECT_EQ(sealed.blobs[0].bytes, canonical(large));
  EXPECT_EQ(sealed.blobs[0].hash, sha256(canonical(large)));
  EXPECT_EQ(log_text(log.open_first()->events), log_text(sealed.events));

  Log inside;
  EXPECT_TRUE(
      inside.add({JobCompleted{.result = large}}, {}, {.value_inline_max = 302}).blobs.empty());
}

AE_TEST("log/seal/a value up to 256 KiB is stored inline, a larger one as a blob") {
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

AE_TEST("log/seal/each message of a model request is stored once, as its own blob") {
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

AE_TEST("log/seal/the chain does not depend on how messages are stored") {
  Log separate;
  Log inlined;
  separate.add({model_call({message(std::string(99, 'a')), message("b")})});
  inlined.add({model_call({message(std::string(99, 'a')), message("b")})}, {},
              {.message_inline_max = 1000});
  EXPECT_EQ(separate.head, inlined.head);
  EXPECT_EQ(separate.blobs.size(), 1u);
  EXPECT_TRUE(inlined.blobs.empty());
  EXPECT_TRUE(inlined.open_first());
  // The arguments of a tool that is not a model are never split.
  Log tool;
  tool.add({model_call({message(std::string(99, 'a')), message("b")}, "ask")});
  EXPECT_TRUE(tool.blobs.empty());
  EXPECT_TRUE(tool.open_first());
}

AE_TEST("log/seal/model requests of every shape read back as they were sealed") {
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

AE_TEST("log/seal/a redacted request is gone and the chain still verifies") {
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

AE_TEST("log/seal/a value above the size limit is rejected by name") {
  const SealInput input{
      .job = kJob, .first_seq = 1, .prev_hash = Hash{}, .salt_seed_a = 1, .salt_seed_b = 2};
  const auto sealed = seal(input, {JobCompleted{.result = Value("12345678")}}, {.value_max = 9});
  ASSERT_FALSE(sealed);
  EXPECT_EQ(sealed.error().code, Code::payload_too_large);
  EXPECT_EQ(sealed.error().message, "result has 10 bytes; at most 9 are kept");
}

AE_TEST("log/seal/sealing an invalid payload aborts") {
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

AE_TEST("log/seal/numbers that the API rejects still read back if they were sealed") {
  Log log;
  log.add({JobCompleted{.result = Value(1e20)}});
  ASSERT_TRUE(log.open_first()) << refusal(log.open_first());
  EXPECT_EQ(as<JobCompleted>(log.open_first()->events[0])->result.value.as_number(), 1e20);
}

AE_TEST("log/seal/the external key of the same job, step and attempt takes one byte") {
  Log derived;
  Log literal;
  ToolInvocationStarted call = sample_call();
  derived.add({call}, kAttempt);
  call.external_key = ExternalKey("x");
  literal.add({call}, kAttempt);
  EXPECT_EQ(literal.batches[0].size(), derived.batches[0].size() + 2);
  EXPECT_EQ(*as<ToolInvocationStarted>(derived.open_first()->events[0]), sample_call());
}

}  // namespace
}  // namespace ae::testing
