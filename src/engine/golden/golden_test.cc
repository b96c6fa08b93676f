// Logs of all versions: a stored log can always be opened, verified and
// folded to its original state.
//
// Method: testdata/golden/<version>/<name>.json holds the sealed commits of a job, and their
// results at the time of writing: hashes, and the whole view of the state. A view may have gained
// members since; none may have changed. AETHERIS_GOLDEN_WRITE=<folder> writes new files; existing
// files are never overwritten.
#include <fmt/core.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "engine/fixtures/dropped_steps_test.h"
#include "engine/golden/golden_jobs_test.h"
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

Value exported(const GoldenJob& named) {
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
      if (auto where = lost(value, now[name], fmt::format("{}.{}", path, name)); !where.empty())
        return where;
    }
    return {};
  }
  if (then.is_array() && now.is_array() && then.size() == now.size()) {
    for (std::size_t i = 0; i < then.size(); ++i) {
      auto where = lost(then.items()[i], now.items()[i], fmt::format("{}[{}]", path, i));
      if (!where.empty()) return where;
    }
    return {};
  }
  return then == now ? std::string()
                     : fmt::format("{}: {} is now {}", path, canonical(then), canonical(now));
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
      return json(fmt::format("{{'list':[1,2.5,null,'x'],'long':'{}'}}", std::string(300, 'l')));
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
  for (const GoldenJob& named : golden_jobs()) {
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
    expect_same_views(JobId(std::string(file->text("job"))), *events, uncached_plan_source());
    EXPECT_EQ((*file)["then"]["ok"], Value(true));
    EXPECT_EQ(lost((*file)["then"], advance_to(*file, *events)), "");
  }
  EXPECT_GE(logs, golden_jobs().size() + 1);
}

AE_TEST("golden/the golden jobs contain every event type that they should cover") {
  std::set<std::string> types;
  for (const GoldenJob& named : golden_jobs()) {
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
                           "child_cancel_requested",
                           "wait_opened",
                           "wait_completed",
                           "timer_fired",
                           "routine_started",
                           "routine_diverged",
                           "routine_failed",
                           "value_emitted"}) {
    EXPECT_TRUE(types.contains(type)) << type;
  }
}

}  // namespace
}  // namespace ae::engine::testing
