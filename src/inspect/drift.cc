// drift_view: keeps the last value per tool and kind, and records each change.
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
#include "log/field_names.h"

namespace ae::engine {
namespace {

class Drift {
 public:
  void add(const Event& event);
  Value take() { return Value::array(std::move(entries_)); }

 private:
  struct LastValue {
    std::string value;
    std::uint64_t seq = 0;
  };
  struct Call {
    std::string tool, model;
  };
  // `requested_model`: only of an answer.
  void note(const Event& event, std::string_view tool, std::string_view what,
            std::string_view value, std::string_view requested_model = {});
  void plan(const Event& event, const PlanGenerated& plan);
  void execution(const Event& event, std::string_view own, std::string_view other);
  void trial(const Event& event, std::string_view version);
  void started(const Event& event, const ToolInvocationStarted& call);

  std::map<std::tuple<std::string, std::string, std::string>, LastValue> last_values_;
  std::unordered_map<StepId, Call> calls_;
  std::vector<Value> entries_;
  std::string created_version_, code_version_;
  bool has_code_ = false;
};

std::string schema_digest(const Value& schema) {
  return schema.is_null() ? std::string() : to_hex(sha256(canonical(schema)));
}

void Drift::note(const Event& event, std::string_view tool, std::string_view what,
                 std::string_view value, std::string_view requested_model) {
  LastValue& last =
      last_values_[{std::string(tool), std::string(what), std::string(requested_model)}];
  if (last.seq > 0 && last.value != value) {
    entries_.push_back(Value::object({{"from", or_null(last.value)},
                                      {"seq", event.seq},
                                      {"since", last.seq},
                                      {"to", or_null(value)},
                                      {"tool", or_null(tool)},
                                      {"what", what}}));
  }
  last = {std::string(value), event.seq};
}

// Versions of the processes, or of the code, that ran the job. The job's own version is that of its
// first event.
void Drift::execution(const Event& event, std::string_view own, std::string_view other) {
  LastValue& last = last_values_[{"", field::execution_version, ""}];
  if (last.seq == 0) last = {std::string(own), 1};
  note(event, "", field::execution_version, other);
}

// The code of this version differs from the log. If the job has another one, it was a trial.
void Drift::trial(const Event& event, std::string_view version) {
  if (version.empty() || version == code_version_) return;
  const LastValue& last = last_values_[{"", field::execution_version, ""}];
  entries_.push_back(Value::object({{"from", or_null(code_version_)},
                                    {"seq", event.seq},
                                    {"since", last.seq > 0 ? last.seq : 1},
                                    {"to", or_null(version)},
                                    {"tool", Value()},
                                    {"what", "trial"}}));
}

void Drift::plan(const Event& event, const PlanGenerated& plan) {
  const Value& nodes = plan.task_graph["nodes"];
  has_code_ = false;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const Value& node = nodes.items()[i];
    if (node.text(field::kind) != field::code) continue;
    has_code_ = true;
    code_version_ = node[field::code].text(field::version);
  }
  const Value& tools = plan.task_graph["tools"];
  if (!tools.is_object()) return;
  for (const auto& [name, tool] : tools.members()) {
    note(event, name, field::tool_version, tool.text(field::version));
    note(event, name, "args_schema", schema_digest(tool["args_schema"]));
    note(event, name, "result_schema", schema_digest(tool["result_schema"]));
    if (tool.find("provider")) note(event, name, "provider", tool.text("provider"));
  }
}

void Drift::started(const Event& event, const ToolInvocationStarted& started) {
  // The hash that an approved call records for a tool without a schema.
  static const Hash kNoSchema = sha256("null");
  Call& call = calls_[started.step_id];
  call = {started.tool_name, std::string(started.arguments.value.text("model"))};
  note(event, call.tool, field::tool_version, started.tool_version);
  if (const auto& schema = started.request_schema_hash) {
    note(event, call.tool, "args_schema", *schema == kNoSchema ? "" : to_hex(*schema));
  }
  if (!call.tool.starts_with(kModelToolPrefix)) {
    call.model.clear();
  } else if (!call.model.empty()) {
    note(event, call.tool, "model", call.model);
  }
}

void Drift::add(const Event& event) {
  if (const auto* generated = as<PlanGenerated>(event)) return plan(event, *generated);
  if (const auto* call = as<ToolInvocationStarted>(event)) return started(event, *call);
  if (const auto* created = as<JobCreated>(event)) created_version_ = created->execution_version;
  // A job of code moves by a decision: before it, another version is only tried.
  if (const auto* versions = as<VersionMismatched>(event); versions && !has_code_) {
    return execution(event, versions->job_version, versions->worker_version);
  }
  if (const auto* decision = as<DecisionRecorded>(event); decision && decision->kind == "route") {
    code_version_ = decision->payload.value.text("to");
    return execution(event, created_version_, code_version_);
  }
  if (const auto* diverged = as<RoutineDiverged>(event)) {
    return trial(event, or_empty(diverged->version));
  }
  if (const auto* end = as<ToolInvocationFinished>(event)) {
    const auto call = calls_.find(end->step_id);
    if (call == calls_.end() || !end->response_schema_hash) return;
    note(event, call->second.tool, "result_schema", to_hex(*end->response_schema_hash));
  }
  if (const auto* command = as<CommandCommitted>(event)) {
    const auto call = calls_.find(command->step_id);
    if (call == calls_.end() || call->second.model.empty()) return;
    const std::string& answered = or_empty(command->llm_model);
    if (!answered.empty()) note(event, call->second.tool, "answered", answered, call->second.model);
  }
}

}  // namespace

Value drift_view(const std::vector<Event>& events) {
  Drift drift;
  for (const Event& event : events) drift.add(event);
  return drift.take();
}

}  // namespace ae::engine
