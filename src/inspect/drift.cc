// One walk over the log: the last word on each tool, and where another one follows.
#include "inspect/drift.h"

#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/hash.h"
#include "engine/state/view_values.h"
#include "json/json.h"

namespace ae::engine {
namespace {

class Drift {
 public:
  void see(const Event& event);
  Value found() { return Value::array(std::move(found_)); }

 private:
  struct Word {
    std::string said;
    std::uint64_t seq = 0;
  };
  struct Call {
    std::string tool, model;
  };
  // `about`: of an answer, the model that was asked.
  void note(const Event& event, std::string_view tool, std::string_view what, std::string_view said,
            std::string_view about = {});
  void plan(const Event& event);
  void execution(const Event& event);
  void started(const Event& event);
  void finished(const Event& event, const Call& call);
  void committed(const Event& event, const Call& call);

  std::map<std::tuple<std::string, std::string, std::string>, Word> words_;
  std::unordered_map<std::string, Call> calls_;  // by step
  std::vector<Value> found_;
};

std::string schema_digest(const Value& schema) {
  return schema.is_null() ? std::string() : to_hex(sha256(canonical(schema)));
}

void Drift::note(const Event& event, std::string_view tool, std::string_view what,
                 std::string_view said, std::string_view about) {
  Word& word = words_[{std::string(tool), std::string(what), std::string(about)}];
  if (word.seq > 0 && word.said != said) {
    found_.push_back(Value::object({{"from", or_null(word.said)},
                                    {"seq", event.seq},
                                    {"since", word.seq},
                                    {"to", or_null(said)},
                                    {"tool", or_null(tool)},
                                    {"what", what}}));
  }
  word = {std::string(said), event.seq};
}

// Of the processes that held the job. The job's own version is that of its first event.
void Drift::execution(const Event& event) {
  Word& word = words_[{"", "execution_version", ""}];
  if (word.seq == 0) word = {std::string(event.payload.text("job_version")), 1};
  note(event, "", "execution_version", event.payload.text("worker_version"));
}

void Drift::plan(const Event& event) {
  const Value& tools = event.payload["task_graph"]["tools"];
  if (!tools.is_object()) return;
  for (const auto& [name, tool] : tools.members()) {
    note(event, name, "tool_version", tool.text("version"));
    note(event, name, "args_schema", schema_digest(tool["args_schema"]));
    note(event, name, "result_schema", schema_digest(tool["result_schema"]));
    if (tool.find("provider")) note(event, name, "provider", tool.text("provider"));
  }
}

void Drift::started(const Event& event) {
  // What an approved call says of a tool that has no schema.
  static const std::string kNoSchema = to_hex(sha256("null"));
  const Value& p = event.payload;
  Call& call = calls_[std::string(p.text("step_id"))];
  call = {std::string(p.text("tool_name")), std::string(p["arguments"].text("model"))};
  note(event, call.tool, "tool_version", p.text("tool_version"));
  if (const std::string_view schema = p.text("request_schema_hash"); !schema.empty()) {
    note(event, call.tool, "args_schema", schema == kNoSchema ? std::string_view() : schema);
  }
  if (!call.tool.starts_with(kModelToolPrefix)) {
    call.model.clear();
  } else if (!call.model.empty()) {
    note(event, call.tool, "model", call.model);
  }
}

void Drift::finished(const Event& event, const Call& call) {
  const std::string_view schema = event.payload.text("response_schema_hash");
  if (!schema.empty()) note(event, call.tool, "result_schema", schema);
}

void Drift::committed(const Event& event, const Call& call) {
  const std::string_view answered = event.payload.text("llm_model");
  if (!answered.empty() && !call.model.empty()) {
    note(event, call.tool, "answered", answered, call.model);
  }
}

void Drift::see(const Event& event) {
  if (event.type == EventType::plan_generated) return plan(event);
  if (event.type == EventType::tool_invocation_started) return started(event);
  if (event.type == EventType::version_mismatched) return execution(event);
  const auto call = calls_.find(std::string(event.payload.text("step_id")));
  if (call == calls_.end()) return;
  if (event.type == EventType::tool_invocation_finished) finished(event, call->second);
  if (event.type == EventType::command_committed) committed(event, call->second);
}

}  // namespace

Value drift_view(const std::vector<Event>& events) {
  Drift drift;
  for (const Event& event : events) drift.see(event);
  return drift.found();
}

}  // namespace ae::engine
