// Logs of all versions: a stored log can always be opened, verified and
// folded to its original state.
//
// Method: testdata/golden/<version>/<name>.json holds the sealed commits of a job, and their
// results at the time of writing: hashes, and the whole view of the state. A view may have gained
// members since; none may have changed. AETHERIS_GOLDEN_WRITE=<folder> writes new files; existing
// files are never overwritten.
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <list>
#include <set>
#include <sstream>

#include "engine/loop/loop_fixture_test.h"
#include "engine/planner/planner.h"
#include "engine/state/retained_value.h"
#include "inspect/verify.h"
#include "inspect/view.h"
#include "log/seal.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

namespace fs = std::filesystem;

fs::path golden() {
  const char* root = std::getenv("AETHERIS_ROOT");
  return fs::path(root != nullptr ? root : ".") / "testdata" / "golden";
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// ---------------------------------------------------------------- the jobs

struct Named {
  const char* name;
  JobFixture job;
  bool erased = false;  // stored without its values, as after `redact --all`
};

std::list<Named> jobs() {
  std::list<Named> all;
  const auto add = [&](const char* name, std::string_view nodes,
                       JobFixtureOptions setup = {}) -> JobFixture& {
    setup.id = name;
    all.push_back({name, JobFixture(nodes, setup)});
    return all.back().job;
  };

  // Retries, a crash, a map, a branch, a signal, a human answer.
  add("completed",
      R"([{'id':'a', 'kind':'tool', 'tool':'put', 'args':{'n':'${ .input.n }'}},
      {'id':'p', 'kind':'tool', 'tool':'pay', 'needs':['a'], 'args':{'n':'${ .steps.a }'}},
      {'id':'s', 'kind':'tool', 'tool':'pay', 'when':'${ .input.n > 5 }'},
      {'id':'m', 'kind':'map', 'over':'${ .input.list }', 'max_parallel':2, 'needs':['a'],
       'do':{'tool':'once', 'args':{'i':'${ .index }'}}},
      {'id':'w', 'kind':'wait', 'needs':['m'], 'wait':{'type':'signal','key':'k-${ .input.n }'}}])",
      {.more = "{'output':'${ .steps }'}", .input = "{'n':1,'list':[4,5,6]}"})
      .claim()
      .fails("a", "connect")
      .after(10s)
      .ok("a", "'A'")
      .crash()
      .ok("m/1", "2")
      .ok("m/0", "1")
      .ok("m/2", "3")
      .signal("k-1", "'go'")
      .resolve("p", "happened", "'paid'");
  add("waiting",
      "[{'id':'t', 'kind':'wait', 'wait':{'type':'timer','for':'1h'}},"
      " {'id':'w', 'kind':'wait', 'wait':{'type':'signal','key':'k','expires':'2h'},"
      "  'needs':['t']},"
      " {'id':'h', 'kind':'wait', 'wait':{'type':'webhook','key':'hook'}}]")
      .claim()
      .after(1h);
  add("expired", "[{'id':'w', 'kind':'wait', 'wait':{'type':'signal','key':'k','expires':'1h'}}]")
      .claim()
      .after(1h);
  add("failed",
      "[{'id':'a', 'kind':'tool', 'tool':'risk'}, {'id':'b', 'kind':'tool', 'tool':'put'}]")
      .claim()
      .unknown("a")
      .times_out("b");
  add("cancelled", "[{'id':'a', 'kind':'tool', 'tool':'pay'}]").claim().crash().cancel("enough");
  add("parked", "[{'id':'a', 'kind':'tool', 'tool':'pay'}]").claim().unknown("a");
  add("deadline", "[{'id':'w', 'kind':'wait', 'wait':{'type':'signal','key':'k'}}]",
      {.deadline = 1h})
      .claim()
      .after(1h);
  add("redone", "[{'id':'a', 'kind':'tool', 'tool':'pay'}]")
      .claim()
      .unknown("a")
      .after(1h)
      .resolve("a", "not_happened")
      .ok("a", "7");
  add("requeued", "[{'id':'a', 'kind':'tool', 'tool':'slow'}]",
      {.more = "{'tools':{'slow':{'retry':{'max_attempts':2, 'initial_backoff':'20s',"
               " 'max_backoff':'30s'}}}}"})
      .claim()
      .fails("a", "connect")
      .after(1h)
      .ok("a", "[]");
  add("running", "[{'id':'a', 'kind':'tool', 'tool':'put'}]").claim();
  add("queued", "[{'id':'a', 'kind':'tool', 'tool':'put'}]",
      {.input = "{'deep':[[[1.5,-0.25,1e300]]]}"});
  // Two turns of a conversation, the first one called twice: its messages are
  // blobs, each stored once.
  const std::string user_message =
      "{'role':'user', 'content':'a question that is long enough to be worth "
      "a place of its own: ${ .input.x }'}";
  add("models",
      "[{'id':'one', 'kind':'llm', 'tool':'model:main', 'args':{'model':'small', 'temperature':0.5,"
      "  'messages':[" +
          user_message +
          "]}},"
          " {'id':'two', 'kind':'llm', 'tool':'model:main', 'needs':['one'], "
          "'args':{'model':'small',"
          "  'messages':[" +
          user_message +
          ", {'role':'assistant', 'content':'${ .steps.one.text }'},"
          "  {'role':'user', 'content':'Go on.'}]}}]",
      {.more = "{'tools':{'model:main':{'effect':'read', 'provider':'openai'}}}",
       .input = "{'x':'why?'}"})
      .claim()
      .crash()
      .ok("one",
          "{'text':'Because.', 'model':'small-1', 'usage':{'input_tokens':9,"
          " 'output_tokens':1, 'total_tokens':10}}")
      .ok("two", "{'text':'And so on.'}");
  // A job that failed in the middle of a map, and a fork of it that is finally re-planned.
  constexpr std::string_view kFirst =
      "{'id':'a', 'kind':'tool', 'tool':'put', 'args':{'n':'${ .input.n }'}}";
  constexpr std::string_view kMap =
      "{'id':'m', 'kind':'map', 'over':'${ .steps.a }', 'max_parallel':2, 'needs':['a'],"
      " 'do':{'tool':'once', 'args':{'i':'${ .item }'}}}";
  constexpr std::string_view kLast = "{'id':'w', 'kind':'wait', 'wait':{'type':'signal','key':'k'}";
  JobFixture& origin = add("origin",
                           "[" + std::string(kFirst) + "," + std::string(kMap) + "," +
                               std::string(kLast) + ", 'needs':['m']}]",
                           {.input = "{'n':1}"});
  origin.claim().ok("a", "[7,8,9]").ok("m/1", "'B'").fails("m/0").ok("m/2", "'C'");
  all.push_back({"forked", JobFixture(*origin.fork(origin.log.size()), "forked")});
  JobFixture& forked = all.back().job;
  forked.claim()
      .ok("m/0", "'A'")
      .replan(
          compiled(graph("[" + std::string(kLast) + "}, {'id':'z', 'kind':'tool', 'tool':'look'}," +
                         std::string(kFirst) + "]")),
          {"m"});
  forked.ok("z", "1").signal("k", "'go'");
  // Calls that were given up: a re-plan drops one of them, and both outcomes
  // are noted after the end.
  JobFixture& unknown =
      add("unknown",
          "[{'id':'a', 'kind':'tool', 'tool':'risk', 'args':{'n':1}, 'on_error':'continue'},"
          " {'id':'b', 'kind':'tool', 'tool':'risk', 'args':{'n':2}, 'on_error':'continue'},"
          " {'id':'w', 'kind':'wait', 'wait':{'type':'signal','key':'k'}, 'needs':['a','b']}]");
  unknown.claim();
  const SentTry late = sent_try_of(unknown.state, unknown.step("b"));
  unknown.unknown("a").unknown("b").replan(
      compiled(
          graph("[{'id':'b', 'kind':'tool', 'tool':'risk', 'args':{'n':2}, 'on_error':'continue'},"
                " {'id':'z', 'kind':'wait', 'wait':{'type':'signal','key':'z'}}]")),
      {"a"});
  unknown.signal("z").after(1h).store_effect(
      late, {.kind = OutcomeKind::success, .result = json("{'id':7}")});
  unknown.send_request({.by = "ann",
                        .body = ResolveRequest{.idempotency_key = unknown.sent[0].key,
                                               .resolution = "not_happened",
                                               .reason = "looked"}});
  // Answers of users: a call happened without a result; an invalid early answer; a
  // result that breaks its schema.
  JobFixture& people =
      add("people",
          "[{'id':'p', 'kind':'tool', 'tool':'pay'},"
          " {'id':'h', 'kind':'wait', 'needs':['p'], 'wait':{'type':'human', 'key':'k'}},"
          " {'id':'s', 'kind':'tool', 'tool':'strict', 'needs':['h'], 'on_error':'continue'}]",
          {.more = "{'tools':{'strict':{'args_schema':{'type':'object'},"
                   "'result_schema':{'type':'integer'}}}}"});
  people.claim().crash().resolve("p", "happened");
  people.add(expire_request(
      people.state,
      {.id = "early",
       .body = SignalRequest{
           .correlation_key = "k", .buffer = true, .payload = json("{'note':'hm'}")}}));
  people.run_until_idle();
  people.signal("k", "{'decision':'approve'}").ok("s", "'no number'");
  // Values that are recorded without a call: of nodes, of items, of a step that needed approval.
  add("recorded",
      R"([{'id':'t', 'kind':'tool', 'tool':'clock'},
      {'id':'r', 'kind':'tool', 'tool':'dice', 'needs':['t'], 'args':{'min':1, 'max':6}},
      {'id':'u', 'kind':'map', 'over':'${ [4, 7] }', 'max_parallel':2,
       'do':{'tool':'ids', 'args':{'version':'${ .item }'}}},
      {'id':'a', 'kind':'tool', 'tool':'put', 'needs':['r', 'u'],
       'args':{'at':'${ .steps.t.ms }', 'n':'${ .steps.r }', 'u':'${ .steps.u }'}}])",
      {.more = R"({'tools': {'clock': {'effect':'read', 'records':'time'},
      'dice': {'effect':'read', 'records':'random', 'approval':'required'},
      'ids': {'effect':'read', 'records':'uuid'}}})"})
      .claim()
      .approve("r")
      .ok("a");
  // A strict job: another version of the program parks it, and its original version completes it.
  JobFixture& strict = add("versions",
                           "[{'id':'a', 'kind':'tool', 'tool':'put'},"
                           " {'id':'b', 'kind':'tool', 'tool':'once', 'needs':['a']}]",
                           {.more = "{'versions':{'policy':'strict'}}"});
  strict.claims_when_free = false;
  strict.claim();
  strict.execution_version = "v2";
  strict.reload().begin_attempt();
  strict.add({VersionMismatched{
      .attempt_id = strict.state.attempt.text, .job_version = "v1", .worker_version = "v2"}});
  strict.run_until_idle();
  strict.execution_version = "v1";
  strict.offer().claim().ok("a").ok("b");
  // Without its values: a branch, a map, messages in blobs, a human answer, an error.
  add("erased",
      R"([{'id':'yes', 'kind':'tool', 'tool':'put', 'when':'${ .input.n > 5 }',
       'args':{'to':'${ .input.to }'}},
      {'id':'m', 'kind':'map', 'over':'${ .input.list }', 'max_parallel':2,
       'do':{'tool':'once', 'args':{'i':'${ .item }'}}},
      {'id':'one', 'kind':'llm', 'tool':'model:main', 'needs':['yes', 'm'],
       'args':{'model':'small', 'messages':[)" +
          user_message +
          R"(]}},
      {'id':'p', 'kind':'tool', 'tool':'sends', 'needs':['one'], 'args':{'to':'${ .input.to }'}},
      {'id':'w', 'kind':'wait', 'needs':['p'], 'wait':{'type':'signal', 'key':'k'}},
      {'id':'e', 'kind':'tool', 'tool':'put', 'needs':['w'], 'on_error':'continue'}])",
      {.more = "{'output':'${ .steps }', 'tools':{'sends':{'approval':'required'},"
               " 'model:main':{'effect':'read', 'provider':'openai'}}}",
       .input = "{'n':7, 'to':'ada@example.org', 'list':['ada', 'bob'], 'x':'who is ada?'}"})
      .claim()
      .ok("yes", "'ada'")
      .ok("m/1", "'sent to bob'")
      .ok("m/0", "'sent to ada'")
      .ok("one", "{'text':'Ada.', 'model':'small-1'}")
      .approve("p")
      .ok("p", "'ada'")
      .signal("k", "{'from':'ada'}")
      .fails("e");
  all.back().erased = true;
  // A loop with a refused call, an answer that breaks its schema, and the repair message.
  add("repaired", chat_node(", 'schema': {'type': 'object', 'required': ['n']}, 'repair': 1"),
      {.more = kTools, .input = "{'message':'Hello'}"})
      .claim()
      .ok("chat/0", tool_calls_answer({{"a", "nothing"}, {"b", "exact", "{'n':'x'}"}}))
      .ok("chat/1", text_answer("no JSON"))
      .ok("chat/2", R"({"text": "{\"n\": 1}", "finish_reason": "stop"})");
  // A planner whose first answer is no valid plan; the valid one uses every member
  // that an answer may have.
  const Value planner_spec = json(
      "{'tool': 'model:main', 'model': 'small', 'told': 'Plan', 'prompt': '${ .input.message }',"
      " 'tools': ['look', 'put'], 'max_nodes': 4, 'repair': 1}");
  const Value planner = Value::object({{"id", "planner"},
                                       {"kind", "planner"},
                                       {"planner", planner_spec.with("schema", planner_schema())}});
  const auto answers = [](std::string_view plan) {
    return canonical(Value::object({{"text", canonical(json(plan))}}));
  };
  all.push_back(
      {"planned", JobFixture(compiled(graph("[]", kTools).with("nodes", Value::array({planner}))),
                             {.input = "{'message':'Go', 'n':7}", .id = "planned"})});
  all.back()
      .job.claim()
      .ok("planner/0", answers("{'nodes':[{'id':'a', 'tool':'once'}]}"))
      .ok("planner/1",
          answers("{'nodes':[{'id':'find', 'tool':'look'},"
                  " {'id':'rest', 'wait_for':'30s', 'needs':['find']},"
                  " {'id':'each', 'tool':'put', 'map':'${ [1, 2] }', 'as':'one', 'needs':['rest']},"
                  " {'id':'never', 'tool':'put', 'when':'${ .input.n > 8 }',"
                  "  'on_error':'continue'}]}"))
      .ok("find", "'it'")
      .after(31s)
      .ok("each/0", "'a'")
      .ok("each/1", "'b'");
  return all;
}

// ---------------------------------------------------------------- the stored form

// The commit without its values.
std::string without_values(const JobId& job, const SealedBatch& sealed, const Hash& previous,
                           const BlobSource& blobs) {
  auto left = redact(
      job, sealed.bytes, previous, blobs,
      [](const Event& event, std::string_view field) {
        return retention_reason(event, field).empty();
      },
      [](const Event& event, std::string_view field) {
        return retained_value(event, field, true);
      });
  AE_CHECK(left.has_value(), left ? "" : left.error().message);
  return *left;
}

Value exported(const Named& named) {
  const JobFixture& job = named.job;
  std::vector<Value> commits, blobs;
  std::map<std::string, std::string> apart;  // by hash
  std::set<std::string> seen;
  Hash head;
  std::size_t from = 0;
  for (const std::size_t to : job.commits) {
    std::vector<EventBody> drafts;
    for (std::size_t i = from; i < to; ++i) drafts.push_back(job.log[i].body);
    const Hash previous = head;
    auto sealed = seal({.job = job.state.job,
                        .first_seq = from + 1,
                        .prev_hash = previous,
                        .first_id = uuid_v7(from + 1, 1, 1),
                        .created_at = job.log[from].created_at,
                        .attempt_id = job.log[from].attempt_id,
                        .salt_seed_a = 1,
                        .salt_seed_b = from},
                       drafts);
    AE_CHECK(sealed.has_value());
    for (const Blob& blob : sealed->blobs) apart[to_hex(sha256(blob.bytes))] = blob.bytes;
    const BlobSource stored = [&](const Hash& hash) -> Result<std::string> {
      return apart.at(to_hex(hash));
    };
    const std::string bytes =
        named.erased ? without_values(job.state.job, *sealed, previous, stored) : sealed->bytes;
    const BlobSource noted = [&](const Hash& hash) -> Result<std::string> {
      const std::string& blob = apart.at(to_hex(hash));
      if (seen.insert(blob).second) blobs.emplace_back(blob);
      return blob;
    };
    AE_CHECK(open(job.state.job, bytes, previous, noted).has_value());
    commits.emplace_back(to_hex(bytes));
    head = sealed->head;
    from = to;
  }
  return Value::object({{"blobs", Value::array(std::move(blobs))},
                        {"commits", Value::array(std::move(commits))},
                        {"job", job.state.job.text}});
}

Result<std::vector<Event>> opened(const Value& file) {
  std::map<std::string, std::string> blobs;
  for (const Value& blob : file["blobs"].items()) {
    blobs[to_hex(sha256(blob.as_string()))] = blob.as_string();
  }
  const JobId job(std::string(file.text("job")));
  std::vector<Event> events;
  Hash head;
  for (const Value& commit : file["commits"].items()) {
    AE_ASSIGN(OpenedBatch batch, open(job, *from_hex(commit.as_string()), head,
                                      [&](const Hash& hash) -> Result<std::string> {
                                        auto blob = blobs.find(to_hex(hash));
                                        if (blob == blobs.end())
                                          return fail(Code::log_corrupt, "a value is missing");
                                        return blob->second;
                                      }));
    head = batch.head;
    for (Event& event : batch.events) events.push_back(std::move(event));
  }
  return events;
}

Value types_of(const std::vector<Event>& events) {
  std::vector<Value> types;
  for (const Event& event : events) types.emplace_back(event_name(event));
  return Value::array(std::move(types));
}

// The result of a log with this program.
Value advance_to(const Value& file, const std::vector<Event>& events) {
  const JobId job(std::string(file.text("job")));
  const Verification proof = verify({.job = job, .events = events}, uncached_plan_source());
  auto state = fold(job, events, uncached_plan_source());
  AE_CHECK(state.has_value(), state ? "" : state.error().message);
  return Value::object({{"execution_hash", proof.execution_hash_hex},
                        {"head", proof.root_hash_hex},
                        {"ok", proof.ok},
                        {"types", types_of(events)},
                        {"view", state_view(*state)}});
}

// The path of the first member that is missing or differs; "" = none.
std::string lost(const Value& then, const Value& now, const std::string& path = "") {
  if (then.is_object() && now.is_object()) {
    for (const auto& [name, value] : then.members()) {
      // Views of earlier versions had command lines; now they have actions, and api/command_line.h
      // writes the commands.
      const bool is_command = name == "command" || name == "commands";
      if (is_command && now["actions"].size() > 0) continue;
      if (auto where = lost(value, now[name], path + "." + name); !where.empty()) return where;
    }
    return {};
  }
  if (then.is_array() && now.is_array() && then.size() == now.size()) {
    for (std::size_t i = 0; i < then.size(); ++i) {
      auto where = lost(then.items()[i], now.items()[i], path + "[" + std::to_string(i) + "]");
      if (!where.empty()) return where;
    }
    return {};
  }
  return then == now ? std::string() : path + ": " + canonical(then) + " is now " + canonical(now);
}

// ---------------------------------------------------------------- every type, every field

Value sample(const Field& field) {
  switch (field.kind) {
    case FieldKind::text:
      return "Text \xC3\xA9 of " + std::string(field.name);
    case FieldKind::word:
      return "success";
    case FieldKind::id8:
      return "0123456789abcdef";
    case FieldKind::hash32:
      return std::string(64, 'c');
    case FieldKind::uuid:
      return "01a200a8-0c3d-7fe2-acb1-ec5aaed45267";
    case FieldKind::integer:
      return -4711;
    case FieldKind::boolean:
      return true;
    case FieldKind::instant:
      return "2026-01-02T03:04:05.000006Z";
    case FieldKind::external_key:
      return "aetheris:j:0123456789abcdef:0";
    case FieldKind::json:
      return json("{'list':[1,2.5,null,'x'],'long':'" + std::string(300, 'l') + "'}");
    case FieldKind::value:
      return json("{'secret':['a',1e-7]}");
    case FieldKind::error:
      return json("{'code':'http_503','message':'it said no'}");
  }
  return {};
}

Value every_type() {
  std::vector<EventBody> drafts;
  for (int number = 1; number < 256; ++number) {
    const EventKind* kind = event_kind(static_cast<EventType>(number));
    if (kind == nullptr) continue;
    std::vector<Member> members;
    for (const Field& field : kind->fields) members.emplace_back(field.name, sample(field));
    drafts.push_back(event_of(kind->type, Value::object(std::move(members))));
  }
  const Hash zero;
  const JobId job("every-type");
  auto sealed = seal({.job = job,
                      .first_seq = 1,
                      .prev_hash = zero,
                      .first_id = uuid_v7(1, 1, 1),
                      .created_at = *instant_from_text("2026-01-01T00:00:00Z"),
                      .attempt_id = {},
                      .salt_seed_a = 1,
                      .salt_seed_b = 2},
                     drafts);
  AE_CHECK(sealed.has_value());
  std::vector<Value> blobs, events;
  std::set<std::string> seen;
  for (const Blob& blob : sealed->blobs) {
    if (seen.insert(blob.bytes).second) blobs.emplace_back(blob.bytes);
  }
  for (const Event& event : sealed->events) events.push_back(envelope(job, event));
  return Value::object({{"blobs", Value::array(std::move(blobs))},
                        {"commits", Value::array({Value(to_hex(sealed->bytes))})},
                        {"events", Value::array(std::move(events))},
                        {"job", job.text}});
}

void write_once(const fs::path& path, const Value& value) {
  if (fs::exists(path)) return;
  std::ofstream(path) << pretty(value) << "\n";
}

AE_TEST("golden/new golden logs are written on request") {
  const char* folder = std::getenv("AETHERIS_GOLDEN_WRITE");
  if (folder == nullptr) GTEST_SKIP() << "AETHERIS_GOLDEN_WRITE=<folder> writes them";
  fs::create_directories(folder);
  for (const Named& named : jobs()) {
    Value file = exported(named);
    auto events = opened(file);
    ASSERT_TRUE(events);
    write_once(fs::path(folder) / (std::string(named.name) + ".json"),
               file.with("then", advance_to(file, *events)));
  }
  write_once(fs::path(folder) / "every_type.json", every_type());
}

AE_TEST("golden/every stored log verifies and folds to its recorded state") {
  std::size_t logs = 0;
  for (const auto& entry : fs::recursive_directory_iterator(golden())) {
    const fs::path& path = entry.path();
    if (path.extension() != ".json" || path.parent_path().filename() == "store") continue;
    SCOPED_TRACE(path.string());
    auto file = parse_json(read_file(path));
    ASSERT_TRUE(file);
    if (!file->find("commits")) continue;  // part of a store file
    auto events = opened(*file);
    ASSERT_TRUE(events) << events.error().message;
    logs++;
    if (file->find("events")) {
      ASSERT_EQ((*file)["events"].size(), events->size());
      for (std::size_t i = 0; i < events->size(); ++i) {
        EXPECT_EQ((*file)["events"].items()[i],
                  envelope(JobId(std::string(file->text("job"))), (*events)[i]));
      }
      continue;
    }
    EXPECT_EQ((*file)["then"]["ok"], Value(true));
    EXPECT_EQ(lost((*file)["then"], advance_to(*file, *events)), "");
  }
  EXPECT_GE(logs, jobs().size() + 1);
}

AE_TEST("golden/the golden jobs contain every event type that they should cover") {
  std::set<std::string> types;
  for (const Named& named : jobs()) {
    for (const Event& event : named.job.log) types.insert(std::string(event_name(event)));
  }
  for (const char* type : {"job_created",
                           "plan_generated",
                           "decision_recorded",
                           "node_started",
                           "command_emitted",
                           "command_committed",
                           "tool_invocation_started",
                           "tool_invocation_finished",
                           "node_finished",
                           "step_committed",
                           "job_completed",
                           "job_failed",
                           "job_cancelled",
                           "job_running",
                           "job_requeued",
                           "job_waiting",
                           "job_parked",
                           "job_cancel_requested",
                           "wait_opened",
                           "wait_completed",
                           "timer_fired"}) {
    EXPECT_TRUE(types.contains(type)) << type;
  }
}

}  // namespace
}  // namespace ae::engine::testing
